package hub

import "sync"

// waits are the senders that wait to learn what happens to their messages.
type waits struct {
	mu        sync.Mutex
	byMessage map[int64]*wait
}

// wait is one sender's.
type wait struct {
	latest  delivery // as of the latest change that is on disk
	trace   string
	webhook bool          // an attempt at a webhook is expected
	changed chan struct{} // is closed at the next change
}

// add makes a sender wait for its new message.
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

// look returns what the sender of a message waits for. ok is false if nobody waits.
func (w *waits) look(message int64) (_ wait, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if own := w.byMessage[message]; own != nil {
		return *own, true
	}
	return wait{}, false
}

// changed tells the sender of a message how far the delivery is. Two changes may be told in the wrong order; a state
// never goes back.
func (w *waits) changed(d delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if own := w.byMessage[d.message]; own != nil && d.state >= own.latest.state {
		own.latest = d
		own.wake()
	}
}

// streamEnded tells the senders of all messages to a receiver that its stream has ended.
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
