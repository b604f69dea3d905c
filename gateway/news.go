package gateway

import "sync"

// News tells waiting requests that something has changed, such as a channel that has a new event.
type News struct {
	mu      sync.Mutex
	waiting map[int64]chan struct{} // by the number of the thing; it is closed at the next change
}

// NewNews returns a News that nobody waits for.
func NewNews() *News { return &News{waiting: map[int64]chan struct{}{}} }

// Next returns a channel that is closed at the next change of the thing with this number. Call it before you look at
// the thing, so that you miss no change.
func (n *News) Next(number int64) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiting[number] == nil {
		n.waiting[number] = make(chan struct{})
	}
	return n.waiting[number]
}

// Tell ends the waits for a thing.
func (n *News) Tell(number int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c := n.waiting[number]; c != nil {
		close(c)
		delete(n.waiting, number)
	}
}
