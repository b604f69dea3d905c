// Package sqlite is the embedded store. It keeps everything in one database file, through modernc.org/sqlite, which
// needs no C compiler.
//
// One goroutine writes: the writer. It takes all waiting envelopes as one group and stores them in one immediate
// transaction with synchronous=FULL. After the commit it answers their callers. So a group shares one fsync, and no
// envelope is acknowledged without one. Readers use their own connections and see committed data only.
//
// The writer stores events and threads at once, and fills most of their indexes later, see merge.go. The tail finds what is
// not in the indexes yet, see tail.go.
//
// A database is used by one process at a time. A lock file beside the database enforces this. No other code in that
// process may open the database's files: closing any descriptor of such a file drops SQLite's own locks on it.
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
	"github.com/agora-relay/agora/store/watch"
)

// Options configure a store. The zero value works.
type Options struct {
	relay.Policy
	MaxBytes   int64 // largest size of the database file, without write-ahead log and reserve; 0: DefaultMaxBytes
	Reserve    int64 // bytes of disk space held back for when the disk is full; 0: DefaultReserve
	Extensions []relay.Extension
	AcceptLoss bool             // open a database even if acknowledged events are missing; it gets a new epoch
	NewEpoch   bool             // give the database a new epoch
	Log        *slog.Logger     // nil: slog.Default
	Now        func() time.Time // nil: time.Now
	Observer   relay.Observer   // receives a report of each commit; nil: relay.NoObserver

	// Rewrote is called when Open has written a file again and synced it, for tests that simulate a disk. nil: not called.
	Rewrote func(path string)

	tickInterval time.Duration                                 // time between two ticks of care; 0: one second
	diskRoom     func(folder string) (bytes int64, known bool) // for rebuild; nil: diskRoom
	mergeEvents  int                                           // events of a merge; 0: writer.batch
	mergeSlice   int                                           // least number of index rows of a slice; 0: minSlice
}

// Defaults of Options.
const (
	DefaultMaxBytes = 64 << 30
	DefaultReserve  = 64 << 20
)

// WithDefaults returns o with its zero fields set to their defaults.
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
	if o.diskRoom == nil {
		o.diskRoom = diskRoom
	}
	if o.tickInterval == 0 {
		o.tickInterval = time.Second
	}
	return o
}

// Store is a relay.Store in one database file. Close ends its goroutines and releases its lock.
type Store struct {
	path    string
	options Options
	policy  relay.Policy // options.Policy; see inbox for the quota
	lock    *flock.Flock
	writeDB *sql.DB // has as many connections as the constant writers
	readDB  *sql.DB
	viewDB  *sql.DB
	views   chan *preparedConn // the idle connections of viewDB
	epoch   uint32

	queue   *ledger.Queue
	writer  *writer
	reads   chan func()
	stop    chan struct{} // closed by Close
	stopped chan struct{} // closed by the writer when it ends
	workers sync.WaitGroup
	closing sync.Once
	head    atomic.Int64 // number of the last committed event
	tail    tail
	care    care
	log     atomic.Int64 // log.n of the log that is kept; 0: none

	mu       sync.Mutex  // guards the fields below
	inbox    relay.Quota // the quota that is in force
	watchers watch.Watchers
	prepared map[string]*sql.Stmt // statements of readDB, by their SQL
}

var _ relay.Extender = (*Store)(nil)

// Numbers of connections: writers are the writer's and care's, readers are for reads. There are as many connections for
// views as for reads.
const (
	writers = 2
	readers = 4
)

// Open opens the database at path, creates it if it does not exist, and updates its schema. Only the owner of the
// database's files can read them, whatever the umask. Open changes the modes of files that other users can read. It
// does not change the mode of the folder. Open fails if another process has the database open. It also fails if the
// database lacks acknowledged events, unless AcceptLoss is set.
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
		path: path, options: o, policy: o.Policy, inbox: o.Inbox, lock: flock.New(path + ".lock"),
		reads: make(chan func()),
		stop:  make(chan struct{}), stopped: make(chan struct{}),
		prepared: map[string]*sql.Stmt{}, tail: tail{growing: newPart()},
	}
	s.queue = ledger.NewQueue(ledger.QueueOptions{Refusal: s.refusal, Closing: s.stop, Stopped: s.stopped, Batch: s.batch})
	s.care.path, s.care.maxBytes, s.care.tickInterval, s.care.log = path, o.MaxBytes, o.tickInterval, o.Log
	s.care.task, s.care.logGrown, s.care.reserve = s.task, make(chan struct{}, 1),
		reserve{path: path + ".reserve", wanted: o.Reserve}
	locked, err := s.lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if !locked {
		return nil, fmt.Errorf("%s is in use by another process; only one relay can use a database at a time, "+
			"so stop the other relay or choose another data folder", path)
	}
	if s.writer, err = s.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), s.release())
	}
	s.workers.Go(s.writer.run)
	for range readers {
		s.workers.Go(s.reader)
	}
	s.care.tick() // creates the reserve before the first message is accepted
	s.workers.Go(func() { s.care.run(s.stop) })
	return s, nil
}

// open does the work of Open after the lock is taken.
func (s *Store) open(ctx context.Context) (w *writer, err error) {
	if err := makePrivate(s.path); err != nil {
		return nil, err
	}
	size, err := rewriteLog(s.path)
	if err != nil {
		return nil, err
	}
	if size > 0 && s.options.Rewrote != nil {
		s.options.Rewrote(s.path + "-wal")
	}
	found, err := checkLoss(ctx, s.path)
	loss := errors.Is(err, dbfile.ErrLoss)
	switch {
	case loss && !s.options.AcceptLoss:
		return nil, fmt.Errorf("%w; %s", err, lossAdvice(s.path))
	case err != nil && !loss:
		return nil, err
	}
	if err := s.prepareWithReserve(ctx); err != nil {
		return nil, err
	}
	if loss || s.options.NewEpoch {
		if err := s.renewEpoch(ctx, loss, found.Seq); err != nil {
			return nil, err
		}
		found.Epoch = 0
	}
	if err := s.connect(ctx); err != nil {
		return nil, err
	}
	if err := s.resumeMark(s.path, found); err != nil {
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

// prepareWithReserve calls prepare. If the disk is full, it releases the reserve and tries again.
func (s *Store) prepareWithReserve(ctx context.Context) error {
	err := s.prepare(ctx)
	switch codeOf(err) {
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_CANTOPEN:
		// The disk is full. SQLite reports that with several codes.
		if released := s.care.reserve.release(); released != nil {
			return errors.Join(err, released)
		}
		return s.prepare(ctx)
	}
	return err
}

// renewEpoch gives the database a new epoch. last is the number of the last acknowledged event, if loss says that some
// are missing.
func (s *Store) renewEpoch(ctx context.Context, loss bool, last relay.Seq) error {
	if loss {
		s.options.Log.Error("the loss is accepted; the database gets a new epoch, "+
			"so that readers do not mistake new events for events they have already read",
			"path", s.path, "last", last)
	}
	_, err := s.writeDB.ExecContext(ctx, "UPDATE meta SET value = ? WHERE name = 'epoch'", schema.NewEpoch())
	return err
}

// connect opens all connections, and reads the epoch and the number of the last event.
func (s *Store) connect(ctx context.Context) (err error) {
	s.care.db = s.writeDB
	if s.readDB, err = dbfile.Open(s.path, "deferred", readPragmas, "rw"); err != nil {
		return err
	}
	if err := errors.Join(openAll(ctx, s.writeDB, writers), openAll(ctx, s.readDB, readers)); err != nil {
		return err
	}
	if err := s.openViews(ctx); err != nil {
		return err
	}
	epoch, head, err := epochAndHead(ctx, s.writeDB)
	s.epoch = epoch
	s.head.Store(int64(head))
	return err
}

// prepare opens the connections that write, and copies the write-ahead log into the database.
func (s *Store) prepare(ctx context.Context) (err error) {
	if s.writeDB == nil {
		if err := createPrivate(s.path); err != nil {
			return err
		}
		if s.writeDB, err = dbfile.Open(s.path, "immediate", writePragmas, "rwc"); err != nil {
			return err
		}
	}
	if err := s.rebuild(ctx); err != nil {
		return err
	}
	if err := schema.Migrate(ctx, s.writeDB); err != nil {
		return err
	}
	if err := schema.Extend(ctx, s.writeDB, s.options.Extensions); err != nil {
		return err
	}
	var busy bool
	var length, copied int
	if err := s.writeDB.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").
		Scan(&busy, &length, &copied); err != nil {
		return err
	}
	if busy {
		return errors.New("another program is reading the database and blocks the first checkpoint; " +
			"try again when that program has ended")
	}
	return nil
}

// writePragmas are for the connections that write. No other process writes, so the busy timeout is how long the writer
// waits for readers when it restarts the write-ahead log.
var writePragmas = []string{
	"journal_mode(WAL)", "synchronous(FULL)", "busy_timeout(250)", "wal_autocheckpoint(0)",
	"journal_size_limit(67108864)", "cache_size(-16384)", "temp_store(MEMORY)", "trusted_schema(OFF)",
}

var readPragmas = []string{"query_only(ON)", "busy_timeout(5000)", "cache_size(-1024)", "temp_store(MEMORY)",
	"trusted_schema(OFF)"}

// openAll opens n connections and keeps them open in the pool. A connection opened later would fail if the process had
// no file descriptors left by then. The pragmas of a connection read the database, so its write-ahead log is opened
// too.
func openAll(ctx context.Context, db *sql.DB, n int) (err error) {
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	return onAll(ctx, db, n, func(*sql.Conn) error { return nil })
}

// Policy returns the policy that the store was opened with.
func (s *Store) Policy() relay.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.policy
	p.Inbox = s.inbox
	return p
}

// SetInbox implements relay.Store.
func (s *Store) SetInbox(ctx context.Context, q relay.Quota) error {
	return s.task(ctx, func(w *writer) error {
		w.ledger.SetInbox(q)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.inbox = q.WithDefaults()
		return nil
	})
}

// Close waits until the goroutines have finished their current work, closes the files and releases the lock. Calls that
// are waiting, and later calls, get CodeUnavailable.
func (s *Store) Close() (err error) {
	s.closing.Do(func() {
		close(s.stop)
		s.workers.Wait()
		err = errors.Join(s.care.syncMark(), s.release())
	})
	return err
}

func (s *Store) release() error {
	errs := []error{s.closeViews()}
	if s.writeDB != nil && state(s.care.state.Load()) == diskFailed {
		errs = append(errs, keepLog(context.Background(), s.writeDB))
	}
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

// refusal returns why the writer must not get j at the moment; nil: it may. Tasks decide themselves.
func (s *Store) refusal(j ledger.Job) error {
	if j.Task != nil {
		return nil
	}
	return s.care.refusal()
}

// closed returns relay.ErrShuttingDown after Close was called, else nil.
func (s *Store) closed() error {
	select {
	case <-s.stop:
		return relay.ErrShuttingDown
	default:
		return nil
	}
}

// nanos returns t as the tables store it, see ledger.Nanos.
func nanos(t time.Time) int64 { return ledger.Nanos(t) }

func instant(nanos int64) time.Time { return ledger.Instant(nanos) }
