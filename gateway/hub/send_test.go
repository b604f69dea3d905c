package hub_test

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"
)

// H-9: a request that breaks two rules of the order in HUB gets the answer of the earlier one.
func TestOrderOfChecks(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	alice, bob := f.register("alice@b"), f.register("bob@b")
	deleted := f.register("deleted@b")
	f.register("full@b")
	f.queue("bob@b", "full@b", 100, 100)
	f.want(f.remove("/agents/deleted@b", deleted), 200, "")
	id := func(key string) map[string]string { return map[string]string{"Idempotency-Key": key} }
	post := func(key string, body any, header map[string]string) answer {
		return f.do(call{"POST", "/messages", key, body, header})
	}
	f.want(post(alice, messageTo("bob@b", "alice@b", "first"), id("used")), 202, "")
	f.want(post(bob, messageTo("alice@b", "bob@b", "first"), id("used")), 202, "")

	hello := messageTo("bob@b", "alice@b", "hello")
	badEnvelope := messageTo("bob@b", "nobody@b", "")
	for _, c := range []struct {
		name, key string
		body      any
		header    map[string]string
		status    int
		code      string
	}{
		{"key, body", "", "{", nil, 401, "ERR_UNAUTHORIZED"},
		{"key, size of the body", "x", strings.Repeat(" ", 1<<17), nil, 401, "ERR_UNAUTHORIZED"},
		{"key, encoding of the body", deleted, hello, map[string]string{"Content-Encoding": "gzip"}, 401, "ERR_UNAUTHORIZED"},
		{"body, sender", alice, badEnvelope, nil, 400, "ERR_VALIDATION"},
		{"body, sender not registered", alice, with(messageTo("bob@b", "nobody@b", "x"), object{"stream": 1}), nil, 400,
			"ERR_VALIDATION"},
		{"receiver_id, sender not registered", alice, messageTo("b o b", "nobody@b", "x"), nil, 400, "ERR_VALIDATION"},
		{"body, other sender", alice, with(messageTo("bob@b", "bob@b", "x"), object{"stream": 1}), nil, 400,
			"ERR_VALIDATION"},
		{"sender not registered, and not that of the key", alice, messageTo("bob@b", "nobody@b", "x"), nil, 400,
			"ERR_SENDER_NOT_REGISTERED"},
		{"sender deleted, and not that of the key", alice, messageTo("bob@b", "deleted@b", "x"), nil, 400,
			"ERR_SENDER_NOT_REGISTERED"},
		{"sender not registered, Idempotency-Key", f.Operator, messageTo("bob@b", "nobody@b", "x"), id("ä"), 400,
			"ERR_SENDER_NOT_REGISTERED"},
		{"sender, malformed Idempotency-Key", alice, messageTo("bob@b", "bob@b", "x"), id("ä"), 403, "ERR_SENDER_MISMATCH"},
		{"sender, used Idempotency-Key", alice, messageTo("bob@b", "bob@b", "x"), id("used"), 403, "ERR_SENDER_MISMATCH"},
		{"malformed Idempotency-Key, receiver", alice, messageTo("nobody@b", "alice@b", "x"), id("ä"), 400, "ERR_VALIDATION"},
		{"used Idempotency-Key, receiver", alice, messageTo("nobody@b", "alice@b", "x"), id("used"), 409,
			"ERR_IDEMPOTENCY_CONFLICT"},
		{"used Idempotency-Key, limit", bob, messageTo("full@b", "bob@b", "x"), id("used"), 409, "ERR_IDEMPOTENCY_CONFLICT"},
		{"malformed Idempotency-Key, limit", bob, messageTo("full@b", "bob@b", "x"), id("ä"), 400, "ERR_VALIDATION"},
		{"receiver", bob, messageTo("nobody@b", "bob@b", "x"), nil, 404, "ERR_AGENT_NOT_FOUND"},
		{"receiver deleted", bob, messageTo("deleted@b", "bob@b", "x"), id("new"), 404, "ERR_AGENT_NOT_FOUND"},
		{"limit", bob, messageTo("full@b", "bob@b", "x"), id("new"), 429, "ERR_INBOX_FULL"},
		{"nothing", alice, with(hello, object{"stream": true, "other": 1}), id("new"), 202, ""},
		{"the operator may use any sender", f.Operator, hello, nil, 202, ""},
	} {
		if a := post(c.key, c.body, c.header); a.Status != c.status || a.code() != c.code {
			t.Errorf("%s: %v, want %d %s", c.name, a, c.status, c.code)
		}
	}
	// A receiver with a full queue that does not exist any more is unknown.
	f.want(f.remove("/agents/full@b", f.Operator), 200, "")
	f.want(post(bob, messageTo("full@b", "bob@b", "x"), nil), 404, "ERR_AGENT_NOT_FOUND")
}

// H-10: each row of the first table of HUB, "Sending", occurs, with trace_id.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	alice := f.register("alice@b")
	streaming := f.open(f.register("stream@b"), nil)
	streaming.frame()
	f.register("absent@b")
	const trace = `"trace_id":"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"`
	check := func(receiver string, status int, data string) {
		t.Helper()
		data = regexp.QuoteMeta(data)
		form := regexp.MustCompile(`^\{"success":true,"data":` + strings.ReplaceAll(data, "TRACE", trace) +
			`,"metadata":\{"timestamp":"[^"]*"\}\}\n$`)
		a := f.want(f.post("/messages", alice, messageTo(receiver, "alice@b", "hello")), status, "")
		if !form.Match(a.Body) {
			t.Errorf("%s: %v, want %s", receiver, a, data)
		}
		rows := f.history(alice, "")
		if row := rows[len(rows)-1]; row["trace_id"] != a.text("trace_id") || row["state"] != a.text("state") {
			t.Errorf("%s: the answer is %v, the history has %v", receiver, a, row)
		}
	}
	check("stream@b", 200, `{"delivery":"delivered_sse",TRACE,"state":"sent"}`)
	check("absent@b", 202, `{"delivery":"queued",TRACE,"state":"queued"}`)

	for n, c := range []struct {
		status      int // of the webhook's answer
		reply       string
		want        int // of the hub's answer
		description string
	}{
		{200, `{"status":"ok"}`, 200,
			`{"delivery":"delivered",TRACE,"receiver_response":{"status":"ok"},"state":"delivered"}`},
		{204, ``, 200, `{"delivery":"delivered",TRACE,"receiver_response":null,"state":"delivered"}`},
		{400, `{"status":"error","error_code":"INVALID_ENVELOPE","detail":"no"}`, 200,
			`{"delivery":"failed",TRACE,"error_code":"INVALID_ENVELOPE","detail":"no","state":"failed"}`},
		{302, `{"status":"error","error_code":"INVALID_ENVELOPE","detail":"no"}`, 200,
			`{"delivery":"failed",TRACE,"error_code":"ERR_AGENT_UNREACHABLE","detail":"HTTP 302","state":"failed"}`},
		{404, `not found`, 200,
			`{"delivery":"failed",TRACE,"error_code":"ERR_AGENT_UNREACHABLE","detail":"HTTP 404","state":"failed"}`},
		{503, `busy`, 202,
			`{"delivery":"queued",TRACE,"error_code":"ERR_AGENT_UNREACHABLE","detail":"HTTP 503","state":"queued"}`},
		{500, `{"status":"error","error_code":"MODEL","detail":"later"}`, 202,
			`{"delivery":"queued",TRACE,"error_code":"MODEL","detail":"later","state":"queued"}`},
	} {
		h := newFixedHook(t)
		h.status, h.reply = c.status, c.reply
		name := fmt.Sprintf("hook%d@b", n)
		f.register(name, object{"endpoint": h.URL})
		check(name, c.want, c.description)
	}
	gone := newFixedHook(t)
	gone.Close()
	f.register("gone@b", object{"endpoint": gone.URL})
	check("gone@b", 202,
		`{"delivery":"queued",TRACE,"error_code":"ERR_AGENT_UNREACHABLE","detail":"unreachable","state":"queued"}`)
	// A message after one that is tried again waits for it. Its sender is told so only after 15 seconds, see H-33.
}

// H-35: an Idempotency-Key answered 404 works once the receiver exists. G-24: no 4xx is kept for an Idempotency-Key.
func TestRefusalsAreNotKept(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	alice := f.register("alice@b")
	f.register("bob@b")
	send := func(body any) answer {
		return f.do(call{"POST", "/messages", alice, body, map[string]string{"Idempotency-Key": "key 1"}})
	}
	f.want(send("{"), 400, "ERR_VALIDATION")
	f.want(send(messageTo("carol@b", "nobody@b", "x")), 400, "ERR_SENDER_NOT_REGISTERED")
	f.want(send(messageTo("carol@b", "bob@b", "x")), 403, "ERR_SENDER_MISMATCH")
	f.queue("alice@b", "bob@b", 100, 100)
	f.wantLimit(send(messageTo("bob@b", "alice@b", "x")), "ERR_INBOX_FULL", "queuedFromSender")
	body := messageTo("carol@b", "alice@b", "hello")
	for range 2 {
		f.want(send(body), 404, "ERR_AGENT_NOT_FOUND")
	}
	carol := f.register("carol@b")
	first := f.want(send(body), 202, "")
	if again := send(body); string(again.Body) != string(first.Body) || first.Header.Get("Idempotent-Replay") != "" {
		t.Errorf("the first answer is %v, the repeated one %v", first, again)
	}
	if got := f.states(carol); !maps.Equal(got, map[string]string{"hello": "sent"}) {
		t.Errorf("the receiver has %v", got)
	}
}
