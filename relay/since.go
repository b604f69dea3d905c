package relay

import (
	"context"
	"slices"
	"time"
)

// The protocol's own client polls with since = the ts of the last event it got. Taken literally, as "ts > since", that
// loses every message whose sender's clock is behind another's, and all but one of those that share a ts. So a since
// that is the ts of an event is read as a bookmark in the relay's own order (PROTOCOL §7 "since"): behind the first
// event with that instant, so that nothing is lost, and answered without delay only if something came after the last
// one, so that an idle client does not spin.

// settleAfter is how old the latest holder of a bookmark's instant must be before its siblings are delivered without
// other news: they may still be arriving.
const settleAfter = time.Second

// outlook is what a since poll would get at the moment. What is pending may be as much as an inbox holds, so only its
// ends are kept.
type outlook struct {
	bookmark bool      // the poll's since is the ts of an event
	first    Seq       // the first pending event; 0: nothing is pending
	last     Event     // the header of the one that ends the page
	more     bool      // something is pending behind it
	news     bool      // something pending came after the latest holder of the bookmark's instant
	settles  time.Time // when that holder is settleAfter old
	query    Query     // selects pending as headers, as of this look
	end      Cursor    // of the store, as of this look
}

func (r *Relay) since(ctx context.Context, p *Poll, w *waiter) (Delivery, error) {
	deadline := time.NewTimer(p.Wait)
	defer deadline.Stop()
	settle := time.NewTimer(p.Wait)
	defer settle.Stop()

	work := &work{peer: p.Peer, look: firstLook, least: leastLook, whole: true}
	first, err := r.scan(ctx, work, &Query{Filter: p.Filter, TS: p.Since, Expired: true, Headers: true, Limit: 1})
	if err != nil {
		return Delivery{}, err
	}
	isLast, settled := p.Wait == 0, false
	for {
		o, err := r.look(ctx, work, p, first)
		if err != nil {
			return Delivery{}, err
		}
		if o.news || isLast || settled && o.first > 0 {
			return r.deliver(ctx, work, o)
		}
		if rest := o.settles.Sub(r.now()); rest > 0 {
			settle.Reset(rest)
		}
		settled = false
		for again := false; !again; {
			select {
			case <-w.woken:
				var sibling time.Time
				if again, sibling = o.isNews(r.hub.take(w), p.Since); !sibling.IsZero() {
					settle.Reset(sibling.Add(settleAfter).Sub(r.now()))
				}
			case <-settle.C:
				again, settled = true, true
			case <-deadline.C:
				again, isLast = true, true
			case <-r.drained:
				return Delivery{Page: Page{Cursor: o.resume()}}, nil
			case <-ctx.Done():
				return Delivery{}, ctx.Err()
			}
		}
	}
}

// isNews reports whether events that have come since this look are worth another: a look costs as much as there is
// behind the bookmark, and whoever sends equal timestamps must not make every reader look at each of them. sibling is
// when the last event arrived that only shares the bookmark's instant; zero: none did.
func (o *outlook) isNews(events []Posted, since time.Time) (news bool, sibling time.Time) {
	for _, e := range events {
		switch {
		case e.Seq <= o.end.Seq: // this look has seen it
		case o.bookmark && e.TS.Equal(since):
			sibling = e.Received
		case o.bookmark || e.TS.After(since) || e.Received.After(since):
			return true, time.Time{}
		}
	}
	return false, sibling
}

// resume is the cursor from which nothing pending is missed.
func (o *outlook) resume() Cursor {
	if o.first > 0 {
		return Cursor{o.end.Epoch, o.first - 1}
	}
	return o.end
}

// look says what a poll would get now. first holds the first event with the instant p.Since as of the poll's start, or
// nothing: then p.Since is no bookmark, for the whole of this poll.
func (r *Relay) look(ctx context.Context, w *work, p *Poll, first Page) (*outlook, error) {
	o := &outlook{query: Query{Filter: p.Filter, Now: r.now(), NewerThan: p.Since, Headers: true}}
	var latest Seq // the last holder of the bookmark's instant
	if o.bookmark = len(first.Events) > 0; o.bookmark {
		o.query.NewerThan = time.Time{}
		o.query.After = Cursor{first.Cursor.Epoch, first.Events[0].Seq}
		// Expired holders count too: the reader may have got them. Other expired events do not, however many there are.
		end, err := r.each(ctx, w, Query{Filter: p.Filter, TS: p.Since, Expired: true, Headers: true}, func(e Event) {
			latest, o.settles = e.Seq, e.Received.Add(settleAfter)
		})
		if err != nil {
			return o, err
		}
		o.end, o.query.Until = end, end.Seq // what comes from now on may be another holder
	}
	q := o.query
	q.Limit = p.Limit + 1
	page, err := r.scan(ctx, w, &q)
	if err != nil {
		return o, err
	}
	if !o.bookmark {
		o.end = page.Cursor
	}
	if len(page.Events) == 0 {
		return o, nil
	}
	o.first = page.Events[0].Seq
	if o.news, err = r.goesBeyond(ctx, w, o, page, latest); err != nil {
		return o, err
	}
	switch {
	case p.Recipient == "":
		o.endAt(page, fitting(page.Events, p.Limit)) // more is not promised: such a poll may match the whole store
	case o.news && page.More:
		err = r.endAmongMany(ctx, w, o, page, latest, p.Limit)
	case o.news:
		o.endAt(page, cut(page.Events, latest, p.Limit))
	default:
		// Siblings of the bookmark, most likely delivered before. All of them at once: a page that ended earlier would
		// make a bookmark with news behind it, and an idle reader would go round and round.
		o.endAt(page, len(page.Events))
		if page.More {
			q.After, o.more = page.Cursor, false
			_, err = r.each(ctx, w, q, func(e Event) { o.last = e })
		}
	}
	return o, err
}

// each calls f with all that q selects, of which a page at a time is in memory. It returns the end of the store.
func (r *Relay) each(ctx context.Context, w *work, q Query, f func(Event)) (Cursor, error) {
	for q.Limit = MaxPage; ; {
		page, err := r.scan(ctx, w, &q)
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

// goesBeyond reports whether something pending, of which page is the beginning, came after latest.
func (r *Relay) goesBeyond(ctx context.Context, w *work, o *outlook, page Page, latest Seq) (bool, error) {
	if page.Events[len(page.Events)-1].Seq > latest || !page.More {
		return page.Events[len(page.Events)-1].Seq > latest, nil
	}
	q := o.query
	q.After.Seq, q.Limit = latest, 1
	beyond, err := r.scan(ctx, w, &q)
	return len(beyond.Events) > 0, err
}

// endAt lets the page end with the first n events of page, with which pending begins or goes on.
func (o *outlook) endAt(page Page, n int) {
	o.last, o.more = page.Events[n-1], n < len(page.Events) || page.More
}

// endAmongMany finds where the page ends if more is pending than it may hold; page is as much of it and one event more.
// It finds what cut would find with all of pending at hand, and holds a page of it at a time.
func (r *Relay) endAmongMany(ctx context.Context, w *work, o *outlook, page Page, latest Seq, limit int) error {
	fit := fitting(page.Events, limit)
	for i := fit - 1; i >= 0; i-- {
		if last, err := r.isLast(ctx, w, o, page.Events[i:], latest); err != nil || last {
			o.endAt(page, i+1)
			return err
		}
	}
	for {
		for i := fit; i < len(page.Events); i++ {
			if last, err := r.isLast(ctx, w, o, page.Events[i:], latest); err != nil || last {
				o.endAt(page, i+1)
				return err
			}
		}
		if len(page.Events) > 0 {
			o.endAt(page, len(page.Events))
		}
		if !page.More {
			return nil // not reached: the last of all is the latest holder of its ts
		}
		q := o.query
		q.After, q.Limit, fit = page.Cursor, MaxPage, 0
		var err error
		if page, err = r.scan(ctx, w, &q); err != nil {
			return err
		}
	}
}

// isLast reports whether the first of these pending events may end a page: it is the latest pending holder of its ts,
// and came after latest. The others are those that follow it, as far as they are known.
func (r *Relay) isLast(ctx context.Context, w *work, o *outlook, events []Event, latest Seq) (bool, error) {
	e := events[0]
	sameTS := func(other Event) bool { return other.TS.Equal(e.TS) }
	if e.Seq <= latest || slices.ContainsFunc(events[1:], sameTS) {
		return false, nil
	}
	q := o.query
	q.TS, q.After.Seq, q.Limit = e.TS, events[len(events)-1].Seq, 1
	if q.After.Epoch == 0 {
		q.After.Epoch = o.end.Epoch
	}
	later, err := r.scan(ctx, w, &q)
	return len(later.Events) == 0, err
}

// fitting returns how many of the pending events the limits admit.
func fitting(pending []Event, limit int) int {
	size := 0
	for i, e := range pending {
		if size += e.Size; i == limit || i > 0 && size > PageBytes {
			return i
		}
	}
	return len(pending)
}

// cut returns how many of the pending events make a page, where these are all. The page ends at an event that is the
// latest holder of its ts and came after the sequence number behind, so that as a bookmark it moves the reader on. Of the
// ends that fit the limits it takes the last; if none fits, the first that does not.
func cut(pending []Event, behind Seq, limit int) int {
	lastHolder := map[int64]Seq{}
	for _, e := range pending {
		lastHolder[e.TS.UnixNano()] = e.Seq
	}
	best, fit := 0, fitting(pending, limit)
	for i, e := range pending {
		if i >= fit && best > 0 {
			return best
		}
		if e.Seq > behind && lastHolder[e.TS.UnixNano()] == e.Seq {
			best = i + 1
		}
	}
	if best == 0 {
		return len(pending)
	}
	return best
}

// deliver reads the page that o found: a piece of it now, the rest as it is asked for.
func (r *Relay) deliver(ctx context.Context, w *work, o *outlook) (Delivery, error) {
	if o.first == 0 {
		return Delivery{Page: Page{Cursor: o.end}}, nil
	}
	q := o.query
	q.After, q.Until, q.Headers, q.Limit, q.MaxBytes = o.resume(), o.last.Seq, false, MaxPage, pieceBytes
	page, err := r.scan(ctx, w, &q)
	if err != nil {
		return Delivery{}, err
	}
	d := Delivery{Page: page, LastTS: o.last.TS}
	if page.More {
		q.After = page.Cursor
		d.Rest = r.pieces(ctx, w, &q)
	}
	d.More = o.more
	d.Cursor = Cursor{o.end.Epoch, o.last.Seq}
	return d, nil
}
