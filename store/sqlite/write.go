package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// maxGroup is the largest number of envelopes in one transaction. The writer does not wait for a group to fill. A group
// is what arrived while the previous group was being written, plus what runnable goroutines add when the writer yields.
const maxGroup = 256

// job is work for the writer: an envelope to append, an update, or a task.
type job struct {
	entry  relay.Entry
	update *update
	task   func(*writer) error
	done   chan relay.Outcome // has room for one outcome, so the writer never waits for a caller that has left
	more   []job              // entries that follow in the same transaction; they have no more
}

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
// get their error from Store.do.
func (w *writer) run() {
	defer close(w.store.stopped)
	w.startUpdater()
	for {
		select {
		case <-w.store.stop:
			// An error of close loses nothing: all acknowledged events are in the write-ahead log.
			_ = w.close()
			return
		case j := <-w.store.appends:
			w.appendGroup(w.group(j))
		case j := <-w.store.tasks:
			j.done <- relay.Outcome{Err: j.task(w)}
		}
	}
}

// group returns first and the jobs that wait behind it. It stops once the jobs may change care.logLimit pages.
func (w *writer) group(first job) []job {
	group := append([]job{first}, first.more...)
	changed, most := pages(group), int(w.store.care.logLimit.Load())
	for yielded := false; len(group) < maxGroup && changed < most; {
		select {
		case j := <-w.store.appends:
			n := len(group)
			group = append(append(group, j), j.more...)
			changed += pages(group[n:])
			yielded = false
		default:
			if yielded {
				return group
			}
			// A commit costs as much as writing many envelopes. So let goroutines that are about to hand over an
			// envelope run first. This takes no time if no goroutine is runnable.
			runtime.Gosched()
			yielded = true
		}
	}
	return group
}

// appendGroup runs the jobs of a group in one transaction and answers each caller after the commit. If the database
// itself fails, nothing of the group is stored and every caller gets the error.
func (w *writer) appendGroup(group []job) {
	outcomes := make([]relay.Outcome, len(group))
	var posted []relay.Posted
	began := time.Now()
	err := w.refusal()
	if err == nil {
		err = w.transact(func() (err error) {
			if posted, err = w.runGroup(group, outcomes); err != nil {
				return err
			}
			return w.mergeGroup(len(posted))
		})
	}
	switch {
	case err == nil:
		report := relay.CommitReport{Events: len(posted), Commit: w.commit}
		report.Work = max(0, time.Since(began)-w.commit)
		w.store.options.Observer.Committed(report)
		if w.merge == nil && len(w.store.tail.growing.rows) >= w.batchSize() {
			w.startMerge()
		}
		// If the mark cannot be written, this group stays stored and acknowledged. The store then refuses later writes.
		_ = w.committed(posted, time.Time{})
	case len(group) > 1 && isDataError(err):
		// A statement rejected the data of one job. Run each job in its own transaction, so that the others succeed.
		for i := range group {
			w.appendGroup(group[i : i+1])
		}
		return
	}
	for i, j := range group {
		if err != nil {
			outcomes[i] = relay.Outcome{Err: err}
		}
		j.done <- outcomes[i]
	}
	if err == nil {
		_ = w.store.care.handleError(w.watchLog(pages(group))) // handleError logs it
	}
}

// runGroup runs the jobs of a group in order. Consecutive entries form one group of the ledger.
func (w *writer) runGroup(group []job, outcomes []relay.Outcome) (posted []relay.Posted, err error) {
	for len(group) > 0 {
		n := slices.IndexFunc(group, func(j job) bool { return j.update != nil })
		var some []relay.Posted
		switch n {
		case 0:
			n = 1
			outcomes[0], some, err = w.runUpdate(group[0].update)
		case -1:
			n = len(group)
			fallthrough
		default:
			some, err = w.appendEntries(group[:n], outcomes[:n])
		}
		if err != nil {
			return nil, err
		}
		posted = append(posted, some...)
		group, outcomes = group[n:], outcomes[n:]
	}
	return posted, nil
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
	_, err := s.do(ctx, s.tasks, job{task: f})
	return err
}

// do gives a job to the writer and waits for its outcome. If ctx ends first, do returns ctx's error and the outcome is
// unknown.
func (s *Store) do(ctx context.Context, queue chan<- job, j job) (relay.Receipt, error) {
	j.done = make(chan relay.Outcome, 1)
	if err := s.send(ctx, queue, j); err != nil {
		return relay.Receipt{}, err
	}
	o := s.wait(ctx, j.done)
	return o.Receipt, o.Err
}

// send gives a job to the writer. After an error, the writer does not get it.
func (s *Store) send(ctx context.Context, queue chan<- job, j job) error {
	if err := s.care.refusal(); err != nil && j.task == nil {
		return err
	}
	select {
	case queue <- j:
		return nil
	case <-s.stop:
		return relay.ErrShuttingDown
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait waits for the outcome of a job that the writer has got.
func (s *Store) wait(ctx context.Context, done <-chan relay.Outcome) relay.Outcome {
	select {
	case o := <-done:
		return o
	case <-s.stopped:
		select {
		case o := <-done:
			return o
		default:
			return relay.Outcome{Err: relay.ErrShuttingDown}
		}
	case <-ctx.Done():
		return relay.Outcome{Err: ctx.Err()}
	}
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
