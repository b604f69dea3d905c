package a2a

import (
	"context"
	"net/http"
	"regexp"
	"time"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// This file manages the keys of callers.

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// getKeys is the handler of GET {E}/keys.
func (g *Gateway) getKeys(w http.ResponseWriter, r *http.Request, from relay.Peer, owner didkey.DID, _ []byte) error {
	type shownKey struct {
		Name      string `json:"name"`
		CreatedAt string `json:"createdAt"`
	}
	return httpapi.WriteList(w, httpapi.List{Head: `{"ok":true,"keys":[`, Tail: func() string { return "]}\n" },
		Elements: gateway.List(r.Context(), g.Core, from, 0,
			func(q relay.Querier, _ int, p *gateway.Piece) (int, bool, error) {
				e, err := liveEndpoint(q, owner)
				if err != nil {
					return 0, false, err
				}
				all, err := keysOf(q, e.n)
				for _, k := range all {
					p.Add(shownKey{k.name, gateway.Stamp(k.created)})
				}
				return 0, false, err
			})})
}

// postKey is the handler of POST {E}/keys.
func (g *Gateway) postKey(w http.ResponseWriter, r *http.Request, from relay.Peer, owner didkey.DID, sent []byte) error {
	body, err := g.Relay.Object(from, sent, gateway.MaxBody)
	if err != nil {
		return err
	}
	o := gateway.NewObject("", body)
	name, given := o.Text("name", true)
	if given && !nameForm.MatchString(name) {
		o.Fail("name", "must have 1 to 64 letters, digits and ._-, and begin with a letter or a digit")
	}
	if o.Err != nil {
		return o.Err
	}
	key := gateway.NewKey(gateway.A2ACaller)
	if err := g.Update(context.WithoutCancel(r.Context()), from, func(o *gateway.Op) error {
		return g.createKey(o, owner, name, key)
	}); err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusCreated, struct {
		OK   bool   `json:"ok"`
		Name string `json:"name"`
		Key  string `json:"key"`
	}{true, name, key})
}

// createKey stores a new key of the owner's endpoint.
func (g *Gateway) createKey(o *gateway.Op, owner didkey.DID, name, key string) error {
	e, err := liveEndpoint(o, owner)
	if err != nil {
		return err
	}
	all, err := keysOf(o, e.n)
	if err != nil {
		return err
	}
	if len(all) >= g.keys {
		return gateway.LimitReached(limitKeys, time.Hour, "this endpoint has %d keys, which is its limit; delete one first",
			g.keys)
	}
	k, err := keyByName(o, e.n, name)
	if err != nil {
		return err
	}
	if k.n != 0 {
		return gateway.Conflict("this endpoint has a key with this name; choose another name")
	}
	k = callerKey{endpoint: e.n, name: name, created: o.Now}
	if k.n, err = gateway.Next(o.ExtTx, keyCounter); err != nil {
		return err
	}
	if err := insertKey(o.ExtTx, k); err != nil {
		return err
	}
	return gateway.AddKey(o.ExtTx, key, gateway.Holder{Kind: gateway.A2ACaller, Owner: k.n})
}

// deleteKey is the handler of DELETE {E}/keys/{name}. The key is unknown from now on. The sweep ends its tasks.
func (g *Gateway) deleteKey(w http.ResponseWriter, r *http.Request, from relay.Peer, owner didkey.DID, _ []byte) error {
	err := g.Update(context.WithoutCancel(r.Context()), from, func(o *gateway.Op) error {
		e, err := liveEndpoint(o, owner)
		if err != nil {
			return err
		}
		k, err := keyByName(o, e.n, mux.Vars(r)["name"])
		if err != nil {
			return err
		}
		if k.n == 0 {
			return gateway.NotFound("this endpoint has no key with this name; GET …/keys lists those that it has")
		}
		return g.closeKey(o, k)
	})
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, done{true})
}

// closeKey makes a key unknown.
func (g *Gateway) closeKey(o *gateway.Op, k callerKey) error {
	k.deleted = o.Now
	if err := updateKey(o.ExtTx, k); err != nil {
		return err
	}
	o.Then(func() { g.closed.Tell(k.endpoint) })
	o.Then(g.wakeSweep)
	return gateway.DropKeys(o.ExtTx, gateway.A2ACaller, k.n, "")
}
