package sqlite

import (
	"context"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// watcher is one call of Watch: the writer appends to its queue, Watch's own goroutine empties it.
type watcher struct {
	queue []relay.Posted // guarded by Store.mu
	woken chan struct{}  // holds one
}

// publish tells the watchers of events that are committed, in order.
func (s *Store) publish(events []relay.Posted) {
	if len(events) == 0 {
		return
	}
	s.head.Store(int64(events[len(events)-1].Seq))
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watchers {
		w.queue = append(w.queue, events...)
		select {
		case w.woken <- struct{}{}:
		default: // it has been woken and not looked yet
		}
	}
}

// Watch implements relay.Store.
func (s *Store) Watch(ctx context.Context, after relay.Cursor, f func([]relay.Posted)) error {
	w := &watcher{woken: make(chan struct{}, 1)}
	s.mu.Lock()
	s.watchers[w] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, w)
		s.mu.Unlock()
	}()
	// From here on new events queue up; what was stored before is read, and the overlap is left out by number.
	last := after.Seq
	for more := true; more; {
		page, err := s.Read(ctx, relay.Query{After: after, Expired: true, Limit: relay.MaxPage})
		if err != nil {
			return err
		}
		missed := make([]relay.Posted, 0, len(page.Events))
		for _, e := range page.Events {
			if last = e.Seq; e.Size == 0 {
				continue // cut when the disk was full: it had expired
			}
			m, err := envelope.Parse(e.Body, e.Size)
			if err != nil {
				return err
			}
			missed = append(missed, relay.Posted{Event: e, Envelope: m})
		}
		if len(missed) > 0 {
			f(missed)
		}
		after, more = page.Cursor, page.More
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.woken:
			s.mu.Lock()
			events := w.queue
			w.queue = nil
			s.mu.Unlock()
			for len(events) > 0 && events[0].Seq <= last {
				events = events[1:]
			}
			if len(events) > 0 {
				f(events)
			}
		}
	}
}
