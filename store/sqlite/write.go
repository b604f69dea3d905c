package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// writer is the goroutine that writes. No other goroutine uses its fields.
type writer struct {
	sweptLog int64 // see dropTiles
	store    *Store
	conn     *sql.Conn
	stmts    statements

	prepared *preparedConn // conn, for updates
	updater  chan func()   // see startUpdater

	ledger  *ledger.Ledger
	parties map[didkey.DID]int64 // cache of the table party; 0: the DID has no row
	agents  map[int64]struct{}   // parties that have a manifest
	keys    [2][]byte            // buffers of loadKnown
	last    relay.Seq            // number of the last stored event
	begun   relay.Seq            // last, when the open transaction began
	merged  relay.Seq            // number of the last event that is in all indexes
	merge   *merge               // the batch that is being merged; nil: none
	list    []byte               // buffer of fill
	ids     ids                  // which ids need no search in the indexes
	commit  time.Duration        // duration of the last commit

	maxPages  int64 // limit of the database's size, see limitSize
	mergeRoom int64 // pages beyond maxPages that are left for merges
	batch     int64 // events of a merge, unless Options say another number
	scarce    bool  // the disk is full, and the operator changes something, see scarcely

	uncheckedPages int // upper bound of the pages changed since the log's length was last read
	forcedLength   int // length of the write-ahead log, in pages, when it was last restarted

	cutForget, cutSeq int64 // columns of the event where the next search for bodies to cut continues
	cutScanned        int64 // events that this call of care.purge has scanned for bodies to cut
	trimAfter         int64 // number of the thread after which the next search for records to remove continues
	trimScanned       int64 // threads that this call of care.purge has scanned for records to remove
}

// maxParties bounds the cache of parties. A full cache takes about 20 MB.
const maxParties = 200_000

func newWriter(ctx context.Context, s *Store) (*writer, error) {
	w := &writer{store: s, parties: map[didkey.DID]int64{}, agents: map[int64]struct{}{},
		ledger: ledger.New(s.policy), last: relay.Seq(s.head.Load())}
	var err error
	if w.conn, err = s.writeDB.Conn(ctx); err != nil {
		return nil, err
	}
	w.prepared = newPreparedConn(w.conn)
	if err := w.stmts.prepare(ctx, w.conn); err != nil {
		return nil, errors.Join(err, w.close())
	}
	if err := w.load(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// close returns the connection to the pool. It closes the statements first: database/sql does not close the statements
// of a sql.Conn, and SQLite keeps a connection, its files and the write-ahead log while one of its statements is open.
func (w *writer) close() error {
	if w.updater != nil {
		close(w.updater)
	}
	return errors.Join(append(w.stmts.close(), w.prepared.closeStatements(), w.conn.Close())...)
}

// load reads what the writer keeps in memory: the events that are not merged, and the parties that have a manifest.
func (w *writer) load(ctx context.Context) error {
	if err := w.loadTail(ctx); err != nil {
		return err
	}
	return eachRow(func(scan scanner) error {
		var id int64
		err := scan(&id)
		w.agents[id] = struct{}{}
		return err
	}, func() (*sql.Rows, error) { return w.conn.QueryContext(ctx, "SELECT DISTINCT sender FROM manifest") })
}

// run executes jobs until the store is closed. It finishes the group or task it has started. Callers that still wait
// get their error from the queue.
func (w *writer) run() {
	defer close(w.store.stopped)
	w.startUpdater()
	for {
		select {
		case <-w.store.stop:
			// An error of close loses nothing: all acknowledged events are in the write-ahead log.
			_ = w.close()
			return
		case j := <-w.store.queue.Appends:
			// A group ends once its jobs may change care.logLimit pages.
			w.appendGroup(w.store.queue.Group(j, pages, int(w.store.care.logLimit.Load())))
		case j := <-w.store.queue.Tasks:
			j.Done <- relay.Outcome{Err: j.Task()}
		}
	}
}

// appendGroup runs the jobs of a group in one transaction and answers each caller after the commit. If the database
// itself fails, nothing of the group is stored and every caller gets the error.
func (w *writer) appendGroup(group []ledger.Job) {
	outcomes := make([]relay.Outcome, len(group))
	var posted []relay.Posted
	began := time.Now()
	err := w.refusal()
	if err == nil {
		err = w.transact(func() (err error) {
			if posted, err = w.ledger.Run(w, group, outcomes, w.runUpdate); err != nil {
				return err
			}
			return w.mergeGroup(len(posted))
		})
	}
	if err == nil {
		report := relay.CommitReport{Events: len(posted), Commit: w.commit}
		report.Work = max(0, time.Since(began)-w.commit)
		w.store.options.Observer.Committed(report)
		if w.merge == nil && len(w.store.tail.growing.rows) >= w.batchSize() {
			w.startMerge()
		}
		// If the mark cannot be written, this group stays stored and acknowledged. The store then refuses later writes.
		_ = w.committed(posted, time.Time{})
	}
	ledger.Finish(group, outcomes, err, isDataError, func(j ledger.Job) { w.appendGroup([]ledger.Job{j}) })
	if err == nil {
		_ = w.store.care.handleError(w.watchLog(pagesOf(group))) // handleError logs it
	}
}

// committed writes the new end of the database into the mark and publishes posted to the watchers. swept is the time of
// the sweep if Expire made the commit, else zero. Errors: those of care.handleError.
func (w *writer) committed(posted []relay.Posted, swept time.Time) error {
	err := w.store.care.updateMark(w.last, swept)
	w.store.publish(posted)
	return err
}

// transact runs f in an immediate transaction. It ignores the caller's context: if a commit were cancelled half-way,
// the caller would not know its result. Errors: those of care.handleError. Errors caused by f's data are returned
// unchanged.
func (w *writer) transact(f func() error) error {
	ctx := context.Background()
	if _, err := w.stmts.begin.ExecContext(ctx); err != nil {
		return w.store.care.handleError(err)
	}
	w.begun = w.last
	w.ledger.Begin()
	w.store.tail.begin()
	err := f()
	harmless := err != nil && isDataError(err)
	if err == nil {
		began := time.Now()
		_, err = w.stmts.commit.ExecContext(ctx)
		w.commit = time.Since(began)
	}
	if err == nil {
		w.mergeCommitted()
		return nil
	}
	w.undo(w.begun)
	w.mergeUndone()
	if _, failed := w.stmts.rollback.ExecContext(ctx); failed != nil {
		harmless = false
		// After an error of a full or failing disk SQLite has already rolled back. Then ROLLBACK fails with SQLITE_ERROR.
		if codeOf(failed) != sqlite3.SQLITE_ERROR {
			err = fmt.Errorf("%w (and then rolling back: %v)", err, failed)
		}
	}
	if harmless {
		return err
	}
	return w.store.care.handleError(err)
}

// task runs f in the writer's goroutine and waits for it.
func (s *Store) task(ctx context.Context, f func(*writer) error) error {
	return s.queue.Task(ctx, func() error { return f(s.writer) })
}

type scanner func(...any) error

// eachRow calls f for every row of a query.
func eachRow(f func(scanner) error, query func() (*sql.Rows, error)) error {
	rows, err := query()
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := f(rows.Scan); err != nil {
			return errors.Join(err, rows.Close())
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}
