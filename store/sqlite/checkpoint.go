package sqlite

import (
	"context"
	"database/sql"
)

const pageSize = 4096 // SQLite's default

// eventPages is how many pages an event changes at most, its body aside: of its table and its five indexes, of its
// thread's three, of its parties' two, with a share of the splits.
const eventPages = 12

// pages returns how many pages j changes at most, or about how many if it is an update.
func (j job) pages() int {
	if j.update != nil {
		return updatePages
	}
	return eventPages + len(j.entry.Envelope.Canonical())/pageSize
}

// The write-ahead log is copied into the database in the background whenever it has grown by care.logLimit pages. It
// begins again at its start when all of it was copied and nobody reads it. Neither happens under load, so the writer
// makes it begin again once it is four times as long.
const forceAt = 4

// copyLog copies what the log holds into the database. It has a connection of its own, so the writer goes on meanwhile.
// A database that failed is left as it is.
func (c *care) copyLog() {
	if state(c.state.Load()) == diskFailed {
		return
	}
	_, err := c.db.ExecContext(context.Background(), "PRAGMA wal_checkpoint(PASSIVE)")
	_ = c.failed(err) // which logs it
}

// watchLog is called after a commit that changed so many pages at most.
func (w *writer) watchLog(changed int) error {
	limit := int(w.store.care.logLimit.Load())
	if w.unseen += changed; w.unseen < limit/4 {
		return nil
	}
	w.unseen = 0
	_, length, copied, err := w.checkpoint(w.stmts.lookAtLog)
	if err != nil {
		return err
	}
	if length < w.forced {
		w.forced = 0 // it has begun again
	}
	switch {
	case length >= forceAt*limit && length >= w.forced+limit:
		// Where someone reads for long this fails after the busy timeout, and is tried again that much later.
		w.forced = length
		_, _, _, err = w.checkpoint(w.stmts.restartLog)
	case length >= copied+limit:
		select {
		case w.store.care.logGrown <- struct{}{}:
		default: // it has been asked for
		}
	}
	return err
}

// truncateLog copies all of the log and leaves its file empty. done is false if a reader was in the way. copyLog never
// is: both are done for care's one goroutine.
func (w *writer) truncateLog() (done bool, err error) {
	busy, _, _, err := w.checkpoint(w.stmts.truncateLog)
	return !busy, err
}

// checkpoint runs one of the statements for it and returns how many pages the log holds and how many of them are copied.
func (w *writer) checkpoint(stmt *sql.Stmt) (busy bool, length, copied int, err error) {
	err = stmt.QueryRowContext(context.Background()).Scan(&busy, &length, &copied)
	return busy, length, copied, err
}
