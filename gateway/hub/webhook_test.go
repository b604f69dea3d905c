package hub_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
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

// replyCase is what a webhook replies, and what the sender learns.
type replyCase struct {
	status int
	body   string
	header string // Retry-After or Location
	want   string // data of the answer, without trace_id
	again  time.Duration
}

const confirmedWithoutReply = `{"delivery":"delivered","receiver_response":null,"state":"delivered"}`

func httpError(status int) string {
	return fmt.Sprintf(`{"delivery":"%%s","detail":"HTTP %d","error_code":"ERR_AGENT_UNREACHABLE","state":"%%[1]s"}`, status)
}

func failedWith(status int) string { return fmt.Sprintf(httpError(status), "failed") }
func queuedWith(status int) string { return fmt.Sprintf(httpError(status), "queued") }

var long = strings.Repeat("😀", 600) // 1200 code units

var replies = map[string]replyCase{
	"ok":                {200, `{"status":"ok"}`, "", `{"delivery":"delivered","receiver_response":{"status":"ok"},"state":"delivered"}`, 0},
	"ok with others":    {201, `{"status":"ok","detail":"a","secret":1}`, "", `{"delivery":"delivered","receiver_response":{"status":"ok","detail":"a"},"state":"delivered"}`, 0},
	"long text":         {200, `{"status":"ok","detail":"` + long + `"}`, "", `{"delivery":"delivered","receiver_response":{"status":"ok","detail":"` + long[:4*500] + `"},"state":"delivered"}`, 0},
	"no content":        {204, ``, "", confirmedWithoutReply, 0},
	"no JSON":           {200, `secret`, "", confirmedWithoutReply, 0},
	"an array":          {200, `["secret"]`, "", confirmedWithoutReply, 0},
	"another status":    {200, `{"status":"secret"}`, "", confirmedWithoutReply, 0},
	"no text as status": {200, `{"status":1}`, "", confirmedWithoutReply, 0},
	"64 KiB": {200, `{"status":"ok","more":"` + strings.Repeat("a", 65_536-25) + `"}`, "",
		`{"delivery":"delivered","receiver_response":{"status":"ok"},"state":"delivered"}`, 0},
	"more than 64 KiB": {200, `{"status":"ok","more":"` + strings.Repeat("a", 65_536-24) + `"}`, "", confirmedWithoutReply, 0},

	"error": {200, `{"status":"error","error_code":"INVALID_ENVELOPE","detail":"no culture","secret":1}`, "",
		`{"delivery":"failed","error_code":"INVALID_ENVELOPE","detail":"no culture","state":"failed"}`, 0},
	"error without code": {200, `{"status":"error","detail":"busy"}`, "",
		`{"delivery":"failed","error_code":"ERR_AGENT_UNREACHABLE","detail":"busy","state":"failed"}`, 0},
	"error with 400": {400, `{"status":"error","error_code":"INVALID_ENVELOPE"}`, "",
		`{"delivery":"failed","error_code":"INVALID_ENVELOPE","state":"failed"}`, 0},
	"error with 429": {429, `{"status":"error","error_code":"BUSY"}`, "",
		`{"delivery":"failed","error_code":"BUSY","state":"failed"}`, 0},
	"error with 500": {500, `{"status":"error","error_code":"MODEL_DOWN","detail":"later"}`, "",
		`{"delivery":"queued","error_code":"MODEL_DOWN","detail":"later","state":"queued"}`, 2 * time.Second},

	"400 without JSON":  {400, `secret`, "", failedWith(400), 0},
	"404":               {404, ``, "", failedWith(404), 0},
	"301":               {301, `secret`, "http://127.0.0.1:2000/other", failedWith(301), 0},
	"304":               {304, ``, "", failedWith(304), 0},
	"408":               {408, `secret`, "", queuedWith(408), 2 * time.Second},
	"425":               {425, ``, "", queuedWith(425), 2 * time.Second},
	"429":               {429, ``, "30", queuedWith(429), 30 * time.Second},
	"500":               {500, `secret`, "", queuedWith(500), 2 * time.Second},
	"503":               {503, `<html>secret</html>`, "7", queuedWith(503), 7 * time.Second},
	"503 for two hours": {503, ``, "7200", queuedWith(503), time.Hour},
}

// H-30: each kind of webhook reply has the effect of HUB §3. G-16: the sender learns nothing else of the response.
func TestWebhookReplies(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key, hooks := f.register(alice), map[string]*hook{}
		for name, c := range replies {
			var h *hook
			receiver := strings.ReplaceAll(name, " ", "-") + "@x"
			_, h = f.registerHook(receiver, func(w http.ResponseWriter, _ hookCall) {
				if len(h.seen()) > 1 {
					return // a later attempt succeeds
				}
				w.Header().Set("Retry-After", c.header)
				w.Header().Set("Location", c.header)
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			})
			hooks[name] = h
			c.checkAnswer(t, name, f.send(key, alice, receiver, name), h.seen()[0].trace)
		}
		time.Sleep(2 * time.Minute)
		f.ahead.Add(int64(time.Hour))
		time.Sleep(2 * time.Minute)
		rows := f.history(key, "")
		if len(rows) != len(replies) {
			t.Fatalf("the history has %d rows", len(rows))
		}
		for _, row := range rows {
			checkReplyRow(t, row, replies[row["envelope"].(object)["original_text"].(string)])
		}
		for name, h := range hooks {
			replies[name].checkAttempts(t, name, h.seen())
		}
	})
}

// checkAnswer compares the answer to a sender with the one in the table.
func (c replyCase) checkAnswer(t *testing.T, name string, a answer, trace string) {
	t.Helper()
	var want object
	if err := json.Unmarshal([]byte(c.want), &want); err != nil {
		t.Fatal(err)
	}
	want["trace_id"] = trace
	wantStatus := 200
	if c.again > 0 {
		wantStatus = 202
	}
	if got := a.data(""); a.status != wantStatus || !reflect.DeepEqual(got, want) {
		t.Errorf("%s: the sender has %v, want %d %v", name, a, wantStatus, want)
	}
}

// checkAttempts checks whether and when a second attempt was made.
func (c replyCase) checkAttempts(t *testing.T, name string, calls []hookCall) {
	t.Helper()
	if c.again == 0 {
		if len(calls) != 1 {
			t.Errorf("%s: %d attempts were made, want 1", name, len(calls))
		}
		return
	}
	if len(calls) != 2 || calls[0].trace != calls[1].trace {
		t.Fatalf("%s: %d attempts were made, want 2 with the same trace", name, len(calls))
	}
	took, least, most := calls[1].at.Sub(calls[0].at), c.again*8/10, c.again*12/10
	if c.again == time.Hour {
		least, most = time.Minute, 5*time.Minute // the clock was set forward by an hour
	}
	if took < least || took > most {
		t.Errorf("%s: the second attempt was made after %v, want %v", name, took, c.again)
	}
}

// checkReplyRow checks the row in the sender's history.
func checkReplyRow(t *testing.T, row object, c replyCase) {
	t.Helper()
	text, err := json.Marshal(row)
	if err != nil || strings.Contains(string(text), "secret") {
		t.Errorf("the history has %s, %v", text, err)
	}
	var want object
	if err := json.Unmarshal([]byte(c.want), &want); err != nil {
		t.Fatal(err)
	}
	if c.again > 0 { // a later attempt has succeeded
		want = object{"state": "delivered", "receiver_response": nil}
	}
	for _, name := range []string{"state", "error_code", "detail"} {
		if row[name] != want[name] {
			t.Errorf("the history has %s, want %v", text, want)
		}
	}
	response, given := row["receiver_response"]
	if want["state"] == "delivered" && (!given || !reflect.DeepEqual(response, want["receiver_response"])) {
		t.Errorf("the history has %s, want %v", text, want)
	}
	if _, confirmed := row["acknowledged_at"]; confirmed != (want["state"] == "delivered") || row["delivered_via"] != "webhook" {
		t.Errorf("the history has %s", text)
	}
}

// HUB §3: the request has the form of the seed, and ids by which a receiver recognizes a repeat.
func TestWebhookRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		_, hook := f.registerHook(bob, nil)
		a := f.send(key, alice, "bob", "你好 <&>")
		c := hook.seen()[0]
		const want = `{"envelope":{"chorus_version":"0.4","original_text":"你好 <&>","sender_culture":"en","sender_id":"alice@relay.example"}}`
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
		time.Sleep(time.Minute)
		if got, want := hook.texts(), "a a a b b c d"; got != want {
			t.Errorf("the calls are %q, want %q", got, want)
		}
		f.wantStates("in the end", key, "a delivered, b failed, c delivered, d delivered, x delivered")
	})
}

// H-29: a message whose job is dead after 24 hours has failed. Messages that were never tried have failed too.
func TestDeadJobFailsItsMessage(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		_, hook := f.registerHook(bob, func(w http.ResponseWriter, _ hookCall) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(503)
		})
		f.send(key, alice, "bob", "a")
		waiting := f.sendLater(key, alice, "bob", "b")
		time.Sleep(time.Second)
		f.ahead.Add(int64(24*time.Hour - 2*time.Minute))
		time.Sleep(61 * time.Second)
		f.wantStates("before 24 hours", key, "a queued, b queued")
		f.want(<-waiting, 202, "")
		f.ahead.Add(int64(time.Minute))
		time.Sleep(61 * time.Second)
		f.wantStates("after 24 hours", key, "a failed, b failed")
		rows := f.history(key, "")
		if rows[0]["error_code"] != "ERR_AGENT_UNREACHABLE" || rows[0]["detail"] != "HTTP 503" || rows[1]["error_code"] != "ERR_TIMEOUT" {
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
		time.Sleep(10 * time.Minute)
		if n := len(hook.seen()); n != 1 {
			t.Errorf("the webhook was called %d times", n)
		}
	})
}

// HUB §3: an attempt may take 120 s. G-16: then the failure is a timeout.
func TestWebhookTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		_, hook := f.registerHook(bob, func(w http.ResponseWriter, c hookCall) { <-c.ctx.Done() })
		f.want(f.send(key, alice, "bob", "a"), 202, "")
		time.Sleep(104 * time.Second)
		if row := f.history(key, "")[0]; row["error_code"] != nil || row["delivered_via"] != "queued" {
			t.Errorf("after 119 s: %v", row)
		}
		time.Sleep(2 * time.Second)
		if row := f.history(key, "")[0]; row["error_code"] != "ERR_TIMEOUT" || row["detail"] != "timeout" || row["state"] != "queued" {
			t.Errorf("after 121 s: %v", row)
		}
		time.Sleep(3 * time.Second)
		if calls := hook.seen(); len(calls) != 2 || calls[0].trace != calls[1].trace {
			t.Errorf("after 124 s there were %d calls, want 2 with the same trace", len(calls))
		}
		f.want(f.do(call{"DELETE", "/agents/bob", f.operator, nil, nil}), 200, "") // ends the attempts
	})
}

// A response whose body does not come is a response without a reply (GATEWAYS §6).
func TestSlowWebhookBody(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		f.registerHook(bob, func(w http.ResponseWriter, c hookCall) {
			status(200, `{"status":`)(w, c)
			_ = http.NewResponseController(w).Flush()
			<-c.ctx.Done()
		})
		began := time.Now()
		a := f.send(key, alice, "bob", "a")
		if took := time.Since(began); took != 5*time.Second || a.text("state") != "delivered" || a.data("receiver_response") != nil {
			t.Errorf("after %v: %v", took, a)
		}
	})
}

// HUB §3: a webhook that cannot be reached is tried again. The sender learns the word.
func TestUnreachableWebhook(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		f.register(bob, object{"endpoint": "http://127.0.0.1:2000/"})
		a := f.want(f.send(key, alice, "bob", "a"), 202, "")
		want := fmt.Sprintf(`{"delivery":"queued","detail":"unreachable","error_code":"ERR_AGENT_UNREACHABLE","state":"queued","trace_id":"%s"}`,
			a.text("trace_id"))
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
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		receiver, hook := f.registerHook(bob, status(500, ""))
		f.send(key, alice, "bob", "a")
		f.sendLater(key, alice, "bob", "b")
		time.Sleep(100 * time.Millisecond)
		s := f.follow(receiver, nil)
		s.wantTexts("at once", "a b")
		if a := f.send(key, alice, "bob", "c"); a.text("delivery") != "delivered_sse" {
			t.Errorf("while the stream is open: %v", a)
		}
		time.Sleep(time.Minute)
		s.close()
		time.Sleep(time.Minute)
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

// H-31: a stream also gets the message with which the webhook is being called. What the webhook answers then counts
// only if it confirms the message.
func TestStreamOpensDuringCall(t *testing.T) {
	for reply, want := range map[string]string{`{"status":"ok"}`: "a delivered, b sent", `{"status":"error"}`: "a sent, b sent"} {
		inBubble(t, func(t *testing.T, f *fixture) {
			key := f.register(alice)
			receiver, hook := f.registerHook(bob, func(w http.ResponseWriter, c hookCall) {
				time.Sleep(time.Minute)
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
			time.Sleep(2 * time.Minute)
			if s.texts() != "a b" || hook.texts() != "a" {
				t.Errorf("the stream has %q and the webhook %q, want a b and a", s.texts(), hook.texts())
			}
			f.wantStates(reply, key, want)
		})
	}
}

// HUB §3: what a stream has not handed out goes to the webhook when the stream ends.
func TestWebhookGetsWhatStreamHasNot(t *testing.T) {
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
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		_, former := f.registerHook(bob, status(500, ""))
		f.send(key, alice, "bob", "a")
		current := newHook(t, nil)
		body := registrationOf(bob)
		body["endpoint"] = current.url
		f.want(f.do(call{"POST", "/agents", f.operator, body, nil}), 200, "")
		f.send(key, alice, "bob", "b")
		if former.texts() != "a" || current.texts() != "a b" || former.seen()[0].trace != current.seen()[0].trace {
			t.Errorf("the former webhook has got %q, the current one %q", former.texts(), current.texts())
		}
		f.wantStates("in the end", key, "a delivered, b delivered")
	})
}

// HUB §3: failed never changes, not even if the webhook of a deleted agent confirms a message.
func TestWebhookOfDeletedAgent(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(alice)
		receiver, hook := f.registerHook(bob, func(w http.ResponseWriter, c hookCall) {
			time.Sleep(10 * time.Second)
			status(200, `{"status":"ok"}`)(w, c)
		})
		answers := f.sendLater(key, alice, "bob", "a")
		time.Sleep(time.Second)
		f.want(f.do(call{"DELETE", "/agents/bob", receiver, nil, nil}), 200, "")
		if a := <-answers; a.status != 200 || a.text("delivery") != "failed" || !strings.Contains(a.dataOf(), "ERR_AGENT_NOT_FOUND") {
			t.Errorf("the sender has %v", a)
		}
		time.Sleep(time.Minute)
		f.wantStates("after the webhook's answer", key, "a failed")
		if len(hook.seen()) != 1 {
			t.Errorf("the webhook was called %d times", len(hook.seen()))
		}
	})
}
