package gatetest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/agora-relay/agora/relay"
)

// comparison repeats a recording on PostgreSQL, in its own schema.
type comparison struct {
	*client
	schema   string
	prepared map[string]prepared // by the text of the statement
}

// check repeats the recording on PostgreSQL and returns the first difference. It returns all statements that PostgreSQL
// does not accept.
func (r *recorder) check() error {
	r.mu.Lock()
	running := r.running > 0
	r.mu.Unlock()
	if running { // the caller of an Update has left; wait until the Update has ended
		_, err := r.Store.Update(context.Background(), func(relay.StoreTx) error { return nil })
		if err != nil {
			return err
		}
	}
	after, err := r.contents()
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := idle.take(os.Getenv(Env), r.extensions)
	if err != nil {
		return err
	}
	if err := c.repeat(r, after); err != nil {
		return errors.Join(err, c.close())
	}
	return idle.put(c, r.extensions, after)
}

// comparisons are connections whose schema has empty tables, for the next recordings with the same extensions. Making a
// schema takes longer than repeating most recordings.
type comparisons struct {
	mu   sync.Mutex
	idle map[string][]*comparison // by the migrations of the extensions
}

var idle = comparisons{idle: map[string][]*comparison{}}

func (c *comparisons) take(folder string, extensions []relay.Extension) (*comparison, error) {
	key := migrationsOf(extensions)
	c.mu.Lock()
	defer c.mu.Unlock()
	if all := c.idle[key]; len(all) > 0 {
		last := len(all) - 1
		c.idle[key] = all[:last]
		return all[last], nil
	}
	return compareIn(folder, extensions)
}

// put empties the tables and keeps the connection until the process ends.
func (c *comparisons) put(one *comparison, extensions []relay.Extension, tables []table) error {
	script := "SET session_replication_role = replica;" // foreign keys are not checked
	for _, t := range tables {
		script += " DELETE FROM " + t.name + ";"
	}
	if err := one.script(script + " SET session_replication_role = origin"); err != nil {
		return errors.Join(err, one.close())
	}
	key := migrationsOf(extensions)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle[key] = append(c.idle[key], one)
	return nil
}

// migrationsOf returns a text that is the same for extensions with the same migrations.
func migrationsOf(extensions []relay.Extension) string {
	var b strings.Builder
	for _, x := range extensions {
		fmt.Fprintf(&b, "%s %q\n", x.Name, x.Migrations)
	}
	return b.String()
}

// compareIn connects to the server and runs the migrations of the extensions in a new schema.
func compareIn(folder string, extensions []relay.Extension) (*comparison, error) {
	connected, err := dial(folder)
	if err != nil {
		return nil, err
	}
	c := &comparison{client: connected, schema: "t" + strings.ToLower(rand.Text()), prepared: map[string]prepared{}}
	err = c.script(fmt.Sprintf("CREATE SCHEMA %s; SET search_path = %[1]s", c.schema))
	for _, x := range extensions {
		for i, text := range x.Migrations {
			if err == nil {
				if err = c.script(text); err != nil {
					err = fmt.Errorf("PostgreSQL refuses migration %d of %s: %w", i+1, x.Name, err)
				}
			}
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *comparison) close() error {
	err := c.script(fmt.Sprintf("ROLLBACK; SET client_min_messages = error; DROP SCHEMA IF EXISTS %s CASCADE", c.schema))
	return errors.Join(err, c.conn.Close())
}

// repeat runs a recording. after is what the database contains at its end.
func (c *comparison) repeat(r *recorder, after []table) error {
	if err := c.insert(r.before); err != nil {
		return err
	}
	var errs []error
	tried := map[string]bool{}
	for _, s := range r.steps {
		for _, one := range s.statements {
			if s.dropped || one.err != nil || tried[one.text] {
				continue
			}
			tried[one.text] = true
			if _, err := c.parse(one.text); err != nil {
				errs = append(errs, describe(one, err))
			}
		}
	}
	if len(errs) > 10 {
		errs = append(errs[:10], fmt.Errorf("and %d more statements", len(errs)-10))
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for _, s := range r.steps {
		if s.dropped {
			continue
		}
		if err := c.repeatStep(s); err != nil {
			return err
		}
	}
	for _, t := range after {
		if err := c.compareTable(t); err != nil {
			return err
		}
	}
	return nil
}

// insert inserts the rows of these tables.
func (c *comparison) insert(tables []table) error {
	if err := c.script("SET session_replication_role = replica"); err != nil { // foreign keys are not checked
		return err
	}
	for _, t := range tables {
		marks := strings.TrimPrefix(strings.Repeat(", ?", len(t.columns)), ", ")
		p, err := c.parse(fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", t.name, strings.Join(t.columns, ", "), marks))
		for _, values := range t.rows {
			if err == nil {
				err = checkArgs(p.params, values)
			}
			if err == nil {
				_, _, err = c.run(p, values)
			}
		}
		if err != nil {
			return fmt.Errorf("inserting the rows of %s: %w", t.name, err)
		}
	}
	return c.script("SET session_replication_role = origin")
}

// parse prepares a statement, once for each text. It fails if a column of the result has a type that only PostgreSQL has.
func (c *comparison) parse(text string) (prepared, error) {
	if p, known := c.prepared[text]; known {
		return p, nil
	}
	ours, err := numbered(text)
	if err != nil {
		return prepared{}, err
	}
	p, err := c.prepare(fmt.Sprintf("s%d", len(c.prepared)), ours)
	if err != nil {
		return prepared{}, fmt.Errorf("PostgreSQL refuses the statement: %w", err)
	}
	for i, o := range p.columns {
		if !slices.Contains([]oid{boolType, byteaType, bigintType, integerType, textType}, o) {
			return prepared{}, fmt.Errorf("column %d of the result has the type %v in PostgreSQL; use CAST(… AS BIGINT)", i+1, o)
		}
	}
	c.prepared[text] = p
	return p, nil
}

// repeatStep runs the statements of an Update or a View in a transaction, up to the first one that SQLite has refused.
func (c *comparison) repeatStep(s *step) error {
	if err := c.script("BEGIN"); err != nil {
		return err
	}
	for _, one := range s.statements {
		if one.err != nil && s.stored {
			return describe(one, fmt.Errorf("the update continues after the error %q, but PostgreSQL then undoes all of it; "+
				"use ON CONFLICT, or look first", one.err))
		}
		if one.err != nil {
			break
		}
		if err := c.repeatStatement(one, s.compared); err != nil {
			return describe(one, err)
		}
	}
	if s.stored {
		return c.script("COMMIT")
	}
	return c.script("ROLLBACK")
}

func (c *comparison) repeatStatement(s *statement, compared bool) error {
	p := c.prepared[s.text]
	if err := checkArgs(p.params, s.args); err != nil {
		return err
	}
	rows, changed, err := c.run(p, s.args)
	switch {
	case err != nil:
		return fmt.Errorf("PostgreSQL refuses the statement with these arguments: %w", err)
	case s.exec && changed != s.changed:
		return fmt.Errorf("the statement changes %d rows in SQLite and %d in PostgreSQL", s.changed, changed)
	case s.exec || !compared:
		return nil
	}
	if s.stopped {
		rows = rows[:min(len(s.rows), len(rows))]
	}
	switch unread := slices.ContainsFunc(s.rows, func(r row) bool { return r == nil }); {
	case ordered(s.text):
		return difference(s.rows, rows)
	case s.stopped || unread || anySelected(s.text):
		return difference(make([]row, len(s.rows)), rows) // only how many there are
	}
	return difference(sorted(s.rows), sorted(rows))
}

// checkArgs returns an error unless the arguments have the types that PostgreSQL has found for the parameters.
func checkArgs(params []oid, args []any) error {
	if len(params) != len(args) {
		return fmt.Errorf("the statement has %d parameters, but %d arguments are given", len(params), len(args))
	}
	for i, arg := range args {
		var want oid
		switch arg.(type) {
		case nil:
			want = params[i]
		case int64:
			want = bigintType
		case string:
			want = textType
		case []byte:
			want = byteaType
		default:
			return fmt.Errorf("argument %d is a %T; pass an integer, a string or a []byte", i+1, arg)
		}
		if params[i] != want {
			return fmt.Errorf("argument %d is a %T, but PostgreSQL takes the parameter for %v; pass another type, or use "+
				"CAST(? AS %s)", i+1, arg, params[i], strings.ToUpper(want.String()))
		}
	}
	return nil
}

// compareTable compares the contents of a table.
func (c *comparison) compareTable(t table) error {
	p, err := c.parse(t.query())
	if err != nil {
		return fmt.Errorf("table %s: %w", t.name, err)
	}
	for i, o := range p.columns {
		if o != bigintType && o != textType && o != byteaType {
			return fmt.Errorf("the column %s of %s has the type %v in PostgreSQL; use BIGINT, TEXT or BYTEA", t.columns[i],
				t.name, o)
		}
	}
	rows, _, err := c.run(p, nil)
	if err == nil {
		err = difference(sorted(t.rows), sorted(rows))
	}
	if err != nil {
		return fmt.Errorf("at the end, the table %s: %w", t.name, err)
	}
	return nil
}

// difference returns the first difference of two lists of rows.
func difference(lite, postgres []row) error {
	for i, r := range lite {
		switch {
		case i >= len(postgres):
			return fmt.Errorf("SQLite has %d rows, PostgreSQL has %d; PostgreSQL does not have %s", len(lite), len(postgres),
				brief(r))
		case r != nil && !slices.EqualFunc(r, postgres[i], equal):
			return fmt.Errorf("row %d is %s in SQLite and %s in PostgreSQL", i+1, brief(r), brief(postgres[i]))
		}
	}
	if len(postgres) > len(lite) {
		return fmt.Errorf("SQLite has %d rows, PostgreSQL has %d; SQLite does not have %s", len(lite), len(postgres),
			brief(postgres[len(lite)]))
	}
	return nil
}

// equal compares a value of SQLite with one of PostgreSQL. SQLite has no booleans. A boolean of PostgreSQL can only be
// read into a bool. An integer can be read into a bool from both.
func equal(lite, postgres any) bool {
	if f, ok := lite.(flag); ok {
		n, isInteger := postgres.(int64)
		return postgres == bool(f) || isInteger && (n != 0) == bool(f)
	}
	return show(row{lite}) == show(row{postgres})
}

// sorted returns the rows in an order that is the same for both databases.
func sorted(rows []row) []row {
	return slices.SortedFunc(slices.Values(rows), func(a, b row) int { return cmp.Compare(sortKey(a), sortKey(b)) })
}

func sortKey(r row) string {
	r = slices.Clone(r)
	for i, value := range r {
		switch value {
		case flag(true), true:
			r[i] = int64(1)
		case flag(false), false:
			r[i] = int64(0)
		}
	}
	return show(r)
}

// show returns values as a text from which different values can be told apart.
func show(values []any) string {
	var b strings.Builder
	for i, value := range values {
		if i > 0 {
			b.WriteString(", ")
		}
		switch value := value.(type) {
		case []byte:
			fmt.Fprintf(&b, `\x%x`, value)
		case string:
			fmt.Fprintf(&b, "%q", value)
		case int64, nil:
			fmt.Fprint(&b, value)
		default:
			fmt.Fprintf(&b, "%T(%v)", value, value)
		}
	}
	return "(" + b.String() + ")"
}

// brief is the same as show, but at most 1,000 bytes long.
func brief(values []any) string {
	text := show(values)
	if len(text) > 1000 {
		return text[:990] + "…"
	}
	return text
}

func describe(s *statement, err error) error {
	return fmt.Errorf("%w\n\t%s\n\twith %s", err, s.text, brief(s.args))
}
