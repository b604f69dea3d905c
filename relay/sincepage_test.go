package relay

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/racing"
)

// listStore is a store whose events are in a list. A read ends after it has examined a random number of them.
type listStore struct {
	Store
	events    []Event
	random    *rand.Rand
	maxEvents int // the most events in one answer
}

func (s *listStore) Policy() Policy { return Policy{} }

func (s *listStore) Read(_ context.Context, q Query) (Page, error) {
	page := Page{Cursor: Cursor{1, Seq(len(s.events))}}
	if q.Limit == 0 {
		return page, nil
	}
	left := 1 + s.random.IntN(2*len(s.events))
	for _, e := range s.events {
		switch {
		case e.Seq <= q.After.Seq || q.Until > 0 && e.Seq > q.Until:
			continue
		case left == 0:
			page.More, page.Partial, page.Cursor.Seq = true, true, e.Seq-1
			return page, nil
		}
		left--
		if !q.Expired && !e.Expires.After(q.Now) || !q.TS.IsZero() && !e.TS.Equal(q.TS) ||
			!q.NewerThan.IsZero() && !e.TS.After(q.NewerThan) && !e.Received.After(q.NewerThan) {
			continue
		}
		if len(page.Events) == q.Limit {
			page.More, page.Cursor.Seq = true, page.Events[len(page.Events)-1].Seq
			return page, nil
		}
		page.Events = append(page.Events, e)
		s.maxEvents = max(s.maxEvents, len(page.Events))
	}
	return page, nil
}

// pendingFor applies PROTOCOL §7 to a list of all events. It returns the pending events of a poll, and how many of them
// are on its page.
func pendingFor(events []Event, since, now time.Time, limit int) (pending []Event, n int) {
	var bookmark, latest Seq
	for _, e := range events {
		if e.TS.Equal(since) {
			latest = e.Seq
			if bookmark == 0 {
				bookmark = e.Seq
			}
		}
	}
	for _, e := range events {
		if e.Expires.After(now) && e.Seq > bookmark && (bookmark > 0 || e.TS.After(since) || e.Received.After(since)) {
			pending = append(pending, e)
		}
	}
	if len(pending) == 0 || pending[len(pending)-1].Seq <= latest {
		return pending, len(pending)
	}
	return pending, pageLength(pending, latest, limit)
}

// TestSinceAmongMany checks that the page of a poll follows the rules for since, however many events are pending.
func TestSinceAmongMany(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		key, err := didkey.FromSeed(make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		random := rand.New(rand.NewPCG(1, 2))
		for n := range 5000 {
			began := time.Now()
			store := &listStore{random: random, events: make([]Event, 1+random.IntN(60))}
			instants, lasting := 1+random.IntN(20), 1+random.IntN(10)
			for i := range store.events {
				e := &store.events[i]
				*e = Event{Seq: Seq(i + 1), ID: fmt.Sprint(i + 1), Size: 1, Received: began, Expires: began,
					TS: began.Add(time.Duration(random.IntN(instants)-10) * time.Second)}
				if random.IntN(10) < lasting {
					e.Expires = began.Add(time.Hour)
				}
			}
			r, err := New(t.Context(), Config{Store: store, Key: key, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			p := Poll{Filter: Filter{Recipient: key.DID()}, Peer: Peer{Local: true}, Limit: 1 + random.IntN(8),
				Since: began.Add(time.Duration(random.IntN(25)-15) * time.Second)}
			pending, want := pendingFor(store.events, p.Since, began, p.Limit)
			d, err := r.Events(t.Context(), &p)
			if err != nil {
				t.Fatal(err)
			}
			var got []Event
			for events, err := range d.Pieces() {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, events...)
			}
			same := slices.EqualFunc(got, pending[:want], func(a, b Event) bool { return a.Seq == b.Seq })
			if !same || d.More != (want < len(pending)) ||
				want > 0 && (d.Cursor.Seq != got[want-1].Seq || !d.LastTS.Equal(got[want-1].TS)) {
				t.Fatalf("case %d, since %v, limit %d: %d events, more %v, cursor %v; want %d of %d\nof %+v", n, p.Since, p.Limit,
					len(got), d.More, d.Cursor, want, len(pending), store.events)
			}
		}
	})
}

// TestSinceHoldsAPage checks that a poll on a full inbox holds only one page of it in memory.
func TestSinceHoldsAPage(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		key, err := didkey.FromSeed(make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		for name, ts := range map[string]func(i int) time.Time{
			"a different ts for each": func(i int) time.Time { return now.Add(time.Duration(i)) },
			"the same ts for all":     func(int) time.Time { return now },
			"each ts twice":           func(i int) time.Time { return now.Add(time.Duration(i % 1500)) },
		} {
			store := &listStore{random: rand.New(rand.NewPCG(1, 2)), events: make([]Event, 3000)}
			for i := range store.events {
				store.events[i] = Event{Seq: Seq(i + 1), TS: ts(i), Received: now, Expires: now.Add(time.Hour), Size: 1}
			}
			r, err := New(t.Context(), Config{Store: store, Key: key, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			for _, since := range []time.Time{now.Add(-time.Hour), now} {
				p := Poll{Filter: Filter{Recipient: key.DID()}, Peer: Peer{Local: true}, Limit: 1, Since: since}
				pending, want := pendingFor(store.events, since, now, 1)
				d, err := r.Events(t.Context(), &p)
				if err != nil || want > 0 && d.Cursor.Seq != pending[want-1].Seq {
					t.Errorf("%s: the page ends at %v, %v; want %d events", name, d.Cursor, err, want)
				}
			}
			if store.maxEvents > MaxPage+1 {
				t.Errorf("%s: %d events in memory at once", name, store.maxEvents)
			}
		}
	})
}
