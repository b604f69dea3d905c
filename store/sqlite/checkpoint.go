package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"modernc.org/sqlite"

	"github.com/agora-relay/agora/store/ledger"
)

const pageSize = 4096 // SQLite's default

// postPages is how many pages storing one event changes at most, apart from its body: 3 for its row, its thread and the
// thread's state, 2 for its parties, 2 as a share of a merge, and 1 as a share of page splits.
const postPages = 8

// eventPages is how many pages removing one event, or changing it, changes at most: 7 for the table event and its six
// indexes, 3 for its thread, and 2 for its parties.
const eventPages = 12

// pages returns how many pages j changes at most, without the jobs in More. For an update it returns an estimate.
func pages(j ledger.Job) int {
	if j.Update != nil {
		return updatePages
	}
	return postPages + len(j.Entry.Envelope.Canonical())/pageSize
}

// pagesOf returns how many pages jobs change at most.
func pagesOf(jobs []ledger.Job) (n int) {
	for _, j := range jobs {
		n += pages(j)
	}
	return n
}

// forceFactor times care.logLimit is the length at which the writer forces the write-ahead log to restart at the
// beginning of its file. care copies the log into the database whenever the log has grown by care.logLimit pages.
// SQLite restarts the log by itself once all of it is copied and no reader uses it, but under load that does not
// happen.
const forceFactor = 4

// copyLog copies the log into the database. It uses its own connection, so the writer continues meanwhile. It does
// nothing in the state diskFailed.
func (c *care) copyLog() {
	if state(c.state.Load()) == diskFailed {
		return
	}
	_, err := c.db.ExecContext(context.Background(), "PRAGMA wal_checkpoint(PASSIVE)")
	_ = c.handleError(err) // handleError logs it
}

// watchLog is called after each commit. changed is how many pages the commit changed at most.
func (w *writer) watchLog(changed int) error {
	limit := int(w.store.care.logLimit.Load())
	if w.uncheckedPages += changed; w.uncheckedPages < limit/4 {
		return nil
	}
	w.uncheckedPages = 0
	_, length, copied, err := w.checkpoint(w.stmts.logStatus)
	if err != nil {
		return err
	}
	if length < w.forcedLength {
		w.forcedLength = 0 // the log was restarted
	}
	switch {
	case length >= forceFactor*limit && length >= w.forcedLength+limit:
		// While a reader holds an old snapshot, the restart fails after the busy timeout. The next attempt is made when
		// the log has grown by limit pages more.
		w.forcedLength = length
		_, _, _, err = w.checkpoint(w.stmts.restartLog)
	case length >= copied+limit:
		select {
		case w.store.care.logGrown <- struct{}{}:
		default: // a copy was requested before
		}
	}
	return err
}

// truncateLog copies the whole log and truncates its file. done is false if a reader was in the way. copyLog is never
// in the way, because care's goroutine runs both.
func (w *writer) truncateLog() (done bool, err error) {
	busy, _, _, err := w.checkpoint(w.stmts.truncateLog)
	return !busy, err
}

// checkpoint runs a checkpoint statement. It returns how many pages the log holds and how many of them are copied.
func (w *writer) checkpoint(stmt *sql.Stmt) (busy bool, length, copied int, err error) {
	err = stmt.QueryRowContext(context.Background()).Scan(&busy, &length, &copied)
	return busy, length, copied, err
}

// rewriteLog writes the write-ahead log of the database at path again, as it is, and syncs it. No relay has the database
// open. After a failed sync, the kernel may show pages of the log that are not on the disk, and never write them. If the
// relay copied such pages into the database, and the power failed meanwhile, the log could not repair the database.
// Pages that are written again are dirty, so the kernel writes them. size is the size of the log in bytes; 0: there is
// no log.
func rewriteLog(path string) (size int64, err error) {
	file, err := os.OpenFile(path+"-wal", os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	for part := make([]byte, 1<<20); ; {
		n, err := file.ReadAt(part, size)
		if err != nil && err != io.EOF {
			return 0, err
		}
		if n == 0 {
			break
		}
		if _, err := file.WriteAt(part[:n], size); err != nil {
			return 0, err
		}
		size += int64(n)
	}
	if size == 0 {
		return 0, nil
	}
	return size, file.Sync()
}

// keepLog lets db, the pool that is closed last, leave the write-ahead log as it is. Without it, the last connection
// copies the rest of the log into the database and deletes the log. That loses events after a failed sync: if a reader
// cuts a checkpoint short, SQLite copies some pages, does not sync them, and never copies them again. The failed sync may
// have dropped those pages. The next Open copies the whole log.
func keepLog(ctx context.Context, db *sql.DB) error {
	return onAll(ctx, db, writers, func(conn *sql.Conn) error {
		// With a limit, the log would not be deleted, but emptied.
		if _, err := conn.ExecContext(ctx, "PRAGMA journal_size_limit = -1"); err != nil {
			return err
		}
		return conn.Raw(func(driver any) error {
			control, ok := driver.(sqlite.FileControl)
			if !ok {
				return fmt.Errorf("%T has no file controls", driver)
			}
			_, err := control.FileControlPersistWAL("main", 1)
			return err
		})
	})
}

// onAll opens n connections of db at the same time, calls f with each, and returns them to the pool.
func onAll(ctx context.Context, db *sql.DB, n int, f func(*sql.Conn) error) (err error) {
	for range n {
		conn, failed := db.Conn(ctx)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
		if err := f(conn); err != nil {
			return err
		}
	}
	return nil
}
