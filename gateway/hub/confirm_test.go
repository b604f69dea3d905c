package hub_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/relay"
)

// ack confirms messages, and checks how many have changed.
func (f *fixture) ack(key string, body any, want int) {
	f.t.Helper()
	a := f.want(f.do(call{"POST", "/agent/ack", key, body, nil}), 200, "")
	if got := a.dataOf(); got != fmt.Sprintf(`{"acknowledged":%d}`, want) {
		f.t.Errorf("the answer to %v is %s, want %d", body, got, want)
	}
}

// H-14: only a confirmation makes a message delivered: an acknowledgement, Last-Event-ID, since with an id, or the
// webhook. Nothing else does.
func TestOnlyConfirmationDelivers(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		receive := map[string]func(){
			"stream": func() {
				s := p.follow(p.bob, nil)
				time.Sleep(time.Second)
				s.close()
			},
			"poll": func() { p.history(p.bob, "") },
		}
		trace := func() string { rows := p.history(p.alice, ""); return rows[len(rows)-1]["trace_id"].(string) }
		confirm := map[string]func(id int64){
			"up_to":         func(id int64) { p.ack(p.bob, object{"up_to": id}, 1) },
			"trace_ids":     func(id int64) { p.ack(p.bob, object{"trace_ids": []string{trace(), trace(), "unknown"}}, 1) },
			"since":         func(id int64) { p.history(p.bob, fmt.Sprint("?since=", id)) },
			"Last-Event-ID": func(id int64) { p.follow(p.bob, since(id)).close() },
		}
		for how, receive := range receive {
			for what, confirm := range confirm {
				text := how + "+" + what
				state := func() string { return p.states(p.alice)[text] }
				id := p.tell(text)[0]
				if state() != "queued" {
					t.Errorf("%s: at first it is %s", text, state())
				}
				receive()
				p.history(p.bob, fmt.Sprint("?since=", id-1)) // confirms the messages before
				p.history(p.bob, "?since=2000-01-01T00:00:00Z")
				p.history(p.alice, fmt.Sprint("?since=", id)) // is not the receiver
				malformed := call{"GET", "/agent/inbox", p.bob, nil, map[string]string{"Last-Event-ID": "-"}}
				p.want(p.do(malformed), 400, "ERR_VALIDATION")
				s := p.follow(p.bob, since(id-1))
				time.Sleep(2 * time.Minute)
				if s.texts() != text {
					t.Errorf("%s: the stream has %q", text, s.texts())
				}
				s.close()
				if state() != "sent" {
					t.Errorf("%s: after the message was handed out often, it is %s", text, state())
				}
				confirm(id)
				if state() != "delivered" {
					t.Errorf("%s: after a confirmation it is %s", text, state())
				}
				rows := p.history(p.alice, "")
				row := rows[len(rows)-1]
				at, _ := row["acknowledged_at"].(string)
				if !strings.HasPrefix(at, "2000-01-01T") || row["delivered_via"] != "sse" {
					t.Errorf("%s: the history has %v", text, row)
				}
			}
		}
	})
}

// H-14: delivered and failed never change. An acknowledgement with an error makes a message failed, with the
// receiver's code and detail.
func TestFinalStates(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		s := p.follow(p.bob, nil)
		ids := p.tell("a", "b", "c", "d")
		time.Sleep(time.Second)
		trace := func(i int) []string { return []string{s.events()[i].Trace} }
		refusal := object{"status": "error", "error_code": "NO_TIME", "detail": strings.Repeat("é", 1001), "other": 1}
		p.ack(p.bob, object{"trace_ids": trace(0)}, 1)
		p.ack(p.bob, object{"trace_ids": trace(1), "response": refusal}, 1)
		p.ack(p.bob, object{"trace_ids": trace(2), "response": object{"status": "error"}}, 1)
		p.ack(p.bob, object{"trace_ids": trace(3), "response": object{"status": "ok", "detail": "seen"}}, 1)
		const want = "a delivered, b failed, c failed, d delivered"
		p.wantStates("after the first confirmations", p.alice, want)
		for i := range 4 {
			p.ack(p.bob, object{"trace_ids": trace(i)}, 0)
			p.ack(p.bob, object{"trace_ids": trace(i), "response": refusal}, 0)
		}
		p.ack(p.bob, object{"up_to": ids[3]}, 0)
		p.follow(p.bob, since(ids[3])).wantTexts("after all", "")
		p.follow(p.bob, since(0)).wantTexts("from the beginning", "a d")
		p.wantStates("after all", p.alice, want)
		rows := p.history(p.alice, "")
		for i, want := range []object{
			{"error_code": nil, "detail": nil},
			{"error_code": "NO_TIME", "detail": strings.Repeat("é", 1000)},
			{"error_code": "ERR_AGENT_UNREACHABLE", "detail": nil},
			{"error_code": nil, "detail": nil},
		} {
			for name, value := range want {
				if rows[i][name] != value {
					t.Errorf("row %d has %v, want %v", i, rows[i], want)
				}
			}
		}
		if response, _ := rows[3]["receiver_response"].(object); response["status"] != "ok" || response["detail"] != "seen" {
			t.Errorf("the response is %v", rows[3])
		}
	})
}

// H-15: a confirmation touches neither messages of other agents, nor ids above N, nor what was never handed out.
func TestConfirmationTouchesNothingElse(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		other := p.register(carol)
		s, foreign := p.follow(p.bob, nil), p.follow(other, nil)
		var ids []int64
		for i := range 6 { // alternately to bob and carol
			to := []string{bob, carol}[i%2]
			p.send(p.alice, alice, to, fmt.Sprint(to[:1], i))
			ids = append(ids, int64(i+1))
		}
		p.send(p.bob, bob, carol, "c6")
		time.Sleep(time.Second)
		s.close()
		time.Sleep(time.Second)
		queued := p.tell("q")[0]
		const none = "b0 sent, b2 sent, b4 sent, c1 sent, c3 sent, c5 sent, q queued"
		p.wantStates("at first", p.alice, none)
		traces := []string{foreign.events()[0].Trace, foreign.events()[3].Trace, // from alice to carol, and from bob to carol
			p.history(p.alice, "")[6]["trace_id"].(string), // never handed out
			"00000000-0000-4000-8000-000000000000", "", "' OR 1=1 --"}
		p.ack(p.bob, object{"trace_ids": traces}, 0)
		p.ack(p.alice, object{"trace_ids": []string{s.events()[0].Trace}}, 0) // alice is the sender
		p.ack(p.alice, object{"up_to": 1 << 40}, 0)
		p.ack(p.bob, object{"up_to": 0}, 0)
		p.wantStates("after what touches nothing", p.alice, none)
		p.ack(p.bob, object{"up_to": ids[2]}, 2)
		p.wantStates("after up_to 3", p.alice, "b0 delivered, b2 delivered, b4 sent, c1 sent, c3 sent, c5 sent, q queued")
		p.history(other, fmt.Sprint("?limit=1&since=", ids[3]))
		p.wantStates("after since 4", p.alice, "b0 delivered, b2 delivered, b4 sent, c1 delivered, c3 delivered, c5 sent, "+
			"q queued")
		p.follow(other, since(ids[5])).close()
		p.wantStates("after Last-Event-ID 6", p.alice, "b0 delivered, b2 delivered, b4 sent, c1 delivered, c3 delivered, "+
			"c5 delivered, q queued")
		p.ack(p.bob, object{"up_to": queued + 100}, 1)
		p.wantStates("after a large number", p.alice, "b0 delivered, b2 delivered, b4 delivered, c1 delivered, "+
			"c3 delivered, c5 delivered, q queued")
		if state := p.states(other)["c6"]; state != "sent" {
			t.Errorf("the message from bob to carol is %s", state)
		}
	})
}

// slowStore delays one Update by a second.
type slowStore struct {
	relay.Extender
	next *atomic.Bool
}

func (s slowStore) Update(ctx context.Context, f func(relay.StoreTx) error) (time.Duration, error) {
	if s.next.Swap(false) {
		time.Sleep(time.Second)
	}
	return s.Extender.Update(ctx, f)
}

// A message that was handed out counts as received. A client may confirm a message before the hub has recorded its
// frame.
func TestConfirmationBeforeFrameIsRecorded(t *testing.T) {
	t.Parallel()
	var slow atomic.Bool
	inParty(t, func(t *testing.T, p party) {
		for what, confirm := range map[string]func(event){
			"trace_ids": func(e event) { p.ack(p.bob, object{"trace_ids": []string{e.Trace}}, 1) },
			"up_to":     func(e event) { p.ack(p.bob, object{"up_to": e.ID}, 1) },
			"since":     func(e event) { p.history(p.bob, fmt.Sprint("?since=", e.ID)) },
		} {
			p.tell(what)
			slow.Store(true)
			s := p.follow(p.bob, nil)
			synctest.Wait()
			confirm(s.events()[0])
			if state := p.states(p.alice)[what]; state != "delivered" {
				t.Errorf("after a confirmation by %s the message is %s", what, state)
			}
			s.close()
			synctest.Wait()
		}
	}, func(f *fixture) {
		f.Wrap = func(s relay.Extender) relay.Extender { return slowStore{s, &slow} }
	})
}

// A confirmation of many messages is complete, although it takes several transactions.
func TestConfirmationOfMany(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		const many = 240
		p.queue(alice, bob, many, 100)
		s := p.follow(p.bob, nil)
		time.Sleep(5 * time.Second) // for the pace
		synctest.Wait()
		var traces []string
		for _, e := range s.events() {
			traces = append(traces, e.Trace)
		}
		p.ack(p.bob, object{"trace_ids": traces[:120]}, 120)
		p.ack(p.bob, object{"up_to": 1000}, many-120)
		if n := len(p.history(p.bob, "?since=1000")); n != 0 {
			t.Errorf("%d rows", n)
		}
		rows := p.history(p.alice, "")
		for _, row := range rows {
			if row["state"] != "delivered" {
				t.Errorf("%v is %v", row["id"], row["state"])
			}
		}
		if len(rows) != many {
			t.Errorf("%d messages are in the history, want %d", len(rows), many)
		}
	})
}

// No operation hands out or confirms so many messages that posts wait for it long.
func TestOperationsAreSmall(t *testing.T) {
	t.Parallel()
	var most atomic.Int64
	f := startLocal(t, func(f *fixture) {
		f.Wrap = func(s relay.Extender) relay.Extender { return countingStore{s, &most} }
	})
	key := f.register("a@b")
	const many = 70
	queue := func() { f.queue("a@b", "a@b", many, 100) }
	queue()
	f.history(key, "")
	f.ack(key, object{"up_to": 1 << 40}, many)
	queue()
	f.open(key, nil).texts(many)
	var traces []string
	for _, row := range f.history(key, "") {
		traces = append(traces, row["trace_id"].(string))
	}
	f.ack(key, object{"trace_ids": traces}, many)
	if n := most.Load(); n != 50 {
		t.Errorf("an operation changes %d messages, want at most 50", n)
	}
}

// countingStore remembers how many deliveries one Update has changed at most.
type countingStore struct {
	relay.Extender
	most *atomic.Int64
}

func (s countingStore) Update(ctx context.Context, f func(relay.StoreTx) error) (time.Duration, error) {
	return s.Extender.Update(ctx, func(tx relay.StoreTx) error {
		changed := countingTx{StoreTx: tx}
		defer func() { s.most.Store(max(s.most.Load(), changed.n)) }()
		return f(&changed)
	})
}

type countingTx struct {
	relay.StoreTx
	n int64
}

func (t *countingTx) Exec(text string, args ...any) (int64, error) {
	if strings.HasPrefix(text, "UPDATE hub_delivery ") {
		t.n++
	}
	return t.StoreTx.Exec(text, args...)
}

// The body of an acknowledgement is checked. A refused one changes nothing.
func TestMalformedAcknowledgements(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		s := p.follow(p.bob, nil)
		p.tell("a")
		s.wantTexts("the stream", "a")
		traces := func(n int) string {
			return `{"trace_ids":["` + strings.Repeat(s.events()[0].Trace+`","`, n-1) + s.events()[0].Trace + `"]}`
		}
		for _, body := range []string{``, `[]`, `{}`, `{"up_to":null}`, `{"up_to":"1"}`, `{"up_to":1.5}`, `{"up_to":-1}`,
			`{"up_to":1e300}`,
			`{"trace_ids":[]}`, `{"trace_ids":null}`, `{"trace_ids":"a"}`, `{"trace_ids":[1]}`, traces(1001),
			`{"up_to":1,"trace_ids":["a"]}`, `{"up_to":1,"response":null}`, `{"up_to":1,"response":{}}`,
			`{"up_to":1,"response":"ok"}`,
			`{"up_to":1,"response":{"status":"later"}}`, `{"up_to":1,"up_to":1}`} {
			p.want(p.do(call{"POST", "/agent/ack", p.bob, body, nil}), 400, "ERR_VALIDATION")
		}
		p.want(p.do(call{"POST", "/agent/ack", "", `{"up_to":1}`, nil}), 401, "ERR_UNAUTHORIZED")
		p.want(p.do(call{"POST", "/agent/ack", p.Operator, `{"up_to":1}`, nil}), 403, "ERR_FORBIDDEN")
		p.wantStates("after that", p.alice, "a sent")
		p.ack(p.bob, traces(1000), 1)
	})
}
