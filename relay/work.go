package relay

import (
	"context"
	"net/netip"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// A read that may look at all that is stored is done in slices. Each looks at a bounded number of events, waits for its
// turn among those of other addresses, and is charged when it has ended.

const (
	// readBudget is for how long the store works on one page before the page ends where it is.
	readBudget = 50 * time.Millisecond
	// sliceTime is about how long a slice should take. One that took less than half of it is followed by one twice
	// as large, one that took more than twice as much by one half as large.
	sliceTime = 5 * time.Millisecond
	// How many events a slice looks at, and manifests, whose words may be as long as a body.
	firstLook, firstAgentLook = 1 << 13, 64
	leastLook, leastAgentLook = 256, 4
	mostLook                  = 1 << 14
)

// work is what one request has the store do. It belongs to the request's goroutine.
type work struct {
	peer  Peer
	spent time.Duration // by the store so far
	look  int           // how many events the next slice looks at
	least int           // and at the least
	whole bool          // a page that ends early is of no use
	sent  bool          // the beginning of the answer is on its way, so the rest is not refused
	until time.Time     // while nothing is found, go on until then; zero: readBudget is all
}

// begin waits for the turn of w's next slice. end must be called when it has been done.
// Refusals: CodeRateLimited if w's address owes more than its allowance, ctx's error.
func (r *Relay) begin(ctx context.Context, w *work) error {
	if err := r.reading.take(ctx, w.peer.origin()); err != nil {
		return err
	}
	err := r.inDebt(w)
	if err != nil {
		r.reading.leave(w.peer.origin())
	}
	return err
}

// end gives the turn to the next and charges w's address for the slice.
func (r *Relay) end(w *work, took time.Duration) {
	r.reading.leave(w.peer.origin())
	before := w.spent / readUnit
	w.spent += took
	if !w.peer.Local {
		var array [len(widths)]netip.Prefix
		r.limiter.reads.charge(r.now, int(w.spent/readUnit-before), networks(w.peer.Addr, &array)...)
	}
}

// inDebt refuses what an address asks for while it owes for what it has asked for before: most of what it has waiting
// is then never done.
func (r *Relay) inDebt(w *work) error {
	if w.peer.Local || w.sent {
		return nil
	}
	var array [len(widths)]netip.Prefix
	of := networks(w.peer.Addr, &array)
	wait, short := r.limiter.reads.owes(r.now, of...)
	if wait == 0 {
		return nil
	}
	return tooFast(envelope.LimitReadsPerAddress, wait, named(of[short])+" asks", r.limits.ReadsPerAddress, share(of[short]))
}

// goesOn reports whether there is another slice after one that took so long, which left the page incomplete. found says
// whether the page has something by now.
func (w *work) goesOn(ctx context.Context, found bool, took time.Duration) bool {
	switch {
	case took < sliceTime/2:
		w.look = min(2*w.look, mostLook)
	case took > 2*sliceTime:
		w.look = max(w.look/2, w.least)
	}
	switch {
	case ctx.Err() != nil:
		return false // nobody waits for it any more
	case w.whole, w.spent < readBudget:
		return true
	}
	return !found && time.Now().Before(w.until)
}

// ask does one slice of q for w.
func (r *Relay) ask(ctx context.Context, w *work, q *Query) (page Page, err error) {
	if err := r.begin(ctx, w); err != nil {
		return Page{}, err
	}
	defer func() { r.end(w, page.Took) }()
	return r.slice(ctx, q)
}

// slice is a function of its own because a Query by value takes much stack, which must not add to that of waiting for a
// turn. A slice is short, so nobody interrupts it.
func (r *Relay) slice(ctx context.Context, q *Query) (Page, error) {
	return r.store.Read(context.WithoutCancel(ctx), *q)
}

// scan reads a page, slice by slice. It may be Partial unless w.whole. It leaves q as it was, but for Look; a copy would
// make the stack of a poll grow, which then waits with it.
func (r *Relay) scan(ctx context.Context, w *work, q *Query) (page Page, err error) {
	after, limit, maxBytes := q.After, q.Limit, q.MaxBytes
	if w.whole {
		q.Limit++ // one more shows that there is more, where a slice that ends with the last one does not
	}
	page, err = r.slices(ctx, w, q)
	q.After, q.Limit, q.MaxBytes = after, limit, maxBytes
	return page.cutTo(limit), err
}

// slices does what scan does, and moves q on behind what was read.
func (r *Relay) slices(ctx context.Context, w *work, q *Query) (page Page, err error) {
	bounded := q.MaxBytes > 0
	for {
		q.Look = w.look
		slice, err := r.ask(ctx, w, q)
		switch {
		case err != nil && page.Partial && !w.whole && isRateLimit(err):
			return page, nil // so far it is paid for
		case err != nil:
			return Page{}, err
		case bounded && len(page.Events) > 0 && len(slice.Events) > 0 && slice.Events[0].Size > q.MaxBytes:
			page.More, page.Partial = true, false // a slice has one event at least, whatever its size
			return page, nil
		}
		q.After = slice.Cursor
		q.Limit -= len(slice.Events)
		if bounded {
			q.MaxBytes -= size(slice.Events)
		}
		if len(page.Events) > 0 {
			slice.Events = append(page.Events, slice.Events...)
		}
		page = slice
		switch {
		case !page.Partial, q.Limit <= 0, bounded && q.MaxBytes <= 0:
			return page, nil
		case !w.goesOn(ctx, len(page.Events) > 0, page.Took):
			return page, ctx.Err()
		}
	}
}

// cutTo returns p with so many events at most.
func (p Page) cutTo(limit int) Page {
	if len(p.Events) > limit {
		p.Events = p.Events[:limit]
		p.More, p.Partial, p.Cursor.Seq = true, false, p.Events[limit-1].Seq
	}
	return p
}

// size returns how many bytes the bodies of events have.
func size(events []Event) (sum int) {
	for _, e := range events {
		sum += e.Size
	}
	return sum
}
