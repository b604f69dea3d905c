package channel

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// This file follows the threads of the REQUESTs to the owners of inboxes. What an owner answers there is sent to the
// service, and the gateway plays the part of the client: it accepts an offer, or cancels the request.

// follow handles the events of the relay that are addressed to the gateway, from the recorded position on, until ctx
// ends. The position moves in the transaction of each effect. So an effect happens once, also after a crash.
func (g *Gateway) follow(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watching sync.WaitGroup
	defer watching.Wait()
	mail := &mailbox{did: g.Key.DID(), woken: make(chan struct{}, 1), seen: g.after, recorded: g.after}
	watching.Go(func() {
		_ = g.insist(ctx, func() error { // it returns only the error of ctx
			cursor := relay.Cursor{Epoch: g.Relay.Epoch(), Seq: mail.last()}
			return g.Relay.Watch(ctx, cursor, mail.put)
		})
	})
	for {
		select {
		case <-mail.woken:
		case <-ctx.Done():
			return
		}
		for _, e := range mail.take() {
			if g.insist(ctx, g.handling(ctx, e)) != nil {
				return
			}
		}
		if seen := mail.handled(); seen > 0 && g.insist(ctx, func() error { return g.record(ctx, seen) }) != nil {
			return
		}
	}
}

// maxAttempts is how often the gateway tries to store the effect of an event while its database works.
const maxAttempts = 8

// handling returns a function that handles an event. After too many failures, it gives the event up, so that the events
// of others do not wait for it for ever.
func (g *Gateway) handling(ctx context.Context, e relay.Posted) func() error {
	attempts := 0
	return func() error {
		err := g.handle(ctx, e)
		if err == nil || g.Relay.Health() != nil {
			return err
		}
		if attempts++; attempts < maxAttempts {
			return err
		}
		g.Log.Error("the answer of an agent is given up", "id", e.Envelope.ID, "sender", e.Envelope.Sender.ID, "err", err)
		return nil
	}
}

// record moves the position over events that have no effect.
func (g *Gateway) record(ctx context.Context, seen relay.Seq) error {
	return g.Update(context.WithoutCancel(ctx), self, func(o *gateway.Op) error {
		if done, _, err := position(o); err != nil || seen <= done {
			return err
		}
		return setPosition(o.ExtTx, seen)
	})
}

// start returns the recorded position. If there is none, it records the present end of the relay's events.
func (g *Gateway) start(ctx context.Context) (after relay.Seq, err error) {
	found := false
	err = g.Relay.View(ctx, self, func(q relay.Querier) error {
		after, found, err = position(q)
		return err
	})
	if err != nil || found {
		return after, err
	}
	end, err := g.Relay.End(ctx)
	if err != nil {
		return 0, err
	}
	return end.Seq, g.Update(ctx, self, func(o *gateway.Op) error { return setPosition(o.ExtTx, end.Seq) })
}

// insist is gateway.Insist that logs failures.
func (g *Gateway) insist(ctx context.Context, f func() error) error {
	return gateway.Insist(ctx, f, func(err error) {
		select {
		case <-g.Relay.Drained(): // nothing can be stored any more, so the failure is expected
		default:
			g.Log.Error("the answers of agents with an inbox cannot be handled now; the gateway tries again", "err", err)
		}
	})
}

// recordAfter is how many events may come before the position moves over them. So a restart reads at most as many again.
const recordAfter = 1000

// mailbox has the events for the gateway that are not handled yet.
type mailbox struct {
	did   didkey.DID
	woken chan struct{} // has room for one

	mu             sync.Mutex
	events         []relay.Posted
	seen, recorded relay.Seq // the last event of the relay, also if it was for others; the last value of handled
}

// put adds those of the events that may concern an inbox. It is the function of Watch.
func (m *mailbox) put(all []relay.Posted) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range all {
		m.seen = e.Seq
		if e.Envelope.Recipient != m.did || !e.Envelope.Sealed() { // a plain answer has no effect (C-27)
			continue
		}
		switch e.Envelope.Type {
		case envelope.TypeOffer, envelope.TypeResult, envelope.TypeError:
			m.events = append(m.events, e)
		}
	}
	if len(m.events) == 0 && m.seen < m.recorded+recordAfter {
		return
	}
	select {
	case m.woken <- struct{}{}:
	default: // it was woken before
	}
}

// handled returns the position to record, if all events before it are handled. Otherwise, and if the last one is recent,
// it returns 0.
func (m *mailbox) handled() relay.Seq {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.events) > 0 || m.seen < m.recorded+recordAfter {
		return 0
	}
	m.recorded = m.seen
	return m.seen
}

// take returns the events that were added since the last call.
func (m *mailbox) take() []relay.Posted {
	m.mu.Lock()
	defer m.mu.Unlock()
	events := m.events
	m.events = nil
	return events
}

func (m *mailbox) last() relay.Seq {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen
}

// effect is what an event in a thread leads to.
type effect struct {
	state  int64         // the state of the thread after it
	answer relay.Checked // an envelope of the gateway; zero: none
	events []posted      // for the service
}

// handle does what an event for the gateway leads to. An event that belongs to no request has no effect.
func (g *Gateway) handle(ctx context.Context, e relay.Posted) error {
	r, own, err := g.requestOf(ctx, e.Envelope)
	if err != nil || !own {
		return err
	}
	opened, err := e.Envelope.Open(g.Key)
	if err != nil {
		g.Log.Warn("an answer of an agent cannot be decrypted", "delivery", r.id, "err", err)
		return nil
	}
	f, err := g.effectOf(r, opened)
	if refused(err) {
		g.Log.Warn("the relay refuses the gateway's message to an agent", "delivery", r.id, "err", err)
		return nil
	} else if err != nil {
		return err
	}
	return g.Update(context.WithoutCancel(ctx), self, func(o *gateway.Op) error {
		now, err := requestByNumber(o, r.n)
		if err != nil || now.n == 0 {
			return err
		}
		done, _, err := position(o)
		if err != nil || e.Seq <= done { // the effect is already stored
			return err
		}
		if err := setPosition(o.ExtTx, e.Seq); err != nil {
			return err
		}
		return g.apply(o, now, f)
	})
}

// requestOf returns the request that an envelope answers. own is false if there is none.
func (g *Gateway) requestOf(ctx context.Context, e *envelope.Envelope) (r request, own bool, err error) {
	var i inbox
	err = g.Relay.View(ctx, self, func(q relay.Querier) error {
		if r, err = requestByID(q, e.Thread); err != nil || r.n == 0 {
			return err
		}
		i, err = inboxByNumber(q, r.inbox)
		return err
	})
	return r, err == nil && r.n != 0 && i.live() && i.owner == e.Sender.ID && r.state != over, err
}

// apply stores an effect.
func (g *Gateway) apply(o *gateway.Op, r request, f effect) error {
	if r.state == over {
		return nil
	}
	if f.answer.Envelope() != nil {
		if _, err := o.Append(f.answer, thread.Terms{}); refused(err) {
			return nil // for example, the thread has ended in the meantime
		} else if err != nil {
			return err
		}
	}
	r.state = f.state
	if r.ended != 0 { // the service takes no more events
		return updateRequest(o.ExtTx, r)
	}
	return g.forward(o, r, f.events...)
}

// effectOf returns what an opened envelope in the thread of r leads to.
func (g *Gateway) effectOf(r request, e *envelope.Envelope) (f effect, err error) {
	switch e.Type {
	case envelope.TypeOffer:
		return g.effectOfOffer(r, e)
	case envelope.TypeResult:
		f.events = eventsOf(e)
	case envelope.TypeError:
		f.events = []posted{newError(e.PayloadString("message"), e.PayloadString("code"))}
	}
	f.state = over
	f.events = append(f.events, newLifecycle(lifecycleIdle))
	return f, nil
}

// effectOfOffer returns what an OFFER leads to. It is accepted if it costs nothing. Otherwise the request is cancelled
// (C-31), because nobody pays.
func (g *Gateway) effectOfOffer(r request, e *envelope.Envelope) (f effect, err error) {
	if r.state != pending {
		f.state = r.state
		return f, nil
	}
	var offer envelope.Offer
	bad := e.DecodePayload(&offer) != nil
	draft := envelope.Draft{Thread: r.id, Recipient: e.Sender.ID}
	if priced := offer.Price != nil && offer.Price.Amount != 0; bad || priced {
		f.state = over
		draft.Payload = envelope.Cancel{RequestID: r.id, Reason: "deliveries to an inbox are not paid; offer without a price"}
		f.events = []posted{newError("the agent asks for a price; deliveries to an inbox are not paid", "price")}
	} else {
		f.state = accepted
		now := g.Relay.Now()
		draft.Payload = envelope.Accept{RequestID: r.id, AcceptedAt: &now}
		f.events = []posted{newLifecycle(lifecycleProcessing)}
	}
	f.answer, err = g.sign(draft)
	return f, err
}

// eventsOf returns the events of a RESULT: those of output.events, or one message with output or output.content.
func eventsOf(e *envelope.Envelope) (all []posted) {
	var result envelope.Result
	if e.DecodePayload(&result) != nil || len(result.Output) == 0 {
		return nil
	}
	output := map[string]json.RawMessage{}
	if result.Output[0] == '{' {
		_ = json.Unmarshal(result.Output, &output) // it is an object, so this does not fail
	} else {
		output["content"] = result.Output
	}
	list, isList := output["events"]
	if !isList {
		if _, given := output["content"]; !given {
			return nil
		}
		list = append(append([]byte(`[{"type":"message","content":`), output["content"]...), "}]"...)
	}
	var events []json.RawMessage
	if list[0] != '[' || json.Unmarshal(list, &events) != nil || len(events) > maxResultEvents {
		return []posted{newError(fmt.Sprintf("output.events of the agent's result is not a list of at most %d events",
			maxResultEvents), "bad_result")}
	}
	for _, text := range events {
		said, err := readEvent(text)
		if err != nil { // the rest may make no sense without this event
			return append(all, newError("an event of the agent's result is not valid: "+messageOf(err), "bad_result"))
		}
		all = append(all, said)
	}
	return all
}

// maxResultEvents is how many events one RESULT may have.
const maxResultEvents = 100

// readEvent checks an event that is part of an envelope.
func readEvent(text []byte) (posted, error) {
	canonical, err := envelope.ParseObject(bytes.Clone(text), gateway.MaxBody)
	if err != nil {
		return posted{}, err
	}
	return parseEvent(canonical)
}
