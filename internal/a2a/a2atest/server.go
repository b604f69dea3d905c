// Package a2atest has a small A2A server for tests. It keeps its tasks in memory and follows orders: the first word of a
// message says what becomes of the task. It is written apart from package a2a, as a second opinion about the wire.
package a2atest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
)

// Object is a JSON object.
type Object = map[string]any

// Server is an A2A server. Binding and Version say what it speaks: JSONRPC or HTTP+JSON of 1.0, or JSONRPC of 0.3.
//
// Orders: "echo TEXT" makes an artifact with the text; "chunks TEXT" sends each word as a chunk; "ask" wants input, and
// the next message completes the task with it; "direct TEXT" answers with a message; "hold TEXT" works until Release or
// a cancel; "reject" rejects; "refuse" answers with an error; "cut" ends the stream after the first event.
type Server struct {
	*httptest.Server
	Binding, Version string
	Bearer           string // that calls must have; empty: none

	mu       sync.Mutex
	tasks    map[string]*task
	messages []Object // all messages that were received
	release  chan struct{}
}

type task struct {
	id, context, state string
	said               string // the status message; empty: none
	artifacts          []string
	changed            chan struct{} // is closed at each change
	canceled           chan struct{} // is closed when the task is canceled
}

// New starts a server. The caller closes it.
func New(binding, version string) *Server {
	s := &Server{Binding: binding, Version: version, tasks: map[string]*task{}, release: make(chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	return s
}

// Release lets all tasks that are held complete.
func (s *Server) Release() { close(s.release) }

// Messages returns the messages that the server has received.
func (s *Server) Messages() []Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Object(nil), s.messages...)
}

// States returns the states of all tasks, in any order.
func (s *Server) States() (states []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tasks {
		states = append(states, t.state)
	}
	return states
}

func (s *Server) legacy() bool { return s.Version != "1.0" }

func (s *Server) card() Object {
	card := Object{"name": "Double", "description": "", "version": "7", "skills": []any{}, "defaultInputModes": []any{"text"},
		"defaultOutputModes": []any{"text"}, "capabilities": Object{"streaming": true, "pushNotifications": false},
		"documentationUrl": nil}
	if s.legacy() {
		card["url"], card["preferredTransport"], card["protocolVersion"] = s.URL+"/rpc", "JSONRPC", "0.3.0"
		return card
	}
	card["supportedInterfaces"] = []any{Object{"url": s.URL + "/rpc", "protocolBinding": s.Binding, "protocolVersion": s.Version}}
	return card
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if strings.HasSuffix(r.URL.Path, "/agent-card.json") {
		reply(w, s.card())
		return
	}
	if s.Bearer != "" && r.Header.Get("Authorization") != "Bearer "+s.Bearer {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	var call struct {
		ID     any
		Method string
		Params struct {
			ID      string
			Message Object
		}
	}
	if s.Binding == "HTTP+JSON" {
		_ = json.Unmarshal(body, &call.Params) // an operation without a body has none
		call.Method, call.Params.ID = operation(r.URL.Path, call.Params.ID)
	} else if json.Unmarshal(body, &call) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	a := &answer{s: s, w: w, id: call.ID}
	switch call.Method {
	case "SendMessage", "message/send":
		s.send(a, call.Params.Message, false)
	case "SendStreamingMessage", "message/stream":
		s.send(a, call.Params.Message, true)
	case "GetTask", "tasks/get", "CancelTask", "tasks/cancel", "SubscribeToTask", "tasks/resubscribe":
		s.about(a, r, call.Method, call.Params.ID)
	default:
		a.fail(-32601, 404, "", "unknown method")
	}
}

// operation returns the operation of a path, and the task in it.
func operation(path, id string) (method, task string) {
	_, rest, _ := strings.Cut(path, "/rpc/")
	switch {
	case rest == "message:send":
		return "SendMessage", id
	case rest == "message:stream":
		return "SendStreamingMessage", id
	}
	task = strings.TrimPrefix(rest, "tasks/")
	if name, ok := strings.CutSuffix(task, ":cancel"); ok {
		return "CancelTask", name
	}
	if name, ok := strings.CutSuffix(task, ":subscribe"); ok {
		return "SubscribeToTask", name
	}
	return "GetTask", task
}

// send takes a message.
func (s *Server) send(a *answer, message Object, stream bool) {
	text := textOf(message)
	order, rest, _ := strings.Cut(text, " ")
	s.mu.Lock()
	s.messages = append(s.messages, message)
	id, _ := message["taskId"].(string)
	t := s.tasks[id]
	switch {
	case id != "" && (t == nil || t.state != "INPUT_REQUIRED"):
		s.mu.Unlock()
		a.fail(-32001, 404, "TASK_NOT_FOUND", "no such task")
		return
	case order == "refuse":
		s.mu.Unlock()
		a.fail(-32005, 400, "CONTENT_TYPE_NOT_SUPPORTED", "only pictures")
		return
	case order == "direct":
		s.mu.Unlock()
		a.one(stream, "message", a.message(rest))
		return
	case t == nil:
		context, _ := message["contextId"].(string)
		t = &task{id: fmt.Sprintf("task-%d", len(s.tasks)+1), context: context, state: "SUBMITTED",
			changed: make(chan struct{}), canceled: make(chan struct{})}
		s.tasks[t.id] = t
	default:
		order, rest = "echo", text // the input that was asked for
	}
	s.mu.Unlock()
	if stream {
		a.event("task", a.task(t))
		if order == "cut" {
			s.set(t, "COMPLETED", "", "cut off")
			return
		}
	}
	s.work(a, t, order, rest, stream)
	if !stream {
		a.one(false, "task", a.task(t))
	}
}

// work does what an order says.
func (s *Server) work(a *answer, t *task, order, rest string, stream bool) {
	emit := func(name string, o Object) {
		if stream {
			a.event(name, o)
		}
	}
	status := func() { emit("statusUpdate", a.status(t)) }
	s.set(t, "WORKING", "", "")
	status()
	switch order {
	case "ask":
		s.set(t, "INPUT_REQUIRED", "what?", "")
	case "reject":
		s.set(t, "REJECTED", "no", "")
	case "chunks":
		for i, word := range strings.Fields(rest) {
			s.mu.Lock()
			if i == 0 {
				t.artifacts = append(t.artifacts, word)
			} else {
				t.artifacts[len(t.artifacts)-1] += word
			}
			s.mu.Unlock()
			emit("artifactUpdate", a.chunk(t, len(t.artifacts), word, i > 0))
		}
		s.set(t, "COMPLETED", "done", "")
	case "hold":
		select {
		case <-s.release:
			s.set(t, "COMPLETED", "", rest)
		case <-t.canceled:
			return
		}
		emit("artifactUpdate", a.chunk(t, len(t.artifacts), rest, false))
	default:
		s.set(t, "COMPLETED", "", rest)
		emit("artifactUpdate", a.chunk(t, len(t.artifacts), rest, false))
	}
	status()
}

// set changes a task, unless it has ended.
func (s *Server) set(t *task, state, said, artifact string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.state == "CANCELED" {
		return
	}
	t.state, t.said = state, said
	if artifact != "" {
		t.artifacts = append(t.artifacts, artifact)
	}
	if state == "CANCELED" {
		close(t.canceled)
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// about answers a call about a task.
func (s *Server) about(a *answer, r *http.Request, method, id string) {
	s.mu.Lock()
	t := s.tasks[id]
	s.mu.Unlock()
	if t == nil {
		a.fail(-32001, 404, "TASK_NOT_FOUND", "no such task")
		return
	}
	switch method {
	case "CancelTask", "tasks/cancel":
		s.set(t, "CANCELED", "", "")
	case "SubscribeToTask", "tasks/resubscribe":
		a.event("task", a.task(t))
		for {
			s.mu.Lock()
			state, changed := t.state, t.changed
			s.mu.Unlock()
			if state != "WORKING" && state != "SUBMITTED" {
				a.event("task", a.task(t))
				return
			}
			select {
			case <-changed:
			case <-r.Context().Done():
				return
			}
		}
	}
	if s.legacy() || s.Binding != "HTTP+JSON" {
		a.result(a.task(t))
		return
	}
	reply(a.w, a.task(t))
}

func textOf(message Object) (text string) {
	parts, _ := message["parts"].([]any)
	for _, part := range parts {
		if o, ok := part.(Object); ok {
			piece, _ := o["text"].(string)
			text += piece
		}
	}
	return text
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}
