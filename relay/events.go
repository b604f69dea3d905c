package relay

import (
	"context"
	"iter"
	"time"
)

// Limits of a page and of a poll (PROTOCOL §5).
const (
	MaxPage     = 1000
	DefaultPage = 100
	PageBytes   = 4 << 20
	pieceBytes  = 64 << 10 // how many bytes of a page are in memory at once
	MaxWait     = 60 * time.Second
	DefaultWait = 30 * time.Second
)

// Poll asks for events that are stored, or that arrive within Wait.
type Poll struct {
	Filter
	Peer   Peer      // the client
	Cursor Cursor    // where the page begins; ignored if Since is set
	Since  time.Time // the protocol's own way to continue, see since.go; zero: use Cursor
	Wait   time.Duration
	Limit  int
}

// Delivery is a page of which only the first events are in memory, in Page.Events. Rest reads the others. Page.More and
// Page.Cursor are about the whole page.
type Delivery struct {
	Page
	LastTS time.Time                 // ts of the last event of the whole page; zero: the page is empty
	Rest   iter.Seq2[[]Event, error] // the other events, read from the store when they are needed; nil: there are none
}

// Pieces yields the events of the page, piece by piece. It ends at the first error.
func (d Delivery) Pieces() iter.Seq2[[]Event, error] {
	return func(yield func([]Event, error) bool) {
		if yield(d.Events, nil) && d.Rest != nil {
			d.Rest(yield)
		}
	}
}

// deliveryOf returns the Delivery of a page that is completely in memory.
func deliveryOf(p Page) Delivery {
	d := Delivery{Page: p}
	if n := len(p.Events); n > 0 {
		d.LastTS = p.Events[n-1].TS
	}
	return d
}

// Events answers a poll. If there are events to deliver, it returns them at once. Otherwise it waits for the first
// event. It returns an empty page when p.Wait is over or the relay shuts down. If ctx ends while the poll waits, the
// poll ends at once. A poll with a Wait needs a slot. If no slot is free, it is refused with CodeRateLimited. The
// caller must not use p until Events has returned.
func (r *Relay) Events(ctx context.Context, p *Poll) (Delivery, error) {
	if err := r.admitReader(p); err != nil {
		return Delivery{}, err
	}
	if p.Wait > 0 {
		release, err := r.gate.Poll(p.Peer)
		if err != nil {
			return Delivery{}, err
		}
		defer release()
	}
	r.countWaiting(1)
	defer r.countWaiting(-1)
	return r.deliver(ctx, p)
}

// deliver answers a poll that was admitted and that has the slot it needs.
func (r *Relay) deliver(ctx context.Context, p *Poll) (d Delivery, err error) {
	// First register the waiter, then read the store. An event that is stored in between is then seen twice, and its
	// number shows this. The other way round, it would be missed.
	w := r.hub.add(p.Filter, p.Peer)
	defer func() {
		r.hub.remove(w)
		if err == nil {
			r.reportDelivery(ctx, w, d.Events)
		}
	}()
	// SetBans and Pause end the polls that are registered. This poll may have been admitted before, and registered after.
	if err := r.mayStay(p.Peer); err != nil {
		return Delivery{}, err
	}
	if p.Since.IsZero() {
		return r.fromCursor(ctx, p, w)
	}
	return r.since(ctx, p, w)
}

// admitReader sets what p's client may see, and refuses p if the client may not have an answer.
func (r *Relay) admitReader(p *Poll) error {
	if err := r.pausing(); err != nil {
		return err
	}
	p.Viewer = r.viewer(p.Peer)
	return r.checkInbox(p)
}

// countWaiting changes the number of polls and streams by n.
func (r *Relay) countWaiting(n int) {
	r.openPolls.Add(int64(n))
	r.observer.Waiting(n)
}

// reportDelivery tells the observer about the answer to the poll of w. events is the first part of the answer.
func (r *Relay) reportDelivery(ctx context.Context, w *waiter, events []Event) {
	report := DeliveryReport{Events: len(events), Bytes: totalSize(events)}
	if wokenAt := r.hub.wokeAt(w); len(events) > 0 && !wokenAt.IsZero() {
		report.Waited, report.Wake = true, time.Since(wokenAt)
	}
	r.observer.Delivered(report)
}

// search is a read that begins at a cursor. Both parts are used until the whole answer is read.
type search struct {
	storeReader
	Query
}

// newSearch returns the search of p, as of now.
func (r *Relay) newSearch(p *Poll) *search {
	s := &search{storeReader: *r.newReader(p.Peer)}
	s.Filter = p.Filter
	s.Now = r.now()
	s.After = p.Cursor
	s.Limit = p.Limit
	s.MaxBytes = pieceBytes
	return s
}

// fromCursor answers a poll with a cursor. It passes large values by pointer, and so do the functions it calls. Large
// values on the stack would make the stack grow. It would keep that size while its goroutine waits, and thousands of
// polls wait.
func (r *Relay) fromCursor(ctx context.Context, p *Poll, w *waiter) (Delivery, error) {
	deadline := time.Now().Add(p.Wait)
	search := r.newSearch(p)
	search.searchUntil = deadline
	first, err := search.scan(ctx, &search.Query)
	switch {
	case err != nil:
		return Delivery{}, err
	case len(first.Events) > 0 || first.More:
		return search.complete(ctx, &search.Query, first, PageBytes)
	}
	fresh, err := r.waitForEvents(ctx, p, w, first.Cursor, deadline)
	if err != nil {
		return endedPoll(fresh, err)
	}
	return deliveryOf(fresh), nil
}

// waitForEvents waits until the hub hands over events to w that come after seen, and returns them. At the deadline, or
// when the relay shuts down, it returns an empty page. If SetBans or Pause ends the poll, it returns their reason.
func (r *Relay) waitForEvents(ctx context.Context, p *Poll, w *waiter, seen Cursor, deadline time.Time) (Page, error) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for {
		select {
		case <-w.woken:
			if err := r.hub.endedBy(w); err != nil {
				return Page{Cursor: seen}, err
			}
			if fresh := pageFromMemory(r.hub.take(w), seen, p.Limit); len(fresh.Events) > 0 {
				return fresh, nil
			}
		case <-timer.C:
			return Page{Cursor: seen}, nil
		case <-r.drained:
			return Page{Cursor: seen}, nil
		case <-ctx.Done():
			return Page{}, ctx.Err()
		}
	}
}

// complete returns the page of q that begins with first and has at most maxBytes. A slow reader must not keep a whole
// page in memory. So complete reads only the headers of the other events, to find where the page ends. If first is
// Partial, complete returns it as it is, and it may be empty.
func (r *storeReader) complete(ctx context.Context, q *Query, first Page, maxBytes int) (Delivery, error) {
	if !first.More || first.Partial || len(first.Events) == q.Limit {
		return deliveryOf(first), nil
	}
	d, headerQuery := deliveryOf(first), *q
	headerQuery.After, headerQuery.Headers = first.Cursor, true
	headerQuery.Limit -= len(first.Events)
	if headerQuery.MaxBytes = maxBytes - totalSize(first.Events); headerQuery.MaxBytes <= 0 {
		return d, nil // a single event that fills the page
	}
	r.searchUntil = time.Time{} // there are events to deliver, so the search may end
	headers, err := r.scan(ctx, &headerQuery)
	if !r.mustComplete && isRateLimit(err) {
		return d, nil // the first piece is already paid for
	}
	if err != nil || len(headers.Events) == 0 || headers.Events[0].Size > headerQuery.MaxBytes {
		return d, err
	}
	d.More, d.Cursor, d.LastTS = headers.More, headers.Cursor, headers.Events[len(headers.Events)-1].TS
	q.After, q.Until = first.Cursor, headers.Events[len(headers.Events)-1].Seq
	d.Rest = r.pieces(ctx, q)
	return d, nil
}

// pieces reads all events that q selects, piece by piece. It is not cancelled when the client disconnects. Sending the
// next piece then fails, and this ends it.
func (r *storeReader) pieces(ctx context.Context, q *Query) iter.Seq2[[]Event, error] {
	ctx = context.WithoutCancel(ctx)
	r.answerStarted, q.MaxExamined = true, maxSliceSize
	return func(yield func([]Event, error) bool) {
		for more := true; more; {
			page, err := r.readSlice(ctx, q)
			if !yield(page.Events, err) || err != nil {
				return
			}
			q.After, more = page.Cursor, page.More
		}
	}
}

// pageFromMemory makes a page of events that the hub handed over. It leaves out the events up to seen, which the store
// has already returned.
func pageFromMemory(events []Posted, seen Cursor, limit int) Page {
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
