package sqlite

import (
	"context"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// watcher is one call of Watch. The writer appends to its queue, and the goroutine of Watch empties it.
type watcher struct {
	queue []relay.Posted // guarded by Store.mu
	woken chan struct{}  // has room for one
}

// publish passes committed events to the watchers, in order.
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
		default: // it was woken before and has not run yet
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
	// From here on new events go into the queue. The loop reads the events stored before. Events in both are skipped by
	// their numbers.
	last := after.Seq
	for more := true; more; {
		page, err := s.Read(ctx, relay.Query{After: after, Expired: true, Limit: relay.MaxPage})
		if err != nil {
			return err
		}
		missed := make([]relay.Posted, 0, len(page.Events))
		for _, e := range page.Events {
			if last = e.Seq; e.Size == 0 {
				continue // the body was cut on a full disk, after the event had expired
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
