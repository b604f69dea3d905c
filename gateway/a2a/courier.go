package a2a

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/hostname"
	"github.com/agora-relay/agora/relay"
)

// This file sends the events of tasks to the URLs of push configurations.

// queuePushes makes jobs of the new events of a task.
func (g *Gateway) queuePushes(o *gateway.Op, t task) error {
	idle, err := list(o, (*push).fields, "SELECT "+pushColumns+" FROM a2a_push WHERE task = ? AND done = until", t.n)
	for _, x := range idle {
		if err == nil {
			o.Then(func() { g.pushes.Wake(x.n) })
			err = g.queuePush(o.ExtTx, x)
		}
	}
	return err
}

// queuePush makes a job of the next events for a configuration that has none, and stores the row. Chunks of an artifact
// that wait are joined. What a job sends does not change, so a receiver can recognize a repeat. Events that are too old are
// left out, because their job would be dead at once.
func (g *Gateway) queuePush(tx relay.ExtTx, x push) error {
	events, _, err := eventsAfter(tx, x.task, x.done, g.Relay.Now().Add(-gateway.JobLife).UnixNano())
	if err != nil {
		return err
	}
	if n := joined(events); n > 0 {
		x.done, x.until = events[0].seq-1, events[n-1].seq
		if err := g.pushes.AddSince(tx, x.n, events[0].seq, time.Unix(0, events[0].at)); err != nil {
			return err
		}
	}
	return updatePush(tx, x)
}

// joined returns how many of the first events are chunks of one artifact. It is 1 for another event.
func joined(events []event) (n int) {
	for n < len(events) && (n == 0 || events[0].kind == artifact && events[n].artifact == events[0].artifact &&
		events[n].flags&appended != 0) {
		n++
	}
	return n
}

// courier sends the events of tasks. A lane is a push configuration. A job is the events that its row names.
type courier struct {
	g *Gateway
	// calls has, for each lane, what the present attempt uses. An outbox works on a lane in one goroutine at a time.
	calls *sync.Map
}

// pushing is what an attempt uses. It is the Data of a Verdict.
type pushing struct {
	version int64
	payer   string
	config  wire.Push
	limited string // the host, if the rate for anonymous callers holds
}

// Target implements gateway.Courier.
func (c courier) Target(ctx context.Context, j gateway.Job) (url string, p gateway.Plan, err error) {
	var x push
	var t task
	var live bool
	if err := c.g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		if x, err = pushByNumber(q, j.Lane); err != nil {
			return err
		}
		if t, err = taskByNumber(q, x.task); err != nil {
			return err
		}
		live, err = hasCaller(q, t)
		return err
	}); err != nil {
		return "", gateway.Hold, err
	}
	if !live {
		return "", gateway.Clear, nil
	}
	data := pushing{version: x.version, payer: t.payer}
	if data.config, err = c.g.configOf(x); err != nil {
		return "", gateway.Hold, err
	}
	if u, err := c.g.Outgoing.Check(data.config.URL); err == nil && t.caller == "" {
		data.limited = hostname.Of(u)
	}
	c.calls.Store(j.Lane, data)
	return data.config.URL, gateway.Send, nil
}

// hasCaller reports whether somebody can still see a task: it exists, and so do its endpoint and the key of its caller.
func hasCaller(q relay.Querier, t task) (bool, error) {
	if t.endpoint == 0 {
		return false, nil
	}
	e, err := endpointByNumber(q, t.endpoint)
	if err != nil || e.n == 0 || e.deleted != 0 || !strings.HasPrefix(t.caller, "k") {
		return e.n != 0 && e.deleted == 0, err
	}
	n, err := keyNumber(t.caller)
	if err != nil {
		return false, err
	}
	k, err := keyByNumber(q, n)
	return k.n != 0 && k.deleted == 0, err
}

// payer returns who pays for an attempt.
func (c courier) payer(j gateway.Job) string { return c.call(j).payer }

func (c courier) call(j gateway.Job) pushing {
	stored, _ := c.calls.Load(j.Lane)
	data, _ := stored.(pushing)
	return data
}

// Call implements gateway.Courier.
func (c courier) Call(ctx context.Context, j gateway.Job) (gateway.Call, gateway.Plan, error) {
	data := c.call(j)
	var x push
	var t task
	var body []byte
	if err := c.g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		if x, err = pushByNumber(q, j.Lane); err != nil || x.version != data.version {
			return err
		}
		if t, err = taskByNumber(q, x.task); err == nil {
			body, err = pushBody(q, t, x)
		}
		return err
	}); err != nil {
		return gateway.Call{}, gateway.Hold, err
	}
	if x.version != data.version { // it was replaced or deleted since Target, which wakes the lane
		return gateway.Call{}, gateway.Hold, nil
	}
	if len(body) == 0 {
		return gateway.Call{}, gateway.Clear, nil
	}
	if !c.admit(j, data) {
		return gateway.Call{}, gateway.Hold, nil
	}
	return gateway.Call{ID: fmt.Sprintf("%s.%d", t.id, j.Ref), Body: body, Header: pushHeader(data.config)}, gateway.Send, nil
}

// admit counts a push of an anonymous caller. If there were too many to its host, the lane is woken later.
func (c courier) admit(j gateway.Job, data pushing) bool {
	if data.limited == "" {
		return true
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(data.limited)) // never fails
	err := c.g.pushPosts.Take(int64(h.Sum64()), c.g.Relay.Now)
	if refused, ok := errors.AsType[*envelope.Error](err); ok {
		c.g.pushes.WakeAt(j.Lane, c.g.Relay.Now().Add(refused.RetryAfter))
	}
	return err == nil
}

// pushBody returns the Stream object of a job; empty: its events do not exist any more.
func pushBody(q relay.Querier, t task, x push) ([]byte, error) {
	events, _, err := eventsAfter(q, x.task, x.done, 0)
	if err != nil || t.n == 0 || len(events) == 0 {
		return nil, err
	}
	if first := events[0]; first.seq == x.begins {
		t.state, t.statusSeq, t.seq, t.turn, t.open = first.state, first.seq, first.seq, first.turn, true
		text, err := newText(q, t, view{})
		if err != nil {
			return nil, err
		}
		body, _, err := text.next(q, []byte(`{"task":`))
		return append(body, '}'), err
	}
	one := events[0]
	for _, e := range events[1:] {
		if e.seq <= x.until {
			one.parts += "," + e.parts
			one.flags |= e.flags & last
		}
	}
	c, err := contextByNumber(q, t.context)
	return []byte(names{c.name, t.id}.update(one)), err
}

// pushHeader returns the headers of a push.
func pushHeader(c wire.Push) http.Header {
	h := http.Header{}
	h.Set("Content-Type", wire.A2AType)
	if c.Token != "" {
		h.Set(wire.PushToken, c.Token)
		h.Set(wire.PushTokenX, c.Token)
	}
	if a := c.Authentication; a != nil {
		h.Set("Authorization", strings.TrimSuffix(a.Scheme+" "+a.Credentials, " "))
	}
	return h
}

// Judge implements gateway.Courier.
func (c courier) Judge(j gateway.Job, r gateway.Response, err error) gateway.Verdict {
	v := gateway.Judge(r, err)
	v.Data = c.call(j)
	return v
}

// Settle implements gateway.Courier. A failure counts only if the configuration is still the one that failed. After the
// job, the next events become one.
func (c courier) Settle(tx relay.ExtTx, j gateway.Job, v gateway.Verdict) error {
	x, err := pushByNumber(tx, j.Lane)
	if err != nil || x.n == 0 {
		return err
	}
	if data, tried := v.Data.(pushing); tried && v.Outcome != gateway.Done && x.version != data.version {
		return c.g.pushes.Restart(tx, j.N)
	}
	if v.Outcome == gateway.Retry {
		return nil
	}
	x.done = x.until
	return c.g.queuePush(tx, x)
}

// Settled implements gateway.Courier.
func (c courier) Settled(j gateway.Job, _ gateway.Verdict) { c.calls.Delete(j.Lane) }
