package relay

import "sync"

// turns lets a few of many work at a time. Those who come from one place wait in one line, and the lines take turns, so
// a crowd from one place delays the others by one of its members, not by all of them. One place never takes more than
// half of the slots, unless it may.
type turns[K comparable] struct {
	slots, each int // at a time: of all places, of one place

	mu    sync.Mutex
	free  int
	lines map[K]*line // of the places where somebody works or waits
	ring  []*line     // those in which somebody waits and may work; the first is next
}

// line is those of one place.
type line struct {
	most    int // how many may work at a time
	working int
	waiting []chan struct{}
	inRing  bool
}

func newTurns[K comparable](slots int) *turns[K] {
	return &turns[K]{slots: slots, each: (slots + 1) / 2, free: slots, lines: map[K]*line{}}
}

// enter waits for a slot for somebody from k, who leaves it by calling leave, once. all: k may take all slots.
func (t *turns[K]) enter(k K, all bool) (leave func()) {
	t.mu.Lock()
	l := t.lines[k]
	if l == nil {
		l = &line{most: t.each}
		if all {
			l.most = t.slots
		}
		t.lines[k] = l
	}
	leave = func() { t.leave(k, l) }
	if t.free > 0 && l.working < l.most { // then nobody waits who may work
		t.free--
		l.working++
		t.mu.Unlock()
		return leave
	}
	mine := make(chan struct{})
	l.waiting = append(l.waiting, mine)
	t.line(l)
	t.mu.Unlock()
	<-mine
	return leave
}

func (t *turns[K]) leave(k K, l *line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	l.working--
	if l.working == 0 && len(l.waiting) == 0 {
		delete(t.lines, k)
	}
	t.line(l)
	t.next()
}

// line puts l into the ring if it belongs there.
func (t *turns[K]) line(l *line) {
	if !l.inRing && len(l.waiting) > 0 && l.working < l.most {
		l.inRing = true
		t.ring = append(t.ring, l)
	}
}

// next gives the free slots to those whose turn it is.
func (t *turns[K]) next() {
	for t.free > 0 && len(t.ring) > 0 {
		l := t.ring[0]
		t.ring, l.inRing = t.ring[1:], false
		close(l.waiting[0])
		l.waiting = l.waiting[1:]
		l.working++
		t.free--
		t.line(l)
	}
}
