package channel

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/relay"
)

// This file follows the threads of the REQUESTs to the owners of inboxes. What an owner answers there is sent to the
// service.

// Find implements deliver.Mapping.
func (g *Gateway) Find(q relay.Querier, id string) (d deliver.Delivery, err error) {
	r, err := requestByID(q, id)
	if err != nil || r.n == 0 {
		return d, err
	}
	i, err := inboxByNumber(q, r.inbox)
	if d = r.delivery(i); !i.live() {
		d.Owner = ""
	}
	return d, err
}

// delivery returns a request to the owner of an inbox as a delivery. The inbox may have been deleted.
func (r request) delivery(i inbox) deliver.Delivery {
	return deliver.Delivery{N: r.n, ID: r.id, Owner: i.owner, State: r.state + deliver.Sent}
}

// Answer implements deliver.Mapping. An OFFER is accepted if it costs nothing. Otherwise the request is canceled (C-31),
// because nobody pays.
func (g *Gateway) Answer(_ context.Context, d deliver.Delivery, e *envelope.Envelope) (f deliver.Effect, err error) {
	state, events := over, []posted(nil)
	switch e.Type {
	case envelope.TypeOffer:
		if _, costs := deliver.Costs(e); costs {
			f.Cancel = "deliveries to an inbox are not paid; offer without a price"
			events = append(events, newError("the agent asks for a price; deliveries to an inbox are not paid", "price"))
		} else {
			f.Accept, state = true, accepted
			events = append(events, newLifecycle(lifecycleProcessing))
		}
	case envelope.TypeResult:
		events = append(eventsOf(e), newLifecycle(lifecycleIdle))
	case envelope.TypeError:
		events = append(events, newError(e.PayloadString("message"), e.PayloadString("code")), newLifecycle(lifecycleIdle))
	}
	f.Apply = func(o *gateway.Op) error {
		r, err := requestByNumber(o, d.N)
		if err != nil {
			return err
		}
		r.state = state
		if r.ended != 0 { // the service takes no more events
			return updateRequest(o.ExtTx, r)
		}
		return g.forward(o, r, events...)
	}
	return f, nil
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
