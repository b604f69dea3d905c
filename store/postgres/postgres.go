// Package postgres is the store for several relay nodes over one PostgreSQL database.
//
// In each node one goroutine writes: the committer. It takes all waiting envelopes as one group. It locks the only row
// of the table head, decides about the group, numbers its events, and commits. So the groups of all nodes take effect
// one after the other, and their events become visible in the order of their numbers. A group costs three round trips
// to the server, rarely five.
//
// The nodes form a pipeline: a commit does not wait, so the next node gets the lock at once, and each node then waits
// until a second, empty commit behind its group is durable, on the primary and on as many standbys as the server's
// synchronous_standby_names says. Before that, the callers get no answer, and no node shows the events; see confirm.
//
// When a group is durable, another goroutine tells the other nodes the last number with NOTIFY. Each node has one
// connection that listens, and one goroutine that reads the new events of other nodes and passes all events to the
// watchers, in order. It also looks once a second, because a notification may be lost.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/postgres/schema"
	"github.com/agora-relay/agora/store/watch"
)

// Options configure a store. The zero value works.
type Options struct {
	relay.Policy
	// Settings are further settings that all nodes must share, by the names that an operator knows.
	Settings   map[string]string
	Extensions []relay.Extension
	Log        *slog.Logger     // nil: slog.Default
	Now        func() time.Time // nil: time.Now
	Observer   relay.Observer   // receives a report of each commit; nil: relay.NoObserver
	Conns      int              // connections for reads; 0: DefaultConns. The store uses three more
	Partition  int64            // events in one partition of a new database; 0: DefaultPartition

	Await       bool   // Open waits until there is a primary, and logs that; else it fails
	AcceptAsync bool   // start although the server does not wait for a standby, or not even for its disk
	KeepPolicy  bool   // do not compare the policy with that of the nodes, and do not store it; for tools
	Alone       bool   // fail while other nodes run; for tools
	Single      bool   // no other node ever runs, so the store looks for none and keeps the lease; for tests
	AcceptLoss  bool   // open a database even if acknowledged events are missing; it gets a new epoch
	NewEpoch    bool   // give the database a new epoch; fails while other nodes run
	Mark        string // path of the file that remembers the last acknowledged event of this node; empty: none
}

// Defaults of Options.
const (
	DefaultConns     = 8
	DefaultPartition = 1 << 20
)

// WithDefaults returns o with its zero fields set to their defaults.
func (o Options) WithDefaults() Options {
	o.Policy = o.Policy.WithDefaults()
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Observer == nil {
		o.Observer = relay.NoObserver{}
	}
	if o.Conns <= 0 {
		o.Conns = DefaultConns
	}
	if o.Partition <= 0 {
		o.Partition = DefaultPartition
	}
	return o
}

// Store is a relay.Store in a PostgreSQL database. Close ends its goroutines and closes its connections.
type Store struct {
	options Options
	policy  relay.Policy // options.Policy; see inbox for the quota
	config  *pgx.ConnConfig
	pool    *pgxpool.Pool // for reads
	schema  string        // where the tables are
	epoch   uint32
	log     atomic.Int64 // log.n of the log that is kept; 0: none

	queue  *ledger.Queue
	writer *writer
	uses   chan nonceUse
	ctx    context.Context // ends when the store is closed
	cancel context.CancelFunc
	// patience ends a while after ctx. A commit that waits for a standby ends then at the latest.
	patience context.Context
	giveUp   context.CancelFunc
	stopped  chan struct{} // closed by the committer when it ends
	workers  sync.WaitGroup
	closing  sync.Once

	down atomic.Pointer[outage] // why nothing can be stored at the moment; nil: it can
	// busySince is when the transaction of the committer began, in nanoseconds; 0: there is none.
	busySince atomic.Int64
	broken    chan struct{} // closed when the store can never be used again
	reason    error         // why; set before broken is closed
	breaks    sync.Once

	readOutage, markFailure repeated

	mark    markFile // only the committer uses it after Open
	durable atomic.Bool
	// unreachable means that the last question to the server, on the connection for the lease, had no answer. A node asks
	// every few seconds, so this is known if nobody posts, too.
	unreachable atomic.Bool
	announced   chan struct{} // see Announced; has room for one
	confirmed   confirmed
	tail        tail
	lease       lease
	sweeper     sweeper

	mu       sync.Mutex  // guards the fields below
	inbox    relay.Quota // the quota that is in force
	watchers watch.Watchers
}

var _ relay.Extender = (*Store)(nil)

// Open connects to the database of dsn, which is a URL or a connection string of libpq, and updates its schema. The
// tables are in the first schema of the search_path. Open fails if other nodes run with another policy.
func Open(ctx context.Context, dsn string, o Options) (_ *Store, err error) {
	o = o.WithDefaults()
	if err := o.Policy.Validate(); err != nil {
		return nil, err
	}
	pools, err := configOf(dsn)
	if err != nil {
		return nil, err
	}
	pools.MaxConns = int32(o.Conns)
	s := &Store{
		options: o, policy: o.Policy, inbox: o.Inbox, config: pools.ConnConfig,
		uses: make(chan nonceUse, ledger.MaxGroup), stopped: make(chan struct{}),
		broken: make(chan struct{}), announced: make(chan struct{}, 1),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.queue = ledger.NewQueue(ledger.QueueOptions{
		Refusal: func(ledger.Job) error { return s.refusal() }, Closing: s.ctx.Done(), Stopped: s.stopped,
		Patience: stuckTime, Stuck: errStuck, Late: errLate,
	})
	s.patience, s.giveUp = context.WithCancel(context.Background())
	if s.pool, err = pgxpool.NewWithConfig(ctx, pools); err != nil {
		return nil, cleaned(err)
	}
	var listener *pgx.Conn
	s.writer, listener, err = s.awaitPrimary(ctx)
	if err != nil {
		s.cancel()
		s.giveUp()
		s.lease.release()
		s.pool.Close()
		return nil, errors.Join(fmt.Errorf("PostgreSQL: %w", cleaned(err)), s.mark.close())
	}
	s.workers.Go(s.writer.run)
	if !o.Single {
		s.workers.Go(func() { s.listen(listener) })
		s.workers.Go(s.keepLease)
	}
	s.workers.Go(s.follow)
	s.workers.Go(s.notify)
	s.workers.Go(s.useNonces)
	return s, nil
}

// openTime is how long Open waits for the server, before and after it updates the tables. The first commit waits for a
// standby.
const openTime = time.Minute

// openWithin does the work of Open after the pool exists, and logs that it waits if this takes long.
func (s *Store) openWithin(ctx context.Context, limit time.Duration) (w *writer, listener *pgx.Conn, err error) {
	defer time.AfterFunc(limit/12, func() {
		s.options.Log.Warn("waiting for PostgreSQL; it updates the tables, or waits for a standby, see pg_stat_replication",
			"limit", limit)
	}).Stop()
	within := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeoutCause(ctx, limit, errOpenTime)
		defer cancel()
		err := f(ctx)
		if err != nil && errors.Is(context.Cause(ctx), errOpenTime) {
			err = errOpenTime
		}
		return err
	}
	w = &writer{store: s, ledger: ledger.New(s.policy)}
	err = within(func(ctx context.Context) error {
		if err := w.connect(ctx); err != nil {
			return err
		}
		return s.checkSession(ctx, w.conn)
	})
	if err == nil {
		err = schema.Current.Migrate(ctx, w.conn, s.options.Extensions, s.options.Partition) // however long it takes
	}
	if err == nil {
		err = within(func(ctx context.Context) (err error) {
			if err = s.prepare(ctx, w.conn); err == nil && !s.options.Single {
				listener, err = s.openListener(ctx)
			}
			return err
		})
	}
	if err != nil {
		w.disconnect()
		return nil, nil, err
	}
	return w, listener, nil
}

var errOpenTime = errors.New("the server has not answered within a minute; it may wait for a standby, see pg_stat_replication")

// prepare reads what the store keeps in memory.
func (s *Store) prepare(ctx context.Context, conn *pgx.Conn) error {
	if err := conn.QueryRow(ctx, "SELECT coalesce(current_schema()::text, '')").Scan(&s.schema); err != nil {
		return err
	}
	if err := s.checkDurability(ctx, conn); err != nil {
		return err
	}
	if err := s.openMark(ctx, conn); err != nil {
		return err
	}
	h, err := readHead(ctx, conn)
	if err != nil {
		return err
	}
	s.epoch = h.epoch
	s.tail.init(h.last)
	s.sweeper.size = h.partition
	if err := s.ensurePartitions(ctx, conn, h.last); err != nil {
		return err
	}
	if err := s.openLease(ctx); err != nil || !s.options.NewEpoch {
		return err
	}
	return s.renewEpoch(ctx, conn)
}

// renewEpoch gives the database a new epoch. The caller has made sure that no other node runs.
func (s *Store) renewEpoch(ctx context.Context, conn *pgx.Conn) error {
	s.epoch = schema.NewEpoch()
	s.mark.epoch = s.epoch
	if _, err := conn.Exec(ctx, "UPDATE head SET epoch = $1", int64(s.epoch)); err != nil {
		return err
	}
	return s.mark.write()
}

// head is the row of the table head.
type head struct {
	epoch            uint32
	last             relay.Seq
	swept, partition int64
}

func readHead(ctx context.Context, q interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}) (h head, err error) {
	err = q.QueryRow(ctx, "SELECT epoch, last, swept, partition FROM head").
		Scan(&h.epoch, &h.last, &h.swept, &h.partition)
	return h, err
}

// Policy returns the policy that the store was opened with.
func (s *Store) Policy() relay.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.policy
	p.Inbox = s.inbox
	return p
}

// SetInbox implements relay.Store. It changes the quota of this node only.
func (s *Store) SetInbox(ctx context.Context, q relay.Quota) error {
	return s.task(ctx, func(w *writer) error {
		w.ledger.SetInbox(q)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.inbox = q.WithDefaults()
		return nil
	})
}

// closeTime is how long Close waits for a commit that waits for a standby. The outcome is then unknown.
const closeTime = 5 * time.Second

// Close waits until the goroutines have finished their current work, and closes the connections. Calls that are
// waiting, and later calls, get CodeUnavailable.
func (s *Store) Close() (err error) {
	s.closing.Do(func() {
		s.cancel()
		defer time.AfterFunc(closeTime, s.giveUp).Stop()
		s.workers.Wait()
		s.giveUp()
		s.lease.release()
		s.pool.Close()
		err = s.mark.close()
	})
	return err
}

// closed returns relay.ErrShuttingDown after Close was called, and the reason if the store cannot be used any more.
func (s *Store) closed() error {
	select {
	case <-s.ctx.Done():
		return relay.ErrShuttingDown
	case <-s.broken:
		return s.reason
	default:
		return nil
	}
}

// breakWith ends the use of the store. The first reason counts. Watch returns it, so the relay ends.
func (s *Store) breakWith(reason error) {
	s.breaks.Do(func() {
		s.options.Log.Error("the database cannot be used any more", "err", reason)
		s.reason = reason
		close(s.broken)
	})
}

func (s *Store) cursor(seq relay.Seq) relay.Cursor { return relay.Cursor{Epoch: s.epoch, Seq: seq} }

// nanos returns t as the tables store it, see ledger.Nanos.
func nanos(t time.Time) int64 { return ledger.Nanos(t) }

func instant(nanos int64) time.Time { return ledger.Instant(nanos) }

// ErrPolicy is the error of Open if other nodes run with another policy.
var ErrPolicy = errors.New("other nodes of this relay run with another policy")
