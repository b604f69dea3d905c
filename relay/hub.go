package relay

import (
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// hub wakes waiting polls. It indexes each waiter by the part of its filter that matches the fewest events. So an event
// touches only waiters that it might match, and a post does not make unrelated polls read the store.
type hub struct {
	mu      sync.Mutex
	waiters map[indexKey]map[*waiter]struct{}
}

// indexKey is one field of a filter, with its value. The zero indexKey is for waiters without a filter.
type indexKey struct{ field, value string }

// waiter is one waiting poll. The hub appends to events and sends on woken. The poll receives from woken and takes the
// events.
type waiter struct {
	filter  Filter
	woken   chan struct{} // has a buffer of one
	events  []Posted      // guarded by hub.mu
	wokenAt time.Time     // when the first event was handed over; guarded by hub.mu
}

func newHub() *hub { return &hub{waiters: map[indexKey]map[*waiter]struct{}{}} }

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

func (h *hub) add(f Filter) *waiter {
	w := &waiter{filter: f, woken: make(chan struct{}, 1)}
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
				if !w.filter.Match(e.Envelope) {
					continue
				}
				if len(w.events) == 0 {
					w.wokenAt = time.Now()
				}
				w.events = append(w.events, e)
				select {
				case w.woken <- struct{}{}:
				default: // the waiter was woken before and has not looked yet
				}
			}
		}
	}
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
