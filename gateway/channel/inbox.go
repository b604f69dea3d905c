package channel

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// This file manages the inboxes of agents. Their owners sign these requests.

const maxLabel = 80

// shownInbox is an inbox as answers show it.
type shownInbox struct {
	ID        string     `json:"id"`
	Label     string     `json:"label"`
	Owner     didkey.DID `json:"owner"`
	CreatedAt stamp      `json:"createdAt"`
}

func (i inbox) shown() shownInbox { return shownInbox{i.id, i.label, i.owner, stamp(i.created)} }

// inboxURL returns the connection string of an inbox.
func (g *Gateway) inboxURL(key string) string { return g.url + "/inbox/" + key }

// signed returns the handler of a signed call. For main, see gateway.Core.SignedCaller.
func (g *Gateway) signed(main bool, h gateway.SignedHandler) httpapi.Handler {
	return g.Signed(main, gateway.MaxBody, h)
}

// getInboxes returns the handler of GET /inboxes.
func (g *Gateway) getInboxes(main bool) httpapi.Handler {
	return g.signed(main, func(w http.ResponseWriter, r *http.Request, from relay.Peer, owner didkey.DID, _ []byte) error {
		return writeList(w, "inboxes", gateway.List(r.Context(), g.Core, from, 0,
			func(q relay.Querier, _ int, p *gateway.Piece) (int, bool, error) {
				all, err := inboxesOf(q, owner) // at most maxInboxes
				for _, i := range all {
					p.Add(i.shown())
				}
				return 0, false, err
			}), func() string { return "]}\n" })
	})
}

func inboxesOf(q relay.Querier, owner didkey.DID) ([]inbox, error) {
	return inboxes(q, "SELECT "+inboxColumns+" FROM channel_inbox WHERE owner = ? AND deleted = 0 ORDER BY n", string(owner))
}

// postInbox returns the handler of POST /inboxes.
func (g *Gateway) postInbox(main bool) httpapi.Handler {
	return g.signed(main, func(w http.ResponseWriter, r *http.Request, from relay.Peer, owner didkey.DID, sent []byte) error {
		body, err := g.Relay.Object(from, sent, gateway.MaxBody)
		if err != nil {
			return err
		}
		parsed := gateway.NewObject("", body)
		label, _ := parsed.Sized("label", false, 0, maxLabel)
		if parsed.Err != nil {
			return parsed.Err
		}
		admit := sync.OnceValue(func() error { return g.newInboxes.Take(from, g.Relay.Now) })
		var created inbox
		key := gateway.NewKey(gateway.Inbox)
		err = g.Update(context.WithoutCancel(r.Context()), from, func(o *gateway.Op) (err error) {
			created, err = createInbox(o, inbox{id: gateway.NewID("in_"), owner: owner, label: label}, key, admit)
			return err
		})
		if err != nil {
			return err
		}
		return httpapi.WriteJSON(w, http.StatusCreated, struct {
			OK    bool       `json:"ok"`
			Inbox shownInbox `json:"inbox"`
			URL   string     `json:"url"`
		}{true, created.shown(), g.inboxURL(key)})
	})
}

// createInbox stores a new inbox and its key.
func createInbox(o *gateway.Op, i inbox, key string, admit func() error) (inbox, error) {
	own, err := inboxesOf(o, i.owner)
	if err != nil {
		return i, err
	}
	if len(own) >= maxInboxes {
		return i, gateway.LimitReached(limitInboxes, time.Hour, "this DID has %d inboxes, which is the limit; delete one first",
			maxInboxes)
	}
	if err := admit(); err != nil {
		return i, err
	}
	if i.n, err = gateway.Next(o.ExtTx, inboxCounter); err != nil {
		return i, err
	}
	i.created = o.Now
	if err := insertInbox(o.ExtTx, i); err != nil {
		return i, err
	}
	return i, gateway.AddKey(o.ExtTx, key, gateway.Holder{Kind: gateway.Inbox, Owner: i.n})
}

// ownInboxOf returns the inbox that the path of a request names. It refuses an inbox of another owner in the same way as
// one that does not exist (C-22).
func ownInboxOf(q relay.Querier, r *http.Request, owner didkey.DID) (inbox, error) {
	i, err := inboxByID(q, mux.Vars(r)["inbox"])
	if err == nil && (!i.live() || i.owner != owner) {
		err = gateway.Forbidden("this DID has no inbox with this id; GET …/inboxes lists those that it has")
	}
	return i, err
}

// rotateInbox returns the handler of POST /inboxes/{inbox}/rotate. The old URL is unknown from now on (C-21).
func (g *Gateway) rotateInbox(main bool) httpapi.Handler {
	return g.signed(main, func(w http.ResponseWriter, r *http.Request, from relay.Peer, owner didkey.DID, _ []byte) error {
		key := gateway.NewKey(gateway.Inbox)
		err := g.Update(context.WithoutCancel(r.Context()), from, func(o *gateway.Op) error {
			i, err := ownInboxOf(o, r, owner)
			if err != nil {
				return err
			}
			if err := gateway.DropKeys(o.ExtTx, gateway.Inbox, i.n, ""); err != nil {
				return err
			}
			return gateway.AddKey(o.ExtTx, key, gateway.Holder{Kind: gateway.Inbox, Owner: i.n})
		})
		if err != nil {
			return err
		}
		return httpapi.WriteJSON(w, http.StatusOK, struct {
			OK  bool   `json:"ok"`
			URL string `json:"url"`
		}{true, g.inboxURL(key)})
	})
}

// deleteInbox returns the handler of DELETE /inboxes/{inbox}. The sweep cancels the open threads.
func (g *Gateway) deleteInbox(main bool) httpapi.Handler {
	return g.signed(main, func(w http.ResponseWriter, r *http.Request, from relay.Peer, owner didkey.DID, _ []byte) error {
		err := g.Update(context.WithoutCancel(r.Context()), from, func(o *gateway.Op) error {
			i, err := ownInboxOf(o, r, owner)
			if err != nil {
				return err
			}
			i.deleted = o.Now
			if err := updateInbox(o.ExtTx, i); err != nil {
				return err
			}
			o.Then(g.wakeSweep)
			return gateway.DropKeys(o.ExtTx, gateway.Inbox, i.n, "")
		})
		if err != nil {
			return err
		}
		return httpapi.WriteJSON(w, http.StatusOK, done{true})
	})
}
