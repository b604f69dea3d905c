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
	pieceBytes  = 64 << 10 // of a page, how much is in memory at once
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
	r.observer.Waiting(1)
	defer func() {
		r.polls.Add(-1)
		r.observer.Waiting(-1)
	}()
	// The place among the waiters comes first and the look into the store second: what is stored between the two is
	// then seen twice, by its number, and never missed.
	w := r.hub.add(p.Filter)
	defer r.hub.remove(w)
	var d Delivery
	if p.Since.IsZero() {
		d, err = r.fromCursor(ctx, p, w)
	} else {
		d, err = r.since(ctx, p, w)
	}
	if err == nil {
		r.observe(w, d.Events)
	}
	return d, err
}

// observe reports the answer to the poll of w. events are the first of it.
func (r *Relay) observe(w *waiter, events []Event) {
	report := DeliveryReport{Events: len(events), Bytes: size(events)}
	if woke := r.hub.wokeAt(w); len(events) > 0 && !woke.IsZero() {
		report.Waited, report.Wake = true, time.Since(woke)
	}
	r.observer.Delivered(report)
}

// fromCursor answers a poll with a cursor. Large values are passed by reference, here and below: a stack that has grown
// for them stays as large while its goroutine waits, and thousands do.
func (r *Relay) fromCursor(ctx context.Context, p *Poll, w *waiter) (Delivery, error) {
	until := time.Now().Add(p.Wait)
	job := new(struct { // both live as long as the answer is read
		work
		Query
	})
	job.peer = p.Peer
	job.look, job.least = firstLook, leastLook
	job.until = until
	job.Filter = p.Filter
	job.Now = r.now()
	job.After = p.Cursor
	job.Limit = p.Limit
	job.MaxBytes = pieceBytes
	first, err := r.scan(ctx, &job.work, &job.Query)
	switch {
	case err != nil:
		return Delivery{}, err
	case len(first.Events) > 0 || first.More:
		return r.complete(ctx, &job.work, &job.Query, first, PageBytes)
	}
	fresh, err := r.await(ctx, p, w, first.Cursor, until)
	return whole(fresh), err
}

// await returns what is handed over to w beyond seen, or nothing once it is until.
func (r *Relay) await(ctx context.Context, p *Poll, w *waiter, seen Cursor, until time.Time) (Page, error) {
	deadline := time.NewTimer(time.Until(until))
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

// complete returns the page of q, of so many bytes, that first begins. No more of it is held in memory than a slow reader
// may keep there: where the page ends is looked up without the bodies. The page may be Partial, and empty then: see work.
func (r *Relay) complete(ctx context.Context, w *work, q *Query, first Page, maxBytes int) (Delivery, error) {
	if !first.More || first.Partial || len(first.Events) == q.Limit {
		return whole(first), nil
	}
	d, rest := whole(first), *q
	rest.After, rest.Headers = first.Cursor, true
	rest.Limit -= len(first.Events)
	if rest.MaxBytes = maxBytes - size(first.Events); rest.MaxBytes <= 0 {
		return d, nil // a single event of that size
	}
	w.until = time.Time{} // something was found
	end, err := r.scan(ctx, w, &rest)
	if !w.whole && isRateLimit(err) {
		return d, nil // the piece is paid for
	}
	if err != nil || len(end.Events) == 0 || end.Events[0].Size > rest.MaxBytes {
		return d, err
	}
	d.More, d.Cursor, d.LastTS = end.More, end.Cursor, end.Events[len(end.Events)-1].TS
	q.After, q.Until = first.Cursor, end.Events[len(end.Events)-1].Seq
	d.Rest = r.pieces(ctx, w, q)
	return d, nil
}

// pieces reads all that q selects, a piece at a time. A reader who has left is noticed when the next is sent to him.
func (r *Relay) pieces(ctx context.Context, w *work, q *Query) iter.Seq2[[]Event, error] {
	ctx = context.WithoutCancel(ctx)
	w.sent, q.Look = true, mostLook
	return func(yield func([]Event, error) bool) {
		for more := true; more; {
			page, err := r.ask(ctx, w, q)
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
