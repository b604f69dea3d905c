package postgres

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

// Stats are figures of a database for an operator.
type Stats struct {
	// Threads is the number of stored threads in each state. A thread counts in the state in which it was last written.
	// The map has every state.
	Threads       map[thread.State]int64
	DatabaseBytes int64 // size of the tables and indexes in the schema of the relay
	Servers
}

// Servers are figures of the PostgreSQL servers.
type Servers struct {
	// Standbys is how many standbys stream and may confirm a commit. nil: the role of this node may not see it.
	Standbys *int `json:"standbys"`
	Required int  `json:"standbysRequired"` // for how many of them a commit waits
	// Backup is when the last backup was made, see RecordBackup. nil: none was recorded.
	Backup *time.Time `json:"lastBackup"`
}

// Stats returns figures of the database. Errors: those of Read.
func (s *Store) Stats(ctx context.Context) (stats Stats, err error) {
	err = s.reading(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		batch := &pgx.Batch{}
		queueThreads(batch, &stats.Threads)
		queueSize(batch, &stats.DatabaseBytes)
		queueServers(batch, &stats.Servers)
		return conn.SendBatch(ctx, batch).Close()
	})
	return stats, err
}

// Servers returns figures of the PostgreSQL servers. Errors: those of Read.
func (s *Store) Servers(ctx context.Context) (servers Servers, err error) {
	err = s.reading(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		batch := &pgx.Batch{}
		queueServers(batch, &servers)
		return conn.SendBatch(ctx, batch).Close()
	})
	return servers, err
}

func queueThreads(batch *pgx.Batch, threads *map[thread.State]int64) {
	*threads = map[thread.State]int64{}
	for _, state := range ledger.States() {
		(*threads)[state] = 0
	}
	batch.Queue("SELECT threads FROM head").QueryRow(func(row pgx.Row) error {
		var counts []int64
		err := row.Scan(&counts)
		for state, n := range counts {
			(*threads)[ledger.StateOf(int64(state))] = n
		}
		return err
	})
}

func queueSize(batch *pgx.Batch, bytes *int64) {
	batch.Queue("SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class " +
		"WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'").QueryRow(func(row pgx.Row) error {
		return row.Scan(bytes)
	})
}

func queueServers(batch *pgx.Batch, servers *Servers) {
	// A role without pg_monitor sees a row for each standby, but nothing in it.
	batch.Queue("SELECT count(*) - count(state), count(*) FILTER (WHERE state = 'streaming' AND sync_state <> 'async'), " +
		"current_setting('synchronous_standby_names') FROM pg_stat_replication").QueryRow(func(row pgx.Row) error {
		var hidden, standbys int
		var names string
		if err := row.Scan(&hidden, &standbys, &names); err != nil {
			return err
		}
		if servers.Required = requiredStandbys(names); hidden == 0 {
			servers.Standbys = &standbys
		}
		return nil
	})
	batch.Queue("SELECT value FROM setting WHERE name = $1", backupSetting).QueryRow(func(row pgx.Row) error {
		var value []byte
		if err := row.Scan(&value); err != nil {
			if errors.Is(err, pgx.ErrNoRows) {
				return nil
			}
			return err
		}
		at, err := time.Parse(time.RFC3339, string(value))
		servers.Backup = &at
		return err
	})
}

// standbyCount finds the number in a value of synchronous_standby_names, such as 'ANY 1 (db1, db2)' or '2 (db1, db2)'.
var standbyCount = regexp.MustCompile(`(?i)^\s*(?:(?:ANY|FIRST)\s+)?(\d+)\s*\(`)

// requiredStandbys returns for how many standbys a commit waits if synchronous_standby_names has this value.
func requiredStandbys(names string) int {
	if names == "" {
		return 0
	}
	if found := standbyCount.FindStringSubmatch(names); found != nil {
		if n, err := strconv.Atoi(found[1]); err == nil {
			return n
		}
	}
	return 1 // a list of names alone
}

// backupSetting is the row of the table setting with the time of the last backup.
const backupSetting = "backup"

// RecordBackup records for all nodes that the operator has made a backup at this time, with the tools of PostgreSQL. A
// time before the one that is recorded changes nothing.
func (s *Store) RecordBackup(ctx context.Context, at time.Time) error {
	return s.reading(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		// Times in UTC with the same number of digits sort like texts.
		_, err := conn.Exec(ctx, "INSERT INTO setting (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE "+
			"SET value = greatest(setting.value, excluded.value)", backupSetting, []byte(at.UTC().Format(time.RFC3339)))
		return err
	})
}
