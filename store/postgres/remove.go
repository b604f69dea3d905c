package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

var _ relay.Remover = (*Store)(nil)

// Known implements relay.Remover.
func (s *Store) Known(ctx context.Context, sender didkey.DID, id string) (seq relay.Seq, err error) {
	err = s.showingAll(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		err := conn.QueryRow(ctx, "SELECT m.seq FROM message m JOIN event e ON e.seq = m.seq "+
			"AND e.forget > (SELECT swept FROM head) WHERE m.key = $1", pairKey(sender, id)).Scan(&seq)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return seq, err
}

// The statements of Remove.
const (
	removeEvents = "UPDATE event SET body = '', expires = $2, charged = 0, network = 0, salt = NULL " +
		"WHERE seq = ANY($1) AND expires >= 0 RETURNING seq"
	removeManifests = "DELETE FROM manifest m USING event e JOIN party p ON p.id = e.sender " +
		"WHERE e.seq = ANY($1) AND m.sender = p.did AND m.seq = e.seq"
)

// Remove implements relay.Remover. It does not return before the removal is on a quorum. A poll at another node that has
// begun to deliver an event may still do so. PostgreSQL overwrites a removed body when it vacuums the table, and keeps it
// in the write-ahead log until that file is removed.
func (s *Store) Remove(ctx context.Context, events []relay.Seq, now time.Time) (removed []relay.Seq, err error) {
	if err := s.closed(); err != nil {
		return nil, err
	}
	if len(events) > relay.MaxRemove {
		return nil, fmt.Errorf("%d events are too many for one Remove; the limit is %d", len(events), relay.MaxRemove)
	}
	numbers := make([]int64, len(events))
	for i, seq := range events {
		numbers[i] = int64(seq)
	}
	if err := s.change(ctx, func(w *writer) error {
		removed = nil
		w.ledger.Forget() // the counts of inboxes are taken again
		w.batch.Queue(removeEvents, numbers, -nanos(now)).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var seq relay.Seq
				if err := rows.Scan(&seq); err != nil {
					return err
				}
				removed = append(removed, seq)
			}
			return nil
		})
		w.batch.Queue(removeManifests, numbers)
		return w.flush()
	}); err != nil {
		return nil, err
	}
	s.watchers.Forget(removed)
	return removed, nil
}

// change runs f in a transaction that takes its own number. So a loss of the change is noticed, and no read shows it
// before it is durable.
func (s *Store) change(ctx context.Context, f func(*writer) error) error {
	return s.task(ctx, func(w *writer) error {
		err := w.transact(func() error {
			w.begin()
			if err := w.flush(); err != nil {
				return err
			}
			if err := f(w); err != nil {
				return err
			}
			w.last++
			return nil
		})
		if err == nil {
			w.store.acknowledge(w.last, nil)
			w.store.committed(w.after, w.last, nil)
		}
		return err
	})
}

// EndThread implements relay.Remover.
func (s *Store) EndThread(ctx context.Context, k thread.Key, now time.Time) error {
	if err := s.closed(); err != nil {
		return err
	}
	return s.change(ctx, func(w *writer) error {
		w.ledger.Forget()
		var found ledger.Found
		w.loadThreads([]thread.Key{k}, &found)
		if err := w.flush(); err != nil {
			return err
		}
		if len(found.Threads) == 0 {
			return thread.ErrNotFound
		}
		change, ended, err := w.ledger.End(found.Threads[0], now)
		if err != nil || !ended {
			return err
		}
		return w.Write(ledger.Changes{Threads: []ledger.Change{change}})
	})
}
