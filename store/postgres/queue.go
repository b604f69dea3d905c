package postgres

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/relay"
)

// job is work for the committer: an envelope to append, an update, or a task.
type job struct {
	entry  relay.Entry
	update *update
	task   func(*writer) error
	done   chan relay.Outcome // has room for one outcome, so the committer never waits for a caller that has left
	taken  *atomic.Bool       // the committer has begun with it, or its caller has given up; see take
	more   []job              // entries that follow in the same transaction; they have no taken and no more
}

// take reports whether the job is still open. The first call decides: the committer then does the job, or its caller
// knows that it will not be done.
func (j job) take() bool { return j.taken.CompareAndSwap(false, true) }

// size returns about how many bytes j and the jobs in j.more store.
func (j job) size() int {
	if j.update != nil {
		return 1 << 16
	}
	n := len(j.entry.Envelope.Canonical())
	for _, next := range j.more {
		n += next.size()
	}
	return n
}

// do gives a job to the committer and waits for its outcome. If ctx ends first, do returns ctx's error and the outcome
// is unknown.
func (s *Store) do(ctx context.Context, queue chan<- job, j job) (relay.Receipt, error) {
	j.done = make(chan relay.Outcome, 1)
	o := s.doAll(ctx, queue, j)[0]
	return o.Receipt, o.Err
}

// doAll does the work of do for j and for the jobs in j.more. It returns one outcome for each of them.
func (s *Store) doAll(ctx context.Context, queue chan<- job, j job) []relay.Outcome {
	late := time.NewTimer(stuckTime)
	defer late.Stop()
	j.taken = new(atomic.Bool)
	outcomes := make([]relay.Outcome, 0, 1+len(j.more))
	add := func(o relay.Outcome) { outcomes = append(outcomes, o) }
	if err := s.send(ctx, queue, j, late.C); err != nil {
		for range cap(outcomes) {
			add(relay.Outcome{Err: err})
		}
		return outcomes
	}
	add(s.await(ctx, j, j.done, late.C))
	for _, next := range j.more {
		if last := outcomes[len(outcomes)-1]; last.Decided() {
			add(s.await(ctx, j, next.done, late.C))
		} else {
			add(relay.Outcome{Err: last.Err})
		}
	}
	return outcomes
}

// send gives a job to the committer. After an error, the committer does not get it. late fires when the caller has
// waited too long.
func (s *Store) send(ctx context.Context, queue chan<- job, j job, late <-chan time.Time) error {
	if err := s.refusal(); err != nil {
		return err
	}
	select {
	case queue <- j:
		return nil
	case <-late:
		return errStuck
	case <-s.ctx.Done():
		return relay.ErrShuttingDown
	case <-ctx.Done():
		return ctx.Err()
	}
}

// await waits for an outcome of j, which the committer has got.
func (s *Store) await(ctx context.Context, j job, done <-chan relay.Outcome, late <-chan time.Time) relay.Outcome {
	select {
	case o := <-done:
		return o
	case <-late:
		if j.take() {
			return relay.Outcome{Err: errStuck}
		}
		return relay.Outcome{Err: errLate}
	case <-s.stopped:
		select {
		case o := <-done:
			return o
		default:
			return relay.Outcome{Err: relay.ErrShuttingDown}
		}
	case <-ctx.Done():
		return relay.Outcome{Err: ctx.Err()}
	}
}

// stuckTime is how long a transaction may wait, for the standbys or for another node, before further posts are refused.
// It is also how long a caller waits.
const stuckTime = 10 * time.Second

// refusal returns why nothing can be stored at the moment, or nil.
func (s *Store) refusal() error {
	if err := s.closed(); err != nil {
		return err
	}
	if d := s.down.Load(); d != nil {
		return d.refusal
	}
	if since := s.busySince.Load(); since != 0 && time.Since(time.Unix(0, since)) > stuckTime {
		if s.unreachable.Load() {
			return errUnreachable
		}
		return errStuck
	}
	return nil
}

// task runs f in the committer's goroutine and waits for it.
func (s *Store) task(ctx context.Context, f func(*writer) error) error {
	_, err := s.do(ctx, s.tasks, job{task: f})
	return err
}

// Append implements relay.Store.
func (s *Store) Append(ctx context.Context, e relay.Entry) (relay.Receipt, error) {
	return s.do(ctx, s.appends, job{entry: e})
}

// AppendAll implements relay.Store. All entries are stored in one transaction.
func (s *Store) AppendAll(ctx context.Context, entries []relay.Entry) []relay.Outcome {
	if len(entries) == 0 {
		return nil
	}
	jobs := make([]job, len(entries))
	for i, e := range entries {
		jobs[i] = job{entry: e, done: make(chan relay.Outcome, 1)}
	}
	first := jobs[0]
	first.more = jobs[1:]
	return s.doAll(ctx, s.appends, first)
}
