package conformance_test

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agora-relay/agora/conformance"
	"github.com/agora-relay/agora/internal/a2a"
)

// faultyA2A is a server with one fault.
type faultyA2A struct {
	name    string
	request func(s a2aServer, r *http.Request, body string) string // changes a request, and returns its body
	answer  func(r *http.Request, asked, text string) string       // changes an answer, or an event of a stream
	status  func(r *http.Request, body string) int                 // answers with this status, unless it is 0
	// fails has the checks that must fail, each with a text that Result.Got must contain.
	fails map[string]string
}

// TestA2AFaultsAreDetected tests that checks can fail, and that every check does so for one of the faults. All faults
// have the same server, one after the other. TestOwnA2APasses tests that the checks pass without a fault.
func TestA2AFaultsAreDetected(t *testing.T) {
	skipWithRaceDetector(t)
	t.Parallel()
	takeTurn(t)
	var current atomic.Pointer[faultyA2A]
	var s a2aServer
	s = startA2A(t, a2a.Keys, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if f := current.Load(); f != nil && f.applies(s, r) {
				f.serve(s, next, w, r)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	named := map[string]bool{}
	for _, f := range faultyA2AServers() {
		t.Run(f.name, func(t *testing.T) {
			current.Store(&f)
			defer current.Store(nil)
			o := conformance.A2AOptions{Bearer: s.bearer, Other: s.other}
			for number := range f.fails {
				named[number] = true
				o.Only = append(o.Only, number)
			}
			report, err := conformance.RunA2A(t.Context(), s.url, o)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range report.Results {
				if r.Status != conformance.Failed || !strings.Contains(r.Got, f.fails[r.Number]) {
					t.Errorf("want failed with %q:\n%s", f.fails[r.Number], r.Finding())
				}
			}
			if len(report.Results) != len(f.fails) || report.Holds() {
				t.Errorf("%d results, and Holds returns %v", len(report.Results), report.Holds())
			}
		})
	}
	for _, c := range conformance.A2AChecks() {
		if !named[c.Number] {
			t.Errorf("no fault shows that %s can fail", c.Number)
		}
	}
}

// applies reports whether a request is one of a caller of the agent.
func (f *faultyA2A) applies(s a2aServer, r *http.Request) bool {
	path, ok := strings.CutPrefix(r.URL.Path, "/a2a/z")
	return ok && !strings.HasPrefix(r.Header.Get("Authorization"), "Agora ") && path != ""
}

func (f *faultyA2A) serve(s a2aServer, next http.Handler, w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if f.status != nil {
		if status := f.status(r, string(body)); status != 0 {
			w.WriteHeader(status)
			return
		}
	}
	if f.request != nil {
		body = []byte(f.request(s, r, string(body)))
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.Header.Del("Content-Length")
	edited := &editedAnswer{ResponseWriter: w, edit: func(text string) string { return text }}
	if f.answer != nil {
		edited.edit = func(text string) string { return f.answer(r, string(body), text) }
	}
	next.ServeHTTP(edited, r)
	edited.end()
}

// editedAnswer changes an answer: the frames of a stream one by one, and another body as a whole.
type editedAnswer struct {
	http.ResponseWriter
	edit   func(string) string
	status int
	rest   string
}

func (e *editedAnswer) WriteHeader(status int) { e.status = status }

func (e *editedAnswer) Unwrap() http.ResponseWriter { return e.ResponseWriter }

func (e *editedAnswer) stream() bool {
	return strings.HasPrefix(e.Header().Get("Content-Type"), "text/event-stream")
}

func (e *editedAnswer) Write(p []byte) (int, error) {
	for e.rest += string(p); e.stream(); {
		frame, rest, ok := strings.Cut(e.rest, "\n\n")
		if !ok {
			break
		}
		e.rest = rest
		if _, err := io.WriteString(e.ResponseWriter, e.edit(frame+"\n\n")); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Flush sends what a stream has.
func (e *editedAnswer) Flush() {
	if e.stream() {
		_ = http.NewResponseController(e.ResponseWriter).Flush() // the client may have left
	}
}

func (e *editedAnswer) end() {
	text := e.rest
	if !e.stream() {
		text = e.edit(text)
		e.Header().Del("Content-Length")
		if e.status != 0 {
			e.ResponseWriter.WriteHeader(e.status)
		}
	}
	_, _ = io.WriteString(e.ResponseWriter, text) // the client may have left
}

// without returns a change of requests that renames a member of params or a query, so that the server ignores it.
func without(name string) func(a2aServer, *http.Request, string) string {
	return func(_ a2aServer, r *http.Request, body string) string {
		r.URL.RawQuery = strings.ReplaceAll(r.URL.RawQuery, name+"=", "ignored=")
		return strings.ReplaceAll(body, `"`+name+`":`, `"ignored":`)
	}
}

// withoutHeader returns a change of requests that removes a header.
func withoutHeader(name string) func(a2aServer, *http.Request, string) string {
	return func(_ a2aServer, r *http.Request, body string) string {
		r.Header.Del(name)
		return body
	}
}

// replaced returns a change of answers to requests whose path contains a text.
func replaced(path, from, to string) func(*http.Request, string, string) string {
	return func(r *http.Request, _, text string) string {
		if !strings.Contains(r.URL.Path, path) {
			return text
		}
		return strings.ReplaceAll(text, from, to)
	}
}

var (
	onlyTask = regexp.MustCompile(`(?s)^(id: \d+\n)?data: .*"task":\{.*$`)
	eventID  = regexp.MustCompile(`(?m)^id: \d+$`)
)

func faultyA2AServers() []faultyA2A {
	return []faultyA2A{
		{name: "has no skills", answer: replaced("agent-card", `"skills"`, `"abilities"`),
			fails: map[string]string{"a2a.card.form": "status 200", "a2a.card.signature": "no valid signature"}},
		{name: "sends the card again", request: withoutHeader("If-None-Match"),
			fails: map[string]string{"a2a.card.cache": "status 200"}},
		{name: "changes the card", answer: replaced("agent-card", "Prüfling", "Prufling"),
			fails: map[string]string{"a2a.card.signature": "is not one over this card"}},
		{name: "has another task in HTTP+JSON", answer: replaced("/tasks/", `"artifactId"`, `"artifact"`),
			fails: map[string]string{"a2a.binding.same": "status", "a2a.stream.artifacts": "GetTask"}},
		{name: "has one code for all errors", answer: func(_ *http.Request, _, text string) string {
			return regexp.MustCompile(`"code":(-32\d+|40\d)`).ReplaceAllString(text, `"code":-32603`)
		}, fails: map[string]string{"a2a.binding.unknown": "-32603", "a2a.rpc.requests": "-32603",
			"a2a.callers.tasks": "-32603"}},
		{name: "ignores the version", request: withoutHeader("A2A-Version"),
			fails: map[string]string{"a2a.binding.version": "TASK_NOT_FOUND"}},
		{name: "forgets tasks", status: func(r *http.Request, _ string) int {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/tasks/") {
				return http.StatusNotFound
			}
			return 0
		}, fails: map[string]string{"a2a.task.kept": "status 404"}},
		{name: "ignores the context", request: without("contextId"), fails: map[string]string{"a2a.task.context": "contextId",
			"a2a.list.pages": "status 200", "a2a.list.empty": `"tasks":[{`}},
		{name: "ignores historyLength", request: without("historyLength"),
			fails: map[string]string{"a2a.task.history": "history"}},
		{name: "begins another task", request: without("taskId"), fails: map[string]string{"a2a.task.over": `"task":`,
			"a2a.binding.unknown": `"task":`}},
		{name: "goes on after a cancel", answer: func(_ *http.Request, asked, text string) string {
			if strings.Contains(asked, `"GetTask"`) {
				text = strings.ReplaceAll(text, "TASK_STATE_CANCELED", "TASK_STATE_WORKING")
			}
			return text
		}, fails: map[string]string{"a2a.task.cancel": "WORKING"}},
		{name: "ignores the page token", request: without("pageToken"),
			fails: map[string]string{"a2a.list.pages": "with the timestamps", "a2a.list.params": "status 200"}},
		{name: "begins a stream without the task", answer: func(_ *http.Request, _, text string) string {
			if onlyTask.MatchString(text) {
				return ""
			}
			return text
		}, fails: map[string]string{"a2a.stream.first": "Update"}},
		{name: "repeats the last event", answer: func(_ *http.Request, _, text string) string {
			if strings.Contains(text, "COMPLETED") && strings.Contains(text, "data: ") {
				return text + text
			}
			return text
		}, fails: map[string]string{"a2a.stream.end": "COMPLETED"}},
		{name: "loses a piece", answer: func(_ *http.Request, _, text string) string {
			if strings.Contains(text, `"append":true`) {
				return ""
			}
			return text
		}, fails: map[string]string{"a2a.stream.artifacts": "Hello, kit."}},
		{name: "repeats a piece in the second stream", answer: func(r *http.Request, _, text string) string {
			if strings.Contains(r.URL.Path, ":subscribe") && strings.Contains(text, `"artifactUpdate"`) {
				return text + text
			}
			return text
		}, fails: map[string]string{"a2a.stream.two": "kit.", "a2a.stream.resume": "kit."}},
		{name: "numbers the events of SubscribeToTask otherwise", answer: func(r *http.Request, _, text string) string {
			if !strings.Contains(r.URL.Path, ":subscribe") {
				return text
			}
			return eventID.ReplaceAllString(text, "${0}0")
		}, fails: map[string]string{"a2a.stream.resume": "0"}},
		{name: "ignores Last-Event-ID", request: withoutHeader("Last-Event-Id"),
			fails: map[string]string{"a2a.stream.resume": "id"}},
		{name: "repeats events after Last-Event-ID", request: func(_ a2aServer, r *http.Request, body string) string {
			if r.Header.Get("Last-Event-Id") != "" {
				r.Header.Set("Last-Event-Id", "0")
			}
			return body
		}, fails: map[string]string{"a2a.stream.resume": "SUBMITTED"}},
		{name: "has another error for tasks that are over", answer: replaced("", "UNSUPPORTED_OPERATION", "OTHER"),
			fails: map[string]string{"a2a.stream.over": "OTHER", "a2a.task.over": "OTHER"}},
		{name: "takes callers without a key", request: func(s a2aServer, r *http.Request, body string) string {
			r.Header.Set("Authorization", "Bearer "+s.bearer)
			return body
		}, fails: map[string]string{"a2a.callers.key": "status", "a2a.callers.tasks": "status",
			"a2a.callers.lists": "totalSize"}},
		{name: "fails at large bodies", status: func(_ *http.Request, body string) int {
			if len(body) > 1<<20 || strings.Contains(body, "[[[[[") {
				return http.StatusInternalServerError
			}
			return 0
		}, fails: map[string]string{"a2a.limits.large": "status 500", "a2a.limits.deep": "status 500"}},
	}
}
