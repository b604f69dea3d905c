package relay

import (
	"context"
	"time"

	"github.com/agora-relay/agora/relay/admission"
)

// A read that may have to search everything that is stored is done in slices. A slice examines a bounded number of
// events. It waits for its turn among the slices of other addresses, and is charged when it has ended.

const (
	// readBudget is how long the store works on one page. After that, the page ends early.
	readBudget = 50 * time.Millisecond
	// sliceTime is about how long a slice should take. After a slice that took less than half of it, the next one is
	// twice as large. After a slice that took more than twice as long, the next one is half as large.
	sliceTime = 5 * time.Millisecond
	// How many events or manifests a slice examines: at first, at least, and at most. For manifests there are fewer,
	// because the text of each may be as long as a body.
	initialEventSlice, initialAgentSlice = 1 << 13, 64
	minEventSlice, minAgentSlice         = 256, 4
	maxSliceSize                         = 1 << 14
)

// storeReader reads from the store for one request, slice by slice, and charges the client for it. It belongs to the
// request's goroutine.
type storeReader struct {
	store         Store
	gate          *admission.Gate
	peer          Peer
	spent         time.Duration // how long the store has worked on it so far
	sliceSize     int           // how many events the next slice examines
	minSliceSize  int           // lower limit of sliceSize
	mustComplete  bool          // a page that ends early is of no use
	answerStarted bool          // the answer has begun, so the rest is not refused
	searchUntil   time.Time     // search until then while nothing is found; zero: only for readBudget
}

// newReader returns a reader of events for a request of p.
func (r *Relay) newReader(p Peer) *storeReader {
	return &storeReader{store: r.store, gate: r.gate, peer: p, sliceSize: initialEventSlice, minSliceSize: minEventSlice}
}

// beginSlice waits for the turn of the next slice. The caller must call endSlice when the slice is done. Refusals:
// CodeRateLimited if the client's address is in debt, ctx's error.
func (r *storeReader) beginSlice(ctx context.Context) error {
	return r.gate.TakeRead(ctx, r.peer, !r.answerStarted)
}

// endSlice ends the turn of a slice and charges the slice to the client's address.
func (r *storeReader) endSlice(took time.Duration) {
	r.gate.ReleaseRead(r.peer, r.spent, took)
	r.spent += took
}

// timedSlice runs one slice and measures how long it takes, because the store does not.
func (r *storeReader) timedSlice(ctx context.Context, slice func(context.Context) error) error {
	if err := r.beginSlice(ctx); err != nil {
		return err
	}
	began := time.Now()
	defer func() { r.endSlice(time.Since(began)) }()
	return slice(context.WithoutCancel(ctx))
}

// continues reports whether to read another slice after one that took this long and left the page incomplete. found
// says whether the page has any events or manifests so far.
func (r *storeReader) continues(ctx context.Context, found bool, took time.Duration) bool {
	switch {
	case took < sliceTime/2:
		r.sliceSize = min(2*r.sliceSize, maxSliceSize)
	case took > 2*sliceTime:
		r.sliceSize = max(r.sliceSize/2, r.minSliceSize)
	}
	switch {
	case ctx.Err() != nil:
		return false // the client has left
	case r.mustComplete, r.spent < readBudget:
		return true
	}
	return !found && time.Now().Before(r.searchUntil)
}

// readSlice reads one slice of q.
func (r *storeReader) readSlice(ctx context.Context, q *Query) (page Page, err error) {
	if err := r.beginSlice(ctx); err != nil {
		return Page{}, err
	}
	defer func() { r.endSlice(page.Took) }()
	return storeRead(ctx, r.store, q)
}

// storeRead is a separate function because a Query that is passed by value needs much stack. The stack of a goroutine
// must not grow by this before it waits for a turn. A slice is short, so it is not cancelled.
func storeRead(ctx context.Context, s Store, q *Query) (Page, error) {
	return s.Read(context.WithoutCancel(ctx), *q)
}

// scan reads a page slice by slice. The page may be Partial, unless mustComplete is true. scan leaves q as it was,
// except for MaxExamined. It does not copy q, because a copy would make the stack of a poll grow, and the poll then
// waits with that stack.
func (r *storeReader) scan(ctx context.Context, q *Query) (page Page, err error) {
	after, limit, maxBytes := q.After, q.Limit, q.MaxBytes
	if r.mustComplete {
		q.Limit++ // one more than the page has, because only this shows whether further events exist
	}
	page, err = r.scanSlices(ctx, q)
	q.After, q.Limit, q.MaxBytes = after, limit, maxBytes
	return page.truncate(q, limit), err
}

// scanSlices does the work of scan. It changes q to continue after what was read.
func (r *storeReader) scanSlices(ctx context.Context, q *Query) (page Page, err error) {
	bounded := q.MaxBytes > 0
	for {
		q.MaxExamined = r.sliceSize
		slice, err := r.readSlice(ctx, q)
		switch {
		case err != nil && page.Partial && !r.mustComplete && isRateLimit(err):
			return page, nil // these events are already paid for
		case err != nil:
			return Page{}, err
		case bounded && len(page.Events) > 0 && len(slice.Events) > 0 && slice.Events[0].Size > q.MaxBytes:
			page.More, page.Partial = true, false // a slice has at least one event, of any size
			return page, nil
		}
		q.After = slice.Cursor
		q.Limit -= len(slice.Events)
		if bounded {
			q.MaxBytes -= totalSize(slice.Events)
		}
		if len(page.Events) > 0 {
			slice.Events = append(page.Events, slice.Events...)
		}
		page = slice
		switch {
		case !page.Partial, q.Limit <= 0, bounded && q.MaxBytes <= 0:
			return page, nil
		case !r.continues(ctx, len(page.Events) > 0, page.Took):
			return page, ctx.Err()
		}
	}
}

// truncate returns p, a page of q, with at most limit events.
func (p Page) truncate(q *Query, limit int) Page {
	if len(p.Events) > limit {
		p.Events = p.Events[:limit]
		p.More, p.Partial, p.Cursor.Seq = true, false, q.Behind(p.Events[limit-1].Seq)
	}
	return p
}

// totalSize returns the total size of the bodies of events, in bytes.
func totalSize(events []Event) (sum int) {
	for _, e := range events {
		sum += e.Size
	}
	return sum
}
