package channel

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// This file takes the events of agents with an inbox, and sends them to the callbacks of the services.

// outToken returns the request of a token. Only the owner of the inbox has got the token. Errors: 404, errGone; 403 if the
// owner is banned.
func (g *Gateway) outToken(q relay.Querier, key string) (r request, err error) {
	h, found, err := gateway.FindKey(q, key, g.Relay.Now())
	if err != nil {
		return r, err
	}
	if found = found && h.Kind == gateway.Callback && h.Only == onlyOut; found {
		if r, err = requestByNumber(q, h.Owner); err != nil {
			return r, err
		}
	}
	if !found || r.n == 0 {
		return r, gateway.NotFound("there is no callback with this token")
	}
	i, err := inboxByNumber(q, r.inbox)
	switch {
	case err != nil:
	case !i.live() || r.ended != 0 || !g.Relay.Now().Before(time.Unix(0, r.created).Add(answerTime)):
		err = gateway.Gone("this token has expired, or its inbox was deleted, or the service no longer takes events")
	default:
		err = g.Relay.Gate().CheckAgent(i.owner)
	}
	return r, err
}

// name is the name of the request for AdmitCaller and for Idempotency-Keys.
func (r request) name() string { return "channel request " + decimal(r.n) }

// postOut is the handler of POST /out/{token}.
func (g *Gateway) postOut(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	key := mux.Vars(r)["token"]
	var answered request
	if err := g.Relay.View(r.Context(), from, func(q relay.Querier) (err error) {
		answered, err = g.outToken(q, key)
		return err
	}); err != nil {
		return err
	}
	if err := g.Relay.Gate().AdmitCaller(from, answered.name()); err != nil {
		return err
	}
	sent, body, err := g.ReadObject(w, r, from)
	if err != nil {
		return err
	}
	said, err := parseEvent(body)
	if err != nil {
		return err
	}
	said.body = string(sent) // the service gets the event unchanged
	repeat, given, err := gateway.ParseRepeat(r, "POST /channel/out/…", answered.name(), body)
	if err != nil {
		return err
	}
	admitted := onceFor(func(n int64) error { return g.forwarded.Take(n, g.Relay.Now) })
	reply, err := g.answers.Once(r.Context(), from, repeat, given, func(o *gateway.Op) (err error) {
		answered, err = g.outToken(o, key)
		return err
	}, func(o *gateway.Op) (gateway.Reply, error) {
		if err := admitted(answered.n); err != nil {
			return gateway.Reply{}, err
		}
		return gateway.NewReply(http.StatusOK, done{true}), g.forward(o, answered, said)
	})
	if err != nil {
		return err
	}
	return reply.Write(w)
}

// forward stores events that are to be sent to the service of a request.
func (g *Gateway) forward(o *gateway.Op, r request, all ...posted) error {
	r.answered = true
	for _, said := range all {
		out := outgoing{id: gateway.NewID("msg_"), request: r.n, lifecycle: said.typ == typeLifecycle, created: o.Now}
		r.idle = r.idle || out.lifecycle && said.status == lifecycleIdle
		var err error
		if out.n, err = gateway.Next(o.ExtTx, outCounter); err != nil {
			return err
		}
		out.body = g.Secrets.Encrypt(bodyPlace(out.n), []byte(said.body))
		if err := insertOut(o.ExtTx, out); err != nil {
			return err
		}
		if err := g.callbacks.Add(o.ExtTx, r.n, out.n); err != nil {
			return err
		}
	}
	o.Then(func() { g.callbacks.Wake(r.n) })
	return updateRequest(o.ExtTx, r)
}

// forwarder sends the events of agents to services. A lane is a request, and a job is an event.
type forwarder struct {
	g *Gateway
	// calls has, for each lane, what the present attempt sends. An outbox works on a lane in one goroutine at a time.
	calls *sync.Map
}

// forwarded is an event that is being sent.
type forwarded struct {
	owner     didkey.DID // of the inbox
	version   int64      // of the callback
	lifecycle bool
	ends      bool // the service has refused the callback
}

func newForwarder(g *Gateway) forwarder { return forwarder{g, new(sync.Map)} }

// Target implements gateway.Courier.
func (f forwarder) Target(ctx context.Context, j gateway.Job) (url string, p gateway.Plan, err error) {
	var r request
	var i inbox
	var out outgoing
	if err := f.g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		if r, err = requestByNumber(q, j.Lane); err != nil {
			return err
		}
		if i, err = inboxByNumber(q, r.inbox); err != nil {
			return err
		}
		out, err = outByNumber(q, j.Ref)
		return err
	}); err != nil {
		return "", gateway.Hold, err
	}
	if r.n == 0 || r.ended != 0 || out.n == 0 {
		return "", gateway.Drop, nil
	}
	f.calls.Store(j.Lane, forwarded{owner: i.owner, version: r.version, lifecycle: out.lifecycle})
	text, err := f.g.Secrets.Decrypt(callbackPlace(r.n), r.callback)
	return string(text), gateway.Send, err
}

// payer returns who pays for an attempt: the owner of the inbox.
func (f forwarder) payer(j gateway.Job) string {
	call, _ := f.calls.Load(j.Lane)
	data, _ := call.(forwarded)
	return string(data.owner)
}

// Call implements gateway.Courier.
func (f forwarder) Call(ctx context.Context, j gateway.Job) (gateway.Call, gateway.Plan, error) {
	var r request
	var out outgoing
	if err := f.g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		if r, err = requestByNumber(q, j.Lane); err != nil {
			return err
		}
		out, err = outByNumber(q, j.Ref)
		return err
	}); err != nil {
		return gateway.Call{}, gateway.Hold, err
	}
	call, _ := f.calls.Load(j.Lane)
	if data, _ := call.(forwarded); r.version != data.version { // it was replaced since Target, which wakes the lane
		return gateway.Call{}, gateway.Hold, nil
	}
	if r.ended != 0 || out.n == 0 {
		return gateway.Call{}, gateway.Drop, nil
	}
	body, err := f.g.Secrets.Decrypt(bodyPlace(out.n), out.body)
	return gateway.Call{ID: out.id, Body: body}, gateway.Send, err
}

// Judge implements gateway.Courier. A service of version 0.1 does not know lifecycle, so a refusal of it costs nothing
// (C-24). A service that refuses another event because of the callback will take none.
func (f forwarder) Judge(j gateway.Job, r gateway.Response, err error) gateway.Verdict {
	call, _ := f.calls.Load(j.Lane)
	data, _ := call.(forwarded)
	v := gateway.Judge(r, err)
	if refused := err == nil && r.Status >= 400 && r.Status <= 499; refused && data.lifecycle {
		v = gateway.Verdict{Outcome: gateway.Done}
	} else if refused {
		switch r.Status {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusGone:
			data.ends = true
		}
	}
	v.Data = data
	return v
}

// Settle implements gateway.Courier. A failure counts only if the request still has the callback that failed. Otherwise
// the event is sent again, to the new callback.
func (f forwarder) Settle(tx relay.ExtTx, j gateway.Job, v gateway.Verdict) error {
	data, tried := v.Data.(forwarded)
	if v.Outcome != gateway.Done && tried {
		r, err := requestByNumber(tx, j.Lane)
		if err != nil {
			return err
		}
		if r.n != 0 && r.version != data.version {
			f.calls.Delete(j.Lane) // so Settled logs nothing: the event will be sent again
			return f.g.callbacks.Restart(tx, j.N)
		}
		if r.n != 0 && data.ends {
			if err := f.g.end(tx, r); err != nil {
				return err
			}
		}
	}
	if v.Outcome == gateway.Retry {
		return nil
	}
	return gateway.Exec(tx, "DELETE FROM channel_out WHERE n = ?", j.Ref)
}

// end records that a service no longer takes the events of a request. Those that wait are dropped.
func (g *Gateway) end(tx relay.ExtTx, r request) error {
	r.ended = g.Relay.Now().UnixNano()
	if err := gateway.Exec(tx, "DELETE FROM channel_out WHERE request = ?", r.n); err != nil {
		return err
	}
	if err := g.callbacks.RemoveLane(tx, r.n); err != nil {
		return err
	}
	return updateRequest(tx, r)
}

// Settled implements gateway.Courier.
func (f forwarder) Settled(j gateway.Job, v gateway.Verdict) {
	_, known := f.calls.LoadAndDelete(j.Lane)
	if v.Outcome == gateway.Dead && (known || v.Data == nil) {
		f.g.Log.Warn("an event of an agent was not taken by its service", "delivery", fmt.Sprint(j.Lane), "failure", v.Failure)
	}
}
