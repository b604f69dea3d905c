package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"time"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// logLimit returns how many pages the write-ahead log may grow before it is copied. The log at its longest is
// forceFactor times as long and must fit into the reserve.
func logLimit(reserve int64) int64 { return min(max(reserve/pageSize/forceFactor, 16), maxLogLimit) }

// maxLogLimit keeps the log short, but leaves room for the largest group. A log that is overwritten is faster than one
// that grows, because its file system need not find new room.
const maxLogLimit = ledger.MaxGroup * postPages

// maintain grows the reserve towards its target and sets the database's size limit from the free disk space.
func (c *care) maintain() error {
	target, err := c.reserve.target()
	if err != nil {
		return err
	}
	have, err := fileSize(c.reserve.path)
	if err != nil {
		return err
	}
	c.logLimit.Store(logLimit(target))
	var grown error
	if have < target {
		grown = c.handleError(c.reserve.grow(min(target, have+reserveStep)))
		if grown != nil && !errors.Is(grown, errBusy) { // errBusy: set the limit now; the next tick retries
			return grown
		}
	}
	err = c.task(context.Background(), func(w *writer) error {
		_, err := w.limitSize(target)
		return err
	})
	return cmp.Or(err, grown)
}

// minFreePages is how many free pages are enough room on a small disk. A message of any size must fit, with all the
// pages that it changes.
const minFreePages = 64

// limitSize sets the largest number of pages of the database. The number follows from Options.MaxBytes and from the
// space that the disk has left once the reserve has its full size and the write-ahead log its greatest length. So the
// database itself never fills the disk. The limit leaves room to merge what is not merged: at most two batches, with about
// 500 bytes in all indexes for a REQUEST, in pages that are not full. enough reports whether there is room for a while,
// in free pages or in new pages.
func (w *writer) limitSize(reserve int64) (enough bool, err error) {
	c := &w.store.care
	count, free, err := w.pageCounts()
	if err != nil {
		return false, err
	}
	limit, log := c.maxBytes/pageSize, c.logLimit.Load()
	if room, known := diskRoom(filepath.Dir(c.path)); known {
		var sizes [3]int64
		for i, suffix := range []string{"", "-wal", ".reserve"} {
			if sizes[i], err = fileSize(c.path + suffix); err != nil {
				return false, err
			}
		}
		room -= count*pageSize - sizes[0]                     // database growth that is still in the log
		room -= max(0, (forceFactor+1)*log*pageSize-sizes[1]) // the log at its longest, plus one group
		room -= max(0, reserve-sizes[2])
		limit = min(limit, count+max(0, room)/pageSize)
	}
	w.batch = min(mergeEvents, max(minSlice, limit/16))
	w.mergeRoom = 2 * w.batch / 3
	limit = max(1, limit-w.mergeRoom)
	if err := w.setMaxPages(limit); err != nil {
		return false, err
	}
	w.maxPages = limit
	w.noteRoom(count, free)
	return w.sparePages(count, free) >= 0, nil
}

// pageCounts returns how many pages the database has, and how many of them are free.
func (w *writer) pageCounts() (all, free int64, err error) {
	ctx := context.Background()
	if err = w.conn.QueryRowContext(ctx, "PRAGMA page_count").Scan(&all); err == nil {
		err = w.conn.QueryRowContext(ctx, "PRAGMA freelist_count").Scan(&free)
	}
	return all, free, w.store.care.handleError(err)
}

// sparePages returns how many more pages the database may use, free or new, and still have room for a while. The result
// is negative if there is already too little room.
func (w *writer) sparePages(all, free int64) int64 {
	return w.maxPages - all + free - max(min(w.maxPages/16, w.store.care.logLimit.Load()), minFreePages)
}

// makeRoom purges what is due at now on a full disk. If there is enough room afterwards, the store accepts messages
// again. Errors: errDiskFull while there is too little room.
func (c *care) makeRoom(now time.Time) error {
	err := c.purge(now)
	if errors.Is(err, errDiskFull) {
		if err := c.reserve.release(); err != nil {
			return err
		}
		err = c.purge(now)
	}
	if err == nil {
		err = c.reserve.restore()
	}
	if err != nil {
		return c.handleError(err)
	}
	stands, err := fileSize(c.reserve.path)
	if err != nil {
		return err
	}
	c.logLimit.Store(logLimit(stands))
	enough := false
	err = c.task(context.Background(), func(w *writer) (err error) {
		enough, err = w.limitSize(stands)
		return err
	})
	if err != nil {
		return err
	}
	if enough && c.transition(diskFull, accepting) {
		c.log.Info("there is room on the disk again; messages are accepted")
	}
	return c.refusal()
}

// purge removes events past their forget time, cuts the bodies of expired events, and removes records of ended threads.
// It works in small transactions, so that the write-ahead log fits into the reserve. Each transaction is copied into
// the database before the next one. purge ends early when the store is closed.
func (c *care) purge(now time.Time) error {
	for again := true; again; {
		err := c.task(context.Background(), func(w *writer) (err error) {
			again, err = w.purge(now)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// cutRows is how many events one call of care.purge scans for bodies to cut, and how many threads for records to
// remove. The next call continues behind them.
const cutRows = 10_000

// trim removes the records of threads that have ended, whose envelopes have expired, and that have no events left. It
// does not wait for the end of their retention. again reports that there are more threads to scan.
func (w *writer) trim(now time.Time, rows int64) (again bool, err error) {
	var found []ledger.Row
	var scanned int64
	err = eachRow(func(scan scanner) error {
		row, err := scanThread(scan)
		scanned, w.trimAfter = scanned+1, row.Number
		if len(row.Record) > 0 && !w.store.tail.hasThread(row.Number) { // empty if the thread has merged events
			found = append(found, row)
		}
		return err
	}, func() (*sql.Rows, error) { return w.stmts.trimmable.Query(w.trimAfter, rows) })
	for _, row := range found {
		var removal ledger.Removal
		var ended bool
		if err == nil {
			removal, ended, err = w.ledger.HasEnded(row, now)
		}
		if ended && err == nil {
			err = w.removeThread(removal)
		}
	}
	w.trimScanned += scanned
	if again = scanned == rows && err == nil && w.trimScanned < cutRows; !again {
		w.trimScanned = 0
	}
	if scanned < rows || err != nil {
		w.trimAfter = 0
	}
	return again, err
}

// purge runs one transaction of care.purge.
func (w *writer) purge(now time.Time) (again bool, err error) {
	if _, err := w.truncateLog(); err != nil {
		return false, w.store.care.handleError(err)
	}
	limit := w.store.care.logLimit.Load()
	err = w.transact(func() (err error) {
		if again, err = w.mergeAny(int(max(1, limit))); again || err != nil {
			return err
		}
		affected := parties{}
		removed, _, err := w.drop(now, max(1, limit/eventPages), affected)
		if err == nil {
			err = w.removeParties(affected)
		}
		if again = removed > 0; again || err != nil {
			return err
		}
		if again, err = w.cut(now, max(1, limit/eventPages)); again || err != nil {
			return err
		}
		again, err = w.trim(now, max(1, limit/eventPages))
		return err
	})
	if err != nil {
		return false, err
	}
	if done, err := w.truncateLog(); err != nil || !done {
		return false, w.store.care.handleError(err)
	}
	return again, nil
}

// cut empties the bodies of expired events whose ids must still be remembered. It sets their expires column to 0, so
// that they are not delivered if the clock is set back. again reports that there are more events to scan.
func (w *writer) cut(now time.Time, rows int64) (again bool, err error) {
	var found []bareEvent
	var n int64
	after, seq := max(w.cutForget, nanos(now)), w.cutSeq
	err = eachRow(func(scan scanner) error {
		var r bareEvent
		var expired bool
		err := scan(append(r.columns(), &expired)...)
		n, w.cutForget, w.cutSeq = n+1, r.forget, int64(r.seq)
		if expired {
			found = append(found, r)
		}
		return err
	}, func() (*sql.Rows, error) {
		return w.stmts.cuttable.Query(nanos(now), after, seq, nanos(now.Add(w.store.policy.Window.Memory)), rows)
	})
	for _, r := range found {
		if err == nil {
			_, err = w.stmts.dropEvent.Exec(r.seq)
		}
	}
	if err == nil {
		err = w.addBare(found, 0)
	}
	w.cutScanned += n
	if again = n == rows && err == nil && w.cutScanned < cutRows; !again {
		w.cutScanned = 0
	}
	if n < rows || err != nil {
		w.cutForget, w.cutSeq = 0, 0
	}
	return again, err
}

// bareEvent is an event whose body is removed. Its row is deleted and inserted again, because SQLite does not free a page
// whose rows only became shorter.
type bareEvent struct {
	seq                                             relay.Seq
	sender, recipient, thread, ts, received, forget int64
	id, kind                                        string
	leaf                                            sql.NullInt64
}

// bareColumns are the columns of a bareEvent.
const bareColumns = "seq, sender, id, recipient, type, thread, ts, received, forget, leaf"

func (e *bareEvent) columns() []any {
	return []any{&e.seq, &e.sender, &e.id, &e.recipient, &e.kind, &e.thread, &e.ts, &e.received, &e.forget, &e.leaf}
}

// addBare inserts events without their bodies, and without the salts of their leaves: without the salt, nobody can tell
// what a leaf stands for. The rows that they had are deleted.
func (w *writer) addBare(all []bareEvent, expires int64) error {
	seqs := make([]int64, len(all))
	for i, e := range all {
		if _, err := w.stmts.addBare.Exec(e.seq, e.sender, e.id, e.recipient, e.kind, e.thread, e.ts, e.received, e.forget,
			e.leaf, expires); err != nil {
			return err
		}
		seqs[i] = int64(e.seq)
	}
	return w.reindex(seqs)
}
