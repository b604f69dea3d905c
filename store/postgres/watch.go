package postgres

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/watch"
)

// tail knows up to which event this node has passed events to its watchers.
type tail struct {
	mu      sync.Mutex // held while events are passed on
	passed  relay.Seq
	pending []ownGroup // groups of this node behind passed, in order

	wake   chan struct{} // tells follow to look; has room for one
	tell   chan struct{} // tells notify that this node has committed; has room for one
	told   relay.Seq     // number for the next notification; guarded by toldMu
	toldMu sync.Mutex
}

// ownGroup is a group that this node has committed. So its events need not be read from the database.
type ownGroup struct {
	after, last relay.Seq // it has the numbers behind after, up to last
	posted      []relay.Posted
}

// maxPending is how many groups may wait in memory for events of other nodes. The node reads the events of further
// groups from the database.
const maxPending = 256

func (t *tail) init(last relay.Seq) {
	t.passed, t.wake, t.tell = last, make(chan struct{}, 1), make(chan struct{}, 1)
}

func (t *tail) position() relay.Seq {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.passed
}

// signal sends on a channel with room for one, unless it is full.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// committed passes on a group that this node has committed, as soon as all events before it were passed on.
func (s *Store) committed(after, last relay.Seq, posted []relay.Posted) {
	s.confirmed.raise(last)
	if last == after {
		return
	}
	t := &s.tail
	t.mu.Lock()
	if len(t.pending) < maxPending {
		t.pending = append(t.pending, ownGroup{after, last, posted})
	}
	s.passPending()
	behind := t.passed < last
	t.mu.Unlock()
	if behind {
		signal(t.wake)
	}
	t.toldMu.Lock()
	t.told = max(t.told, last)
	t.toldMu.Unlock()
	signal(t.tell)
}

// passPending passes on the groups of this node that are next. The caller holds s.tail.mu.
func (s *Store) passPending() {
	t := &s.tail
	for len(t.pending) > 0 && t.pending[0].after <= t.passed {
		g := t.pending[0]
		t.pending = t.pending[1:]
		if g.last <= t.passed {
			continue // its events were read from the database
		}
		for len(g.posted) > 0 && g.posted[0].Seq <= t.passed {
			g.posted = g.posted[1:]
		}
		t.passed = g.last
		s.watchers.Publish(g.posted)
	}
}

// follow passes on the events of other nodes. It looks when it is woken, and once a second, because a notification may
// be lost.
func (s *Store) follow() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	if s.options.Single { // this node passes on its own events when it has committed them
		tick.Stop()
	}
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.tail.wake:
		case <-tick.C:
		}
		for more := true; more && s.ctx.Err() == nil; {
			var err error
			if more, err = s.catchUp(s.ctx); err != nil {
				break // reading has logged it; the next tick tries again
			}
		}
	}
}

// catchUp reads the next events and passes them on. more reports that there may be further ones.
func (s *Store) catchUp(ctx context.Context) (more bool, err error) {
	t := &s.tail
	t.mu.Lock()
	s.passPending()
	after, until := t.passed, relay.Seq(0)
	if len(t.pending) > 0 {
		until = t.pending[0].after
	}
	t.mu.Unlock()
	if last, _, _ := s.confirmed.get(); until == 0 && last > after {
		until = last // newer events will be notified, too
	}
	// Only this goroutine reads, so nobody else passes these events on, except for groups of this node.
	q := relay.Query{After: s.cursor(after), Until: until, Expired: true, Limit: relay.MaxPage, MaxBytes: relay.PageBytes}
	page, err := s.readWanted(ctx, q)
	switch {
	case errors.Is(err, relay.ErrUnknownCursor):
		s.breakWith(errMissing)
		return false, err
	case err != nil:
		return false, err
	}
	posted, err := watch.Parse(page.Events)
	if err != nil {
		s.breakWith(err)
		return false, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(posted) > 0 && posted[0].Seq <= t.passed {
		posted = posted[1:]
	}
	end := page.Cursor.Seq
	if until > 0 && !page.More {
		end = min(end, until)
	}
	if end > t.passed {
		t.passed = end
		s.watchers.Publish(posted)
	}
	s.passPending()
	return page.More || len(t.pending) > 0, nil
}

// readWanted reads a page of events for the watchers. It leaves out events that no watcher wants, if it knows that all
// events up to q.Until are durable: a poll that begins later finds them in the database.
func (s *Store) readWanted(ctx context.Context, q relay.Query) (relay.Page, error) {
	wanted := relay.Wanted{All: true}
	if q.Until > 0 {
		wanted = s.watchers.Wanted()
	}
	switch {
	case wanted.All:
		return s.Read(ctx, q)
	case len(wanted.Recipients) == 0:
		return relay.Page{Cursor: s.cursor(q.Until)}, s.closed()
	}
	return s.readFor(ctx, q, wanted.Recipients)
}

// channel is the name for NOTIFY. It has the name of the schema, because notifications reach all of a database.
func (s *Store) channel() string { return "agora." + s.schema }

// listen waits for notifications of other nodes, until the store is closed.
func (s *Store) listen(conn *pgx.Conn) {
	for failures := 0; ; failures++ {
		began := time.Now()
		var err error
		if conn == nil {
			conn, err = s.openListener(s.ctx)
		}
		if err == nil {
			err = s.hear(conn)
		}
		conn = nil
		if s.ctx.Err() != nil {
			return
		}
		if time.Since(began) > time.Minute {
			failures = 0
		}
		if failures == 0 {
			s.options.Log.Warn("the connection for notifications was lost; connecting again", "err", cleaned(err))
		}
		if !s.wait(backoff(failures)) {
			return
		}
	}
}

// openListener opens the connection that listens.
func (s *Store) openListener(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, s.config.Copy())
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{s.channel()}.Sanitize()); err != nil {
		closeConn(conn)
		return nil, err
	}
	s.confirmed.renew()
	signal(s.tail.wake) // there may have been notifications before
	signal(s.announced)
	return conn, nil
}

// hear passes on notifications until the connection ends.
func (s *Store) hear(conn *pgx.Conn) error {
	defer closeConn(conn)
	for {
		n, err := conn.WaitForNotification(s.ctx)
		if err != nil {
			return err
		}
		if n.Payload == announcement {
			signal(s.announced)
			continue
		}
		if last, err := strconv.ParseInt(n.Payload, 10, 64); err == nil {
			s.confirmed.raise(relay.Seq(last))
		}
		signal(s.tail.wake)
	}
}

// announcement is the payload of NOTIFY that Announce sends.
const announcement = "announced"

// Announce tells all nodes, this one included, that something they keep in memory has changed, such as the bans. If it
// fails, they find out when they look the next time.
func (s *Store) Announce(ctx context.Context) error { return s.notifyNodes(ctx, announcement) }

// Announced returns a channel on which this node gets a value when a node has announced a change, and when it may have
// missed that. Only one goroutine may receive from it.
func (s *Store) Announced() <-chan struct{} { return s.announced }

// notifyNodes sends a notification to all nodes. It need not be durable.
func (s *Store) notifyNodes(ctx context.Context, payload string) error {
	return s.reading(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		batch := &pgx.Batch{}
		batch.Queue("BEGIN")
		batch.Queue("SET LOCAL synchronous_commit = off")
		batch.Queue("SELECT pg_notify($1, $2)", s.channel(), payload)
		batch.Queue("COMMIT")
		return conn.SendBatch(ctx, batch).Close()
	})
}

// notify tells the other nodes the number of the last event, after commits of this node. NOTIFY takes a lock of the
// whole server until its commit, so it is not part of the transaction that stores.
func (s *Store) notify() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.tail.tell:
		}
		s.tail.toldMu.Lock()
		last := s.tail.told
		s.tail.toldMu.Unlock()
		// If this fails, the other nodes find the events within a second. reading has logged the reason.
		_ = s.notifyNodes(s.ctx, strconv.FormatInt(int64(last), 10))
	}
}

// Watch implements relay.Store. While the database cannot be reached, it waits.
func (s *Store) Watch(ctx context.Context, after relay.Cursor, wanted func() relay.Wanted, f func([]relay.Posted)) error {
	read := func(q relay.Query) (page relay.Page, err error) {
		q.MaxBytes = relay.PageBytes
		for {
			if page, err = s.Read(ctx, q); !errors.Is(err, errNoAnswer) && !errors.Is(err, errUnconfirmed) {
				return page, err
			}
			select {
			case <-ctx.Done():
				return page, ctx.Err()
			case <-time.After(time.Second):
			}
		}
	}
	if err := s.watchers.Watch(ctx, after, wanted, s.broken, read, f); err != nil {
		return err
	}
	return s.reason
}
