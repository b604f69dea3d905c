package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/postgres/schema"
)

var errNoLease = envelope.NotStored("another node of this relay serves the gateways now; nothing was stored, try again in "+
	"a moment", leaseEvery)

// Update implements relay.Extender.
func (s *Store) Update(ctx context.Context, f func(relay.StoreTx) error) (time.Duration, error) {
	return s.queue.Update(ctx, f)
}

// Room implements relay.Extender. The relay does not limit the size of a PostgreSQL database.
func (s *Store) Room() error { return nil }

// Govern implements relay.Extender. The disk of PostgreSQL is the business of its operator.
func (s *Store) Govern(ctx context.Context, f func(relay.StoreTx) error) (time.Duration, error) {
	return s.Update(ctx, f)
}

// runUpdate runs an update under a savepoint of the open transaction. o is the outcome for the caller of Update. err
// means that the database failed, and is for all callers of the group. What a gateway knows may be old if its node
// was frozen and has lost the lease without noticing yet. So a leader whose lease is not sure refuses updates. Other
// nodes also have updates: changes by the operator.
func (w *writer) runUpdate(u *ledger.Update) (o relay.Outcome, posted []relay.Posted, err error) {
	if w.store.lease.held.Load() && !w.store.Leads() {
		return relay.Outcome{Err: errNoLease}, nil, nil
	}
	w.begin()
	w.batch.Queue("SAVEPOINT step")
	w.batch.Queue("SET LOCAL statement_timeout = '5s'")
	if err := w.flush(); err != nil {
		return relay.Outcome{}, nil, err
	}
	began := time.Now()
	last, ready, threads := w.last, w.store.sweeper.ready, slices.Clone(w.threads)
	tx := &updateTx{w: w, deadline: began.Add(ledger.UpdateTime)}
	o.Err = tx.run(u)
	if tx.failed != nil {
		return relay.Outcome{}, nil, tx.failed
	}
	if errors.Is(o.Err, ledger.ErrTooLong) {
		w.store.options.Log.Error("an update took too long and was undone; do less work in one update, and no I/O",
			"limit", ledger.UpdateTime)
	}
	o.Err = cmp.Or(o.Err, tx.broken)
	if o.Err == nil {
		// What Append has queued is sent now. An error then concerns this update only.
		if o.Err = w.flush(); o.Err != nil && !isDataError(o.Err) {
			return relay.Outcome{}, nil, o.Err
		}
	}
	if o.Err == nil && tx.wrote && len(tx.posted) == 0 {
		// The update takes its own number. So a loss of the rows it wrote is noticed.
		w.last++
	}
	if o.Err != nil {
		w.batch = &pgx.Batch{}
		w.last, w.store.sweeper.ready, w.threads = last, ready, threads
		clear(w.parties)
		w.ledger.Undo(w.store.cursor(last))
		w.batch.Queue("ROLLBACK TO SAVEPOINT step")
		tx.posted = nil
	}
	w.batch.Queue("RELEASE SAVEPOINT step")
	w.batch.Queue("SET LOCAL statement_timeout = 0")
	o.Receipt.Took = time.Since(began)
	return o, tx.posted, nil
}

// updateTx implements relay.StoreTx. The function that uses it runs in a separate goroutine, so that the committer can
// continue after ledger.UpdateTime.
type updateTx struct {
	w        *writer
	deadline time.Time
	mu       sync.Mutex // held while the connection is in use
	over     error      // why the transaction can no longer be used
	failed   error      // first error that was not caused by the function's own data
	broken   error      // error after which PostgreSQL refuses further statements
	posted   []relay.Posted
	wrote    bool
}

// run calls u's function and waits until it returns or its time is over.
func (t *updateTx) run(u *ledger.Update) error {
	done := make(chan error, 1)
	t.w.store.workers.Go(func() { done <- u.Run(t, t.w.store.options.Log) })
	timer := time.NewTimer(time.Until(t.deadline))
	defer timer.Stop()
	var err error
	over := ledger.ErrOver
	select {
	case err = <-done:
	case <-timer.C:
		err, over = ledger.ErrTooLong, ledger.ErrTooLong
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = over
	return err
}

// use calls f, which may use the connection, unless the transaction is over.
func (t *updateTx) use(f func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := cmp.Or(t.over, t.failed, t.broken); err != nil {
		return err
	}
	if !time.Now().Before(t.deadline) {
		return ledger.ErrTooLong
	}
	err := f()
	pg, isPostgres := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
	case isPostgres && pg.Code == "57014": // cancelled by statement_timeout
		err = ledger.ErrTooLong
		t.broken = err
	case isDataError(err):
		t.broken = err
	case isPostgres, t.w.conn.IsClosed():
		t.failed = err
	}
	return err
}

// Exec implements relay.StoreTx.
func (t *updateTx) Exec(text string, args ...any) (rows int64, err error) {
	if err := allowed(text); err != nil {
		return 0, err
	}
	err = t.use(func() error {
		t.w.batch.Queue(schema.Numbered(text), args...).Exec(func(tag pgconn.CommandTag) error {
			rows = tag.RowsAffected()
			return nil
		})
		t.wrote = true
		return t.w.flush()
	})
	return rows, err
}

// Query implements relay.Querier. It reads all rows before it calls row. So row may use the transaction.
func (t *updateTx) Query(row func(func(...any) error) error, text string, args ...any) error {
	if err := allowed(text); err != nil {
		return err
	}
	var all [][]any
	err := t.use(func() error {
		t.w.batch.Queue(schema.Numbered(text), args...).Query(func(rows pgx.Rows) (err error) {
			all, err = valuesOf(rows)
			return err
		})
		return t.w.flush()
	})
	if err != nil {
		return err
	}
	return eachRow(all, row)
}

// valuesOf reads all rows.
func valuesOf(rows pgx.Rows) (all [][]any, err error) {
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return nil, err
		}
		all = append(all, values)
	}
	return all, rows.Err()
}

func eachRow(all [][]any, row func(func(...any) error) error) error {
	for _, values := range all {
		if err := row(func(into ...any) error { return assignAll(into, values) }); err != nil {
			return err
		}
	}
	return nil
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
	err = s.showing(ctx, func(ctx context.Context, conn *pgx.Conn) (seen relay.Seq, err error) {
		began := time.Now()
		defer func() { took = time.Since(began) }()
		if _, err := conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
			return 0, err
		}
		defer func() {
			_, failed := conn.Exec(ctx, "ROLLBACK")
			err = errors.Join(err, failed)
		}()
		h, err := readHead(ctx, conn)
		if err != nil {
			return 0, err
		}
		return h.last, f(viewTx{ctx, conn})
	})
	return took, err
}

// viewTx implements relay.Querier.
type viewTx struct {
	ctx  context.Context
	conn *pgx.Conn
}

// Query implements relay.Querier. It reads all rows before it calls row. So row may run another query.
func (t viewTx) Query(row func(func(...any) error) error, text string, args ...any) error {
	if err := cmp.Or(t.ctx.Err(), allowed(text)); err != nil {
		return err
	}
	rows, err := t.conn.Query(t.ctx, schema.Numbered(text), args...)
	if err != nil {
		return cmp.Or(t.ctx.Err(), err)
	}
	all, err := valuesOf(rows)
	rows.Close()
	if err != nil {
		return cmp.Or(t.ctx.Err(), err)
	}
	return eachRow(all, row)
}

// allowed returns an error unless text is a single statement that reads or changes rows. Other statements could end the
// transaction or change the connection. A semicolon is allowed only at the end of text.
func allowed(text string) error {
	if strings.Contains(strings.TrimRight(text, "; \n\t"), ";") {
		return errors.New("an extension runs one statement at a time; pass texts that contain a semicolon as arguments")
	}
	keyword := ""
	if words := strings.Fields(text); len(words) > 0 {
		keyword = strings.ToUpper(words[0])
	}
	switch keyword {
	case "SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "VALUES":
		return nil
	}
	return fmt.Errorf("an extension's statement must begin with SELECT, INSERT, UPDATE, DELETE, WITH or VALUES, not with %q",
		keyword)
}
