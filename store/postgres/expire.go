package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/postgres/schema"
)

// expireRows is how many rows of a table one transaction of Expire removes. It keeps the transaction short, because
// posts wait for it.
const expireRows = 1000

// Expire implements relay.Store. Only the node with the lease does something. Refusals: CodeUnavailable while nothing
// can be stored.
func (s *Store) Expire(ctx context.Context, now time.Time, notices relay.Notices) error {
	if err := s.refusal(); err != nil {
		return err
	}
	if !s.Leads() {
		return nil
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
	return s.task(ctx, func(w *writer) error { return s.sweepPartitions(w, now) })
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
		dropped, err := w.forget(now)
		again = again || dropped
		return err
	})
	if err == nil {
		w.store.committed(w.after, w.last, posted)
	}
	return again, err
}

// due returns threads whose time has come.
func (w *writer) due(now time.Time) (due []ledger.Row, err error) {
	w.begin()
	size := 0
	w.batch.Queue("SELECT 1::bigint, "+threadColumns+" FROM thread t WHERE t.due <= $1 ORDER BY t.due LIMIT $2",
		nanos(now), ledger.ExpireThreads).Query(func(rows pgx.Rows) error {
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

// forget removes ids whose time has come at now, and manifests that have expired. It moves head.swept, so that the
// events with these ids count as removed. more reports that further rows may be due.
func (w *writer) forget(now time.Time) (more bool, err error) {
	var ids, manifests int64
	count := func(n *int64) func(pgx.Row) error { return func(row pgx.Row) error { return row.Scan(n) } }
	w.batch.Queue("WITH gone AS (DELETE FROM message m USING (SELECT sender, id FROM message WHERE forget <= $1 "+
		"ORDER BY forget LIMIT $2) k WHERE m.sender = k.sender AND m.id = k.id RETURNING 1) SELECT count(*) FROM gone",
		nanos(now), expireRows).QueryRow(count(&ids))
	w.batch.Queue("WITH gone AS (DELETE FROM manifest m USING (SELECT n FROM manifest WHERE expires <= $1 "+
		"ORDER BY expires LIMIT $2) k WHERE m.n = k.n RETURNING m.sender), "+
		"forgotten AS (DELETE FROM agent a USING (SELECT DISTINCT sender FROM gone) g WHERE a.did = g.sender AND "+
		"(SELECT count(*) FROM manifest m WHERE m.sender = g.sender) = (SELECT count(*) FROM gone WHERE sender = g.sender)) "+
		"SELECT count(*) FROM gone", nanos(now), expireRows).QueryRow(count(&manifests))
	if err := w.flush(); err != nil {
		return false, err
	}
	if more = ids == expireRows || manifests == expireRows; !more {
		w.batch.Queue("UPDATE head SET swept = $1 WHERE swept < $1", nanos(now))
	}
	return more, nil
}

// sweeper has what the sweep of partitions remembers. Only the committer uses it after Open.
type sweeper struct {
	size    int64     // head.partition
	ready   int64     // partitions up to this number exist
	lookAt  time.Time // when to look for partitions next
	changes int       // partitions that were created or dropped, for tests
}

// Partitions.
const (
	aheadPartitions  = 2           // how many empty partitions are ready
	partitionsEvery  = time.Minute // how often the sweep looks for partitions whose events are all due
	dropWithin       = time.Hour   // events stay in a partition that will be dropped within this time
	maxRowsPerSweep  = 20_000      // rows that one sweep removes from partitions that stay
	partitionRowsOne = 1000        // rows that one statement removes
)

// ensurePartitions creates the partition of the next event, and some after it, unless they exist.
func (s *Store) ensurePartitions(ctx context.Context, conn *pgx.Conn, last relay.Seq) error {
	next := (int64(last) + 1) / s.sweeper.size
	if s.sweeper.ready >= next+aheadPartitions {
		return nil
	}
	space := schema.Space(s.schema)
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1, $2)", int32(schema.LockMigrate), space); err != nil {
			return err
		}
		for n := next; n <= next+aheadPartitions; n++ {
			var exists bool
			name := fmt.Sprintf("event_p%d", n)
			if err := tx.QueryRow(ctx, "SELECT to_regclass(quote_ident(current_schema()) || '.' || $1) IS NOT NULL", name).
				Scan(&exists); err != nil {
				return err
			}
			if exists {
				continue
			}
			from, to := n*s.sweeper.size, (n+1)*s.sweeper.size
			if _, err := tx.Exec(ctx, fmt.Sprintf("CREATE TABLE %s PARTITION OF event FOR VALUES FROM (%d) TO (%d) "+
				"WITH (autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.2)",
				name, from, to)); err != nil {
				return err
			}
			s.sweeper.changes++
		}
		s.sweeper.ready = next + aheadPartitions
		return nil
	})
}

// partition is a partition of the table event.
type partition struct {
	number int64
	forget *int64 // the latest forget of its events; nil: it is empty
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
	all, err := partitionsUpTo(ctx, conn, int64(h.last)/h.partition-1)
	if err != nil {
		return err
	}
	for _, p := range all {
		name := fmt.Sprintf("event_p%d", p.number)
		switch {
		case p.forget == nil || *p.forget <= h.swept:
			if err := dropPartition(ctx, conn, name); err != nil {
				return err
			}
			s.sweeper.changes++
		case *p.forget > nanos(now.Add(dropWithin)):
			if err := removeRows(ctx, conn, name, h.swept); err != nil {
				return err
			}
		}
	}
	return nil
}

// partitionsUpTo returns the partitions with numbers up to the given one. The one with the next event is never dropped.
func partitionsUpTo(ctx context.Context, conn *pgx.Conn, most int64) (all []partition, err error) {
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
		err = conn.QueryRow(ctx, fmt.Sprintf("SELECT max(forget) FROM event_p%d", n)).Scan(&p.forget)
		all = append(all, p)
	}
	return all, err
}

// dropPartition drops a partition. If a long read keeps it busy, the partition stays until the next attempt. Otherwise
// the drop would wait, and all later reads behind it.
func dropPartition(ctx context.Context, conn *pgx.Conn, name string) error {
	_, err := conn.Exec(ctx, "SET lock_timeout = '200ms'")
	if err == nil {
		if _, err = conn.Exec(ctx, "DROP TABLE "+name); isBusy(err) {
			err = nil
		}
		_, failed := conn.Exec(ctx, "SET lock_timeout = 0")
		err = errors.Join(err, failed)
	}
	return err
}

// removeRows removes due events from a partition that stays because of others.
func removeRows(ctx context.Context, conn *pgx.Conn, name string, swept int64) error {
	for removed := int64(0); removed < maxRowsPerSweep; {
		tag, err := conn.Exec(ctx, fmt.Sprintf("DELETE FROM %s WHERE seq = ANY (ARRAY "+
			"(SELECT seq FROM %s WHERE forget <= $1 ORDER BY forget LIMIT $2))", name, name), swept, partitionRowsOne)
		if err != nil || tag.RowsAffected() < partitionRowsOne {
			return err
		}
		removed += tag.RowsAffected()
	}
	return nil
}
