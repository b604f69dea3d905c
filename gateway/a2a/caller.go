package a2a

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
)

// caller is who sends a request to an endpoint.
type caller struct {
	bearer string     // the key; empty: the caller has none
	did    didkey.DID // who has signed the request; empty: nobody
	id     string     // as in the column a2a_task.caller
	payer  string     // as in the column a2a_task.payer
	shown  wire.Caller
}

// anonymous reports whether the relay does not know the caller.
func (c caller) anonymous() bool { return c.id == "" }

// errCaller refuses a request without a valid key where one is needed.
var errCaller = gateway.Unauthorized("this endpoint needs one of its keys; send it as Authorization: Bearer aa_…, or " +
	"sign the request with the key of a DID")

// findCaller returns who may call the endpoint of a request with this key. signer is who has signed the request. Errors:
// CodeUnauthorized, CodeNotFound.
func (g *Gateway) findCaller(q relay.Querier, r *http.Request, from relay.Peer, signer didkey.DID) (
	e endpoint, c caller, err error,
) {
	if e, err = g.endpoint(q, r); err != nil {
		return e, c, err
	}
	if signer != "" {
		return e, caller{did: signer, id: string(signer), payer: string(signer),
			shown: wire.Caller{Kind: wire.CallerDID, DID: string(signer)}}, nil
	}
	key, given := gateway.Bearer(r)
	if !given {
		if e.access != wire.Public {
			return e, c, errCaller
		}
		return e, caller{payer: "s" + strconv.FormatInt(g.Source(from), 10), shown: wire.Caller{Kind: wire.CallerAnonymous}}, nil
	}
	h, found, err := gateway.FindKey(q, key, g.Relay.Now())
	if err != nil {
		return e, c, err
	}
	if !found || h.Kind != gateway.A2ACaller {
		return e, c, errCaller
	}
	k, err := keyByNumber(q, h.Owner)
	if err == nil && (k.endpoint != e.n || k.deleted != 0) {
		err = errCaller
	}
	id := "k" + strconv.FormatInt(k.n, 10)
	return e, caller{bearer: key, id: id, payer: id, shown: wire.Caller{Kind: wire.CallerKey, Name: k.name}}, err
}

// isSigned reports whether a request has the token of a signed call.
func isSigned(r *http.Request) bool {
	scheme, _, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.EqualFold(scheme, "Agora")
}

// admitCaller counts a request of a caller that may change something. Requests of anonymous callers are counted by the
// front.
func (g *Gateway) admitCaller(from relay.Peer, c caller) error {
	if c.anonymous() {
		return nil
	}
	return g.Relay.Gate().AdmitCaller(from, "a2a "+c.id)
}

// checkTasks refuses a new task if its caller or its endpoint has too many unfinished tasks.
func checkTasks(o *gateway.Op, e endpoint, c caller) error {
	most := int64(maxOfCaller)
	if c.anonymous() {
		most = maxOfSource
	}
	own, err := o.Number("SELECT COUNT(*) FROM (SELECT 1 FROM a2a_task WHERE payer = ? AND ended = 0 LIMIT ?) AS own",
		c.payer, most)
	if err != nil {
		return err
	}
	all, err := o.Number("SELECT COUNT(*) FROM (SELECT 1 FROM a2a_task WHERE endpoint = ? AND ended = 0 LIMIT ?) AS unfinished",
		e.n, maxUnfinished)
	if err != nil {
		return err
	}
	unknown := int64(0)
	if c.anonymous() {
		if unknown, err = o.Number("SELECT COUNT(*) FROM (SELECT 1 FROM a2a_task WHERE endpoint = ? AND caller = '' "+
			"AND ended = 0 LIMIT ?) AS unfinished", e.n, maxAnonymous); err != nil {
			return err
		}
	}
	switch {
	case own >= most && c.payer != "s0": // the relay's own machine has no limits per address
		return gateway.LimitReached(limitUnfinished, fullRetry, "this caller has %d unfinished tasks, which is the limit; wait "+
			"until some have ended, or cancel them", most)
	case all >= maxUnfinished || unknown >= maxAnonymous:
		return gateway.LimitReached(limitUnfinished, fullRetry, "this agent has too many unfinished tasks; try again later")
	}
	return nil
}

// signerOf returns who has signed a request; empty: nobody. Errors: CodeUnauthorized.
func (g *Gateway) signerOf(r *http.Request, body []byte, main bool) (didkey.DID, error) {
	if !isSigned(r) {
		return "", nil
	}
	return g.SignedCaller(r, body, main)
}

// keyNumber returns the number of a caller's key. id is the id of a caller with a key.
func keyNumber(id string) (int64, error) {
	return strconv.ParseInt(strings.TrimPrefix(id, "k"), 10, 64)
}
