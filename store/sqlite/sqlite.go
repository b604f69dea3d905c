// Package sqlite is the embedded store, one database file over modernc.org/sqlite (no C compiler needed).
//
// One goroutine writes. It takes whatever envelopes wait, stores them in one immediate transaction with
// synchronous=FULL, and answers their callers after the commit: the fsync is shared, never skipped. Readers use
// connections of their own and see committed data only.
//
// A database belongs to one process at a time; a lock file beside it says so. Nothing else in that process may open
// the database's files: closing any descriptor of them would drop SQLite's own locks.
package sqlite

import (
	"context"
	"crypto/rand"
	"database/sql"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"
	_ "modernc.org/sqlite" // registers the driver

	"github.com/agora-relay/agora/relay"
)

// Store is a relay.Store in one database file. Close it to end its goroutine and release its lock.
type Store struct {
	policy  relay.Policy
	lock    *flock.Flock
	writeDB *sql.DB // one connection, used by the writer only
	readDB  *sql.DB
	epoch   uint32

	appends chan job
	tasks   chan job
	stop    chan struct{} // closed by Close
	stopped chan struct{} // closed by the writer when it has ended
	closing sync.Once
	head    atomic.Int64 // the last committed sequence number

	mu       sync.Mutex // guards what follows
	watchers map[*watcher]struct{}
	prepared map[string]*sql.Stmt // of readDB, by their text
}

var _ relay.Store = (*Store)(nil)

const readers = 4

// Open opens the database at path, making it if it is not there, and brings its schema up to date.
// It fails if another process has it open.
func Open(ctx context.Context, path string, policy relay.Policy) (_ *Store, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	s := &Store{
		policy: policy.WithDefaults(), lock: flock.New(path + ".lock"),
		appends: make(chan job, maxGroup), tasks: make(chan job), stop: make(chan struct{}), stopped: make(chan struct{}),
		watchers: map[*watcher]struct{}{}, prepared: map[string]*sql.Stmt{},
	}
	locked, err := s.lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if !locked {
		return nil, fmt.Errorf("%s is in use by another process; a database serves one relay at a time, "+
			"so stop the other one or choose another data folder", path)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.release())
		}
	}()
	if s.writeDB, err = open(path, "immediate", writePragmas); err != nil {
		return nil, err
	}
	s.writeDB.SetMaxOpenConns(1)
	if err := migrate(ctx, s.writeDB); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if s.readDB, err = open(path, "deferred", readPragmas); err != nil {
		return nil, err
	}
	s.readDB.SetMaxOpenConns(readers)
	s.readDB.SetMaxIdleConns(readers)
	w, err := newWriter(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	go w.run()
	return s, nil
}

var writePragmas = []string{
	"journal_mode(WAL)", "synchronous(FULL)", "busy_timeout(5000)", "wal_autocheckpoint(10000)",
	"journal_size_limit(67108864)", "cache_size(-65536)", "temp_store(MEMORY)", "trusted_schema(OFF)",
}

var readPragmas = []string{"query_only(ON)", "busy_timeout(5000)", "cache_size(-16384)", "temp_store(MEMORY)", "trusted_schema(OFF)"}

// open passes pragmas in the data source name, where they reach every connection of the pool.
func open(path, txlock string, pragmas []string) (*sql.DB, error) {
	dsn := url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: url.Values{"_pragma": pragmas, "_txlock": {txlock}}.Encode()}
	return sql.Open("sqlite", dsn.String())
}

//go:embed schema/*.sql
var schema embed.FS

// migrate runs the schema files whose number is above the database's user_version, each in a transaction.
func migrate(ctx context.Context, db *sql.DB) error {
	var have int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return err
	}
	files, err := fs.Glob(schema, "schema/*.sql")
	if err != nil {
		return err
	}
	if have > len(files) {
		return fmt.Errorf("the database has schema %d, this program knows %d; it was written by a newer version, use that one", have, len(files))
	}
	for number := have + 1; number <= len(files); number++ {
		text, err := schema.ReadFile(files[number-1])
		if err != nil {
			return err
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, string(text)+"\nPRAGMA user_version = "+strconv.Itoa(number)); err != nil {
			return errors.Join(fmt.Errorf("schema %d: %w", number, err), tx.Rollback())
		}
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	var random [4]byte
	rand.Read(random[:]) // never fails (crypto/rand)
	_, err = db.ExecContext(ctx, "INSERT INTO meta (name, value) VALUES ('epoch', ?) ON CONFLICT DO NOTHING",
		fmt.Sprintf("%08x", binary.BigEndian.Uint32(random[:])|1)) // not 0, which is the zero Cursor's
	return err
}

// Close ends the writer after what it is doing, closes the files and releases the lock. Calls that come later, and
// those still waiting, get CodeUnavailable.
func (s *Store) Close() error {
	s.closing.Do(func() { close(s.stop) })
	<-s.stopped
	return s.release()
}

func (s *Store) release() error {
	var errs []error
	for _, db := range []*sql.DB{s.readDB, s.writeDB} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(append(errs, s.lock.Unlock())...)
}

// closed returns relay.ErrShuttingDown once Close has been called.
func (s *Store) closed() error {
	select {
	case <-s.stop:
		return relay.ErrShuttingDown
	default:
		return nil
	}
}

// nanos returns t as the tables hold it. Instants that do not fit, centuries away, become the nearest that does.
func nanos(t time.Time) int64 {
	switch year := t.Year(); {
	case year < 1970:
		return 0
	case year > 2261:
		return 1<<63 - 1
	}
	return t.UnixNano()
}

func instant(nanos int64) time.Time { return time.Unix(0, nanos).UTC() }
