package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
)

// watchTimeout ends a watch that does not get its events, so that the test fails. It is far longer than any test takes.
const watchTimeout = time.Minute

// watch is a running call of Watch, and the events that it has delivered.
type watch struct {
	cancel context.CancelFunc
	first  func()         // called when the first events arrive; may be nil
	ended  chan error     // gets what Watch returned
	mu     sync.Mutex     // guards got
	got    []relay.Posted // the events so far
	signal chan struct{}  // has a value when events have arrived; capacity 1
}

// startWatch starts a Watch after a cursor. If first is not nil, it is called when the first events arrive. The test
// must end the watch with stop.
func startWatch(f *fixture, after relay.Cursor, first func()) *watch {
	ctx, cancel := context.WithTimeout(f.Context(), watchTimeout)
	w := &watch{cancel: cancel, first: first, ended: make(chan error, 1), signal: make(chan struct{}, 1)}
	go func() { w.ended <- f.Watch(ctx, after, nil, w.receive) }()
	return w
}

// receive is the function that Watch calls with events.
func (w *watch) receive(events []relay.Posted) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.got) == 0 && w.first != nil {
		w.first()
	}
	w.got = append(w.got, events...)
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// until waits until an event with at least this sequence number has arrived.
func (w *watch) until(f *fixture, seq relay.Seq) {
	f.Helper()
	for {
		w.mu.Lock()
		arrived := len(w.got) > 0 && w.got[len(w.got)-1].Seq >= seq
		w.mu.Unlock()
		if arrived {
			return
		}
		select {
		case <-w.signal:
		case err := <-w.ended:
			f.Fatalf("the watch ended with %v before event %d arrived", err, seq)
		}
	}
}

// stop ends the watch. It checks that the watch delivered every event after the cursor exactly once, in order, and
// equal to the events that Read returns.
func (w *watch) stop(f *fixture, after relay.Cursor) {
	f.Helper()
	w.cancel()
	if err := <-w.ended; !errors.Is(err, context.Canceled) {
		f.Errorf("the watch ended with %v, want the error of its context", err)
	}
	seen := []relay.Event{}
	for _, p := range w.got {
		seen = append(seen, p.Event)
		if string(p.Envelope.Canonical()) != string(p.Body) || p.Envelope.ID != p.ID {
			f.Errorf("the envelope of event %d is not the event's own: %s", p.Seq, p.Envelope.Canonical())
		}
	}
	want := append([]relay.Event{}, f.read(relay.Query{After: after, Expired: true, Limit: everything}).Events...)
	f.equal(fmt.Sprintf("events watched after %v", after), seen, want)
}

// testWatch checks that Watch delivers every event once and in order, whether the event was stored before or after the
// watch began.
func testWatch(t *testing.T, open Opener) {
	t.Run("stored events, then new events", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		cursors := []relay.Cursor{{}, f.end()}
		for range 3 {
			f.advance(1)
			cursors = append(cursors, f.post(alice, manifest("m")).Cursor)
		}
		watches := make([]*watch, len(cursors))
		for i, after := range cursors {
			watches[i] = startWatch(f, after, nil)
		}
		f.post(bob, in("t", request))
		last := f.post(bob, to(carol, manifest("m"))).Cursor
		for i, w := range watches {
			w.until(f, last.Seq)
			w.stop(f, cursors[i])
		}
	})

	t.Run("watches started during appends", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		const each, every = 60, 12
		var posts sync.WaitGroup
		watches := make(chan *watch, 2*each/every)
		for _, by := range []didkey.Key{alice, bob} {
			posts.Go(func() {
				for i := range each {
					if i%every == 0 {
						watches <- startWatch(f, relay.Cursor{}, nil)
					}
					if _, err := f.Append(f.Context(), f.entry(by, manifest("m"))); err != nil {
						f.Errorf("append: %v", err)
					}
				}
			})
		}
		posts.Wait()
		close(watches)
		last := f.end().Seq
		for w := range watches {
			w.until(f, last)
			w.stop(f, relay.Cursor{})
		}
	})

	t.Run("notices of a timeout", func(t *testing.T) {
		s := &sweeper{fixture: newFixture(t, open, relay.Policy{})}
		begun := s.post(alice, to(bob, in("t", request))).Cursor
		w := startWatch(s.fixture, begun, nil)
		s.advance(24 * 60 * 60e9)
		s.sweep()
		w.until(s.fixture, s.end().Seq)
		w.stop(s.fixture, begun)
		if len(w.got) != 2 {
			t.Errorf("the watch delivered %d notices, want 2", len(w.got))
		}
	})

	t.Run("more stored events than fit a page", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		between := f.entry(bob, manifest("m"))
		entries := make([]relay.Entry, relay.MaxPage+10)
		for i := range entries {
			entries[i] = f.entry(alice, manifest("m"))
		}
		for _, a := range f.appendConcurrently(entries) {
			f.must(a.err)
		}
		// An event that is stored while the first page is delivered is on the second page and is also announced as new.
		// It must be delivered once.
		meanwhile := make(chan appendResult, 1)
		w := startWatch(f, relay.Cursor{}, func() {
			receipt, err := f.Append(f.Context(), between)
			meanwhile <- appendResult{receipt, err}
		})
		select {
		case posted := <-meanwhile:
			f.must(posted.err)
			w.until(f, posted.Cursor.Seq)
		case err := <-w.ended:
			t.Fatalf("the watch ended with %v before any event arrived", err)
		}
		w.until(f, f.post(bob, manifest("m")).Cursor.Seq)
		w.stop(f, relay.Cursor{})
	})

	t.Run("an unknown cursor or a canceled context", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		end := f.post(alice, manifest("m")).Cursor
		fail := func([]relay.Posted) { f.Errorf("Watch delivered events, want none") }
		if err := f.Watch(t.Context(),
			relay.Cursor{Epoch: end.Epoch + 1, Seq: 1}, nil, fail); !errors.Is(err, relay.ErrUnknownCursor) {
			t.Errorf("watch after an unknown cursor: %v, want ErrUnknownCursor", err)
		}
		ctx, cancel := canceled(f)
		defer cancel()
		if err := f.Watch(ctx, end, nil, fail); !errors.Is(err, context.Canceled) {
			t.Errorf("watch with a canceled context: %v, want the error of the context", err)
		}
	})
}
