package a2atest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// answer writes the answer to one call, in the form of the server's version and binding.
type answer struct {
	s       *Server
	w       http.ResponseWriter
	id      any
	started bool
}

func (a *answer) part(text string) Object {
	if a.s.legacy() {
		return Object{"kind": "text", "text": text}
	}
	return Object{"text": text}
}

func (a *answer) state(t *task) Object {
	status := Object{"state": "TASK_STATE_" + t.state, "timestamp": "2026-02-02T12:00:00.000Z"}
	if a.s.legacy() {
		status["state"] = strings.ToLower(strings.ReplaceAll(t.state, "_", "-"))
	}
	if t.said != "" {
		status["message"] = a.message(t.said)
	}
	return status
}

func (a *answer) message(text string) Object {
	m := Object{"messageId": "m-" + text, "role": "ROLE_AGENT", "parts": []any{a.part(text)}}
	if a.s.legacy() {
		m["role"], m["kind"] = "agent", "message"
	}
	return m
}

func (a *answer) artifact(n int, text string) Object {
	return Object{"artifactId": fmt.Sprintf("a%d", n), "parts": []any{a.part(text)}}
}

func (a *answer) task(t *task) Object {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	o := Object{"id": t.id, "contextId": t.context, "status": a.state(t)}
	var artifacts []any
	for i, text := range t.artifacts {
		artifacts = append(artifacts, a.artifact(i+1, text))
	}
	if artifacts != nil {
		o["artifacts"] = artifacts
	}
	if a.s.legacy() {
		o["kind"] = "task"
	}
	return o
}

func (a *answer) status(t *task) Object {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	o := Object{"taskId": t.id, "contextId": t.context, "status": a.state(t)}
	if a.s.legacy() {
		o["kind"], o["final"] = "status-update", t.state != "WORKING"
	}
	return o
}

func (a *answer) chunk(t *task, n int, text string, more bool) Object {
	o := Object{"taskId": t.id, "contextId": t.context, "artifact": a.artifact(n, text), "append": more}
	if a.s.legacy() {
		o["kind"] = "artifact-update"
	}
	return o
}

// wrap puts an object into the wrapper of 1.0; 0.3 has none.
func (a *answer) wrap(name string, o Object) Object {
	if a.s.legacy() {
		return o
	}
	return Object{name: o}
}

// result answers with an object.
func (a *answer) result(o Object) {
	if a.s.Binding != "HTTP+JSON" {
		o = Object{"jsonrpc": "2.0", "id": a.id, "result": o}
	}
	reply(a.w, o)
}

// one answers with one object.
func (a *answer) one(stream bool, name string, o Object) {
	if stream {
		a.event(name, o)
		return
	}
	a.result(a.wrap(name, o))
}

// event writes an event of a stream.
func (a *answer) event(name string, o Object) {
	if !a.started {
		a.started = true
		a.w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(a.w, ": hello\n\n")
	}
	o = a.wrap(name, o)
	if a.s.Binding != "HTTP+JSON" {
		o = Object{"jsonrpc": "2.0", "id": a.id, "result": o}
	}
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	_, _ = fmt.Fprintf(a.w, "id: 1\ndata: %s\n\n", text)
	_ = http.NewResponseController(a.w).Flush()
}

// fail answers with an error.
func (a *answer) fail(code, status int, reason, message string) {
	if a.s.Binding == "HTTP+JSON" {
		a.w.WriteHeader(status)
		reply(a.w, Object{"error": Object{"code": status, "message": message,
			"details": []any{Object{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}}}})
		return
	}
	reply(a.w, Object{"jsonrpc": "2.0", "id": a.id, "error": Object{"code": code, "message": message}})
}
