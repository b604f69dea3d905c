package hub

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// outgoing is a message that is being sent.
type outgoing struct {
	receiverID string // as the sender wrote it
	senderID   string
	envelope   string
	repeat     gateway.Repeat
	repeatable bool // the request has an Idempotency-Key
	request    *sending
	prepared   prepared
}

// parseMessage checks the body of POST /messages.
func parseMessage(body []byte) (m outgoing, err error) {
	o := newObject("", body)
	if o.Err != nil {
		return m, o.Err
	}
	m.receiverID, _ = o.Text("receiver_id", true)
	if raw, ok := o.Members["stream"]; ok && string(raw) != "true" && string(raw) != "false" {
		o.Fail("stream", "must be true or false")
	}
	raw, ok := o.Members["envelope"]
	if !ok {
		o.Fail("envelope", "is missing")
	}
	if o.Err != nil {
		return m, o.Err
	}
	m.envelope = string(raw)
	m.senderID, err = checkEnvelope(raw)
	return m, err
}

// postMessage is the handler of POST /messages. It stores a message, and waits up to sendWait for its delivery.
// docs/HUB.md ("Sending") has the order of the checks.
func (h *Hub) postMessage(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	c, err := h.admitChange(r.Context(), from, r)
	if err != nil {
		return err
	}
	body, err := h.readObject(w, r, from)
	if err != nil {
		return err
	}
	m, err := parseMessage(body)
	if err != nil {
		return err
	}
	if m.receiverID = h.longAddress(m.receiverID); !isAddress(m.receiverID) {
		return gateway.Invalid("receiver_id: must be an address such as name@host, or the name of an agent of this hub")
	}
	m.request = new(sending)
	var badKey error
	m.repeat, m.repeatable, badKey = gateway.ParseRepeat(r, "POST /hub/messages", c.name(), body)
	if m.repeatable {
		end, err := h.answers.Begin(r.Context(), m.repeat)
		if err != nil {
			return err
		}
		defer end()
	}
	defer h.waits.end(m.request)
	n, repeated, first, err := h.storeMessage(r.Context(), from, c, m, badKey)
	if err != nil {
		return err
	}
	if repeated {
		w.Header().Set("Idempotent-Replay", "true")
		if first.Status != 0 {
			return httpapi.WriteJSON(w, first.Status, json.RawMessage(first.Body))
		}
	}
	status, answer, err := h.outcome(r.Context(), from, n)
	if err != nil {
		return err
	}
	text := h.answerBody(answer)
	if m.repeatable {
		if err := h.update(context.WithoutCancel(r.Context()), from, func(o *op) error {
			return h.answers.Finish(o.ExtTx, m.repeat, status, text)
		}); err != nil {
			return err
		}
	}
	return httpapi.WriteJSON(w, status, json.RawMessage(text))
}

// storeMessage is op.send in an Update. If the receiver has a DID, the REQUEST to it is signed before, with the number that
// the message will probably have. If the client disconnects now, the message is still sent.
func (h *Hub) storeMessage(
	ctx context.Context, from relay.Peer, c caller, m outgoing, badKey error,
) (n int64, repeated bool, first gateway.Stored, err error) {
	for try := 1; ; try++ {
		if m.prepared, err = h.prepare(ctx, from, m.senderID, m.receiverID, m.envelope); err != nil {
			return 0, false, first, err
		}
		m.prepared.last = try == maxPredictions
		err = h.update(context.WithoutCancel(ctx), from, func(o *op) (err error) {
			n, repeated, first, err = o.send(c, m, badKey)
			return err
		})
		if !errors.Is(err, errPredicted) {
			return n, repeated, first, err
		}
	}
}

// send stores a message and returns its number n. badKey is the error of a malformed Idempotency-Key. repeated means
// that an earlier request with this Idempotency-Key has stored message n; first is the answer to that request.
func (o *op) send(c caller, m outgoing, badKey error) (n int64, repeated bool, first gateway.Stored, err error) {
	if err := o.check(c); err != nil {
		return 0, false, first, err
	}
	sender, err := agentByAddress(o, m.senderID)
	switch {
	case err != nil:
		return 0, false, first, err
	case !sender.live():
		return 0, false, first, refuse(http.StatusBadRequest, codeNoSender, "envelope.sender_id: %s is not registered here",
			m.senderID)
	case !c.operator && !c.owns(sender):
		own, err := agentByNumber(o, c.agent)
		return 0, false, first, cmp.Or(err, refuse(http.StatusForbidden, codeSenderMismatch,
			"envelope.sender_id: %s is not the agent of this key, which is %s", m.senderID, own.address))
	case badKey != nil:
		return 0, false, first, badKey
	}
	if m.repeatable {
		if first, repeated, err = o.hub.answers.Find(o, m.repeat); err != nil || repeated {
			return first.Ref, repeated, first, err
		}
	}
	receiver, err := agentByAddress(o, m.receiverID)
	if err != nil {
		return 0, false, first, err
	}
	if !receiver.live() {
		return 0, false, first, unknownAgent(m.receiverID)
	}
	source, err := sourceOf(o, sender.n)
	if err != nil {
		return 0, false, first, err
	}
	if err := o.checkQueue(source, receiver, len(m.envelope)); err != nil {
		return 0, false, first, err
	}
	message := newMessage{sender: sender, receiver: receiver, source: source, envelope: m.envelope, prepared: m.prepared}
	if n, err = o.store(message, m.request); err == nil && m.repeatable {
		err = o.hub.answers.Add(o.ExtTx, m.repeat, n)
	}
	return n, false, first, err
}

// checkQueue refuses a message of size bytes if too much is queued for its receiver.
func (o *op) checkQueue(source int64, receiver agent, size int) error {
	u, err := usageOf(o, receiver.n)
	if err != nil {
		return err
	}
	p, err := peerOf(o, receiver.n, source)
	if err != nil {
		return err
	}
	queue := gateway.Queue{Most: maxQueued, MostBytes: maxQueuedBytes, MostOfSource: maxQueuedFromSender,
		Count: u.queued, Bytes: u.queueBytes, OfSource: p.queued}
	full, most := queue.Check(p.known > stranger, int64(size))
	limit, what := "", ""
	switch full {
	case gateway.NotFull:
		return nil
	case gateway.FullCount:
		limit, what = limitQueued, "%d messages are queued"
	case gateway.FullBytes:
		limit, what = limitQueuedBytes, "more than %d bytes would be queued"
	case gateway.FullOfSource:
		limit, what = limitQueuedFromSender, "%d messages of this sender, or of others from its network, are queued"
	}
	if full != gateway.FullOfSource && p.known == stranger {
		what += ", and the other half of it is kept for senders that it knows"
	}
	return limitReached(codeInboxFull, limit, time.Minute,
		"the inbox of "+receiver.address+" is full: "+what+"; wait until it has received some", most)
}

// newMessage is a message that is about to be stored.
type newMessage struct {
	sender, receiver agent
	source           int64 // of the sender
	envelope         string
	depth            int64
	prepared         prepared // zero: its REQUEST was not signed
}

// insert writes the row of a new message. Errors: errPredicted.
func (o *op) insert(n newMessage) (m message, err error) {
	m = message{trace: n.prepared.message.trace, sender: n.sender.n, senderID: n.sender.address, receiver: n.receiver.n,
		receiverID: n.receiver.address, envelope: n.envelope, depth: n.depth}
	if m.trace == "" {
		m.trace = newTrace()
	}
	if m.n, err = gateway.Next(o.ExtTx, messageCounter); err != nil {
		return m, err
	}
	last, err := newestTime(o)
	if err != nil {
		return m, err
	}
	m.ts = nextTime(o.Now, last)
	if as := n.prepared.message; as.n != 0 {
		switch predicted := as.n == m.n && as.ts > last; {
		case predicted:
			m.ts = as.ts
		case n.prepared.last:
			m.trace = newTrace() // so the REQUEST, which says something else, is not sent
		default:
			return m, errPredicted
		}
	}
	return m, insertMessage(o.ExtTx, m)
}

// store writes the rows of a new message and returns its number. Errors: errPredicted.
func (o *op) store(n newMessage, request *sending) (int64, error) {
	m, err := o.insert(n)
	if err != nil {
		return 0, err
	}
	receiver := n.receiver
	d := delivery{message: m.n, sender: m.sender, receiver: m.receiver, size: int64(len(m.envelope)), state: queued}
	if err := insertDelivery(o.ExtTx, d); err != nil {
		return 0, err
	}
	if err := o.enqueued(d, n.source); err != nil {
		return 0, err
	}
	for i, party := range []int64{m.sender, m.receiver} {
		if i == 1 && m.receiver == m.sender {
			continue
		}
		if err := o.keep(party, d); err != nil {
			return 0, err
		}
	}
	o.stored++
	o.queued++
	if len(receiver.endpoint) > 0 {
		if err := o.hub.outbox.Add(o.ExtTx, receiver.n, m.n); err != nil {
			return 0, err
		}
		o.Then(func() { o.hub.outbox.Wake(receiver.n) })
	}
	if receiver.did != "" {
		if err := o.request(m, receiver, n.prepared); err != nil {
			return 0, err
		}
	}
	// Nobody can see the message before it is on disk. So a wait that is added now misses no change.
	o.hub.waits.add(request, d, m.trace, len(receiver.endpoint) > 0 || receiver.did != "" && o.hub.requests.Online(receiver.did))
	o.Then(func() { o.hub.streams.wake(receiver.n) })
	return m.n, nil
}

// keep adds a message to the history of one of its parties.
func (o *op) keep(party int64, d delivery) error {
	if err := insertEntry(o.ExtTx, party, d.message); err != nil {
		return err
	}
	var over bool
	if err := changeUsage(o.ExtTx, party, func(u *usage) {
		u.used, u.framed = o.Now, max(u.framed, neverFramed)
		u.kept++
		u.keptBytes += d.size
		if party == d.receiver && d.state == queued {
			u.queued++
			u.queueBytes += d.size
		}
		over = u.kept > maxKept || u.keptBytes > maxKeptBytes
	}); err != nil || !over {
		return err
	}
	return o.trim(party)
}

// newTrace returns a new UUID, version 4 (RFC 9562).
func newTrace() string {
	var b [16]byte
	rand.Read(b[:]) // never returns an error (crypto/rand)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// sendAnswer is the data of an answer to POST /messages.
type sendAnswer struct {
	Delivery string          `json:"delivery"`
	Trace    string          `json:"trace_id"`
	Response json.RawMessage `json:"receiver_response,omitempty"` // only if the webhook or a RESULT has confirmed the message
	Code     string          `json:"error_code,omitempty"`
	Detail   string          `json:"detail,omitempty"`
	State    string          `json:"state"`
}

// outcome waits until message n is delivered or an attempt has failed, but at most sendWait. It returns the answer to
// the sender.
func (h *Hub) outcome(ctx context.Context, from relay.Peer, n int64) (status int, answer sendAnswer, err error) {
	timeout := time.NewTimer(sendWait)
	defer timeout.Stop()
	for {
		w, waits := h.waits.look(n)
		if !waits { // an earlier request has stored the message
			d, trace, err := h.deliveryWithTrace(ctx, from, n)
			if err != nil {
				return 0, answer, err
			}
			status, answer = sentAnswer(d, trace)
			return status, answer, nil
		}
		known := w.latest.state != queued && w.latest.via != viaRequest || w.latest.state.final() || w.latest.result != ""
		if !known && (w.webhook || h.streams.has(w.latest.receiver)) {
			select {
			case <-w.changed:
				continue
			case <-timeout.C:
			case <-h.Relay.Drained():
			case <-ctx.Done():
			}
		}
		status, answer = sentAnswer(w.latest, w.trace)
		return status, answer, nil
	}
}

// deliveryWithTrace reads the delivery and the trace of a message.
func (h *Hub) deliveryWithTrace(ctx context.Context, from relay.Peer, n int64) (d delivery, trace string, err error) {
	err = h.Relay.View(context.WithoutCancel(ctx), from, func(q relay.Querier) error {
		return q.Query(func(scan gateway.Scanner) error { return scan(append(d.fields(), &trace)...) },
			"SELECT "+joinedDelivery+", m.trace FROM hub_delivery d JOIN hub_message m ON m.n = d.message "+
				"WHERE d.message = ?", n)
	})
	return d, trace, err
}

// sentAnswer returns what a sender is told about a delivery.
func sentAnswer(d delivery, trace string) (status int, a sendAnswer) {
	known := d.decodeResult()
	a = sendAnswer{Trace: trace, Code: known.Code, Detail: known.Detail, State: d.state.String()}
	switch {
	case d.state == failed:
		a.Delivery = "failed"
	case d.state == delivered && (d.via == viaWebhook || d.via == viaRequest):
		a.Delivery, a.Response = "delivered", known.Response
	case d.state != queued && d.via == viaStream:
		a.Delivery = "delivered_sse"
	default:
		a.Delivery = "queued"
		return http.StatusAccepted, a
	}
	return http.StatusOK, a
}
