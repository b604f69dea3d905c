package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/sqlite/internal/dbfile"
)

// updatePages is how many pages an Update is assumed to change. The write-ahead log's length is estimated from it.
const updatePages = 64

var errCrowded = envelope.NotStored("the relay's room for gateways is used up; nothing was stored, try again later",
	time.Minute)

// Update implements relay.Extender.
func (s *Store) Update(ctx context.Context, f func(relay.StoreTx) error) (time.Duration, error) {
	return s.queue.Update(ctx, f)
}

// coreShare is the part of the database's room that only messages may use, not extensions: a quarter.
const coreShare = 4

// Room implements relay.Extender. The answer is as old as the last tick at most.
func (s *Store) Room() error {
	if s.care.crowded.Load() {
		return errCrowded
	}
	return nil
}

// noteRoom remembers whether extensions may use more room. count and free come from pageCounts.
func (w *writer) noteRoom(count, free int64) {
	c := &w.store.care
	crowded := w.maxPages-count+free < w.maxPages/coreShare
	if c.crowded.Swap(crowded) == crowded {
		return
	}
	if crowded {
		c.log.Warn("three quarters of the database's room are used; the gateways store nothing more for clients until there "+
			"is room. Raise --max-disk, or make room with agora fold and agora prune", "pages", count-free, "limit", w.maxPages)
	} else {
		c.log.Info("the gateways have room again")
	}
}

// runUpdate runs an update under a savepoint of the open transaction. o is the outcome for the caller of Update. err
// means that the database failed, and is for all callers of the group.
func (w *writer) runUpdate(u *ledger.Update) (o relay.Outcome, posted []relay.Posted, err error) {
	began := time.Now()
	last := w.last
	if _, err := w.stmts.savepoint.Exec(); err != nil {
		return relay.Outcome{}, nil, err
	}
	ctx, cancel := context.WithDeadline(context.Background(), began.Add(ledger.UpdateTime))
	defer cancel()
	tx := &updateTx{w: w, ctx: ctx}
	o.Err = tx.run(u)
	if tx.failed != nil {
		return relay.Outcome{}, nil, tx.failed
	}
	if errors.Is(o.Err, ledger.ErrTooLong) {
		w.store.options.Log.Error("an update took too long and was undone; do less work in one update, and no I/O",
			"limit", ledger.UpdateTime)
	}
	o.Err = cmp.Or(o.Err, tx.broken)
	if o.Err == nil && tx.wrote && len(tx.posted) == 0 {
		// The update takes its own number. So the mark shows a loss if the rows it wrote are missing later.
		w.last++
		if _, err := w.stmts.keepLast.Exec(w.last); err != nil {
			return relay.Outcome{}, nil, err
		}
	}
	if o.Err != nil {
		w.undo(last)
		if _, err := w.stmts.undo.Exec(); err != nil {
			return relay.Outcome{}, nil, err
		}
		tx.posted = nil
	}
	if _, err := w.stmts.release.Exec(); err != nil {
		return relay.Outcome{}, nil, err
	}
	o.Receipt.Took = time.Since(began)
	return o, tx.posted, nil
}

// undo resets the writer's memory after a rollback. last is the last stored number before the steps that were undone.
func (w *writer) undo(last relay.Seq) {
	clear(w.parties) // some of these rows may have been rolled back
	w.last = last
	w.store.tail.undo(last)
	w.ledger.Undo(w.store.cursor(last))
}

// updateTx implements relay.StoreTx. The function that uses it runs in a separate goroutine, so that the writer can
// continue after ledger.UpdateTime.
type updateTx struct {
	w      *writer
	ctx    context.Context // ends after ledger.UpdateTime
	mu     sync.Mutex      // held while the connection is in use
	over   error           // why the transaction can no longer be used
	failed error           // first error that was not caused by the function's own data
	broken error           // error after which half of an Append may be left
	posted []relay.Posted
	wrote  bool
}

// run calls u's function and waits until it returns or its time is over.
func (t *updateTx) run(u *ledger.Update) error {
	done := make(chan error, 1)
	t.w.updater <- func() { done <- u.Run(t, t.w.store.options.Log) }
	var err error
	over := ledger.ErrOver
	select {
	case err = <-done:
	case <-t.ctx.Done():
		err, over = ledger.ErrTooLong, ledger.ErrTooLong
		t.w.startUpdater() // the other one is still at work
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = over
	return err
}

// startUpdater starts the goroutine that runs the functions of updates. It ends the one before. The goroutine stays,
// because SQLite makes the stack of a new one grow to 32 KB.
func (w *writer) startUpdater() {
	if w.updater != nil {
		close(w.updater)
	}
	work := make(chan func())
	w.updater = work
	w.store.workers.Go(func() {
		for f := range work {
			f()
		}
	})
}

// use calls f, which may use the connection, unless the transaction is over.
func (t *updateTx) use(f func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := cmp.Or(t.over, t.failed); err != nil {
		return err
	}
	if t.ctx.Err() != nil {
		return ledger.ErrTooLong
	}
	err := f()
	if err != nil && !isDataError(err) {
		t.failed = err
	}
	return err
}

// Exec implements relay.StoreTx.
func (t *updateTx) Exec(text string, args ...any) (rows int64, err error) {
	if err := t.w.prepared.allowed(text); err != nil {
		return 0, err
	}
	err = t.use(func() error {
		result, err := t.w.prepared.exec(context.Background(), text, args...)
		if err != nil {
			return err
		}
		t.wrote = true
		rows, err = result.RowsAffected()
		return err
	})
	return rows, err
}

// Query implements relay.Querier. The connection is not locked while row runs. So row may use the transaction, and it
// cannot keep the writer from ending the transaction.
func (t *updateTx) Query(row func(func(...any) error) error, text string, args ...any) error {
	if err := t.w.prepared.allowed(text); err != nil {
		return err
	}
	inTime := func(err error) error {
		if t.ctx.Err() != nil {
			return ledger.ErrTooLong // interrupting a SELECT does not change the transaction
		}
		return err
	}
	var rows *sql.Rows
	var done func() error
	err := t.use(func() (err error) {
		rows, done, err = t.w.prepared.query(t.ctx, text, args...)
		return inTime(err)
	})
	if err != nil {
		return err
	}
	for more := true; more && err == nil; {
		err = t.use(func() error {
			more = rows.Next()
			return inTime(rows.Err())
		})
		if more && err == nil {
			err = row(rows.Scan)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	closed := rows.Close()
	return cmp.Or(err, closed, done())
}

// Append implements relay.StoreTx.
func (t *updateTx) Append(e relay.Entry) (receipt relay.Receipt, err error) {
	err = t.use(func() error {
		outcomes, posted, err := t.w.ledger.Append(t.w, []relay.Entry{e})
		if err != nil {
			t.broken = err
			return err
		}
		t.posted = append(t.posted, posted...)
		receipt = outcomes[0].Receipt
		return outcomes[0].Err
	})
	return receipt, err
}

// View implements relay.Extender.
func (s *Store) View(ctx context.Context, f func(relay.Querier) error) (took time.Duration, err error) {
	if err := s.closed(); err != nil {
		return 0, err
	}
	if stopped := s.onReader(ctx, func() {
		began := time.Now()
		err = s.view(ctx, f)
		took = time.Since(began)
	}); stopped != nil {
		return 0, stopped
	}
	return took, err
}

func (s *Store) view(ctx context.Context, f func(relay.Querier) error) (err error) {
	conn := <-s.views // there is one for each reader
	defer func() { s.views <- conn }()
	// With ctx, a client that leaves at this moment would leave the connection within a transaction.
	if _, err := conn.exec(context.Background(), beginView); err != nil {
		return s.handleReadError(err)
	}
	defer func() {
		_, failed := conn.exec(context.Background(), endView) // ends a transaction that has only read
		err = errors.Join(err, failed)
	}()
	return f(&viewTx{ctx, conn, s})
}

// openViews opens the connections for views.
func (s *Store) openViews(ctx context.Context) (err error) {
	if s.viewDB, err = dbfile.Open(s.path, "deferred", readPragmas, "rw"); err != nil {
		return err
	}
	s.viewDB.SetMaxOpenConns(readers)
	s.viewDB.SetMaxIdleConns(readers)
	s.views = make(chan *preparedConn, readers)
	for range readers {
		conn, err := s.viewDB.Conn(ctx)
		if err != nil {
			return err
		}
		s.views <- newPreparedConn(conn)
	}
	return nil
}

// closeViews closes the connections for views. No view is running.
func (s *Store) closeViews() (err error) {
	if s.viewDB == nil {
		return nil
	}
	for len(s.views) > 0 {
		conn := <-s.views
		err = errors.Join(err, conn.closeStatements(), conn.Close())
	}
	return errors.Join(err, s.viewDB.Close())
}

// viewTx implements relay.Querier.
type viewTx struct {
	ctx   context.Context
	conn  *preparedConn
	store *Store
}

// Query implements relay.Querier.
func (t *viewTx) Query(row func(func(...any) error) error, text string, args ...any) (err error) {
	if err := cmp.Or(t.ctx.Err(), t.conn.allowed(text)); err != nil {
		return err
	}
	defer func() {
		if err != nil && t.ctx.Err() != nil {
			err = t.ctx.Err() // the statement was interrupted
		}
	}()
	rows, done, err := t.conn.query(t.ctx, text, args...)
	if err != nil {
		return t.store.handleReadError(err)
	}
	defer func() { err = cmp.Or(err, done()) }()
	return t.store.handleReadError(eachRow(func(scan scanner) error { return row(scan) },
		func() (*sql.Rows, error) { return rows, nil }))
}
