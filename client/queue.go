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

// rank is the first thing that decides which REQUEST is answered next.
type rank int

const (
	known     rank = iota // from a client for whom the agent has worked
	directed              // to this agent alone
	broadcast             // to everybody
	ranks
)

// Bounds of a queue, for each rank. At the 20 offers a second that a relay admits by default, what does not fit would
// wait for more than a minute and a half behind newer REQUESTs.
const (
	queueLength = 2048
	queueBytes  = 8 << 20
)

const (
	turnMemory  = time.Minute // how long a client's turns count
	maxClients  = 4096        // whose turns are counted, and for whom the agent has worked
	workCredit  = 8           // REQUESTs that come first for each job the agent has begun for their client
	maxCredit   = 64          // of them, for one client
	reverseTurn = 4           // each fourth turn goes to the ranks in reverse order
	lottery     = time.Second // how long a REQUEST counts as new
)

// waiting is a REQUEST that waits for its answer.
type waiting struct {
	key   thread.Key
	event *envelope.Envelope
	page  *heldPage

	rank      rank
	number    int       // of its arrival
	came      time.Time // when it arrived
	until     time.Time // when its ttl will be over, counted from its arrival
	notBefore time.Time // after a failure
	pause     backoff
	quoted    *envelope.Offer // that could not be posted
}

// queue holds the REQUESTs that wait and says which is next. Any number of goroutines may use it.
type queue struct {
	woken chan struct{} // holds one after something was put in

	mu       sync.Mutex
	lists    [ranks][]*waiting
	bytes    [ranks]int
	arrivals int
	turns    int                // taken so far
	served   map[didkey.DID]int // turns by client
	counted  time.Time          // since when
	credit   *recent[didkey.DID, int]
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

// put adds a REQUEST that has just come and returns those for which there is no room, perhaps itself.
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

// putBack adds a REQUEST that was taken and could not be answered.
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

// before reports whether a, of the same rank, is kept rather than b if there is no room for both. q.mu is held.
func (q *queue) before(a, b *waiting) bool {
	if x, y := q.served[a.key.Client], q.served[b.key.Client]; x != y {
		return x < y
	}
	return a.number > b.number
}

// remove takes a REQUEST out. q.mu is held.
func (q *queue) remove(r rank, i int) *waiting {
	list := q.lists[r]
	w, end := list[i], len(list)-1
	list[i], list[end] = list[end], nil
	q.lists[r] = list[:end]
	q.bytes[r] -= size(w)
	return w
}

// withdraw takes the REQUEST of a thread out; nil: it is not in.
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

// next takes out the REQUEST that is to be answered now, and spends what its answer costs. If there is none, wait says
// how long it takes until there may be one; 0: until one is put in. late are those whose ttl is over.
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

// expire takes out what has waited for longer than its ttl. q.mu is held.
func (q *queue) expire(r rank, now time.Time) (late []*waiting) {
	for i := len(q.lists[r]) - 1; i >= 0; i-- {
		if !now.Before(q.lists[r][i].until) {
			late = append(late, q.remove(r, i))
		}
	}
	return late
}

// best returns the index of the REQUEST of a rank that comes first; -1: none may be answered now, and the first will
// be after that time (0: there is none). Of those that came within the last second, and whose clients have had equally
// few turns, each has the same chance: the newest would lose to whatever comes next, and a flood always comes next.
// q.mu is held.
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

// turns are slots that go round among clients: the one that holds the fewest is next. Of several it is the one that has
// waited longest. The field free is set before first use.
type turns struct {
	mu      sync.Mutex
	free    int
	held    map[didkey.DID]int
	waiting []*turn
}

type turn struct {
	client didkey.DID
	given  chan struct{} // closed when the slot is its
}

// take waits for a slot, which give gives back.
func (t *turns) take(ctx context.Context, client didkey.DID) error {
	mine := &turn{client: client, given: make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, mine)
	t.deal()
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
	if i < 0 { // it was given meanwhile
		t.give(client)
	}
	return context.Cause(ctx)
}

func (t *turns) give(client didkey.DID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	if t.held[client]--; t.held[client] == 0 {
		delete(t.held, client)
	}
	t.deal()
}

// deal gives the free slots away. t.mu is held.
func (t *turns) deal() {
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
