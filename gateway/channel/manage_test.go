package channel_test

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

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

// G-10, G-11: a key is refused for everything it does not belong to. A request for another channel gets the same answer
// as a request for an unknown one.
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
