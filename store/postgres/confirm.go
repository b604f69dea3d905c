package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/agora-relay/agora/relay"
)

// confirmed knows up to which number all events are durable. What a node reads may be newer. The server shows a commit
// that it has not confirmed if the wait for the standbys was cancelled, or if the server is about to end. A failover
// may lose that event, and give its number to another one. So no reader may get it, or a cursor behind it.
type confirmed struct {
	mu      sync.Mutex
	last    relay.Seq
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

// get returns the last number, and a channel that is closed when it changes.
func (c *confirmed) get() (last relay.Seq, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.last, c.changed
}

// confirmAfter is how long a read waits for the notification of another node. It usually comes within a few
// milliseconds. It does not come if that node has ended.
const confirmAfter = 50 * time.Millisecond

// confirm waits until all events up to seq are durable. Errors: errNoAnswer, errUnconfirmed, ctx's error, those of closed.
func (s *Store) confirm(ctx context.Context, seq relay.Seq) error {
	late := time.NewTimer(confirmAfter)
	defer late.Stop()
	for waits := true; waits; {
		last, changed := s.confirmed.get()
		switch {
		case last >= seq:
			return nil
		case last == 0: // this node has just started, and no notification will come
			waits = false
			continue
		}
		select {
		case <-changed:
		case <-late.C:
			waits = false
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return relay.ErrShuttingDown
		}
	}
	// A commit of this node that is durable confirms all commits before it.
	err := s.task(ctx, func(w *writer) error {
		if last, _ := s.confirmed.get(); last >= seq {
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
