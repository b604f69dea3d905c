package a2a_test

import (
	"fmt"
	"strings"
	"testing"

	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/racing"
)

// each row of §6 that this gateway can answer holds in both bindings. A-10: errors of JSON-RPC are 200.
func TestErrors(t *testing.T) {
	racing.Skip(t, "one call after another")
	f := start(t)
	a := f.agentWith(newKey(t), wire.Public, wire.ModeMessage, func(c *wire.Card) {
		c.Capabilities.Extensions = []wire.Extension{{URI: "urn:needed", Required: true}, {URI: "urn:more"}}
	})
	c := caller{agent: a}
	send := func(body string) []string { return []string{"SendMessage", body, "POST", "/message:send", body} }
	for _, test := range []struct {
		call   []string // method, params; verb, path, body
		header []string
		code   wire.Code
		status int
		detail string
	}{
		{[]string{"GetTask", `{"id":"x"}`, "GET", "/tasks/x", ""}, nil, wire.TaskNotFound, 404, "TASK_NOT_FOUND"},
		{[]string{"CancelTask", `{"id":"x"}`, "POST", "/tasks/x:cancel", "{}"}, nil, wire.TaskNotFound, 404, "TASK_NOT_FOUND"},
		// What a2a-go sends.
		{[]string{"CancelTask", `{"id":"x"}`, "POST", "/tasks/x:cancel", "null"}, nil, wire.TaskNotFound, 404, "TASK_NOT_FOUND"},
		{[]string{"GetExtendedAgentCard", `{}`, "GET", "/extendedAgentCard", ""}, nil, wire.UnsupportedOperation, 400, "UNSUPPORTED_OPERATION"},
		{[]string{"ListTaskPushNotificationConfigs", `{"taskId":"x"}`, "GET", "/tasks/x/pushNotificationConfigs", ""}, nil,
			wire.TaskNotFound, 404, "TASK_NOT_FOUND"},
		{send(`{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}]}}`), nil, wire.ExtensionSupportRequired, 400,
			"EXTENSION_SUPPORT_REQUIRED"},
		{send(`{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"url":"http://127.0.0.1/","mediaType":"image/png"}]}}`),
			[]string{"A2A-Extensions", "urn:needed"}, wire.ContentTypeNotSupported, 400, "CONTENT_TYPE_NOT_SUPPORTED"},
		{send(`{}`), []string{"A2A-Version", "0.3"}, wire.VersionNotSupported, 400, "VERSION_NOT_SUPPORTED"},
		{send(`{"message":{"messageId":"m","role":"ROLE_USER","parts":[]}}`), nil, wire.BadParams, 400, "message.parts"},
		{send(`{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x","url":"y"}]}}`), nil, wire.BadParams, 400, "message.parts[0]"},
		{send(`{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}],"contextId":"a b"}}`), nil, wire.BadParams, 400,
			"message.contextId"},
		{send(`{"message":` + strings.Repeat("[", 60) + strings.Repeat("]", 60) + "}"), nil, wire.BadJSON, 400, ""},
	} {
		a := c.post("/rpc", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, test.call[0], test.call[1]), test.header...)
		detail := text(a.Body, "error", "data", 0, "reason") + text(a.Body, "error", "data", 0, "fieldViolations", 0, "field")
		if a.Status != 200 || member(a.Body, "error", "code") != float64(test.code) || detail != test.detail {
			t.Errorf("%s %s: %v, want %d %s", test.call[0], test.call[1], a, test.code, test.detail)
		}
		var body any
		if test.call[4] != "" {
			body = test.call[4]
		}
		a = c.send(test.call[2], test.call[3], body, test.header...)
		detail = text(a.Body, "error", "details", 0, "reason") + text(a.Body, "error", "details", 0, "fieldViolations", 0, "field")
		if a.Status != test.status || member(a.Body, "error", "code") != float64(test.status) || detail != test.detail ||
			text(a.Body, "error", "status") != test.code.Info().Status {
			t.Errorf("%s %s: %v, want %d %s", test.call[2], test.call[3], a, test.status, test.detail)
		}
	}
	sent := c.rpc("SendMessage", object{"message": message("x"), "configuration": object{"returnImmediately": true}},
		"A2A-Extensions", "urn:needed, urn:other")
	if c.ok(sent); fmt.Sprint(sent.header["A2a-Extensions"]) != "[urn:needed]" {
		t.Errorf("the extensions in use are %v", sent.header)
	}
}

// what is no request of JSON-RPC has its own errors. A-12: a bad Content-Type in JSON-RPC is -32005.
func TestMalformedRPC(t *testing.T) {
	racing.Skip(t, "one call after another")
	f := start(t)
	c := caller{agent: f.agent(wire.Public)}
	for body, want := range map[string]wire.Code{
		`{`: wire.BadJSON, `"x"`: wire.BadJSON, `{"jsonrpc":"2.0","id":1,"id":2}`: wire.BadJSON,
		`[{"jsonrpc":"2.0","id":1,"method":"GetTask"}]`:           wire.BadRequest,
		`{"jsonrpc":"2.0","method":"GetTask"}`:                    wire.BadRequest,
		`{"jsonrpc":"1.0","id":1,"method":"GetTask"}`:             wire.BadRequest,
		`{"jsonrpc":"2.0","id":1,"method":"GetTask","params":[]}`: wire.BadRequest,
		`{"jsonrpc":"2.0","id":1,"method":"message/send"}`:        wire.UnknownMethod,
		`{"jsonrpc":"2.0","id":1,"method":"GetTask"}`:             wire.BadParams,
	} {
		for _, path := range []string{"/rpc", "/rpc/", "", "/"} {
			if got := c.post(path, body); got.Status != 200 || member(got.Body, "error", "code") != float64(want) {
				t.Errorf("%s %s: %v, want %d", path, body, got, want)
			}
		}
	}
	for kind, want := range map[string]any{"": -32005.0, "text/plain": -32005.0, "application/jsonx": -32005.0,
		"application/json; charset=utf-8": -32602.0, "application/a2a+json": -32602.0} {
		got := c.post("/rpc", `{"jsonrpc":"2.0","id":1,"method":"GetTask"}`, "Content-Type", kind)
		if got.Status != 200 || member(got.Body, "error", "code") != want {
			t.Errorf("%q: %v, want %v", kind, got, want)
		}
	}
	got := f.do(call{"POST", c.path + "/message:send", "", `{"message":1}`, nil})
	if got.Status != 400 || text(got.Body, "error", "status") != "INVALID_ARGUMENT" {
		t.Errorf("without a Content-Type: %v", got)
	}
}

// another version is refused; none is 1.0. It may be in the header or in the query.
func TestVersions(t *testing.T) {
	racing.Skip(t, "one call after another")
	f := start(t)
	c := caller{agent: f.agent(wire.Public)}
	for version, known := range map[string]bool{"": true, "1.0": true, "0.3": false, "1.1": false, "1": false, "1.0.1": false} {
		byHeader := c.send("GET", "/tasks", nil, "A2A-Version", version)
		byQuery := c.send("GET", "/tasks?A2A-Version="+version, nil)
		for _, got := range []answer{byHeader, byQuery} {
			if (got.Status == 200) != known || !known && text(got.Body, "error", "details", 0, "reason") != "VERSION_NOT_SUPPORTED" {
				t.Errorf("version %q: %v", version, got)
			}
		}
	}
}

// a part of a type that the card lacks is refused; text takes text.
func TestInputModes(t *testing.T) {
	racing.Skip(t, "one call after another")
	f := start(t)
	for mode, takes := range map[string][]string{"text/plain": {"text"}, "text": {"text", "html"}, "text/*": {"text", "html"},
		"data": {"data"}, "application/json": {"data"}, "*/*": {"text", "html", "data", "raw"}, "file": {"text", "html", "data", "raw"},
		"IMAGE/PNG": {}} {
		c := caller{agent: f.agentWith(newKey(t), wire.Public, wire.ModeMessage, func(c *wire.Card) { c.DefaultInputModes = []string{mode} })}
		for name, part := range map[string]object{"text": {"text": "x"}, "html": {"text": "x", "mediaType": "text/html; charset=utf-8"},
			"data": {"data": nil}, "raw": {"raw": "AAAA"}} {
			m := object{"messageId": "m", "role": "ROLE_USER", "parts": []object{part}}
			got := c.rpc("SendMessage", object{"message": m, "configuration": object{"returnImmediately": true}})
			if want := strings.Contains(strings.Join(takes, " "), name); (got.Error.Code == 0) != want {
				t.Errorf("%s takes %s: %+v, want %v", mode, name, got.Error, want)
			} else if !want && got.Error.Code != int(wire.ContentTypeNotSupported) {
				t.Errorf("%s, %s: %+v", mode, name, got.Error)
			}
		}
	}
}

// nothing redirects, and other methods are 405.
func TestMethods(t *testing.T) {
	racing.Skip(t, "one call after another")
	f := start(t)
	c := caller{agent: f.agent(wire.Public)}
	for path, allow := range map[string]string{"/rpc": "POST", "": "GET, POST", "/message:send/": "POST", "/tasks/x:subscribe": "GET, POST"} {
		got := c.send("PUT", path, nil)
		if got.Status != 405 || got.Header.Get("Allow") != allow || text(got.Body, "error", "status") != "UNIMPLEMENTED" {
			t.Errorf("PUT %s: %v %v", path, got, got.Header)
		}
	}
}
