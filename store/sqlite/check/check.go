// Package check reads a whole database of the embedded store and reports everything that a store would not have
// written. It needs no running store and changes nothing. So the database may be a backup, or in use by a running
// relay.
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

// Finding is one problem.
type Finding struct {
	Where string `json:"where"` // for example: event 17 ("msg_…")
	What  string `json:"what"`
	Cure  string `json:"cure"` // how to fix it
}

func (f Finding) String() string { return f.Where + ": " + f.What + "; " + f.Cure }

// Values of Finding.Cure. Package check repairs nothing, because the readable part of a damaged database may be wrong
// too.
const (
	cureDamage = "stop the relay, keep this folder as it is, and serve the newest backup that agora check finds clean"
	cureNewer  = "check it with the version that wrote it, or a newer one"
	cureOlder  = "run agora serve on it once, which updates it, and check again"
)

// Options are all optional.
type Options struct {
	Now        time.Time         // time at which expiry is judged; zero: the current time
	Extensions []relay.Extension // the relay's extensions; tables of other extensions are not checked
	Found      func(Finding)     // called for each finding as it is made, one call at a time
	// called every second while events are checked, with how many are checked and how many there are
	Progress func(events, all int64)
}

// Report counts what was checked.
type Report struct {
	Events    int64     `json:"events"`
	Cut       int64     `json:"cut"` // events without a body: they had expired when the disk was full
	Threads   int64     `json:"threads"`
	Manifests int64     `json:"manifests"`
	Seq       relay.Seq `json:"seq"` // last number given to an event
	Findings  int64     `json:"findings"`
}

// checker is one call of Database.
type checker struct {
	ctx     context.Context
	conn    *sql.Conn // in one read transaction
	options Options
	epoch   uint32
	mark    dbfile.Mark // read before the transaction begins, so that the database is never behind it
	report  Report
	known   []relay.Extension // set by extended
	merged  int64             // the indexes of events are complete up to this number
	tail    map[int64][]int64 // the later events, by thread
	logs    []*storedLog      // in their order
	checked atomic.Int64      // report.Events, for Progress
}

// Database checks the whole database at path, as it is at one moment, for anything that a Store would not have written.
// The pages and indexes must be consistent. Every envelope must be signed by its sender, and its columns must agree
// with it. Every thread's record must follow from its envelopes. Database changes nothing and does not disturb other
// users of the database. It accepts what can no longer be verified because an envelope was removed in due time.
//
// Damage is a Finding, not an error. An error means that the check did not finish.
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
		return c.report, dbfile.WithPath(ctx, path, err)
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
		{"indexes", c.indexes},
		{"log", c.logTrees},
		{"threads", c.threads},
		{"roles", c.roles},
		{"threads", c.dues},
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
			break // the other checks need the right tables
		}
	}
	_, err = c.conn.ExecContext(c.ctx, "ROLLBACK") // ends the snapshot; nothing was written
	if isDamage(err) {
		err = nil // was reported above
	}
	return err
}

// isDamage reports whether err means that the database is damaged, and not that the disk failed or memory ran out.
func isDamage(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return errors.Is(err, errRow)
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB,
		sqlite3.SQLITE_ERROR: // the statements are correct, so the tables are wrong
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

// pages lets SQLite check every page, every index of SQLite's own and every column's type. That includes UNIQUE
// constraints.
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

// meta checks the epoch, and compares it with the mark's if there is a mark.
func (c *checker) meta() error {
	var epoch string
	err := c.conn.QueryRowContext(c.ctx, "SELECT value FROM meta WHERE name = 'epoch'").Scan(&epoch)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if n, err := strconv.ParseUint(epoch, 16, 32); err != nil || n == 0 || epoch != fmt.Sprintf("%08x", n) {
		c.found(Finding{"meta", fmt.Sprintf("the epoch is %q, which is not a valid epoch", epoch), cureDamage})
	} else if c.epoch = uint32(n); c.mark.Epoch != 0 && c.mark.Epoch != c.epoch {
		c.found(Finding{"mark", "it belongs to another database, which was here before",
			"if this database was put here on purpose, run agora serve on it once; else put the other database back"})
	}
	return nil
}

// sequence compares the last number given to an event with the mark. A number that is too low would be given twice.
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
		c.found(Finding{"meta", fmt.Sprintf("the last number given to an event is %q, which is not a valid number",
			noted), cureDamage})
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

// errRow is damage found while a row is read.
var errRow = errors.New("a row has values that its columns cannot hold")

// eachRow calls f for every row of a query. A row that cannot be scanned is damage and gives errRow.
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

// watch reports progress every second until the returned function is called.
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

// inParallel calls f for each item, on all processors. It reports the findings in the order of the items.
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
