package conformance_test

import (
	"bytes"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agora-relay/agora/conformance"
	"github.com/agora-relay/agora/internal/a2a"
)

// TestA2AFaultsAreDetected tests that checks can fail, and that every check does so for one of the faults. All faults
// have the same server, one after the other. TestOwnA2APasses tests that the checks pass without a fault.
func TestA2AFaultsAreDetected(t *testing.T) {
	skipWithRaceDetector(t)
	t.Parallel()
	takeTurn(t)
	var server http.Handler
	var faulty atomic.Pointer[http.Handler]
	served := startA2A(t, a2a.Keys, func(next http.Handler) http.Handler {
		server = next
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if h := faulty.Load(); h != nil && isOfCaller(r) {
				(*h).ServeHTTP(w, r)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	servers := suite{checks: conformance.A2AChecks(), idle: true,
		start: func(t *testing.T, front middleware) string {
			h := front(server)
			faulty.Store(&h)
			t.Cleanup(func() { faulty.Store(nil) })
			return served.url
		},
		run: func(t *testing.T, url string, only []string, _, _ string) (conformance.Report, error) {
			return conformance.RunA2A(t.Context(), url, conformance.A2AOptions{Bearer: served.bearer, Other: served.other,
				Only: only})
		}}
	faults := faultyA2AServers(served)
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) { servers.testFault(t, f, false) })
	}
	servers.wantNamed(t, faults)
}

// isOfCaller reports whether a request is one of a caller of the agent.
func isOfCaller(r *http.Request) bool {
	path, ok := strings.CutPrefix(r.URL.Path, "/a2a/z")
	return ok && !strings.HasPrefix(r.Header.Get("Authorization"), "Agora ") && path != ""
}

// editsTexts is a middleware that changes answers as a whole, but streams frame by frame. asked is the body of the
// request.
func editsTexts(edit func(r *http.Request, asked, text string) string) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked := string(readBody(r))
			change := func(text string) string { return edit(r, asked, text) }
			edited := &editedAnswer{ResponseWriter: w, frame: change, body: change}
			h.ServeHTTP(edited, r)
			edited.end()
		})
	}
}

// ignoresMember is a middleware that renames a member of params or a query, so that the server ignores it.
func ignoresMember(name string) middleware {
	return changesHeader(func(r *http.Request) {
		r.URL.RawQuery = strings.ReplaceAll(r.URL.RawQuery, name+"=", "ignored=")
		setBody(r, bytes.ReplaceAll(readBody(r), []byte(`"`+name+`":`), []byte(`"ignored":`)))
	})
}

// replacesTexts does the same as editsTexts, for a text in answers to requests whose path contains another one.
func replacesTexts(path, from, to string) middleware {
	return editsTexts(func(r *http.Request, _, text string) string {
		if !strings.Contains(r.URL.Path, path) {
			return text
		}
		return strings.ReplaceAll(text, from, to)
	})
}

var (
	onlyTask = regexp.MustCompile(`(?s)^(id: \d+\n)?data: .*"task":\{.*$`)
	eventID  = regexp.MustCompile(`(?m)^id: \d+$`)
)

func faultyA2AServers(served a2aServer) []fault {
	return []fault{
		{name: "has no skills", front: replacesTexts("agent-card", `"skills"`, `"abilities"`),
			fails: map[string]string{"a2a.card.form": "status 200", "a2a.card.signature": "no valid signature"}},
		{name: "sends the card again", front: dropsHeader("If-None-Match"),
			fails: map[string]string{"a2a.card.cache": "status 200"}},
		{name: "changes the card", front: replacesTexts("agent-card", "Prüfling", "Prufling"),
			fails: map[string]string{"a2a.card.signature": "is not one over this card"}},
		{name: "has another task in HTTP+JSON", front: replacesTexts("/tasks/", `"artifactId"`, `"artifact"`),
			fails: map[string]string{"a2a.binding.same": "status", "a2a.stream.artifacts": "GetTask"}},
		{name: "has one code for all errors", front: editsTexts(func(_ *http.Request, _, text string) string {
			return regexp.MustCompile(`"code":(-32\d+|40\d)`).ReplaceAllString(text, `"code":-32603`)
		}), fails: map[string]string{"a2a.binding.unknown": "-32603", "a2a.rpc.requests": "-32603",
			"a2a.callers.tasks": "-32603"}},
		{name: "ignores the version", front: dropsHeader("A2A-Version"),
			fails: map[string]string{"a2a.binding.version": "TASK_NOT_FOUND"}},
		{name: "forgets tasks", front: refuses(http.StatusNotFound, nil, func(r *http.Request, _ object) bool {
			return isFor(r, http.MethodGet, "/tasks/")
		}), fails: map[string]string{"a2a.task.kept": "status 404"}},
		{name: "ignores the context", front: ignoresMember("contextId"), fails: map[string]string{"a2a.task.context": "contextId",
			"a2a.list.pages": "status 200", "a2a.list.empty": `"tasks":[{`}},
		{name: "ignores historyLength", front: ignoresMember("historyLength"),
			fails: map[string]string{"a2a.task.history": "history"}},
		{name: "begins another task", front: ignoresMember("taskId"), fails: map[string]string{"a2a.task.over": `"task":`,
			"a2a.binding.unknown": `"task":`}},
		{name: "works on after a cancel", front: editsTexts(func(_ *http.Request, asked, text string) string {
			if strings.Contains(asked, `"GetTask"`) {
				text = strings.ReplaceAll(text, "TASK_STATE_CANCELED", "TASK_STATE_WORKING")
			}
			return text
		}), fails: map[string]string{"a2a.task.cancel": "WORKING"}},
		{name: "ignores the page token", front: ignoresMember("pageToken"),
			fails: map[string]string{"a2a.list.pages": "with the timestamps", "a2a.list.params": "status 200"}},
		{name: "begins a stream without the task", front: editsTexts(func(_ *http.Request, _, text string) string {
			if onlyTask.MatchString(text) {
				return ""
			}
			return text
		}), fails: map[string]string{"a2a.stream.first": "Update"}},
		{name: "repeats the last event", front: editsTexts(func(_ *http.Request, _, text string) string {
			if strings.Contains(text, "COMPLETED") && strings.Contains(text, "data: ") {
				return text + text
			}
			return text
		}), fails: map[string]string{"a2a.stream.end": "COMPLETED"}},
		{name: "loses a piece", front: editsTexts(func(_ *http.Request, _, text string) string {
			if strings.Contains(text, `"append":true`) {
				return ""
			}
			return text
		}), fails: map[string]string{"a2a.stream.artifacts": "Hello, kit."}},
		{name: "repeats a piece in the second stream", front: editsTexts(func(r *http.Request, _, text string) string {
			if strings.Contains(r.URL.Path, ":subscribe") && strings.Contains(text, `"artifactUpdate"`) {
				return text + text
			}
			return text
		}), fails: map[string]string{"a2a.stream.two": "kit.", "a2a.stream.resume": "kit."}},
		{name: "numbers the events of SubscribeToTask otherwise", front: editsTexts(func(r *http.Request, _, text string) string {
			if !strings.Contains(r.URL.Path, ":subscribe") {
				return text
			}
			return eventID.ReplaceAllString(text, "${0}0")
		}), fails: map[string]string{"a2a.stream.resume": "0"}},
		{name: "ignores Last-Event-ID", front: dropsHeader("Last-Event-Id"),
			fails: map[string]string{"a2a.stream.resume": "id"}},
		{name: "repeats events after Last-Event-ID", front: changesHeader(func(r *http.Request) {
			if r.Header.Get("Last-Event-Id") != "" {
				r.Header.Set("Last-Event-Id", "0")
			}
		}), fails: map[string]string{"a2a.stream.resume": "SUBMITTED"}},
		{name: "has another error for tasks that are over", front: replacesTexts("", "UNSUPPORTED_OPERATION", "OTHER"),
			fails: map[string]string{"a2a.stream.over": "OTHER", "a2a.task.over": "OTHER"}},
		{name: "takes callers without a key", front: changesHeader(func(r *http.Request) {
			r.Header.Set("Authorization", "Bearer "+served.bearer)
		}), fails: map[string]string{"a2a.callers.key": "status", "a2a.callers.tasks": "status",
			"a2a.callers.lists": "totalSize"}},
		{name: "fails at large bodies", front: refuses(http.StatusInternalServerError, nil, func(r *http.Request, _ object) bool {
			body := readBody(r)
			return len(body) > 1<<20 || bytes.Contains(body, []byte("[[[[["))
		}), fails: map[string]string{"a2a.limits.large": "status 500", "a2a.limits.deep": "status 500"}},
	}
}
