package postgres

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// expireRows is how many rows of a table one transaction of Expire removes. It keeps the transaction short, because
// posts wait for it.
const expireRows = 1000

// expireSpans is in how many spans one transaction of Expire looks for threads that are due.
const expireSpans = 16

// Expire implements relay.Store. Only the node with the lease does something. Refusals: CodeUnavailable while nothing
// can be stored, also at the other nodes, whose health this shows.
func (s *Store) Expire(ctx context.Context, now time.Time, notices relay.Notices) error {
	if err := s.refusal(); err != nil {
		return err
	}
	if s.unreachable.Load() {
		return errUnreachable
	}
	if !s.Leads() {
		return s.task(ctx, func(w *writer) error { return w.ledger.CheckClock(s.options.Now()) })
	}
	for again := true; again && ctx.Err() == nil; {
		if err := s.task(ctx, func(w *writer) (err error) {
			again, err = w.expire(now, notices)
			return err
		}); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := s.sweepShared(ctx, now); err != nil {
		return err
	}
	return s.task(ctx, func(w *writer) error {
		return errors.Join(s.sweepPartitions(w, now), w.ledger.CheckClock(s.options.Now()))
	})
}

// expire does part of the work that is due at now. again reports that more may be due.
func (w *writer) expire(now time.Time, notices relay.Notices) (again bool, err error) {
	var posted []relay.Posted
	err = w.transact(func() error {
		due, err := w.due(now)
		if err != nil {
			return err
		}
		var done int
		if done, posted, err = w.ledger.Expire(w, due, now, notices, math.MaxInt64); err != nil {
			return err
		}
		again = done < len(due) || len(due) == ledger.ExpireThreads
		w.batch.Queue(delaySpans, nanos(now), expireSpans).Exec(func(t pgconn.CommandTag) error {
			again = again || t.RowsAffected() == expireSpans
			return nil
		})
		dropped, err := w.forget(now)
		again = again || dropped
		return err
	})
	if err == nil {
		w.store.acknowledge(w.last, posted)
		w.store.committed(w.after, w.last, posted)
	}
	return again, err
}

// due returns threads whose time has come.
func (w *writer) due(now time.Time) (due []ledger.Row, err error) {
	w.begin()
	size := 0
	w.batch.Queue(dueThreads, nanos(now), expireSpans, ledger.ExpireThreads).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			_, row, err := scanRow(rows.Scan)
			if err != nil {
				return err
			}
			// The first rows may be large, then fewer are enough. The next call continues.
			if size += len(row.Record); size <= 8*ledger.MaxRecordBytes || len(due) == 0 {
				due = append(due, row)
			}
		}
		return nil
	})
	return due, w.flush()
}

// forget removes ids whose time has come at now, in spans where it has come for all of them, and manifests that have
// expired. It moves head.swept, so that the events that are due, and their ids, count as removed. more reports that
// further rows may be due.
func (w *writer) forget(now time.Time) (more bool, err error) {
	var spans, manifests int64
	w.batch.Queue(forgetSpans, nanos(now), expireRows/spanSize).Exec(func(t pgconn.CommandTag) error {
		spans = t.RowsAffected()
		return nil
	})
	w.batch.Queue("WITH gone AS (DELETE FROM manifest m USING (SELECT n FROM manifest WHERE expires <= $1 "+
		"ORDER BY expires LIMIT $2) k WHERE m.n = k.n RETURNING m.sender), "+
		"forgotten AS (DELETE FROM agent a USING (SELECT DISTINCT sender FROM gone) g WHERE a.did = g.sender AND "+
		"(SELECT count(*) FROM manifest m WHERE m.sender = g.sender) = (SELECT count(*) FROM gone WHERE sender = g.sender)) "+
		"SELECT count(*) FROM gone", nanos(now), expireRows).QueryRow(func(row pgx.Row) error { return row.Scan(&manifests) })
	w.batch.Queue(dropParties, w.swept, expireRows, later(w.swept, keptLonger))
	w.dropTiles(w.store.policy.LeavesUntil(now))
	if err := w.flush(); err != nil {
		return false, err
	}
	if more = spans == expireRows/spanSize || manifests == expireRows; !more {
		w.batch.Queue("UPDATE head SET swept = $1 WHERE swept < $1", nanos(now))
	}
	return more, nil
}

// sweeper has what the sweep of partitions remembers. Only the committer uses it after Open.
type sweeper struct {
	size   int64     // head.partition
	ready  int64     // partitions up to this number exist
	lookAt time.Time // when the sweep has looked for due partitions last
}

// Partitions.
const (
	aheadPartitions = 2           // how many empty partitions are ready
	partitionsEvery = time.Minute // how often the sweep looks for partitions whose events are all due
	dropWithin      = time.Hour   // events stay in a partition that will be dropped within this time
	maxRowsPerSweep = 20_000      // rows that one sweep removes from a partition that stays
)

// ensurePartitions creates the partition of the next event, and some after it, unless they exist.
func (s *Store) ensurePartitions(ctx context.Context, conn *pgx.Conn, last relay.Seq) error {
	next := (int64(last) + 1) / s.sweeper.size
	if s.sweeper.ready >= next+aheadPartitions {
		return nil
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// The lock keeps other nodes from creating the same partitions.
		if _, err := tx.Exec(ctx, "SELECT 1 FROM head FOR UPDATE"); err != nil {
			return err
		}
		for n := next; n <= next+aheadPartitions; n++ {
			if _, err := tx.Exec(ctx, addPartition, n); err != nil {
				return err
			}
		}
		s.sweeper.ready = next + aheadPartitions
		return nil
	})
}

const addPartition = "SELECT event_partition_add($1)"

// partition is a partition of the table event.
type partition struct {
	number int64
	forget *int64 // the latest forget of its events whose ids are remembered; nil: there are none
}

// sweepPartitions drops the partitions whose events are all due, and removes due events from partitions that stay.
func (s *Store) sweepPartitions(w *writer, now time.Time) error {
	if w.conn == nil {
		return errUnreachable
	}
	ctx, cancel := context.WithTimeout(s.patience, groupTime)
	defer cancel()
	err := s.ensurePartitions(ctx, w.conn, s.tail.position())
	if err == nil && (now.Sub(s.sweeper.lookAt).Abs() >= partitionsEvery) {
		if err = s.dropPartitions(ctx, w.conn, now); err == nil {
			s.sweeper.lookAt = now
		}
	}
	if err != nil && w.conn.IsClosed() {
		w.lost(err)
		return errUnreachable
	}
	return err
}

func (s *Store) dropPartitions(ctx context.Context, conn *pgx.Conn, now time.Time) error {
	h, err := readHead(ctx, conn)
	if err != nil {
		return err
	}
	most := int64(h.last)/h.partition - 1
	all, err := s.partitionsUpTo(ctx, conn, most)
	if err != nil {
		return err
	}
	oldest := most + 1
	if len(all) > 0 {
		oldest = all[0].number
	}
	if _, err := conn.Exec(ctx, dropSpans, oldest*h.partition, maxRowsPerSweep); err != nil {
		return err
	}
	for _, p := range all {
		switch {
		case p.forget == nil:
			err = s.dropPartition(ctx, conn, p.number)
		case *p.forget > nanos(now.Add(dropWithin)):
			err = s.removeRows(ctx, conn, p.number, h.swept)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// partitionsUpTo returns the partitions with numbers up to the given one. The one with the next event is never dropped.
func (s *Store) partitionsUpTo(ctx context.Context, conn *pgx.Conn, most int64) (all []partition, err error) {
	rows, err := conn.Query(ctx, "SELECT substr(relname, 8)::bigint FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid "+
		"WHERE i.inhparent = 'event'::regclass AND relname ~ '^event_p[0-9]+$' ORDER BY 1")
	if err != nil {
		return nil, err
	}
	numbers, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	for _, n := range numbers {
		if n > most || err != nil {
			break
		}
		p := partition{number: n}
		err = conn.QueryRow(ctx, forgetOfPartition, n, s.sweeper.size).Scan(&p.forget)
		all = append(all, p)
	}
	return all, err
}

// dropPartition drops a partition. If a long read keeps it busy, the partition stays until the next attempt. Otherwise
// the drop would wait, and all later reads behind it.
func (s *Store) dropPartition(ctx context.Context, conn *pgx.Conn, number int64) error {
	_, err := conn.Exec(ctx, "SET lock_timeout = '200ms'")
	if err == nil {
		if _, err = conn.Exec(ctx, "SELECT event_partition_drop($1)", number); isBusy(err) {
			err = nil
		}
		_, failed := conn.Exec(ctx, "SET lock_timeout = 0")
		err = errors.Join(err, failed)
	}
	return err
}

// removeRows removes due events from a partition that stays because of others.
func (s *Store) removeRows(ctx context.Context, conn *pgx.Conn, number, swept int64) error {
	const spans = expireRows / spanSize
	for removed := 0; removed < maxRowsPerSweep; removed += expireRows {
		tag, err := conn.Exec(ctx, removeDue, number, s.sweeper.size, swept, spans)
		if err != nil || tag.RowsAffected() < spans {
			return err
		}
	}
	return nil
}
