package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

// Stats are figures of a database for an operator.
type Stats struct {
	// Threads is the number of stored threads in each state, in which they were written last. It has every state.
	Threads       map[thread.State]int64
	DatabaseBytes int64 // size of the tables and indexes in the schema of the relay
}

// Stats returns figures of the database. Its time grows with the number of threads, because it reads one index to its
// end. Errors: those of Read.
func (s *Store) Stats(ctx context.Context) (stats Stats, err error) {
	stats.Threads = map[thread.State]int64{}
	for _, state := range ledger.States() {
		stats.Threads[state] = 0
	}
	err = s.reading(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		batch := &pgx.Batch{}
		batch.Queue("SELECT state, count(*) FROM thread GROUP BY state").Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var state, n int64
				if err := rows.Scan(&state, &n); err != nil {
					return err
				}
				stats.Threads[ledger.StateOf(state)] = n
			}
			return nil
		})
		batch.Queue("SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class " +
			"WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'").QueryRow(func(row pgx.Row) error {
			return row.Scan(&stats.DatabaseBytes)
		})
		return conn.SendBatch(ctx, batch).Close()
	})
	return stats, err
}
