package a2a_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
)

const hello = `{"messageId":"m","parts":[{"text":"Hi"}],"role":"ROLE_USER"}`

// parsers has every function that reads an object, by its name in the cases of TestInvalid.
var parsers = map[string]func(text []byte) (any, error){
	"send":       func(text []byte) (any, error) { return a2a.ParseSend(text) },
	"task":       func(text []byte) (any, error) { return a2a.ParseTaskParams(text) },
	"list":       func(text []byte) (any, error) { return a2a.ParseList(text) },
	"push":       func(text []byte) (any, error) { return a2a.ParsePush(text) },
	"pushparams": func(text []byte) (any, error) { return a2a.ParsePushParams(text, true) },
	"stream":     func(text []byte) (any, error) { return a2a.ParseStream("", text) },
	"progress":   func(text []byte) (any, error) { return a2a.ParseProgress(text) },
	"output":     func(text []byte) (any, error) { return a2a.ParseOutput(text) },
	"turn":       func(text []byte) (any, error) { return a2a.ParseTurn(text) },
}

func turn(change func(turn map[string]any)) string {
	object := map[string]any{"task": "tsk_1", "turn": 1, "context": "cv_1", "caller": map[string]any{"kind": "anonymous"},
		"message": json.RawMessage(hello), "history": []any{}, "work": gateway + "/work/trn_1"}
	change(object)
	return string(jsontext.Compact(object))
}

// TestInvalid checks that what is wrong is refused with the name of its member.
func TestInvalid(t *testing.T) {
	event := func(parts string) string {
		return `{"artifactUpdate":{"artifact":{"artifactId":"a","parts":` + parts + `},"taskId":"t"}}`
	}
	for _, c := range []struct{ parser, text, field string }{
		{"send", `{}`, "message"},
		{"send", `{"message":"x"}`, "message"},
		{"send", `{"message":null}`, "message"},
		{"send", `{"message":{"parts":[{"text":"Hi"}],"role":"ROLE_USER"}}`, "message.messageId"},
		{"send", `{"message":{"messageId":"","parts":[{"text":"Hi"}],"role":"ROLE_USER"}}`, "message.messageId"},
		{"send", `{"message":{"messageId":"m","parts":[{"text":"Hi"}],"role":"user"}}`, "message.role"},
		{"send", `{"message":{"messageId":"m","parts":[],"role":"ROLE_USER"}}`, "message.parts"},
		{"send", `{"message":{"messageId":"m","parts":[{}],"role":"ROLE_USER"}}`, "message.parts[0]"},
		{"send", `{"message":{"messageId":"m","parts":[{"text":"a"},{"text":"a","url":"b"}],"role":"ROLE_USER"}}`, "message.parts[1]"},
		{"send", `{"message":{"messageId":"m","parts":[{"text":1}],"role":"ROLE_USER"}}`, "message.parts[0].text"},
		{"send", `{"message":{"messageId":"m","parts":[{"raw":"a$"}],"role":"ROLE_USER"}}`, "message.parts[0].raw"},
		{"send", `{"message":{"messageId":"m","metadata":[],"parts":[{"text":"a"}],"role":"ROLE_USER"}}`, "message.metadata"},
		{"send", `{"message":{"extensions":[""],"messageId":"m","parts":[{"text":"a"}],"role":"ROLE_USER"}}`, "message.extensions[0]"},
		{"send", `{"message":{"contextId":"a b","messageId":"m","parts":[{"text":"a"}],"role":"ROLE_USER"}}`, "message.contextId"},
		{"send", `{"message":` + hello + `,"tenant":"x"}`, "tenant"},
		{"send", `{"configuration":{"historyLength":-1},"message":` + hello + `}`, "configuration.historyLength"},
		{"send", `{"configuration":{"historyLength":1.5},"message":` + hello + `}`, "configuration.historyLength"},
		{"send", `{"configuration":{"returnImmediately":"yes"},"message":` + hello + `}`, "configuration.returnImmediately"},
		{"send", `{"configuration":{"taskPushNotificationConfig":{}},"message":` + hello + `}`, "configuration.taskPushNotificationConfig.url"},
		{"task", `{}`, "id"},
		{"list", `{"pageSize":0}`, "pageSize"},
		{"list", `{"pageSize":101}`, "pageSize"},
		{"list", `{"status":"DONE"}`, "status"},
		{"list", `{"statusTimestampAfter":"yesterday"}`, "statusTimestampAfter"},
		{"push", `{"url":"https://a.example"}`, "taskId"},
		{"push", `{"authentication":{},"taskId":"t","url":"https://a.example"}`, "authentication.scheme"},
		{"push", `{"id":"` + strings.Repeat("x", 129) + `","taskId":"t","url":"https://a.example"}`, "id"},
		{"pushparams", `{"taskId":"t"}`, "id"},
		{"stream", `{}`, ""},
		{"stream", `{"message":` + hello + `,"task":{}}`, ""},
		{"stream", `{"task":{"id":"t"}}`, "task.status"},
		{"stream", `{"task":{"id":"t","status":{"state":"TASK_STATE_DONE"}}}`, "task.status.state"},
		{"stream", `{"statusUpdate":{"status":{"state":"TASK_STATE_WORKING"}}}`, "statusUpdate.taskId"},
		{"stream", `{"artifactUpdate":{"artifact":{"artifactId":"a","parts":[{"text":"x"}]}}}`, "artifactUpdate.taskId"},
		{"stream", event(`[]`), "artifactUpdate.artifact.parts"},
		{"stream", event(`[{"raw":7}]`), "artifactUpdate.artifact.parts[0].raw"},
		{"progress", `{"events":[]}`, "events"},
		{"progress", `{"events":[` + strings.TrimSuffix(strings.Repeat(`{"statusUpdate":{"state":"TASK_STATE_WORKING"}},`, 65), ",") + `]}`, "events"},
		{"progress", `{"events":[{"statusUpdate":{"state":"TASK_STATE_COMPLETED"}}]}`, "events[0].statusUpdate.state"},
		{"output", `{"artifacts":[{"artifactId":"a"}]}`, "output.a2a.artifacts[0].parts"},
		{"output", `{"direct":1}`, "output.a2a.direct"},
		{"output", `{"proof":{"turn":"1"}}`, "output.a2a.proof.payload"},
		{"turn", turn(func(turn map[string]any) { turn["turn"] = 0 }), "params.turn"},
		{"turn", turn(func(turn map[string]any) { delete(turn, "turn") }), "params.turn"},
		{"turn", turn(func(turn map[string]any) { turn["caller"] = map[string]any{"kind": "x"} }), "params.caller.kind"},
		{"turn", turn(func(turn map[string]any) { delete(turn, "work") }), "params.work"},
		{"turn", turn(func(turn map[string]any) { turn["message"] = json.RawMessage(noParts) }), "params.message.parts"},
	} {
		_, err := parsers[c.parser](canonical(t, c.text))
		refused, ok := errors.AsType[*a2a.Error](err)
		if !ok || refused.Code != a2a.BadParams || len(refused.Violations) != 1 || refused.Violations[0].Field != c.field {
			t.Errorf("%s %s: %v, want the field %q", c.parser, c.text, err, c.field)
		}
	}
}

const noParts = `{"messageId":"m","parts":[],"role":"ROLE_USER"}`

func canonical(t testing.TB, text string) []byte {
	t.Helper()
	canonical, err := a2a.Body([]byte(text), a2a.MaxBody)
	if err != nil {
		t.Fatal(err)
	}
	return canonical
}

// TestKept checks that objects that were read are written with all their members, and that null is absent.
func TestKept(t *testing.T) {
	text := `{"configuration":null,"message":{"contextId":"c","messageId":"m","metadata":{},"parts":[{"data":null,"x":[]},{"text":""}],"role":"ROLE_USER","taskId":null,"x":1}}`
	s, err := a2a.ParseSend(canonical(t, text))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(jsontext.Compact(s.Message)); !strings.Contains(text, got) {
		t.Errorf("got %s", got)
	}
	moved := s.Message.In("d", "t", []string{"u"})
	if got, want := string(jsontext.Compact(moved)), `{"contextId":"d","messageId":"m","metadata":{},"parts":[{"data":null,"x":[]},{"text":""}],`+
		`"referenceTaskIds":["u"],"role":"ROLE_USER","taskId":"t","x":1}`; got != want || moved.TaskID != "t" || s.Message.ContextID != "c" {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := string(jsontext.Compact(moved.WithoutParts().In("", "", nil))); got != `{"messageId":"m","metadata":{},"parts":[],"role":"ROLE_USER","x":1}` {
		t.Errorf("got %s", got)
	}
	made := a2a.Message{MessageID: "m", Role: a2a.User, Parts: []a2a.Part{a2a.TextPart("<")}}.In("c", "", nil)
	if got := string(jsontext.Compact(made)); got != `{"messageId":"m","role":"ROLE_USER","parts":[{"text":"<"}],"contextId":"c"}` {
		t.Errorf("got %s", got)
	}
	first, err1 := a2a.ParseArtifact("", canonical(t, `{"artifactId":"a","parts":[{"text":"1"}],"y":2}`))
	second, err2 := a2a.ParseArtifact("", canonical(t, `{"artifactId":"a","name":"n","parts":[{"data":3}]}`))
	if got := string(jsontext.Compact(first.Append(second))); err1 != nil || err2 != nil || got != `{"artifactId":"a","parts":[{"text":"1"},{"data":3}],"y":2}` {
		t.Errorf("got %s, %v, %v", got, err1, err2)
	}
	if media := fmt.Sprint(first.Parts[0].Media(), second.Parts[0].Media(), a2a.Part{URL: "u"}.Media(), a2a.Part{URL: "u", MediaType: "image/png"}.Media()); media !=
		"text/plainapplication/jsonapplication/octet-streamimage/png" {
		t.Error(media)
	}
}

func TestTurn(t *testing.T) {
	text := turn(func(turn map[string]any) { turn["partial"], turn["message"] = true, json.RawMessage(noParts) })
	got, err := a2a.ParseTurn(canonical(t, text))
	if err != nil || got.Task != "tsk_1" || got.Turn != 1 || got.Caller.Kind != a2a.CallerAnonymous || len(got.Message.Parts) != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	again, err := a2a.ParseTurn(canonical(t, string(jsontext.Compact(got))))
	if err != nil || !reflect.DeepEqual(got, again) {
		t.Errorf("written and read: %+v, %v", again, err)
	}
}

func TestBody(t *testing.T) {
	nested := func(levels int) []byte {
		return []byte(strings.Repeat(`{"a":`, levels-1) + "{}" + strings.Repeat("}", levels-1))
	}
	large := func(size int) []byte { return []byte(`{"a":"` + strings.Repeat("x", size-len(`{"a":""}`)) + `"}`) }
	for name, c := range map[string]struct {
		body []byte
		want int
	}{
		"levels": {nested(a2a.MaxLevels), 0}, "one more": {nested(a2a.MaxLevels + 1), 400},
		"1 MiB": {large(a2a.MaxBody), 0}, "one byte more": {large(a2a.MaxBody + 1), 413},
		"list": {[]byte(`[{}]`), 400}, "no JSON": {[]byte(`{"a"`), 400}, "twice": {[]byte(`{"a":1,"a":2}`), 400},
	} {
		_, err := a2a.Body(c.body, a2a.MaxBody)
		refused, got := errors.AsType[*a2a.Error](err)
		if got != (c.want != 0) || got && (refused.Status() != c.want || c.want == 400 && refused.Code != a2a.BadJSON) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRPC(t *testing.T) {
	for _, c := range []struct{ body, id, method, err string }{
		{`{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"x"}}`, "1", "GetTask", ""},
		{`{"jsonrpc":"2.0","id":"a","method":"GetTask"}`, `"a"`, "GetTask", ""},
		{`{"jsonrpc":"2.0","id":null,"method":"GetTask"}`, "null", "", "id must be"},
		{`{"jsonrpc":"2.0","method":"GetTask"}`, "null", "", "id must be"},
		{`{"jsonrpc":"1.0","id":-1,"method":"GetTask"}`, "-1", "", "jsonrpc must be"},
		{`{"jsonrpc":"2.0","id":1}`, "1", "", "method must be"},
		{`{"jsonrpc":"2.0","id":1,"method":"GetTask","params":[]}`, "1", "GetTask", "params must be an object"},
	} {
		r, err := a2a.ParseRPC(canonical(t, c.body))
		refused, ok := errors.AsType[*a2a.Error](err)
		if string(r.ID) != c.id || r.Method != c.method || (err != nil) != (c.err != "") ||
			err != nil && (!ok || refused.Code != a2a.BadRequest || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %+v, %v", c.body, r, err)
		}
	}
	if m, ok := a2a.FindMethod("CancelTask"); !ok || m.Path != "/tasks/{id}:cancel" || m.Verbs[0] != http.MethodPost || len(a2a.Methods()) != 11 {
		t.Errorf("got %+v", m)
	}
}

// a query and a path have the same params as JSON-RPC.
func TestHTTPParams(t *testing.T) {
	query, err := url.ParseQuery("pageSize=7&includeArtifacts=true&contextId=12&A2A-Version=1.0&historyLength=2&historyLength=3")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := a2a.QueryParams(query); err != nil || string(got) != `{"contextId":"12","historyLength":2,"includeArtifacts":true,"pageSize":7}` {
		t.Errorf("got %s, %v", got, err)
	}
	params, err := a2a.QueryParams(url.Values{"pageSize": {"many"}, "x": {"\xff"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = a2a.ParseList(params); err == nil || !strings.Contains(err.Error(), "pageSize must be a whole number") {
		t.Error(err)
	}
	for name, want := range map[string]string{
		"GetTask":                          `{"id":"t/1","x":1}`,
		"CreateTaskPushNotificationConfig": `{"id":"mine","taskId":"t/1","x":1}`,
		"ListTasks":                        `{"id":"mine","x":1}`,
	} {
		m, _ := a2a.FindMethod(name)
		task := "t/1"
		if name == "ListTasks" {
			task = ""
		}
		if got := string(m.PathParams(json.RawMessage(`{"id":"mine","x":1}`), task, "")); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
	m, _ := a2a.FindMethod("GetTaskPushNotificationConfig")
	if got := string(m.PathParams(json.RawMessage(`{}`), "t", "c")); got != `{"id":"c","taskId":"t"}` {
		t.Errorf("got %s", got)
	}
}

// Params may have the names of the .proto file, as in ProtoJSON. The name in JSON counts if both are there.
func TestProtoNames(t *testing.T) {
	l, err := a2a.ParseList([]byte(`{"context_id":"c","history_length":2,"historyLength":1,"include_artifacts":true,"page_size":7}`))
	if want := (a2a.List{ContextID: "c", HistoryLength: 1, IncludeArtifacts: true, PageSize: 7}); err != nil || l != want {
		t.Errorf("got %+v, %v", l, err)
	}
	if p, err := a2a.ParsePush([]byte(`{"task_id":"t","url":"https://hook.example/"}`)); err != nil || p.TaskID != "t" {
		t.Errorf("got %+v, %v", p, err)
	}
	if _, err := a2a.ParsePushParams([]byte(`{"task_id":1}`), false); err == nil || !strings.Contains(err.Error(), "taskId must be a text") {
		t.Error(err)
	}
}

// FuzzParse checks that no body makes a parser panic, that every refusal is an *Error, and that what was read is written
// and read again as the same.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"message":` + hello + `,"configuration":{"historyLength":2}}`))
	f.Add([]byte(turn(func(map[string]any) {})))
	f.Add([]byte(`{"task":{"id":"t","status":{"state":"TASK_STATE_WORKING"},"artifacts":[{"artifactId":"a","parts":[{"data":null}]}]}}`))
	f.Add([]byte(`{"events":[{"artifactUpdate":{"artifact":{"artifactId":"a","parts":[{"raw":"AA=="}]},"append":true}}]}`))
	f.Add([]byte(`{"artifacts":[],"direct":true,"proof":{"turn":"1","payload":"a","protected":"b","signature":"c"}}`))
	f.Add([]byte(`{"kind":"task","status":{"state":"input-required","message":{"role":"agent","parts":[{"kind":"file","file":{"bytes":"AA=="}}]}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		text, err := a2a.Body(body, a2a.MaxBody)
		if err != nil {
			return
		}
		_ = a2a.ReadError(text, 500)
		_, _ = a2a.ReadCard(text) // it must not panic
		if kept, err := a2a.FromLegacy(text); err == nil && !json.Valid(kept) {
			t.Errorf("%s became %s", text, kept)
		}
		for name, parse := range parsers {
			value, err := parse(text)
			if _, ok := err.(*a2a.Error); err != nil && !ok {
				t.Fatalf("%s: %T %v", name, err, err)
			}
			if err != nil || name == "progress" {
				continue
			}
			written, err := envelope.Canonicalize(jsontext.Compact(value))
			if err != nil {
				t.Fatal(err)
			}
			if again, err := parse(written); err != nil || !bytes.Equal(jsontext.Compact(again), jsontext.Compact(value)) {
				t.Errorf("%s: %s was written as %s, %v", name, text, written, err)
			}
		}
	})
}

// FuzzVerifyCard checks that no byte of a signed card can change unnoticed.
func FuzzVerifyCard(f *testing.F) {
	e, text := signed(f, "Écho", a2a.Keys)
	for i := range 20 {
		f.Add(uint(i*37), byte(i+1))
	}
	f.Fuzz(func(t *testing.T, position uint, mask byte) {
		changed := bytes.Clone(text)
		changed[position%uint(len(text))] ^= mask
		if _, canonical, err := e.CheckCard(changed, a2a.Keys); err == nil && !bytes.Equal(canonical, text) {
			t.Errorf("accepted %s", changed)
		}
	})
}
