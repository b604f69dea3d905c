package channel_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/store/storetest/engine"
)

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
	engine.OnlySQLite(t, "thousands of messages take long; smaller tests run the same statements")
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
