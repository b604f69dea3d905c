package a2a_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/gatetest"
	wire "github.com/agora-relay/agora/internal/a2a"
)

// events are what a client has got of a stream.
type events struct {
	t      testing.TB
	close  func()
	header http.Header

	mu    sync.Mutex
	ids   []string
	all   []string // Stream objects
	pings int
	ended bool
}

// stream opens a stream.
func (c caller) stream(method, path string, body any, header ...string) *events {
	c.f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	h := map[string]string{"Content-Type": "application/json"}
	for i := 0; i+1 < len(header); i += 2 {
		h[header[i]] = header[i+1]
	}
	r, err := gatetest.NewRequest(ctx, c.f.URL+"/a2a"+c.path, gatetest.Call{Method: method, Path: path, Key: c.key, Body: body, Header: h})
	c.f.must(err)
	response, err := c.f.Client.Do(r)
	c.f.must(err)
	if kind := response.Header.Get("Content-Type"); response.StatusCode != 200 || kind != wire.StreamType {
		c.f.t.Fatalf("%s %s: status %d, %s", method, path, response.StatusCode, kind)
	}
	e := &events{t: c.f.t, close: cancel, header: response.Header}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer response.Body.Close()
		e.read(bufio.NewReader(response.Body))
	}()
	c.f.t.Cleanup(func() { cancel(); <-done })
	return e
}

// read reads the stream until it ends.
func (e *events) read(in *bufio.Reader) {
	for {
		line, err := in.ReadString('\n')
		e.mu.Lock()
		line = strings.TrimSuffix(line, "\n")
		if id, found := strings.CutPrefix(line, "id: "); found {
			e.ids = append(e.ids, id)
		} else if data, found := strings.CutPrefix(line, "data: "); found {
			if raw([]byte(data), "jsonrpc") != "" {
				data = raw([]byte(data), "result")
			}
			e.all = append(e.all, data)
		} else if line == ":" {
			e.pings++
		}
		e.ended = err != nil
		e.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// got returns the events so far, each in a few words.
func (e *events) got() (all []string, ended bool) {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, text := range e.all {
		s, err := wire.ParseStream("", canonical(e.t, []byte(text)))
		switch {
		case err != nil:
			e.t.Errorf("the event %s: %v", text, err)
		case s.Task != nil:
			all = append(all, "task "+strings.TrimPrefix(string(s.Task.Status.State), "TASK_STATE_"))
		case s.StatusUpdate != nil:
			all = append(all, strings.TrimPrefix(string(s.StatusUpdate.Status.State), "TASK_STATE_"))
		case s.ArtifactUpdate != nil:
			all = append(all, fmt.Sprintf("%s %s %v %v", s.ArtifactUpdate.Artifact.ArtifactID,
				partsText(s.ArtifactUpdate.Artifact.Parts), s.ArtifactUpdate.Append, s.ArtifactUpdate.LastChunk))
		}
	}
	return all, e.ended
}

// want checks the events so far.
func (e *events) want(what string, ended bool, want ...string) {
	e.t.Helper()
	got, end := e.got()
	if len(want) > 1 && want[0] == "task SUBMITTED" {
		got = fromStart(got)
	}
	if !slices.Equal(got, want) || end != ended {
		e.t.Errorf("%s: the events are %q, ended: %v; want %q, %v", what, got, end, want, ended)
	}
}

// fromStart returns events as if their stream had begun before the agent. A stream that begins after it has the task that
// works, in place of the first two events. Both are right, because the agent waits for work.
func fromStart(events []string) []string {
	if len(events) > 0 && events[0] == "task WORKING" {
		return append([]string{"task SUBMITTED", "WORKING"}, events[1:]...)
	}
	return events
}

// progress sends events of the agent.
func (a *agent) progress(turn wire.Turn, events ...any) answer {
	a.f.t.Helper()
	return a.f.signed(a.key, "POST", strings.TrimPrefix(turn.Work, gatetest.PublicURL+"/a2a")+"/events", object{"events": events})
}

// chunk is a part of an artifact.
func chunk(id, text string, appends, last bool) object {
	return object{"artifactUpdate": object{"append": appends, "lastChunk": last,
		"artifact": object{"artifactId": id, "parts": []object{{"text": text}}}}}
}

func state(s wire.State) object { return object{"statusUpdate": object{"state": s}} }

// stepper is an agent that works when the test says so.
type stepper struct {
	*agent
	turns chan wire.Turn
	ends  chan envelope.Result
	stop  func()
}

func (f *fixture) stepper(access wire.Access) *stepper {
	f.t.Helper()
	s := &stepper{f.agent(access), make(chan wire.Turn, 10), make(chan envelope.Result, 10), nil}
	s.serveAgain()
	return s
}

// serveAgain runs the agent.
func (s *stepper) serveAgain() {
	s.stop = s.serve(func(ctx context.Context, turn wire.Turn) (envelope.Result, error) {
		s.turns <- turn
		select {
		case r := <-s.ends:
			return r, nil
		case <-ctx.Done():
			return envelope.Result{}, ctx.Err()
		}
	})
}

// end ends the present turn.
func (s *stepper) end(status, output string) {
	s.ends <- envelope.Result{Status: status, Output: []byte(output)}
	synctest.Wait()
}

// the first event is the Task; two streams get equal events; closing one leaves the other. A-31: streams end as in §5.
// progress comes only from the task's agent, before the RESULT.
func TestStreams(t *testing.T) {
	racesInBubble(t, func(t *testing.T, f *fixture) {
		a := f.stepper(wire.Public)
		c := caller{agent: a.agent}
		sent := c.stream("POST", "/rpc", object{"jsonrpc": "2.0", "id": 7, "method": "SendStreamingMessage",
			"params": object{"message": message("hello")}})
		if h := sent.header; h.Get("Cache-Control") != "no-store" || h.Get("X-Accel-Buffering") != "no" {
			t.Errorf("the headers are %v", h)
		}
		turn := <-a.turns
		sent.want("at first", false, "task SUBMITTED", "WORKING")
		two, three := c.stream("GET", "/tasks/"+turn.Task+":subscribe", nil), c.stream("POST", "/tasks/"+turn.Task+":subscribe/", nil)
		f.want(a.progress(turn, chunk("a", "1", false, false), state(wire.AuthRequired), chunk("a", "2", true, true)), 200, "")
		three.got()
		three.close()
		progress := []string{"a 1 false false", "AUTH_REQUIRED", "a 2 true true"}
		sent.want("after progress", false, append([]string{"task SUBMITTED", "WORKING"}, progress...)...)
		f.want((&agent{f: f, key: newKey(t)}).progress(turn, state(wire.Working)), 403, "FORBIDDEN")
		a.end("input-required", "null")
		f.want(a.progress(turn, state(wire.Working)), 409, "CONFLICT")
		sent.want("after the turn", true, append(append([]string{"task SUBMITTED", "WORKING"}, progress...), "INPUT_REQUIRED")...)
		two.want("the subscription", false, append(append([]string{"task WORKING"}, progress...), "INPUT_REQUIRED")...)
		c.wantState(c.task(turn.Task), wire.InputRequired, "1+2")
		c.sayAtOnce("more", "taskId", turn.Task)
		<-a.turns
		a.end("success", `"done"`)
		two.want("after the second turn", true, append(append([]string{"task WORKING"}, progress...), "INPUT_REQUIRED", "SUBMITTED",
			"WORKING", "result done false true", "COMPLETED")...)
		if c := sent.all; !slices.Equal(c[2:6], two.all[1:5]) || !slices.Equal(sent.ids[2:], two.ids[1:5]) {
			t.Errorf("the streams differ: %q and %q", c, two.all)
		}
		c.refused(c.rpc("SubscribeToTask", object{"id": turn.Task}), wire.UnsupportedOperation)
	})
}

// Last-Event-ID misses and repeats nothing, also after a restart and after the end.
func TestStreamResumes(t *testing.T) {
	racesInBubble(t, func(t *testing.T, f *fixture) {
		a := f.stepper(wire.Public)
		c := caller{agent: a.agent}
		id := text(c.sayAtOnce("hello"), "id")
		turn := <-a.turns
		whole := c.stream("GET", "/tasks/"+id+":subscribe", nil)
		for i := range 5 {
			f.want(a.progress(turn, chunk("a", fmt.Sprint(i), i > 0, false)), 200, "")
		}
		whole.got()
		resumed := func(n int) *events {
			return c.stream("GET", "/tasks/"+id+":subscribe", nil, "Last-Event-ID", whole.ids[n])
		}
		for n := range whole.ids {
			r := resumed(n)
			r.got()
			if !slices.Equal(r.ids[1:], whole.ids[n+1:]) || !slices.Equal(r.all[1:], whole.all[n+1:]) || r.ids[0] != whole.ids[n] ||
				strings.Contains(r.all[0], "artifacts") || strings.Contains(r.all[0], "history") {
				t.Errorf("after %d: %q", n, r.all)
			}
			r.close()
		}
		a.stop()
		f.Restart()
		a.serveAgain()
		r := resumed(2)
		a.end("success", "null")
		r.want("after a restart", true, "task WORKING", "a 2 true false", "a 3 true false", "a 4 true false", "COMPLETED")
		resumed(4).want("after the end", true, "task COMPLETED", "a 4 true false", "COMPLETED")
		got := c.send("GET", "/tasks/"+id+":subscribe", nil, "Last-Event-ID", r.ids[len(r.ids)-1])
		if text(got.Body, "error", "details", 0, "reason") != "UNSUPPORTED_OPERATION" {
			t.Errorf("after the last event: %v", got)
		}
		if got := c.send("GET", "/tasks/"+id+":subscribe", nil, "Last-Event-ID", "x"); got.Status != 400 {
			t.Errorf("a bad Last-Event-ID: %v", got)
		}
	})
}

// a stream ends after an hour. A comment comes every 15 seconds. A-7: it ends when its key is revoked.
func TestStreamEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Keys)
		c, other := caller{agent: a, key: a.newKey("alice")}, caller{agent: a, key: a.newKey("bob")}
		id, second := text(c.sayAtOnce("hello"), "id"), text(other.sayAtOnce("hello"), "id")
		long, short := c.stream("GET", "/tasks/"+id+":subscribe", nil), other.stream("GET", "/tasks/"+second+":subscribe", nil)
		time.Sleep(time.Minute)
		short.want("before", false, "task SUBMITTED")
		f.want(f.signed(a.key, "DELETE", a.path+"/keys/bob", nil), 200, "")
		if _, ended := short.got(); !ended {
			t.Error("the stream of a revoked key continues")
		}
		time.Sleep(59*time.Minute + time.Second)
		if _, ended := long.got(); !ended || long.pings < 230 {
			t.Errorf("after an hour: ended: %v, %d comments", ended, long.pings)
		}
		f.want(f.signed(a.key, "DELETE", a.path+"/endpoint", nil), 200, "")
	})
}

// a repeated run replaces its artifacts.
func TestRepeatedRun(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.stepper(wire.Public)
		c := caller{agent: a.agent}
		id := text(c.sayAtOnce("hello"), "id")
		turn := <-a.turns
		for range 2 {
			f.want(a.progress(turn, chunk("a", "1", false, false), chunk("a", "2", true, false), chunk("b", "x", true, false)), 200, "")
		}
		a.end("success", `{"a2a":{"artifacts":[{"artifactId":"c","parts":[{"text":"y"}]}]}}`)
		var task wire.Task
		f.must(json.Unmarshal(c.task(id), &task))
		c.wantState(c.task(id), wire.Completed, "1+2", "x+x", "y")
	})
}

// TestTooMuchProgress checks that a task keeps a limited number of bytes: more is refused with 413, and the task fails.
func TestTooMuchProgress(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.gateway.SetTaskBytes(100_000)
		a := f.stepper(wire.Public)
		c := caller{agent: a.agent}
		id := text(c.sayAtOnce("hello"), "id")
		turn := <-a.turns
		large := strings.Repeat("x", 9_000)
		for range 10 {
			f.want(a.progress(turn, chunk("a", large, true, false)), 200, "")
		}
		f.want(a.progress(turn, chunk("a", large, true, false)), 413, "PAYLOAD_TOO_LARGE")
		synctest.Wait()
		task := c.task(id)
		if text(task, "status", "state") != string(wire.Failed) || len(task) < 90_000 {
			t.Errorf("the task has %d bytes: %.300s", len(task), task)
		}
		f.want(a.progress(turn, chunk("a", "x", true, false)), 409, "CONFLICT")
		f.want(a.progress(turn), 400, "INVALID_REQUEST")
		f.gateway.SetTaskBytes(10_000)
		id = text(c.sayAtOnce("again"), "id")
		<-a.turns
		a.end("success", `"`+strings.Repeat("x", 11_000)+`"`)
		c.wantState(c.task(id), wire.Failed, "The answer of the agent is too large for this task.")
	})
}
