// Package watch passes stored events to the callers of Store.Watch: first the events that were stored before, then new
// ones as they are stored. The storage engines share it.
package watch

import (
	"context"
	"slices"
	"sync"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// Watchers has the calls of Watch of a store. The zero value is ready for use. Any number of goroutines may use it.
type Watchers struct {
	mu  sync.Mutex
	all map[*watcher]struct{}
}

// watcher is one call of Watch. Publish appends to its queue, and the goroutine of Watch empties it.
type watcher struct {
	queue []relay.Posted // guarded by Watchers.mu
	busy  sync.Mutex     // held from the moment events are taken from the queue or read, until f has returned
	woken chan struct{}  // has room for one

	wanted func() relay.Wanted // as in relay.Store.Watch
}

// wait waits until no call of the function of Watch is running.
func (w *watcher) wait() {
	w.busy.Lock()
	defer w.busy.Unlock()
}

// Publish passes new events to all calls of Watch. Events must be published in the order of their numbers.
func (all *Watchers) Publish(events []relay.Posted) {
	if len(events) == 0 {
		return
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	for w := range all.all {
		w.queue = append(w.queue, events...)
		select {
		case w.woken <- struct{}{}:
		default: // it was woken before and has not run yet
		}
	}
}

// Forget takes removed events out of the queues, and waits for the calls of functions that have begun. When it has
// returned, no function has the events or gets them. The events must be removed from the database before.
func (all *Watchers) Forget(removed []relay.Seq) {
	gone := make(map[relay.Seq]bool, len(removed))
	for _, seq := range removed {
		gone[seq] = true
	}
	var some []*watcher
	all.mu.Lock()
	for w := range all.all {
		w.queue = slices.DeleteFunc(slices.Clone(w.queue), func(e relay.Posted) bool { return gone[e.Seq] })
		some = append(some, w)
	}
	all.mu.Unlock()
	for _, w := range some { // a call of f that has begun holds busy
		w.wait()
	}
}

// Wanted returns the events that calls of Watch need at the moment.
func (all *Watchers) Wanted() (wanted relay.Wanted) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for w := range all.all {
		if w.wanted == nil {
			return relay.Wanted{All: true}
		}
		some := w.wanted()
		wanted.All = wanted.All || some.All
		wanted.Recipients = append(wanted.Recipients, some.Recipients...)
	}
	return wanted
}

// Watch calls f with the events after a cursor, in order, as relay.Store.Watch does. read reads a page of stored events.
// Watch returns nil when ended is closed. Errors: ctx's, and those of read.
func (all *Watchers) Watch(
	ctx context.Context, after relay.Cursor, wanted func() relay.Wanted, ended <-chan struct{},
	read func(relay.Query) (relay.Page, error), f func([]relay.Posted),
) error {
	w := &watcher{woken: make(chan struct{}, 1), wanted: wanted}
	all.add(w)
	defer all.remove(w)
	// From here on new events go into the queue. The loop reads the events stored before. Events in both are skipped by
	// their numbers.
	last := after.Seq
	missed := func() (more bool, err error) {
		w.busy.Lock()
		defer w.busy.Unlock()
		page, err := read(relay.Query{After: after, Expired: true, Limit: relay.MaxPage})
		if err != nil {
			return false, err
		}
		if n := len(page.Events); n > 0 {
			last = page.Events[n-1].Seq
		}
		events, err := Parse(page.Events)
		if err != nil {
			return false, err
		}
		if len(events) > 0 {
			f(events)
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
		case <-ended:
			return nil
		case <-w.woken:
			all.handOver(w, last, f)
		}
	}
}

func (all *Watchers) add(w *watcher) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.all == nil {
		all.all = map[*watcher]struct{}{}
	}
	all.all[w] = struct{}{}
}

func (all *Watchers) remove(w *watcher) {
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.all, w)
}

// handOver calls f with the events in the queue of w that come after last.
func (all *Watchers) handOver(w *watcher, last relay.Seq, f func([]relay.Posted)) {
	w.busy.Lock()
	defer w.busy.Unlock()
	all.mu.Lock()
	events := w.queue
	w.queue = nil
	all.mu.Unlock()
	for len(events) > 0 && events[0].Seq <= last {
		events = events[1:]
	}
	if len(events) > 0 {
		f(events)
	}
}

// Parse returns stored events in the form that Watch passes on. It leaves out events without a body: the operator has
// removed it, or it was cut on a full disk after the event had expired. Errors: a body is not an envelope.
func Parse(events []relay.Event) ([]relay.Posted, error) {
	posted := make([]relay.Posted, 0, len(events))
	for _, e := range events {
		if e.Size == 0 {
			continue
		}
		m, err := envelope.Parse(e.Body, e.Size)
		if err != nil {
			return nil, err
		}
		posted = append(posted, relay.Posted{Event: e, Envelope: m})
	}
	return posted, nil
}
