package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// frame is a part of a stream that ends with an empty line.
type frame struct {
	raw   string // with the line ends
	event string
	id    string
	data  string
	at    time.Time // when its last byte was received
}

// parseFrame reads the lines of a frame. It needs one space after the colon, as some clients do.
func parseFrame(raw string, at time.Time) frame {
	f := frame{raw: raw, at: at}
	for line := range strings.SplitSeq(strings.TrimRight(raw, "\n"), "\n") {
		name, value, _ := strings.Cut(line, ": ")
		switch name {
		case "event":
			f.event = value
		case "id":
			f.id = value
		case "data":
			f.data += value
		}
	}
	return f
}

// hubStream is an open inbox stream.
type hubStream struct {
	agent  *hubAgent
	answer kit.Answer // its header; and its body, if it is not a stream
	opened time.Time
	cancel context.CancelFunc
	frames chan frame // is closed at the end of the stream
	ended  error      // why the stream has ended; set before frames is closed
	reads  []arrival  // set before frames is closed
}

// arrival says how many bytes of a stream had come at a time.
type arrival struct {
	at    time.Time
	bytes int
}

// openRaw sends GET /agent/inbox with these headers. The answer may be a refusal.
func (h *hubProbe) openRaw(a *hubAgent, target string, header http.Header) *hubStream {
	h.NoteSent("GET " + target + kit.DescribeHeader(header))
	ctx, cancel := context.WithCancel(h.Ctx)
	s := &hubStream{agent: a, cancel: cancel, frames: make(chan frame, kit.MaxFrames)}
	h.streams = append(h.streams, s)
	timer := time.AfterFunc(kit.AnswerTimeout+kit.RateLimitTimeout, cancel) // for the header of the answer
	defer timer.Stop()
	var body io.ReadCloser
	if body, s.answer, s.opened = h.begin(ctx, h.Relay.Client.Transport, target, header); body == nil {
		close(s.frames)
	} else {
		h.Tasks.Go(func() { s.follow(ctx, body) })
	}
	return s
}

// begin sends GET. If the status is 200, it returns the body, which may be a stream, and the answer has no body.
// Otherwise the answer is complete, and body is nil. If the hub limits the rate of requests, begin sends the request
// again. sent is the time of the last request.
func (h *hubProbe) begin(
	ctx context.Context, via http.RoundTripper, target string, header http.Header,
) (body io.ReadCloser, a kit.Answer, sent time.Time) {
	for deadline := time.Now().Add(kit.RateLimitTimeout); ; kit.Wait(ctx, time.Second) {
		h.hub.pace.Wait(ctx, http.MethodGet, target)
		h.Relay.Requests.Add(1)
		sent = time.Now()
		body, a = h.beginOnce(ctx, via, target, header)
		if body != nil || !h.hub.pace.Refused(a) || time.Now().After(deadline) {
			return body, a, sent
		}
	}
}

func (h *hubProbe) beginOnce(
	ctx context.Context, via http.RoundTripper, target string, header http.Header,
) (io.ReadCloser, kit.Answer) {
	req, err := h.Relay.NewRequest(ctx, http.MethodGet, target, header, nil)
	if err != nil {
		return nil, kit.Answer{Err: err}
	}
	resp, err := via.RoundTrip(req)
	if err != nil {
		return nil, kit.Answer{Err: err}
	}
	a := kit.Answer{Status: resp.StatusCode, Header: resp.Header}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, a
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	a.Body, a.Err = io.ReadAll(io.LimitReader(resp.Body, kit.MaxAnswer))
	a.Members = kit.ParseRow(a.Body).Members
	return nil, a
}

// follow reads the stream until it ends.
func (s *hubStream) follow(ctx context.Context, body io.ReadCloser) {
	defer close(s.frames)
	defer func() { _ = body.Close() }() // it was only read
	var rest []byte
	buffer := make([]byte, 64<<10)
	total := 0
	for {
		n, err := body.Read(buffer)
		now := time.Now()
		total += n
		s.reads = append(s.reads, arrival{now, total})
		rest = append(rest, buffer[:n]...)
		for {
			end := bytes.Index(rest, []byte("\n\n"))
			if end < 0 {
				break
			}
			select {
			case s.frames <- parseFrame(string(rest[:end+2]), now):
			case <-ctx.Done():
				s.ended = ctx.Err()
				return
			}
			rest = rest[end+2:]
		}
		if err == nil && len(rest) > kit.MaxFrame {
			err = fmt.Errorf("no empty line within %d bytes", kit.MaxFrame)
		}
		if err != nil {
			s.ended = err
			return
		}
	}
}

// close ends the stream from this side and waits until it has ended.
func (s *hubStream) close() {
	s.cancel()
	for range s.frames {
	}
}

// open opens the inbox stream of a. The hub must answer with a stream that begins with the event connected. lastEventID
// may be empty.
func (h *hubProbe) open(a *hubAgent, lastEventID string) *hubStream {
	header := http.Header{"Authorization": {"Bearer " + a.key}}
	if lastEventID != "" {
		header["Last-Event-Id"] = []string{lastEventID}
	}
	s := h.openRaw(a, "/agent/inbox", header)
	h.wantOpen(s)
	return s
}

// wantOpen ends the check unless s is a stream that begins with the event connected.
func (h *hubProbe) wantOpen(s *hubStream) frame {
	h.Want(s.answer.Err == nil && s.answer.Status == http.StatusOK, s.answer, "status 200 and an event stream")
	f := h.nextFrame(s, kit.PromptLimit)
	h.Expect("the stream begins with the event connected")
	if f.event != "connected" {
		h.Failf("it begins with %q", f.raw)
	}
	return f
}

// nextFrame returns the next frame of the stream. It ends the check if none comes within a time.
func (h *hubProbe) nextFrame(s *hubStream, within time.Duration) frame {
	f, ok := h.frameWithin(s, within)
	if !ok {
		h.Expect("the stream continues within %v", within)
		h.Failf("nothing came")
	}
	return f
}

// frameWithin returns the next frame. It returns false if no frame comes in time, and ends the check if the stream
// ends.
func (h *hubProbe) frameWithin(s *hubStream, within time.Duration) (frame, bool) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case f, ok := <-s.frames:
		if !ok {
			h.Expect("the stream stays open")
			h.Failf("it ended: %v", s.ended)
		}
		return f, true
	case <-timer.C:
		return frame{}, false
	case <-h.Ctx.Done():
		h.Stopped()
		return frame{}, false
	}
}

// messageWithin returns the next frame that is an event message. It skips other frames, and messages that an earlier
// check has left.
func (h *hubProbe) messageWithin(s *hubStream, within time.Duration) (frame, kit.Answer, bool) {
	for deadline := time.Now().Add(within); ; {
		f, ok := h.frameWithin(s, max(0, time.Until(deadline)))
		if !ok {
			return frame{}, kit.Answer{}, false
		}
		data := kit.ParseRow(json.RawMessage(f.data))
		switch {
		case f.event == "message" && !s.agent.past[data.Text("trace_id")]:
			return f, data, true
		case f.event == "closed":
			h.Expect("the stream stays open")
			h.Failf("the hub closes it: %q", f.raw)
		}
	}
}

// wantMessages ends the check unless the next messages of the stream are these, in this order. It returns the ids of
// the frames.
func (h *hubProbe) wantMessages(s *hubStream, messages ...sentMessage) (ids []string) {
	for i, m := range messages {
		h.Expect("message %d of %d on the stream is the one with the trace_id %s", i+1, len(messages), m.trace)
		f, data, ok := h.messageWithin(s, kit.PromptLimit)
		h.Expect("message %d of %d on the stream is the one with the trace_id %s", i+1, len(messages), m.trace)
		if !ok {
			h.Failf("no message came within %v", kit.PromptLimit)
		}
		if data.Text("trace_id") != m.trace {
			h.Failf("another message came: %s", kit.Excerpt([]byte(f.raw), 400))
		}
		ids = append(ids, f.id)
	}
	return ids
}

// wantOnly is wantMessages, and then no other message may come.
func (h *hubProbe) wantOnly(s *hubStream, messages ...sentMessage) []string {
	ids := h.wantMessages(s, messages...)
	h.wantQuiet(s)
	return ids
}

// wantQuiet ends the check if another message comes.
func (h *hubProbe) wantQuiet(s *hubStream) {
	if f, _, ok := h.messageWithin(s, kit.Quiet); ok {
		h.Expect("no other message comes")
		h.Failf("%s", kit.Excerpt([]byte(f.raw), 400))
	}
}

// wantClosed ends the check unless the hub ends the stream with this reason.
func (h *hubProbe) wantClosed(s *hubStream, reason string) {
	want := fmt.Sprintf("event: closed\ndata: {\"reason\":%q}\n\n", reason)
	h.Expect("the frame %q, and then the end of the stream", want)
	timer := time.NewTimer(kit.PromptLimit)
	defer timer.Stop()
	last := ""
	for {
		select {
		case f, ok := <-s.frames:
			if !ok && last != want {
				h.Failf("the last frame before the end is %q", last)
			}
			if !ok {
				return
			}
			last = f.raw
		case <-timer.C:
			h.Failf("the stream is still open after %v; its last frame is %q", kit.PromptLimit, last)
		case <-h.Ctx.Done():
			h.Stopped()
		}
	}
}
