package channel

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// This file follows the threads of the REQUESTs to the owners of inboxes. What an owner answers there is sent to the
// service, and the gateway plays the part of the client: it accepts an offer, or cancels the request.

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
	if gateway.Refused(err) {
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
		if first, err := g.follower.Once(o, e.Seq); err != nil || !first {
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
		if _, err := o.Append(f.answer, thread.Terms{}); gateway.Refused(err) {
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
	draft := envelope.Draft{Thread: r.id, Recipient: e.Sender.ID}
	if _, costs := gateway.OfferCosts(e); costs {
		f.state = over
		draft.Payload = envelope.Cancel{RequestID: r.id, Reason: "deliveries to an inbox are not paid; offer without a price"}
		f.events = []posted{newError("the agent asks for a price; deliveries to an inbox are not paid", "price")}
	} else {
		f.state = accepted
		now := g.Relay.Now()
		draft.Payload = envelope.Accept{RequestID: r.id, AcceptedAt: &now}
		f.events = []posted{newLifecycle(lifecycleProcessing)}
	}
	f.answer, err = g.Seal(draft)
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
