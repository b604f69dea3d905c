package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// This file does what the answers of agents with a DID lead to.

// Answer implements deliver.Mapping.
func (g *Gateway) Answer(ctx context.Context, d deliver.Delivery, e *envelope.Envelope) (f deliver.Effect, err error) {
	var j job
	if err := g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		j, err = jobByNumber(q, d.N)
		return err
	}); err != nil {
		return f, err
	}
	switch e.Type {
	case envelope.TypeOffer:
		price, out := j.offered(e)
		if out != nil {
			f.Cancel, f.Apply = out.message, g.ending(d, *out)
			return f, nil
		}
		f.Accept, f.Apply = true, func(o *gateway.Op) error { return g.accepted(o, d, price) }
	case envelope.TypeResult:
		f.Apply = g.ending(d, resultOf(e))
	case envelope.TypeError:
		f.Apply = g.ending(d, errorOf(e))
	}
	return f, nil
}

// offered returns the price of an OFFER that is accepted; otherwise how the job ends (B-11).
func (j job) offered(e *envelope.Envelope) (price credits.Amount, ends *outcome) {
	out := outcome{state: failure, code: codeBudget}
	offer, costs := deliver.Costs(e)
	switch {
	case costs && offer.Price == nil:
		out.code, out.message = codeError, "the agent's offer cannot be read"
		return 0, &out
	case !costs:
		return j.price, nil
	case offer.Price.Currency != currency:
		out.message = fmt.Sprintf("the agent asks for another currency than %s", currency)
		return 0, &out
	}
	price, err := credits.Parse(strconv.FormatFloat(offer.Price.Amount, 'f', -1, 64))
	switch {
	case err != nil:
		out.message = fmt.Sprintf("the price of the agent's offer is no amount of credits: %v", err)
	case price > j.price:
		out.message = fmt.Sprintf("the agent asks for %v, and its skill costs %v", price, j.price)
	default:
		return price, nil
	}
	return 0, &out
}

// accepted records that an OFFER was accepted: the agent has got the job.
func (g *Gateway) accepted(o *gateway.Op, d deliver.Delivery, price credits.Amount) error {
	r, err := requestOf(o, d.N)
	if err != nil {
		return err
	}
	r.state, r.price = deliver.Accepted, price
	if err := updateRequest(o.ExtTx, r); err != nil {
		return err
	}
	j, err := jobByNumber(o, d.N)
	if err != nil {
		return err
	}
	if err := g.heardFrom(o, j); err != nil {
		return err
	}
	g.dispatch(o, &j)
	o.Then(g.agents.Wake)
	return updateJob(o.ExtTx, j)
}

// ending returns a function that ends a job with what its agent has answered.
func (g *Gateway) ending(d deliver.Delivery, out outcome) func(*gateway.Op) error {
	return func(o *gateway.Op) error {
		r, err := requestOf(o, d.N)
		if err != nil {
			return err
		}
		j, err := jobByNumber(o, d.N)
		if err != nil {
			return err
		}
		if err := g.heardFrom(o, j); err != nil {
			return err
		}
		if r.state == deliver.Accepted {
			out.cost, out.costGiven, out.millis = r.price, true, (o.Now-j.dispatched)/int64(time.Millisecond)
		} else if out.state == success { // a RESULT without an OFFER takes the skill's price
			g.dispatch(o, &j)
		}
		_, err = g.end(o, j, out)
		return err
	}
}

// resultOf returns how a RESULT ends its job (B-12).
func resultOf(e *envelope.Envelope) outcome {
	broken := outcome{state: failure, code: codeError, message: "the agent's result cannot be read"}
	var result envelope.Result
	if e.DecodePayload(&result) != nil {
		return broken
	}
	if result.Status != "success" {
		broken.message = cut(gateway.CleanText("the agent's result has the status "+result.Status), maxMessage)
		return broken
	}
	output := result.Output
	switch {
	case len(output) == 0 || string(output) == "null":
		output = []byte("{}")
	case output[0] != '{':
		output = jsontext.Compact(map[string]json.RawMessage{"result": output})
	}
	canonical, err := envelope.ParseObject(output, max(len(output), maxData))
	switch {
	case err != nil:
		broken.message = "the agent's output cannot be read"
		return broken
	case len(canonical) > maxData:
		broken.message = fmt.Sprintf("the agent's output has %d bytes; at most %d are taken", len(canonical), maxData)
		return broken
	}
	return outcome{state: success, output: string(canonical)}
}

// errorOf returns how an ERROR ends its job (B-12). Its agent was heard from, so it is not offline.
func errorOf(e *envelope.Envelope) outcome {
	out := outcome{state: failure, code: codeError, untried: true,
		message: cut(gateway.CleanText(cmp.Or(e.PayloadString("message"), "the agent has failed")), maxMessage)}
	switch envelope.AgentCode(e.PayloadString("code")) {
	case envelope.AgentIntentNotSupported:
		out.code = codeSkill
	case envelope.AgentInsufficientBudget:
		out.code = codeBudget
	case envelope.AgentUnavailable:
		out.code = codeOffline
	}
	return out
}
