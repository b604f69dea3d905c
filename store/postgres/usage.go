package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/store/ledger"
)

// measureTime limits the time for what reads all of the database.
const measureTime = 10 * time.Minute

// measuring calls f like reading, with more time, and in a transaction that may read whole tables.
func (s *Store) measuring(ctx context.Context, f func(context.Context, pgx.Tx) error) error {
	return s.readingFor(ctx, measureTime, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
			func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "SET LOCAL enable_seqscan = on; SET LOCAL enable_sort = on", pgx.QueryExecModeSimpleProtocol)
				return errors.Join(err, f(ctx, tx))
			})
	})
}

// Measure returns what the database holds at now. It reads all of the database.
func (s *Store) Measure(ctx context.Context, now time.Time) (u ledger.Usage, err error) {
	err = s.measuring(ctx, func(ctx context.Context, tx pgx.Tx) error {
		at, batch := nanos(now), &pgx.Batch{}
		batch.Queue("SELECT count(*) FILTER (WHERE expires > $1), count(*) FILTER (WHERE expires BETWEEN 0 AND $1), "+
			"count(*) FILTER (WHERE expires < 0), coalesce(sum(length(body)), 0), count(*) FILTER (WHERE received > $2), "+
			"count(*) FILTER (WHERE received > $3), min(received) FILTER (WHERE expires > $1), "+
			"max(received) FILTER (WHERE expires > $1) FROM event", at, nanos(now.Add(-time.Hour)),
			nanos(now.Add(-24*time.Hour))).QueryRow(func(row pgx.Row) error {
			var oldest, newest *int64
			err := row.Scan(&u.Events, &u.Expired, &u.Removed, &u.BodyBytes, &u.LastHour, &u.LastDay, &oldest, &newest)
			u.Oldest, u.Newest = maybeInstant(oldest), maybeInstant(newest)
			return err
		})
		batch.Queue("SELECT convert_from(type, 'UTF8'), count(*), sum(length(body)) FROM event WHERE expires > $1 "+
			"GROUP BY type ORDER BY type", at).Query(func(rows pgx.Rows) (err error) {
			u.Types, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ledger.TypeUsage])
			return err
		})
		queueThreads(batch, &u.Threads)
		batch.Queue("SELECT (SELECT count(DISTINCT sender) FROM manifest WHERE expires > $1), "+
			"(SELECT count(*) FROM (SELECT did FROM party WHERE id IN (SELECT sender FROM event UNION SELECT recipient FROM event) "+
			"UNION SELECT client FROM thread UNION SELECT party FROM participant) who), last FROM head", at).
			QueryRow(func(row pgx.Row) error { return row.Scan(&u.Agents, &u.Identities, &u.Seq) })
		queueSize(batch, &u.DatabaseBytes)
		return tx.SendBatch(ctx, batch).Close()
	})
	return u, err
}

func maybeInstant(nanos *int64) *time.Time {
	if nanos == nil {
		return nil
	}
	t := instant(*nanos).UTC()
	return &t
}

// Top returns the identities with the most messages at now, or with the most bytes. It reads all of the database.
func (s *Store) Top(
	ctx context.Context, by ledger.Ranking, bytes bool, limit int, now time.Time,
) (top []ledger.Ranked, err error) {
	column, unasked, order := "sender", "0", "2"
	if by == ledger.ByInbox {
		column, unasked = "recipient", "count(*) FILTER (WHERE charged > 0)"
	}
	if bytes {
		order = "3"
	}
	err = s.measuring(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "SELECT convert_from(p.did, 'UTF8'), e.events, e.bytes, e.unasked FROM (SELECT "+column+" AS id, count(*) AS events, "+
			"sum(length(body)) AS bytes, "+unasked+" AS unasked FROM event WHERE expires > $1 GROUP BY "+column+") e "+
			"JOIN party p ON p.id = e.id ORDER BY "+order+" DESC, 1 LIMIT $2",
			nanos(now), limit)
		if err != nil {
			return err
		}
		top, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ledger.Ranked])
		return err
	})
	return top, err
}

// Checkpoint asks the server to write all changes into the files of its tables now. Errors: CodeInvalidRequest if the
// role may not ask.
func (s *Store) Checkpoint(ctx context.Context) (done bool, err error) {
	err = s.readingFor(ctx, measureTime, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CHECKPOINT")
		return err
	})
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42501" {
		err = envelope.Errorf(envelope.CodeInvalidRequest, "the role of this node may not make checkpoints; "+
			"GRANT pg_checkpoint to it")
	}
	return err == nil, err
}
