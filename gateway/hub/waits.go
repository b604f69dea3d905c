package hub

import "sync"

// waits are the requests of senders that wait for the delivery of their message.
type waits struct {
	mu        sync.Mutex
	byMessage map[int64]*wait
}

// wait is one such request.
type wait struct {
	latest  delivery // after the latest change that is on disk
	trace   string
	webhook bool          // the receiver has a webhook
	changed chan struct{} // is closed at the next change
}

// sending is a request that sends a message. waits.mu guards its fields.
type sending struct {
	message int64 // 0: it has none yet
	over    bool
}

// add makes a request wait for its new message. The operation that stores the message may be run twice, and may even
// run after the request has ended, if it took too long. So the request waits only for the last message, and for none
// when it is over.
func (w *waits) add(s *sending, d delivery, trace string, webhook bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.byMessage, s.message)
	if s.message = d.message; !s.over {
		w.byMessage[d.message] = &wait{d, trace, webhook, make(chan struct{})}
	}
}

// end ends a request.
func (w *waits) end(s *sending) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.over = true
	delete(w.byMessage, s.message)
}

// look returns a copy of the wait for a message. ok is false if no request waits for it.
func (w *waits) look(message int64) (_ wait, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if own := w.byMessage[message]; own != nil {
		return *own, true
	}
	return wait{}, false
}

// changed tells the waiting request that a delivery has changed. It ignores a change to an earlier state, because two
// changes may be reported in the wrong order.
func (w *waits) changed(d delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if own := w.byMessage[d.message]; own != nil && d.state >= own.latest.state {
		own.latest = d
		own.wake()
	}
}

// streamEnded wakes the requests that wait for messages to a receiver, because its stream has ended.
func (w *waits) streamEnded(receiver int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, own := range w.byMessage {
		if own.latest.receiver == receiver {
			own.wake()
		}
	}
}

func (own *wait) wake() {
	close(own.changed)
	own.changed = make(chan struct{})
}
