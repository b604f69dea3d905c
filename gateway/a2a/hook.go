package a2a

import (
	"context"
	"net/http"
	"regexp"
	"sync"
	"time"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// This file manages hooks: with one, an agent that nobody can reach gets the pushes of A2A servers (docs/A2A.md, "Hooks").

const maxHookLabel = 80

// hookPath is the path of a hook, below the URL of the gateway.
var hookPath = regexp.MustCompile(`^/hook/(ah_[A-Za-z0-9_-]{43})$`)

// hookURL returns the URL of a hook.
func (g *Gateway) hookURL(key string) string { return g.url + "/hook/" + key }

// hookKey returns the key in the URL of a hook of this relay. own is false for any other URL.
func (g *Gateway) hookKey(text string) (key string, own bool) {
	path, own := gateway.OwnPath(g.url, text)
	found := hookPath.FindStringSubmatch(path)
	if !own || found == nil {
		return "", false
	}
	return found[1], true
}

// hookOf returns the hook of a key. Errors: CodeNotFound.
func (g *Gateway) hookOf(q relay.Querier, key string) (h hook, err error) {
	holder, found, err := gateway.FindKey(q, key, g.Relay.Now())
	if err == nil && found && holder.Kind == gateway.A2AHook {
		h, err = hookByNumber(q, holder.Owner)
	}
	if err == nil && h.n == 0 {
		err = gateway.NotFound("there is no hook with this key; its owner may have deleted it")
	}
	return h, err
}

// getHooks returns the handler of GET {B}/hooks.
func (g *Gateway) getHooks(main bool) httpapi.Handler {
	type shownHook struct {
		ID        string `json:"id"`
		Label     string `json:"label"`
		CreatedAt string `json:"createdAt"`
	}
	return g.Signed(main, gateway.MaxBody,
		func(w http.ResponseWriter, r *http.Request, from relay.Peer, owner didkey.DID, _ []byte) error {
			return httpapi.WriteList(w, httpapi.List{Head: `{"ok":true,"hooks":[`, Tail: func() string { return "]}\n" },
				Elements: gateway.List(r.Context(), g.Core, from, 0,
					func(q relay.Querier, _ int, p *gateway.Piece) (int, bool, error) {
						all, err := hooksOf(q, owner)
						for _, h := range all {
							p.Add(shownHook{h.id, h.label, gateway.Stamp(h.created)})
						}
						return 0, false, err
					})})
		})
}

// postHook returns the handler of POST {B}/hooks.
func (g *Gateway) postHook(main bool) httpapi.Handler {
	return g.Signed(main, gateway.MaxBody,
		func(w http.ResponseWriter, r *http.Request, from relay.Peer, owner didkey.DID, sent []byte) error {
			body, err := g.Relay.Object(from, sent, gateway.MaxBody)
			if err != nil {
				return err
			}
			parsed := gateway.NewObject("", body)
			label, _ := parsed.Sized("label", false, 0, maxHookLabel)
			if parsed.Err != nil {
				return parsed.Err
			}
			h, key := hook{id: gateway.NewID("hk_"), owner: owner, label: label}, gateway.NewKey(gateway.A2AHook)
			admit := sync.OnceValue(func() error { return g.newHooks.Take(from, g.Relay.Now) })
			if err := g.Update(context.WithoutCancel(r.Context()), from, func(o *gateway.Op) error {
				return createHook(o, h, key, admit)
			}); err != nil {
				return err
			}
			return httpapi.WriteJSON(w, http.StatusCreated, struct {
				OK  bool   `json:"ok"`
				ID  string `json:"id"`
				URL string `json:"url"`
			}{true, h.id, g.hookURL(key)})
		})
}

// createHook stores a new hook and its key.
func createHook(o *gateway.Op, h hook, key string, admit func() error) error {
	all, err := hooksOf(o, h.owner)
	if err != nil {
		return err
	}
	if len(all) >= maxHooks {
		return gateway.LimitReached(limitHooks, time.Hour, "this DID has %d hooks, which is the limit; delete one first", maxHooks)
	}
	if err := admit(); err != nil {
		return err
	}
	if h.n, err = gateway.Next(o.ExtTx, hookCounter); err != nil {
		return err
	}
	h.created = o.Now
	if err := insertHook(o.ExtTx, h); err != nil {
		return err
	}
	return gateway.AddKey(o.ExtTx, key, gateway.Holder{Kind: gateway.A2AHook, Owner: h.n})
}

// deleteHook returns the handler of DELETE {B}/hooks/{id}. Its URL is unknown from now on. What it got expires.
func (g *Gateway) deleteHook(main bool) httpapi.Handler {
	return g.Signed(main, gateway.MaxBody,
		func(w http.ResponseWriter, r *http.Request, from relay.Peer, owner didkey.DID, _ []byte) error {
			if err := g.Update(context.WithoutCancel(r.Context()), from, func(o *gateway.Op) error {
				h, err := hookByID(o, mux.Vars(r)["hook"])
				if err == nil && h.owner != owner { // the answer is the same if the hook does not exist
					err = gateway.Forbidden("this DID has no hook with this id; GET …/hooks lists those that it has")
				}
				if err != nil {
					return err
				}
				if err := gateway.DropKeys(o.ExtTx, gateway.A2AHook, h.n, ""); err != nil {
					return err
				}
				return gateway.Exec(o.ExtTx, "DELETE FROM a2a_hook WHERE n = ?", h.n)
			}); err != nil {
				return err
			}
			return httpapi.WriteJSON(w, http.StatusOK, done{true})
		})
}
