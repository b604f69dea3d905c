package agentprobe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// heldEvents is how many events of a delivery wait for their answers, if any do.
const heldEvents = 5

// Limits of what the probe takes from an agent.
const (
	maxEvent  = 64 << 10 // the size of an event, in bytes
	maxEvents = 600      // of one delivery, as in CHANNEL §3
)

// service is what an agent sees of the probe: the callbacks, and a server of tools.
type service struct {
	base string
	mcp  http.Handler

	mu        sync.Mutex
	changed   chan struct{}        // closed and replaced after each change
	callbacks map[string]*delivery // by the token in the callback
	tools     map[string]*delivery // by the token in the headers of mcp
	stray     string               // a request to a path that no delivery named; empty: there was none
	toolCalls int                  // requests to the server of tools
	badCalls  int                  // those without the right Authorization
	badCall   string               // what is wrong with one of them
}

// event is one POST to a callback.
type event struct {
	began, ended time.Time
	kind         string         // the type of the event; empty: it has none
	members      map[string]any // nil: the body is not one JSON object
	form         string         // why the body is not one JSON object; empty: it is
	contentType  string
	overlaps     bool // it began before the answer to the event before
	status       int  // of the answer; 0: not answered yet
}

func newService(base string) *service {
	s := &service{base: base, changed: make(chan struct{}), callbacks: map[string]*delivery{},
		tools: map[string]*delivery{}}
	s.mcp = s.newMCP()
	return s
}

// serve answers requests until the returned function is called, which waits for their end.
func (s *service) serve(listener net.Listener) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	mux := http.NewServeMux()
	mux.HandleFunc("POST /channels/{channel}/inbox/{token}", s.callback)
	mux.HandleFunc("/mcp/{channel}", s.serveMCP)
	mux.HandleFunc("/", s.refuse)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // always returns http.ErrServerClosed
	return func() {
		cancel()
		limited, done := context.WithTimeout(context.Background(), time.Second)
		defer done()
		if server.Shutdown(limited) != nil {
			_ = server.Close() // a request that does not end must not keep the probe
		}
		serving.Wait()
	}
}

// notify wakes those that wait for a change. The caller holds s.mu.
func (s *service) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// add makes the callback and the tools of a delivery known.
func (s *service) add(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.callbacks[d.token], s.tools[d.toolToken] = d, d
}

// refuse answers a request to a path that no delivery named.
func (s *service) refuse(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.stray = shorten(r.Method + " " + r.URL.Path)
	s.mu.Unlock()
	answer(w, http.StatusNotFound)
}

func answer(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"ok":%v}`, status < 300) // the agent may be gone
}

// callback takes an event.
func (s *service) callback(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxEvent))
	s.mu.Lock()
	d := s.callbacks[r.PathValue("token")]
	if d == nil || d.channel != r.PathValue("channel") {
		s.mu.Unlock()
		s.refuse(w, r)
		return
	}
	if len(d.events) == maxEvents {
		s.mu.Unlock()
		answer(w, http.StatusTooManyRequests)
		return
	}
	e := readEvent(body)
	if err != nil {
		e.form = "the body cannot be read, or has more than 64 KiB"
	}
	e.began, e.overlaps = time.Now(), d.open > 0
	e.contentType, _, _ = mime.ParseMediaType(r.Header.Get("Content-Type"))
	hold := d.hold
	if len(d.events) >= heldEvents {
		hold = 0
	}
	d.events = append(d.events, e)
	d.open++
	status := http.StatusOK
	if d.answer != nil {
		status = d.answer(e, len(d.events))
	} else if e.members == nil {
		status = http.StatusBadRequest
	}
	s.notify()
	s.mu.Unlock()
	if hold > 0 {
		timer := time.NewTimer(hold)
		select {
		case <-timer.C:
		case <-r.Context().Done():
			timer.Stop()
		}
	}
	s.mu.Lock()
	e.status, e.ended = status, time.Now()
	d.open--
	s.notify()
	s.mu.Unlock()
	answer(w, status)
}

// readEvent reads the body of an event.
func readEvent(body []byte) *event {
	e := &event{}
	decoder := json.NewDecoder(bytes.NewReader(body))
	var value any
	if err := decoder.Decode(&value); err != nil {
		e.form = "the body is not JSON"
		return e
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		e.form = "the body has more than one JSON value"
		return e
	}
	members, isObject := value.(map[string]any)
	if !isObject {
		e.form = "the body is JSON, but not an object"
		return e
	}
	e.members = members
	e.kind, _ = members["type"].(string)
	return e
}

// problem says what is wrong with the members of an event of a known type; empty: nothing.
func (e *event) problem() string {
	text := func(name string, longest int) string {
		value, ok := e.members[name].(string)
		if !ok || value == "" || len(value) > longest {
			return fmt.Sprintf("%s needs %s, a text of 1 to %d bytes", e.kind, name, longest)
		}
		return ""
	}
	first := func(problems ...string) string {
		for _, p := range problems {
			if p != "" {
				return p
			}
		}
		return ""
	}
	switch e.kind {
	case "message":
		return text("content", 32768)
	case "status":
		return text("status", 500)
	case "lifecycle":
		return text("status", 64)
	case "tool_call":
		args := ""
		if _, ok := e.members["args"].(map[string]any); !ok {
			args = "tool_call needs args, an object"
		}
		return first(text("name", 256), text("id", 256), args)
	case "tool_result":
		content := ""
		if _, ok := e.members["content"].(string); !ok {
			content = "tool_result needs content, a text"
		}
		return first(text("id", 256), content)
	case "error":
		code := ""
		if value, given := e.members["code"]; given {
			if _, ok := value.(string); !ok {
				code = "the code of an error must be a text"
			}
		}
		return first(text("message", 32768), code)
	}
	return ""
}

// knownTypes are the types of events. lifecycle is newer than version 0.1 of the protocol.
var knownTypes = []string{"message", "tool_call", "tool_result", "status", "error", "lifecycle"}

// shorten cuts a text of the agent that goes into a report.
func shorten(text string) string {
	const longest = 200
	if len(text) > longest {
		text = text[:longest] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
