package channel_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// delivered returns a channel with a member alice and an agent bot, and the delivery of a message to the bot.
func delivered(t *testing.T, f *fixture) (r room, alice string, a *agent, d delivery) {
	t.Helper()
	r = f.channel("ops")
	alice = r.member("alice")
	a = newAgent(t, nil)
	r.connect("bot", a.url)
	r.say(alice, "hello")
	return r, alice, a, a.last()
}

// C-8: each event type is taken at both sides of its limits. C-9: an unknown event type is 400.
func TestEvents(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		_, _, _, d := delivered(t, f)
		x := func(n int) string { return strings.Repeat("x", n) }
		for _, c := range []struct {
			event object
			ok    bool
		}{
			{message("x"), true}, {message(x(32768)), true}, {message(""), false}, {message(x(32769)), false},
			{message(strings.Repeat("天", 10922) + "xx"), true}, {message(strings.Repeat("天", 10922) + "xxx"), false},
			{object{"type": "message", "content": 1}, false}, {object{"type": "message"}, false},
			{object{"type": "tool_call", "name": "n", "args": object{}, "id": "i"}, true},
			{object{"type": "tool_call", "name": x(256), "id": x(256)}, true},
			{object{"type": "tool_call", "name": x(257), "id": "i"}, false},
			{object{"type": "tool_call", "name": "n", "id": x(257)}, false},
			{object{"type": "tool_call", "name": "", "id": "i"}, false}, {object{"type": "tool_call", "id": "i"}, false},
			{object{"type": "tool_call", "name": "n"}, false},
			{object{"type": "tool_call", "name": "n", "args": []int{}, "id": "i"}, false},
			{object{"type": "tool_result", "id": "i", "content": "c"}, true},
			{object{"type": "tool_result", "id": "i", "content": ""}, true},
			{object{"type": "tool_result", "id": "", "content": "c"}, false},
			{object{"type": "tool_result", "id": "i"}, false},
			{object{"type": "error", "message": "m"}, true}, {object{"type": "error", "message": "m", "code": "c"}, true},
			{object{"type": "error", "message": ""}, false}, {object{"type": "error", "message": "m", "code": 5}, false},
			{object{"type": "status", "status": "s"}, true}, {object{"type": "status", "status": x(500)}, true},
			{object{"type": "status", "status": ""}, false}, {object{"type": "status", "status": x(501)}, false},
			{object{"type": "lifecycle", "status": "idle"}, true}, {object{"type": "lifecycle", "status": x(64)}, true},
			{object{"type": "lifecycle", "status": ""}, false}, {object{"type": "lifecycle", "status": x(65)}, false},
			{object{"type": "typing"}, false}, {object{"type": ""}, false}, {object{"type": 1}, false}, {object{}, false},
			{object{"type": "Message", "content": "c"}, false},
		} {
			got := f.post(d.Callback, c.event)
			if c.ok {
				f.want(got, 200, "")
			} else {
				f.want(got, 400, "INVALID_REQUEST")
			}
		}
	})
}

// An event is shown with its own members. Those that the relay adds cannot be forged.
func TestEventsAreShown(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, _, _, d := delivered(t, f)
		forged := object{"seq": 99, "id": "mine", "ts": "never", "sender": "alice", "kind": "member", "depth": -5, "via": "api",
			"extra": object{"a": []int{1}}}
		for typ, members := range map[string]object{
			"message": {"content": "c"}, "tool_call": {"name": "n", "args": object{"q": 1}}, "tool_result": {"content": "c"},
			"error": {"message": "m", "code": "c"}, "status": {"status": "s"}, "lifecycle": {"status": "idle"},
		} {
			event := object{"type": typ}
			for _, all := range []object{forged, members} {
				for name, value := range all {
					event[name] = value
				}
			}
			f.want(f.post(d.Callback, event), 200, "")
			all := r.events()
			e := all[len(all)-1]
			if fmt.Sprint(e["extra"]) != "map[a:[1]]" || e["type"] != typ {
				t.Errorf("the event is %v", e)
			}
			for name, value := range members {
				if fmt.Sprint(e[name]) != fmt.Sprint(value) {
					t.Errorf("%s: %s is %v", typ, name, e[name])
				}
			}
			if e["seq"] != float64(len(all)) || e["sender"] != "bot" || e["kind"] != "agent" || e["depth"] != 1. ||
				e["via"] != "callback" || e["ts"] == "never" {
				t.Errorf("%s is forged: %v", typ, e)
			}
			if tool := strings.HasPrefix(typ, "tool"); tool != (e["id"] == "mine") {
				t.Errorf("the id of %s is %v", typ, e["id"])
			}
		}
	})
}

// C-10: events are numbered in the order of receipt, whoever posts them.
func TestEventsAreNumbered(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, alice, _, d := delivered(t, f)
		for i := range 5 {
			if seq := member(f.want(f.post(d.Callback, message(fmt.Sprint(i))), 200, ""), "seq"); seq != float64(2*i+2) {
				t.Errorf("event %d has the number %v", i, seq)
			}
			r.say(alice, "more")
		}
		f.Restart()
		r.say(alice, "after a restart")
		for i, e := range r.events() {
			if e["seq"] != float64(i+1) {
				t.Errorf("event %d is %v", i, e)
			}
		}
	})
}

// C-11: a callback token dies after an idle hour, after 24 hours, and with its connection. It is then answered with 410
// for 7 days.
func TestCallbackExpires(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, alice, a, d := delivered(t, f)
		for range 23 {
			f.pass(57 * time.Minute)
			f.want(f.post(d.Callback, message("still here")), 200, "")
		}
		f.pass(57 * time.Minute)
		f.want(f.post(d.Callback, message("for the last time")), 200, "")
		f.pass(30 * time.Minute) // 24 hours and 8 minutes after the attempt
		f.want(f.post(d.Callback, message("too old")), 410, "GONE")
		r.say(alice, "again")
		next := a.last()
		f.pass(57 * time.Minute)
		f.want(f.post(next.Callback, object{"type": "nothing"}), 400, "INVALID_REQUEST") // does not renew the token
		time.Sleep(90 * time.Second)
		f.want(f.post(next.Callback, message("idle")), 410, "GONE")
		f.pass(6 * 24 * time.Hour)
		f.want(f.post(d.Callback, message("too old")), 410, "GONE")
		f.pass(2 * 24 * time.Hour)
		f.want(f.post(d.Callback, message("forgotten")), 404, "NOT_FOUND")
	})
	for what, end := range map[string]func(r room){
		"deleted":         func(r room) { r.f.want(r.do("DELETE", "/connections/bot", nil), 200, "") },
		"channel deleted": func(r room) { r.f.want(r.do("DELETE", "", nil), 200, "") },
	} {
		inBubble(t, func(t *testing.T, f *fixture) {
			r, _, _, d := delivered(t, f)
			end(r)
			if got := f.post(d.Callback, message("c")); got.Status != 410 {
				t.Errorf("%s: %v", what, got)
			}
			f.want(f.rpc(r.id, d.token(), "tools/list", nil), 401, "UNAUTHORIZED")
		})
	}
	inBubble(t, func(t *testing.T, f *fixture) { // revoked, and active again
		r, alice, a, d := delivered(t, f)
		a.answerWith(status(404))
		r.say(alice, "gone?")
		synctest.Wait()
		f.want(f.post(d.Callback, message("c")), 410, "GONE")
		f.want(r.do("PUT", "/connections/bot", object{}), 200, "")
		f.want(f.post(d.Callback, message("c")), 200, "")
	})
}

// C-12: a token is worth nothing for another channel, and nothing but a token is worth anything at a callback.
func TestCallbackOfAnotherChannel(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, alice, _, d := delivered(t, f)
		other := f.channel("other")
		token := d.Callback[strings.LastIndex(d.Callback, "/")+1:]
		for _, url := range []string{
			"/channels/" + other.id + "/inbox/" + token, "/channels/ch_none/inbox/" + token,
			"/channels/" + r.id + "/inbox/" + token[:46] + "!", "/channels/" + r.id + "/inbox/" + d.token(),
			"/channels/" + r.id + "/inbox/" + r.key, "/channels/" + r.id + "/inbox/" + alice, "/out/" + token,
		} {
			f.want(f.post(gatetest.PublicURL+"/channel"+url, message("c")), 404, "NOT_FOUND")
		}
		f.want(f.post(d.Callback, message("c")), 200, "")
	})
}

// The token of a delivery to an inbox is worth nothing at a channel, and the other way round. The numbers of the rows that
// they belong to are the same here.
func TestForeignTokens(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, _, _, d := delivered(t, f)
		o, s := f.owner(t), newService(f)
		f.want(s.deliver(o.url, s.body("m1", "hello")), 200, "")
		h := o.request()
		out := h.Callback[strings.LastIndex(h.Callback, "/")+1:]
		callback := d.Callback[strings.LastIndex(d.Callback, "/")+1:]
		f.want(f.post(gatetest.PublicURL+"/channel/channels/"+r.id+"/inbox/"+out, message("c")), 404, "NOT_FOUND")
		f.want(f.post(gatetest.PublicURL+"/channel/out/"+callback, message("c")), 404, "NOT_FOUND")
		s.wantEvents("after that")
	})
}

// 600 events of a delivery are taken at once, and 600 an hour. All tokens of the delivery count together.
func TestCallbackRate(t *testing.T) {
	engine.OnlySQLite(t, "thousands of messages take long; smaller tests run the same statements")
	inBubble(t, func(t *testing.T, f *fixture) {
		_, _, _, d := delivered(t, f)
		for i := range 600 {
			if got := f.post(d.Callback, object{"type": "status", "status": "s"}); got.Status != 200 {
				t.Fatalf("event %d: %v", i, got)
			}
		}
		got := f.want(f.post(d.Callback, message("c")), 429, "RATE_LIMITED")
		if text(got, "details", "limit") != "callbackEvents" || got.Header.Get("Retry-After") == "" {
			t.Errorf("%v %v", got, got.Header)
		}
		time.Sleep(7 * time.Second)
		f.want(f.post(d.Callback, message("c")), 200, "")
	})
}

// echo returns an answer for an agent that repeats each message.
func echo(f *fixture, name string) func(http.ResponseWriter, delivery) {
	return func(w http.ResponseWriter, d delivery) {
		w.WriteHeader(200)
		http.NewResponseController(w).Flush()
		go f.post(d.Callback, message(name+" heard "+d.Message.Content))
	}
}

// C-13: two agents that answer each other stop at depth 4.
func TestLoopGuard(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		alice := r.member("alice")
		for _, name := range []string{"ping", "pong"} {
			r.connect(name, newAgent(t, echo(f, name)).url)
		}
		r.say(alice, "go")
		time.Sleep(time.Minute)
		synctest.Wait()
		depths := map[float64]int{}
		for _, e := range r.events() {
			depths[e["depth"].(float64)]++
		}
		// Both answer the member, and then each other's answers, up to a message of depth 5, which nobody gets.
		if fmt.Sprint(depths) != "map[0:1 1:2 2:2 3:2 4:2 5:2]" {
			t.Errorf("messages by depth: %v", depths)
		}
	})
}

// C-14: the 61st message of the agents of a channel in a minute is stored and not delivered.
func TestAgentsSayTooMuch(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, alice, _, d := delivered(t, f)
		other := newAgent(t, nil)
		r.connect("other", other.url)
		for i := range 61 {
			f.want(f.post(d.Callback, message(fmt.Sprint(i))), 200, "")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := len(other.deliveries()); got != 60 || len(r.events()) != 62 {
			t.Errorf("%d deliveries and %d events, want 60 and 62", got, len(r.events()))
		}
		if n := r.say(alice, "a member"); n != 2 {
			t.Errorf("a member's message has %d deliveries, want 2", n)
		}
		time.Sleep(time.Minute)
		f.want(f.post(d.Callback, message("later")), 200, "")
		synctest.Wait()
		if got := other.contents(); !strings.HasSuffix(got, " 59 a member later") {
			t.Errorf("the other agent got %q", got)
		}
	})
}

// G-21, G-22, G-24: an event with an Idempotency-Key is taken once, also if another attempt's token is used.
func TestRepeatedEvent(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		alice := r.member("alice")
		a := newAgent(t, status(503))
		r.connect("bot", a.url)
		r.say(alice, "hello")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		all := a.deliveries()
		key := map[string]string{"Idempotency-Key": "once"}
		post := func(d delivery, event object) answer {
			path := strings.TrimPrefix(d.Callback, gatetest.PublicURL+"/channel")
			return f.do(call{"POST", path, "", event, key})
		}
		f.want(post(all[0], object{"type": "unknown"}), 400, "INVALID_REQUEST")
		first := f.want(post(all[0], message("hi")), 200, "")
		f.Restart()
		second := f.want(post(all[1], message("hi")), 200, "")
		if string(first.Body) != string(second.Body) || second.Header.Get("Idempotent-Replay") != "true" {
			t.Errorf("%v and then %v", first, second)
		}
		f.want(post(all[1], message("other")), 409, "CONFLICT")
		if got := r.said(); got != "alice: hello\nbot: hi" {
			t.Errorf("the channel has\n%s", got)
		}
	})
}
