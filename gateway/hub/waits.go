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

// add adds the request that has sent a new message.
func (w *waits) add(d delivery, trace string, webhook bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.byMessage[d.message] = &wait{d, trace, webhook, make(chan struct{})}
}

func (w *waits) remove(message int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.byMessage, message)
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
// changes may be told in the wrong order.
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
