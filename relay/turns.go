package relay

import (
	"context"
	"slices"
	"sync"
)

// readsAtOnce is how many reads the store works on at a time.
const readsAtOnce = 4

// origin is who takes turns: an IPv4 address or the /48 of an IPv6 one, or all local requests together. It is plain
// bytes, which are hashed with little stack: that of a poll stays as large as it once was.
type origin struct {
	site  [16]byte
	local bool
}

func (p Peer) origin() origin {
	if p.Local {
		return origin{local: true}
	}
	return origin{site: site(p.Addr).Addr().As16()}
}

// turns lets a few of many work at a time: reads in the store, or bodies that are parsed. If more wait, the origins take
// turns, one piece of work each. So a crowd from one origin delays the others by one of its members, not by all of them.
// One origin never takes all places, unless it is this machine.
//
// The work must be short for that. A long read is made of many that each look at a bounded number of events, see work.
type turns struct {
	each int // how many of one network may work at a time

	mu    sync.Mutex
	free  int             // how many more may begin
	lines map[origin]line // of the origins that work or wait
	next  []origin        // those that wait and may begin, in the order of their turns
}

// line is what one origin does.
type line struct {
	running int
	waiting []chan struct{} // closed when the turn comes, in order
	queued  bool            // it is in turns.next
}

// newTurns has places for n at a time, and for so many of one network.
func newTurns(n, each int) *turns { return &turns{free: n, each: each, lines: map[origin]line{}} }

// mayBegin reports whether another of o may begin while those of its line l go on.
func (t *turns) mayBegin(o origin, l line) bool { return o.local || l.running < t.each }

// take waits for a turn of o. The caller must call leave when its work has ended. If ctx ends first, its error is
// returned and there is nothing to leave. A turn that is free at once is taken whatever ctx says.
func (t *turns) take(ctx context.Context, o origin) error {
	t.mu.Lock()
	l := t.lines[o]
	if t.free > 0 && t.mayBegin(o, l) { // then nobody of o waits
		t.free--
		l.running++
		t.lines[o] = l
		t.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	l.waiting = append(l.waiting, turn)
	t.put(o, l)
	t.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		t.giveUp(o, turn)
		return ctx.Err()
	}
}

// giveUp takes back the place in the line that turn is for, or the turn if it has come.
func (t *turns) giveUp(o origin, turn chan struct{}) {
	t.mu.Lock()
	l := t.lines[o]
	i := slices.Index(l.waiting, turn)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
		t.put(o, l)
	}
	t.mu.Unlock()
	if i < 0 {
		t.leave(o)
	}
}

// leave ends a turn and gives it to the next origin.
func (t *turns) leave(o origin) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	l := t.lines[o]
	l.running--
	t.put(o, l)
	for t.free > 0 && len(t.next) > 0 {
		o := t.next[0]
		t.next = t.next[1:]
		l := t.lines[o]
		l.queued = false
		if len(l.waiting) > 0 { // all of them may have given up
			t.free--
			l.running++
			close(l.waiting[0])
			l.waiting = l.waiting[1:]
		}
		t.put(o, l)
	}
}

// put stores the line of o, and queues o if one of those who wait may begin.
func (t *turns) put(o origin, l line) {
	if !l.queued && len(l.waiting) > 0 && t.mayBegin(o, l) {
		l.queued = true
		t.next = append(t.next, o)
	}
	if l.running == 0 && !l.queued {
		delete(t.lines, o)
		return
	}
	t.lines[o] = l
}
