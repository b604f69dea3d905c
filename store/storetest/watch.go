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

// patience is how long a watch that sees nothing goes on, far longer than any takes.
const patience = time.Minute

// watch is a call of Watch that the test can look into.
type watch struct {
	cancel context.CancelFunc
	first  func()
	ended  chan error
	mu     sync.Mutex
	got    []relay.Posted
	news   chan struct{} // holds one
}

// startWatch starts watching behind a place; first, if any, is called with the first events. The test ends it with stop.
func startWatch(f *fixture, after relay.Cursor, first func()) *watch {
	ctx, cancel := context.WithTimeout(f.Context(), patience)
	w := &watch{cancel: cancel, first: first, ended: make(chan error, 1), news: make(chan struct{}, 1)}
	go func() { w.ended <- f.Watch(ctx, after, w.see) }()
	return w
}

func (w *watch) see(events []relay.Posted) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.got) == 0 && w.first != nil {
		w.first()
	}
	w.got = append(w.got, events...)
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// until waits for an event with at least the given number.
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
		case <-w.news:
		case err := <-w.ended:
			f.Fatalf("the watch ended before event %d: %v", seq, err)
		}
	}
}

// stop ends the watch and checks that it saw each event behind after once, in order, as Read returns them.
func (w *watch) stop(f *fixture, after relay.Cursor) {
	f.Helper()
	w.cancel()
	if err := <-w.ended; !errors.Is(err, context.Canceled) {
		f.Errorf("the watch ended with %v, want its context's error", err)
	}
	seen := []relay.Event{}
	for _, p := range w.got {
		seen = append(seen, p.Event)
		if string(p.Envelope.Canonical()) != string(p.Body) || p.Envelope.ID != p.ID {
			f.Errorf("event %d came with the envelope %s", p.Seq, p.Envelope.Canonical())
		}
	}
	want := append([]relay.Event{}, f.read(relay.Query{After: after, Expired: true, Limit: everything}).Events...)
	f.equal(fmt.Sprintf("watched behind %v", after), seen, want)
}

func testWatch(t *testing.T, open Opener) {
	t.Run("stored and live", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		places := []relay.Cursor{{}, f.end()}
		for range 3 {
			f.pass(1)
			places = append(places, f.post(alice, manifest("m")).Cursor)
		}
		watches := make([]*watch, len(places))
		for i, after := range places {
			watches[i] = startWatch(f, after, nil)
		}
		f.post(bob, in("t", request))
		last := f.post(bob, to(carol, manifest("m"))).Cursor
		for i, w := range watches {
			w.until(f, last.Seq)
			w.stop(f, places[i])
		}
	})

	t.Run("begun while others append", func(t *testing.T) {
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

	t.Run("a timeout's notices", func(t *testing.T) {
		s := &sweeper{fixture: newFixture(t, open, relay.Policy{})}
		begun := s.post(alice, to(bob, in("t", request))).Cursor
		w := startWatch(s.fixture, begun, nil)
		s.pass(24 * 60 * 60e9)
		s.sweep()
		w.until(s.fixture, s.end().Seq)
		w.stop(s.fixture, begun)
		if len(w.got) != 2 {
			t.Errorf("%d notices were seen", len(w.got))
		}
	})

	t.Run("more than a page is stored", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		between := f.entry(bob, manifest("m"))
		entries := make([]relay.Entry, relay.MaxPage+10)
		for i := range entries {
			entries[i] = f.entry(alice, manifest("m"))
		}
		for _, a := range f.atOnce(entries) {
			f.must(a.err)
		}
		// What is posted while the first page is handed over stands on the next page and comes live too.
		meanwhile := make(chan answer, 1)
		w := startWatch(f, relay.Cursor{}, func() {
			receipt, err := f.Append(f.Context(), between)
			meanwhile <- answer{receipt, err}
		})
		select {
		case posted := <-meanwhile:
			f.must(posted.err)
			w.until(f, posted.Cursor.Seq)
		case err := <-w.ended:
			t.Fatalf("the watch ended without an event: %v", err)
		}
		w.until(f, f.post(bob, manifest("m")).Cursor.Seq)
		w.stop(f, relay.Cursor{})
	})

	t.Run("does not begin", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		end := f.post(alice, manifest("m")).Cursor
		fail := func([]relay.Posted) { f.Errorf("called") }
		if err := f.Watch(t.Context(), relay.Cursor{Epoch: end.Epoch + 1, Seq: 1}, fail); !errors.Is(err, relay.ErrUnknownCursor) {
			t.Errorf("behind an unknown place: %v", err)
		}
		ctx, cancel := canceled(f)
		defer cancel()
		if err := f.Watch(ctx, end, fail); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
	})
}
