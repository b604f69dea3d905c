package relay

import (
	"context"
	"iter"
	"time"
)

// Bounds of a page and of a poll (PROTOCOL §5).
const (
	MaxPage     = 1000
	DefaultPage = 100
	PageBytes   = 4 << 20
	MaxWait     = 60 * time.Second
	DefaultWait = 30 * time.Second
)

// Poll asks for events, now or when they come.
type Poll struct {
	Filter
	Peer   Peer      // who asks
	Cursor Cursor    // resume exactly here; ignored if Since is set
	Since  time.Time // the protocol's own way, see since.go; zero: use Cursor
	Wait   time.Duration
	Limit  int
}

// Delivery is the answer to a poll: a page, and what of an oversized one comes behind Page.Events.
type Delivery struct {
	Page
	LastTS time.Time                 // the ts of the last event of all; zero: there is none
	Rest   iter.Seq2[[]Event, error] // read from the store piece by piece, as it is asked for; nil: nothing
}

// Events answers a poll: at once if there is something to deliver, else as soon as there is, else with an empty page
// when p.Wait is over or the relay shuts down. A poll whose ctx ends while it waits gives up its place at once. One
// that would wait and finds no place is refused with CodeRateLimited.
func (r *Relay) Events(ctx context.Context, p Poll) (Delivery, error) {
	if err := r.draining(); err != nil {
		return Delivery{}, err
	}
	leave, err := r.limiter.places.take(p)
	if err != nil {
		return Delivery{}, err
	}
	defer leave()
	r.polls.Add(1)
	defer r.polls.Add(-1)
	// The place among the waiters comes first and the look into the store second: what is stored between the two is
	// then seen twice, by its number, and never missed.
	w := r.hub.add(p.Filter)
	defer r.hub.remove(w)
	if !p.Since.IsZero() {
		return r.since(ctx, p, w)
	}
	page, err := r.fromCursor(ctx, p, w)
	d := Delivery{Page: page}
	if n := len(page.Events); n > 0 {
		d.LastTS = page.Events[n-1].TS
	}
	return d, err
}

func (r *Relay) fromCursor(ctx context.Context, p Poll, w *waiter) (Page, error) {
	page, err := r.Store.Read(context.WithoutCancel(ctx), Query{Filter: p.Filter, Now: r.Now(), After: p.Cursor, Limit: p.Limit, MaxBytes: PageBytes})
	if err != nil || len(page.Events) > 0 {
		return page, err
	}
	deadline := time.NewTimer(p.Wait)
	defer deadline.Stop()
	for {
		select {
		case <-w.woken:
			if fresh := pageOf(r.hub.take(w), page.Cursor, p.Limit); len(fresh.Events) > 0 {
				return fresh, nil
			}
		case <-deadline.C:
			return page, nil
		case <-r.drained:
			return page, nil
		case <-ctx.Done():
			return Page{}, ctx.Err()
		}
	}
}

// pageOf makes a page of events handed over in memory, leaving out those that a look into the store has covered.
func pageOf(events []Posted, seen Cursor, limit int) Page {
	page, size := Page{Cursor: seen}, 0
	for _, e := range events {
		if e.Seq <= seen.Seq {
			continue
		}
		if size += e.Size; len(page.Events) == limit || len(page.Events) > 0 && size > PageBytes {
			page.More = true
			break
		}
		page.Events = append(page.Events, e.Event)
		page.Cursor.Seq = e.Seq
	}
	return page
}
