package hub_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// crash restarts the relay after its Updates have failed.
func (p party) crash() {
	p.t.Helper()
	p.Stop()
	p.Broken.Store(false)
	p.Run()
}

// wantOneTrace checks that a webhook was called with some messages, in this order, and each time with the trace that
// the sender knows.
func (p party) wantOneTrace(h *hook, want string) {
	p.t.Helper()
	if got := h.texts(); got != want {
		p.t.Errorf("the webhook has got %q, want %q", got, want)
	}
	traces := map[string]string{}
	for _, row := range p.history(p.alice, "") {
		traces[row["envelope"].(object)["original_text"].(string)] = row["trace_id"].(string)
	}
	for _, c := range h.seen() {
		if c.trace == "" || c.trace != traces[c.text] || c.header.Get("Idempotency-Key") != c.trace {
			p.t.Errorf("a call for %s has the trace %s, the sender knows %s", c.text, c.trace, traces[c.text])
		}
	}
}

// An attempt that a restart cuts off is repeated with the same trace. G-17: the others follow in their order.
func TestRestartDuringAttempt(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		_, hook := p.registerHook(carol, func(w http.ResponseWriter, c hookCall) { <-c.ctx.Done() })
		var answers []<-chan answer
		for _, text := range []string{"a", "b", "c"} {
			answers = append(answers, p.sendLater(p.alice, alice, carol, text))
			time.Sleep(time.Second)
		}
		p.Stop()
		for _, a := range answers { // they are answered although the relay stops
			if a := p.want(<-a, 202, ""); a.text("state") != "queued" {
				t.Errorf("a sender has %v", a)
			}
		}
		hook.answerWith(nil)
		p.Run()
		time.Sleep(time.Second)
		p.wantOneTrace(hook, "a a b c")
		p.wantStates("after the restart", p.alice, "a delivered, b delivered, c delivered")
	})
}

// The times between attempts continue after a restart.
func TestRestartBetweenAttempts(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		_, hook := p.registerHook(carol, func(w http.ResponseWriter, _ hookCall) {
			w.Header().Set("Retry-After", "600")
			w.WriteHeader(503)
		})
		p.send(p.alice, alice, carol, "a")
		p.sendLater(p.alice, alice, carol, "b")
		time.Sleep(time.Minute)
		p.Restart()
		time.Sleep(530 * time.Second)
		p.wantOneTrace(hook, "a")
		hook.answerWith(nil)
		time.Sleep(11 * time.Second)
		p.wantOneTrace(hook, "a a b")
	})
}

// A crash between the answer of a webhook and its record: the attempt is repeated with the same trace.
func TestCrashAfterWebhookAnswer(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		_, hook := p.registerHook(carol, func(w http.ResponseWriter, c hookCall) {
			p.Broken.Store(true)
			status(200, `{"status":"ok"}`)(w, c)
		})
		p.want(p.send(p.alice, alice, carol, "a"), 202, "") // it is not known whether it was delivered
		p.wantStates("before the crash", p.alice, "a queued")
		hook.answerWith(nil)
		p.crash()
		time.Sleep(time.Second)
		p.wantOneTrace(hook, "a a")
		p.wantStates("after the crash", p.alice, "a delivered")
	})
}

// A crash between the frame of a message and its record: the message comes again, with the same id and trace.
func TestCrashAfterFrame(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		p.tell("a", "b")
		first := p.follow(p.bob, nil)
		first.wantTexts("at first", "a b")
		time.Sleep(5 * time.Minute)
		first.close()
		synctest.Wait()
		p.tell("c", "d")
		p.Broken.Store(true)
		first = p.follow(p.bob, nil)
		first.wantTexts("before the crash", "c d")
		p.crash()
		p.wantStates("after the crash", p.alice, "a sent, b sent, c queued, d queued")
		second := p.follow(p.bob, nil)
		second.wantTexts("after the crash", "c d")
		if a, b := fmt.Sprint(first.events()), fmt.Sprint(second.events()); a != b {
			t.Errorf("the messages were %s and are %s", a, b)
		}
	})
}

// Streams continue after restarts: with Last-Event-ID each message comes once, and the ids grow.
func TestStreamThroughRestarts(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		last, texts := int64(0), ""
		want := ""
		for i := range 4 {
			s := p.follow(p.bob, since(last))
			p.tell(fmt.Sprint("a", i))
			time.Sleep(time.Second)
			s.close()
			synctest.Wait()
			p.tell(fmt.Sprint("b", i))
			p.Restart()
			want += fmt.Sprintf("a%d b%[1]d ", i)
			for _, e := range s.events() {
				texts += e.text() + " "
				if e.ID <= last {
					t.Errorf("id %d comes after %d", e.ID, last)
				}
				last = e.ID
			}
		}
		s := p.follow(p.bob, since(last))
		time.Sleep(time.Second)
		if texts += s.texts() + " "; texts != want {
			t.Errorf("the messages are %q, want %q", texts, want)
		}
	})
}
