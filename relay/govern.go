package relay

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// This file is what an operator can do with a running relay: pause it, see who waits, and remove messages.

// pauseRetryAfter is the Retry-After while the relay is paused. The relay does not know how long the pause lasts.
const pauseRetryAfter = 10 * time.Second

// ErrPaused refuses requests while the relay is paused.
var ErrPaused = envelope.NotStored("the operator has paused this relay; try again in a moment", pauseRetryAfter)

// Pause ends all waiting polls with an empty page, and all streams. Until Resume, the relay refuses requests with
// CodeUnavailable and a Retry-After, and Health returns an error. Timeouts and removals continue.
func (r *Relay) Pause() {
	r.paused.Store(true)
	r.endWaits(func(Peer) error { return ErrPaused })
}

// Resume ends a Pause.
func (r *Relay) Resume() { r.paused.Store(false) }

// Paused reports whether the relay is paused.
func (r *Relay) Paused() bool { return r.paused.Load() }

// endWaits ends the polls and streams for which reason returns an error.
func (r *Relay) endWaits(reason func(Peer) error) {
	r.hub.end(reason)
	r.streams.end(reason)
}

// mayStay returns why a poll or a stream of p must end; nil: it may stay. While the relay drains, a poll does not wait
// and a stream ends.
func (r *Relay) mayStay(p Peer) error { return cmp.Or(r.pausing(), r.gate.CheckPeer(p)) }

// pausing returns ErrPaused while the relay is paused.
func (r *Relay) pausing() error {
	if r.paused.Load() {
		return ErrPaused
	}
	return nil
}

// endedPoll returns the answer to a poll that ended early because of err. While the relay is paused, that is an empty
// page, which loses nothing.
func endedPoll(empty Page, err error) (Delivery, error) {
	if errors.Is(err, ErrPaused) {
		return Delivery{Page: empty}, nil
	}
	return Delivery{}, err
}

// Waiter describes a poll that waits or a stream that is open.
type Waiter struct {
	Peer   Peer
	Since  time.Time // by the machine's clock
	Stream bool      // a stream of a gateway
	Filter Filter    // of a poll
}

// Waiters returns up to limit polls and streams, the oldest first, and how many there are.
func (r *Relay) Waiters(limit int) (some []Waiter, all int) {
	seen := map[*waiter]struct{}{}
	r.hub.each(func(w *waiter) {
		if _, again := seen[w]; !again {
			seen[w] = struct{}{}
			some = append(some, Waiter{Peer: w.peer, Since: w.since, Filter: w.filter})
		}
	})
	r.streams.mu.Lock()
	for s := range r.streams.all {
		some = append(some, Waiter{Peer: s.peer, Since: s.since, Stream: true})
	}
	r.streams.mu.Unlock()
	slices.SortFunc(some, func(a, b Waiter) int { return a.Since.Compare(b.Since) })
	return some[:min(limit, len(some))], len(some)
}

// Remover is a Store from which an operator can remove messages.
type Remover interface {
	Store

	// Known returns the number of the stored event with this sender and id, also if it has expired or was removed. It
	// returns 0 if the id is not remembered.
	Known(ctx context.Context, sender didkey.DID, id string) (Seq, error)

	// Remove removes the bodies of events and their manifests, and returns the events that it has removed. Their ids stay
	// remembered as long as without the removal. A copy of a removed message is refused with CodeForbidden. A number that
	// is not stored, or whose event was removed before, is ignored. When Remove has returned, no Watch and no Read that
	// begins later delivers the events. Their content is overwritten in the database as far as the engine can. At most
	// MaxRemove numbers are allowed. Posts do not wait long for it. On a full disk it uses the room that the store holds
	// back. If it fails, some of the events may have been removed, and it returns those.
	Remove(ctx context.Context, events []Seq, now time.Time) ([]Seq, error)

	// EndThread ends a thread at now, see thread.Thread.Remove. It does nothing to a thread that has ended. It works on a
	// full disk, as Remove does. Refusals: CodeThreadNotFound.
	EndThread(ctx context.Context, k thread.Key, now time.Time) error
}

// MaxRemove is how many events one call of Remover.Remove accepts.
const MaxRemove = 1000

var (
	errNoRemover = envelope.Errorf(envelope.CodeInvalidRequest, "the store of this relay cannot remove messages")
	errNotStored = envelope.Errorf(envelope.CodeNotFound, "no such message is stored; it may have expired")
)

// FindEvent returns the number of a stored message. Errors: CodeNotFound.
func (r *Relay) FindEvent(ctx context.Context, sender didkey.DID, id string) (Seq, error) {
	store, ok := r.store.(Remover)
	if !ok {
		return 0, errNoRemover
	}
	seq, err := store.Known(ctx, sender, id)
	if err == nil && seq == 0 {
		err = errNotStored
	}
	return seq, err
}

// Remove removes stored messages, see Remover.Remove. When it has returned, no answer that begins later has them. An
// answer that has begun may still contain up to 64 KiB that were read before. Errors: CodeNotFound if none of them is
// stored.
func (r *Relay) Remove(ctx context.Context, events ...Seq) (removed []Seq, err error) {
	store, ok := r.store.(Remover)
	if !ok {
		return nil, errNoRemover
	}
	for some := range slices.Chunk(events, MaxRemove) {
		done, err := store.Remove(ctx, some, r.now())
		gone := make(map[Seq]bool, len(done))
		for _, seq := range done {
			gone[seq] = true
		}
		r.hub.forget(gone) // the store's Watch will not hand them over any more
		removed = append(removed, done...)
		if err != nil {
			return removed, err
		}
	}
	if len(removed) == 0 {
		return nil, errNotStored
	}
	return removed, nil
}

// RemoveSender removes up to limit messages of a sender that arrived since a time, also those that have expired and whose
// ids are still remembered. It removes them in batches, and posts are stored in between. If it returns limit, there may
// be more.
func (r *Relay) RemoveSender(ctx context.Context, sender didkey.DID, since time.Time, limit int) (removed int, err error) {
	if _, ok := r.store.(Remover); !ok {
		return 0, errNoRemover
	}
	var at Cursor
	for more := true; more && removed < limit; {
		page, err := r.store.Read(ctx, Query{Filter: Filter{Sender: sender}, Now: r.now(), Expired: true, Headers: true,
			After: at, Limit: min(MaxRemove, limit-removed), MaxExamined: maxSliceSize})
		if err != nil {
			return removed, err
		}
		var some []Seq
		for _, e := range page.Events {
			if !e.Received.Before(since) {
				some = append(some, e.Seq)
			}
		}
		done, err := r.Remove(ctx, some...)
		if removed += len(done); err != nil && !errors.Is(err, errNotStored) {
			return removed, err
		}
		at, more = page.Cursor, page.More
	}
	return removed, nil
}

// RemoveThread ends a thread and removes all its messages. A thread without messages is only ended. Errors:
// CodeThreadNotFound.
func (r *Relay) RemoveThread(ctx context.Context, k thread.Key) (removed []Seq, err error) {
	store, ok := r.store.(Remover)
	if !ok {
		return nil, errNoRemover
	}
	now := r.now()
	if err := store.EndThread(ctx, k, now); err != nil { // after this, the thread gets no further messages
		return nil, err
	}
	page, err := r.store.Read(ctx, Query{Filter: Filter{Thread: k.ID, Client: k.Client}, Now: now, Expired: true,
		Headers: true, Limit: maxThreadEvents(r.policy.Rules)})
	if err != nil {
		return nil, err
	}
	var all []Seq
	for _, e := range page.Events {
		all = append(all, e.Seq)
	}
	removed, err = r.Remove(ctx, all...)
	if errors.Is(err, errNotStored) {
		err = nil
	}
	return removed, err
}
