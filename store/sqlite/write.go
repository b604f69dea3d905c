package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// maxGroup is how many envelopes share a transaction at most. Nobody waits for a group to fill: it is what has come
// in while the one before was being written, and what those who could run meanwhile bring.
const maxGroup = 256

// job is work for the writer: an envelope to append, an update, or a task.
type job struct {
	entry  relay.Entry
	update *update
	task   func(*writer) error
	done   chan outcome // holds one, so the writer never waits for a caller who left
}

type outcome struct {
	receipt relay.Receipt
	err     error
}

// writer is the one goroutine that writes; it owns all of its fields.
type writer struct {
	store   *Store
	conn    *sql.Conn
	stmts   statements
	ledger  *ledger.Ledger
	parties map[didkey.DID]int64 // a cache of the table party; 0: it has no row
	agents  map[int64]struct{}   // the parties with a manifest
	keys    [2][]byte            // buffers of loadKnown
	last    relay.Seq            // the last number given to an event
	commit  time.Duration        // how long the last commit took

	mostPages int64 // that the database may have, see limitSize

	unseen int // pages changed at most since the length of the write-ahead log was looked at
	forced int // that length when it was last made to begin again

	cutForget, cutSeq int64 // how far the search for bodies to cut has come: an event's columns
	cutLooked         int64 // at so many events in this recovery
	trimAfter         int64 // how far the search for records to remove has come: a thread's number
	trimLooked        int64 // at so many threads in this recovery
}

// maxParties bounds the cache of parties, some 20 MB.
const maxParties = 200_000

func newWriter(ctx context.Context, s *Store) (*writer, error) {
	w := &writer{store: s, parties: map[didkey.DID]int64{}, agents: map[int64]struct{}{}, ledger: ledger.New(s.policy), last: relay.Seq(s.head.Load())}
	var err error
	if w.conn, err = s.writeDB.Conn(ctx); err != nil {
		return nil, err
	}
	if err := w.stmts.prepare(ctx, w.conn); err != nil {
		return nil, errors.Join(err, w.close())
	}
	if err := w.load(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// close gives the connection back. Its statements are closed first: database/sql leaves those of a sql.Conn alone, and
// with one of them open SQLite keeps the connection, its files and the write-ahead log.
func (w *writer) close() error {
	return errors.Join(append(w.stmts.close(), w.conn.Close())...)
}

// load reads what the store and its writer keep in memory.
func (w *writer) load(ctx context.Context) error {
	return eachRow(func(scan scanner) error {
		var id int64
		err := scan(&id)
		w.agents[id] = struct{}{}
		return err
	}, func() (*sql.Rows, error) { return w.conn.QueryContext(ctx, "SELECT DISTINCT sender FROM manifest") })
}

// run works until the store is closed. What it has begun it finishes; callers still waiting are told by Store.do.
func (w *writer) run() {
	defer close(w.store.stopped)
	for {
		select {
		case <-w.store.stop:
			// A failing close loses nothing: everything acknowledged is in the write-ahead log.
			_ = w.close()
			return
		case j := <-w.store.appends:
			w.appendGroup(w.group(j))
		case j := <-w.store.tasks:
			j.done <- outcome{err: j.task(w)}
		}
	}
}

// group returns first and what waits behind it, as far as the write-ahead log takes it at once.
func (w *writer) group(first job) []job {
	group, changed, most := []job{first}, first.pages(), int(w.store.care.logLimit.Load())
	for yielded := false; len(group) < maxGroup && changed < most; {
		select {
		case j := <-w.store.appends:
			group = append(group, j)
			changed += j.pages()
			yielded = false
		default:
			if yielded {
				return group
			}
			// A commit costs as much as writing many envelopes, so whoever is about to hand one over comes first.
			// If nobody can run, this takes no time.
			runtime.Gosched()
			yielded = true
		}
	}
	return group
}

// appendGroup stores the jobs' entries in one transaction and tells each caller after the commit. If the database
// itself fails, nothing of the group is stored and all are told.
func (w *writer) appendGroup(group []job) {
	outcomes := make([]outcome, len(group))
	var posted []relay.Posted
	began := time.Now()
	err := w.store.care.refusal()
	if err == nil {
		err = w.transact(func() (err error) {
			posted, err = w.runGroup(group, outcomes)
			return err
		})
	}
	switch {
	case err == nil:
		report := relay.CommitReport{Events: len(posted), Commit: w.commit}
		report.Work = max(0, time.Since(began)-w.commit)
		w.store.options.Observer.Committed(report)
		// Where the mark cannot be written, what is stored is stored, and the store is closed to what comes next.
		_ = w.committed(posted, time.Time{})
	case len(group) > 1 && ofData(err):
		// The others are none the worse for the one whose data no statement takes.
		for i := range group {
			w.appendGroup(group[i : i+1])
		}
		return
	}
	for i, j := range group {
		if err != nil {
			outcomes[i] = outcome{err: err}
		}
		j.done <- outcomes[i]
	}
	if err == nil {
		changed := 0
		for _, j := range group {
			changed += j.pages()
		}
		_ = w.store.care.failed(w.watchLog(changed)) // which logs it
	}
}

// runGroup does the jobs of a group, in their order. Entries that follow each other are one group of the ledger.
func (w *writer) runGroup(group []job, outcomes []outcome) (posted []relay.Posted, err error) {
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

// committed notes in the mark what is on disk now, and tells the watchers. swept is the time if an Expire did it.
// Errors: those of care.failed.
func (w *writer) committed(posted []relay.Posted, swept time.Time) error {
	err := w.store.care.note(w.last, swept)
	w.store.publish(posted)
	return err
}

// transact runs f in an immediate transaction. The caller's context plays no part: a commit that was given up half-way
// would leave him not knowing. Errors: those of care.failed; as they are, those that come of f's data.
func (w *writer) transact(f func() error) error {
	ctx := context.Background()
	if _, err := w.stmts.begin.ExecContext(ctx); err != nil {
		return w.store.care.failed(err)
	}
	last := w.last
	w.ledger.Begin()
	err := f()
	harmless := err != nil && ofData(err)
	if err == nil {
		began := time.Now()
		_, err = w.stmts.commit.ExecContext(ctx)
		w.commit = time.Since(began)
	}
	if err == nil {
		return nil
	}
	w.undo(last)
	if _, failed := w.stmts.rollback.ExecContext(ctx); failed != nil {
		// Of a full or failing disk SQLite has rolled back by itself.
		err = fmt.Errorf("%w (and then rolling back: %v)", err, failed)
		harmless = false
	}
	if harmless {
		return err
	}
	return w.store.care.failed(err)
}

// task has the writer run f and waits for it.
func (s *Store) task(ctx context.Context, f func(*writer) error) error {
	_, err := s.do(ctx, s.tasks, job{task: f})
	return err
}

// do hands a job to the writer and waits for its outcome. If ctx ends first the outcome is unknown, and ctx's error
// says so.
func (s *Store) do(ctx context.Context, queue chan<- job, j job) (relay.Receipt, error) {
	if err := s.care.refusal(); err != nil && j.task == nil {
		return relay.Receipt{}, err
	}
	j.done = make(chan outcome, 1)
	select {
	case queue <- j:
	case <-s.stop:
		return relay.Receipt{}, relay.ErrShuttingDown
	case <-ctx.Done():
		return relay.Receipt{}, ctx.Err()
	}
	select {
	case o := <-j.done:
		return o.receipt, o.err
	case <-s.stopped:
		select {
		case o := <-j.done:
			return o.receipt, o.err
		default:
			return relay.Receipt{}, relay.ErrShuttingDown
		}
	case <-ctx.Done():
		return relay.Receipt{}, ctx.Err()
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
