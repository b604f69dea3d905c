package relay

import (
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// hub wakes waiting polls. Each waiter stands under the one key that selects it best, so an event touches only the
// waiters that might match and nobody searches storage because a stranger posted.
type hub struct {
	mu      sync.Mutex
	waiters map[key]map[*waiter]struct{}
}

// key is one member of a filter; the zero key collects waiters that filter nothing.
type key struct{ field, value string }

// waiter is one waiting poll. Its poll receives from woken and takes the events; the hub appends to them.
type waiter struct {
	filter Filter
	woken  chan struct{} // holds one
	events []Posted      // guarded by hub.mu
	woke   time.Time     // when the first of events came; guarded by hub.mu
}

func newHub() *hub { return &hub{waiters: map[key]map[*waiter]struct{}{}} }

var broadcastKey = key{"recipient", ""}

// keys returns where a waiter with this filter stands. Recipients come first: inboxes are what polls wait on.
func (f Filter) keys() []key {
	switch {
	case f.Recipient != "" && f.Broadcast:
		return []key{{"recipient", string(f.Recipient)}, broadcastKey}
	case f.Recipient != "":
		return []key{{"recipient", string(f.Recipient)}}
	case f.Thread != "":
		return []key{{"thread", f.Thread}}
	case f.Sender != "":
		return []key{{"sender", string(f.Sender)}}
	case f.Type != "":
		return []key{{"type", string(f.Type)}}
	}
	return []key{{}}
}

// keysOf returns where waiters that might want e stand. A waiter stands under one of them at most.
func keysOf(e *envelope.Envelope) [5]key {
	return [5]key{{"recipient", string(e.Recipient)}, {"thread", e.Thread}, {"sender", string(e.Sender.ID)}, {"type", string(e.Type)}, {}}
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

// publish hands events, in sequence order, to the waiters that want them.
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
					w.woke = time.Now()
				}
				w.events = append(w.events, e)
				select {
				case w.woken <- struct{}{}:
				default: // it has been woken and not looked yet
				}
			}
		}
	}
}

// wokeAt returns when the first event came that was handed to w; zero: none was.
func (h *hub) wokeAt(w *waiter) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return w.woke
}

// take returns the events handed to w since the last call.
func (h *hub) take(w *waiter) []Posted {
	h.mu.Lock()
	defer h.mu.Unlock()
	events := w.events
	w.events = nil
	return events
}
