package sqlite

import (
	"context"
	"slices"
	"sync"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// watcher is one call of Watch. The writer appends to its queue, and the goroutine of Watch empties it.
type watcher struct {
	queue []relay.Posted // guarded by Store.mu
	busy  sync.Mutex     // held from the moment events are taken from the queue or read, until f has returned
	woken chan struct{}  // has room for one
}

// wait waits until no call of the function of Watch is running.
func (w *watcher) wait() {
	w.busy.Lock()
	defer w.busy.Unlock()
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
	missed := func() (more bool, err error) {
		w.busy.Lock()
		defer w.busy.Unlock()
		page, err := s.Read(ctx, relay.Query{After: after, Expired: true, Limit: relay.MaxPage})
		if err != nil {
			return false, err
		}
		missed := make([]relay.Posted, 0, len(page.Events))
		for _, e := range page.Events {
			if last = e.Seq; e.Size == 0 {
				continue // the body was cut on a full disk, after the event had expired, or the operator has removed it
			}
			m, err := envelope.Parse(e.Body, e.Size)
			if err != nil {
				return false, err
			}
			missed = append(missed, relay.Posted{Event: e, Envelope: m})
		}
		if len(missed) > 0 {
			f(missed)
		}
		after = page.Cursor
		return page.More, nil
	}
	for more := true; more; {
		var err error
		if more, err = missed(); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.woken:
			s.handOver(w, last, f)
		}
	}
}

// handOver calls f with the events in the queue of w that come after last.
func (s *Store) handOver(w *watcher, last relay.Seq, f func([]relay.Posted)) {
	w.busy.Lock()
	defer w.busy.Unlock()
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

// forget takes removed events out of the queues of the watchers, and waits for the calls of their functions that have
// begun. The events are removed from the database already.
func (s *Store) forget(removed []relay.Seq) {
	gone := make(map[relay.Seq]bool, len(removed))
	for _, seq := range removed {
		gone[seq] = true
	}
	var all []*watcher
	s.mu.Lock()
	for w := range s.watchers {
		w.queue = slices.DeleteFunc(slices.Clone(w.queue), func(e relay.Posted) bool { return gone[e.Seq] })
		all = append(all, w)
	}
	s.mu.Unlock()
	for _, w := range all { // a call of f that has begun holds busy
		w.wait()
	}
}
