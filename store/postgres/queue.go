package postgres

import (
	"context"
	"time"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// size returns about how many bytes j stores, without the jobs in More.
func size(j ledger.Job) int {
	if j.Update != nil {
		return 1 << 16
	}
	return len(j.Entry.Envelope.Canonical())
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
	return s.queue.Task(ctx, func() error { return f(s.writer) })
}

// Append implements relay.Store.
func (s *Store) Append(ctx context.Context, e relay.Entry) (relay.Receipt, error) {
	return s.queue.Append(ctx, e)
}

// AppendAll implements relay.Store. All entries are stored in one transaction.
func (s *Store) AppendAll(ctx context.Context, entries []relay.Entry) []relay.Outcome {
	return s.queue.AppendAll(ctx, entries)
}
