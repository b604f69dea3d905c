package relay

import (
	"context"
	"time"
)

// The protocol's own client polls with since = the ts of the last event it got. Taken literally, as "ts > since", that
// loses every message whose sender's clock is behind another's, and all but one of those that share a ts. So a since
// that is the ts of an event is read as a bookmark in the relay's own order (PROTOCOL §7 "since"): behind the first
// event with that instant, so that nothing is lost, and answered without delay only if something came after the last
// one, so that an idle client does not spin.

const (
	// settleAfter is how old the latest holder of a bookmark's instant must be before its siblings are delivered
	// without other news: they may still be arriving.
	settleAfter = time.Second
	// lookAhead bounds how many unexpired events behind a bookmark are examined for one page. Polls without recipient
	// may meet it, and are promised less; inboxAhead is far more than an inbox may hold.
	lookAhead, inboxAhead = 20_000, 200_000
)

// outlook is what a since poll would get at the moment.
type outlook struct {
	bookmark bool      // the poll's since is the ts of an event
	pending  []Event   // headers, in order
	cut      int       // how many of them make the page
	news     bool      // some came after the latest holder of the bookmark's instant
	settles  time.Time // when that holder is settleAfter old
	query    Query     // selects pending, without a bound above
	end      Cursor    // of the store, as of this look
}

func (r *Relay) since(ctx context.Context, p *Poll, w *waiter) (Delivery, error) {
	deadline := time.NewTimer(p.Wait)
	defer deadline.Stop()
	settle := time.NewTimer(p.Wait)
	defer settle.Stop()

	look := context.WithoutCancel(ctx) // only the wait is given up
	first, err := r.ask(look, p.Peer, &Query{Filter: p.Filter, TS: p.Since, Expired: true, Headers: true, Limit: 1})
	if err != nil {
		return Delivery{}, err
	}
	isLast, settled := p.Wait == 0, false
	for {
		o, err := r.look(look, p, first)
		if err != nil {
			return Delivery{}, err
		}
		if o.news || isLast || settled && len(o.pending) > 0 {
			return r.deliver(look, p.Peer, o)
		}
		if rest := o.settles.Sub(r.Now()); rest > 0 {
			settle.Reset(rest)
		}
		settled = false
		resume := o.resume()
		o.pending = nil // as much as an inbox holds; the next look finds it again
		for again := false; !again; {
			select {
			case <-w.woken:
				var sibling time.Time
				if again, sibling = o.isNews(r.hub.take(w), p.Since); !sibling.IsZero() {
					settle.Reset(sibling.Add(settleAfter).Sub(r.Now()))
				}
			case <-settle.C:
				again, settled = true, true
			case <-deadline.C:
				again, isLast = true, true
			case <-r.drained:
				return Delivery{Page: Page{Cursor: resume}}, nil
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
	if len(o.pending) > 0 {
		return Cursor{o.end.Epoch, o.pending[0].Seq - 1}
	}
	return o.end
}

// look says what a poll would get now. first holds the first event with the instant p.Since as of the poll's start, or
// nothing: then p.Since is no bookmark, for the whole of this poll.
func (r *Relay) look(ctx context.Context, p *Poll, first Page) (*outlook, error) {
	o := &outlook{query: Query{Filter: p.Filter, Now: r.Now(), Limit: inboxAhead}}
	if p.Recipient == "" {
		o.query.Limit = lookAhead
	}
	var bookmark, latest Seq // the first and the last holder of its instant
	if o.bookmark = len(first.Events) > 0; o.bookmark {
		bookmark = first.Events[0].Seq
		o.query.After = Cursor{first.Cursor.Epoch, bookmark - 1}
		// Expired holders count too: the reader may have got them. Other expired events do not, however many there are.
		holders, err := r.ask(ctx, p.Peer, &Query{Filter: p.Filter, TS: p.Since, Expired: true, Headers: true, Limit: lookAhead})
		if err != nil {
			return o, err
		}
		for _, e := range holders.Events {
			latest, o.settles = e.Seq, e.Received.Add(settleAfter)
		}
	} else {
		o.query.NewerThan = p.Since
	}
	q := o.query
	q.Headers = true
	page, err := r.ask(ctx, p.Peer, &q)
	if err != nil {
		return o, err
	}
	o.end = page.Cursor
	lastHolder := map[int64]Seq{}
	for _, e := range page.Events {
		if e.Seq != bookmark {
			lastHolder[e.TS.UnixNano()] = e.Seq
			o.pending = append(o.pending, e)
			o.news = o.news || e.Seq > latest
		}
	}
	switch {
	case p.Recipient == "":
		o.cut = fitting(o.pending, p.Limit) // more is not promised: such a poll may match the whole store
	case o.news:
		o.cut = cut(o.pending, lastHolder, latest, p.Limit)
	default:
		// Siblings of the bookmark, most likely delivered before. All of them at once: a page that ended earlier would
		// make a bookmark with news behind it, and an idle reader would go round and round.
		o.cut = len(o.pending)
	}
	return o, nil
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

// cut returns how many of the pending events make a page. The page ends at an event that is the latest holder of its
// ts and came after the sequence number behind, so that as a bookmark it moves the reader on. Of the ends that fit
// the limits it takes the last; if none fits, the first that does not.
func cut(pending []Event, lastHolder map[int64]Seq, behind Seq, limit int) int {
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
func (r *Relay) deliver(ctx context.Context, p Peer, o *outlook) (Delivery, error) {
	if o.cut == 0 {
		return Delivery{Page: Page{Cursor: o.end}}, nil
	}
	last := o.pending[o.cut-1]
	q := o.query
	q.After, q.Until, q.MaxBytes = o.resume(), last.Seq, pieceBytes
	page, err := r.ask(ctx, p, &q)
	if err != nil {
		return Delivery{}, err
	}
	d := Delivery{Page: page, LastTS: last.TS}
	if page.More {
		q.After = page.Cursor
		d.Rest = r.pieces(ctx, p, &q)
	}
	d.More = o.cut < len(o.pending)
	d.Cursor = Cursor{o.end.Epoch, last.Seq}
	return d, nil
}
