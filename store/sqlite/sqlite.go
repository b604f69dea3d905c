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
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"
	_ "modernc.org/sqlite" // registers the driver
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/sqlite/internal/dbfile"
	"github.com/agora-relay/agora/store/sqlite/schema"
)

// Options are what a store is opened with. The zero value works.
type Options struct {
	relay.Policy
	MaxBytes   int64 // the database's size at most, its write-ahead log and reserve aside; 0: DefaultMaxBytes
	Reserve    int64 // bytes held back for the time when the disk is full; 0: DefaultReserve
	Extensions []relay.Extension
	AcceptLoss bool             // open also what lacks acknowledged events, under a new epoch
	Log        *slog.Logger     // nil: slog.Default
	Now        func() time.Time // nil: time.Now
	Observer   relay.Observer   // is told of commits; nil: relay.NoObserver

	every time.Duration // between two ticks of care; 0: a second
}

// The zero Options'.
const (
	DefaultMaxBytes = 64 << 30
	DefaultReserve  = 64 << 20
)

// WithDefaults returns o with its zero fields replaced.
func (o Options) WithDefaults() Options {
	o.Policy = o.Policy.WithDefaults()
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.Reserve == 0 {
		o.Reserve = DefaultReserve
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Observer == nil {
		o.Observer = relay.NoObserver{}
	}
	if o.every == 0 {
		o.every = time.Second
	}
	return o
}

// Store is a relay.Store in one database file. Close it to end its goroutines and release its lock.
type Store struct {
	path    string
	options Options
	policy  relay.Policy // the options'
	lock    *flock.Flock
	writeDB *sql.DB // as many connections as writers
	readDB  *sql.DB
	epoch   uint32

	appends chan job
	tasks   chan job
	reads   chan func()
	stop    chan struct{} // closed by Close
	stopped chan struct{} // closed by the writer when it has ended
	workers sync.WaitGroup
	closing sync.Once
	head    atomic.Int64 // the last committed sequence number
	care    care

	mu       sync.Mutex // guards what follows
	watchers map[*watcher]struct{}
	prepared map[string]*sql.Stmt // of readDB, by their text
}

var _ relay.Extender = (*Store)(nil)

// How many connections there are: of the writer and of care, and of those who read.
const (
	writers = 2
	readers = 4
)

// Open opens the database at path, making it if it is not there, and brings its schema up to date. Its files are for
// their owner only, whatever the umask; those that others could read are changed. The folder is the caller's.
// It fails if another process has it open, and if it lacks events that it had acknowledged.
func Open(ctx context.Context, path string, o Options) (_ *Store, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	o = o.WithDefaults()
	if err := o.Policy.Validate(); err != nil {
		return nil, err
	}
	s := &Store{
		path: path, options: o, policy: o.Policy, lock: flock.New(path + ".lock"),
		appends: make(chan job, maxGroup), tasks: make(chan job), reads: make(chan func()), stop: make(chan struct{}), stopped: make(chan struct{}),
		watchers: map[*watcher]struct{}{}, prepared: map[string]*sql.Stmt{},
	}
	s.care.path, s.care.maxBytes, s.care.every, s.care.log = path, o.MaxBytes, o.every, o.Log
	s.care.task, s.care.logGrown, s.care.reserve = s.task, make(chan struct{}, 1), reserve{path: path + ".reserve", wanted: o.Reserve}
	locked, err := s.lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if !locked {
		return nil, fmt.Errorf("%s is in use by another process; a database serves one relay at a time, "+
			"so stop the other one or choose another data folder", path)
	}
	w, err := s.open(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), s.release())
	}
	s.workers.Go(w.run)
	for range readers {
		s.workers.Go(s.reader)
	}
	s.care.tick() // so that a reserve stands before the first message is taken in
	s.workers.Go(func() { s.care.run(s.stop) })
	return s, nil
}

// open does what Open does once the lock is held.
func (s *Store) open(ctx context.Context) (w *writer, err error) {
	if err := makePrivate(s.path); err != nil {
		return nil, err
	}
	found, err := compare(ctx, s.path)
	loss := errors.Is(err, dbfile.ErrLoss)
	switch {
	case loss && !s.options.AcceptLoss:
		return nil, fmt.Errorf("%w; %s", err, lossAdvice(s.path))
	case err != nil && !loss:
		return nil, err
	}
	err = s.prepare(ctx)
	switch codeOf(err) {
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_CANTOPEN:
		// The disk is full, which SQLite has several words for.
		if released := s.care.reserve.release(); released != nil {
			return nil, errors.Join(err, released)
		}
		err = s.prepare(ctx)
	}
	if err != nil {
		return nil, err
	}
	if loss {
		s.options.Log.Error("a loss is accepted: the database gets a new epoch, so that no reader takes what is stored from now on for what he has read",
			"path", s.path, "last", found.Seq)
		if _, err := s.writeDB.ExecContext(ctx, "UPDATE meta SET value = ? WHERE name = 'epoch'", schema.NewEpoch()); err != nil {
			return nil, err
		}
		found.Epoch = 0
	}
	s.care.db = s.writeDB
	if s.readDB, err = dbfile.Open(s.path, "deferred", readPragmas, "rw"); err != nil {
		return nil, err
	}
	if err := errors.Join(openAll(ctx, s.writeDB, writers), openAll(ctx, s.readDB, readers)); err != nil {
		return nil, err
	}
	epoch, head, err := identity(ctx, s.writeDB)
	if err != nil {
		return nil, err
	}
	s.epoch = epoch
	s.head.Store(int64(head))
	if err := s.takeUp(s.path, found); err != nil {
		return nil, err
	}
	if w, err = newWriter(ctx, s); err != nil {
		return nil, err
	}
	target, err := s.care.reserve.target()
	if err == nil {
		s.care.logLimit.Store(logLimit(target))
		_, err = w.limitSize(target)
	}
	if err == nil {
		err = s.care.rememberFiles()
	}
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// prepare opens the connections that write and makes what they find durable: after a failed fsync, pages of the
// write-ahead log may be readable and yet not on disk. Copied into the database they are.
func (s *Store) prepare(ctx context.Context) (err error) {
	if s.writeDB == nil {
		if err := createPrivate(s.path); err != nil {
			return err
		}
		if s.writeDB, err = dbfile.Open(s.path, "immediate", writePragmas, "rwc"); err != nil {
			return err
		}
	}
	if err := schema.Migrate(ctx, s.writeDB); err != nil {
		return err
	}
	if err := schema.Extend(ctx, s.writeDB, s.options.Extensions); err != nil {
		return err
	}
	var busy bool
	var length, copied int
	if err := s.writeDB.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &length, &copied); err != nil {
		return err
	}
	if busy {
		return errors.New("another program reads the database and stands in the way of the first checkpoint; try again when it has ended")
	}
	return nil
}

// Nobody else writes, so the writer's busy timeout is how long it waits for readers when it makes the log begin again.
var writePragmas = []string{
	"journal_mode(WAL)", "synchronous(FULL)", "busy_timeout(250)", "wal_autocheckpoint(0)",
	"journal_size_limit(67108864)", "cache_size(-4096)", "temp_store(MEMORY)", "trusted_schema(OFF)",
}

var readPragmas = []string{"query_only(ON)", "busy_timeout(5000)", "cache_size(-1024)", "temp_store(MEMORY)", "trusted_schema(OFF)"}

// openAll opens n connections, and with their pragmas, which read the database, also its write-ahead log. They stay open:
// one opened later, when somebody needs it, would fail once the process has no file descriptors left.
func openAll(ctx context.Context, db *sql.DB, n int) (err error) {
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	for range n {
		conn, failed := db.Conn(ctx)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, conn.Close()) }() // back to the pool, when all are open
	}
	return nil
}

// Policy returns what the store was opened with.
func (s *Store) Policy() relay.Policy { return s.policy }

// Close ends the goroutines after what they are doing, closes the files and releases the lock. Calls that come later,
// and those still waiting, get CodeUnavailable.
func (s *Store) Close() (err error) {
	s.closing.Do(func() {
		close(s.stop)
		s.workers.Wait()
		err = errors.Join(s.care.syncMark(), s.release())
	})
	return err
}

func (s *Store) release() error {
	var errs []error
	for _, db := range []*sql.DB{s.readDB, s.writeDB} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	if s.care.mark != nil {
		errs = append(errs, s.care.mark.file.Close())
		s.care.mark = nil
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

// nanos returns t as the tables hold it.
func nanos(t time.Time) int64 { return ledger.Nanos(t) }

func instant(nanos int64) time.Time { return ledger.Instant(nanos) }
