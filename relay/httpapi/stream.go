package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// This file answers GET /events with server-sent events (PROTOCOL §5).

// Times of a stream.
const (
	keepAliveTime = 15 * time.Second // the longest silence
	maxStream     = 10 * time.Minute // then the stream ends, and its client opens a new one
	// When a client comes back after the end of its stream. The time is random in this range. After a restart of the
	// relay, the clients then do not come all at once.
	minRetry, maxRetry = time.Second, 5 * time.Second
)

const headerLastEventID = "Last-Event-ID"

const typeEventStream = "text/event-stream"

// negotiated returns a handler that answers with stream if the request prefers it, and otherwise with page.
func negotiated(page, stream Handler) Handler {
	return func(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
		w.Header().Add("Vary", "Accept")
		if prefersStream(r.Header.Values("Accept")) {
			return stream(w, r, from)
		}
		return page(w, r, from)
	}
}

// prefersStream reports whether the headers Accept prefer a stream to JSON (RFC 9110 §12.5.1). A wildcard means JSON,
// because clients that never heard of streams send it. So does a list that has both types with the same weight.
func prefersStream(accept []string) bool {
	var stream, json float64
	specific := 0 // how specific the range is from which json comes: 1 for */*, 3 for application/json
	for item := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		name, parameters, err := mime.ParseMediaType(item)
		if err != nil {
			continue
		}
		weight := 1.0
		if text, given := parameters["q"]; given {
			if weight, err = strconv.ParseFloat(text, 64); err != nil {
				continue
			}
		}
		switch rank := map[string]int{"*/*": 1, "application/*": 2, contentJSON: 3}[name]; {
		case name == typeEventStream:
			stream = weight
		case rank > specific:
			specific, json = rank, weight
		}
	}
	return stream > json || stream > 0 && stream == json && specific < 3
}

// streamEvents is the handler of GET /events for a stream. It is small, and keeps nothing large on its stack, because
// thousands of streams wait with their stacks.
func (a *api) streamEvents(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	s, err := a.openStream(w, r, from)
	if err != nil {
		return err
	}
	defer s.pages.Close()
	s.run(r.Context())
	return nil
}

// openStream reads the first page of a stream. Nothing is written yet.
func (a *api) openStream(w http.ResponseWriter, r *http.Request, from relay.Peer) (*pageStream, error) {
	poll, err := a.parseStream(r)
	if err != nil {
		return nil, err
	}
	if token, ok := tokenOf(r.Header.Values("Authorization")); ok && a.relay.Reads() != relay.ToParties {
		from.Reader = a.relay.VerifyPresent(token, r.Method, r.RequestURI)
	}
	poll.Peer = from
	s := &pageStream{a: a, out: NewEventStream(w), end: time.Now().Add(maxStream)}
	if s.pages, s.page, err = a.relay.OpenEvents(r.Context(), poll); err != nil {
		return nil, err
	}
	return s, nil
}

// parseStream reads the parameters of a stream. The header Last-Event-ID takes precedence over the position in the
// query, because an EventSource repeats its URL. Without any position, the stream begins with the next event.
func (a *api) parseStream(r *http.Request) (*relay.Poll, error) {
	p, err := parseParams(r, eventsParams()...)
	if err != nil {
		return nil, err
	}
	for _, other := range []string{"before", "timeout"} {
		if _, given := p[other]; given {
			return nil, invalid("a stream stays open until it ends; leave out %s, or ask for a page with Accept: %s", other, contentJSON)
		}
	}
	poll := new(relay.Poll)
	_, hasSince := p["since"]
	_, hasCursor := p["cursor"]
	switch ids := r.Header.Values(headerLastEventID); {
	case len(ids) > 1:
		return nil, invalid("the header %s is given more than once; give it once", headerLastEventID)
	case len(ids) == 1:
		if poll.Cursor, err = a.relay.ParseCursor(ids[0]); err != nil && !errors.Is(err, relay.ErrUnknownCursor) {
			err = invalid("the header %s must be an id of an earlier stream, or a cursor of this relay", headerLastEventID)
		}
	case hasSince || hasCursor:
		err = a.parseStart(p, poll)
	default:
		poll.Cursor, err = a.relay.End(r.Context())
	}
	if err != nil {
		return nil, err
	}
	return poll, parseFilter(p, poll)
}

// pageStream writes the pages of one stream. Only its handler's goroutine uses it.
type pageStream struct {
	a      *api
	out    *EventStream
	pages  *relay.Feed
	page   relay.Delivery // what is written next
	end    time.Time      // when to end the stream
	alive  time.Time      // when to write the next keep-alive
	cursor relay.Cursor   // behind what was written and searched
}

// run writes the stream until it ends.
func (s *pageStream) run(ctx context.Context) {
	err := s.begin()
	var resume time.Time // when to read again after a refusal
	for err == nil {
		now := time.Now()
		switch {
		case s.over():
			if err = s.pages.Banned(); err == nil {
				_ = s.writeCursor("end; continue with the last id") // the stream ends in any case
				return
			}
		case !now.Before(s.alive):
			err = s.writeCursor("keep-alive")
		case now.Before(resume):
			s.sleep(ctx, s.soonest(resume).Sub(now))
			err = ctx.Err()
		default:
			if s.page, err = s.pages.Next(ctx, s.soonest(s.alive).Sub(now)); err == nil {
				err = s.writePage()
			} else if after := temporary(err); after > 0 {
				resume, err = now.Add(after), nil
			}
		}
	}
	s.giveUp(ctx, err)
}

// begin writes the header and the first page.
func (s *pageStream) begin() error {
	s.out.Begin()
	retry := minRetry + rand.N(maxRetry-minRetry)
	if err := s.write([]byte("retry: " + strconv.FormatInt(retry.Milliseconds(), 10) + "\n\n")); err != nil {
		return err
	}
	if err := s.writePage(); err != nil {
		return err
	}
	return s.writeCursor("begin")
}

// temporary returns when to read again after a refusal that is only for the moment. It is 0 for other errors.
func temporary(err error) time.Duration {
	e, ok := errors.AsType[*envelope.Error](err)
	if ok && (e.Code == envelope.CodeRateLimited || e.Code == envelope.CodeUnavailable) {
		return cmp.Or(e.RetryAfter, time.Second)
	}
	return 0
}

// soonest returns at, or when the stream has to do something else, if that is sooner.
func (s *pageStream) soonest(at time.Time) time.Time {
	for _, other := range []time.Time{s.alive, s.end} {
		if other.Before(at) {
			at = other
		}
	}
	return at
}

// over reports whether the stream must end.
func (s *pageStream) over() bool {
	select {
	case <-s.pages.Ended():
		return true
	default:
		return !time.Now().Before(s.end)
	}
}

// sleep waits until d is over, the stream must end or ctx ends.
func (s *pageStream) sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.pages.Ended():
	case <-ctx.Done():
	}
}

// errClientLeft ends a stream whose client has left or reads too slowly.
var errClientLeft = errors.New("the client has left")

// giveUp ends the stream after an error. A client that comes back gets the error as the answer to its request.
func (s *pageStream) giveUp(ctx context.Context, err error) {
	if ctx.Err() != nil || errors.Is(err, errClientLeft) {
		return
	}
	reason := "the relay failed; continue with the last id"
	if e, ok := errors.AsType[*envelope.Error](err); ok && e.Code != envelope.CodeInternal {
		reason = e.Message
	} else {
		s.a.log.Error("a stream was ended because its next events cannot be read", "err", err)
	}
	_ = s.write([]byte(": end; " + reason + "\n\n")) // the stream ends in any case
}

// writePage writes the events of the page, in parts. Only one part of the page is in memory while a slow client reads. It
// stops early, between two events, if the stream must end.
func (s *pageStream) writePage() error {
	page := s.page
	s.page = relay.Delivery{} // so that it is not in memory while the stream waits
	var part bytes.Buffer
	for events, err := range page.Pieces() {
		if err != nil {
			return err
		}
		for _, e := range events {
			s.cursor = relay.Cursor{Epoch: page.Cursor.Epoch, Seq: e.Seq}
			part.WriteString("id: ")
			part.WriteString(s.a.relay.FormatCursor(s.cursor))
			part.WriteString("\ndata: ")
			part.Write(e.Body) // in canonical form it has no line break
			part.WriteString("\n\n")
			if part.Len() < sendBytes {
				continue
			}
			if err := s.write(part.Bytes()); err != nil || s.over() {
				return err
			}
			part.Reset()
		}
	}
	if part.Len() > 0 {
		if err := s.write(part.Bytes()); err != nil {
			return err
		}
	}
	s.cursor = page.Cursor
	return nil
}

// writeCursor writes a comment, and the cursor as the id of the next request. An id without data is no event (WHATWG
// HTML). So if a client reconnects after a long silence, the relay does not search the same events again.
func (s *pageStream) writeCursor(comment string) error {
	return s.write([]byte(": " + comment + "\nid: " + s.a.relay.FormatCursor(s.cursor) + "\n\n"))
}

// write sends a part of the stream.
func (s *pageStream) write(part []byte) error {
	if _, err := s.out.Write(part); err != nil {
		return errClientLeft
	}
	s.alive = time.Now().Add(keepAliveTime)
	return nil
}
