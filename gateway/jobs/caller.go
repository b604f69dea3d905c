package jobs

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// caller is who sent a request.
type caller struct {
	kind      callerKind
	principal int64      // the number of the principal; 0: this DID has no account and no agent yet
	did       didkey.DID // empty: the principal has a key
}

type callerKind int

const (
	anyone callerKind = iota
	aPrincipal
	theOperator
)

// name is the caller's name for AdmitCaller.
func (c caller) name() string {
	switch {
	case c.kind == theOperator:
		return "operator"
	case c.did != "":
		return string(c.did)
	}
	return "jobs principal " + strconv.FormatInt(c.principal, 10)
}

// owns reports whether something belongs to the caller. principal is the number of its owner.
func (c caller) owns(principal int64) bool {
	return c.kind == aPrincipal && c.principal == principal && principal != 0
}

// mayBridge checks that the caller may register an endpoint: one that is a DID needs a signed call of that DID (B-1).
func (c caller) mayBridge(endpoint string) error {
	if strings.HasPrefix(endpoint, deliver.Scheme) && endpoint != deliver.Scheme+string(c.did) {
		return forbidden("an api_endpoint that begins with agora: is for the holder of that DID, who must sign the request")
	}
	return nil
}

// now returns the caller with its present number. Another request of the same DID may have created its principal.
func (c caller) now(q relay.Querier) (caller, error) {
	if c.did == "" || c.principal != 0 {
		return c, nil
	}
	p, err := principalByDID(q, c.did)
	c.principal = p.n
	return c, err
}

// request is a request whose caller is known.
type request struct {
	*http.Request
	w      http.ResponseWriter
	from   relay.Peer
	caller caller
	base   string // the base URL that the caller has used: the gateway's URL, or the one with the caller's key
	body   []byte // as sent
}

// path returns a variable of the request's path.
func (r *request) path(name string) string { return mux.Vars(r.Request)[name] }

// id returns the UUID in the path, in lower case. It is empty if the path has no UUID; nothing has that id.
func (r *request) id() string {
	if id := r.path("id"); uuidForm.MatchString(id) {
		return strings.ToLower(id)
	}
	return ""
}

// paymentUnit is how many bytes of a body count as one more payment, because the job keeps them.
const paymentUnit = 8 << 10

// payment returns a function that counts a transfer or a job against the daily numbers of the account that pays and of
// the caller's address. The ledger keeps its records until the operator folds them, so their number must be bounded.
// Update may run an operation twice; the function counts once.
func (g *Gateway) payment(r *request) func(account int64) error {
	counted, refused := false, error(nil)
	return func(account int64) error {
		if counted || r.from.Local {
			return refused
		}
		counted = true
		for range 1 + len(r.body)/paymentUnit {
			if refused == nil {
				refused = g.payments.Take(account, g.Relay.Now)
			}
			if refused == nil {
				refused = g.payers.Take(r.from, g.Relay.Now)
			}
		}
		return refused
	}
}

// needPrincipal refuses a request that only a principal may send.
func (r *request) needPrincipal() error {
	switch r.caller.kind {
	case anyone:
		return unauthorized()
	case theOperator:
		return forbidden("this needs the key of a principal; the operator's key does not do")
	}
	return nil
}

// answer sends a value as JSON.
func (r *request) answer(status int, v any) error { return httpapi.WriteJSON(r.w, status, v) }

// list sends a list, which is the member name of the answer. tail returns the text after the list.
func (r *request) list(name string, elements gateway.Elements, tail func() string) error {
	return httpapi.WriteList(r.w, httpapi.List{Head: `{"` + name + `":[`, Elements: elements, Tail: tail})
}

// totalTail returns the tail of a list that ends with the number of what was found.
func totalTail(name string, total *int64) func() string {
	return func() string { return `],"` + name + `":` + strconv.FormatInt(*total, 10) + "}\n" }
}

// detached is the context of an operation that is still done if the client disconnects.
func (r *request) detached() context.Context { return context.WithoutCancel(r.Context()) }

// keyPath is the beginning of the paths under a base URL with a key.
const keyPath = "/k/"

// contextKey is the key of the request in the context of an http.Request.
type contextKey struct{}

// identified returns a handler that finds out who sent a request, before next looks at the path. main is true on the
// relay's main listener, the only one that takes signed calls.
func (g *Gateway) identified(main bool, next httpapi.Handler) httpapi.Handler {
	return func(w http.ResponseWriter, sent *http.Request, from relay.Peer) (err error) {
		r := &request{Request: sent, w: w, from: from, base: g.url}
		key, hasBase := "", false
		if rest, found := strings.CutPrefix(sent.URL.Path, keyPath); found {
			path := ""
			hasBase = true
			key, path, _ = strings.Cut(rest, "/")
			u := *sent.URL
			u.Path = "/" + path
			within := *sent
			within.URL = &u
			r.Request, r.base = &within, g.url+keyPath+key
		}
		if r.body, err = httpapi.ReadBody(w, sent, gateway.MaxBody); err != nil {
			return err
		}
		if r.caller, err = g.identify(r, key, hasBase, main); err != nil {
			return err
		}
		r.from.Reader = r.caller.did
		if r.caller.kind != anyone && r.Method != http.MethodGet && r.Method != http.MethodHead {
			if err := g.Relay.Gate().AdmitCaller(from, r.caller.name()); err != nil {
				return err
			}
		}
		return next(w, r.Request.WithContext(context.WithValue(r.Context(), contextKey{}, r)), r.from)
	}
}

// identify returns who sent a request. baseKey is the key in its base URL, if it has one. Errors: 401 for an unknown key,
// also where no key is needed.
func (g *Gateway) identify(r *request, baseKey string, hasBase, main bool) (c caller, err error) {
	headers := r.Header.Values("Authorization")
	key, given := gateway.Bearer(r.Request)
	if scheme, _, _ := strings.Cut(strings.Join(headers, ""), " "); given && strings.EqualFold(scheme, "Agora") {
		if hasBase {
			return c, refuse(http.StatusUnauthorized, "the request is signed, and its URL has a key; use only one of them")
		}
		did, err := g.SignedCaller(r.Request, r.body, main)
		if err != nil {
			return c, err
		}
		return g.callerOf(r, did)
	}
	switch {
	case hasBase && given && key != baseKey:
		return c, refuse(http.StatusUnauthorized, "the key in the URL and the one in the header Authorization differ")
	case hasBase:
		key = baseKey
	case !given:
		return caller{}, nil
	}
	var h gateway.Holder
	found := false
	err = g.Relay.View(r.Context(), r.from, func(q relay.Querier) (err error) {
		h, found, err = gateway.FindKey(q, key, g.Relay.Now())
		return err
	})
	switch {
	case err != nil:
		return c, err
	case found && h.Kind == gateway.Principal:
		return caller{kind: aPrincipal, principal: h.Owner}, nil
	case found && h.Kind == gateway.Operator && !hasBase:
		return caller{kind: theOperator}, nil
	}
	return c, refuse(http.StatusUnauthorized, "this key is not known here; send the key that POST /accounts has returned, or none")
}

// callerOf returns the caller with a DID.
func (g *Gateway) callerOf(r *request, did didkey.DID) (caller, error) {
	c := caller{kind: aPrincipal, did: did}
	err := g.Relay.View(r.Context(), r.from, func(q relay.Querier) (err error) {
		c, err = c.now(q)
		return err
	})
	return c, err
}

// checkBan refuses a principal whose DID is banned. A principal with a key has no DID.
func (g *Gateway) checkBan(p principal) error {
	if p.did == "" {
		return nil
	}
	return g.Relay.Gate().CheckAgent(p.did)
}

// handle returns the handler of a route.
func handle(h func(*request) error) httpapi.Handler {
	return func(w http.ResponseWriter, sent *http.Request, _ relay.Peer) error {
		r := sent.Context().Value(contextKey{}).(*request)
		r.Request = sent // it has the variables of the path
		return h(r)
	}
}
