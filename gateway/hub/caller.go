package hub

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// caller says who sent a request: by a key, or by the signature of a DID. The zero caller is a request without either.
type caller struct {
	operator bool
	agent    int64 // 0: the operator, or a DID that has several agents and does not say which one it speaks for
	key      string
	did      didkey.DID
}

// owns reports whether the caller may act for an agent.
func (c caller) owns(a agent) bool {
	return a.n != 0 && (c.agent == a.n || c.did != "" && c.did == a.did)
}

// The operations that an old key may still do, see gateway.Holder.Only.
const (
	onlyRotate = "rotate" // repeat the rotation that replaced it
	onlyDelete = "delete" // repeat the deletion of its agent, or register the address again
)

// signerKey is the key of the DID in the context of a signed request.
type signerKey struct{}

// identified returns a handler that finds out who has signed a request (B-1). For main, see gateway.Core.SignedCaller.
func (h *Hub) identified(main bool, next httpapi.Handler) httpapi.Handler {
	return func(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
		if scheme, _, _ := strings.Cut(r.Header.Get("Authorization"), " "); !strings.EqualFold(scheme, "Agora") {
			return next(w, r, from)
		}
		body, err := httpapi.ReadBody(w, r, gateway.MaxBody)
		if err != nil {
			return err
		}
		if from.Reader, err = h.SignedCaller(r, body, main); err != nil {
			return err
		}
		signed := r.WithContext(context.WithValue(r.Context(), signerKey{}, from.Reader))
		signed.Body = io.NopCloser(bytes.NewReader(body))
		return next(w, signed, from)
	}
}

// signerOf returns the DID that has signed a request; empty: none.
func signerOf(r *http.Request) didkey.DID {
	did, _ := r.Context().Value(signerKey{}).(didkey.DID)
	return did
}

// caller returns who sent a request. If required is true, it refuses a request without a key or a signature of an agent. An
// old key counts as unknown.
func (h *Hub) caller(ctx context.Context, from relay.Peer, r *http.Request, required bool) (c caller, err error) {
	if did := signerOf(r); did != "" {
		return h.signedCaller(ctx, from, r, did, required)
	}
	key, given := gateway.Bearer(r)
	if !given && !required {
		return caller{}, nil
	}
	rotated := false
	err = h.Relay.View(ctx, from, func(q relay.Querier) (err error) {
		c, rotated, err = findCaller(q, key, h.now())
		return err
	})
	if err != nil || !rotated {
		return c, err
	}
	// This is the first use of the new key. From now on the old key can do nothing.
	return c, h.update(context.WithoutCancel(ctx), from, func(o *op) error { return o.check(c) })
}

// signedCaller returns the caller with a DID. The agent is the one in the parameter agent_id, or the only one of the
// DID.
func (h *Hub) signedCaller(
	ctx context.Context, from relay.Peer, r *http.Request, did didkey.DID, required bool,
) (c caller, err error) {
	p, err := gateway.Parameters(r, "agent_id")
	if err != nil {
		return c, err
	}
	c.did = did
	var own []agent
	if err := h.Relay.View(ctx, from, func(q relay.Querier) (err error) {
		own, err = agentsOf(q, did, p["agent_id"], 2)
		return err
	}); err != nil {
		return c, err
	}
	switch len(own) {
	case 0:
		if required {
			return c, refuse(http.StatusUnauthorized, codeUnauthorized, "this DID has no such agent here; register one with a "+
				"signed POST /register, with the endpoint %s%s", deliver.Scheme, did)
		}
	case 1:
		c.agent = own[0].n
	}
	return c, nil
}

// agentsOf returns some registered agents of a DID: that with an address, or, if address is empty, any.
func agentsOf(q relay.Querier, did didkey.DID, address string, most int) (all []agent, err error) {
	err = q.Query(func(scan gateway.Scanner) error {
		var a agent
		err := scan(a.fields()...)
		all = append(all, a)
		return err
	}, "SELECT "+agentColumns+" FROM hub_agent WHERE did = ? AND did <> '' AND deleted = 0 AND (? = '' OR address = ?) "+
		"ORDER BY n LIMIT ?", string(did), address, address, most)
	return all, err
}

// findCaller returns the owner of a key. rotated means that the key has replaced another one, which still exists.
// Errors: 401.
func findCaller(q relay.Querier, key string, now time.Time) (c caller, rotated bool, err error) {
	holder, found, err := gateway.FindKey(q, key, now)
	if err != nil {
		return caller{}, false, err
	}
	c = caller{operator: holder.Kind == gateway.Operator, agent: holder.Owner, key: key}
	if !found || holder.Only != "" || !c.operator && holder.Kind != gateway.HubAgent {
		return caller{}, false, unauthorized()
	}
	if !c.operator {
		rotated, err = gateway.HasKey(q, gateway.HubAgent, c.agent, onlyRotate)
	}
	return c, rotated, err
}

// again checks again that the caller is the same as when the request was admitted. For rotated, see findCaller.
func (c caller) again(q relay.Querier, now time.Time) (rotated bool, err error) {
	if c.did != "" {
		if c.agent == 0 {
			return false, nil // what the request is about decides
		}
		a, err := agentByNumber(q, c.agent)
		if err == nil && (!a.live() || a.did != c.did) {
			err = unauthorized()
		}
		return false, err
	}
	found, rotated, err := findCaller(q, c.key, now)
	if err == nil && found != c {
		err = unauthorized()
	}
	return rotated, err
}

// check checks again that the caller's key is valid, because the key may have been replaced since the request was
// admitted. If the key has replaced another one, check removes that one.
func (o *op) check(c caller) error {
	rotated, err := c.again(o, o.hub.now())
	if err == nil && rotated {
		err = gateway.DropKeys(o.ExtTx, gateway.HubAgent, c.agent, onlyRotate)
	}
	return err
}

// name is the caller's name for AdmitCaller and for Idempotency-Keys.
func (c caller) name() string {
	switch {
	case c.operator:
		return "operator"
	case c.did != "":
		return string(c.did)
	}
	return "hub agent " + decimal(c.agent)
}

// admitChange returns who sent a request that changes something, and counts the request against the limit of that
// caller. It refuses a request without a key.
func (h *Hub) admitChange(ctx context.Context, from relay.Peer, r *http.Request) (caller, error) {
	c, err := h.caller(ctx, from, r, true)
	if err != nil {
		return c, err
	}
	return c, h.Relay.Gate().AdmitCaller(from, c.name())
}

// agentOnly refuses the operator, who has no inbox.
func (c caller) agentOnly() error {
	if c.operator {
		return refuse(http.StatusForbidden, codeForbidden, "this needs the key of an agent; the operator has no inbox")
	}
	if c.agent == 0 {
		return gateway.Invalid("this DID has several agents here; say which one with ?agent_id=NAME@HOST")
	}
	return nil
}

// sessions are the session tokens. Each opens one inbox stream. They are only in memory.
type sessions struct {
	mu     sync.Mutex
	byHash map[[32]byte]session
}

type session struct {
	caller  // who asked for the token; the caller's key must still be valid when the stream opens
	expires time.Time
}

// add returns a new token for an agent. If the agent has maxSessions tokens, the oldest one ends.
func (s *sessions) add(c caller, now time.Time) (token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var own [][32]byte
	for hash, old := range s.byHash {
		if !now.Before(old.expires) {
			delete(s.byHash, hash)
		} else if old.agent == c.agent {
			own = append(own, hash)
		}
	}
	if len(own) >= maxSessions {
		delete(s.byHash, slices.MinFunc(own, func(a, b [32]byte) int {
			return s.byHash[a].expires.Compare(s.byHash[b].expires)
		}))
	}
	token = gateway.NewKey(gateway.HubStream)
	s.byHash[sha256.Sum256([]byte(token))] = session{c, now.Add(sessionTime)}
	return token
}

// has reports whether a token could be used now.
func (s *sessions) has(token string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.byHash[sha256.Sum256([]byte(token))]
	return ok && now.Before(found.expires)
}

// use returns who asked for a token, and ends the token. ok is false if the token is not valid.
func (s *sessions) use(token string, now time.Time) (c caller, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hash := sha256.Sum256([]byte(token))
	found, ok := s.byHash[hash]
	delete(s.byHash, hash)
	return found.caller, ok && now.Before(found.expires)
}

// drop ends all tokens of an agent.
func (s *sessions) drop(agent int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for hash, old := range s.byHash {
		if old.agent == agent {
			delete(s.byHash, hash)
		}
	}
}

func (h *Hub) postSession(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	c, err := h.admitChange(r.Context(), from, r)
	if err != nil {
		return err
	}
	if err := c.agentOnly(); err != nil {
		return err
	}
	if _, err := httpapi.ReadBody(w, r, gateway.MaxBody); err != nil { // what it says does not matter
		return err
	}
	return h.answer(w, http.StatusOK, struct {
		Token   string  `json:"session_token"`
		Expires float64 `json:"expires_in_seconds"`
	}{h.sessions.add(c, h.now()), sessionTime.Seconds()})
}
