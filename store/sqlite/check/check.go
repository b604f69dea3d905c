// Package check reads a whole database of the embedded store and says what is not as the store writes it. It needs no
// store and changes nothing, so the database may be a running relay's, or a backup.
package check

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	sqlite "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite/internal/dbfile"
	"github.com/agora-relay/agora/store/sqlite/schema"
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

// Options are all optional.
type Options struct {
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

// checker is one call of Database.
type checker struct {
	ctx     context.Context
	conn    *sql.Conn // within one read transaction
	options Options
	epoch   uint32
	mark    dbfile.Mark // read before the transaction began, so that the database is never behind it
	report  Report
	known   []relay.Extension // see extended
	checked atomic.Int64      // report.Events, for Progress
}

// Database reads the whole database at path, as it stands at one moment, and looks whether it is one that a Store has
// written: that its pages and indexes hang together, every envelope is signed by its sender and filed under what it
// says, and every thread's record is what its envelopes make of it. It changes nothing and disturbs nobody who has the
// database open. What cannot be decided any more, because an envelope has rightly been forgotten, passes.
//
// Damage is reported, not returned; an error means that the check did not come to its end.
func Database(ctx context.Context, path string, o Options) (_ Report, err error) {
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	db, err := dbfile.OpenReadOnly(path)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	c := &checker{ctx: ctx, options: o}
	if c.mark, err = dbfile.ReadMark(path); errors.Is(err, dbfile.ErrLoss) {
		c.found(Finding{"mark", err.Error(), cureDamage})
	} else if err != nil {
		return Report{}, err
	}
	if err := c.run(db); err != nil {
		return c.report, dbfile.InWords(ctx, path, err)
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
		{"roles", c.roles},
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
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
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

// meta checks the epoch, which is the mark's too where there is one.
func (c *checker) meta() error {
	var epoch string
	err := c.conn.QueryRowContext(c.ctx, "SELECT value FROM meta WHERE name = 'epoch'").Scan(&epoch)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if n, err := strconv.ParseUint(epoch, 16, 32); err != nil || n == 0 || epoch != fmt.Sprintf("%08x", n) {
		c.found(Finding{"meta", fmt.Sprintf("the epoch is %q, which is none", epoch), cureDamage})
	} else if c.epoch = uint32(n); c.mark.Epoch != 0 && c.mark.Epoch != c.epoch {
		c.found(Finding{"mark", "it is another database's, which was here before",
			"if this one was put here on purpose, serve it once; else put the other back"})
	}
	return nil
}

// sequence holds the last number given to an event against the mark, so that none is given twice.
func (c *checker) sequence() error {
	if err := c.conn.QueryRowContext(c.ctx, schema.LastNumber).Scan(&c.report.Seq); err != nil {
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
	if err := c.mark.Missing(c.epoch, c.report.Seq); err != nil {
		c.found(Finding{"mark", err.Error(), cureDamage})
	}
	return nil
}

type scanner func(...any) error

// each calls f for every row of a query.
func (c *checker) each(f func(scanner) error, text string, args ...any) error {
	return eachRow(c.ctx, c.conn, f, text, args...)
}

// errRow is damage that shows when a row is read.
var errRow = errors.New("a row holds what its columns cannot")

// eachRow calls f for every row of a query. The rows may hold anything: one that cannot be scanned is an errRow.
func eachRow(ctx context.Context, conn *sql.Conn, f func(scanner) error, text string, args ...any) error {
	rows, err := conn.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	scan := func(columns ...any) error {
		if err := rows.Scan(columns...); err != nil {
			return fmt.Errorf("%w: %v", errRow, err)
		}
		return nil
	}
	for rows.Next() {
		if err := f(scan); err != nil {
			return errors.Join(err, rows.Close())
		}
	}
	return errors.Join(rows.Err(), rows.Close())
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
	return dbfile.EverySecond(func() { c.options.Progress(c.checked.Load(), all) }), nil
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
