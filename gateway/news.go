package gateway

import "sync"

// News tells waiting requests that something has changed, such as a channel that has a new event. It keeps nothing of a
// thing that nobody follows.
type News struct {
	mu       sync.Mutex
	followed map[int64]*followed // by the number of the thing
}

// followed is a thing that somebody follows. The mutex of its News guards it.
type followed struct {
	changed   chan struct{} // is closed at the next change
	followers int
}

// NewNews returns a News that nobody follows.
func NewNews() *News { return &News{followed: map[int64]*followed{}} }

// Follow begins to follow the thing with this number. The caller must call Close.
func (n *News) Follow(number int64) *Follower {
	n.mu.Lock()
	defer n.mu.Unlock()
	thing := n.followed[number]
	if thing == nil {
		thing = &followed{changed: make(chan struct{})}
		n.followed[number] = thing
	}
	thing.followers++
	return &Follower{n, number, thing}
}

// Tell ends the waits for a thing.
func (n *News) Tell(number int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if thing := n.followed[number]; thing != nil {
		close(thing.changed)
		thing.changed = make(chan struct{})
	}
}

// Follower waits for changes of one thing.
type Follower struct {
	news   *News
	number int64
	thing  *followed
}

// Next returns a channel that is closed at the next change. Call it before you look at the thing, so that you miss no
// change. A View may show a state of before it calls your function, so call Next before the View.
func (f *Follower) Next() <-chan struct{} {
	f.news.mu.Lock()
	defer f.news.mu.Unlock()
	return f.thing.changed
}

// Close ends the Follower. It must be called once.
func (f *Follower) Close() {
	f.news.mu.Lock()
	defer f.news.mu.Unlock()
	if f.thing.followers--; f.thing.followers == 0 {
		delete(f.news.followed, f.number)
	}
}
