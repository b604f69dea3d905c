package hub

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// This file hands messages to agents with a DID, each as one sealed REQUEST (docs/HUB.md, "Agents with a DID").

// intent is the intent of the REQUESTs.
const intent = "chorus.hub.message"

// ending runs f in one Update, and cancels the threads of the requests that f ends (B-2). For find, see
// deliver.Deliveries.End.
func (h *Hub) ending(
	ctx context.Context, from relay.Peer, reason string, find func(relay.Querier) ([]deliver.Delivery, error), f func(*op) error,
) error {
	return h.requests.End(ctx, from, reason, find, func(g *gateway.Op) error { return f(h.newOp(g)) })
}

// agentRequest returns what the REQUEST of a message says (B-7).
func (m message) agentRequest(id string) envelope.Request {
	return envelope.Request{RequestID: id, Intent: intent, Params: jsontext.Compact(struct {
		AgentID   string          `json:"agent_id"`
		Trace     string          `json:"trace_id"`
		ID        int64           `json:"id"`
		Timestamp string          `json:"timestamp"`
		Envelope  json.RawMessage `json:"envelope"`
	}{m.receiverID, m.trace, m.n, gateway.Stamp(m.ts), json.RawMessage(m.envelope)})}
}

// mayRequest reports whether another REQUEST may be sent from a sender to a receiver: the receiver has no stream, none of the
// pair is open, and fewer than deliver.Window wait for an OFFER of the DID (B-3).
func (h *Hub) mayRequest(q relay.Querier, sender, receiver int64, did didkey.DID) (bool, error) {
	if h.streams.has(receiver) {
		return false, nil
	}
	open, err := gateway.Number(q, "SELECT message FROM hub_request WHERE receiver = ? AND sender = ? AND state > 0 LIMIT 1",
		receiver, sender)
	if err != nil || open != 0 {
		return false, err
	}
	return hasRoom(q, did)
}

// mayBegin reports whether the REQUEST of a new message may be sent: mayRequest, and no earlier message of the sender waits.
func (h *Hub) mayBegin(q relay.Querier, sender int64, to agent) (bool, error) {
	waiting, err := gateway.Number(q, "SELECT message FROM hub_request WHERE receiver = ? AND sender = ? AND state = 0 LIMIT 1",
		to.n, sender)
	if err != nil || waiting != 0 {
		return false, err
	}
	return h.mayRequest(q, sender, to.n, to.did)
}

// hasRoom reports whether fewer than deliver.Window REQUESTs wait for an OFFER of a DID.
func hasRoom(q relay.Querier, did didkey.DID) (bool, error) {
	sent, err := gateway.Number(q, "SELECT COUNT(*) FROM hub_request WHERE did = ? AND state = 1", string(did))
	return sent < deliver.Window, err
}

// prepared is the REQUEST of a message that is about to be stored, as it was signed. The zero value means that there is none.
type prepared struct {
	message message // as it was predicted
	id      string
	checked relay.Checked
	last    bool // if the message is not as predicted, it is stored all the same, and its REQUEST is sent later
}

// errPredicted means that another message was stored since a prediction.
var errPredicted = errors.New("the message has another number than was predicted")

// maxPredictions is how often the hub predicts the number of a message. After that the message is stored first, and its REQUEST
// follows.
const maxPredictions = 3

// prepare signs the REQUEST of a message that is about to be stored, because that takes too long for an Update (B-2). The
// result is zero if the message will not be a REQUEST now.
func (h *Hub) prepare(ctx context.Context, from relay.Peer, senderID, receiverID, envelope string) (p prepared, err error) {
	if !h.directory.isBridged(receiverID) { // most receivers have no DID, and a View costs time
		return p, nil
	}
	var to agent
	may := false
	m := message{trace: newTrace(), senderID: senderID, receiverID: receiverID, envelope: envelope}
	if err := h.Relay.View(ctx, from, func(q relay.Querier) error {
		may = false
		var err error
		if to, err = agentByAddress(q, receiverID); err != nil || !to.live() || to.did == "" {
			return err
		}
		sender, err := agentByAddress(q, senderID)
		if err != nil || !sender.live() {
			return err
		}
		if may, err = h.mayBegin(q, sender.n, to); err != nil || !may {
			return err
		}
		if m.n, err = gateway.Number(q, "SELECT value FROM gate_counter WHERE name = ?", messageCounter); err != nil {
			return err
		}
		m.n++
		last, err := newestTime(q)
		m.ts = nextTime(h.now().UnixNano(), last)
		return err
	}); err != nil || !may {
		return p, err
	}
	p = prepared{message: m, id: newRequestID()}
	p.checked, err = h.requests.Seal(p.id, to.did, m.agentRequest(p.id))
	if deliver.Refused(err) {
		return prepared{}, nil // the message is stored, and its REQUEST is tried again
	}
	return p, err
}

// newRequestID returns the id of a REQUEST, and of its thread (B-7).
func newRequestID() string { return gateway.NewID("hub_") }

// request stores the request of a new message. Its REQUEST is sent at once if it says what is stored now, and if there is room.
func (o *op) request(m message, to agent, p prepared) error {
	r := request{message: m.n, id: newRequestID(), did: to.did, sender: m.sender, receiver: m.receiver, made: m.ts}
	may, err := o.hub.mayBegin(o, m.sender, to)
	if err != nil {
		return err
	}
	if may && p.checked.Envelope() != nil && p.message.n == m.n && p.message.trace == m.trace {
		if err := o.hub.requests.Append(o.Op, p.checked); err == nil {
			r.id, r.state = p.id, deliver.Sent
		} else if !deliver.Refused(err) {
			return err
		}
	}
	if r.state == deliver.Waiting {
		o.Then(o.hub.requests.Wake)
	}
	return insertRequest(o.ExtTx, r)
}

// pairIsFree is the condition that no REQUEST of the sender of w is open at its receiver.
const pairIsFree = "NOT EXISTS (SELECT 1 FROM hub_request x WHERE x.receiver = w.receiver AND x.sender = w.sender AND x.state > 0)"

// NextLane implements deliver.Queue. A lane is a receiver. It has work if a sender has a message for it, and no REQUEST
// of that sender is open there. Other receivers are passed over here, because there may be many: their agents may be
// offline.
func (h *Hub) NextLane(q relay.Querier, after int64) (int64, error) {
	return gateway.Number(q, "SELECT receiver FROM hub_request w WHERE state = 0 AND receiver > ? AND "+pairIsFree+
		" ORDER BY receiver LIMIT 1", after)
}

// Next implements deliver.Queue: the oldest message of a sender of which no REQUEST is open.
func (h *Hub) Next(q relay.Querier, receiver int64) (d deliver.Draft, err error) {
	if h.streams.has(receiver) {
		return d, nil
	}
	r, err := oneRequest(q, "SELECT "+requestColumns+" FROM hub_request w WHERE receiver = ? AND state = 0 AND "+pairIsFree+
		" ORDER BY message LIMIT 1", receiver)
	if err != nil || r.message == 0 {
		return d, err
	}
	room, err := hasRoom(q, r.did)
	if err != nil || !room {
		return d, err
	}
	m, _, err := messageByID(q, decimal(r.message))
	d.Delivery, d.Request = r.delivery(), m.agentRequest(r.id)
	return d, err
}

// Sent implements deliver.Queue.
func (h *Hub) Sent(o *gateway.Op, d deliver.Draft) (done bool, err error) {
	r, err := requestOf(o, d.N)
	if err != nil || r.id != d.ID || r.state != deliver.Waiting {
		return false, err
	}
	if may, err := h.mayRequest(o, r.sender, r.receiver, r.did); err != nil || !may {
		return false, err
	}
	r.state = deliver.Sent
	return true, updateRequest(o.ExtTx, r)
}

// Fail implements deliver.Queue.
func (h *Hub) Fail(g *gateway.Op, d deliver.Draft, _ error) error {
	return h.newOp(g).fail(d.Delivery, result{Code: codeUnreachable, Detail: "the relay could not hand the message to the agent"})
}

// settle ends the delivery of a request with what its receiver has answered.
func (o *op) settle(d deliver.Delivery, as state, known result) error {
	if err := o.replied(d); err != nil {
		return err
	}
	x, err := deliveryOf(o, d.N)
	if err != nil {
		return err
	}
	before := x.state
	if before == queued {
		x.via, x.handed = viaRequest, o.Now
	}
	x.state, x.acked, x.result = as, o.Now, known.text()
	return o.change(before, x)
}

// fail ends the delivery of a request.
func (o *op) fail(d deliver.Delivery, why result) error {
	r, err := requestOf(o, d.N)
	if err != nil || r.id != d.ID {
		return err
	}
	x, err := deliveryOf(o, r.message)
	if err != nil {
		return err
	}
	before := x.state
	x.state, x.result = failed, why.text()
	return o.change(before, x)
}

// Find implements deliver.Mapping.
func (h *Hub) Find(q relay.Querier, id string) (deliver.Delivery, error) {
	r, err := oneRequest(q, "SELECT "+requestColumns+" FROM hub_request WHERE id = ?", id)
	return r.delivery(), err
}

// Answer implements deliver.Mapping (B-8).
func (h *Hub) Answer(ctx context.Context, d deliver.Delivery, e *envelope.Envelope) (f deliver.Effect, err error) {
	switch e.Type {
	case envelope.TypeOffer:
		if _, costs := deliver.Costs(e); costs {
			why := result{Code: codeUnreachable, Detail: "the agent asks for a price; messages of the hub are not paid"}
			f.Cancel = "messages of the hub are not paid; offer without a price"
			f.Apply = func(g *gateway.Op) error { return h.newOp(g).settle(d, failed, why) }
			return f, nil
		}
		f.Accept, f.Apply = true, func(g *gateway.Op) error { return h.newOp(g).accepted(d) }
	case envelope.TypeResult:
		var x outputs
		if x, err = h.outputsOf(ctx, d, e); err != nil {
			return f, err
		}
		f.Apply = func(g *gateway.Op) error { return h.newOp(g).answered(d, x) }
	case envelope.TypeError:
		why := result{Code: cut(gateway.CleanText(e.PayloadString("code")), maxReplyText), Detail: cut(gateway.CleanText(e.PayloadString("message")), maxReplyText)}
		f.Apply = func(g *gateway.Op) error { return h.newOp(g).settle(d, failed, why) }
	}
	return f, nil
}

// accepted records that an OFFER was accepted: the agent has the message.
func (o *op) accepted(d deliver.Delivery) error {
	if err := o.replied(d); err != nil {
		return err
	}
	r, err := requestOf(o, d.N)
	if err != nil {
		return err
	}
	r.state = deliver.Accepted
	if err := updateRequest(o.ExtTx, r); err != nil {
		return err
	}
	x, err := deliveryOf(o, d.N)
	if err != nil {
		return err
	}
	before := x.state
	x.state, x.via, x.handed = sent, viaRequest, o.Now
	o.Then(o.hub.requests.Wake)
	return o.change(before, x)
}

// replied records that the receiver of a request has answered.
func (o *op) replied(d deliver.Delivery) error {
	r, err := requestOf(o, d.N)
	if err != nil {
		return err
	}
	return changeUsage(o.ExtTx, r.receiver, func(u *usage) { u.replied, u.used = o.Now, o.Now })
}

// answered confirms a message with the RESULT of its receiver, and sends the reply (B-9).
func (o *op) answered(d deliver.Delivery, x outputs) error {
	if err := o.settle(d, delivered, result{Response: jsontext.Compact(x.response)}); err != nil || !x.replies {
		return err
	}
	return o.reply(x)
}

// expireRequests fails the messages that their receivers have not confirmed in 24 hours, and cancels their threads.
func (h *Hub) expireRequests(ctx context.Context) (more bool, err error) {
	var old []request
	if err := h.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		old, err = requests(q, "SELECT "+requestColumns+" FROM hub_request WHERE made <= ? ORDER BY made, message LIMIT ?",
			h.now().Add(-deliver.Life).UnixNano(), expireBatch)
		return err
	}); err != nil || len(old) == 0 {
		return false, err
	}
	return len(old) == expireBatch, h.ending(context.WithoutCancel(ctx), self, "the time for the message is over",
		func(q relay.Querier) (all []deliver.Delivery, err error) {
			for _, r := range old {
				now, err := requestOf(q, r.message)
				if err != nil {
					return nil, err
				}
				all = append(all, now.delivery())
			}
			return all, nil
		}, func(o *op) error {
			for _, r := range old {
				if err := o.fail(r.delivery(), result{Code: codeTimeout, Detail: "the agent has not answered for 24 hours"}); err != nil {
					return err
				}
			}
			return nil
		})
}

// expireBatch is how many requests one Update ends. Each may need a signature.
const expireBatch = 20

// recordPresence records that agents with a DID are in use, because the relay hears from them (B-13).
func (h *Hub) recordPresence(ctx context.Context) (more bool, err error) {
	some := h.directory.present(h.now().Add(-usedPrecision).UnixNano(), sweepBatch, h.requests.Online)
	if len(some) == 0 {
		return false, nil
	}
	return len(some) == sweepBatch, h.update(context.WithoutCancel(ctx), self, func(o *op) error {
		for _, n := range some {
			if err := changeUsage(o.ExtTx, n, func(u *usage) { u.used = o.Now }); err != nil {
				return err
			}
		}
		o.Then(func() { h.directory.recorded(some, o.Now) })
		return nil
	})
}

// inUse reports whether an agent has a stream, or has a DID from which the relay hears.
func (o *op) inUse(n int64) (bool, error) {
	if o.hub.streams.has(n) {
		return true, nil
	}
	a, err := agentByNumber(o, n)
	return a.did != "" && o.hub.requests.Online(a.did), err
}

// nextTime returns the timestamp of a new message. Timestamps grow with the ids, even if the clock is set back. Answers show
// milliseconds, so they grow by at least one of them. last is the newest timestamp.
func nextTime(now, last int64) int64 {
	const ms = int64(time.Millisecond)
	return max(now/ms, last/ms+1) * ms
}
