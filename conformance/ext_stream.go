package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const streaming = overHTTP + " (server-sent events)"

// streamChecks test GET /events with Accept: text/event-stream.
var streamChecks = []relayCheck{
	{Number: "X-55", Title: "A stream has the Content-Type text/event-stream, is not cached or buffered, and varies by Accept",
		Cites: streaming, run: ifStreams(streamHeader)},
	{Number: "X-56", Title: "A stream without a position has only later events, each at once and as it was signed",
		Cites: streaming, wait: second, run: ifStreams(streamFromNow)},
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
		Cites: streaming, wait: 31 * second, run: ifStreams(streamKeepsAlive)},
	{Number: "X-63", Title: "A stream of a private relay has only what its reader may see, and an inbox only for its owner",
		Cites: streaming + "; §8", Vectors: "reads.json", wait: second, run: ifStreams(ifPrivate(privateStream))},
}

// ifStreams returns a check that runs only if the relay announces streams.
func ifStreams(run func(*relayProbe)) func(*relayProbe) {
	return ifFeature("sse", func(p *relayProbe, _ answer) { run(p) })
}

// eventStream is an open stream of events.
type eventStream struct {
	p      *relayProbe
	answer answer         // its header; and its body, if it is not a stream
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
	return p.openStream(header, "/events"+query(pairs...))
}

func (p *relayProbe) openStream(header http.Header, target string) *eventStream {
	header = header.Clone()
	if header == nil {
		header = http.Header{}
	}
	if header["Accept"] == nil {
		header.Set("Accept", "text/event-stream")
	}
	p.noteSent("GET " + target + " with Accept: " + header.Get("Accept") + describeHeader(header))
	for deadline := time.Now().Add(rateLimitTimeout); ; p.sleep(second) {
		s := p.tryStream(header, target)
		if !isRateLimit(s.answer) || time.Now().After(deadline) {
			return s
		}
	}
}

func (p *relayProbe) tryStream(header http.Header, target string) *eventStream {
	ctx, cancel := context.WithCancel(p.ctx)
	s := &eventStream{p: p, lines: make(chan frameLine), close: cancel}
	p.relay.requests.Add(1)
	req, err := p.relay.newRequest(ctx, http.MethodGet, target, header, nil)
	if err != nil {
		p.failf("%v", err)
	}
	timer := time.AfterFunc(answerTimeout, cancel) // for the header of the answer
	resp, err := p.relay.client.Do(req)
	timer.Stop()
	if err != nil {
		cancel()
		s.answer.err = err
		close(s.lines)
		return s
	}
	s.answer = answer{status: resp.StatusCode, header: resp.Header}
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		defer cancel()
		defer func() { _ = resp.Body.Close() }() // it was only read
		s.answer.body, s.answer.err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		_ = json.Unmarshal(s.answer.body, &s.answer.members) // on an error members stays nil
		close(s.lines)
		return s
	}
	p.tasks.Go(func() { s.follow(ctx, resp.Body) })
	return s
}

// follow reads the lines of the stream until it ends.
func (s *eventStream) follow(ctx context.Context, body io.ReadCloser) {
	defer close(s.lines)
	defer func() { _ = body.Close() }() // it was only read
	scanner := bufio.NewScanner(body)
	scanner.Buffer(nil, maxFrame)
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
			s.p.failf("the stream has ended: %v", l.err)
		}
		return l.text, true
	case <-timer.C:
		return "", false
	case <-s.p.ctx.Done():
		s.p.stopped()
		return "", false
	}
}

// next returns the next event, by the rules of WHATWG HTML. ok is false if none comes within the time.
func (s *eventStream) next(within time.Duration) (e event, ok bool) {
	var data []string
	name := ""
	for deadline := time.Now().Add(within); ; {
		line, ok := s.line(time.Until(deadline))
		if !ok {
			return event{}, false
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
			if e.raw = json.RawMessage(strings.Join(data, "\n")); len(data) > 1 || name != "" && name != "message" {
				s.p.failf("an event has the name %q and %d lines of data: %s", name, len(data), excerpt(e.raw, 400))
			}
			_ = json.Unmarshal(e.raw, &e.members) // on an error members stays nil
			return e, true
		}
	}
}

// begin checks that the relay answers with a stream, and returns it.
func (s *eventStream) begin() *eventStream {
	s.p.expect("status 200 with the Content-Type text/event-stream")
	if s.answer.status != http.StatusOK || !strings.HasPrefix(s.answer.header.Get("Content-Type"), "text/event-stream") {
		s.p.failf("%s with Content-Type %s", s.answer, s.answer.header.Get("Content-Type"))
	}
	return s
}

// wantEvents checks that the next events are exactly these messages, in this order, and that no other follows.
func (s *eventStream) wantEvents(messages ...signedMessage) {
	var got []event
	for range messages {
		s.p.expect("the next event of the stream is %s", messages[len(got)].id)
		e, ok := s.next(promptLimit)
		if !ok {
			s.p.failf("it has not come after %v; the events before are %s", promptLimit, ids(got))
		}
		got = append(got, e)
	}
	s.p.checkInOrder(got, messages...)
	s.p.expect("no other event in the stream")
	if e, more := s.next(quietTime); more {
		s.p.failf("the stream has %s", excerpt(e.raw, 400))
	}
}

// resume closes the stream and opens another one, as an EventSource does.
func (s *eventStream) resume(pairs ...string) *eventStream {
	s.p.expect("the stream has an id")
	if s.lastID == "" {
		s.p.failf("it has none")
	}
	s.close()
	return s.p.stream(http.Header{"Last-Event-Id": {s.lastID}}, pairs...).begin()
}

func streamHeader(p *relayProbe) {
	s := p.stream(nil, "recipient", p.actor("a reader").did()).begin()
	p.expect("Cache-Control: no-store or no-cache, X-Accel-Buffering: no, and Accept in Vary")
	h := s.answer.header
	if !strings.Contains(h.Get("Cache-Control"), "no-store") && !strings.Contains(h.Get("Cache-Control"), "no-cache") ||
		h.Get("X-Accel-Buffering") != "no" || !strings.Contains(strings.ToLower(strings.Join(h.Values("Vary"), ",")), "accept") {
		p.failf("the header %v", h)
	}
}

func streamFromNow(p *relayProbe) {
	client, agent := p.actor("a client"), p.actor("an agent")
	p.sentTo(agent, 2)
	s := p.stream(nil, "recipient", agent.did()).begin()
	s.wantEvents()
	for range 2 {
		m := p.postAccepted(client, p.request(client, agent))
		p.expect("%s comes at once", m.id)
		e, ok := s.next(promptLimit)
		if !ok {
			p.failf("it has not come after %v", promptLimit)
		}
		p.checkEvents([]event{e}, m)
		p.expect("the event has the same bytes as in a poll")
		polled := p.inbox(agent)
		if last := polled[len(polled)-1]; string(last.raw) != string(e.raw) {
			p.failf("%s", excerpt(e.raw, 400))
		}
	}
}

func streamFromPosition(p *relayProbe) {
	client, agent := p.actor("a client"), p.actor("an agent")
	sent := p.sentTo(agent, 5)
	middle := p.poll("cursor", "0", "recipient", agent.did(), "timeout", "0", "limit", "2").text("cursor")
	for _, c := range []struct {
		query []string
		want  []signedMessage
	}{
		{[]string{"cursor", "0"}, sent},
		{[]string{"cursor", middle, "limit", "1"}, sent[2:]},
		{[]string{"since", p.hourAgo()}, sent},
		{[]string{"cursor", "0", "type", "OFFER"}, nil},
		{[]string{"cursor", "0", "type", "REQUEST", "sender", client.did()}, nil},
	} {
		s := p.stream(nil, append(c.query, "recipient", agent.did())...).begin()
		s.wantEvents(c.want...)
		s.close()
	}
	s := p.stream(nil, "cursor", middle, "recipient", agent.did(), "sender", client.did()).begin()
	p.sentTo(agent, 1) // from another sender
	later := p.postAccepted(client, p.request(client, agent))
	s.wantEvents(later)
}

func streamResumes(p *relayProbe) {
	agent := p.actor("an agent")
	parameters := []string{"cursor", "0", "recipient", agent.did()}
	sent := p.sentTo(agent, 4)
	s := p.stream(nil, parameters...).begin()
	for i := range 2 {
		p.expect("%s is the next event", sent[i].id)
		if e, ok := s.next(promptLimit); !ok || e.id() != sent[i].id {
			p.failf("%s", excerpt(e.raw, 400))
		}
	}
	p.checkInOrder(p.events("cursor", s.lastID, "recipient", agent.did(), "timeout", "0"), sent[2:]...)
	s = s.resume(parameters...)
	s.wantEvents(sent[2:]...)
	more := p.sentTo(agent, 1)
	s.resume(parameters...).wantEvents(more...)
}

func streamFirstID(p *relayProbe) {
	agent := p.actor("an agent")
	p.sentTo(agent, 1)
	s := p.stream(nil, "recipient", agent.did()).begin()
	p.expect("an id soon after the stream begins")
	for s.lastID == "" {
		line, ok := s.line(promptLimit)
		if !ok {
			p.failf("none has come after %v", promptLimit)
		}
		s.lastID, _ = strings.CutPrefix(strings.ReplaceAll(line, "id: ", "id:"), "id:")
		if !strings.HasPrefix(line, "id:") {
			s.lastID = ""
		}
	}
	sent := p.sentTo(agent, 2)
	s.resume("recipient", agent.did()).wantEvents(sent...)
}

func streamRefusals(p *relayProbe) {
	reader := p.actor("a reader").did()
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
		p.checkRefused(s.answer, invalid)
	}
}

func pageByAccept(p *relayProbe) {
	reader := p.actor("a reader").did()
	for _, accept := range []string{"*/*", "application/json", "application/json, text/event-stream", "text/html, */*;q=0.8",
		"text/event-stream;q=0, */*", "text/event-stream;q=0.5, application/json"} {
		s := p.openStream(http.Header{"Accept": {accept}}, "/events"+query("cursor", "0", "recipient", reader, "timeout", "0"))
		s.close()
		p.checkEvents(p.checkPage(s.answer))
	}
}

func streamKeepsAlive(p *relayProbe) {
	s := p.stream(nil, "recipient", p.actor("a reader").did()).begin()
	for started := time.Now(); ; {
		if _, ok := s.line(quietTime); !ok {
			break
		} else if time.Since(started) > promptLimit {
			p.failf("the stream does not become quiet")
		}
	}
	p.expect("a line within 30 seconds")
	if _, ok := s.line(30 * second); !ok {
		p.failf("none has come")
	}
}

func privateStream(p *relayProbe) {
	client, agent, stranger := p.actor("a client"), p.actor("an agent"), p.actor("a stranger")
	target := "/events" + query("cursor", "0", "sender", client.did())
	earlier := p.postAccepted(client, p.request(client, agent))
	open := func(reader actor, target string) *eventStream {
		header := withoutToken()
		if reader.name != "" {
			header = http.Header{"Authorization": {fmt.Sprint("Agora ", p.token(reader, target))}}
		}
		return p.openStream(header, target)
	}
	feeds := []*eventStream{open(actor{}, target).begin(), open(stranger, target).begin(), open(agent, target).begin()}
	direct := p.postAccepted(client, p.request(client, agent))
	broadcast := p.postAccepted(client, p.request(client, actor{}))
	feeds[0].wantEvents(broadcast)
	feeds[1].wantEvents(broadcast)
	feeds[2].wantEvents(earlier, direct, broadcast)
	inbox := "/events" + query("recipient", agent.did())
	p.checkUnauthorized(open(stranger, inbox).answer)
	p.checkUnauthorized(open(actor{}, inbox).answer)
}
