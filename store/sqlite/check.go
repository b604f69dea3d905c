package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sqlite "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/agora-relay/agora/relay"
)

// Finding is one thing that is not as it should be.
type Finding struct {
	Where string `json:"where"` // such as: event 17 ("msg_…")
	What  string `json:"what"`
	Cure  string `json:"cure"` // how to go on
}

func (f Finding) String() string { return f.Where + ": " + f.What + "; " + f.Cure }

// How to go on. Nothing is repaired: what a damaged database still says may be false.
const (
	cureDamage = "stop the relay, keep this folder as it is, and serve the newest backup that agora check finds clean"
	cureNewer  = "check it with the version that wrote it, or a newer one"
	cureOlder  = "serve it once, which brings it up to date, and check again"
)

// CheckOptions are all optional.
type CheckOptions struct {
	Now        time.Time               // what counts as expired; zero: the present
	Extensions []relay.Extension       // those of the relay; tables of others are not looked into
	Found      func(Finding)           // called for each finding as it is made, one at a time
	Progress   func(events, all int64) // called every second with how many events have been checked, while they are
}

// Report counts what was checked.
type Report struct {
	Events    int64     `json:"events"`
	Cut       int64     `json:"cut"` // of them: expired, and their bodies given up for a full disk
	Threads   int64     `json:"threads"`
	Manifests int64     `json:"manifests"`
	Seq       relay.Seq `json:"seq"` // the last number given to an event
	Findings  int64     `json:"findings"`
}

// checker is one Check.
type checker struct {
	ctx     context.Context
	conn    *sql.Conn // within one read transaction
	options CheckOptions
	epoch   uint32
	mark    mark // read before the transaction began, so that the database is never behind it
	report  Report
	known   []relay.Extension // see extended
	checked atomic.Int64      // report.Events, for Progress
}

// Check reads the whole database at path, as it stands at one moment, and looks whether it is one that a Store has
// written: that its pages and indexes hang together, every envelope is signed by its sender and filed under what it
// says, and every thread's record is what its envelopes make of it. It changes nothing and disturbs nobody who has the
// database open. What cannot be decided any more, because an envelope has rightly been forgotten, passes.
//
// Damage is reported, not returned; an error means that the check did not come to its end.
func Check(ctx context.Context, path string, o CheckOptions) (_ Report, err error) {
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	db, err := openReadOnly(path)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	c := &checker{ctx: ctx, options: o}
	if c.mark, err = readMark(path); errors.Is(err, errLoss) {
		c.found(Finding{"mark", err.Error(), cureDamage})
	} else if err != nil {
		return Report{}, err
	}
	if err := c.run(db); err != nil {
		return c.report, inWords(ctx, path, err)
	}
	return c.report, nil
}

func (c *checker) run(db *sql.DB) (err error) {
	if c.conn, err = db.Conn(c.ctx); err != nil && !isDamage(err) {
		return err
	} else if err != nil {
		c.damage("database", err)
		return nil
	}
	defer func() { err = errors.Join(err, c.conn.Close()) }()
	if _, err := c.conn.ExecContext(c.ctx, "BEGIN"); err != nil {
		return err
	}
	readable := false
	for _, step := range []struct {
		where string
		check func() error
	}{
		{"database", c.pages},
		{"schema", func() (err error) { readable, err = c.schema(); return err }},
		{"meta", c.meta},
		{"sequence", c.sequence},
		{"threads", c.threads},
		{"events", c.otherEvents},
		{"manifests", c.manifests},
		{"extensions", c.extensions},
	} {
		if err := step.check(); isDamage(err) {
			c.damage(step.where, err)
		} else if err != nil {
			return err
		}
		if step.where == "schema" && !readable {
			break // the tables are not those that the rest would ask
		}
	}
	_, err = c.conn.ExecContext(c.ctx, "ROLLBACK") // frees the snapshot; nothing was written
	if isDamage(err) {
		err = nil // said above
	}
	return err
}

// isDamage reports whether the database itself says that it is damaged, as opposed to a failing disk or a full memory.
func isDamage(err error) bool {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return errors.Is(err, errRow)
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB,
		sqlite3.SQLITE_ERROR: // the statements are right, so the tables are not
		return true
	}
	return false
}

func (c *checker) damage(where string, err error) {
	c.found(Finding{where, "could not be read to the end (" + err.Error() + ")", cureDamage})
}

func (c *checker) found(f Finding) {
	c.report.Findings++
	if c.options.Found != nil {
		c.options.Found(f)
	}
}

// pages lets SQLite look at every page, every index and every column's type. It holds each UNIQUE too, so no message
// can be there twice where the schema is the right one.
func (c *checker) pages() error {
	return c.each(func(scan scanner) error {
		var verdict string
		if err := scan(&verdict); err != nil {
			return err
		}
		if verdict != "ok" {
			c.found(Finding{"database", strconv.Quote(verdict), cureDamage})
		}
		return nil
	}, "PRAGMA integrity_check")
}

// schema compares the tables and indexes with those of a new database; readable says that the tables are the same.
func (c *checker) schema() (readable bool, err error) {
	var have int
	if err := c.conn.QueryRowContext(c.ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return false, err
	}
	files, err := fs.Glob(schema, "schema/*.sql")
	if err != nil {
		return false, err
	}
	switch {
	case have > len(files):
		c.found(Finding{"schema", fmt.Sprintf("is number %d, this program knows %d", have, len(files)), cureNewer})
		return false, nil
	case have < 1:
		c.found(Finding{"schema", "is missing, so no relay wrote this database", "name the data folder of a relay, or a backup of one"})
		return false, nil
	case have < len(files):
		c.found(Finding{"schema", fmt.Sprintf("is number %d, this program writes %d", have, len(files)), cureOlder})
		return false, nil
	}
	got, err := objects(c.ctx, c.conn)
	if err != nil {
		return false, err
	}
	unknown, err := c.extended()
	if err != nil {
		return false, err
	}
	want, err := newObjects(c.ctx, c.known)
	if err != nil {
		return false, err
	}
	readable = true
	for o, text := range want {
		if got[o] != text {
			c.found(Finding{"schema", fmt.Sprintf("%s %s is missing or not what a relay makes", o.kind, o.name), cureDamage})
			readable = readable && o.kind != "table"
		}
	}
	for o := range got {
		if _, known := want[o]; !known && !o.isOf(unknown) {
			c.found(Finding{"schema", fmt.Sprintf("%s %q is none of a relay's", o.kind, o.name), cureDamage})
		}
	}
	return readable, nil
}

// extended notes the extensions whose tables the database has, with as many migrations as it has seen. It returns the
// names of those that the caller does not know.
func (c *checker) extended() (unknown []string, err error) {
	err = c.each(func(scan scanner) error {
		var name string
		var number int
		if err := scan(&name, &number); err != nil {
			return err
		}
		name = strings.TrimPrefix(name, extensionPrefix)
		i := slices.IndexFunc(c.options.Extensions, func(x relay.Extension) bool { return x.Name == name })
		if i < 0 {
			unknown = append(unknown, name)
			return nil
		}
		x := c.options.Extensions[i]
		if number > len(x.Migrations) || number < 0 {
			c.found(Finding{"schema", fmt.Sprintf("the tables of %s have form %d, this program knows %d", name, number, len(x.Migrations)), cureNewer})
			unknown = append(unknown, name)
			return nil
		}
		x.Migrations = x.Migrations[:number]
		c.known = append(c.known, x)
		return nil
	}, "SELECT name, value FROM meta WHERE name LIKE ?", extensionPrefix+"%")
	return unknown, err
}

// extensions has the extensions check what their tables hold, if these are in their newest form.
func (c *checker) extensions() error {
	for _, x := range c.known {
		all := c.options.Extensions[slices.IndexFunc(c.options.Extensions, func(o relay.Extension) bool { return o.Name == x.Name })]
		if x.Check == nil || len(x.Migrations) < len(all.Migrations) {
			continue
		}
		found := func(where, what string) { c.found(Finding{x.Name + " " + where, what, cureDamage}) }
		if err := x.Check(&checkTx{c}, found); err != nil {
			return err
		}
	}
	return nil
}

// checkTx implements relay.Querier.
type checkTx struct{ *checker }

func (t *checkTx) Query(row func(func(...any) error) error, text string, args ...any) error {
	if err := allowed(text); err != nil {
		return err
	}
	return t.each(func(scan scanner) error { return row(scan) }, text, args...)
}

// object is a table or an index.
type object struct{ kind, name string }

// isOf reports whether o is named as a table or an index of one of these extensions.
func (o object) isOf(extensions []string) bool {
	name, _, prefixed := strings.Cut(o.name, "_")
	return prefixed && slices.Contains(extensions, name)
}

func objects(ctx context.Context, conn *sql.Conn) (map[object]string, error) {
	all := map[object]string{}
	err := eachRow(damaged(func(scan scanner) error {
		var o object
		var text string
		err := scan(&o.kind, &o.name, &text)
		all[o] = text
		return err
	}), func() (*sql.Rows, error) {
		return conn.QueryContext(ctx, `SELECT type, name, COALESCE(sql, '') FROM sqlite_schema WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\'`)
	})
	return all, err
}

// newObjects returns the objects of a new database with these extensions.
func newObjects(ctx context.Context, extensions []relay.Extension) (_ map[object]string, err error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1) // each connection would be a database of its own
	if err := errors.Join(migrate(ctx, db), extend(ctx, db, extensions)); err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return objects(ctx, conn)
}

// meta checks the epoch, which is the mark's too where there is one.
func (c *checker) meta() error {
	var epoch string
	err := c.conn.QueryRowContext(c.ctx, "SELECT value FROM meta WHERE name = 'epoch'").Scan(&epoch)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if n, err := strconv.ParseUint(epoch, 16, 32); err != nil || n == 0 || epoch != fmt.Sprintf("%08x", n) {
		c.found(Finding{"meta", fmt.Sprintf("the epoch is %q, which is none", epoch), cureDamage})
	} else if c.epoch = uint32(n); c.mark.epoch != 0 && c.mark.epoch != c.epoch {
		c.found(Finding{"mark", "it is another database's, which was here before",
			"if this one was put here on purpose, serve it once; else put the other back"})
	}
	return nil
}

// sequence holds the last number given to an event against the mark, so that none is given twice.
func (c *checker) sequence() error {
	if err := c.conn.QueryRowContext(c.ctx, lastNumber).Scan(&c.report.Seq); err != nil {
		return err
	}
	var noted string
	err := c.conn.QueryRowContext(c.ctx, "SELECT value FROM meta WHERE name = 'last'").Scan(&noted)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if n, invalid := strconv.ParseUint(noted, 10, 63); err == nil && (invalid != nil || n == 0) {
		c.found(Finding{"meta", fmt.Sprintf("the last number given to an event is %q, which is none", noted), cureDamage})
	}
	if err := c.mark.missing(c.epoch, c.report.Seq); err != nil {
		c.found(Finding{"mark", err.Error(), cureDamage})
	}
	return nil
}

// each calls f for every row of a query.
func (c *checker) each(f func(scanner) error, text string, args ...any) error {
	return eachRow(damaged(f), func() (*sql.Rows, error) { return c.conn.QueryContext(c.ctx, text, args...) })
}

// errRow is damage that shows when a row is read.
var errRow = errors.New("a row holds what its columns cannot")

// damaged lets f scan rows that may hold anything.
func damaged(f func(scanner) error) func(scanner) error {
	return func(scan scanner) error {
		return f(func(columns ...any) error {
			if err := scan(columns...); err != nil {
				return fmt.Errorf("%w: %v", errRow, err)
			}
			return nil
		})
	}
}

// watch reports how far the events are, until the function it returns is called.
func (c *checker) watch() (stop func(), err error) {
	if c.options.Progress == nil {
		return func() {}, nil
	}
	var all int64
	if err := c.conn.QueryRowContext(c.ctx, "SELECT count(*) FROM event").Scan(&all); err != nil {
		return nil, err
	}
	return everySecond(func() { c.options.Progress(c.checked.Load(), all) }), nil
}

// inParallel calls f for each item, on all processors, and reports what it found in the items' order.
func inParallel[T any](c *checker, items []T, f func(T) []Finding) {
	results := make([][]Finding, len(items))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(items)) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(items)); i = next.Add(1) - 1 {
				results[i] = f(items[i])
			}
		})
	}
	workers.Wait()
	for _, findings := range results {
		for _, finding := range findings {
			c.found(finding)
		}
	}
}
