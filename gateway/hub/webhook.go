package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// courier calls the webhooks of receivers (docs/HUB.md, "Webhooks"). A lane is a receiver, and a job is a message.
type courier struct {
	h       *Hub
	settled *sync.Map // from the number of a job to the op with which Settle has run, for Settled
}

// Target implements gateway.Courier. While the receiver has a stream, the stream gets the messages.
func (c courier) Target(ctx context.Context, j gateway.Job) (url string, p gateway.Plan, err error) {
	if c.h.streams.has(j.Lane) {
		return "", gateway.Hold, nil
	}
	var a agent
	err = c.h.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		a, err = agentByNumber(q, j.Lane)
		return err
	})
	if err != nil {
		return "", gateway.Hold, err
	}
	if !a.live() || len(a.endpoint) == 0 {
		return "", gateway.Drop, nil
	}
	url, err = c.h.endpoint(a)
	return url, gateway.Send, err
}

// Call implements gateway.Courier.
func (c courier) Call(ctx context.Context, j gateway.Job) (gateway.Call, gateway.Plan, error) {
	var m message
	var d delivery
	if err := c.h.Relay.View(ctx, self, func(q relay.Querier) error {
		return q.Query(func(scan gateway.Scanner) error { return scan(append(m.fields(), d.fields()...)...) },
			"SELECT "+joinedColumns+" FROM hub_delivery d JOIN hub_message m ON m.n = d.message WHERE d.message = ?", j.Ref)
	}); err != nil {
		return gateway.Call{}, gateway.Hold, err
	}
	if m.n == 0 || d.state != queued {
		return gateway.Call{}, gateway.Drop, nil
	}
	if c.h.streams.has(j.Lane) {
		return gateway.Call{}, gateway.Hold, nil
	}
	return gateway.Call{ID: m.trace, Body: []byte(`{"envelope":` + m.envelope + `}`), Wait: webhookWait,
		Header: http.Header{"Chorus-Trace-Id": {m.trace}}}, gateway.Send, nil
}

// judged is what an attempt to call a webhook means for its message.
type judged struct {
	reply    reply  // of the webhook; zero: it gave none that has the form of the protocol
	reached  bool   // the receiver may have got the message
	answered bool   // the webhook has answered with a 2xx status or a reply
	code     string // why the attempt failed, for the sender
	detail   string
}

// Judge implements gateway.Courier.
func (courier) Judge(_ gateway.Job, r gateway.Response, err error) gateway.Verdict {
	if err != nil {
		data := judged{code: failureCode(err), detail: err.Error(), reached: errors.Is(err, gateway.Timeout)}
		v := gateway.Verdict{Outcome: gateway.Dead, Failure: data.detail, Data: data}
		if gateway.Retryable(r, err) {
			v.Outcome = gateway.Retry
		}
		return v
	}
	said, isReply := parseReply(r.Body)
	isReply = isReply && (r.Status < 300 || r.Status > 399) // a redirection is a failure, whatever its body is
	data := judged{detail: fmt.Sprintf("HTTP %d", r.Status), code: codeUnreachable, reached: true}
	v := gateway.Verdict{Outcome: gateway.Dead, Failure: data.detail, RetryAfter: r.RetryAfter}
	success := r.Status >= 200 && r.Status < 300
	data.answered = success || isReply
	switch {
	case isReply && said.Status == "error":
		data.reply = said
		if said.Code != "" {
			data.code = said.Code
		}
		data.detail = said.Detail
		if r.Status >= 500 && gateway.Retryable(r, nil) {
			v.Outcome = gateway.Retry
		}
	case success:
		v.Outcome, data.reply = gateway.Done, said
	case gateway.Retryable(r, nil):
		v.Outcome = gateway.Retry
	}
	v.Data = data
	return v
}

// failureCode returns the code of the hub for a gateway.Failure.
func failureCode(err error) string {
	switch {
	case errors.Is(err, gateway.Blocked):
		return codeBlocked
	case errors.Is(err, gateway.Timeout):
		return codeTimeout
	}
	return codeUnreachable
}

// Settle implements gateway.Courier. If a stream or a poll has handed out the message in the meantime, only a
// confirmation by the webhook changes its delivery.
func (c courier) Settle(tx relay.ExtTx, j gateway.Job, v gateway.Verdict) error {
	o := c.h.newOp(c.h.NewOp(tx))
	c.settled.Store(j.N, o) // if Settle is run twice, this replaces the op of the first run
	d, err := deliveryOf(o, j.Ref)
	if err != nil || d.message == 0 {
		return err
	}
	said, tried := v.Data.(judged)
	before := d.state
	switch {
	case before.final() || before == sent && v.Outcome != gateway.Done:
		return nil
	case v.Outcome == gateway.Done:
		said.reply.apply(&d, codeUnreachable)
		if d.result == "" {
			d.result = result{Response: []byte("null")}.text()
		}
		d.via, d.handed, d.acked = viaWebhook, o.Now, o.Now
	default:
		known := d.decodeResult()
		if tried {
			known = result{Code: said.code, Detail: said.detail}
			if said.reply.Status != "" {
				known.Response = jsontext.Compact(said.reply)
			}
			if said.reached {
				d.via, d.handed = viaWebhook, o.Now
			}
		} else if known.Code == "" { // it became too old before the first attempt
			known = result{Code: codeTimeout, Detail: "the message was queued for 24 hours"}
		}
		if v.Outcome == gateway.Dead {
			d.state = failed
		}
		d.result = known.text()
	}
	if said.answered {
		o.Then(func() { c.h.directory.reply(d.receiver, o.Now) })
		if err := changeUsage(tx, d.receiver, func(u *usage) { u.replied, u.used = o.Now, o.Now }); err != nil {
			return err
		}
	}
	return o.change(before, d)
}

// Settled implements gateway.Courier.
func (c courier) Settled(j gateway.Job, _ gateway.Verdict) {
	if o, ok := c.settled.LoadAndDelete(j.N); ok {
		o.(*op).Done()
	}
}
