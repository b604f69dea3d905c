package relay

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/turns"
	"github.com/agora-relay/agora/relay/admission"
)

// Screen decides whether a message may be stored, by rules of the operator. Any number of goroutines call it.
type Screen interface {
	// Screen returns nil if e may be stored. A refusal is an *envelope.Error, which the sender gets. e was verified and
	// comes from p. e must not be changed. If ctx ends first, Screen returns an error at once.
	Screen(ctx context.Context, p Peer, e *envelope.Envelope) error
}

// Limits on messages that wait for the Screen.
const (
	maxScreens          = 256 // of all networks; the others wait for their turn
	maxScreensPerSource = 16
	maxScreenWait       = 10 * time.Second // with the wait for the turn
)

// errScreenWait refuses a message that has waited too long for its turn.
var errScreenWait = envelope.NotStored("too many messages wait for a decision of this relay's policy; "+
	"try again in a moment", time.Second)

// screening asks a Screen. Copies of one message that come at the same time share one decision, so that a sender who
// repeats a post after a lost answer gets the answer to the first one.
type screening struct {
	by    Screen
	store Remover
	queue *turns.Queue[admission.Source]

	mu       sync.Mutex
	messages map[[sha256.Size]byte]*decision
}

// decision is what a Screen says about a message. It is shared until all posts of the message have ended.
type decision struct {
	made  chan struct{} // closed when err is set
	err   error
	users int // guarded by screening.mu
}

// newScreening returns nil if there is no Screen.
func newScreening(by Screen, store Store) (*screening, error) {
	if by == nil {
		return nil, nil
	}
	remover, ok := store.(Remover)
	if !ok {
		return nil, errors.New("a Screen is not asked about duplicates, so it needs a store that implements relay.Remover")
	}
	return &screening{by: by, store: remover, queue: admission.NewTurns(maxScreens, maxScreensPerSource),
		messages: map[[sha256.Size]byte]*decision{}}, nil
}

// screen asks the Screen about a message that is not stored yet. The caller must call settled when the message is stored
// or refused. Refusals: those of Screen, CodeUnavailable.
func (r *Relay) screen(ctx context.Context, from Peer, e *envelope.Envelope) (settled func(), err error) {
	s := r.screening
	if known, err := s.known(ctx, e); known || err != nil {
		return func() {}, err // the store answers it
	}
	key := sha256.Sum256(e.Canonical())
	d, first := s.join(key)
	settled = func() { s.leave(key, d) }
	if first {
		func() {
			defer close(d.made)
			d.err = errScreenWait // if decide panics
			d.err = r.decide(ctx, from, e)
		}()
	} else {
		<-d.made // the first post ends within maxScreenWait
	}
	if d.err == nil {
		return settled, nil
	}
	// A copy may have been stored since the first look. Then the sender gets its receipt.
	if known, err := s.known(ctx, e); known || err != nil {
		return settled, err
	}
	return settled, d.err
}

// decide asks the Screen when it is the turn of from, and reports its decision.
func (r *Relay) decide(ctx context.Context, from Peer, e *envelope.Envelope) error {
	ctx, cancel := context.WithTimeout(ctx, maxScreenWait)
	defer cancel()
	began, src := time.Now(), from.Source()
	err := r.screening.queue.Acquire(ctx, src)
	if err == nil {
		err = r.screening.by.Screen(ctx, from, e)
		r.screening.queue.Release(src)
	}
	if _, refused := errors.AsType[*envelope.Error](err); err != nil && !refused {
		err = errScreenWait
	}
	r.observer.Screened(time.Since(began), envelope.CodeOf(err))
	return err
}

// known reports whether the store remembers the id of e, so that it is a duplicate or a conflict.
func (s *screening) known(ctx context.Context, e *envelope.Envelope) (bool, error) {
	seq, err := s.store.Known(ctx, e.Sender.ID, e.ID)
	return seq > 0, err
}

// join returns the decision about a message. first means that the caller must make it.
func (s *screening) join(key [sha256.Size]byte) (d *decision, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d = s.messages[key]
	if d == nil {
		first = true
		d = &decision{made: make(chan struct{})}
		s.messages[key] = d
	}
	d.users++
	return d, first
}

// leave ends the part of one post in a decision.
func (s *screening) leave(key [sha256.Size]byte, d *decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.users--; d.users == 0 {
		delete(s.messages, key)
	}
}
