package channel_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/storetest/engine"
	"github.com/agora-relay/agora/thread"
)

// C-18: the agent's answers by callback and by thread reach the service in order, unchanged.
func TestAnswersReachTheService(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		h := o.request()
		f.must(o.send(h, envelope.Offer{RequestID: h.envelope.ID}))
		synctest.Wait()
		raw := `{ "type":"status", "status":"reading…",  "n":1.0 }`
		f.want(f.post(h.Callback, raw), 200, "")
		f.want(f.post(h.Callback, message("by callback")), 200, "")
		f.must(o.send(h, envelope.Result{RequestID: h.envelope.ID, Status: "success", Output: []byte(`"by thread"`)}))
		synctest.Wait()
		f.want(f.post(h.Callback, message("after the thread")), 200, "")
		s.wantEvents("at the end", processing, raw, `{"content":"by callback","type":"message"}`, said("by thread"), idle,
			`{"content":"after the thread","type":"message"}`)
		ids := map[string]bool{}
		for _, c := range s.calls() {
			if c.path != "/callback/m1" || ids[c.id] || !strings.HasPrefix(c.id, "msg_") {
				t.Errorf("the call %+v", c)
			}
			ids[c.id] = true
		}
	})
}

// A RESULT has a text, a content, or a list of events.
func TestOutputs(t *testing.T) {
	engine.OnlySQLite(t, "it maps many answers; a smaller test stores one of each kind")
	for output, want := range map[string][]string{
		`"a text"`:              {said("a text")},
		`{"content":"a text"}`:  {said("a text")},
		`{"events":[]}`:         {},
		`{"other":1}`:           {},
		`{"content":"","x":[]}`: {`{"code":"bad_result","message":"an event of the agent's result is not valid: content: must have 1 to 32768 bytes of UTF-8, and has 0","type":"error"}`},
		`{"events":[{"type":"status","status":"a"},{"type":"message","content":"b","extra":1}],"content":"c"}`: {
			`{"status":"a","type":"status"}`, `{"content":"b","extra":1,"type":"message"}`},
		`{"events":{}}`: {`{"code":"bad_result","message":"output.events of the agent's result is not a list of at most 100 events","type":"error"}`},
		`{"events":[{"type":"message","content":"b"},1,{"type":"message","content":"c"}]}`: {said("b"),
			`{"code":"bad_result","message":"an event of the agent's result is not valid: the body must be one JSON object","type":"error"}`},
		`{"events":[` + strings.Repeat("0,", 40_000) + `0]}`: {
			`{"code":"bad_result","message":"output.events of the agent's result is not a list of at most 100 events","type":"error"}`},
	} {
		inBubble(t, func(t *testing.T, f *fixture) {
			o, s := f.owner(t), newService(f)
			f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
			h := o.request()
			f.must(o.send(h, envelope.Offer{RequestID: h.envelope.ID, Price: &envelope.Price{Currency: "USD"}}))
			synctest.Wait()
			f.must(o.send(h, envelope.Result{RequestID: h.envelope.ID, Status: "success", Output: []byte(output)}))
			s.wantEvents(output, append(append([]string{processing}, want...), idle)...)
		})
	}
}

// An ERROR of the agent sends an error event, and then idle.
func TestAgentFails(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		h := o.request()
		f.must(o.send(h, envelope.Failure{RequestID: h.envelope.ID, Code: "TIRED", Message: "not today"}))
		s.wantEvents("ERROR", `{"code":"TIRED","message":"not today","type":"error"}`, idle)
	})
}

// C-31: an OFFER with a price is cancelled, and sends an error event.
func TestPricedOffer(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		h := o.request()
		f.must(o.send(h, envelope.Offer{RequestID: h.envelope.ID, Price: &envelope.Price{Amount: 0.01, Currency: "USD"}}))
		synctest.Wait()
		s.wantEvents("a priced OFFER", `{"code":"price","message":"the agent asks for a price; deliveries to an inbox are not paid","type":"error"}`)
		mail := o.mail()
		if last := mail[len(mail)-1]; last.Type != envelope.TypeCancel || last.Thread != h.envelope.ID {
			t.Errorf("the last envelope is %s", last.Type)
		}
		f.wantThread(h, thread.Failed)
	})
}

// wantThread checks the state of the thread of a delivery.
func (f *fixture) wantThread(h handed, want thread.State) {
	f.t.Helper()
	v, err := f.Relay.Thread(f.t.Context(), relay.Peer{Local: true}, thread.Key{Client: f.Key.DID(), ID: h.envelope.ID})
	if err != nil || v.State != want {
		f.t.Errorf("the thread is %v, %v; want %v", v.State, err, want)
	}
}

// C-24: a lifecycle that is refused with 400 costs nothing.
func TestServiceWithoutLifecycle(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		for _, refusal := range []int{400, 401, 403, 404, 410, 422, 429} {
			s.answerWith(func(_, body string) int {
				return map[bool]int{true: refusal, false: 200}[strings.Contains(body, "lifecycle")]
			})
			id := fmt.Sprint("m", refusal)
			f.want(s.deliver(o.url, s.body(id, "hello")), 200, "")
			all := o.requests()
			h := all[len(all)-1]
			for _, event := range []object{{"type": "lifecycle", "status": "processing"}, message(id),
				{"type": "lifecycle", "status": "idle"}, message("again")} {
				f.want(f.post(h.Callback, event), 200, "")
			}
			calls := s.calls()
			if last := calls[len(calls)-1]; len(calls)%4 != 0 || last.path != "/callback/"+id || !strings.Contains(last.body, "again") {
				t.Errorf("with %d the last of %d calls is %+v", refusal, len(calls), last)
			}
		}
	})
}

// 401, 403, 404 or 410 to another event ends the callback. Another 4xx ends the event.
func TestServiceRefusesEvents(t *testing.T) {
	for refusal, ends := range map[int]bool{400: false, 401: true, 403: true, 404: true, 410: true, 422: false} {
		inBubble(t, func(t *testing.T, f *fixture) {
			o, s := f.owner(t), newService(f)
			s.answerWith(func(_, body string) int {
				return map[bool]int{true: refusal, false: 200}[strings.Contains(body, "bad")]
			})
			f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
			h := o.request()
			f.want(f.post(h.Callback, message("bad")), 200, "")
			synctest.Wait()
			after := f.post(h.Callback, message("after"))
			if ends {
				f.want(after, 410, "GONE")
			} else {
				f.want(after, 200, "")
			}
			if n := len(s.calls()); ends != (n == 1) {
				t.Errorf("with %d the service got %d events", refusal, n)
			}
			if f.want(s.deliver(o.url, s.body("m1", "hello")), 200, ""); ends { // a repeated delivery has a new callback
				f.want(f.post(h.Callback, message("again")), 200, "")
			}
		})
	}
}

// C-25: events survive a restart and an hour without the service.
func TestServiceIsDown(t *testing.T) {
	racesInBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		h := o.request()
		s.answerWith(func(string, string) int { return 502 })
		var want []string
		for i := range 5 {
			want = append(want, said(fmt.Sprint(i)))
			f.want(f.post(h.Callback, said(fmt.Sprint(i))), 200, "")
		}
		f.pass(time.Hour)
		f.Restart()
		first := s.calls()[0]
		s.mu.Lock()
		s.got = nil
		s.mu.Unlock()
		s.answerWith(nil)
		f.pass(time.Hour)
		s.wantEvents("when the service is back", want...)
		if again := s.calls()[0]; again.id != first.id || again.body != first.body {
			t.Errorf("%+v comes again as %+v", first, again)
		}
	})
}

// C-3: services that never answer take only the share of their inbox's owner. Other owners and channels do not wait.
func TestServicesThatHang(t *testing.T) {
	racesInBubble(t, func(t *testing.T, f *fixture) {
		hanging, o, quick := f.owner(t), f.owner(t), newService(f)
		var services []*service // each has its own host
		for i := range 40 {
			s := newService(f)
			s.hangs, s.base = true, strings.Replace(s.base, "127.0.0.1", fmt.Sprint("127.0.1.", i), 1)
			services = append(services, s)
			f.want(s.deliver(hanging.url, s.body(fmt.Sprint("m", i), "hello")), 200, "")
		}
		for _, h := range hanging.requests() {
			f.want(f.post(h.Callback, message("x")), 200, "")
		}
		calls := 0
		for _, s := range services {
			calls += len(s.calls())
		}
		if calls != 8 {
			t.Errorf("%d calls of hanging services at a time, want 8", calls)
		}
		f.want(quick.deliver(o.url, quick.body("m", "hello")), 200, "")
		f.want(f.post(o.request().Callback, said("x")), 200, "")
		quick.wantEvents("at once", said("x"))
	}, func(f *fixture) {
		exception, err := gateway.ParseException("127.0.1.0/24")
		f.must(err)
		f.Outgoing.Exceptions = append(f.Outgoing.Exceptions, exception)
		f.Outgoing.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			return gatetest.DialPipe(ctx, network, "127.0.0.1:"+port)
		}
	})
}

// C-27: a plain RESULT sends nothing. C-28: a RESULT of another DID sends nothing.
func TestForeignAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		h := o.request()
		plain := func(d *envelope.Draft) { d.Seal = false }
		f.must(o.send(h, envelope.Offer{RequestID: h.envelope.ID}, plain))
		s.wantEvents("after a plain OFFER")
		f.must(o.send(h, envelope.Offer{RequestID: h.envelope.ID}))
		s.wantEvents("after a sealed OFFER", processing)
		result := envelope.Result{RequestID: h.envelope.ID, Status: "success", Output: []byte(`"x"`)}
		eve := f.NewAgent()
		other := &owner{Agent: eve, f: f, key: eve.Key}
		if err := other.send(h, result); err == nil {
			t.Error("the relay takes a RESULT of another DID in this thread")
		}
		// A stranger opens its own thread with the same id, and says there that it has failed.
		for i, p := range []envelope.Payload{envelope.Request{RequestID: h.envelope.ID, Intent: "x"},
			envelope.Failure{RequestID: h.envelope.ID, Code: "X", Message: "x"}} {
			f.must(other.send(h, p, func(d *envelope.Draft) { d.ID = fmt.Sprint("foreign", i) }))
		}
		s.wantEvents("after foreign answers", processing)
		f.must(o.send(h, result, plain))
		s.wantEvents("after a plain RESULT", processing)
	})
}

// C-29: a silent agent makes one undelivered event.
func TestSilentAgent(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		f.want(s.deliver(o.url, s.body("m2", "hello")), 200, "")
		all := o.requests()
		f.want(f.post(all[1].Callback, message("here")), 200, "")
		f.pass(23*time.Hour + 55*time.Minute)
		s.wantEvents("before", `{"content":"here","type":"message"}`)
		f.pass(5 * time.Minute)
		undelivered := `{"code":"undelivered","message":"the agent has not answered for 24 hours","type":"error"}`
		s.wantEvents("after a day", `{"content":"here","type":"message"}`, undelivered)
		f.want(f.post(all[0].Callback, message("late")), 410, "GONE")
		f.pass(48 * time.Hour)
		s.wantEvents("after three days", `{"content":"here","type":"message"}`, undelivered)
		f.pass(8 * 24 * time.Hour)
		f.want(f.post(all[0].Callback, message("forgotten")), 404, "NOT_FOUND")
	})
}

// Effects in a thread happen once, also if the relay restarts at any time.
func TestThreadIsFollowedAfterRestart(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		h := o.request()
		f.must(o.send(h, envelope.Offer{RequestID: h.envelope.ID}))
		f.Restart()
		synctest.Wait()
		s.wantEvents("after the OFFER", processing)
		f.must(o.send(h, envelope.Result{RequestID: h.envelope.ID, Status: "success", Output: []byte(`"x"`)}))
		f.Restart()
		f.Restart()
		synctest.Wait()
		once := map[string]bool{} // an event that was being sent at the stop is sent again, with the same id
		s.mu.Lock()
		s.got = slices.DeleteFunc(s.got, func(c serviceCall) bool {
			seen := once[c.id]
			once[c.id] = true
			return seen
		})
		s.mu.Unlock()
		s.wantEvents("after the RESULT", processing, said("x"), idle)
		f.wantThread(h, thread.Completed)
	})
}

// The thread stays pending for 24 hours, and active for 24 hours. It makes no notices when it times out.
func TestThreadTimes(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		f.want(s.deliver(o.url, s.body("m2", "hello")), 200, "")
		all := o.requests()
		f.pass(23 * time.Hour)
		f.wantThread(all[0], thread.Pending)
		f.must(o.send(all[0], envelope.Offer{RequestID: all[0].envelope.ID}))
		synctest.Wait()
		f.pass(23 * time.Hour)
		f.wantThread(all[0], thread.Active)
		f.must(o.send(all[0], envelope.Result{RequestID: all[0].envelope.ID, Status: "success", Output: []byte(`"late"`)}))
		synctest.Wait()
		got := s.calls()
		if last := got[len(got)-1]; last.body != idle {
			t.Errorf("the last event is %s", last.body)
		}
		for _, m := range o.mail() {
			if m.Type == envelope.TypeError {
				t.Errorf("the owner got a notice: %s", m.Payload)
			}
		}
	})
}
