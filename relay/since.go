package relay

import (
	"context"
	"slices"
	"time"
)

// The protocol's own client polls with since = the ts of the last event that it got. Taken literally, as "ts > since",
// this loses messages. It loses every message whose sender's clock is behind that of another sender. Of several
// messages with the same ts, it loses all but one. So a since that is the ts of an event is a bookmark in the relay's
// own order (PROTOCOL §7 "since"). Events after the first event with that ts are pending, so nothing is lost. They are
// delivered without delay only if one of them came after the last event with that ts, so an idle client does not poll
// in a loop.

// settleAfter is how old the last event with the bookmark's ts must be before the pending events are delivered without
// news. Until then, more events with that ts may be arriving.
const settleAfter = time.Second

// sinceReader reads what is pending for one poll with since.
type sinceReader struct {
	storeReader
	poll *Poll
	now  func() time.Time
	// first has the first event whose ts is the poll's since, as of the beginning of the poll. If it is empty, since is
	// not a bookmark for the rest of the poll.
	first Page
}

// pendingSnapshot is what a since poll would get at one moment. The pending events may be as many as an inbox holds, so
// only the first and the last are kept.
type pendingSnapshot struct {
	isBookmark  bool      // the poll's since is the ts of an event
	bookmarkEnd Seq       // the last event with the bookmark's ts
	first       Seq       // the first pending event; 0: nothing is pending
	last        Event     // header of the event that ends the page
	more        bool      // more events are pending after last
	hasNews     bool      // a pending event came after bookmarkEnd
	settlesAt   time.Time // when the event bookmarkEnd is settleAfter old
	query       Query     // selects the headers of the pending events, as of this snapshot
	end         Cursor    // end of the store, as of this snapshot
}

// since answers a poll with since. It takes a snapshot, and delivers what is pending if there is news, if the bookmark
// has settled, or if the poll is over. Otherwise it waits for a reason to take another snapshot.
func (r *Relay) since(ctx context.Context, p *Poll, w *waiter) (Delivery, error) {
	reader := &sinceReader{storeReader: *r.newReader(p.Peer), poll: p, now: r.now}
	reader.mustComplete = true
	var err error
	reader.first, err = reader.scan(ctx, &Query{Filter: p.Filter, TS: p.Since, Expired: true, Headers: true, Limit: 1})
	if err != nil {
		return Delivery{}, err
	}
	wait := newSinceWait(p.Wait)
	defer wait.stop()
	for {
		snap, err := reader.takeSnapshot(ctx)
		if err != nil {
			return Delivery{}, err
		}
		if snap.hasNews || wait.final || wait.settled && snap.first > 0 {
			return reader.readPage(ctx, snap)
		}
		again, err := r.waitForNews(ctx, wait, snap, w, p.Since)
		empty := Page{Cursor: snap.resumeCursor()}
		switch {
		case err != nil:
			return endedPoll(empty, err)
		case !again:
			return Delivery{Page: empty}, nil
		}
	}
}

// sinceWait is how a poll with since waits.
type sinceWait struct {
	deadline, settle *time.Timer
	final            bool // the deadline has passed
	settled          bool // the bookmark has settled since the last snapshot
}

func newSinceWait(d time.Duration) *sinceWait {
	return &sinceWait{deadline: time.NewTimer(d), settle: time.NewTimer(d), final: d == 0}
}

func (wait *sinceWait) stop() {
	wait.deadline.Stop()
	wait.settle.Stop()
}

// waitForNews waits until the poll of w needs another snapshot than snap. If the relay shuts down before, it returns
// false. If SetBans or Pause ends the poll, it returns their reason.
func (r *Relay) waitForNews(
	ctx context.Context, wait *sinceWait, snap *pendingSnapshot, w *waiter, since time.Time,
) (again bool, err error) {
	if untilSettled := snap.settlesAt.Sub(r.now()); untilSettled > 0 {
		wait.settle.Reset(untilSettled)
	}
	wait.settled = false
	for {
		select {
		case <-w.woken:
			if err := r.hub.endedBy(w); err != nil {
				return false, err
			}
			needed, sameTSArrival := snap.needsNewSnapshot(r.hub.take(w), since)
			if !sameTSArrival.IsZero() {
				wait.settle.Reset(sameTSArrival.Add(settleAfter).Sub(r.now()))
			}
			if needed {
				return true, nil
			}
		case <-wait.settle.C:
			wait.settled = true
			return true, nil
		case <-wait.deadline.C:
			wait.final = true
			return true, nil
		case <-r.drained:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// needsNewSnapshot reports whether events that came after this snapshot require a new one. Taking a snapshot costs more
// the more events there are after the bookmark. So events that only have the bookmark's ts do not require one.
// Otherwise a sender of equal timestamps could make every reader take a snapshot for each message. sameTSArrival is
// when the last of those events arrived; it is zero if there was none.
func (snap *pendingSnapshot) needsNewSnapshot(events []Posted, since time.Time) (needed bool, sameTSArrival time.Time) {
	for _, e := range events {
		switch {
		case e.Seq <= snap.end.Seq: // it is in this snapshot
		case snap.isBookmark && e.TS.Equal(since):
			sameTSArrival = e.Received
		case snap.isBookmark || e.TS.After(since) || e.Received.After(since):
			return true, time.Time{}
		}
	}
	return false, sameTSArrival
}

// resumeCursor returns the cursor from which no pending event is missed.
func (snap *pendingSnapshot) resumeCursor() Cursor {
	if snap.first > 0 {
		return Cursor{snap.end.Epoch, snap.first - 1}
	}
	return snap.end
}

// takeSnapshot returns what the poll would get now.
func (r *sinceReader) takeSnapshot(ctx context.Context) (*pendingSnapshot, error) {
	p := r.poll
	snap := &pendingSnapshot{query: Query{Filter: p.Filter, Now: r.now(), NewerThan: p.Since, Headers: true}}
	if snap.isBookmark = len(r.first.Events) > 0; snap.isBookmark {
		snap.query.NewerThan = time.Time{}
		snap.query.After = Cursor{r.first.Cursor.Epoch, r.first.Events[0].Seq}
		// Expired events with the bookmark's ts count too, because the reader may have received them. Other expired
		// events do not count, however many there are.
		end, err := r.forEach(ctx, Query{Filter: p.Filter, TS: p.Since, Expired: true, Headers: true}, func(e Event) {
			snap.bookmarkEnd, snap.settlesAt = e.Seq, e.Received.Add(settleAfter)
		})
		if err != nil {
			return snap, err
		}
		snap.end, snap.query.Until = end, end.Seq // events that come later may have the bookmark's ts too
	}
	q := snap.query
	q.Limit = p.Limit + 1
	page, err := r.scan(ctx, &q)
	if err != nil {
		return snap, err
	}
	if !snap.isBookmark {
		snap.end = page.Cursor
	}
	if len(page.Events) == 0 {
		return snap, nil
	}
	snap.first = page.Events[0].Seq
	if snap.hasNews, err = r.hasNews(ctx, snap, page); err != nil {
		return snap, err
	}
	switch {
	case p.Recipient == "":
		// PROTOCOL §7, rule 3, holds only for polls with a recipient. This poll may match the whole store.
		snap.endPageAt(page, countFitting(page.Events, p.Limit))
	case snap.hasNews && page.More:
		err = r.findPageEnd(ctx, snap, page)
	case snap.hasNews:
		snap.endPageAt(page, pageLength(page.Events, snap.bookmarkEnd, p.Limit))
	default:
		// All pending events have the bookmark's ts or came before the last event that has it. Most likely they were
		// delivered before. Deliver all of them at once. If the page ended earlier, its end would be a bookmark with
		// news after it, and an idle reader would poll in a loop.
		snap.endPageAt(page, len(page.Events))
		if page.More {
			q.After, snap.more = page.Cursor, false
			_, err = r.forEach(ctx, q, func(e Event) { snap.last = e })
		}
	}
	return snap, err
}

// forEach calls f with every event that q selects. It holds one page of them in memory at a time. It returns the end of
// the store.
func (r *storeReader) forEach(ctx context.Context, q Query, f func(Event)) (Cursor, error) {
	for q.Limit = MaxPage; ; {
		page, err := r.scan(ctx, &q)
		if err != nil {
			return Cursor{}, err
		}
		for _, e := range page.Events {
			f(e)
		}
		if !page.More {
			return page.Cursor, nil
		}
		q.After = page.Cursor
	}
}

// hasNews reports whether a pending event came after snap.bookmarkEnd. page has the first pending events.
func (r *sinceReader) hasNews(ctx context.Context, snap *pendingSnapshot, page Page) (bool, error) {
	if page.Events[len(page.Events)-1].Seq > snap.bookmarkEnd || !page.More {
		return page.Events[len(page.Events)-1].Seq > snap.bookmarkEnd, nil
	}
	q := snap.query
	q.After.Seq, q.Limit = snap.bookmarkEnd, 1
	later, err := r.scan(ctx, &q)
	return len(later.Events) > 0, err
}

// endPageAt ends the page after the first n events of page. The events of page are pending events, from the first one
// or from a later one.
func (snap *pendingSnapshot) endPageAt(page Page, n int) {
	snap.last, snap.more = page.Events[n-1], n < len(page.Events) || page.More
}

// findPageEnd finds where the page ends if more events are pending than it may hold. page has one event more than that.
// The result is the one that pageLength would return for all pending events. But findPageEnd holds only one page of
// them in memory at a time.
func (r *sinceReader) findPageEnd(ctx context.Context, snap *pendingSnapshot, page Page) error {
	fit := countFitting(page.Events, r.poll.Limit)
	for i := fit - 1; i >= 0; i-- {
		if found, err := r.mayEndPage(ctx, snap, page.Events[i:]); err != nil || found {
			snap.endPageAt(page, i+1)
			return err
		}
	}
	for {
		for i := fit; i < len(page.Events); i++ {
			if found, err := r.mayEndPage(ctx, snap, page.Events[i:]); err != nil || found {
				snap.endPageAt(page, i+1)
				return err
			}
		}
		if len(page.Events) > 0 {
			snap.endPageAt(page, len(page.Events))
		}
		if !page.More {
			return nil // not reached: the last pending event is always the last one with its ts
		}
		q := snap.query
		q.After, q.Limit, fit = page.Cursor, MaxPage, 0
		var err error
		if page, err = r.scan(ctx, &q); err != nil {
			return err
		}
	}
}

// mayEndPage reports whether the first of events may end a page. For that, it must be the last pending event with its
// ts, and must come after snap.bookmarkEnd. The other events are the pending events that follow it, as far as they are
// known.
func (r *sinceReader) mayEndPage(ctx context.Context, snap *pendingSnapshot, events []Event) (bool, error) {
	e := events[0]
	sameTS := func(other Event) bool { return other.TS.Equal(e.TS) }
	if e.Seq <= snap.bookmarkEnd || slices.ContainsFunc(events[1:], sameTS) {
		return false, nil
	}
	q := snap.query
	q.TS, q.After.Seq, q.Limit = e.TS, events[len(events)-1].Seq, 1
	if q.After.Epoch == 0 {
		q.After.Epoch = snap.end.Epoch
	}
	later, err := r.scan(ctx, &q)
	return len(later.Events) == 0, err
}

// countFitting returns how many of the pending events fit into a page.
func countFitting(pending []Event, limit int) int {
	size := 0
	for i, e := range pending {
		if size += e.Size; i == limit || i > 0 && size > PageBytes {
			return i
		}
	}
	return len(pending)
}

// pageLength returns how many of the pending events make a page. pending has all of them. A page must end at an event
// that is the last one with its ts and that came after bookmarkEnd. So its ts is a bookmark that moves the reader
// forward. Of the possible ends that fit into the limits, pageLength takes the last. If none fits, it takes the first
// possible end. If there is no possible end, the page has all pending events.
func pageLength(pending []Event, bookmarkEnd Seq, limit int) int {
	lastSeqByTS := map[int64]Seq{}
	for _, e := range pending {
		lastSeqByTS[e.TS.UnixNano()] = e.Seq
	}
	best, fit := 0, countFitting(pending, limit)
	for i, e := range pending {
		if i >= fit && best > 0 {
			return best
		}
		if e.Seq > bookmarkEnd && lastSeqByTS[e.TS.UnixNano()] == e.Seq {
			best = i + 1
		}
	}
	if best == 0 {
		return len(pending)
	}
	return best
}

// readPage reads the page that snap describes: the first piece now, and the rest when it is needed.
func (r *sinceReader) readPage(ctx context.Context, snap *pendingSnapshot) (Delivery, error) {
	if snap.first == 0 {
		return Delivery{Page: Page{Cursor: snap.end}}, nil
	}
	q := snap.query
	q.After, q.Until, q.Headers, q.Limit, q.MaxBytes = snap.resumeCursor(), snap.last.Seq, false, MaxPage, pieceBytes
	page, err := r.scan(ctx, &q)
	if err != nil {
		return Delivery{}, err
	}
	d := Delivery{Page: page, LastTS: snap.last.TS}
	if page.More {
		q.After = page.Cursor
		d.Rest = r.pieces(ctx, &q)
	}
	d.More = snap.more
	d.Cursor = Cursor{snap.end.Epoch, snap.last.Seq}
	return d, nil
}
