package relay_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// searchStore is a store with this many events, or manifests. Each query matches only the one that it comes to last. The
// store takes a millisecond for each 500 that it examines.
type searchStore struct {
	stubStore
	size   int
	slices atomic.Int64
}

const needleID = "needle"

func (s *searchStore) work(after, size int) (next int, took time.Duration) {
	s.slices.Add(1)
	next = min(after+size, s.size)
	took = time.Duration(next-after) * time.Millisecond / 500
	time.Sleep(took)
	return next, took
}

func (s *searchStore) Read(_ context.Context, q relay.Query) (relay.Page, error) {
	if q.Limit == 0 {
		return relay.Page{Cursor: relay.Cursor{Epoch: 1, Seq: relay.Seq(s.size)}}, nil
	}
	passed := int(q.After.Seq)
	if q.Backward {
		passed = s.size - passed
	}
	next, took := s.work(passed, q.MaxExamined)
	end, last := next, next
	if q.Backward {
		end, last = s.size-next, s.size-next+1
	}
	page := relay.Page{Cursor: relay.Cursor{Epoch: 1, Seq: relay.Seq(end)}, Took: took,
		Partial: next < s.size, More: next < s.size}
	if !page.Partial && passed < s.size {
		page.Events = []relay.Event{{Seq: relay.Seq(last), ID: needleID}}
	}
	return page, nil
}

func (s *searchStore) Agents(_ context.Context, q relay.AgentQuery) (relay.AgentPage, error) {
	next, took := s.work(int(q.After), q.MaxExamined)
	page := relay.AgentPage{Next: int64(next), Took: took, Partial: next < s.size, More: next < s.size}
	if !page.Partial && int(q.After) < s.size {
		page.Agents = []relay.Agent{{DID: needleID, Manifest: []byte("{}")}}
	}
	return page, nil
}

func (s *searchStore) Thread(context.Context, thread.Key, time.Time) (thread.Thread, error) {
	s.work(0, s.size)
	return thread.Thread{}, thread.ErrNotFound
}

func startSearch(t *testing.T, size int, reads relay.Rate) (*relay.Relay, *searchStore) {
	t.Helper()
	store := &searchStore{size: size}
	r, err := relay.New(t.Context(), relay.Config{Store: store, Key: key(t), Log: slog.New(slog.DiscardHandler),
		Limits: relay.Limits{ReadsPerAddress: reads}})
	if err != nil {
		t.Fatal(err)
	}
	return r, store
}

// TestReadsAreSliced checks that a page ends early when the store has worked on it for long, and that its cursor
// continues from there.
func TestReadsAreSliced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := startSearch(t, 250_000, relay.Rate{}) // the store needs half a second to search it
		began := time.Now()
		p := relay.Poll{Peer: from("192.0.2.1"), Limit: 10}
		pages := 1
		d, err := r.Events(t.Context(), &p)
		for ; err == nil && d.More; pages++ {
			took := time.Since(began) / time.Duration(pages)
			if len(d.Events) > 0 || d.Cursor.Seq <= p.Cursor.Seq || took < 50*time.Millisecond || took > 80*time.Millisecond {
				t.Fatalf("page %d after %v: %+v", pages, time.Since(began), d.Page)
			}
			p.Cursor = d.Cursor
			d, err = r.Events(t.Context(), &p)
		}
		if err != nil || ids(d.Page) != needleID || pages < 5 {
			t.Errorf("page %d: %+v, %v", pages, d.Page, err)
		}

		began = time.Now()
		p = relay.Poll{Peer: from("192.0.2.7"), Limit: 10, Cursor: relay.Cursor{Epoch: 1, Seq: 250_000}, Wait: time.Minute}
		pages = 1
		d, err = r.EventsBefore(t.Context(), &p)
		for ; err == nil && d.More; pages++ {
			took := time.Since(began) / time.Duration(pages)
			if len(d.Events) > 0 || d.Cursor.Seq >= p.Cursor.Seq || took < 50*time.Millisecond || took > 80*time.Millisecond {
				t.Fatalf("page %d before the end after %v: %+v", pages, time.Since(began), d.Page)
			}
			p.Cursor = d.Cursor
			d, err = r.EventsBefore(t.Context(), &p)
		}
		if err != nil || ids(d.Page) != needleID || d.Cursor.Seq != 0 || pages < 5 {
			t.Errorf("page %d before the end: %+v, %v", pages, d.Page, err)
		}

		p = relay.Poll{Peer: from("192.0.2.2"), Limit: 10, Wait: time.Second}
		if d, err := r.Events(t.Context(), &p); err != nil || ids(d.Page) != needleID || d.More {
			t.Errorf("a poll that waits: %+v, %v", d.Page, err)
		}
		began = time.Now()
		p = relay.Poll{Peer: from("192.0.2.3"), Limit: 10, Wait: 300 * time.Millisecond}
		d, err = r.Events(t.Context(), &p)
		took := time.Since(began)
		if err != nil || len(d.Events) > 0 || !d.More || d.Cursor.Seq == 0 || took < p.Wait ||
			took > p.Wait+30*time.Millisecond {
			t.Errorf("a poll whose Wait is over after %v: %+v, %v", took, d.Page, err)
		}

		q := relay.AgentQuery{Limit: 10}
		page, err := r.Agents(t.Context(), from("192.0.2.4"), q)
		for pages = 1; err == nil && page.More; pages++ {
			if len(page.Agents) > 0 || page.Next <= q.After {
				t.Fatalf("%+v", page)
			}
			q.After = page.Next
			page, err = r.Agents(t.Context(), from("192.0.2.4"), q)
		}
		if err != nil || len(page.Agents) != 1 || pages < 5 {
			t.Errorf("page %d of the directory: %+v, %v", pages, page, err)
		}

		// In the meantime, the read of another address gets its turn.
		var busy sync.WaitGroup
		for range 16 {
			busy.Go(func() {
				_, _ = r.Events(t.Context(), &relay.Poll{Peer: from("192.0.2.5"), Limit: 10, Wait: time.Second})
			})
		}
		synctest.Wait()
		began = time.Now()
		_, err = r.Agents(t.Context(), from("192.0.2.6"), relay.AgentQuery{Limit: 1, After: 249_999})
		if took := time.Since(began); err != nil || took > 25*time.Millisecond {
			t.Errorf("the read of another address took %v, %v", took, err)
		}
		busy.Wait()
	})
}

// TestDebtEndsReads checks that the reads of an address in debt end. Those that have begun return what they have found.
func TestDebtEndsReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A search takes ten seconds of work. The burst pays for half a second of it.
		r, store := startSearch(t, 5_000_000, relay.Rate{PerSecond: 10, Burst: 100})
		attacker := from("192.0.2.1")
		var refused, partial atomic.Int64
		ask := func(read func() (more bool, err error)) func() {
			return func() {
				switch more, err := read(); {
				case err != nil:
					wantLimit(t, err, envelope.LimitReadsPerAddress)
					refused.Add(1)
				case more:
					partial.Add(1)
				}
			}
		}
		began := time.Now()
		var all sync.WaitGroup
		for range 16 {
			all.Go(ask(func() (bool, error) {
				d, err := r.Events(t.Context(), &relay.Poll{Peer: attacker, Limit: 1, Wait: time.Minute})
				return d.More, err
			}))
			all.Go(ask(func() (bool, error) {
				d, err := r.Events(t.Context(), &relay.Poll{Peer: attacker, Limit: 1, Since: began})
				return d.More, err
			}))
			all.Go(ask(func() (bool, error) {
				d, err := r.EventsBefore(t.Context(), &relay.Poll{Peer: attacker, Limit: 1,
					Cursor: relay.Cursor{Epoch: 1, Seq: 5_000_000}})
				return d.More, err
			}))
			all.Go(ask(func() (bool, error) {
				page, err := r.Agents(t.Context(), attacker, relay.AgentQuery{Limit: 1})
				return page.More, err
			}))
		}
		all.Wait()
		if took := time.Since(began); took > 5*time.Second || refused.Load() < 16 || partial.Load() < 16 {
			t.Errorf("the store worked for %v in %d slices; %d reads refused, %d partial",
				took, store.slices.Load(), refused.Load(), partial.Load())
		}
		_, err := r.Thread(t.Context(), attacker, thread.Key{ID: "t"})
		wantLimit(t, err, envelope.LimitReadsPerAddress)
		_, _, err = r.Agent(t.Context(), attacker, key(t).DID())
		wantLimit(t, err, envelope.LimitReadsPerAddress)
		time.Sleep(4 * time.Second)
		if _, err = r.Agents(t.Context(), attacker, relay.AgentQuery{Limit: 1}); err != nil {
			t.Errorf("after the debt is refilled: %v", err)
		}
	})
}

// TestReadersWhoLeaveAreNotServed checks that a search ends when its client leaves, and that a search that waits for
// its turn never starts then.
func TestReadersWhoLeaveAreNotServed(t *testing.T) {
	reads := map[string]func(context.Context, *relay.Relay) error{
		"events": func(ctx context.Context, r *relay.Relay) error {
			_, err := r.Events(ctx, &relay.Poll{Peer: from("192.0.2.1"), Limit: 1, Wait: time.Minute})
			return err
		},
		"since": func(ctx context.Context, r *relay.Relay) error {
			_, err := r.Events(ctx, &relay.Poll{Peer: from("192.0.2.1"), Limit: 1, Since: time.Now()})
			return err
		},
		"before": func(ctx context.Context, r *relay.Relay) error {
			_, err := r.EventsBefore(ctx, &relay.Poll{Peer: from("192.0.2.1"), Limit: 1,
				Cursor: relay.Cursor{Epoch: 1, Seq: 50_000_000}})
			return err
		},
		"agents": func(ctx context.Context, r *relay.Relay) error {
			_, err := r.Agents(ctx, from("192.0.2.1"), relay.AgentQuery{Limit: 1})
			return err
		},
		"one agent": func(ctx context.Context, r *relay.Relay) error {
			_, _, err := r.Agent(ctx, from("192.0.2.1"), needleID)
			return err
		},
		"a thread": func(ctx context.Context, r *relay.Relay) error {
			_, err := r.Thread(ctx, from("192.0.2.1"), thread.Key{ID: "t"})
			return err
		},
	}
	for _, first := range []string{"events", "since", "before", "agents"} {
		synctest.Test(t, func(t *testing.T) {
			r, store := startSearch(t, 50_000_000, relay.Rate{})
			ctx, leave := context.WithCancel(t.Context())
			var all sync.WaitGroup
			ask := func(name string) {
				all.Go(func() {
					if err := reads[name](ctx, r); !errors.Is(err, context.Canceled) {
						t.Errorf("%s, after %s: %v", name, first, err)
					}
				})
				synctest.Wait()
			}
			ask(first)
			for name := range reads {
				ask(name)
			}
			leave()
			all.Wait()
			if n := store.slices.Load(); n != 1 {
				t.Errorf("%s: %d slices were done", first, n)
			}
		})
	}
}
