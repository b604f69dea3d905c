package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

var _ relay.Remover = (*Store)(nil)

// Known implements relay.Remover.
func (s *Store) Known(ctx context.Context, sender didkey.DID, id string) (seq relay.Seq, err error) {
	if err := s.closed(); err != nil {
		return 0, err
	}
	if stopped := s.onReader(ctx, func() {
		var n int64
		if found, unmerged := s.tail.find(ledger.MessageKey{Sender: sender, ID: id}); unmerged && int64(found) <= s.head.Load() {
			seq = found
			return
		}
		n, err = s.queryNumber(ctx, "SELECT ifnull((SELECT seq FROM event_sent WHERE sender = "+partyNumber+" AND id = ?), 0)",
			[]any{string(sender), id})
		seq = relay.Seq(n)
	}); stopped != nil {
		return 0, stopped
	}
	return seq, s.handleReadError(err)
}

// Remove implements relay.Remover. The pages that only the bodies had used are overwritten, and the write-ahead log is
// truncated unless a reader is in the way. A piece of a body that is shorter than a page can stay in the free space of a
// page that is still in use, because SQLite moves rows between pages. Compact removes it.
func (s *Store) Remove(ctx context.Context, events []relay.Seq, now time.Time) (removed []relay.Seq, err error) {
	if err := s.closed(); err != nil {
		return nil, err
	}
	if len(events) > relay.MaxRemove {
		return nil, fmt.Errorf("%d events are too many for one Remove; the limit is %d", len(events), relay.MaxRemove)
	}
	err = s.urgent(func(run runTask) error {
		for len(events) > 0 {
			err := run(func(w *writer) error {
				n, err := w.removable(events)
				if err != nil {
					return err
				}
				some, err := w.remove(events[:n], now)
				if err == nil {
					removed, events = append(removed, some...), events[n:]
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	s.watchers.Forget(removed)
	if err != nil {
		return removed, err
	}
	if _, err := s.Checkpoint(ctx); err != nil && !errors.Is(err, errDiskFull) { // a reader in the way is no error
		return removed, err
	}
	return removed, nil
}

// removeStep is how many events one transaction of Remove changes, so that posts do not wait long for it.
const removeStep = 100

// removable returns how many of the first events one transaction may remove. On a full disk, that is only as many as
// change care.logLimit pages, but at least one.
func (w *writer) removable(events []relay.Seq) (int, error) {
	n := min(len(events), removeStep)
	if !w.scarce {
		return n, nil
	}
	var pages int64
	for i, seq := range events[:n] {
		var size int64
		err := w.conn.QueryRowContext(context.Background(), "SELECT ifnull((SELECT length(body) FROM event WHERE seq = ?), 0)",
			int64(seq)).Scan(&size)
		if err != nil {
			return 0, w.store.care.handleError(err)
		}
		if pages += eventPages + size/pageSize; i > 0 && pages > w.store.care.logLimit.Load() {
			return i, nil
		}
	}
	return n, nil
}

// remove removes events in one transaction.
func (w *writer) remove(events []relay.Seq, now time.Time) (removed []relay.Seq, err error) {
	if err := w.refusal(); err != nil {
		return nil, err
	}
	const overwrite, keep = "PRAGMA secure_delete = ON", "PRAGMA secure_delete = OFF"
	if _, err := w.conn.ExecContext(context.Background(), overwrite); err != nil {
		return nil, w.store.care.handleError(err)
	}
	err = w.transact(func() error {
		var bare []bareEvent
		for _, seq := range events {
			if _, err := w.stmts.removeManifest.Exec(seq); err != nil {
				return err
			}
			err := eachRow(func(scan scanner) error {
				var e bareEvent
				err := scan(e.columns()...)
				bare, removed = append(bare, e), append(removed, e.seq)
				return err
			}, func() (*sql.Rows, error) { return w.stmts.removeEvent.Query(seq) })
			if err != nil {
				return err
			}
		}
		if err := w.addBare(bare, -nanos(now)); err != nil {
			return err
		}
		w.ledger.Forget()
		return nil
	})
	if _, failed := w.conn.ExecContext(context.Background(), keep); err == nil && failed != nil {
		err = w.store.care.handleError(failed)
	}
	return removed, err
}

// EndThread implements relay.Remover.
func (s *Store) EndThread(_ context.Context, k thread.Key, now time.Time) error {
	if err := s.closed(); err != nil {
		return err
	}
	return s.urgent(func(run runTask) error {
		return run(func(w *writer) error { return w.endThread(k, now) })
	})
}

func (w *writer) endThread(k thread.Key, now time.Time) error {
	if err := w.refusal(); err != nil {
		return err
	}
	number, err := w.store.threadNumber(context.Background(), k)
	if err != nil {
		return w.store.handleReadError(err)
	}
	if number == 0 {
		return thread.ErrNotFound
	}
	return w.transact(func() error {
		rows, _, err := w.rows(w.stmts.threadByNumber, number)
		if err != nil || len(rows) == 0 {
			return err
		}
		change, ended, err := w.ledger.End(rows[0], now)
		if err != nil || !ended {
			return err
		}
		return w.Write(ledger.Changes{Threads: []ledger.Change{change}})
	})
}
