package hub_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/agora-relay/agora/gateway/gatetest"
)

// sendAs sends a message with an Idempotency-Key.
func (f *fixture) sendAs(id, key string, body any) answer {
	f.t.Helper()
	return f.do(call{"POST", "/messages", key, body, map[string]string{"Idempotency-Key": id}})
}

// wantReplay checks that an answer is the first one again, byte for byte.
func (f *fixture) wantReplay(a, first answer) {
	f.t.Helper()
	if a.Status != first.Status || string(a.Body) != string(first.Body) || a.Header.Get("Idempotent-Replay") != "true" ||
		first.Header.Get("Idempotent-Replay") != "" || a.Header.Get("Content-Type") != first.Header.Get("Content-Type") {
		f.t.Errorf("the repeated request is answered with %v %v, the first one with %v %v", a, a.Header, first, first.Header)
	}
}

// wantCount checks how many messages an agent has.
func (f *fixture) wantCount(key string, count int) {
	f.t.Helper()
	if rows := f.history(key, ""); len(rows) != count {
		f.t.Errorf("there are %d messages, want %d: %v", len(rows), count, rows)
	}
}

// G-21: a repeated Idempotency-Key gets the first answer, also after a restart, and whatever has changed since. G-22:
// with another body it gets 409.
func TestRepeat(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	alice := f.register("alice@b")
	bob := f.register("bob@b")
	streaming := f.open(f.register("stream@b"), nil)
	streaming.frame()
	hook := newFixedHook(t)
	hook.status, hook.reply = 400, `{"status":"error","error_code":"NO","detail":"no"}`
	f.register("hook@b", object{"endpoint": hook.URL})
	bodies := map[string]object{} // by Idempotency-Key
	first := map[string]answer{}
	for _, to := range []string{"bob@b", "stream@b", "hook@b"} {
		id := "to " + to
		bodies[id] = messageTo(to, "alice@b", "hello")
		first[id] = f.sendAs(id, alice, bodies[id])
		f.want(first[id], map[string]int{"bob@b": 202}[to]+map[string]int{"stream@b": 200, "hook@b": 200}[to], "")
	}
	check := func() {
		t.Helper()
		for id, body := range bodies {
			f.wantReplay(f.sendAs(id, alice, body), first[id])
			// The same body in another form.
			text := fmt.Sprintf(` {"envelope":{"sender_id":"alice@b","sender_culture":"\u0065n","original_text":"hello",`+
				`"chorus_version" : "0.4"} , "receiver_id":%q}`, body["receiver_id"])
			f.wantReplay(f.sendAs(id, alice, text), first[id])
			for name, other := range map[string]object{
				"another text":        messageTo(body["receiver_id"].(string), "alice@b", "Hello"),
				"a receiver":          messageTo("alice@b", "alice@b", "hello"),
				"an unknown receiver": messageTo("x@b", "alice@b", "hello"),
				"a member":            with(body, object{"stream": false}), "an unknown member": with(body, object{"x": 1}),
			} {
				if a := f.sendAs(id, alice, other); a.Status != 409 || a.code() != "ERR_IDEMPOTENCY_CONFLICT" {
					t.Errorf("with the other body that has %s: %v", name, a)
				}
			}
		}
		f.wantCount(alice, 3)
	}
	check()
	f.history(bob, "") // the states change
	check()
	f.Restart()
	check()
	f.want(f.remove("/agents/bob@b", f.Operator), 200, "")
	f.wait(day - moment)
	check()
	// A record is kept for 24 hours.
	f.wait(moment)
	a := f.want(f.sendAs("to hook@b", alice, bodies["to hook@b"]), 200, "")
	if a.Header.Get("Idempotent-Replay") != "" || a.text("trace_id") == first["to hook@b"].text("trace_id") {
		t.Errorf("after 24 hours the answer is %v", a)
	}
	f.want(f.sendAs("to bob@b", alice, bodies["to bob@b"]), 404, "ERR_AGENT_NOT_FOUND")
	f.wantCount(alice, 4)
}

// TestRepeatForm: an Idempotency-Key has 1 to 256 printable ASCII characters.
func TestRepeatForm(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	alice := f.register("alice@b")
	body := messageTo("alice@b", "alice@b", "hello")
	for id, ok := range map[string]bool{
		"1": true, "a b~!\"\\": true, strings.Repeat("x", 256): true, strings.Repeat("x", 257): false, "": false, "ä": false,
		"a\tb": false,
	} {
		if a := f.sendAs(id, alice, body); ok && a.Status != 202 || !ok && (a.Status != 400 || a.code() != "ERR_VALIDATION") {
			t.Errorf("the Idempotency-Key %q: %v", id, a)
		}
	}
	r, err := gatetest.NewRequest(t.Context(), gatetest.PublicURL+"/hub",
		gatetest.Call(call{"POST", "/messages", alice, body, nil}))
	if err != nil {
		t.Fatal(err)
	}
	r.Header["Idempotency-Key"] = []string{"a", "a"}
	f.want(f.serve(r), 400, "ERR_VALIDATION")
	f.wantCount(alice, 3)
}

// G-23: the same Idempotency-Key of two callers is two keys. A key is the same one after a rotation.
func TestRepeatOfOthers(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	alice, bob := f.register("alice@b"), f.register("bob@b")
	body := messageTo("bob@b", "alice@b", "hello")
	first := f.want(f.sendAs("one", alice, body), 202, "")
	byOperator := f.want(f.sendAs("one", f.Operator, body), 202, "")
	byBob := f.want(f.sendAs("one", bob, messageTo("bob@b", "bob@b", "hello")), 202, "")
	f.wantReplay(f.sendAs("one", f.Operator, body), byOperator)
	f.wantReplay(f.sendAs("one", bob, messageTo("bob@b", "bob@b", "hello")), byBob)
	f.wantCount(bob, 3)
	f.wantReplay(f.sendAs("one", f.rotated("alice@b", alice), body), first)
	f.wantCount(bob, 3)
	// An agent that has the address later is another caller.
	f.want(f.remove("/agents/alice@b", f.Operator), 200, "")
	alice = f.want(f.rotate("alice@b", f.Operator), 201, "").text("api_key")
	if a := f.want(f.sendAs("one", alice, body), 202, ""); a.Header.Get("Idempotent-Replay") != "" {
		t.Errorf("another agent gets %v", a)
	}
	f.wantCount(bob, 4)
}

// G-21: if the relay stops before the answer is stored, the repeat is answered from the rows, and its answer is the
// first one from then on. A repeat waits while the first request is in progress.
func TestRepeatWithoutAnswer(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	alice := f.register("alice@b")
	called, release := make(chan struct{}, 10), make(chan struct{})
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		called <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(hook.Close)
	f.register("hook@b", object{"endpoint": hook.URL})
	body := messageTo("hook@b", "alice@b", "hello")
	post := call{"POST", "/messages", alice, body, map[string]string{"Idempotency-Key": "one"}}
	var first answer
	var sending sync.WaitGroup
	sending.Go(func() {
		var err error
		if first, err = f.try(t.Context(), post); err != nil {
			t.Error(err)
		}
	})
	<-called // the message is stored, and its sender waits
	f.Restart()
	sending.Wait()
	f.wantError("the first answer", first, 503, "ERR_UNAVAILABLE") // so the client repeats
	<-called
	again := f.want(f.do(post), 202, "")
	if again.Header.Get("Idempotent-Replay") != "true" || again.text("delivery") != "queued" ||
		again.text("state") != "queued" {
		t.Errorf("the repeat is answered with %v %v", again, again.Header)
	}
	if rows := f.history(alice, ""); len(rows) != 1 || rows[0]["trace_id"] != again.text("trace_id") {
		t.Errorf("the history is %v, the answer %v", rows, again)
	}
	close(release)
	eventually(t, "the message is delivered", func() bool { return f.states(alice)["hello"] == "delivered" })
	again.Header.Del("Idempotent-Replay") // otherwise it is the same as the answer to a first request
	f.wantReplay(f.do(post), again)
	f.Restart()
	f.wantReplay(f.do(post), again)

	// Many equal requests at once: one message, one answer.
	post.Header = map[string]string{"Idempotency-Key": "two"}
	answers := f.inParallel(16, func(int) call { return post })
	replays := 0
	for _, a := range answers {
		if a.Header.Get("Idempotent-Replay") == "true" {
			replays++
		}
		if a.Status != 200 || string(a.Body) != string(answers[0].Body) || a.text("delivery") != "delivered" {
			t.Errorf("the answers are %v and %v", answers[0], a)
		}
	}
	if replays != 15 {
		t.Errorf("%d answers are replays, want 15", replays)
	}
	f.wantCount(alice, 2)
	// Many different bodies with one key: one message, the others get 409.
	taken := 0
	for _, a := range f.inParallel(8, func(i int) call {
		return call{"POST", "/messages", alice, messageTo("alice@b", "alice@b", fmt.Sprint(i)),
			map[string]string{"Idempotency-Key": "three"}}
	}) {
		if a.Status == 202 {
			taken++
		} else {
			f.want(a, 409, "ERR_IDEMPOTENCY_CONFLICT")
		}
	}
	if taken != 1 {
		t.Errorf("%d of the different bodies were taken", taken)
	}
	f.wantCount(alice, 3)
}
