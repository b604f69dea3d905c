package client

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// rank is the first criterion for which REQUEST is answered next. A lower rank comes first.
type rank int

const (
	known     rank = iota // from a client for whom the agent has worked
	directed              // its recipient is this agent
	broadcast             // without a recipient
	ranks                 // how many ranks there are
)

// Bounds of a queue, for each rank. A relay accepts 20 offers a second by default. At that rate a REQUEST that does not
// fit would have to wait for more than a minute and a half.
const (
	queueLength = 2048
	queueBytes  = 8 << 20
)

const (
	turnMemory  = time.Minute // how long a client's turns count
	maxClients  = 4096        // clients whose turns are counted, and clients with credit
	workCredit  = 8           // each job begun for a client lets so many of its REQUESTs rank as known
	maxCredit   = 64          // the most credit of one client
	reverseTurn = 4           // each fourth turn takes the ranks in reverse order
	lottery     = time.Second // how long a REQUEST counts as new
)

// waiting is a REQUEST that waits for its answer.
type waiting struct {
	key   thread.Key
	event *envelope.Envelope
	page  *heldPage

	rank      rank
	number    int       // the place in the order of arrival
	came      time.Time // when it arrived
	until     time.Time // when its ttl ends, counted from its arrival
	notBefore time.Time // set after a failure
	pause     backoff
	quoted    *envelope.Offer // made already, but not posted yet
}

// queue holds the REQUESTs that wait for an answer and decides which is next. It is safe for concurrent use.
type queue struct {
	woken chan struct{} // holds a token after a REQUEST was added

	mu       sync.Mutex
	lists    [ranks][]*waiting
	bytes    [ranks]int
	arrivals int
	turns    int                // turns taken so far
	served   map[didkey.DID]int // turns by client, since counted
	counted  time.Time
	credit   *recent[didkey.DID, int] // by client, see workCredit
}

func newQueue() *queue {
	return &queue{woken: make(chan struct{}, 1), served: map[didkey.DID]int{},
		credit: newRecent[didkey.DID, int](maxClients)}
}

// earn notes that the agent has begun to work for a client.
func (q *queue) earn(client didkey.DID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	have, _ := q.credit.get(client)
	q.credit.add(client, min(have+workCredit, maxCredit))
}

// put adds a REQUEST that has just arrived. It returns those that no longer fit, which may include w.
func (q *queue) put(w *waiting, now time.Time) (dropped []*waiting) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.arrivals++
	w.number, w.came, w.until = q.arrivals, now, now.Add(w.event.TTL)
	switch credit, _ := q.credit.get(w.key.Client); {
	case credit > 0:
		q.credit.add(w.key.Client, credit-1)
		w.rank = known
	case w.event.Recipient != "":
		w.rank = directed
	default:
		w.rank = broadcast
	}
	return q.insert(w)
}

// putBack adds a REQUEST again that was taken but could not be answered.
func (q *queue) putBack(w *waiting) (dropped []*waiting) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.insert(w)
}

// insert is put with q.mu held.
func (q *queue) insert(w *waiting) (dropped []*waiting) {
	list := &q.lists[w.rank]
	*list = append(*list, w)
	q.bytes[w.rank] += size(w)
	for len(*list) > queueLength || q.bytes[w.rank] > queueBytes {
		last := 0
		for i := range *list {
			if q.before((*list)[last], (*list)[i]) {
				last = i
			}
		}
		dropped = append(dropped, q.remove(w.rank, last))
	}
	select {
	case q.woken <- struct{}{}:
	default:
	}
	return dropped
}

func size(w *waiting) int { return len(w.event.Canonical()) }

// before reports whether a is kept instead of b if there is no room for both. They have the same rank. q.mu is held.
func (q *queue) before(a, b *waiting) bool {
	if x, y := q.served[a.key.Client], q.served[b.key.Client]; x != y {
		return x < y
	}
	return a.number > b.number
}

// remove removes the REQUEST with index i of a rank. q.mu is held.
func (q *queue) remove(r rank, i int) *waiting {
	list := q.lists[r]
	w, end := list[i], len(list)-1
	list[i], list[end] = list[end], nil
	q.lists[r] = list[:end]
	q.bytes[r] -= size(w)
	return w
}

// withdraw removes the REQUEST of a thread; nil: the queue does not have it.
func (q *queue) withdraw(key thread.Key) *waiting {
	q.mu.Lock()
	defer q.mu.Unlock()
	for r := range ranks {
		if i := slices.IndexFunc(q.lists[r], func(w *waiting) bool { return w.key == key }); i >= 0 {
			return q.remove(r, i)
		}
	}
	return nil
}

// next removes the REQUEST to answer now and spends one post of p. If there is none, w is nil and wait says when to ask
// again; 0: when a REQUEST is added. late are the REQUESTs whose ttl has ended; they are removed too.
func (q *queue) next(now time.Time, p *pace) (w *waiting, late []*waiting, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now.Sub(q.counted) >= turnMemory || len(q.served) >= maxClients {
		clear(q.served)
		q.counted = now
	}
	for i := range ranks {
		r := i
		if q.turns%reverseTurn == reverseTurn-1 {
			r = ranks - 1 - i
		}
		late = append(late, q.expire(r, now)...)
		best, soonest := q.best(r, now)
		if best >= 0 {
			soonest = p.until(r, now)
		}
		if best >= 0 && soonest == 0 {
			w = q.remove(r, best)
			q.served[w.key.Client]++
			q.turns++
			p.spend(now)
			return w, late, 0
		}
		if soonest > 0 && (wait == 0 || soonest < wait) {
			wait = soonest
		}
	}
	return nil, late, wait
}

// expire removes the REQUESTs that have waited for longer than their ttl. q.mu is held.
func (q *queue) expire(r rank, now time.Time) (late []*waiting) {
	for i := len(q.lists[r]) - 1; i >= 0; i-- {
		if !now.Before(q.lists[r][i].until) {
			late = append(late, q.remove(r, i))
		}
	}
	return late
}

// best returns the index of the first REQUEST of a rank. If none may be answered now, it returns -1 and the time until
// one may be (0: the rank is empty). The client with the fewest turns comes first. Among the REQUESTs of such clients,
// those of the last second have equal chances: taking the newest one would always favour a flood. q.mu is held.
func (q *queue) best(r rank, now time.Time) (best int, soonest time.Duration) {
	best = -1
	list, young := q.lists[r], 0
	for i, w := range list {
		pause := w.notBefore.Sub(now)
		if pause > 0 {
			if soonest == 0 || pause < soonest {
				soonest = pause
			}
			continue
		}
		isYoung := now.Sub(w.came) < lottery
		switch {
		case best < 0, q.served[w.key.Client] < q.served[list[best].key.Client]:
			best, young = i, 0
		case q.served[w.key.Client] > q.served[list[best].key.Client]:
			continue
		case isYoung && young > 0:
			if rand.N(young+1) == 0 {
				best = i
			}
		case w.number > list[best].number:
			best = i
		}
		if isYoung {
			young++
		}
	}
	return best, soonest
}

// turns are slots that clients share. The next free slot goes to the waiting client that holds the fewest; if several
// hold equally few, to the one that has waited longest. The field free is set before first use.
type turns struct {
	mu      sync.Mutex
	free    int
	held    map[didkey.DID]int
	waiting []*turn
}

type turn struct {
	client didkey.DID
	given  chan struct{} // closed when the client gets its slot
}

// take waits for a slot. The caller returns it with give.
func (t *turns) take(ctx context.Context, client didkey.DID) error {
	mine := &turn{client: client, given: make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, mine)
	t.assign()
	t.mu.Unlock()
	select {
	case <-mine.given:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	i := slices.Index(t.waiting, mine)
	if i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
	t.mu.Unlock()
	if i < 0 { // the slot was given in the meantime
		t.give(client)
	}
	return context.Cause(ctx)
}

// give returns a slot that take has given to the client.
func (t *turns) give(client didkey.DID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	if t.held[client]--; t.held[client] == 0 {
		delete(t.held, client)
	}
	t.assign()
}

// assign gives the free slots to waiting clients. t.mu is held.
func (t *turns) assign() {
	for t.free > 0 && len(t.waiting) > 0 {
		next := 0
		for i, w := range t.waiting {
			if t.held[w.client] < t.held[t.waiting[next].client] {
				next = i
			}
		}
		w := t.waiting[next]
		t.waiting = slices.Delete(t.waiting, next, next+1)
		t.free--
		if t.held == nil {
			t.held = map[didkey.DID]int{}
		}
		t.held[w.client]++
		close(w.given)
	}
}
