package hub_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// wantError checks that an error has the form of all errors, and its headers.
func (f *fixture) wantError(name string, a answer, status int, code string) {
	f.t.Helper()
	var body struct {
		Success  *bool
		Error    map[string]any
		Metadata map[string]string
	}
	err := json.Unmarshal(a.Body, &body)
	if err != nil || a.Status != status || body.Success == nil || *body.Success || body.Error["code"] != code ||
		body.Error["message"] == "" || len(body.Metadata["timestamp"]) != len("2026-03-20T10:00:00.000Z") {
		f.t.Errorf("%s: %v, want %d %s", name, a, status, code)
	}
	retry, challenge := a.Header.Get("Retry-After") != "", a.Header.Get("WWW-Authenticate")
	if retry != (status == 429 || status == 503) || challenge != map[bool]string{true: "Bearer"}[status == 401] ||
		(a.Header.Get("Allow") != "") != (status == 405) || a.Header.Get("Content-Type") != asJSON ||
		a.Header.Get("Cache-Control") != "no-store" || (body.Error["limit"] != nil) != (status == 429) {
		f.t.Errorf("%s: the header of %v is %v", name, a, a.Header)
	}
}

// routes are the hub's endpoints and their methods.
var routes = map[string]string{
	"/register": "POST", "/agents": "GET, POST", "/agents/a@b": "DELETE, GET", "/discover": "GET",
	"/agent/session": "POST", "/agent/inbox": "GET", "/agent/messages": "GET", "/agent/ack": "POST",
	"/messages": "POST", "/invite/a@b": "GET", "/health": "GET, HEAD", "/.well-known/chorus.json": "GET", "/skill": "GET",
}

// G-25: the hub answers each error with its own code and with the status of the relay.
func TestErrors(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	alice, other := f.register("alice@b"), f.register("other@b")
	unknown := "ca_0123456789abcdef0123456789abcdef"
	for _, c := range []struct {
		call
		status int
		code   string
	}{
		{call{"POST", "/register", "", "[]", nil}, 400, "ERR_VALIDATION"},
		{call{"POST", "/register", "", "", nil}, 400, "ERR_VALIDATION"},
		{call{"POST", "/register", "", object{}, nil}, 400, "ERR_VALIDATION"},
		{call{"POST", "/agents", f.Operator, object{"agent_id": "a@b"}, nil}, 400, "ERR_VALIDATION"},
		{call{"POST", "/agents", f.Operator, "{", nil}, 400, "ERR_VALIDATION"},
		{call{"POST", "/messages", alice, object{"receiver_id": "other@b"}, nil}, 400, "ERR_VALIDATION"},
		{call{"POST", "/agent/ack", alice, object{}, nil}, 400, "ERR_VALIDATION"},
		{call{"POST", "/agent/ack", alice, object{"up_to": 1, "trace_ids": []string{"x"}}, nil}, 400, "ERR_VALIDATION"},
		{call{"POST", "/agent/ack", alice, object{"up_to": -1}, nil}, 400, "ERR_VALIDATION"},
		{call{"POST", "/agent/ack", alice, object{"up_to": 1.5}, nil}, 400, "ERR_VALIDATION"},
		{call{"POST", "/agent/ack", alice, object{"up_to": "1"}, nil}, 400, "ERR_VALIDATION"},
		{call{"POST", "/agent/ack", alice, object{"up_to": nil}, nil}, 400, "ERR_VALIDATION"},
		{call{"POST", "/agent/ack", alice, object{"trace_ids": []string{}}, nil}, 400, "ERR_VALIDATION"},
		{call{"POST", "/agent/ack", alice, object{"trace_ids": make([]string, 1001)}, nil}, 400, "ERR_VALIDATION"},
		{call{"POST", "/agent/ack", alice, object{"trace_ids": []any{"x", 1}}, nil}, 400, "ERR_VALIDATION"},
		{call{"POST", "/agent/ack", alice, object{"trace_ids": []any{"x", nil}}, nil}, 400, "ERR_VALIDATION"},
		{call{"POST", "/agent/ack", alice, object{"up_to": 1, "response": object{}}, nil}, 400, "ERR_VALIDATION"},
		{call{"POST", "/agent/ack", alice, object{"up_to": 1, "response": "ok"}, nil}, 400, "ERR_VALIDATION"},
		{call{"GET", "/agent/messages?limit=x", alice, nil, nil}, 400, "ERR_VALIDATION"},
		{call{"GET", "/agent/inbox", alice, nil, map[string]string{"Last-Event-ID": "x"}}, 400, "ERR_VALIDATION"},
		{call{"GET", "/agent/inbox", alice, nil, map[string]string{"Last-Event-ID": "-1"}}, 400, "ERR_VALIDATION"},
		{call{"GET", "/agent/inbox?session=a&session=b", alice, nil, nil}, 400, "ERR_VALIDATION"},
		{call{"GET", "/discover?online=maybe", "", nil, nil}, 400, "ERR_VALIDATION"},
		{call{"GET", "/skill?lang=fr", "", nil, nil}, 400, "ERR_VALIDATION"},
		{call{"GET", "/invite/x@@y", "", nil, nil}, 400, "ERR_VALIDATION"},

		{call{"GET", "/agent/messages", unknown, nil, nil}, 401, "ERR_UNAUTHORIZED"},
		{call{"GET", "/agents", unknown, nil, nil}, 401, "ERR_UNAUTHORIZED"},
		{call{"GET", "/agents/alice@b", unknown, nil, nil}, 401, "ERR_UNAUTHORIZED"},
		{call{"GET", "/agent/inbox?session=", "", nil, nil}, 401, "ERR_UNAUTHORIZED"},
		{call{"GET", "/agent/inbox?session=cs_0123456789abcdef0123456789abcdef", alice, nil, nil}, 401, "ERR_UNAUTHORIZED"},
		{call{"POST", "/agents", "", "{", nil}, 401, "ERR_UNAUTHORIZED"},
		{call{"POST", "/agent/ack", "", "{", nil}, 401, "ERR_UNAUTHORIZED"},
		{call{"POST", "/agent/session", "", nil, nil}, 401, "ERR_UNAUTHORIZED"},
		{call{"POST", "/messages", "", "{", nil}, 401, "ERR_UNAUTHORIZED"},
		{call{"DELETE", "/agents/alice@b", "", nil, nil}, 401, "ERR_UNAUTHORIZED"},
		{call{"GET", "/agents", "", nil, map[string]string{"Authorization": "Basic " + alice}}, 401, "ERR_UNAUTHORIZED"},
		{call{"GET", "/agents", "", nil, map[string]string{"Authorization": alice}}, 401, "ERR_UNAUTHORIZED"},
		{call{"GET", "/agents", "", nil, map[string]string{"Authorization": "Bearer"}}, 401, "ERR_UNAUTHORIZED"},

		{call{"POST", "/agents", alice, object{}, nil}, 403, "ERR_FORBIDDEN"},
		{call{"DELETE", "/agents/alice@b", other, nil, nil}, 403, "ERR_FORBIDDEN"},
		{call{"GET", "/agent/messages", f.Operator, nil, nil}, 403, "ERR_FORBIDDEN"},
		{call{"GET", "/agent/inbox", f.Operator, nil, nil}, 403, "ERR_FORBIDDEN"},
		{call{"POST", "/agent/session", f.Operator, nil, nil}, 403, "ERR_FORBIDDEN"},
		{call{"POST", "/agent/ack", f.Operator, object{"up_to": 1}, nil}, 403, "ERR_FORBIDDEN"},
		{call{"POST", "/register", "", "{}", map[string]string{"Origin": "https://page.example"}}, 403, "ERR_FORBIDDEN"},

		{call{"GET", "/", "", nil, nil}, 404, "ERR_NOT_FOUND"},
		{call{"GET", "", "", nil, nil}, 404, "ERR_NOT_FOUND"},
		{call{"GET", "/agents/", "", nil, nil}, 404, "ERR_NOT_FOUND"},
		{call{"GET", "//agents", "", nil, nil}, 404, "ERR_NOT_FOUND"},
		{call{"GET", "/agents/a@b/c", "", nil, nil}, 404, "ERR_NOT_FOUND"},
		{call{"POST", "/hub/register", "", "{}", nil}, 404, "ERR_NOT_FOUND"},
		{call{"GET", "/agents/nobody@b", "", nil, nil}, 404, "ERR_AGENT_NOT_FOUND"},
		{call{"GET", "/agents/a@@b", "", nil, nil}, 404, "ERR_AGENT_NOT_FOUND"},
		{call{"GET", "/agents/%00@b", "", nil, nil}, 404, "ERR_AGENT_NOT_FOUND"},
		{call{"DELETE", "/agents/%00@b", f.Operator, nil, nil}, 404, "ERR_AGENT_NOT_FOUND"},
		{call{"DELETE", "/agents/%ff@b", alice, nil, nil}, 404, "ERR_AGENT_NOT_FOUND"},
		{call{"DELETE", "/agents/nobody@b", alice, nil, nil}, 404, "ERR_AGENT_NOT_FOUND"},

		{call{"POST", "/register", "", registrationOf("alice@b"), nil}, 409, "ERR_AGENT_ID_TAKEN"},
	} {
		f.wantError(fmt.Sprintf("%s %s", c.Method, c.Path), f.do(c.call), c.status, c.code)
	}
	// Two Authorization headers are malformed.
	r, err := gatetest.NewRequest(t.Context(), gatetest.PublicURL+"/hub",
		gatetest.Call(call{"GET", "/agent/messages", alice, nil, nil}))
	if err != nil {
		t.Fatal(err)
	}
	r.Header["Authorization"] = append(r.Header["Authorization"], "Bearer "+alice)
	f.wantError("two keys", f.serve(r), 401, "ERR_UNAUTHORIZED")
	// The scheme is case-insensitive.
	for _, scheme := range []string{"bearer ", "BEARER ", "Bearer   "} {
		f.want(f.do(call{"GET", "/agent/messages", "", nil, map[string]string{"Authorization": scheme + alice}}), 200, "")
	}
	// 405 on every path.
	for path, methods := range routes {
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "QUERY"} {
			if slices.Contains(strings.Split(methods, ", "), method) {
				continue
			}
			a := f.do(call{method, path, alice, nil, nil})
			if method == "HEAD" { // has no body
				a.Body = f.do(call{"PUT", path, alice, nil, nil}).Body
			}
			f.wantError(method+" "+path, a, 405, "ERR_METHOD_NOT_ALLOWED")
			if a.Header.Get("Allow") != methods {
				t.Errorf("%s %s: Allow is %q, want %q", method, path, a.Header.Get("Allow"), methods)
			}
		}
	}
}

// bodies are the endpoints that take a body, with a valid one.
func (f *fixture) bodies(key string) map[string]call {
	return map[string]call{
		"/register":  {"POST", "/register", key, with(registrationOf("a@b"), object{}), nil},
		"/agents":    {"POST", "/agents", f.Operator, object{"agent_id": "hook@b", "endpoint": "https://x.example"}, nil},
		"/messages":  {"POST", "/messages", f.Operator, messageTo("a@b", "a@b", "hello"), nil},
		"/agent/ack": {"POST", "/agent/ack", key, object{"up_to": 1}, nil},
	}
}

// G-25, G-26 and G-27 for the endpoints that take a body.
func TestBodies(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	key := f.register("a@b")
	taken := func(c call) bool {
		t.Helper()
		a := f.do(c)
		switch {
		case a.Status >= 200 && a.Status < 300:
			if next := a.text("api_key"); next != "" && c.Path == "/register" {
				key = next
			}
			return true
		case a.code() == "ERR_PAYLOAD_TOO_LARGE":
			f.wantError(c.Path, a, 413, "ERR_PAYLOAD_TOO_LARGE")
		default:
			f.wantError(c.Path, a, 400, "ERR_VALIDATION")
		}
		return false
	}
	for path := range f.bodies(key) {
		text := func() string {
			body, err := json.Marshal(f.bodies(key)[path].Body)
			if err != nil {
				t.Fatal(err)
			}
			return string(body)
		}
		with := func(body string) call {
			c := f.bodies(key)[path]
			c.Body = body
			return c
		}
		// Unknown members of the body are ignored, so one can make the body large or deep.
		member := func(value string) call { return with(strings.TrimSuffix(text(), "}") + `,"other":` + value + "}") }
		sized := func(n int) call {
			return member(`"` + strings.Repeat("x", n-len(text())-len(`,"other":""`)) + `"`)
		}
		deep := func(levels int) call { // the object is one of the levels
			return member(strings.Repeat("[", levels-1) + strings.Repeat("]", levels-1))
		}
		for name, c := range map[string]struct {
			make func() call
			ok   bool
		}{
			// G-26: 65,536 bytes and 64 levels are taken; 65,537 bytes and 65 levels are not.
			"65,536 bytes":           {func() call { return sized(65_536) }, true},
			"65,537 bytes":           {func() call { return sized(65_537) }, false},
			"65,537 bytes of spaces": {func() call { return with(text() + strings.Repeat(" ", 65_537-len(text()))) }, false},
			"numbers in short form":  {func() call { return member("[" + strings.Repeat("1e20,", 10_000) + "0]") }, true},
			"64 levels":              {func() call { return deep(64) }, true},
			"65 levels":              {func() call { return deep(65) }, false},
			// G-27: duplicate members, lone surrogates and trailing data are refused.
			"spaces":                           {func() call { return with(" \n" + text() + "\t\r\n ") }, true},
			"an unknown member":                {func() call { return member("1") }, true},
			"a pair of surrogates":             {func() call { return member(`"\ud83d\ude00"`) }, true},
			"a duplicate member":               {func() call { return member(`1,"other":1`) }, false},
			"a duplicate member, with escapes": {func() call { return member(`1,"oth\u0065r":1`) }, false},
			"a duplicate member further in":    {func() call { return member(`{"a":1,"a":1}`) }, false},
			"a lone high surrogate":            {func() call { return member(`"\ud83d"`) }, false},
			"a lone low surrogate":             {func() call { return member(`"\ude00"`) }, false},
			"a lone surrogate in a name":       {func() call { return member(`{"\ud83d":1}`) }, false},
			"trailing data":                    {func() call { return with(text() + "{}") }, false},
			"a trailing comma":                 {func() call { return with(strings.TrimSuffix(text(), "}") + ",}") }, false},
			"invalid UTF-8":                    {func() call { return member("\"\xff\"") }, false},
			"a byte order mark":                {func() call { return with("\ufeff" + text()) }, false},
			"a comment":                        {func() call { return with("/**/" + text()) }, false},
			"a number that is too large":       {func() call { return member("1e400") }, false},
			"NaN":                              {func() call { return member("NaN") }, false},
			"a list":                           {func() call { return with("[" + text() + "]") }, false},
			"a text":                           {func() call { return with(`"{}"`) }, false},
			"nothing":                          {func() call { return with("") }, false},
		} {
			if request := c.make(); taken(request) != c.ok {
				t.Errorf("POST %s: a body with %s is taken: %v, want %v", path, name, !c.ok, c.ok)
			}
		}
		// Content-Type is ignored. Any Content-Encoding is refused.
		for name, value := range map[string]string{"Content-Type": "text/plain", "Content-Encoding": ""} {
			c := with(text())
			c.Header = map[string]string{name: value}
			if !taken(c) {
				t.Errorf("POST %s: %s: %q is refused", path, name, value)
			}
		}
		for _, encoding := range []string{"gzip", "identity", "x"} {
			c := with(text())
			c.Header = map[string]string{"Content-Encoding": encoding}
			f.wantError(path+" "+encoding, f.do(c), 415, "ERR_UNSUPPORTED_MEDIA_TYPE")
		}
	}
}

// G-25: the rows for rates. Each key may make 20 changing requests a second, after 40 at once.
func TestRates(t *testing.T) {
	engine.OnlySQLite(t, "thousands of messages take long; smaller tests run the same statements")
	t.Parallel()
	f := startLocal(t, func(f *fixture) { f.Limits.PostsPerAddress.PerSecond = relay.Unlimited })
	keys := map[string]string{}
	for _, name := range []string{"session", "ack", "messages", "agents", "delete", "other"} {
		keys[name] = f.register(name + "@b")
	}
	keys["operator"] = f.Operator
	calls := map[string]call{
		"session":  {"POST", "/agent/session", "", nil, nil},
		"ack":      {"POST", "/agent/ack", "", object{"up_to": 1}, nil},
		"messages": {"POST", "/messages", "", object{}, nil},
		"agents":   {"POST", "/agents", "", object{}, nil},
		"delete":   {"DELETE", "/agents/other@b", "", nil, nil},
		"operator": {"POST", "/agents", "", object{}, nil},
	}
	for name, c := range calls {
		c.Key = keys[name]
		for n := range 41 {
			a := f.doFrom(fmt.Sprintf("198.51.100.%d", n), c) // the address does not matter
			if n == 40 {
				f.wantError(name, a, 429, "ERR_RATE_LIMITED")
			}
			if a.Status == 429 && (n < 40 || a.errorMember("limit") != "requests") {
				t.Errorf("%s: the answer to request %d is %v", name, n+1, a)
			}
		}
		f.want(f.get("/discover", c.Key), 200, "")
	}
	f.wait(time.Second)
	for n := range 21 {
		a := f.doFrom("198.51.100.1", call{"POST", "/agent/session", keys["session"], nil, nil})
		if (a.Status == 429) != (n == 20) {
			t.Errorf("a second later the answer to request %d is %v", n+1, a)
		}
	}
	// The relay's own machine and other keys are not affected.
	f.want(f.post("/agent/session", keys["session"], nil), 200, "")
	f.want(f.doFrom("198.51.100.1", call{"POST", "/agent/session", keys["other"], nil, nil}), 200, "")

	// The refusals of the relay's front have the hub's form, too.
	slow := startLocal(t, func(f *fixture) {
		f.Limits.PostsPerAddress = relay.Rate{PerSecond: 0.01, Burst: 1}
		f.Limits.ReadsPerAddress = f.Limits.PostsPerAddress
	})
	for _, c := range []call{{"GET", "/discover", "", nil, nil}, {"POST", "/register", "", registrationOf("a@b"), nil}} {
		slow.doFrom("198.51.100.7", c)
		a := slow.doFrom("198.51.100.7", c)
		slow.wantError(c.Path, a, 429, "ERR_RATE_LIMITED")
		if a.errorMember("limit") != "requests" {
			t.Errorf("%s: the limit is %q", c.Path, a.errorMember("limit"))
		}
	}
	for range 3 {
		slow.want(slow.doFrom("198.51.100.7", call{"GET", "/health", "", nil, nil}), 200, "")
	}
}

// G-25: the body of a request is limited also if it does not matter what it says. A refused request changes nothing.
func TestBodiesThatDoNotMatter(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	key := f.register("a@b")
	for _, c := range []call{{"DELETE", "/agents/a@b", key, nil, nil}, {"POST", "/agent/session", key, nil, nil}} {
		c.Body = strings.Repeat("x", 65_537)
		f.wantError(c.Path, f.do(c), 413, "ERR_PAYLOAD_TOO_LARGE")
		c.Header = map[string]string{"Content-Encoding": "gzip"}
		f.wantError(c.Path, f.do(c), 415, "ERR_UNSUPPORTED_MEDIA_TYPE")
		c.Key = ""
		f.wantError(c.Path, f.do(c), 401, "ERR_UNAUTHORIZED") // is checked before
	}
	f.wantWorks(map[string]bool{key: true})
	f.want(f.do(call{"DELETE", "/agents/a@b", key, strings.Repeat("x", 65_536), nil}), 200, "")
}

// TestStreamsCount: an inbox stream counts as a waiting poll.
func TestStreamsCount(t *testing.T) {
	t.Parallel()
	f := start(t, func(f *fixture) { f.Limits.PollsPerAddress = 1 })
	f.open(f.register("a@b"), nil).frame()
	f.wantError("the second stream", f.get("/agent/inbox", f.register("c@b")), 429, "ERR_RATE_LIMITED")
}

// G-25: the rows for a fault and for a shutdown.
func TestFaultAndShutdown(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	key := f.register("a@b", object{"endpoint": "https://agent.example/secret-path"})
	change := func(endpoint []byte) (before []byte) {
		t.Helper()
		if err := f.Relay.Update(t.Context(), relay.Peer{Local: true}, func(tx relay.ExtTx) error {
			err := tx.Query(func(scan func(...any) error) error { return scan(&before) }, "SELECT endpoint FROM hub_agent")
			_, changed := tx.Exec("UPDATE hub_agent SET endpoint = ?", endpoint)
			return errors.Join(err, changed)
		}); err != nil {
			t.Fatal(err)
		}
		return before
	}
	before := change([]byte("\x01 this cannot be decrypted, because it has no tag"))
	a := f.get("/agents/a@b", key)
	f.wantError("a fault", a, 500, "ERR_INTERNAL")
	if a.has("decrypt") || !strings.Contains(f.Logged(), "request failed") {
		t.Errorf("the fault is answered with %v; the log is %s", a, f.Logged())
	}
	change(before)
	f.want(f.get("/agents/a@b", key), 200, "")

	f.Relay.Drain()
	calls := f.bodies(key)
	maps.Copy(calls, map[string]call{"delete": {"DELETE", "/agents/a@b", key, nil, nil},
		"inbox": {"GET", "/agent/inbox", key, nil, nil}, "health": {"GET", "/health", "", nil, nil}})
	for name, c := range calls {
		f.wantError(name, f.do(c), 503, "ERR_UNAVAILABLE")
	}
}

// G-10: a key of another kind is refused, even if the hub's database has it.
func TestOtherKinds(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	f.register("a@b")
	for _, kind := range []gateway.Kind{gateway.Channel, gateway.Member, gateway.Inbox, gateway.Callback, gateway.ToolUser,
		gateway.Principal, gateway.HubStream} {
		key := gateway.NewKey(kind)
		if err := f.Relay.Update(t.Context(), relay.Peer{Local: true}, func(tx relay.ExtTx) error {
			return gateway.AddKey(tx, key, gateway.Holder{Kind: kind, Owner: 1}) // the number of a@b
		}); err != nil {
			t.Fatal(err)
		}
		for _, u := range uses {
			if a := f.use(u, "a@b", key); a.Status != 401 {
				t.Errorf("%s %s with a key of the kind %s: %v", u.Method, u.Path, kind, a)
			}
		}
		f.want(f.rotate("a@b", key), 409, "ERR_AGENT_ID_TAKEN")
		f.want(f.get("/agent/inbox?session="+key, ""), 401, "ERR_UNAUTHORIZED")
	}
}
