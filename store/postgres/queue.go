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
	done   chan outcome // has room for one outcome, so the committer never waits for a caller that has left
	taken  *atomic.Bool // the committer has begun with it, or its caller has given up; see take
}

// take reports whether the job is still open. The first call decides: the committer then does the job, or its caller
// knows that it will not be done.
func (j job) take() bool { return j.taken.CompareAndSwap(false, true) }

func (j job) size() int {
	if j.update != nil {
		return 1 << 16
	}
	return len(j.entry.Envelope.Canonical())
}

type outcome struct {
	receipt relay.Receipt
	err     error
}

// do gives a job to the committer and waits for its outcome. If ctx ends first, do returns ctx's error and the outcome
// is unknown.
func (s *Store) do(ctx context.Context, queue chan<- job, j job) (relay.Receipt, error) {
	if err := s.refusal(); err != nil {
		return relay.Receipt{}, err
	}
	j.done, j.taken = make(chan outcome, 1), new(atomic.Bool)
	late := time.NewTimer(stuckTime)
	defer late.Stop()
	select {
	case queue <- j:
	case <-late.C:
		return relay.Receipt{}, errStuck
	case <-s.ctx.Done():
		return relay.Receipt{}, relay.ErrShuttingDown
	case <-ctx.Done():
		return relay.Receipt{}, ctx.Err()
	}
	select {
	case o := <-j.done:
		return o.receipt, o.err
	case <-late.C:
		if j.take() {
			return relay.Receipt{}, errStuck
		}
		return relay.Receipt{}, errLate
	case <-s.stopped:
		select {
		case o := <-j.done:
			return o.receipt, o.err
		default:
			return relay.Receipt{}, relay.ErrShuttingDown
		}
	case <-ctx.Done():
		return relay.Receipt{}, ctx.Err()
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
