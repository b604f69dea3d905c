package a2a

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// a2aEvent is an event of a stream.
type a2aEvent struct {
	id     string     // of the event in the stream; empty: it has none
	kind   string     // task, message, statusUpdate or artifactUpdate; empty: it is none of them
	inner  kit.Answer // the member with this name
	result string     // the canonical form of the whole object, without what JSON-RPC adds
	error  kit.Answer // the object, if it is an error
}

// state returns the state that the event shows; empty: none.
func (e a2aEvent) state() string { return stateOf(e.inner) }

// a2aStream is an open stream.
type a2aStream struct {
	answer a2aAnswer // its header; and its body, if it is not a stream
	events chan a2aEvent
	all    []a2aEvent // those that were read; complete when events is closed
	ended  error      // why the stream has ended; nil: at its end. Set before events is closed
}

// open sends a request for a stream as the first caller. The answer may be a refusal.
func (h *a2aProbe) open(ctx context.Context, b *a2aBinding, method string, params kit.Message,
	header http.Header) *a2aStream {
	r := b.request(a2aCall{method: method, params: params, header: header}, h.server.header(h.server.Bearer))
	r.Header.Set("Accept", "text/event-stream")
	h.NoteSent(strings.TrimSpace(fmt.Sprintf("%s %s%s%s\n%s", r.Method, b.client.BaseURL, r.Target,
		kit.DescribeHeader(header), kit.Excerpt(r.Body, 700))))
	s := &a2aStream{events: make(chan a2aEvent, kit.MaxFrames), answer: a2aAnswer{rpc: b.name == bindingRPC}}
	b.client.Requests.Add(1)
	req, err := b.client.NewRequest(ctx, r.Method, r.Target, r.Header, r.Body)
	if err != nil {
		s.answer.Err = err
		close(s.events)
		return s
	}
	resp, err := b.client.Client.Do(req)
	if err != nil {
		s.answer.Err = err
		close(s.events)
		return s
	}
	s.answer.Status, s.answer.Header = resp.StatusCode, resp.Header
	media, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	if resp.StatusCode == http.StatusOK && media == "text/event-stream" {
		h.Tasks.Go(func() { s.follow(resp.Body) })
		return s
	}
	defer func() { _ = resp.Body.Close() }() // it is only read
	s.answer.Body, s.answer.Err = io.ReadAll(io.LimitReader(resp.Body, kit.MaxAnswer))
	s.answer.Members = kit.ParseRow(s.answer.Body).Members
	close(s.events)
	return s
}

// follow reads the events of a stream, as the HTML standard says.
func (s *a2aStream) follow(body io.ReadCloser) {
	defer close(s.events)
	defer func() { _ = body.Close() }() // it was only read
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, kit.MaxFrame)
	id, data := "", ""
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case name == "id":
			id = value
		case name == "data":
			data += value
		case lines.Text() == "" && data != "":
			e := parseA2AEvent(id, data, s.answer.rpc)
			s.all = append(s.all, e)
			if len(s.all) > kit.MaxFrames {
				s.ended = fmt.Errorf("more than %d events", kit.MaxFrames)
				return
			}
			s.events <- e // the channel has room for all
			data = ""
		}
	}
	s.ended = lines.Err()
}

func parseA2AEvent(id, data string, rpc bool) a2aEvent {
	object, failed := kit.ParseRow([]byte(data)), kit.Answer{}
	if object.Members["error"] != nil {
		failed = object
	}
	if rpc {
		object = kit.ParseRow(object.Members["result"])
	}
	e := a2aEvent{id: id, result: data, error: failed}
	if object.Members != nil {
		e.result = string(kit.Canonical(object.Members))
	}
	for _, kind := range []string{"task", "message", "statusUpdate", "artifactUpdate"} {
		if object.Members[kind] != nil && len(object.Members) == 1 {
			e.kind, e.inner = kind, kit.ParseRow(object.Members[kind])
		}
	}
	return e
}

// next returns the next event. It reports false if the stream has ended, or if none comes in time.
func (s *a2aStream) next(ctx context.Context) (e a2aEvent, ok bool) {
	select {
	case e, ok = <-s.events:
		return e, ok
	case <-ctx.Done():
		return a2aEvent{}, false
	}
}

// rest reads the stream to its end.
func (s *a2aStream) rest(ctx context.Context) {
	for {
		if _, ok := s.next(ctx); !ok {
			return
		}
	}
}

// refusal returns the answer of a stream that was not opened: the answer itself, or an error as the first event.
func (s *a2aStream) refusal(ctx context.Context) a2aAnswer {
	if first, ok := s.next(ctx); ok && first.error.Members != nil {
		a := s.answer
		a.Members, a.Body = first.error.Members, first.error.Body
		return a
	}
	return s.answer
}

// shows reports whether a stream was opened.
func (s *a2aStream) shows() bool { return s != nil && len(s.all) > 0 && s.all[0].error.Members == nil }

// a2aRecord has what the streams of one task have shown. main is the stream of SendStreamingMessage. second is a stream
// of SubscribeToTask that was opened after the first event. resumed was opened with the id of the first event, after
// the second event had come.
type a2aRecord struct {
	main, second, resumed *a2aStream // second and resumed may be nil
	task                  kit.Answer // as GetTask shows it after the stream
	whole                 bool       // main has ended by itself
}

// observe returns the record of a binding. Only the first check that needs it sends something.
func (h *a2aProbe) observe(b *a2aBinding) *a2aRecord {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.record == nil {
		b.record = h.newRecord(b)
	}
	return b.record
}

func (h *a2aProbe) newRecord(b *a2aBinding) *a2aRecord {
	ctx, cancel := context.WithTimeoutCause(h.Ctx, patienceOfKit, errors.New("the stream did not end in time"))
	r := &a2aRecord{main: h.open(ctx, b, "SendStreamingMessage", said(slowOfKit, nil), nil)}
	defer func() {
		cancel()
		for _, s := range []*a2aStream{r.main, r.second, r.resumed} {
			if s != nil {
				s.rest(context.WithoutCancel(ctx)) // so that s.all is complete
			}
		}
	}()
	first, _ := r.main.next(ctx)
	id := first.inner.Text("id")
	if first.kind != "task" || id == "" {
		r.main.rest(ctx)
		r.whole = ctx.Err() == nil
		return r
	}
	r.second = h.open(ctx, b, "SubscribeToTask", kit.Message{"id": id}, nil)
	if _, ok := r.main.next(ctx); ok && first.id != "" {
		r.resumed = h.open(ctx, b, "SubscribeToTask", kit.Message{"id": id}, http.Header{"Last-Event-Id": {first.id}})
	}
	r.main.rest(ctx)
	r.whole = ctx.Err() == nil
	read := func() kit.Answer {
		return h.call(b, a2aCall{method: "GetTask", params: kit.Message{"id": id}, key: h.server.Bearer}).result
	}
	if r.task = read(); isAsking(stateOf(r.task)) { // the others end only when the task is over
		h.call(b, a2aCall{method: "CancelTask", params: kit.Message{"id": id}, key: h.server.Bearer})
	}
	for _, s := range []*a2aStream{r.second, r.resumed} {
		if s != nil {
			s.rest(ctx)
		}
	}
	return r
}

// ofTask returns the record of a binding, if its task was streamed as it should be. Another check reports what is
// wrong.
func (h *a2aProbe) ofTask(b *a2aBinding) (r *a2aRecord, events []a2aEvent) {
	r = h.observe(b)
	if h.Ctx.Err() != nil {
		h.Stopped()
	}
	h.Describe("SendStreamingMessage in %s, and SubscribeToTask after its first and its second event", b.name)
	switch {
	case !r.whole:
		h.End(kit.Skipped, "the stream of SendStreamingMessage did not end within %v", patienceOfKit)
	case len(r.main.all) == 1 && r.main.all[0].kind == "message":
		h.End(kit.NotTested, "this agent answers with messages, not with tasks")
	case len(r.main.all) < 2:
		h.Expect("a stream with a task and its updates")
		h.Failf("%s%s", r.main.answer, describeEvents(r.main.all))
	}
	return r, r.main.all
}

// describeEvents returns events for the report.
func describeEvents(events []a2aEvent) string {
	var lines []string
	for _, e := range events {
		lines = append(lines, fmt.Sprintf("id %q: %s", e.id, kit.Excerpt([]byte(e.result), 200)))
	}
	return strings.Join(lines[:min(len(lines), 20)], "\n")
}

// a2aStreamChecks test streams.
var a2aStreamChecks = []a2aCheck{
	{Number: "a2a.stream.first",
		Title: "A stream begins with the task or a message, and then has updates of that task",
		Cites: `A2A 1.0 3.1.2; A-30`, Needs: needsStreaming, Wait: time.Second, Run: a2aFirstEvent},
	{Number: "a2a.stream.end",
		Title: "A stream ends with the state in which the task is over or asks, as GetTask shows it",
		Cites: `A2A 1.0 3.1.2, 3.5.2; A-31`, Needs: needsStreaming, Wait: time.Second, Run: a2aLastEvent},
	{Number: "a2a.stream.artifacts", Title: "The pieces of artifacts on a stream make the artifacts of the task",
		Cites: `A2A 1.0 4.2.2`, Needs: needsStreaming, Wait: time.Second, Run: a2aPieces},
	{Number: "a2a.stream.two", Title: "Two streams of a task have the same events in the same order",
		Cites: `A2A 1.0 3.5.2; A-30`, Needs: needsStreaming, Wait: time.Second, Run: func(h *a2aProbe) {
			for _, b := range h.server.bindings {
				r, events := h.ofTask(b)
				if !r.second.shows() {
					h.End(kit.NotTested, "the agent ended its task before a second stream could be opened")
				}
				h.wantTail(withoutIDs(events), withoutIDs(r.second.all), 0)
			}
		}},
	{Number: "a2a.stream.resume", Title: "A stream that is opened with Last-Event-ID misses nothing and repeats nothing",
		Cites: `A-32`, Needs: needsStreaming, Wait: time.Second, Run: func(h *a2aProbe) {
			for _, b := range h.server.bindings {
				r, events := h.ofTask(b)
				switch {
				case events[0].id == "":
					h.End(kit.NotTested, "the events have no id, so a stream cannot be resumed")
				case !r.resumed.shows():
					h.End(kit.NotTested, "the agent ended its task before the stream could be resumed")
				}
				h.wantTail(events, r.resumed.all, len(events)-1)
			}
		}},
	{Number: "a2a.stream.over", Title: "A task that is over or unknown has no stream", Cites: `A2A 1.0 3.1.6; A-31`,
		Needs: needsStreaming, Wait: time.Second, Run: func(h *a2aProbe) {
			id := h.over(h.server.bindings[0]).Text("id")
			for _, b := range h.server.bindings {
				h.wantRefused(h.open(h.Ctx, b, "SubscribeToTask", kit.Message{"id": id}, nil).refusal(h.Ctx), a2aUnsupported)
				h.wantRefused(h.open(h.Ctx, b, "SubscribeToTask", kit.Message{"id": unknownA2ATask}, nil).refusal(h.Ctx), a2aNoTask)
			}
		}},
}

func a2aFirstEvent(h *a2aProbe) {
	for _, b := range h.server.bindings {
		r := h.observe(b)
		h.Describe("SendStreamingMessage in %s", b.name)
		h.Expect("text/event-stream with a task or a message first, and then statusUpdate or artifactUpdate of that task")
		if len(r.main.all) == 0 {
			h.Failf("%s", r.main.answer)
		}
		first := r.main.all[0]
		holds := first.kind == "task" && stateOf(first.inner) != "" || first.kind == "message" && len(r.main.all) == 1
		for _, e := range r.main.all[1:] {
			holds = holds && (e.kind == "statusUpdate" || e.kind == "artifactUpdate") &&
				e.inner.Text("taskId") == first.inner.Text("id") &&
				e.inner.Text("contextId") == first.inner.Text("contextId")
		}
		if !holds {
			h.Failf("%s", describeEvents(r.main.all))
		}
	}
}

func a2aLastEvent(h *a2aProbe) {
	for _, b := range h.server.bindings {
		r, events := h.ofTask(b)
		h.Expect("the last event has the task's state, %s, and no other event ends the task or asks", stateOf(r.task))
		for i, e := range events {
			last, ends := i == len(events)-1, isOver(e.state()) || isAsking(e.state())
			if last != ends || last && e.state() != stateOf(r.task) {
				h.Failf("%s", describeEvents(r.main.all))
			}
		}
	}
}

func a2aPieces(h *a2aProbe) {
	for _, b := range h.server.bindings {
		r, events := h.ofTask(b)
		streamed := map[string]string{}
		for _, e := range events {
			if e.kind == "task" {
				streamed = artifactTexts(e.inner)
			}
			if e.kind != "artifactUpdate" {
				continue
			}
			id := e.inner.Object("artifact").Text("artifactId")
			if more, _ := e.inner.Flag("append"); !more {
				streamed[id] = ""
			}
			streamed[id] += textOfParts(e.inner.Object("artifact"))
		}
		h.Expect("the texts of the artifacts on the stream: %v", streamed)
		if got := artifactTexts(r.task); string(kit.Canonical(got)) != string(kit.Canonical(streamed)) {
			h.Failf("GetTask: %v", got)
		}
	}
}

// artifactTexts returns the texts of a task's artifacts, by their ids.
func artifactTexts(task kit.Answer) map[string]string {
	texts := map[string]string{}
	artifacts, _ := task.List("artifacts")
	for _, raw := range artifacts {
		a := kit.ParseRow(raw)
		texts[a.Text("artifactId")] = textOfParts(a)
	}
	return texts
}

// textOfParts returns the texts of an artifact.
func textOfParts(artifact kit.Answer) (text string) {
	parts, _ := artifact.List("parts")
	for _, raw := range parts {
		text += kit.ParseRow(raw).Text("text")
	}
	return text
}

// withoutIDs returns events as the specification compares them. The ids are an addition.
func withoutIDs(events []a2aEvent) (plain []a2aEvent) {
	for _, e := range events {
		e.id = ""
		plain = append(plain, e)
	}
	return plain
}

// wantTail ends the check unless a stream, whose events are got, has a task and then the last of the events of another
// stream: exactly n, or any number if n is 0. It may have more after them.
func (h *a2aProbe) wantTail(events, got []a2aEvent, n int) {
	h.Expect("the task, and then the last of these events:\n%s", describeEvents(events))
	same := func(a, b a2aEvent) bool { return a.id == b.id && a.result == b.result }
	last := events[len(events)-1]
	end := slices.IndexFunc(got, func(e a2aEvent) bool { return same(e, last) })
	tail := got[:end+1]
	if end > 0 {
		tail = tail[1:]
	}
	if got[0].kind != "task" || end < 1 || n > 0 && len(tail) != n || len(tail) > len(events) ||
		!slices.EqualFunc(events[len(events)-len(tail):], tail, same) {
		h.Failf("%s", describeEvents(got))
	}
}
