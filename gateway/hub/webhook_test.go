package hub_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const (
	alice = "alice@relay.example"
	bob   = "bob@relay.example"
	carol = "carol@relay.example"
)

// The request has the form that clients expect, and ids by which a receiver recognizes a repeat.
func TestWebhookRequest(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		_, hook := f.registerHook(bob, nil)
		a := f.send(key, alice, "bob", "你好 <&>")
		c := hook.seen()[0]
		const want = `{"envelope":{"chorus_version":"0.4","original_text":"你好 <&>","sender_culture":"en",` +
			`"sender_id":"alice@relay.example"}}`
		if c.body != want {
			t.Errorf("the body is %s, want %s", c.body, want)
		}
		for name, want := range map[string]string{"Content-Type": "application/json", "Idempotency-Key": a.text("trace_id"),
			"Chorus-Trace-Id": a.text("trace_id"), "User-Agent": "agora/test (+https://relay.example)"} {
			if got := c.header[name]; len(got) != 1 || got[0] != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	})
}

// H-28: webhooks of one receiver are called in order, one after the other, also if some attempts fail.
func TestWebhooksAreCalledInOrder(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		calls, running := 0, 0
		_, hook := f.registerHook(bob, func(w http.ResponseWriter, c hookCall) {
			calls++
			running++
			if running > 1 {
				t.Error("two calls are made at a time")
			}
			time.Sleep(time.Second)
			running--
			switch calls {
			case 1, 2, 4:
				w.WriteHeader(500)
			case 5:
				w.WriteHeader(404)
			}
		})
		_, other := f.registerHook(carol, nil)
		for _, text := range []string{"a", "b", "c", "d"} {
			f.sendLater(key, alice, "bob", text)
			synctest.Wait()
		}
		f.send(key, alice, "carol", "x")
		if other.texts() != "x" {
			t.Error("the webhook of another receiver has to wait")
		}
		time.Sleep(30 * time.Second)
		if got, want := hook.texts(), "a a a b b c d"; got != want {
			t.Errorf("the calls are %q, want %q", got, want)
		}
		f.wantStates("in the end", key, "a delivered, b failed, c delivered, d delivered, x delivered")
	})
}

// H-29: a message whose job is dead after 24 hours has failed. Messages that were never tried have failed too.
func TestDeadJobFailsItsMessage(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		_, hook := f.registerHook(bob, func(w http.ResponseWriter, _ hookCall) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(503)
		})
		f.send(key, alice, "bob", "a")
		waiting := f.sendLater(key, alice, "bob", "b")
		time.Sleep(time.Second)
		f.wait(24*time.Hour - 2*time.Minute)
		time.Sleep(61 * time.Second)
		f.wantStates("before 24 hours", key, "a queued, b queued")
		f.want(<-waiting, 202, "")
		f.wait(time.Minute)
		time.Sleep(61 * time.Second)
		f.wantStates("after 24 hours", key, "a failed, b failed")
		rows := f.history(key, "")
		if rows[0]["error_code"] != "ERR_AGENT_UNREACHABLE" || rows[0]["detail"] != "HTTP 503" ||
			rows[1]["error_code"] != "ERR_TIMEOUT" {
			t.Errorf("the history has %v", rows)
		}
		hook.answerWith(nil)
		if a := f.send(key, alice, "bob", "c"); a.text("state") != "delivered" { // G-18
			t.Errorf("the next message: %v", a)
		}
	})
}

// H-32: a webhook that answers after 60 s is called once. H-33: its sender has 202 after 15 s, and the state becomes
// delivered.
func TestSlowWebhook(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		_, hook := f.registerHook(bob, func(w http.ResponseWriter, c hookCall) {
			time.Sleep(time.Minute)
			status(200, `{"status":"ok"}`)(w, c)
		})
		began := time.Now()
		a := f.want(f.send(key, alice, "bob", "a"), 202, "")
		if took := time.Since(began); took != 15*time.Second {
			t.Errorf("the answer came after %v, want 15s", took)
		}
		want := fmt.Sprintf(`{"delivery":"queued","state":"queued","trace_id":"%s"}`, a.text("trace_id"))
		if a.dataOf() != want {
			t.Errorf("the sender has %s, want %s", a.dataOf(), want)
		}
		time.Sleep(44 * time.Second)
		f.wantStates("after 59 s", key, "a queued")
		time.Sleep(2 * time.Second)
		f.wantStates("after 61 s", key, "a delivered")
		time.Sleep(2 * time.Minute)
		if n := len(hook.seen()); n != 1 {
			t.Errorf("the webhook was called %d times", n)
		}
	})
}

// An attempt may take 120 s. G-16: then the failure is a timeout.
func TestWebhookTimeout(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		_, hook := f.registerHook(bob, func(w http.ResponseWriter, c hookCall) { <-c.ctx.Done() })
		f.want(f.send(key, alice, "bob", "a"), 202, "")
		time.Sleep(104 * time.Second)
		if row := f.history(key, "")[0]; row["error_code"] != nil || row["delivered_via"] != "queued" {
			t.Errorf("after 119 s: %v", row)
		}
		time.Sleep(2 * time.Second)
		row := f.history(key, "")[0]
		if row["error_code"] != "ERR_TIMEOUT" || row["detail"] != "timeout" || row["state"] != "queued" {
			t.Errorf("after 121 s: %v", row)
		}
		time.Sleep(3 * time.Second)
		if calls := hook.seen(); len(calls) != 2 || calls[0].trace != calls[1].trace {
			t.Errorf("after 124 s there were %d calls, want 2 with the same trace", len(calls))
		}
		f.want(f.do(call{"DELETE", "/agents/bob", f.Operator, nil, nil}), 200, "") // ends the attempts
	})
}

// A response whose body does not come is a response without a reply.
func TestSlowWebhookBody(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		f.registerHook(bob, func(w http.ResponseWriter, c hookCall) {
			status(200, `{"status":`)(w, c)
			_ = http.NewResponseController(w).Flush()
			<-c.ctx.Done()
		})
		began := time.Now()
		a := f.send(key, alice, "bob", "a")
		took := time.Since(began)
		if took != 5*time.Second || a.text("state") != "delivered" || a.data("receiver_response") != nil {
			t.Errorf("after %v: %v", took, a)
		}
	})
}

// A webhook that cannot be reached is tried again. The sender learns the kind of the failure.
func TestUnreachableWebhook(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		f.register(bob, object{"endpoint": "http://127.0.0.1:2000/"})
		a := f.want(f.send(key, alice, "bob", "a"), 202, "")
		want := fmt.Sprintf(`{"delivery":"queued","detail":"unreachable","error_code":"ERR_AGENT_UNREACHABLE",`+
			`"state":"queued","trace_id":"%s"}`, a.text("trace_id"))
		if a.dataOf() != want {
			t.Errorf("the sender has %s, want %s", a.dataOf(), want)
		}
		if row := f.history(key, "")[0]; row["delivered_via"] != "queued" {
			t.Errorf("the history has %v", row)
		}
	})
}

// H-31: a stream that opens takes over what waits for the webhook. The webhook is not called for what was handed out.
func TestStreamTakesOverFromWebhook(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		receiver, hook := f.registerHook(bob, status(500, ""))
		f.send(key, alice, "bob", "a")
		f.sendLater(key, alice, "bob", "b")
		time.Sleep(100 * time.Millisecond)
		s := f.follow(receiver, nil)
		s.wantTexts("at once", "a b")
		if n := f.stored("gate_outbox"); n != 0 {
			t.Errorf("the outbox still has %d messages that the stream has handed out", n)
		}
		if a := f.send(key, alice, "bob", "c"); a.text("delivery") != "delivered_sse" {
			t.Errorf("while the stream is open: %v", a)
		}
		time.Sleep(10 * time.Second)
		s.close()
		time.Sleep(10 * time.Second)
		if hook.texts() != "a" {
			t.Errorf("the webhook has got %q, want only a", hook.texts())
		}
		f.wantStates("after the stream", key, "a sent, b sent, c sent")
		hook.answerWith(nil)
		f.send(key, alice, "bob", "d")
		if hook.texts() != "a d" {
			t.Errorf("after the stream, the webhook has got %q, want a d", hook.texts())
		}
	})
}

// H-31: while the hub calls the webhook with a message, a stream gets that message too. What the webhook answers then
// counts only if it confirms the message.
func TestStreamOpensDuringCall(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]string{`{"status":"ok"}`: "a delivered, b sent",
		`{"status":"error"}`: "a sent, b sent"} {
		t.Run(reply, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fixture) { f.checkStreamDuringCall(reply, want) })
		})
	}
}

// checkStreamDuringCall opens a stream while a webhook is called, which then answers with reply. In the end, the sender
// must see the states want.
func (f *fixture) checkStreamDuringCall(reply, want string) {
	t := f.t
	key := f.register(alice)
	receiver, hook := f.registerHook(bob, func(w http.ResponseWriter, c hookCall) {
		time.Sleep(20 * time.Second)
		status(200, reply)(w, c)
	})
	first := f.sendLater(key, alice, "bob", "a")
	time.Sleep(time.Second)
	second := f.sendLater(key, alice, "bob", "b")
	time.Sleep(time.Second)
	s := f.follow(receiver, nil)
	time.Sleep(time.Second)
	if s.texts() != "a b" || s.events()[0].Trace != hook.seen()[0].trace {
		t.Errorf("the stream has %q, or another trace than the webhook", s.texts())
	}
	for _, sender := range []<-chan answer{first, second} {
		if a := f.want(<-sender, 200, ""); a.text("delivery") != "delivered_sse" || a.text("state") != "sent" {
			t.Errorf("a sender has %v", a)
		}
	}
	time.Sleep(30 * time.Second)
	if s.texts() != "a b" || hook.texts() != "a" {
		t.Errorf("the stream has %q and the webhook %q, want a b and a", s.texts(), hook.texts())
	}
	f.wantStates(reply, key, want)
}

// What a stream has not handed out goes to the webhook when the stream ends.
func TestWebhookGetsWhatStreamHasNot(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, f *fixture) {
		p := party{fixture: f, alice: f.register(alice)}
		var hook *hook
		p.bob, hook = f.registerHook(bob, nil)
		p.stalled()
		texts := "a" + strings.Repeat("b", 9000)
		f.want(p.send(p.alice, alice, bob, texts), 202, "")
		if len(hook.seen()) != 0 {
			t.Error("the webhook is called while the stream is open")
		}
		time.Sleep(16 * time.Second) // the stream is cut off 30 s after its last byte
		if hook.texts() != texts {
			t.Errorf("the webhook has got %d messages", len(hook.seen()))
		}
		p.wantStates("in the end", p.alice, texts+" delivered")
	})
}

// A message goes to the URL of the current registration. A message that waits for the former URL does so too.
func TestWebhookOfCurrentRegistration(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		_, former := f.registerHook(bob, status(500, ""))
		f.send(key, alice, "bob", "a")
		current := newHook(t, nil)
		body := registrationOf(bob)
		body["endpoint"] = current.url
		f.want(f.do(call{"POST", "/agents", f.Operator, body, nil}), 200, "")
		f.send(key, alice, "bob", "b")
		if former.texts() != "a" || current.texts() != "a b" || former.seen()[0].trace != current.seen()[0].trace {
			t.Errorf("the former webhook has got %q, the current one %q", former.texts(), current.texts())
		}
		f.wantStates("in the end", key, "a delivered, b delivered")
	})
}

// The state failed never changes, not even if the webhook of a deleted agent confirms a message.
func TestWebhookOfDeletedAgent(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		receiver, hook := f.registerHook(bob, func(w http.ResponseWriter, c hookCall) {
			time.Sleep(10 * time.Second)
			status(200, `{"status":"ok"}`)(w, c)
		})
		answers := f.sendLater(key, alice, "bob", "a")
		time.Sleep(time.Second)
		f.want(f.do(call{"DELETE", "/agents/bob", receiver, nil, nil}), 200, "")
		if a := <-answers; a.Status != 200 || a.text("delivery") != "failed" ||
			a.text("error_code") != "ERR_AGENT_NOT_FOUND" {
			t.Errorf("the sender has %v", a)
		}
		time.Sleep(15 * time.Second)
		f.wantStates("after the webhook's answer", key, "a failed")
		if len(hook.seen()) != 1 {
			t.Errorf("the webhook was called %d times", len(hook.seen()))
		}
	})
}
