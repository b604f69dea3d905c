package relay

import (
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// hub wakes waiting polls. It indexes each waiter by the part of its filter that matches the fewest events. So an event
// touches only waiters that it might match, and a post does not make unrelated polls read the store.
type hub struct {
	did     didkey.DID // of the relay
	mu      sync.Mutex
	waiters map[indexKey]map[*waiter]struct{}
}

// indexKey is one field of a filter, with its value. The zero indexKey is for waiters without a filter.
type indexKey struct{ field, value string }

// waiter is one waiting poll. The hub appends to events and sends on woken. The poll receives from woken and takes the
// events.
type waiter struct {
	filter  Filter
	peer    Peer          // the client
	since   time.Time     // when the poll began, by the machine's clock
	woken   chan struct{} // has a buffer of one
	ended   error         // why the poll ends early; nil: it does not; guarded by hub.mu
	events  []Posted      // guarded by hub.mu
	wokenAt time.Time     // when the first event was handed over; guarded by hub.mu
}

func newHub(did didkey.DID) *hub { return &hub{did: did, waiters: map[indexKey]map[*waiter]struct{}{}} }

var broadcastKey = indexKey{"recipient", ""}

// keys returns the index keys of a waiter with this filter. The recipient comes first, because most polls wait for an
// inbox.
func (f Filter) keys() []indexKey {
	switch {
	case f.Recipient != "" && f.Broadcast:
		return []indexKey{{"recipient", string(f.Recipient)}, broadcastKey}
	case f.Recipient != "":
		return []indexKey{{"recipient", string(f.Recipient)}}
	case f.Thread != "":
		return []indexKey{{"thread", f.Thread}}
	case f.Sender != "":
		return []indexKey{{"sender", string(f.Sender)}}
	case f.Type != "":
		return []indexKey{{"type", string(f.Type)}}
	}
	return []indexKey{{}}
}

// keysOf returns the index keys of all waiters that e might match. Each waiter is under at most one of them.
func keysOf(e *envelope.Envelope) [5]indexKey {
	return [5]indexKey{{"recipient", string(e.Recipient)}, {"thread", e.Thread}, {"sender", string(e.Sender.ID)},
		{"type", string(e.Type)}, {}}
}

func (h *hub) add(f Filter, p Peer) *waiter {
	w := &waiter{filter: f, peer: p, since: time.Now(), woken: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range f.keys() {
		if h.waiters[k] == nil {
			h.waiters[k] = map[*waiter]struct{}{}
		}
		h.waiters[k][w] = struct{}{}
	}
	return w
}

func (h *hub) remove(w *waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range w.filter.keys() {
		delete(h.waiters[k], w)
		if len(h.waiters[k]) == 0 {
			delete(h.waiters, k)
		}
	}
}

// publish hands events to the waiters that they match. The events are in sequence order.
func (h *hub) publish(events []Posted) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		for _, k := range keysOf(e.Envelope) {
			for w := range h.waiters[k] {
				if !w.filter.Match(e.Envelope) || w.filter.Thread != "" && h.isCopy(e.Envelope) {
					continue
				}
				if len(w.events) == 0 {
					w.wokenAt = time.Now()
				}
				w.events = append(w.events, e)
				w.wake()
			}
		}
	}
}

// maxWanted bounds the recipients that wanted names.
const maxWanted = 100

// wanted returns a set with all events that may match a waiter.
func (h *hub) wanted() (w Wanted) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k := range h.waiters {
		if k.field != broadcastKey.field || len(w.Recipients) == maxWanted {
			return Wanted{All: true}
		}
		w.Recipients = append(w.Recipients, didkey.DID(k.value))
	}
	return w
}

// isCopy reports whether e was copied from another relay, so that it belongs to no thread. Only a copied REQUEST has
// another home.
func (h *hub) isCopy(e *envelope.Envelope) bool { return e.Home != nil && e.Home.DID != h.did }

// wake wakes the poll of w.
func (w *waiter) wake() {
	select {
	case w.woken <- struct{}{}:
	default: // it was woken before and has not looked yet
	}
}

// each calls f with every waiter, once or twice.
func (h *hub) each(f func(*waiter)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, some := range h.waiters {
		for w := range some {
			f(w)
		}
	}
}

// end ends the polls for which reason returns an error. Each of them gets its error from endedBy.
func (h *hub) end(reason func(Peer) error) {
	h.each(func(w *waiter) {
		if err := reason(w.peer); err != nil && w.ended == nil {
			w.ended, w.events = err, nil
			w.wake()
		}
	})
}

// endedBy returns why the poll of w must end; nil: it need not.
func (h *hub) endedBy(w *waiter) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return w.ended
}

// forget takes events away from the waiters that they were handed to.
func (h *hub) forget(removed map[Seq]bool) {
	h.each(func(w *waiter) {
		w.events = slices.DeleteFunc(w.events, func(e Posted) bool { return removed[e.Seq] })
	})
}

// wokeAt returns when the first event was handed to w. It returns the zero time if none was.
func (h *hub) wokeAt(w *waiter) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return w.wokenAt
}

// take returns the events that were handed to w since the last call.
func (h *hub) take(w *waiter) []Posted {
	h.mu.Lock()
	defer h.mu.Unlock()
	events := w.events
	w.events = nil
	return events
}
