package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strconv"
	"time"

	"github.com/agora-relay/agora/store/ledger"
)

// logLimit returns how many pages the write-ahead log may grow by before it is copied: so few that, with forceAt, all
// of it fits the reserve.
func logLimit(reserve int64) int64 { return min(max(reserve/pageSize/forceAt, 16), 10_000) }

// upkeep makes the reserve as large as it is to be and the database's limit what the disk allows.
func (c *care) upkeep() error {
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
		grown = c.failed(c.reserve.grow(min(target, have+reserveStep)))
		if grown != nil && !errors.Is(grown, errBusy) { // busy: the next tick tries again, the limit is set all the same
			return grown
		}
	}
	err = c.task(context.Background(), func(w *writer) error {
		_, err := w.limitSize(target)
		return err
	})
	return cmp.Or(err, grown)
}

// leastRoom is how many pages make room enough on a small disk: one message of any size has to fit, with what it changes.
const leastRoom = 64

// limitSize sets how many pages the database may have: by Options.MaxBytes, and by what the disk has left once the
// reserve stands and the write-ahead log is as long as it gets. So the database itself never fills the disk.
// enough says that there is room for a while, in free pages or in new ones.
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
		room -= count*pageSize - sizes[0]                 // growth that is in the log still
		room -= max(0, (forceAt+1)*log*pageSize-sizes[1]) // the log at its longest, and a group
		room -= max(0, reserve-sizes[2])
		limit = min(limit, count+max(0, room)/pageSize)
	}
	var set int64
	err = w.conn.QueryRowContext(context.Background(), "PRAGMA max_page_count = "+strconv.FormatInt(max(limit, 1), 10)).Scan(&set)
	if err != nil {
		return false, c.failed(err)
	}
	w.mostPages = limit
	return w.spare(count, free) >= 0, nil
}

// pageCounts returns how many pages the database has, and how many of them are free.
func (w *writer) pageCounts() (all, free int64, err error) {
	ctx := context.Background()
	if err = w.conn.QueryRowContext(ctx, "PRAGMA page_count").Scan(&all); err == nil {
		err = w.conn.QueryRowContext(ctx, "PRAGMA freelist_count").Scan(&free)
	}
	return all, free, w.store.care.failed(err)
}

// spare returns how many more pages a database may take, free ones or new ones, and still have room for a while;
// negative if it has not.
func (w *writer) spare(all, free int64) int64 {
	return w.mostPages - all + free - max(min(w.mostPages/16, w.store.care.logLimit.Load()), leastRoom)
}

// makeRoom makes room on a full disk, by what is due at now, and takes messages in again if there is enough. Errors:
// errDiskFull while there is not.
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
		return c.failed(err)
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
	if enough && c.move(diskFull, takingIn) {
		c.log.Info("there is room on the disk again; messages are taken in")
	}
	return c.refusal()
}

// purge removes what is forgotten and cuts what has expired. Its transactions are so small that the log stays within
// the reserve, and each is copied into the database before the next. It ends early when the store is closed.
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

// cutRows is how many events one recovery looks at for bodies to cut, and how many threads for records to remove. The
// next recovery goes on behind them.
const cutRows = 10_000

// trim removes records of threads that have ended and have no events left, however long they would be kept otherwise.
// again says that there are more to look at.
func (w *writer) trim(now time.Time, rows int64) (again bool, err error) {
	var found []ledger.Row
	var looked int64
	err = eachRow(func(scan scanner) error {
		row, err := scanThread(scan)
		looked, w.trimAfter = looked+1, row.Number
		if len(row.Record) > 0 { // else it has events
			found = append(found, row)
		}
		return err
	}, func() (*sql.Rows, error) { return w.stmts.trimmable.Query(w.trimAfter, rows) })
	for _, row := range found {
		var gone ledger.Removal
		var ended bool
		if err == nil {
			gone, ended, err = w.ledger.HasEnded(row, now)
		}
		if ended && err == nil {
			err = w.removeThread(gone)
		}
	}
	w.trimLooked += looked
	if again = looked == rows && err == nil && w.trimLooked < cutRows; !again {
		w.trimLooked = 0
	}
	if looked < rows || err != nil {
		w.trimAfter = 0
	}
	return again, err
}

// purge is one transaction of care.purge.
func (w *writer) purge(now time.Time) (again bool, err error) {
	if _, err := w.truncateLog(); err != nil {
		return false, w.store.care.failed(err)
	}
	limit := w.store.care.logLimit.Load()
	err = w.transact(func() (err error) {
		left := parties{}
		removed, _, err := w.drop(now, max(1, limit/eventPages), left)
		if err == nil {
			err = w.removeParties(left)
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
		return false, w.store.care.failed(err)
	}
	return again, nil
}

// cut empties the bodies of events that have expired and whose ids are still remembered. Their time becomes none, so
// that no clock that is set back delivers them. again says that there are more to look at.
func (w *writer) cut(now time.Time, rows int64) (again bool, err error) {
	type row struct {
		seq, sender, recipient, thread, ts, received, forget int64
		id, kind                                             string
	}
	var found []row
	var n int64
	after, seq := max(w.cutForget, nanos(now)), w.cutSeq
	err = eachRow(func(scan scanner) error {
		var r row
		var expired bool
		err := scan(&r.seq, &r.sender, &r.id, &r.recipient, &r.kind, &r.thread, &r.ts, &r.received, &r.forget, &expired)
		n, w.cutForget, w.cutSeq = n+1, r.forget, r.seq
		if expired {
			found = append(found, r)
		}
		return err
	}, func() (*sql.Rows, error) {
		return w.stmts.cuttable.Query(nanos(now), after, seq, nanos(now.Add(w.store.policy.Window.Memory)), rows)
	})
	// Removed and put in again: SQLite gives up no page whose rows only got shorter.
	for _, r := range found {
		if err == nil {
			_, err = w.stmts.dropEvent.Exec(r.seq)
		}
	}
	for _, r := range found {
		if err == nil {
			_, err = w.stmts.addCut.Exec(r.seq, r.sender, r.id, r.recipient, r.kind, r.thread, r.ts, r.received, r.forget)
		}
	}
	w.cutLooked += n
	if again = n == rows && err == nil && w.cutLooked < cutRows; !again {
		w.cutLooked = 0
	}
	if n < rows || err != nil {
		w.cutForget, w.cutSeq = 0, 0
	}
	return again, err
}
