package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/sqlite/internal/dbfile"
	"github.com/agora-relay/agora/thread"
)

// Measure returns what the database at path holds at now. A store may have the database open. It reads all of the
// database, and takes a second for about a gigabyte.
func Measure(ctx context.Context, path string, now time.Time) (u ledger.Usage, err error) {
	err = readOnly(ctx, path, func(db *sql.DB) error {
		u, err = measure(ctx, db, now)
		return err
	})
	if err != nil {
		return ledger.Usage{}, err
	}
	if u.DatabaseBytes, err = fileSize(path); err != nil {
		return ledger.Usage{}, err
	}
	u.LogBytes, err = fileSize(path + "-wal")
	return u, err
}

// readOnly opens a database for reading, calls f, and closes it.
func readOnly(ctx context.Context, path string, f func(db *sql.DB) error) error {
	db, err := dbfile.OpenReadOnly(path)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	if err := errors.Join(f(db), db.Close()); err != nil {
		return dbfile.WithPath(ctx, path, err)
	}
	return nil
}

func measure(ctx context.Context, db *sql.DB, now time.Time) (u ledger.Usage, err error) {
	at := nanos(now)
	var oldest, newest sql.NullInt64
	row := db.QueryRowContext(ctx, "SELECT count(*) FILTER (WHERE expires > ?1), "+
		"count(*) FILTER (WHERE expires BETWEEN 0 AND ?1), count(*) FILTER (WHERE expires < 0), ifnull(sum(length(body)), 0), "+
		"count(*) FILTER (WHERE received > ?2), count(*) FILTER (WHERE received > ?3), "+
		"min(received) FILTER (WHERE expires > ?1), max(received) FILTER (WHERE expires > ?1) FROM event",
		at, nanos(now.Add(-time.Hour)), nanos(now.Add(-24*time.Hour)))
	if err := row.Scan(&u.Events, &u.Expired, &u.Removed, &u.BodyBytes, &u.LastHour, &u.LastDay, &oldest, &newest); err != nil {
		return u, err
	}
	u.Oldest, u.Newest = maybeInstant(oldest), maybeInstant(newest)
	u.Types = []ledger.TypeUsage{}
	err = eachRow(func(scan scanner) error {
		var t ledger.TypeUsage
		err := scan(&t.Type, &t.Events, &t.Bytes)
		u.Types = append(u.Types, t)
		return err
	}, func() (*sql.Rows, error) {
		return db.QueryContext(ctx, "SELECT type, count(*), sum(length(body)) FROM event WHERE expires > ? GROUP BY type ORDER BY type", at)
	})
	if err != nil {
		return u, err
	}
	u.Threads = map[thread.State]int64{}
	for _, state := range ledger.States() {
		u.Threads[state] = 0
	}
	err = eachRow(func(scan scanner) error {
		var state, n int64
		err := scan(&state, &n)
		u.Threads[ledger.StateOf(state)] = n
		return err
	}, func() (*sql.Rows, error) {
		return db.QueryContext(ctx, "SELECT state, count(*) FROM thread GROUP BY state")
	})
	if err != nil {
		return u, err
	}
	err = db.QueryRowContext(ctx, "SELECT (SELECT count(DISTINCT sender) FROM manifest WHERE expires > ?), "+
		"(SELECT count(*) FROM party), freelist_count * page_size FROM pragma_freelist_count, pragma_page_size", at).
		Scan(&u.Agents, &u.Identities, &u.FreeBytes)
	if err != nil {
		return u, err
	}
	_, u.Seq, err = epochAndHead(ctx, db)
	return u, err
}

func maybeInstant(nanos sql.NullInt64) *time.Time {
	if !nanos.Valid {
		return nil
	}
	t := instant(nanos.Int64).UTC()
	return &t
}

// Top returns the identities with the most messages at now, or with the most bytes. Like Measure, it reads all of the
// database.
func Top(ctx context.Context, path string, by ledger.Ranking, bytes bool, limit int, now time.Time) (top []ledger.Ranked, err error) {
	column, order := "sender", "2"
	if by == ledger.ByInbox {
		column = "recipient"
	}
	if bytes {
		order = "3"
	}
	top = []ledger.Ranked{}
	err = readOnly(ctx, path, func(db *sql.DB) error {
		return eachRow(func(scan scanner) error {
			var r ledger.Ranked
			err := scan(&r.DID, &r.Events, &r.Bytes, &r.Unasked)
			if by == ledger.BySender {
				r.Unasked = 0
			}
			top = append(top, r)
			return err
		}, func() (*sql.Rows, error) {
			return db.QueryContext(ctx, "SELECT p.did, n, size, unasked FROM (SELECT "+column+" AS who, count(*) AS n, "+
				"sum(length(body)) AS size, count(*) FILTER (WHERE charged > 0) AS unasked FROM event WHERE expires > ? AND "+column+
				" <> 0 GROUP BY "+column+" ORDER BY "+order+" DESC, 1 LIMIT ?) JOIN party p ON p.id = who ORDER BY "+order+" DESC, 1",
				nanos(now), limit)
		})
	})
	return top, err
}

// checkpointAttempts is how often Checkpoint tries, because maintenance may be in the way for a moment.
const (
	checkpointAttempts = 4
	checkpointPause    = 50 * time.Millisecond
)

// Checkpoint copies the write-ahead log into the database and truncates its file. done is false if a reader is in the
// way.
func (s *Store) Checkpoint(ctx context.Context) (done bool, err error) {
	for attempt := range checkpointAttempts {
		if attempt > 0 { // while care copies the log, another checkpoint fails at once
			select {
			case <-time.After(checkpointPause):
			case <-ctx.Done():
				return false, ctx.Err()
			}
		}
		err = s.task(ctx, func(w *writer) error {
			done, err = w.truncateLog() // it waits for readers, see writePragmas
			return w.store.care.handleError(err)
		})
		if done || err != nil {
			break
		}
	}
	return done, err
}

// Selection selects events of a database, see Select.
type Selection struct {
	Before time.Time     // only those that arrived before this time
	Type   envelope.Type // only those of this type; empty: all
	Sender didkey.DID    // only those of this sender; empty: all
}

// Select returns the events in the database at path that can be delivered at now. A store may have the database open.
func Select(ctx context.Context, path string, of Selection, now time.Time) (found []relay.Seq, err error) {
	err = readOnly(ctx, path, func(db *sql.DB) error {
		return eachRow(func(scan scanner) error {
			var seq relay.Seq
			err := scan(&seq)
			found = append(found, seq)
			return err
		}, func() (*sql.Rows, error) {
			return db.QueryContext(ctx, "SELECT seq FROM event WHERE received < ?1 AND expires > ?2 AND (?3 = '' OR type = ?3) "+
				"AND (?4 = '' OR sender = (SELECT id FROM party WHERE did = ?4)) ORDER BY seq",
				nanos(of.Before), nanos(now), string(of.Type), string(of.Sender))
		})
	})
	return found, err
}

// Compact removes events whose ids need not be remembered at now, and gives the free space of the database file back to
// the disk. It needs as much free disk space as the file has afterwards, and uses the reserve if there is less. Nothing
// else may use the store meanwhile. before and after are the sizes of the file. Errors: NoRoom.
func (s *Store) Compact(ctx context.Context, now time.Time) (before, after int64, err error) {
	if before, err = fileSize(s.path); err != nil {
		return 0, 0, err
	}
	err = s.urgent(func(run runTask) error {
		for more := true; more; {
			if err := run(func(w *writer) (err error) { more, err = w.compact(now); return err }); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	var needed int64
	err = s.urgent(func(run runTask) error {
		return run(func(w *writer) error {
			all, free, err := w.pageCounts()
			if err != nil {
				return err
			}
			needed = (all - free) * pageSize
			if _, err := w.conn.ExecContext(ctx, "VACUUM"); err != nil {
				return w.store.care.handleError(err)
			}
			_, err = w.truncateLog()
			return w.store.care.handleError(err)
		})
	})
	if errors.Is(err, errNoReserve) {
		return 0, 0, NoRoom{Needed: needed}
	}
	if err != nil {
		return 0, 0, err
	}
	after, err = fileSize(s.path)
	return before, after, err
}

// NoRoom is the error of Compact on a disk with less free space than the database file would have afterwards.
type NoRoom struct{ Needed int64 } // bytes

func (e NoRoom) Error() string {
	return fmt.Sprintf("the disk has not enough room to make the database smaller; that needs %d bytes of free space", e.Needed)
}

// compact calls forget in one transaction.
func (w *writer) compact(now time.Time) (more bool, err error) {
	rows := int64(expireEvents)
	if w.scarce {
		rows = w.store.care.logLimit.Load()/eventPages + 1
	}
	err = w.transact(func() (err error) {
		more, err = w.forget(now, rows)
		return err
	})
	return more, err
}
