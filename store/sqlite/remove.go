package sqlite

import (
	"context"
	"database/sql"
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
		n, err = s.queryNumber(ctx, "SELECT ifnull((SELECT seq FROM event WHERE sender = "+partyNumber+" AND id = ?), 0)",
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
	err = s.task(ctx, func(w *writer) error {
		removed, err = w.remove(events, now)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.watchers.Forget(removed)
	_, err = s.Checkpoint(ctx) // a reader in the way is no error
	return removed, err
}

// remove removes events in one transaction.
func (w *writer) remove(events []relay.Seq, now time.Time) (removed []relay.Seq, err error) {
	if err := w.store.care.refusal(); err != nil {
		return nil, err
	}
	const overwrite, keep = "PRAGMA secure_delete = ON", "PRAGMA secure_delete = OFF"
	if _, err := w.conn.ExecContext(context.Background(), overwrite); err != nil {
		return nil, w.store.care.handleError(err)
	}
	err = w.transact(func() error {
		removed = nil
		for _, seq := range events {
			err := eachRow(func(scan scanner) error {
				var n relay.Seq
				err := scan(&n)
				removed = append(removed, n)
				return err
			}, func() (*sql.Rows, error) { return w.stmts.removeEvent.Query(seq, -nanos(now)) })
			if err != nil {
				return err
			}
			if _, err := w.stmts.removeManifest.Exec(seq); err != nil {
				return err
			}
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
func (s *Store) EndThread(ctx context.Context, k thread.Key, now time.Time) error {
	if err := s.closed(); err != nil {
		return err
	}
	return s.task(ctx, func(w *writer) error {
		if err := w.store.care.refusal(); err != nil {
			return err
		}
		var number []int64
		text, args := threadOfClient, []any{k.ID, string(k.Client)}
		err := eachRow(func(scan scanner) error {
			var n int64
			err := scan(&n)
			number = append(number, n)
			return err
		}, func() (*sql.Rows, error) { return w.conn.QueryContext(context.Background(), text, args...) })
		if err != nil {
			return w.store.care.handleError(err)
		}
		if len(number) == 0 {
			return thread.ErrNotFound
		}
		return w.transact(func() error {
			rows, _, err := w.rows(w.stmts.threadByNumber, number[0])
			if err != nil || len(rows) == 0 {
				return err
			}
			change, ended, err := w.ledger.End(rows[0], now)
			if err != nil || !ended {
				return err
			}
			return w.Write(ledger.Changes{Threads: []ledger.Change{change}})
		})
	})
}
