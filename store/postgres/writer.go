package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// maxGroupBytes ends a group when its envelopes have this size together.
const maxGroupBytes = 8 << 20

// writer is the committer. No other goroutine uses its fields.
type writer struct {
	store  *Store
	ledger *ledger.Ledger

	conn     *pgx.Conn // nil: not connected
	failures int       // attempts to connect that have failed since the last success
	batch    *pgx.Batch
	begun    bool      // a transaction is open, or queued in batch
	after    relay.Seq // number of the last event when the transaction began
	last     relay.Seq // number of the last event, including those of the transaction
	swept    int64     // head.swept
	spanned  int64     // head.spanned
	threads  []int64   // head.threads, including the changes of the transaction
	counted  bool      // the transaction changes threads
	parties  parties
	locked   bool // after, last, swept, spanned and threads are those of the open transaction
	// logBehind says that other nodes have appended more to the log than followLog reads.
	logBehind bool
	sweptLog  int64          // counts the sweeps of logs
	warning   *pgconn.Notice // the last warning of the server since the transaction began
	took      time.Duration  // of the last commit
}

// connect opens the connection.
func (w *writer) connect(ctx context.Context) (err error) {
	w.conn, err = w.store.connectWriter(ctx, func(n *pgconn.Notice) {
		switch n.Severity {
		case "WARNING":
			w.warning = n
		case "NOTICE": // only while the tables are updated
			w.store.options.Log.Info("updating the tables of PostgreSQL; if this is interrupted, nothing is lost, and it begins again",
				"progress", n.Message)
		}
	})
	w.reset()
	w.parties = parties{} // it may be another server
	if err == nil {
		w.store.confirmed.renew()
	}
	return err
}

// disconnect closes the connection without waiting for the server.
func (w *writer) disconnect() {
	if w.conn == nil {
		return
	}
	closeConn(w.conn)
	w.conn = nil
	w.reset()
}

// reset forgets the transaction.
func (w *writer) reset() { w.batch, w.begun, w.locked, w.counted = &pgx.Batch{}, false, false, false }

// run executes jobs until the store is closed. It finishes the group or task that it has started. Callers that still
// wait get their error from the queue.
func (w *writer) run() {
	defer close(w.store.stopped)
	defer w.disconnect()
	for {
		var retry <-chan time.Time
		if w.conn == nil {
			retry = time.After(backoff(w.failures))
		}
		select {
		case <-w.store.ctx.Done():
			return
		case <-retry:
			w.reconnect()
		case j := <-w.store.queue.Appends:
			if j.Take() {
				w.appendWaiting(j)
			}
		case j := <-w.store.queue.Tasks:
			if j.Take() {
				j.Done <- relay.Outcome{Err: j.Task()}
			}
		}
	}
}

// reconnect tries to connect to a primary. Then it checks that the database still has all events that this node knows.
func (w *writer) reconnect() {
	ctx, cancel := context.WithTimeout(w.store.ctx, 4*connectTime) // a DSN may have several hosts
	defer cancel()
	err := w.connect(ctx)
	if err == nil {
		err = w.store.checkDurability(ctx, w.conn)
	}
	if err == nil {
		err = w.store.checkHead(ctx, w.conn)
	}
	if err == nil {
		err = w.reloadLog(ctx)
	}
	if err != nil {
		w.disconnect()
		if w.failures++; w.failures == 1 || w.failures%30 == 0 {
			w.store.options.Log.Error("cannot connect to a PostgreSQL primary; nothing is stored until this succeeds",
				"attempts", w.failures, "err", cleaned(err))
		}
		return
	}
	w.store.options.Log.Info("connected to the PostgreSQL primary again", "attempts", w.failures+1)
	w.failures = 0
	w.store.down.Store(nil)
}

// lost records that the connection is gone.
func (w *writer) lost(err error) {
	if w.store.closed() == nil {
		w.store.options.Log.Error("the connection to PostgreSQL was lost; connecting again", "err", cleaned(err))
	}
	w.disconnect()
	w.failures = 0
	w.store.down.Store(&outage{errUnreachable})
}

// appendWaiting runs first and the jobs behind it as one group. The group is closed when the transaction has the lock.
// While other nodes have the lock, more jobs join the group. So a group has about as many jobs as callers wait, however
// many nodes there are.
func (w *writer) appendWaiting(first ledger.Job) {
	var group []ledger.Job
	w.appendGroup(func() []ledger.Job {
		if group == nil {
			group = w.store.queue.Group(first, size, maxGroupBytes)
		}
		return group
	})
}

// appendGroup runs the jobs of a group in one transaction and answers each caller after the commit. It calls jobs when
// the transaction has the lock, or has failed. If the database fails, every caller gets the error.
func (w *writer) appendGroup(jobs func() []ledger.Job) {
	var outcomes []relay.Outcome
	var posted []relay.Posted
	began := time.Now()
	run := func() error {
		w.begin()
		err := w.flush()
		if err == nil {
			outcomes = make([]relay.Outcome, len(jobs()))
			posted, err = w.ledger.Run(w, jobs(), outcomes, w.runUpdate)
		}
		return err
	}
	err := w.transact(run)
	if errors.Is(err, errUnreachable) && time.Since(began) < connectTime {
		// The connection may have been lost long ago, without anybody noticing. So try once more with a new one.
		if w.reconnect(); w.conn != nil {
			err = w.transact(run)
		}
	}
	if err == nil {
		report := relay.CommitReport{Events: len(posted), Commit: w.took}
		report.Work = max(0, time.Since(began)-w.took)
		w.store.options.Observer.Committed(report)
		w.store.acknowledge(w.last, posted)
		w.store.committed(w.after, w.last, posted)
	}
	ledger.Finish(jobs(), outcomes, err, isDataError, func(j ledger.Job) {
		w.appendGroup(func() []ledger.Job { return []ledger.Job{j} })
	})
}

// transact runs f in a transaction. It ignores the caller's context: if a commit were cancelled half-way, the caller
// would not know its result. Errors: errUnreachable and errRefused if nothing was stored; errUnknown; errors that f's
// data caused; errors that are not PostgreSQL's.
func (w *writer) transact(f func() error) error {
	if w.conn == nil {
		return errUnreachable
	}
	w.reset()
	w.warning = nil
	ready := w.store.sweeper.ready
	w.store.busySince.Store(time.Now().UnixNano())
	defer w.store.busySince.Store(0)
	w.ledger.Begin()
	err := f()
	if err == nil {
		err = w.commit()
	}
	if err == nil {
		return nil
	}
	clear(w.parties)
	w.ledger.Undo(relay.Cursor{}) // the next group counts the inboxes again
	w.store.sweeper.ready = ready // partitions that the transaction has created are gone
	if errors.Is(err, errUnknown) {
		return err
	}
	pg, isPostgres := errors.AsType[*pgconn.PgError](err)
	switch {
	case w.conn.IsClosed(), isPostgres && isLost(err):
		w.lost(err)
		return errUnreachable
	case w.begun:
		w.reset()
		ctx, cancel := context.WithTimeout(context.Background(), readTime)
		defer cancel()
		if _, failed := w.conn.Exec(ctx, "ROLLBACK"); failed != nil {
			w.lost(failed)
			return errUnreachable
		}
	}
	if isPostgres && !isDataError(err) {
		w.store.options.Log.Error("PostgreSQL refuses to store", "code", pg.Code, "err", cleaned(err))
		return errRefused
	}
	return err
}

// begin queues the start of the transaction, unless it has started. The lock comes first. In the isolation level READ
// COMMITTED, each statement after it has a snapshot that was taken after the lock.
func (w *writer) begin() {
	if w.begun {
		return
	}
	w.begun = true
	w.batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	w.batch.Queue("SET LOCAL synchronous_commit = off") // see commit
	w.batch.Queue("SELECT epoch, last, swept, spanned, threads FROM head FOR UPDATE").QueryRow(func(row pgx.Row) error {
		var epoch uint32
		if err := row.Scan(&epoch, &w.after, &w.swept, &w.spanned, &w.threads); err != nil {
			return err
		}
		if epoch != w.store.epoch {
			w.store.breakWith(errEpoch)
			return errEpoch
		}
		w.last, w.locked = w.after, true
		return nil
	})
	w.followLog()
}

// groupTime limits one round trip of the committer, including the wait for the lock. After it, the connection is closed.
const groupTime = 30 * time.Second

// flush sends the queued statements and waits for their results.
func (w *writer) flush() error {
	if w.batch.Len() == 0 {
		return nil
	}
	batch := w.batch
	w.batch = &pgx.Batch{}
	ctx, cancel := context.WithTimeout(context.Background(), groupTime)
	defer cancel()
	err := w.conn.SendBatch(ctx, batch).Close()
	if err == nil && w.logBehind {
		err = w.reloadLog(ctx)
	}
	return err
}

// commit ends the transaction, and waits until it is durable, however long that takes. errUnknown: the changes may be
// stored, or not. Other errors: nothing is stored.
//
// The transaction itself does not wait, so the lock is free at once, and groups of other nodes build on this one. Then
// follows the barrier: a durable commit without content, on the same connection. The server writes all commits in
// order. So when the barrier is durable, the transaction is, and everything that it builds on. If the server crashes
// in between, or another one takes over, the connection ends, and the outcome is unknown.
//
// A transaction that has stored nothing waits, too. This matters for a duplicate: its answer says that the first
// message is durable.
func (w *writer) commit() error {
	w.begin()
	if w.last > w.after || w.counted {
		w.queueSpan()
		w.batch.Queue("UPDATE head SET last = $1, spanned = $2, threads = $3", w.last, w.spanned, w.threads)
	}
	committed := queueCommit(w.batch)
	batch := w.batch
	w.batch = &pgx.Batch{}
	began := time.Now()
	err := w.barrier(batch)
	w.took = time.Since(began)
	pg, isPostgres := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		w.begun = false
		return nil
	case !*committed && isPostgres && !isLost(pg):
		return err // a statement failed, so the server has not run the COMMIT
	case !*committed && pgconn.SafeToRetry(err):
		return err // it was not sent
	}
	w.lost(err)
	return errUnknown
}

// queueCommit queues a COMMIT. committed is then whether the server has run it.
func queueCommit(batch *pgx.Batch) (committed *bool) {
	committed = new(bool)
	batch.Queue("COMMIT").Exec(func(t pgconn.CommandTag) error {
		if *committed = t.String() == "COMMIT"; !*committed {
			return fmt.Errorf("the transaction ended with %s", t)
		}
		return nil
	})
	return committed
}

// barrier sends a batch and the barrier behind it, and waits until the barrier is durable.
func (w *writer) barrier(batch *pgx.Batch) error {
	for {
		w.warning = nil
		batch.Queue("BEGIN")
		// Only a transaction that has written something waits. This writes a message to the log that nobody reads.
		batch.Queue("SELECT pg_logical_emit_message(true, 'agora', '')")
		queueCommit(batch)
		if err := w.conn.SendBatch(w.store.patience, batch).Close(); err != nil || w.warning == nil {
			return err
		}
		// The wait for the standbys was cancelled. The commits are on the primary only, and a failover may lose them. The
		// next barrier is behind them.
		w.store.options.Log.Error("a commit did not wait for the standbys; waiting again", "warning", w.warning.Message)
		select {
		case <-w.store.patience.Done():
			return w.store.patience.Err()
		case <-time.After(reconnectMin):
		}
		batch = &pgx.Batch{}
	}
}
