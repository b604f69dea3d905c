package a2a

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// This file does what the answers of agents lead to (docs/A2A.md, "States").

// Find implements deliver.Mapping. A turn and an event for a hook are deliveries.
func (g *Gateway) Find(q relay.Querier, id string) (d deliver.Delivery, err error) {
	if strings.HasPrefix(id, noticePrefix) {
		return findNotice(q, id)
	}
	u, err := turnByID(q, id)
	if err != nil || u.n == 0 {
		return d, err
	}
	e, err := endpointByNumber(q, u.endpoint)
	if d = u.delivery(e); e.deleted != 0 {
		d.Owner = ""
	}
	return d, err
}

// delivery returns a turn as a delivery. The endpoint may have been deleted.
func (u turn) delivery(e endpoint) deliver.Delivery {
	return deliver.Delivery{N: u.n, ID: u.id, Owner: e.did, State: u.state}
}

// Answer implements deliver.Mapping.
func (g *Gateway) Answer(ctx context.Context, d deliver.Delivery, opened *envelope.Envelope) (f deliver.Effect, err error) {
	if strings.HasPrefix(d.ID, noticePrefix) {
		return noticeEffect(d, opened), nil
	}
	var u turn
	var e endpoint
	if err := g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		if u, err = turnByNumber(q, d.N); err == nil {
			e, err = endpointByNumber(q, u.endpoint)
		}
		return err
	}); err != nil {
		return f, err
	}
	var ends *outcome
	switch opened.Type {
	case envelope.TypeOffer:
		ends = effectOfOffer(&f, opened)
	case envelope.TypeResult:
		out := resultOf(opened)
		ends = &out
	case envelope.TypeError:
		out := errorOutcome(opened)
		ends = &out
	}
	if ends != nil {
		if err := g.checkProof(ctx, u, e, ends); err != nil {
			return f, err
		}
	}
	f.Apply = func(o *gateway.Op) error { return g.apply(o, d.N, ends) }
	return f, nil
}

// seenStep is how often the gateway records that it has heard from an agent.
const seenStep = 24 * time.Hour

// apply ends a turn, or, if ends is nil, records that the agent works.
func (g *Gateway) apply(o *gateway.Op, n int64, ends *outcome) error {
	u, err := turnByNumber(o, n)
	if err != nil {
		return err
	}
	e, err := endpointByNumber(o, u.endpoint)
	if err != nil {
		return err
	}
	if time.Duration(o.Now-e.seen) > seenStep {
		e.seen = o.Now
		if err := updateEndpoint(o.ExtTx, e); err != nil {
			return err
		}
	}
	t, err := taskByNumber(o, u.task)
	if err != nil {
		return err
	}
	if ends != nil {
		return g.finish(o, t, u, *ends)
	}
	u.state, u.accepted = deliver.Accepted, o.Now
	if err := updateTurn(o.ExtTx, u); err != nil {
		return err
	}
	o.Then(g.deliveries.Wake)
	if err := t.setStatus(o, wire.Working, nil, 0); err != nil {
		return err
	}
	return g.save(o, t)
}

// errorOutcome returns the outcome that an ERROR leads to.
func errorOutcome(opened *envelope.Envelope) outcome {
	out := failure(wire.Failed, cmp.Or(opened.PayloadString("message"), "The agent failed."))
	switch envelope.AgentCode(opened.PayloadString("code")) {
	case envelope.AgentInvalidRequest, envelope.AgentIntentNotSupported, envelope.AgentInsufficientBudget,
		envelope.AgentCode(envelope.CodeRateLimited):
		out.state = wire.Rejected
	}
	return out
}

// effectOfOffer accepts an OFFER if it costs nothing. Otherwise the REQUEST is canceled, because the gateway would owe the
// money, and the turn ends.
func effectOfOffer(f *deliver.Effect, opened *envelope.Envelope) (ends *outcome) {
	offer, costs := deliver.Costs(opened)
	if !costs {
		f.Accept = true
		return nil
	}
	f.Cancel = "callers of A2A cannot pay; offer without a price"
	out := rejection(offer)
	return &out
}

// rejection returns the outcome of a turn whose OFFER has a price, or cannot be read.
func rejection(offer envelope.Offer) outcome {
	if offer.Price == nil {
		return failure(wire.Rejected, "The agent's offer cannot be read.")
	}
	price := map[string]any{"amount": offer.Price.Amount, "currency": offer.Price.Currency}
	data := wire.DataPart(jsontext.Compact(map[string]any{"price": price}))
	return outcome{state: wire.Rejected,
		message: agentText("The agent asks for a price. This relay does not pay for its callers.", data)}
}

// resultOf returns the outcome that a RESULT leads to.
func resultOf(opened *envelope.Envelope) outcome {
	var result envelope.Result
	if opened.DecodePayload(&result) != nil {
		return failure(wire.Failed, "The agent's answer cannot be read.")
	}
	out, err := contentOf(result.Output)
	if err != nil {
		return failure(wire.Failed, "The agent's answer does not have the form that A2A requires.")
	}
	if out.state = wire.StateOf(result.Status); out.state == wire.Failed {
		if out.message == nil {
			out.message = agentText(result.Status)
		} else {
			out.message.Parts = append(out.message.Parts, wire.TextPart(result.Status))
			*out.message = *agentMessage(*out.message)
		}
	}
	out.direct = out.direct && out.state == wire.Completed
	return out
}

// agentMessage returns a message with the same members, written from its fields.
func agentMessage(m wire.Message) *wire.Message {
	return &wire.Message{MessageID: m.MessageID, Role: m.Role, Parts: m.Parts, Metadata: m.Metadata, Extensions: m.Extensions}
}

// resultID is the id of the artifact that the gateway makes of an output.
const resultID = "result"

// contentOf returns the artifacts and the message of an output.
func contentOf(output json.RawMessage) (out outcome, err error) {
	if len(output) == 0 || string(output) == "null" {
		return out, nil
	}
	wrapped := append(append([]byte(`{"output":`), output...), '}')
	canonical, err := wire.Body(wrapped, len(wrapped))
	if err != nil {
		return out, err
	}
	var body struct {
		Output json.RawMessage `json:"output"`
	}
	if err := json.Unmarshal(canonical, &body); err != nil {
		return out, err
	}
	var members map[string]json.RawMessage
	if body.Output[0] == '{' {
		if err := json.Unmarshal(body.Output, &members); err != nil {
			return out, err
		}
	}
	if own, given := members["a2a"]; given {
		parsed, err := wire.ParseOutput(own)
		return outcome{message: parsed.Message, artifacts: parsed.Artifacts, direct: parsed.Direct, proof: parsed.Proof}, err
	}
	out.artifacts = []wire.Artifact{{ArtifactID: resultID, Parts: []wire.Part{partOf(body.Output, members)}}}
	return out, nil
}

// partOf makes a part from the output of an agent that knows no A2A. A text becomes a text part, also if it is the only
// member, text or content, of an object. Everything else becomes a data part.
func partOf(output json.RawMessage, members map[string]json.RawMessage) wire.Part {
	text := output
	if len(members) == 1 {
		for _, name := range []string{"text", "content"} {
			if only, given := members[name]; given {
				text = only
			}
		}
	}
	var plain string
	if text[0] == '"' && json.Unmarshal(text, &plain) == nil {
		return wire.TextPart(plain)
	}
	return wire.DataPart(output)
}
