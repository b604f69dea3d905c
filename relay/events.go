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
	pieceBytes  = 256 << 10 // of a page, how much is in memory at once
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

// Delivery is a page of which only the beginning is in memory: Page.Events, and Rest behind it. Page.More and
// Page.Cursor are those of the whole.
type Delivery struct {
	Page
	LastTS time.Time                 // the ts of the last event of all; zero: there is none
	Rest   iter.Seq2[[]Event, error] // the others, read from the store as they are asked for; nil: none
}

// Pieces yields the events of the page, a part at a time. An error ends it.
func (d Delivery) Pieces() iter.Seq2[[]Event, error] {
	return func(yield func([]Event, error) bool) {
		if yield(d.Events, nil) && d.Rest != nil {
			d.Rest(yield)
		}
	}
}

// whole is the delivery of a page that is in memory.
func whole(p Page) Delivery {
	d := Delivery{Page: p}
	if n := len(p.Events); n > 0 {
		d.LastTS = p.Events[n-1].TS
	}
	return d
}

// Events answers a poll: at once if there is something to deliver, else as soon as there is, else with an empty page
// when p.Wait is over or the relay shuts down. A poll whose ctx ends while it waits gives up its place at once. One
// that would wait and finds no place is refused with CodeRateLimited. p is the relay's until it returns.
func (r *Relay) Events(ctx context.Context, p *Poll) (Delivery, error) {
	if err := r.draining(); err != nil {
		return Delivery{}, err
	}
	if err := r.mayPoll(p); err != nil {
		return Delivery{}, err
	}
	p.Viewer = r.viewer(p.Peer)
	leave, err := r.wait(p)
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
	return r.fromCursor(ctx, p, w)
}

// fromCursor answers a poll with a cursor. Large values are passed by reference, here and below: a stack that has grown
// for them stays as large while its goroutine waits, and thousands do.
func (r *Relay) fromCursor(ctx context.Context, p *Poll, w *waiter) (Delivery, error) {
	d, err := r.read(context.WithoutCancel(ctx), p.Peer,
		&Query{Filter: p.Filter, Now: r.Now(), After: p.Cursor, Limit: p.Limit, MaxBytes: PageBytes})
	if err != nil || len(d.Events) > 0 {
		return d, err
	}
	fresh, err := r.await(ctx, p, w, d.Cursor)
	return whole(fresh), err
}

// await returns what is handed over to w beyond seen, or nothing once the wait is over.
func (r *Relay) await(ctx context.Context, p *Poll, w *waiter, seen Cursor) (Page, error) {
	deadline := time.NewTimer(p.Wait)
	defer deadline.Stop()
	for {
		select {
		case <-w.woken:
			if fresh := pageOf(r.hub.take(w), seen, p.Limit); len(fresh.Events) > 0 {
				return fresh, nil
			}
		case <-deadline.C:
			return Page{Cursor: seen}, nil
		case <-r.drained:
			return Page{Cursor: seen}, nil
		case <-ctx.Done():
			return Page{}, ctx.Err()
		}
	}
}

// read answers q, of whose page no more is held in memory than a slow reader may keep there.
func (r *Relay) read(ctx context.Context, p Peer, q *Query) (Delivery, error) {
	rest := *q
	q.MaxBytes = pieceBytes
	first, err := r.ask(ctx, p, q)
	d := whole(first)
	if err != nil || !first.More || len(first.Events) == q.Limit {
		return d, err
	}
	// There is more than a piece: where the page ends is looked up without the bodies.
	rest.After, rest.Headers = first.Cursor, true
	rest.Limit -= len(first.Events)
	for _, e := range first.Events {
		rest.MaxBytes -= e.Size
	}
	if rest.MaxBytes <= 0 {
		return d, nil // a single event of that size
	}
	end, err := r.ask(ctx, p, &rest)
	if err != nil || len(end.Events) == 0 || end.Events[0].Size > rest.MaxBytes {
		return d, err
	}
	d.More, d.Cursor, d.LastTS = end.More, end.Cursor, end.Events[len(end.Events)-1].TS
	q.After, q.Until = first.Cursor, end.Events[len(end.Events)-1].Seq
	d.Rest = r.pieces(ctx, p, q)
	return d, nil
}

// ask reads a page for p, at the expense of its allowance.
func (r *Relay) ask(ctx context.Context, p Peer, q *Query) (Page, error) {
	page, err := r.Store.Read(ctx, *q)
	r.chargeRead(p, page.Took)
	return page, err
}

// pieces reads all that q selects, a piece at a time.
func (r *Relay) pieces(ctx context.Context, p Peer, q *Query) iter.Seq2[[]Event, error] {
	return func(yield func([]Event, error) bool) {
		for more := true; more; {
			page, err := r.ask(ctx, p, q)
			if !yield(page.Events, err) || err != nil {
				return
			}
			q.After, more = page.Cursor, page.More
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
