package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/postgres/schema"
)

// lease is the connection that shows the other nodes that this one is alive. It holds a lock that all nodes share, and
// in one of the nodes the lock of the lease. The server releases both when the connection ends.
type lease struct {
	held      atomic.Bool               // this node sweeps and serves the gateways
	changes   atomic.Int64              // how often held has changed
	confirmed atomic.Pointer[time.Time] // when the server was last asked whether this node has the lease, and it had
	mu        sync.Mutex                // guards the fields below
	conn      *pgx.Conn

	changed chan struct{} // closed and replaced when held changes
}

// set changes held.
func (l *lease) set(held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held.Swap(held) == held {
		return
	}
	l.changes.Add(1)
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Lease reports whether this node holds the lease, and returns a channel that is closed when this changes.
func (s *Store) Lease() (held bool, changed <-chan struct{}) {
	l := &s.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.held.Load(), l.changed
}

// LeaseChanges returns how often this node has got or lost the lease.
func (s *Store) LeaseChanges() int64 { return s.lease.changes.Load() }

// leaseEvery is how often a node asks for the lease, and how often the holder checks that it still has it. A node that
// has died, is cut off or is frozen loses the lease within seven seconds, see session and leaseSession. So another node
// takes over within ten.
const leaseEvery = 2 * time.Second

// leaseSession are the settings of the connection for the lease. The server ends it if the node does not ask for long.
const leaseSession = "SET idle_session_timeout = '7s'"

// leaseTrust is how long a node relies on the last answer that it has the lease. It ends before the server gives the
// lease to another node. A node that was frozen meanwhile finds that it does not lead any more.
const leaseTrust = 5 * time.Second

// Leads reports whether this node holds the lease. Only one node does. It sweeps, and it serves the gateways.
func (s *Store) Leads() bool {
	at := s.lease.confirmed.Load()
	return s.lease.held.Load() && at != nil && (s.options.Single || time.Since(*at) < leaseTrust)
}

// openLease connects, compares the policy with the other nodes, and takes the lease if it is free.
func (s *Store) openLease(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*connectTime)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, s.config.Copy())
	if err != nil {
		return err
	}
	s.lease.mu.Lock()
	s.lease.conn = conn
	s.lease.mu.Unlock()
	if !s.options.Single { // else no node can take over
		if _, err := conn.Exec(ctx, leaseSession); err != nil {
			return err
		}
	}
	if err := s.sharePolicy(ctx, conn); err != nil {
		return err
	}
	return s.takeLease(ctx, conn)
}

func (s *Store) takeLease(ctx context.Context, conn *pgx.Conn) error {
	var held bool
	asked := time.Now()
	err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1, $2)", int32(schema.LockLease), schema.Space(s.schema)).
		Scan(&held)
	if err == nil && held && s.closed() == nil {
		s.lease.confirmed.Store(&asked)
		s.lease.set(true)
		s.options.Log.Info("this node sweeps the database now, and serves the gateways")
	}
	return err
}

// sharePolicy takes the locks that nodes share, see schema.Program.Join. Before that, it checks that this node has the
// same policy and settings as the other nodes. A node that is alone may change them.
func (s *Store) sharePolicy(ctx context.Context, conn *pgx.Conn) (err error) {
	space := schema.Space(s.schema)
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1, $2)", int32(schema.LockMigrate), space); err != nil {
		return err
	}
	defer func() {
		_, failed := conn.Exec(ctx, "SELECT pg_advisory_unlock($1, $2)", int32(schema.LockMigrate), space)
		err = errors.Join(err, failed)
	}()
	if s.options.Alone || s.options.NewEpoch {
		if alone, err := tryAlone(ctx, conn, space); err != nil || !alone {
			return errors.Join(err, errNotAlone)
		}
		if _, err := conn.Exec(ctx, "SELECT pg_advisory_unlock($1, $2)", int32(schema.LockNodes), space); err != nil {
			return err
		}
	}
	if s.options.KeepPolicy {
		return schema.Current.Join(ctx, conn, s.options.Extensions, space)
	}
	shared := s.policy
	shared.Inbox = relay.Quota{} // each node may change it while it runs
	mine, err := json.Marshal(sharedSettings{shared, s.options.Settings})
	if err != nil {
		return err
	}
	var stored []byte
	err = conn.QueryRow(ctx, "SELECT value FROM setting WHERE name = 'policy'").Scan(&stored)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	if string(stored) != string(mine) {
		alone, err := tryAlone(ctx, conn, space)
		if err != nil {
			return err
		}
		if !alone {
			return fmt.Errorf("%w: %s; give all nodes the same settings, or stop the others first", ErrPolicy,
				s.differences(stored))
		}
		_, err = conn.Exec(ctx, "INSERT INTO setting (name, value) VALUES ('policy', $1) "+
			"ON CONFLICT (name) DO UPDATE SET value = excluded.value", mine)
		if err == nil {
			_, err = conn.Exec(ctx, "SELECT pg_advisory_unlock($1, $2)", int32(schema.LockNodes), space)
		}
		if err != nil {
			return err
		}
	}
	return schema.Current.Join(ctx, conn, s.options.Extensions, space)
}

// sharedSettings are what all nodes must have in common, as the database has them.
type sharedSettings struct {
	Policy   relay.Policy
	Settings map[string]string
}

// differences says in which settings this node differs from the others, whose settings are stored.
func (s *Store) differences(stored []byte) string {
	var theirs sharedSettings
	if err := json.Unmarshal(stored, &theirs); err != nil {
		return "their settings are those of another version"
	}
	var found []string
	mine := s.options.Settings
	for _, name := range slices.Sorted(maps.Keys(mine)) {
		if their := theirs.Settings[name]; their != mine[name] {
			found = append(found, fmt.Sprintf("%s is %q here and %q there", name, mine[name], their))
		}
	}
	if len(found) == 0 {
		return "their timeouts or limits differ"
	}
	return strings.Join(found, ", ")
}

var errNotAlone = errors.New("nodes of this relay run with this database; stop them first")

// tryAlone takes the lock of all nodes for this one alone. It returns false if others run.
func tryAlone(ctx context.Context, conn *pgx.Conn, space int32) (alone bool, err error) {
	err = conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1, $2)", int32(schema.LockNodes), space).Scan(&alone)
	return alone, err
}

// keepLease keeps the connection, and asks for the lease while another node has it, until the store is closed.
func (s *Store) keepLease() {
	for failures := 0; s.wait(leaseEvery/2 + rand.N(leaseEvery/2)); {
		err := s.checkLease()
		s.unreachable.Store(err != nil)
		switch {
		case err == nil:
			failures = 0
		case errors.Is(err, ErrPolicy), errors.Is(err, schema.ErrNewerSchema):
			s.breakWith(err)
			return
		default:
			if failures++; failures == 1 && s.ctx.Err() == nil {
				s.options.Log.Warn("the connection for the lease was lost; connecting again", "err", cleaned(err))
			}
		}
	}
}

func (s *Store) checkLease() error {
	s.lease.mu.Lock()
	conn := s.lease.conn
	s.lease.mu.Unlock()
	if conn == nil || conn.IsClosed() {
		return s.openLease(s.ctx)
	}
	ctx, cancel := context.WithTimeout(s.ctx, leaseEvery)
	defer cancel()
	var err error
	if asked := time.Now(); s.lease.held.Load() {
		if _, err = conn.Exec(ctx, "SELECT 1"); err == nil {
			s.lease.confirmed.Store(&asked)
		}
	} else {
		err = s.takeLease(ctx, conn)
	}
	if err != nil {
		s.lease.release()
	}
	return err
}

// release gives the lease back and closes the connection.
func (l *lease) release() {
	l.set(false)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	// Without this, the server would release the locks a moment after the connection was closed.
	_, _ = l.conn.Exec(ctx, "SELECT pg_advisory_unlock_all()") // if it fails, the server releases the locks itself
	_ = l.conn.Close(ctx)
	l.conn = nil
}
