package a2a

import (
	"context"
	"strconv"
	"time"

	"github.com/agora-relay/agora/gateway"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// This file writes streams: first the task, and then each event of it (docs/A2A.md, "Streams").

// Times of streams.
const (
	streamLife = time.Hour
	pulse      = 15 * time.Second // how often a comment is sent
)

// stream is the stream of a task. Only its handler's goroutine uses it.
type stream struct {
	*operation
	out   *httpapi.EventStream
	slot  *relay.Stream
	first taskText
	after int64 // the last event that was sent
	turn  int64 // the stream ends with this turn; 0: with the task
}

// streamTurn answers SendStreamingMessage.
func (p *operation) streamTurn(ref int64) error {
	s := stream{operation: p}
	if err := p.Relay.View(p.background(), p.from, func(q relay.Querier) error {
		u, err := turnByNumber(q, ref)
		if err != nil {
			return err
		}
		t, err := taskByNumber(q, u.task)
		if err != nil {
			return err
		}
		s.turn, s.after = u.number, t.seq
		s.first, err = newText(q, t, view{historyLength, true})
		return err
	}); err != nil {
		return err
	}
	return s.serve()
}

// subscribe answers SubscribeToTask.
func (p *operation) subscribe() error {
	params, err := wire.ParseTaskParams(p.params)
	if err != nil {
		return err
	}
	s := stream{operation: p}
	if err := p.view(func(q relay.Querier) error {
		t, err := p.findTask(q, params.ID)
		if err != nil {
			return err
		}
		after, resumes, err := p.lastEvent()
		if err != nil {
			return err
		}
		v := view{historyLength, true}
		if s.after = t.seq; resumes {
			s.after, v = min(after, t.seq), view{}
		}
		if t.ended != 0 && s.after == t.seq { // a client that has missed events still gets them
			return wire.Errorf(wire.UnsupportedOperation, "This task has ended; GetTask returns it.")
		}
		s.first, err = newText(q, t, v)
		return err
	}); err != nil {
		return err
	}
	return s.serve()
}

// lastEvent returns the header Last-Event-ID.
func (p *operation) lastEvent() (seq int64, given bool, err error) {
	values := p.r.Header.Values("Last-Event-ID")
	if len(values) == 0 {
		return 0, false, nil
	}
	seq, err = strconv.ParseInt(values[0], 10, 64)
	if err != nil || seq < 0 || len(values) > 1 {
		return 0, false, wire.Invalid("Last-Event-ID", "must be the id of an event of this task")
	}
	return seq, true, nil
}

// serve writes the stream.
func (s *stream) serve() (err error) {
	if s.slot, err = s.Relay.OpenStream(s.from, s.signer); err != nil {
		return err
	}
	defer s.slot.Close()
	s.out = httpapi.NewEventStream(s.w)
	s.out.Begin()
	ctx, cancel := context.WithTimeout(s.r.Context(), streamLife)
	defer cancel()
	ended := s.first.task.ended != 0 && s.after == s.first.task.seq
	if s.writeTask(ctx) == nil && !ended {
		s.run(ctx)
	}
	return nil
}

// write writes one event.
func (s *stream) write(id int64, text string) error {
	head, tail := s.around()
	_, err := s.out.Write([]byte("id: " + strconv.FormatInt(id, 10) + "\ndata: " + head + text + tail + "\n\n"))
	return err
}

// writeTask writes the first event, in pieces.
func (s *stream) writeTask(ctx context.Context) error {
	head, tail := s.around()
	begin := "id: " + strconv.FormatInt(s.after, 10) + "\ndata: " + head + `{"task":`
	for text, err := range s.texts(ctx, s.from, s.first) {
		if err != nil {
			return err
		}
		if _, err := s.out.Write(append([]byte(begin), text...)); err != nil {
			return err
		}
		begin = ""
	}
	_, err := s.out.Write([]byte("}" + tail + "\n\n"))
	return err
}

// run writes events and comments until the stream ends.
func (s *stream) run(ctx context.Context) {
	beat := time.NewTicker(pulse)
	defer beat.Stop()
	changes, callers := s.news.Follow(s.first.task.n), s.closed.Follow(s.endpoint.n)
	defer changes.Close()
	defer callers.Close()
	for {
		news, closed := changes.Next(), callers.Next() // before the events are read
		var again <-chan time.Time
		more, over, err := s.writeNext(ctx)
		switch {
		case gateway.IsTemporary(err):
			again = time.After(time.Second)
		case err != nil || over:
			return
		case more:
			continue
		}
		select {
		case <-news:
		case <-again:
		case <-closed:
		case <-beat.C:
			if _, err := s.out.Write([]byte(":\n\n")); err != nil {
				return
			}
		case <-s.slot.Ended():
			return
		case <-ctx.Done():
			return
		}
	}
}

// writeNext writes the next events. over means that the stream has ended.
func (s *stream) writeNext(ctx context.Context) (more, over bool, err error) {
	var events []event
	if err := s.Relay.View(ctx, s.from, func(q relay.Querier) error {
		if _, _, err := s.findCaller(q, s.r, s.from, s.signer); err != nil { // the key may have ended
			return err
		}
		events, more, err = eventsAfter(q, s.first.task.n, s.after, 0)
		return err
	}); err != nil {
		return false, false, err
	}
	for _, e := range events {
		if err := s.write(e.seq, s.first.update(e)); err != nil {
			return false, false, err
		}
		if s.after = e.seq; s.endsWith(e) {
			return false, true, nil
		}
	}
	return more, false, nil
}

// endsWith reports whether an event is the last one of the stream.
func (s *stream) endsWith(e event) bool {
	return e.kind == status && (e.state.Terminal() || s.turn > 0 && e.turn >= s.turn && e.flags&endsTurn != 0)
}
