package relay

import (
	"context"
	"time"
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

// readJob is what the store does for one request. It belongs to the request's goroutine.
type readJob struct {
	peer          Peer
	spent         time.Duration // how long the store has worked on it so far
	sliceSize     int           // how many events the next slice examines
	minSliceSize  int           // lower limit of sliceSize
	mustComplete  bool          // a page that ends early is of no use
	answerStarted bool          // the answer has begun, so the rest is not refused
	searchUntil   time.Time     // go on until then while nothing is found; zero: only for readBudget
}

// beginSlice waits for the turn of job's next slice. The caller must call endSlice when the slice is done. Refusals:
// CodeRateLimited if the client's address is in debt, ctx's error.
func (r *Relay) beginSlice(ctx context.Context, job *readJob) error {
	return r.gate.TakeRead(ctx, job.peer, !job.answerStarted)
}

// endSlice ends the turn of a slice and charges the slice to the client's address.
func (r *Relay) endSlice(job *readJob, took time.Duration) {
	r.gate.ReleaseRead(job.peer, job.spent, took)
	job.spent += took
}

// continues reports whether to read another slice after one that took this long and left the page incomplete. found
// says whether the page has any events or manifests so far.
func (job *readJob) continues(ctx context.Context, found bool, took time.Duration) bool {
	switch {
	case took < sliceTime/2:
		job.sliceSize = min(2*job.sliceSize, maxSliceSize)
	case took > 2*sliceTime:
		job.sliceSize = max(job.sliceSize/2, job.minSliceSize)
	}
	switch {
	case ctx.Err() != nil:
		return false // the client has left
	case job.mustComplete, job.spent < readBudget:
		return true
	}
	return !found && time.Now().Before(job.searchUntil)
}

// readSlice reads one slice of q for job.
func (r *Relay) readSlice(ctx context.Context, job *readJob, q *Query) (page Page, err error) {
	if err := r.beginSlice(ctx, job); err != nil {
		return Page{}, err
	}
	defer func() { r.endSlice(job, page.Took) }()
	return r.storeRead(ctx, q)
}

// storeRead is a separate function because a Query that is passed by value needs much stack. The stack of a goroutine
// must not grow by this before it waits for a turn. A slice is short, so it is not cancelled.
func (r *Relay) storeRead(ctx context.Context, q *Query) (Page, error) {
	return r.store.Read(context.WithoutCancel(ctx), *q)
}

// scan reads a page slice by slice. The page may be Partial, unless job.mustComplete is true. scan leaves q as it was,
// except for MaxExamined. It does not copy q, because a copy would make the stack of a poll grow, and the poll then
// waits with that stack.
func (r *Relay) scan(ctx context.Context, job *readJob, q *Query) (page Page, err error) {
	after, limit, maxBytes := q.After, q.Limit, q.MaxBytes
	if job.mustComplete {
		q.Limit++ // shows whether there is more; a slice that ends with the last event does not show it
	}
	page, err = r.scanSlices(ctx, job, q)
	q.After, q.Limit, q.MaxBytes = after, limit, maxBytes
	return page.truncate(q, limit), err
}

// scanSlices does the work of scan. It changes q to continue after what was read.
func (r *Relay) scanSlices(ctx context.Context, job *readJob, q *Query) (page Page, err error) {
	bounded := q.MaxBytes > 0
	for {
		q.MaxExamined = job.sliceSize
		slice, err := r.readSlice(ctx, job, q)
		switch {
		case err != nil && page.Partial && !job.mustComplete && isRateLimit(err):
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
		case !job.continues(ctx, len(page.Events) > 0, page.Took):
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
