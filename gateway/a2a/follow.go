package a2a

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// This file does what the answers of agents lead to (docs/A2A.md, "States").

// effect is what an answer of an agent leads to.
type effect struct {
	answer relay.Checked // an envelope of the gateway; zero: none
	works  bool          // the agent begins to work
	ends   *outcome      // the turn ends; nil: it does not
}

// prepare returns what an event for the gateway leads to. An event that belongs to no open turn has no effect.
func (g *Gateway) prepare(ctx context.Context, posted relay.Posted) (effect func(*gateway.Op) error, err error) {
	var u turn
	var e endpoint
	err = g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		if u, err = turnByID(q, posted.Envelope.Thread); err != nil || u.n == 0 {
			return err
		}
		e, err = endpointByNumber(q, u.endpoint)
		return err
	})
	if err == nil && u.n == 0 {
		return g.prepareNotice(ctx, posted)
	}
	if err != nil || e.deleted != 0 || e.did != posted.Envelope.Sender.ID || u.state == waiting || u.state == over {
		return nil, err
	}
	opened, err := posted.Envelope.Open(g.Key)
	if err != nil {
		g.Log.Warn("an answer of an agent cannot be decrypted", "turn", u.id, "err", err)
		return nil, nil
	}
	f, err := g.effectOf(u, e, opened)
	if err == nil && f.ends != nil {
		err = g.checkProof(ctx, u, e, f.ends)
	}
	if gateway.Refused(err) {
		g.Log.Warn("the relay refuses the gateway's message to an agent", "turn", u.id, "err", err)
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return func(o *gateway.Op) error {
		first, err := g.follower.Once(o, posted.Seq)
		if err != nil || !first {
			return err
		}
		now, err := turnByNumber(o, u.n)
		if err != nil || now.n == 0 || now.state != u.state { // it has ended meanwhile
			return err
		}
		return g.apply(o, now, e, f)
	}, nil
}

// seenStep is how often the gateway records that it has heard from an agent.
const seenStep = 24 * time.Hour

// apply stores an effect.
func (g *Gateway) apply(o *gateway.Op, u turn, e endpoint, f effect) error {
	if time.Duration(o.Now-e.seen) > seenStep {
		e.seen = o.Now
		if err := updateEndpoint(o.ExtTx, e); err != nil {
			return err
		}
	}
	if f.answer.Envelope() != nil {
		if _, err := o.Append(f.answer, thread.Terms{}); gateway.Refused(err) {
			return nil // for example, the thread has ended in the meantime
		} else if err != nil {
			return err
		}
	}
	t, err := taskByNumber(o, u.task)
	if err != nil {
		return err
	}
	switch {
	case f.ends != nil:
		return g.finish(o, t, u, *f.ends)
	case f.works:
		u.state, u.accepted = accepted, o.Now
		if err := updateTurn(o.ExtTx, u); err != nil {
			return err
		}
		o.Then(g.wakeTurns)
		if err := t.setStatus(o, wire.Working, nil, 0); err != nil {
			return err
		}
		return g.save(o, t)
	}
	return nil
}

// effectOf returns what an opened envelope in the thread of a turn leads to.
func (g *Gateway) effectOf(u turn, e endpoint, opened *envelope.Envelope) (f effect, err error) {
	switch opened.Type {
	case envelope.TypeOffer:
		return g.effectOfOffer(u, e, opened)
	case envelope.TypeResult:
		out := resultOf(opened)
		f.ends = &out
	case envelope.TypeError:
		out := failure(wire.Failed, cmp.Or(opened.PayloadString("message"), "The agent failed."))
		switch envelope.AgentCode(opened.PayloadString("code")) {
		case envelope.AgentInvalidRequest, envelope.AgentIntentNotSupported, envelope.AgentInsufficientBudget,
			envelope.AgentCode(envelope.CodeRateLimited):
			out.state = wire.Rejected
		}
		f.ends = &out
	}
	return f, nil
}

// effectOfOffer returns what an OFFER leads to. It is accepted if it costs nothing. Otherwise the REQUEST is canceled,
// because the gateway would owe the money.
func (g *Gateway) effectOfOffer(u turn, e endpoint, opened *envelope.Envelope) (f effect, err error) {
	if u.state != sent {
		return f, nil
	}
	draft := envelope.Draft{Thread: u.id, Recipient: e.did}
	if offer, costs := gateway.OfferCosts(opened); costs {
		out := rejection(offer)
		f.ends = &out
		draft.Payload = envelope.Cancel{RequestID: u.id, Reason: "callers of A2A cannot pay; offer without a price"}
	} else {
		f.works = true
		now := g.Relay.Now()
		draft.Payload = envelope.Accept{RequestID: u.id, AcceptedAt: &now}
	}
	f.answer, err = g.Seal(draft)
	return f, err
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

// partOf returns the part that an output of an agent which knows no A2A becomes: a text, also if it is the only member
// text or content of an object; otherwise data.
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
