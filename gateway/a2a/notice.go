package a2a

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"time"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/thread"
)

// This file takes the events that A2A servers push to hooks, and hands them to the owners.

// pushed is an event that a hook got.
type pushed struct {
	wire.Notification
	subject [sha256.Size]byte // the same for a repeat
}

// parsePushed checks a push to a hook.
func (g *Gateway) parsePushed(from relay.Peer, body []byte, h http.Header) (p pushed, err error) {
	p.Token = cmp.Or(h.Get(wire.PushToken), h.Get(wire.PushTokenX))
	if p.Authorization = h.Get("Authorization"); len(p.Token)+len(p.Authorization) > maxPushHeaders {
		return p, gateway.Invalid("the headers with the token and Authorization must have at most %d bytes", maxPushHeaders)
	}
	if err := g.Relay.Gate().ChargeBody(from, len(body)); err != nil {
		return p, err
	}
	err = g.Relay.Gate().Checking(from, func() (err error) {
		if p.Event, err = wire.Body(bytes.Clone(body), maxNotice); err == nil {
			_, err = wire.ParseStream("", p.Event)
		}
		return err
	})
	key := h.Get("Idempotency-Key")
	if key == "" {
		key = gateway.NewID("")
	}
	p.subject = sha256.Sum256(append([]byte(key+"\n"), p.Event...))
	return p, inRelayCodes(err)
}

// maxPushHeaders is how many bytes of headers the owner of a hook gets.
const maxPushHeaders = 8 << 10

// postNotice is the handler of POST {B}/hook/{key}.
func (g *Gateway) postNotice(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	key := mux.Vars(r)["key"]
	if err := g.Relay.View(r.Context(), from, func(q relay.Querier) error {
		_, err := g.hookOf(q, key)
		return err
	}); err != nil {
		return err
	}
	body, err := httpapi.ReadBody(w, r, maxNotice)
	if err != nil {
		return err
	}
	p, err := g.parsePushed(from, body, r.Header)
	if err != nil {
		return err
	}
	if err := g.notify(context.WithoutCancel(r.Context()), from, key, p); err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, struct{}{})
}

// notify stores an event, and hands it to the owner of the hook. A repeated one has no effect.
func (g *Gateway) notify(ctx context.Context, from relay.Peer, key string, p pushed) error {
	var to hook
	if err := g.Relay.View(ctx, from, func(q relay.Querier) (err error) {
		to, err = g.hookOf(q, key)
		return err
	}); err != nil {
		return err
	}
	x := notice{id: gateway.NewID("ntf_"), hook: to.n, subject: p.subject[:], source: g.Source(from)}
	if err := g.noticed.Take(to.n^x.source, g.Relay.Now); err != nil { // as for the inboxes of channels
		return err
	}
	p.Hook = to.id
	checked, err := g.Seal(envelope.Draft{ID: x.id, Thread: x.id, Recipient: to.owner, TTL: turnLife,
		Payload: envelope.Request{RequestID: x.id, Intent: wire.NotificationIntent, Params: jsontext.Compact(p.Notification)}})
	if err != nil {
		return err
	}
	return g.Update(ctx, from, func(o *gateway.Op) error {
		if _, err := g.hookOf(o, key); err != nil { // again, because it may have been deleted
			return err
		}
		if known, err := noticeBySubject(o, x.hook, x.subject); err != nil || known.n != 0 {
			return err
		}
		if err := g.checkNotices(o, x); err != nil {
			return err
		}
		if x.n, err = gateway.Next(o.ExtTx, noticeCounter); err != nil {
			return err
		}
		x.created = o.Now
		if err := insertNotice(o.ExtTx, x); err != nil {
			return err
		}
		_, err := o.Append(checked, terms)
		return err
	})
}

// checkNotices refuses an event if the hook has too many that its owner has not answered. The owner knows a network if it
// has answered an event from there (G-37).
func (g *Gateway) checkNotices(o *gateway.Op, x notice) error {
	open, err := gateway.Numbers(o, "SELECT 1 FROM a2a_notice WHERE hook = ? AND done = 0 AND created > ? LIMIT ?", x.hook,
		o.Now-int64(turnLife), g.notices)
	if err != nil {
		return err
	}
	answered, err := o.Number("SELECT 1 FROM a2a_notice WHERE hook = ? AND source = ? AND done = 1 LIMIT 1", x.hook, x.source)
	if err != nil {
		return err
	}
	queue := gateway.Queue{Most: int64(g.notices), Count: int64(len(open))}
	if full, most := queue.Check(x.source == 0 || answered != 0, 0); full != gateway.NotFull {
		return envelope.NotStored(fmt.Sprintf("the owner of this hook has not answered %d events of the last 24 hours; try again "+
			"later", most), time.Minute)
	}
	return nil
}

// prepareNotice returns what an answer to the REQUEST of an event leads to: the event no longer counts for the limit of its
// hook. An OFFER is never accepted.
func (g *Gateway) prepareNotice(ctx context.Context, posted relay.Posted) (func(*gateway.Op) error, error) {
	var x notice
	var h hook
	err := g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		if x, err = noticeByID(q, posted.Envelope.Thread); err == nil {
			h, err = hookByNumber(q, x.hook)
		}
		return err
	})
	if err != nil || x.n == 0 || x.done || h.owner != posted.Envelope.Sender.ID {
		return nil, err
	}
	var cancel relay.Checked
	if posted.Envelope.Type == envelope.TypeOffer {
		cancel, err = g.Seal(envelope.Draft{Thread: x.id, Recipient: h.owner,
			Payload: envelope.Cancel{RequestID: x.id, Reason: "a notification needs no work"}})
		if err != nil && !gateway.Refused(err) {
			return nil, err
		}
	}
	return func(o *gateway.Op) error {
		if first, err := g.follower.Once(o, posted.Seq); err != nil || !first {
			return err
		}
		if cancel.Envelope() != nil {
			if _, err := o.Append(cancel, thread.Terms{}); err != nil && !gateway.Refused(err) {
				return err
			}
		}
		x.done = true
		return updateNotice(o.ExtTx, x)
	}, nil
}

// forgetNotices removes events that hooks got long ago.
func forgetNotices(o *gateway.Op, before int64) (more bool, err error) {
	removed, err := o.Exec("DELETE FROM a2a_notice WHERE n IN (SELECT n FROM a2a_notice WHERE created <= ? ORDER BY created "+
		"LIMIT ?)", before, sweepBatch)
	return removed == sweepBatch, err
}

// ownHook returns what answers the URLs of this relay's hooks, if url is one. So a push within the relay makes no HTTP
// request.
func (g *Gateway) ownHook(url string) gateway.Answerer {
	key, own := g.hookKey(url)
	if !own {
		return nil
	}
	return func(ctx context.Context, c gateway.Call) (gateway.Response, error) {
		header := c.Header.Clone()
		header.Set("Idempotency-Key", c.ID)
		p, err := g.parsePushed(self, c.Body, header)
		if err == nil {
			err = g.notify(context.WithoutCancel(ctx), self, key, p)
		}
		return gateway.ResponseTo(err, hookAnswerTo)
	}
}
