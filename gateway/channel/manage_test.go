package channel_test

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway/gatetest"
)

// The operator creates channels. A channel has the members of its answers, and its key is in one answer only (G-9).
func TestChannels(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.want(f.do(call{"POST", "/channels", f.Operator, object{"name": "ops", "more": 1}, nil}), 201, "")
		want := `^{"ok":true,"channel":{"id":"ch_[a-z2-7]{26}","name":"ops","context":"","createdAt":"2000-01-01T00:00:00\.000Z"},` +
			`"key":"ck_[A-Za-z0-9_-]{43}"}\n$`
		if !regexp.MustCompile(want).Match(a.Body) {
			t.Errorf("the answer is %v, want %s", a, want)
		}
		r := room{f, text(a, "channel", "id"), text(a, "key")}
		for _, key := range []string{r.key, f.Operator} {
			got := f.want(f.do(call{"GET", "/channels/" + r.id, key, nil, nil}), 200, "")
			if bytes.Contains(got.Body, []byte("ck_")) || text(got, "channel", "name") != "ops" {
				t.Errorf("the channel is %v", got)
			}
		}
		x := func(n int) string { return strings.Repeat("x", n) }
		for _, c := range []struct {
			body object
			ok   bool
		}{
			{object{"name": x(80)}, true}, {object{"name": x(81)}, false}, {object{"name": ""}, false}, {object{"name": 1}, false},
			{object{"context": ""}, true}, {object{"context": x(2000)}, true}, {object{"context": x(2001)}, false},
			{object{}, true}, {object{"name": "a", "context": "b"}, true},
		} {
			for method, path := range map[string]string{"POST": "/channels", "PATCH": "/channels/" + r.id} {
				got := f.do(call{method, path, f.Operator, c.body, nil})
				switch _, named := c.body["name"]; {
				case !c.ok, method == "POST" && !named:
					f.want(got, 400, "INVALID_REQUEST")
				case method == "POST":
					f.want(got, 201, "")
				default:
					f.want(got, 200, "")
				}
			}
		}
		if got := f.want(r.do("GET", "", nil), 200, ""); text(got, "channel", "name") != "a" || text(got, "channel", "context") != "b" {
			t.Errorf("the channel is %v", got)
		}
		f.want(r.do("DELETE", "", nil), 200, "")
		f.want(r.do("GET", "", nil), 401, "UNAUTHORIZED")
		f.want(f.do(call{"GET", "/channels/" + r.id, f.Operator, nil, nil}), 404, "NOT_FOUND")
	})
}

// A relay has at most as many channels as its limit says. A deleted one no longer counts.
func TestChannelLimit(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		var last room
		for range 3 {
			last = f.channel("x")
		}
		got := f.want(f.do(call{"POST", "/channels", f.Operator, object{"name": "x"}, nil}), 429, "RATE_LIMITED")
		if text(got, "details", "limit") != "channels" || got.Header.Get("Retry-After") == "" {
			t.Errorf("%v", got)
		}
		f.want(last.do("DELETE", "", nil), 200, "")
		f.channel("x")
	}, func(f *fixture) { f.small = 3 })
}

// G-10, G-11: a key is refused for everything it does not belong to. A foreign channel and an unknown one get the same
// answer.
func TestWhoMayDoWhat(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, other := f.channel("ops"), f.channel("other")
		alice, mallory := r.member("alice"), other.member("mallory")
		a := newAgent(t, nil)
		r.connect("bot", a.url)
		r.say(alice, "hello")
		d := a.last()
		callback := d.Callback[strings.LastIndex(d.Callback, "/")+1:]
		base := "/channels/" + r.id
		for _, c := range []struct {
			method, path       string
			body               any
			manager, ofChannel bool // who may do it: the channel's key and the operator; a member
		}{
			{"GET", base, nil, true, false}, {"PATCH", base, object{}, true, false},
			{"GET", base + "/members", nil, true, false}, {"POST", base + "/members", object{"name": ""}, true, false},
			{"GET", base + "/connections", nil, true, false}, {"POST", base + "/connections", object{}, true, false},
			{"PUT", base + "/connections/bot", object{}, true, false}, {"DELETE", base + "/members/x", nil, true, false},
			{"DELETE", base + "/connections/x", nil, true, false}, {"GET", base + "/events", nil, true, true},
			{"POST", base + "/messages", object{"content": "x"}, false, true},
			{"POST", "/channels", object{}, false, false},
		} {
			for who, key := range map[string]string{"nobody": "", "unknown": "ck_" + strings.Repeat("A", 43), "channel": r.key,
				"member": alice, "foreign channel": other.key, "foreign member": mallory, "callback": callback, "tool": d.token(),
				"operator": f.Operator} {
				got := f.do(call{c.method, c.path, key, c.body, nil})
				allowed := who == "operator" && (c.manager || c.path == "/channels") || who == "channel" && c.manager ||
					who == "member" && c.ofChannel
				switch {
				case who == "nobody" || who == "unknown":
					if f.want(got, 401, "UNAUTHORIZED"); got.Header.Get("WWW-Authenticate") != "Bearer" {
						t.Errorf("%s %s by %s: %v", c.method, c.path, who, got.Header)
					}
				case allowed:
					if got.Status == 401 || got.Status == 403 {
						t.Errorf("%s %s by %s: %v", c.method, c.path, who, got)
					}
				default:
					f.want(got, 403, "FORBIDDEN")
				}
			}
		}
		foreign := f.want(f.do(call{"GET", "/channels/" + other.id, r.key, nil, nil}), 403, "FORBIDDEN")
		unknown := f.want(f.do(call{"GET", "/channels/ch_unknown", r.key, nil, nil}), 403, "FORBIDDEN")
		if !bytes.Equal(foreign.Body, unknown.Body) {
			t.Errorf("a foreign channel: %v, an unknown one: %v", foreign, unknown)
		}
	})
}

// Members and connections share one set of names.
func TestParties(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		for _, name := range []string{"a", "A", "0", "a.b_c-D", strings.Repeat("x", 64)} {
			r.member(name)
		}
		for _, name := range []any{"", ".a", "-a", "_a", "a b", "ä", strings.Repeat("x", 65), 5, nil, "a/b"} {
			f.want(r.do("POST", "/members", object{"name": name}), 400, "INVALID_REQUEST")
			f.want(r.do("POST", "/connections", object{"name": name, "url": "https://a.example/inbox/sk_x"}), 400, "INVALID_REQUEST")
		}
		r.connect("bot", "https://Agent.Example:8443/inbox/sk_very-secret?x=1")
		f.want(r.do("POST", "/members", object{"name": "bot"}), 409, "CONFLICT")
		f.want(r.do("POST", "/connections", object{"name": "a", "url": "https://a.example/"}), 409, "CONFLICT")
		f.want(r.do("POST", "/connections", object{"name": "bot", "url": "https://a.example/"}), 409, "CONFLICT")
		list := f.want(r.do("GET", "/connections", nil), 200, "")
		want := `{"ok":true,"connections":[{"name":"bot","host":"agent.example:8443","status":"active","queued":0,"dead":0,"mcp":"object"}]}` + "\n"
		if string(list.Body) != want {
			t.Errorf("the connections are %v", list)
		}
		if got := r.do("GET", "/members", nil); fmt.Sprint(member(got, "members")) !=
			"[map[name:a] map[name:A] map[name:0] map[name:a.b_c-D] map[name:"+strings.Repeat("x", 64)+"]]" {
			t.Errorf("the members are %v", got)
		}
		for path, status := range map[string]int{"/members/nobody": 404, "/connections/nobody": 404, "/members/bot": 404,
			"/connections/a": 404, "/members/a": 200, "/connections/bot": 200} {
			if got := r.do("DELETE", path, nil); got.Status != status {
				t.Errorf("DELETE %s: %v", path, got)
			}
		}
		f.want(r.do("PUT", "/connections/bot", object{}), 404, "NOT_FOUND")
		key := r.member("bot")
		f.want(r.do("DELETE", "/members/bot", nil), 200, "")
		r.member("bot")
		f.want(f.do(call{"POST", "/channels/" + r.id + "/messages", key, object{"content": "x"}, nil}), 401, "UNAUTHORIZED")
	})
}

// A connection string follows the rules for URLs that the relay calls.
func TestConnectionStrings(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		for i, c := range []struct {
			url any
			ok  bool
		}{
			{"https://a.example/inbox/sk_x", true}, {"http://127.0.0.1:9/", true}, // an exception of the test
			{gatetest.PublicURL + "/channel/inbox/sk_" + strings.Repeat("A", 43), true},
			{gatetest.PublicURL + "/channel/inbox/sk_x", false}, {gatetest.PublicURL + "/events", false},
			{"http://a.example/", false}, {"https://10.0.0.1/", false}, {"https://[::1]/", false}, {"https://localhost/", false},
			{"https://agent/", false}, {"https://u@a.example/", false}, {"https://a.example/#f", false},
			{"https://a.example:22/", false}, {"ftp://a.example/", false}, {"", false}, {"x", false}, {5, false}, {nil, false},
			{"https://a.example/" + strings.Repeat("x", 2030), true}, {"https://a.example/" + strings.Repeat("x", 2031), false},
		} {
			got := r.do("POST", "/connections", object{"name": fmt.Sprint("c", i), "url": c.url})
			if c.ok {
				f.want(got, 201, "")
				f.want(r.do("PUT", fmt.Sprint("/connections/c", i), object{"url": c.url}), 200, "")
			} else if f.want(got, 400, "INVALID_REQUEST"); !strings.HasPrefix(text(got, "message"), "url: ") {
				t.Errorf("%v: %v", c.url, got)
			}
		}
		for mcp, ok := range map[any]bool{"object": true, "array": true, "none": true, "": false, "list": false, 1: false} {
			got := r.do("PUT", "/connections/c0", object{"mcp": mcp})
			if ok {
				f.want(got, 200, "")
			} else {
				f.want(got, 400, "INVALID_REQUEST")
			}
		}
	})
}

// A channel has at most 200 members and 50 connections.
func TestPartyLimits(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		for kind, most := range map[string]int{"members": 200, "connections": 50} {
			body := func(i int) object { return object{"name": fmt.Sprint(kind, i), "url": "https://a.example/"} }
			for i := range most {
				f.want(r.do("POST", "/"+kind, body(i)), 201, "")
			}
			got := f.want(r.do("POST", "/"+kind, body(most)), 429, "RATE_LIMITED")
			if text(got, "details", "limit") != kind || got.Header.Get("Retry-After") == "" {
				t.Errorf("%v", got)
			}
			f.want(r.do("DELETE", "/"+kind+"/"+kind+"0", nil), 200, "")
			f.want(r.do("POST", "/"+kind, body(most)), 201, "")
		}
	})
}

// A message has 1 to 32,768 bytes. G-21, G-22, G-23: an Idempotency-Key is that of one member and one channel.
func TestMessages(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, other := f.channel("ops"), f.channel("other")
		alice, bob, carol := r.member("alice"), r.member("bob"), other.member("carol")
		post := func(r room, key, id string, body any) answer {
			return f.do(call{"POST", "/channels/" + r.id + "/messages", key, body, map[string]string{"Idempotency-Key": id}})
		}
		for _, body := range []any{object{}, object{"content": ""}, object{"content": 1}, object{"content": strings.Repeat("x", 32769)},
			`{"content":"a","content":"b"}`, `{"content":"\ud800"}`, `{"content":"a"} x`, `[]`, ``} {
			f.want(post(r, alice, "k", body), 400, "INVALID_REQUEST")
		}
		for _, id := range []string{strings.Repeat("x", 257), "ä"} {
			f.want(post(r, alice, id, object{"content": "x"}), 400, "INVALID_REQUEST")
		}
		first := f.want(post(r, alice, "k", object{"content": "x"}), 201, "")
		want := `^{"ok":true,"event":{"content":"x","depth":0,"id":"msg_[a-z2-7]{26}","kind":"member","sender":"alice","seq":1,` +
			`"ts":"2000-01-01T00:00:00.000Z","type":"message","via":"api"},"deliveries":0}\n$`
		if !regexp.MustCompile(want).Match(first.Body) {
			t.Errorf("the answer is %v, want %s", first, want)
		}
		f.Restart()
		again := f.want(post(r, alice, "k", ` { "content" : "x" } `), 201, "")
		if !bytes.Equal(first.Body, again.Body) || again.Header.Get("Idempotent-Replay") != "true" {
			t.Errorf("%v, again %v", first, again)
		}
		f.want(post(r, alice, "k", object{"content": "y"}), 409, "CONFLICT")
		f.want(post(r, bob, "k", object{"content": "y"}), 201, "")
		f.want(post(other, carol, "k", object{"content": "z"}), 201, "")
		f.want(post(r, alice, "l", object{"content": strings.Repeat("x", 32768)}), 201, "")
		f.pass(24 * time.Hour)
		f.want(post(r, alice, "k", object{"content": "y"}), 201, "")
		if n := len(r.events()); n != 4 {
			t.Errorf("%d events, want 4", n)
		}
	})
}

// GET events has pages, and waits for the next event.
func TestGetEvents(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		alice := r.member("alice")
		get := func(query string) answer {
			return f.do(call{"GET", "/channels/" + r.id + "/events" + query, alice, nil, nil})
		}
		page := func(query string) string {
			a := f.want(get(query), 200, "")
			list := member(a, "events").([]any)
			if len(list) == 0 {
				return fmt.Sprint("none ", member(a, "cursor"))
			}
			return fmt.Sprint(list[0].(object)["seq"], "-", list[len(list)-1].(object)["seq"], " ", member(a, "cursor"))
		}
		if got := page(""); got != "none 0" {
			t.Errorf("an empty channel has %s", got)
		}
		for i := range 230 {
			r.say(alice, fmt.Sprint(i))
		}
		for query, want := range map[string]string{"": "1-50 50", "?after=0": "1-50 50", "?after=10&limit=5": "11-15 15",
			"?limit=200": "1-200 200", "?after=229": "230-230 230", "?after=230": "none 230", "?after=999": "none 999",
			"?limit=1&unknown=x&unknown=y": "1-1 1", "?after=9223372036854775807": "none 9.223372036854776e+18"} {
			if got := page(query); got != want {
				t.Errorf("%s: %s, want %s", query, got, want)
			}
		}
		for _, query := range []string{"?limit=0", "?limit=201", "?limit=x", "?limit=", "?after=-1", "?after=1.0", "?wait=61", "?wait=x",
			"?wait=-1", "?after=1&after=2", "?after=%zz", "?after=9223372036854775808", "?limit=+1"} {
			f.want(get(query), 400, "INVALID_REQUEST")
		}
		began := time.Now()
		if got := page("?after=230&wait=60"); got != "none 230" || time.Since(began) != time.Minute {
			t.Errorf("%s after %v", got, time.Since(began))
		}
		go func() {
			time.Sleep(10 * time.Second)
			r.say(alice, "news")
		}()
		began = time.Now()
		if got := page("?after=230&wait=60"); got != "231-231 231" || time.Since(began) != 10*time.Second {
			t.Errorf("%s after %v", got, time.Since(began))
		}
		go func() {
			time.Sleep(10 * time.Second)
			f.want(r.do("DELETE", "", nil), 200, "")
		}()
		f.want(get("?after=231&wait=60"), 401, "UNAUTHORIZED")
		synctest.Wait()
	})
}

// A page of events has at most 1 MiB, or one longer event. The next page goes on after it.
func TestPagesAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, _, _, d := delivered(t, f)
		pad := strings.Repeat("x", 30_000)
		for i := range 40 {
			f.want(f.post(d.Callback, object{"type": "message", "content": fmt.Sprint(i), "pad": pad}), 200, "")
		}
		a := f.want(r.do("GET", "/events?limit=200", nil), 200, "")
		if n := len(member(a, "events").([]any)); n < 30 || n > 36 || len(a.Body) > 1<<20+10_000 {
			t.Errorf("a page has %d events and %d bytes", n, len(a.Body))
		}
		if n := len(r.events()); n != 41 {
			t.Errorf("all pages have %d events, want 41", n)
		}
		got, _ := called(t, f.session(t, d), "get_messages", object{"limit": 200, "after": 0})
		if all := got["messages"].([]any); len(all) > 36 || got["hasMore"] != true || all[0].(object)["content"] != "hello" {
			t.Errorf("the tool returns %d messages, more: %v", len(all), got["hasMore"])
		}
	})
}

// At most 10,000 events of a channel are kept, or a little more. Events that wait to be delivered stay.
func TestOldestEventsAreRemoved(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, other := f.channel("ops"), f.channel("other")
		alice := r.member("alice")
		other.say(other.member("bob"), "of another channel")
		a := newAgent(t, status(503))
		r.connect("bot", a.url)
		r.say(alice, "waits")
		f.want(r.do("PUT", "/connections/bot", object{}), 200, "")
		synctest.Wait()
		first := a.deliveries()[0]
		for i := range 450 {
			if got := f.post(first.Callback, object{"type": "status", "status": fmt.Sprint(i)}); got.Status != 200 {
				t.Fatal(got)
			}
		}
		all := r.events()
		if len(all) < 150 || len(all) > 251 || all[0]["content"] != "waits" || all[len(all)-1]["status"] != "449" ||
			all[1]["seq"].(float64) < 200 || len(other.events()) != 1 {
			t.Errorf("%d events are left, from %v, %v to %v", len(all), all[0], all[1], all[len(all)-1])
		}
	}, func(f *fixture) { f.small = 150 })
}

// Events are kept for 30 days. The events of a deleted channel are removed.
func TestEventsAreForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, gone := f.channel("ops"), f.channel("gone")
		alice := r.member("alice")
		r.say(alice, "old")
		bob := gone.member("bob")
		for range 250 {
			gone.say(bob, "x")
		}
		f.pass(20 * 24 * time.Hour)
		r.say(alice, "new")
		f.want(gone.do("DELETE", "", nil), 200, "")
		f.pass(9 * 24 * time.Hour)
		if got := r.said(); got != "alice: old\nalice: new" {
			t.Errorf("after 29 days: %s", got)
		}
		f.pass(2 * 24 * time.Hour)
		if got := r.said(); got != "alice: new" {
			t.Errorf("after 31 days: %s", got)
		}
		for _, table := range []string{"channel_event WHERE channel = 2", "channel_channel WHERE n = 2", "channel_delivery"} {
			if n := f.stored(table); n != 0 {
				t.Errorf("%d rows of %s are left", n, table)
			}
		}
	})
}

// G-1 to G-3: the gateway's own listener has the same routes at its root, and no route of the relay.
func TestOwnListener(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		at := func(base, path string) answer {
			a, err := gatetest.Do(t.Context(), f.Client, base, gatetest.Call{Method: "GET", Path: path, Key: r.key})
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		for _, path := range []string{"/channels/" + r.id, "/channels/" + r.id + "/events", "/nothing", "/inbox/sk_x", "/channels"} {
			one, two := at(f.URL, "/channel"+path), at(f.Own, path)
			if one.Status != two.Status || !bytes.Equal(one.Body, two.Body) {
				t.Errorf("%s: %v and %v", path, one, two)
			}
		}
		for _, path := range []string{"/health", "/events", "/agents", "/.well-known/agora.json", "/"} {
			f.want(at(f.Own, path), 404, "NOT_FOUND")
		}
		key := newKey(t)
		token := f.signedToken(key, "GET", "/inboxes", "")
		a, err := gatetest.Do(t.Context(), f.Client, f.Own, gatetest.Call{Method: "GET", Path: "/inboxes",
			Header: map[string]string{"Authorization": "Agora " + token}})
		if err != nil {
			t.Fatal(err)
		}
		f.want(a, 401, "UNAUTHORIZED")
		if text(a, "details", "reason") != "audience" || text(a, "details", "aud") != gatetest.PublicURL ||
			a.Header.Get("WWW-Authenticate") != "Agora" {
			t.Errorf("%v %v", a, a.Header)
		}
	})
}

// G-12, G-13: a signed call is accepted once, for its method, target and body. The answer names the first check that
// failed.
func TestSignedCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key := newKey(t)
		try := func(token, method, path, body string) answer {
			c := call{method, path, "", body, map[string]string{"Authorization": token}}
			if token == "" {
				c.Header = nil
			}
			return f.do(c)
		}
		token := "Agora " + f.signedToken(key, "POST", "/inboxes", "{}")
		for _, c := range []struct{ token, method, path, body, reason string }{
			{"", "POST", "/inboxes", "{}", "unsigned"}, {"Bearer x", "POST", "/inboxes", "{}", "malformed"},
			{"Agora x", "POST", "/inboxes", "{}", "malformed"}, {token, "GET", "/inboxes", "{}", "request"},
			{token, "POST", "/inboxes?x", "{}", "request"}, {token, "POST", "/inboxes", "{ }", "body"},
			{token, "POST", "/inboxes", "{}", ""}, {token, "POST", "/inboxes", "{}", "used"},
		} {
			got := try(c.token, c.method, c.path, c.body)
			if c.reason == "" {
				f.want(got, 201, "")
				continue
			}
			if f.want(got, 401, "UNAUTHORIZED"); text(got, "details", "reason") != c.reason || got.Header.Get("WWW-Authenticate") != "Agora" {
				t.Errorf("%s %s: %v, want %s", c.method, c.path, got, c.reason)
			}
		}
		old := "Agora " + f.signedToken(key, "POST", "/inboxes", "{}")
		time.Sleep(2 * time.Minute)
		if got := f.want(try(old, "POST", "/inboxes", "{}"), 401, "UNAUTHORIZED"); text(got, "details", "reason") != "time" ||
			text(got, "details", "now") == "" {
			t.Errorf("%v", got)
		}
	})
}

// G-25 to G-27: bodies that are too large, too deep, not I-JSON or encoded are refused, in the form of the gateway.
func TestBodies(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, alice, _, d := delivered(t, f)
		o := f.owner(t)
		token := d.Callback[strings.Index(d.Callback, "/channels/"):]
		inbox := strings.TrimPrefix(o.url, gatetest.PublicURL+"/channel")
		nested := func(levels int) string {
			return `{"type":"message","content":"x","a":` + strings.Repeat("[", levels-1) + strings.Repeat("]", levels-1) + `}`
		}
		padded := func(size int) string {
			text := `{"type":"message","content":"x","a":""}`
			return strings.Replace(text, `""}`, `"`+strings.Repeat("y", size-len(text))+`"}`, 1)
		}
		for _, c := range []struct {
			body   string
			status int
			code   string
		}{
			{padded(65536), 200, ""}, {padded(65537), 413, "PAYLOAD_TOO_LARGE"}, {nested(64), 200, ""},
			{nested(65), 400, "INVALID_REQUEST"}, {`{"a":1,"a":2}`, 400, "INVALID_REQUEST"}, {`{"a":"\udc00"}`, 400, "INVALID_REQUEST"},
			{`{} {}`, 400, "INVALID_REQUEST"}, {`null`, 400, "INVALID_REQUEST"},
		} {
			f.want(f.do(call{"POST", token, "", c.body, nil}), c.status, c.code)
			if c.status == 200 {
				continue
			}
			f.want(f.do(call{"POST", "/channels/" + r.id + "/messages", alice, c.body, nil}), c.status, c.code)
			f.want(f.do(call{"POST", inbox, "", c.body, nil}), c.status, c.code)
			f.want(f.rpcBody(r.id, d.token(), c.body), c.status, c.code)
		}
		gzip := map[string]string{"Content-Encoding": "gzip"}
		f.want(f.do(call{"POST", token, "", message("x"), gzip}), 415, "UNSUPPORTED_MEDIA_TYPE")
		f.want(f.do(call{"POST", inbox, "", object{}, gzip}), 415, "UNSUPPORTED_MEDIA_TYPE")
		got := f.want(f.do(call{"PATCH", token, "", nil, nil}), 405, "METHOD_NOT_ALLOWED")
		if got.Header.Get("Allow") != "POST" {
			t.Errorf("%v", got.Header)
		}
		for _, path := range []string{"/nothing", "/channels/" + r.id + "/", "//channels", "/inbox", "/out", "/mcp"} {
			f.want(f.do(call{"GET", path, r.key, nil, nil}), 404, "NOT_FOUND")
		}
	})
}

// Each caller may send 40 changing requests at once, and then 20 a second.
func TestCallerRate(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		time.Sleep(time.Minute)
		for i := range 40 {
			f.want(r.do("PATCH", "", object{}), 200, "")
			if i%10 == 0 {
				f.want(r.do("GET", "", nil), 200, "")
			}
		}
		got := f.want(r.do("PATCH", "", object{}), 429, "RATE_LIMITED")
		if text(got, "details", "limit") != "requests" || got.Header.Get("Retry-After") != "1" {
			t.Errorf("%v %v", got, got.Header)
		}
	}, func(f *fixture) { f.From = "203.0.113.9:9" })
}
