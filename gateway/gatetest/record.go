package gatetest

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agora-relay/agora/relay"
)

// recorder is a store that records what its extensions do.
//
// The store runs one Update after the other. So the order in which their functions begin is the order in which they
// take effect. A View may run at the same time as an Update. Then it is not known which state it has read. Its
// statements are repeated, but their rows are not compared.
type recorder struct {
	Store
	extensions []relay.Extension
	before     []table // the rows that the database had when it was opened
	closing    sync.Once

	mu      sync.Mutex
	steps   []*step
	updates int // calls of Update that have begun
	running int // calls of Update of which it is not known whether they have ended
}

// step is one run of the function of an Update or a View.
type step struct {
	statements []*statement
	view       bool
	stored     bool // the changes of this Update are in the database
	compared   bool // the rows that it reads are known to be those of this moment
	dropped    bool // it is not repeated
}

// statement is one statement that a function has run.
type statement struct {
	text    string
	args    []any // nil, int64, string, []byte; anything else is an error
	err     error // of SQLite
	exec    bool
	changed int64 // by Exec
	rows    []row // of Query
	stopped bool  // the function did not want further rows
}

// row has the values of a row. It is nil if the function did not ask for them.
type row []any

// flag is an integer that the function reads as a bool.
type flag bool

// table has the contents of a table.
type table struct {
	name    string
	columns []string
	rows    []row
}

// record returns a store that records. Its Close compares the recording with PostgreSQL.
func record(s Store, extensions []relay.Extension) (*recorder, error) {
	r := &recorder{Store: s, extensions: extensions}
	var err error
	r.before, err = r.contents()
	return r, err
}

// Close compares the recording with PostgreSQL and closes the store. Only the first call does something.
func (r *recorder) Close() (err error) {
	r.closing.Do(func() { err = errors.Join(r.check(), r.Store.Close()) })
	return err
}

// Update implements relay.Extender.
func (r *recorder) Update(ctx context.Context, f func(relay.StoreTx) error) (took time.Duration, err error) {
	return r.update(ctx, r.Store.Update, f)
}

// Govern implements relay.Extender.
func (r *recorder) Govern(ctx context.Context, f func(relay.StoreTx) error) (took time.Duration, err error) {
	return r.update(ctx, r.Store.Govern, f)
}

// update records what f does in a transaction of store.
func (r *recorder) update(
	ctx context.Context, store func(context.Context, func(relay.StoreTx) error) (time.Duration, error),
	f func(relay.StoreTx) error,
) (took time.Duration, err error) {
	var last *step // guarded by r.mu
	r.mu.Lock()
	r.updates++
	r.running++
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case err != nil && ctx.Err() != nil:
			// The store may still run the function, or may have stored its changes. So running stays as it is, and the
			// result of the function counts.
			return
		case err != nil && last != nil && last.stored:
			last.dropped = true // the store could not commit it
		}
		r.running--
	}()
	return store(ctx, func(tx relay.StoreTx) error {
		r.mu.Lock()
		if last != nil {
			last.dropped = true // the function runs a second time
		}
		last = &step{compared: true}
		this := last
		r.steps = append(r.steps, this)
		r.mu.Unlock()
		err := f(recordedTx{tx, r, this})
		r.mu.Lock()
		defer r.mu.Unlock()
		this.stored = err == nil
		return err
	})
}

// View implements relay.Extender.
func (r *recorder) View(ctx context.Context, f func(relay.Querier) error) (took time.Duration, err error) {
	r.mu.Lock()
	this := &step{view: true}
	idle, updates := r.running == 0, r.updates
	r.steps = append(r.steps, this)
	r.mu.Unlock()
	took, err = r.Store.View(ctx, func(q relay.Querier) error { return f(recordedQuerier{q, r, this}) })
	r.mu.Lock()
	defer r.mu.Unlock()
	this.compared = idle && updates == r.updates
	this.dropped = ctx.Err() != nil // it may have stopped anywhere
	return took, err
}

// add adds a statement to a step. It is added before it runs, so statements of its row function come after it.
func (r *recorder) add(s *step, text string, args []any) *statement {
	added := &statement{text: text, args: slices.Clone(args)}
	for i, arg := range added.args {
		if value, err := driver.DefaultParameterConverter.ConvertValue(arg); err == nil {
			arg = value
		}
		if b, ok := arg.([]byte); ok {
			arg = bytes.Clone(b)
		}
		added.args[i] = arg
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.statements = append(s.statements, added)
	return added
}

// recordedTx implements relay.StoreTx.
type recordedTx struct {
	relay.StoreTx
	r    *recorder
	step *step
}

func (t recordedTx) Query(each func(func(...any) error) error, text string, args ...any) error {
	return recordedQuerier{t.StoreTx, t.r, t.step}.Query(each, text, args...)
}

func (t recordedTx) Exec(text string, args ...any) (int64, error) {
	added := t.r.add(t.step, text, args)
	changed, err := t.StoreTx.Exec(text, args...)
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	added.exec, added.changed, added.err = true, changed, err
	return changed, err
}

// recordedQuerier implements relay.Querier.
type recordedQuerier struct {
	relay.Querier
	r    *recorder
	step *step
}

func (q recordedQuerier) Query(each func(func(...any) error) error, text string, args ...any) error {
	added := q.r.add(q.step, text, args)
	var rows []row
	stopped := false
	err := q.Querier.Query(func(scan func(...any) error) error {
		rows = append(rows, nil)
		err := each(func(dest ...any) error {
			values, err := scanRow(scan, len(dest))
			if err != nil {
				return err
			}
			for i, value := range values {
				if n, ok := value.(int64); ok && isBool(dest[i]) {
					values[i] = flag(n != 0)
				}
			}
			rows[len(rows)-1] = values
			return scan(dest...)
		})
		stopped = err != nil
		return err
	}, text, args...)
	q.r.mu.Lock()
	defer q.r.mu.Unlock()
	if added.rows, added.stopped = rows, stopped; !stopped {
		added.err = err
	}
	return err
}

func isBool(dest any) bool {
	_, ok := dest.(*bool)
	return ok
}

// scanRow returns the values of a row as the database has them.
func scanRow(scan func(...any) error, columns int) (row, error) {
	values := make(row, columns)
	dest := make([]any, columns)
	for i := range values {
		dest[i] = &values[i]
	}
	err := scan(dest...)
	return values, err
}

// contents returns the tables of the extensions.
func (r *recorder) contents() (tables []table, err error) {
	_, err = r.Store.View(context.Background(), func(q relay.Querier) error {
		names, err := texts(q, "SELECT name FROM sqlite_schema WHERE type = 'table'")
		if err != nil {
			return err
		}
		for _, name := range names {
			if !slices.ContainsFunc(r.extensions, func(x relay.Extension) bool { return strings.HasPrefix(name, x.Name+"_") }) {
				continue
			}
			found := table{name: name}
			if found.columns, err = texts(q, "SELECT name FROM pragma_table_info(?) ORDER BY cid", name); err != nil {
				return err
			}
			err := q.Query(func(scan func(...any) error) error {
				values, err := scanRow(scan, len(found.columns))
				found.rows = append(found.rows, values)
				return err
			}, found.query())
			if err != nil {
				return err
			}
			tables = append(tables, found)
		}
		return nil
	})
	return tables, err
}

// query returns the statement that reads the table.
func (t table) query() string {
	return fmt.Sprintf("SELECT %s FROM %s", strings.Join(t.columns, ", "), t.name)
}

// texts returns the result of a query with one column.
func texts(q relay.Querier, text string, args ...any) (all []string, err error) {
	err = q.Query(func(scan func(...any) error) error {
		var one string
		err := scan(&one)
		all = append(all, one)
		return err
	}, text, args...)
	return all, err
}
