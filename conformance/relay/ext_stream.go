package relay

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

const streaming = overHTTP + " (server-sent events)"

// streamChecks test GET /events with Accept: text/event-stream.
var streamChecks = []relayCheck{
	{Number: "X-55", Title: "A stream has the Content-Type text/event-stream, is not cached or buffered, and varies by Accept",
		Cites: streaming, run: ifStreams(streamHeader)},
	{Number: "X-56", Title: "A stream without a position has only later events, each at once and as it was signed",
		Cites: streaming, wait: time.Second, run: ifStreams(streamFromNow)},
	{Number: "X-57", Title: "A stream from a position has the stored events that match all filters, and then stays open",
		Cites: streaming, run: ifStreams(streamFromPosition)},
	{Number: "X-58", Title: "Last-Event-ID continues after its event, and takes precedence over the position in the query",
		Cites: streaming, run: ifStreams(streamResumes)},
	{Number: "X-59", Title: "A stream that ends before its first event has given an id from which nothing is lost",
		Cites: streaming, run: ifStreams(streamFirstID)},
	{Number: "X-60", Title: "A stream with before, timeout or an unknown position is refused before it begins",
		Cites: streaming, run: ifStreams(streamRefusals)},
	{Number: "X-61", Title: "A request that does not prefer text/event-stream gets a page",
		Cites: streaming, run: ifStreams(pageByAccept)},
	{Number: "X-62", Title: "A stream without events is never silent for more than 30 seconds",
		Cites: streaming, wait: 31 * time.Second, run: ifStreams(streamKeepsAlive)},
	{Number: "X-63", Title: "A stream of a private relay has only what its reader may see, and an inbox only for its owner",
		Cites: streaming + "; §8", Vectors: "reads.json", wait: time.Second, run: ifStreams(ifPrivate(privateStream))},
}

// ifStreams returns a check that runs only if the relay announces streams.
func ifStreams(run func(*relayProbe)) func(*relayProbe) {
	return ifFeature("sse", func(p *relayProbe, _ kit.Answer) { run(p) })
}

// eventStream is an open stream of events.
type eventStream struct {
	p      *relayProbe
	answer kit.Answer     // its header; and its body, if it is not a stream
	lines  chan frameLine // is closed at the end of the stream
	lastID string
	close  context.CancelFunc
}

// frameLine is a line of a stream. err says why the stream has ended.
type frameLine struct {
	text string
	err  error
}

// quietTime is how long nothing must come where a check expects no event.
const quietTime = 700 * time.Millisecond

// stream opens GET /events with these parameters. header is added.
func (p *relayProbe) stream(header http.Header, pairs ...string) *eventStream {
	return p.openStream(header, "/events"+kit.Query(pairs...))
}

func (p *relayProbe) openStream(header http.Header, target string) *eventStream {
	header = header.Clone()
	if header == nil {
		header = http.Header{}
	}
	if header["Accept"] == nil {
		header.Set("Accept", "text/event-stream")
	}
	p.NoteSent("GET " + target + " with Accept: " + header.Get("Accept") + kit.DescribeHeader(header))
	for deadline := time.Now().Add(kit.RateLimitTimeout); ; p.Sleep(time.Second) {
		s := p.tryStream(header, target)
		if !kit.IsRateLimit(s.answer) || time.Now().After(deadline) {
			return s
		}
	}
}

func (p *relayProbe) tryStream(header http.Header, target string) *eventStream {
	ctx, cancel := context.WithCancel(p.Ctx)
	s := &eventStream{p: p, lines: make(chan frameLine), close: cancel}
	p.Relay.Requests.Add(1)
	req, err := p.Relay.NewRequest(ctx, http.MethodGet, target, header, nil)
	if err != nil {
		p.Failf("%v", err)
	}
	timer := time.AfterFunc(kit.AnswerTimeout, cancel) // for the header of the answer
	resp, err := p.Relay.Client.Do(req)
	timer.Stop()
	if err != nil {
		cancel()
		s.answer.Err = err
		close(s.lines)
		return s
	}
	s.answer = kit.Answer{Status: resp.StatusCode, Header: resp.Header}
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		defer cancel()
		defer func() { _ = resp.Body.Close() }() // it was only read
		s.answer.Body, s.answer.Err = io.ReadAll(io.LimitReader(resp.Body, kit.MaxAnswer))
		_ = json.Unmarshal(s.answer.Body, &s.answer.Members) // on an error members stays nil
		close(s.lines)
		return s
	}
	p.Tasks.Go(func() { s.follow(ctx, resp.Body) })
	return s
}

// follow reads the lines of the stream until it ends.
func (s *eventStream) follow(ctx context.Context, body io.ReadCloser) {
	defer close(s.lines)
	defer func() { _ = body.Close() }() // it was only read
	scanner := bufio.NewScanner(body)
	scanner.Buffer(nil, kit.MaxFrame)
	for ok := true; ok; {
		line := frameLine{err: io.EOF}
		if ok = scanner.Scan(); ok {
			line = frameLine{text: scanner.Text()}
		} else if err := scanner.Err(); err != nil {
			line.err = err
		}
		select {
		case s.lines <- line:
		case <-ctx.Done():
			return
		}
	}
}

// line returns the next line. ok is false if none comes within the time.
func (s *eventStream) line(within time.Duration) (line string, ok bool) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case l, open := <-s.lines:
		if !open || l.err != nil {
			s.p.Failf("the stream has ended: %v", l.err)
		}
		return l.text, true
	case <-timer.C:
		return "", false
	case <-s.p.Ctx.Done():
		s.p.Stopped()
		return "", false
	}
}

// next returns the next event, by the rules of WHATWG HTML. ok is false if none comes within the time.
func (s *eventStream) next(within time.Duration) (e kit.Event, ok bool) {
	var data []string
	name := ""
	for deadline := time.Now().Add(within); ; {
		line, ok := s.line(time.Until(deadline))
		if !ok {
			return kit.Event{}, false
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case field == "data":
			data = append(data, value)
		case field == "event":
			name = value
		case field == "id":
			s.lastID = value
		case line == "" && len(data) > 0:
			if e.Raw = json.RawMessage(strings.Join(data, "\n")); len(data) > 1 || name != "" && name != "message" {
				s.p.Failf("an event has the name %q and %d lines of data: %s", name, len(data), kit.Excerpt(e.Raw, 400))
			}
			_ = json.Unmarshal(e.Raw, &e.Members) // on an error members stays nil
			return e, true
		}
	}
}

// begin checks that the relay answers with a stream, and returns it.
func (s *eventStream) begin() *eventStream {
	s.p.Expect("status 200 with the Content-Type text/event-stream")
	if s.answer.Status != http.StatusOK || !strings.HasPrefix(s.answer.Header.Get("Content-Type"), "text/event-stream") {
		s.p.Failf("%s with Content-Type %s", s.answer, s.answer.Header.Get("Content-Type"))
	}
	return s
}

// wantEvents checks that the next events are exactly these messages, in this order, and that no other follows.
func (s *eventStream) wantEvents(messages ...kit.SignedMessage) {
	var got []kit.Event
	for range messages {
		s.p.Expect("the next event of the stream is %s", messages[len(got)].ID)
		e, ok := s.next(kit.PromptLimit)
		if !ok {
			s.p.Failf("it has not come after %v; the events before are %s", kit.PromptLimit, kit.IDs(got))
		}
		got = append(got, e)
	}
	s.p.checkInOrder(got, messages...)
	s.p.Expect("no other event in the stream")
	if e, more := s.next(quietTime); more {
		s.p.Failf("the stream has %s", kit.Excerpt(e.Raw, 400))
	}
}

// resume closes the stream and opens another one, as an EventSource does.
func (s *eventStream) resume(pairs ...string) *eventStream {
	s.p.Expect("the stream has an id")
	if s.lastID == "" {
		s.p.Failf("it has none")
	}
	s.close()
	return s.p.stream(http.Header{"Last-Event-Id": {s.lastID}}, pairs...).begin()
}

func streamHeader(p *relayProbe) {
	s := p.stream(nil, "recipient", p.Actor("a reader").DID()).begin()
	p.Expect("Cache-Control: no-store or no-cache, X-Accel-Buffering: no, and Accept in Vary")
	h := s.answer.Header
	if !strings.Contains(h.Get("Cache-Control"), "no-store") && !strings.Contains(h.Get("Cache-Control"), "no-cache") ||
		h.Get("X-Accel-Buffering") != "no" || !strings.Contains(strings.ToLower(strings.Join(h.Values("Vary"), ",")),
		"accept") {
		p.Failf("the header %v", h)
	}
}

func streamFromNow(p *relayProbe) {
	client, agent := p.Actor("a client"), p.Actor("an agent")
	p.sentTo(agent, 2)
	s := p.stream(nil, "recipient", agent.DID()).begin()
	s.wantEvents()
	for range 2 {
		m := p.PostAccepted(client, p.Request(client, agent))
		p.Expect("%s comes at once", m.ID)
		e, ok := s.next(kit.PromptLimit)
		if !ok {
			p.Failf("it has not come after %v", kit.PromptLimit)
		}
		p.CheckEvents([]kit.Event{e}, m)
		p.Expect("the event has the same bytes as in a poll")
		polled := p.Inbox(agent)
		if last := polled[len(polled)-1]; string(last.Raw) != string(e.Raw) {
			p.Failf("%s", kit.Excerpt(e.Raw, 400))
		}
	}
}

func streamFromPosition(p *relayProbe) {
	client, agent := p.Actor("a client"), p.Actor("an agent")
	sent := p.sentTo(agent, 5)
	middle := p.Poll("cursor", "0", "recipient", agent.DID(), "timeout", "0", "limit", "2").Text("cursor")
	for _, c := range []struct {
		query []string
		want  []kit.SignedMessage
	}{
		{[]string{"cursor", "0"}, sent},
		{[]string{"cursor", middle, "limit", "1"}, sent[2:]},
		{[]string{"since", p.HourAgo()}, sent},
		{[]string{"cursor", "0", "type", "OFFER"}, nil},
		{[]string{"cursor", "0", "type", "REQUEST", "sender", client.DID()}, nil},
	} {
		s := p.stream(nil, append(c.query, "recipient", agent.DID())...).begin()
		s.wantEvents(c.want...)
		s.close()
	}
	s := p.stream(nil, "cursor", middle, "recipient", agent.DID(), "sender", client.DID()).begin()
	p.sentTo(agent, 1) // from another sender
	later := p.PostAccepted(client, p.Request(client, agent))
	s.wantEvents(later)
}

func streamResumes(p *relayProbe) {
	agent := p.Actor("an agent")
	parameters := []string{"cursor", "0", "recipient", agent.DID()}
	sent := p.sentTo(agent, 4)
	s := p.stream(nil, parameters...).begin()
	for i := range 2 {
		p.Expect("%s is the next event", sent[i].ID)
		if e, ok := s.next(kit.PromptLimit); !ok || e.ID() != sent[i].ID {
			p.Failf("%s", kit.Excerpt(e.Raw, 400))
		}
	}
	p.checkInOrder(p.Events("cursor", s.lastID, "recipient", agent.DID(), "timeout", "0"), sent[2:]...)
	s = s.resume(parameters...)
	s.wantEvents(sent[2:]...)
	more := p.sentTo(agent, 1)
	s.resume(parameters...).wantEvents(more...)
}

func streamFirstID(p *relayProbe) {
	agent := p.Actor("an agent")
	p.sentTo(agent, 1)
	s := p.stream(nil, "recipient", agent.DID()).begin()
	p.Expect("an id soon after the stream begins")
	for s.lastID == "" {
		line, ok := s.line(kit.PromptLimit)
		if !ok {
			p.Failf("none has come after %v", kit.PromptLimit)
		}
		s.lastID, _ = strings.CutPrefix(strings.ReplaceAll(line, "id: ", "id:"), "id:")
		if !strings.HasPrefix(line, "id:") {
			s.lastID = ""
		}
	}
	sent := p.sentTo(agent, 2)
	s.resume("recipient", agent.DID()).wantEvents(sent...)
}

func streamRefusals(p *relayProbe) {
	reader := p.Actor("a reader").DID()
	for _, c := range []struct {
		id    string
		query []string
	}{
		{"", []string{"before", "end"}}, {"", []string{"cursor", "0", "timeout", "5"}}, {"", []string{"cursor", "abc"}},
		{"", []string{"cursor", "00000001-1"}}, {"00000001-1", nil}, {"abc", []string{"cursor", "0"}},
	} {
		header := http.Header{}
		if c.id != "" {
			header["Last-Event-Id"] = []string{c.id}
		}
		s := p.stream(header, append(c.query, "recipient", reader)...)
		s.close()
		p.CheckRefused(s.answer, invalid)
	}
}

func pageByAccept(p *relayProbe) {
	reader := p.Actor("a reader").DID()
	for _, accept := range []string{"*/*", "application/json", "application/json, text/event-stream",
		"text/html, */*;q=0.8",
		"text/event-stream;q=0, */*", "text/event-stream;q=0.5, application/json"} {
		s := p.openStream(http.Header{"Accept": {accept}}, "/events"+kit.Query("cursor", "0", "recipient", reader, "timeout",
			"0"))
		s.close()
		p.CheckEvents(p.CheckPage(s.answer))
	}
}

func streamKeepsAlive(p *relayProbe) {
	s := p.stream(nil, "recipient", p.Actor("a reader").DID()).begin()
	for started := time.Now(); ; {
		if _, ok := s.line(quietTime); !ok {
			break
		} else if time.Since(started) > kit.PromptLimit {
			p.Failf("the stream does not become quiet")
		}
	}
	p.Expect("a line within 30 seconds")
	if _, ok := s.line(30 * time.Second); !ok {
		p.Failf("none has come")
	}
}

func privateStream(p *relayProbe) {
	client, agent, stranger := p.Actor("a client"), p.Actor("an agent"), p.Actor("a stranger")
	target := "/events" + kit.Query("cursor", "0", "sender", client.DID())
	earlier := p.PostAccepted(client, p.Request(client, agent))
	open := func(reader kit.Actor, target string) *eventStream {
		header := withoutToken()
		if reader.Name != "" {
			header = http.Header{"Authorization": {fmt.Sprint("Agora ", p.token(reader, target))}}
		}
		return p.openStream(header, target)
	}
	feeds := []*eventStream{open(kit.Actor{}, target).begin(), open(stranger, target).begin(), open(agent, target).begin()}
	direct := p.PostAccepted(client, p.Request(client, agent))
	broadcast := p.PostAccepted(client, p.Request(client, kit.Actor{}))
	feeds[0].wantEvents(broadcast)
	feeds[1].wantEvents(broadcast)
	feeds[2].wantEvents(earlier, direct, broadcast)
	inbox := "/events" + kit.Query("recipient", agent.DID())
	p.checkUnauthorized(open(stranger, inbox).answer)
	p.checkUnauthorized(open(kit.Actor{}, inbox).answer)
}
