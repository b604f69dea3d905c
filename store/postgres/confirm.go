package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/relay"
)

// confirmed knows up to which number all events are durable. What a node reads may be newer, because commits are
// visible before they are durable. A crash or a failover may lose such an event, and give its number to another one.
// So no reader may get it, or a cursor behind it.
type confirmed struct {
	mu      sync.Mutex
	last    relay.Seq
	conns   int           // how many connections have been opened that tell what is durable
	changed chan struct{} // closed and replaced when last changes; nil: nobody waits
}

// raise records that all events up to last are durable. A commit of this node says so, and a notification of another.
func (c *confirmed) raise(last relay.Seq) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last <= c.last {
		return
	}
	c.last = last
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// renew records that a connection was opened on which the server will tell what is durable. It may be another server.
func (c *confirmed) renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns++
}

// get returns the last number, the count of connections, and a channel that is closed when the number changes.
func (c *confirmed) get() (last relay.Seq, conns int, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.last, c.conns, c.changed
}

// showing calls f as reading does. It is for reads whose results others may see. f returns the highest sequence number
// that it has read. showing returns when all events up to that number are durable. Errors: those of reading and of
// confirm.
func (s *Store) showing(ctx context.Context, f func(context.Context, *pgx.Conn) (relay.Seq, error)) error {
	var seen relay.Seq
	_, conns, _ := s.confirmed.get()
	err := s.reading(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		seen, err = f(ctx, conn)
		return err
	})
	if err != nil {
		return err
	}
	return s.confirm(ctx, seen, conns)
}

// showingAll does the same as showing, for an f that does not know the numbers of what it reads.
func (s *Store) showingAll(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	return s.showing(ctx, func(ctx context.Context, conn *pgx.Conn) (seen relay.Seq, err error) {
		if err := f(ctx, conn); err != nil {
			return 0, err
		}
		h, err := readHead(ctx, conn) // what f has read is not newer
		return h.last, err
	})
}

// confirmAfter is how long a read waits for the notification of another node. It usually comes within a few
// milliseconds. It does not come if that node has ended.
const confirmAfter = 50 * time.Millisecond

// confirm waits until all events up to seq are durable. conns is the count of connections before seq was read. If it is
// another one now, the server may have crashed in between and lost what was read. What is durable now may be something
// else. Errors: errNoAnswer, errUnconfirmed, ctx's error, those of closed.
func (s *Store) confirm(ctx context.Context, seq relay.Seq, conns int) error {
	late := time.NewTimer(confirmAfter)
	defer late.Stop()
	for asked := false; ; {
		last, now, changed := s.confirmed.get()
		switch {
		case now != conns || asked && last < seq:
			return errNoAnswer
		case last >= seq:
			return nil
		case last > 0: // else this node has just started, and no notification will come
			select {
			case <-changed:
				continue
			case <-late.C:
			case <-ctx.Done():
				return ctx.Err()
			case <-s.ctx.Done():
				return relay.ErrShuttingDown
			}
		}
		if err := s.makeDurable(ctx, seq); err != nil {
			return err
		}
		asked = true
	}
}

// makeDurable makes a commit of this node, unless all events up to seq are durable. It makes all commits before it
// durable.
func (s *Store) makeDurable(ctx context.Context, seq relay.Seq) error {
	err := s.task(ctx, func(w *writer) error {
		if last, _, _ := s.confirmed.get(); last >= seq {
			return nil
		}
		err := w.transact(func() error {
			w.begin()
			return w.flush()
		})
		if err == nil {
			s.committed(w.after, w.last, nil)
		}
		return err
	})
	switch {
	case err == nil || ctx.Err() != nil || s.closed() != nil:
		return err
	case err == errStuck || err == errLate:
		return errUnconfirmed
	}
	return errNoAnswer
}
