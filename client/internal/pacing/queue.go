// Package pacing decides when a client does something: which REQUEST an agent answers next, how fast it posts, whose job
// gets a free slot, and how long to wait between attempts.
package pacing

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/client/internal/recent"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// rank is the priority class of a REQUEST. REQUESTs with a lower rank are answered first, except in every fourth turn
// (see reverseTurn).
type rank int

const (
	known     rank = iota // from a client with credit, see workCredit
	directed              // from another client, with this agent as its recipient
	broadcast             // from another client, without a recipient
	rankCount             // the number of ranks
)

// Bounds of a queue, for each rank. A relay accepts 20 offers a second by default. At that rate 2048 REQUESTs take more
// than a minute and a half, so a REQUEST that does not fit would have to wait for at least that long.
const (
	queueLength = 2048    // REQUESTs
	queueBytes  = 8 << 20 // bytes of their envelopes
)

const (
	turnWindow    = time.Minute // after this time all counts of turns are reset
	maxClients    = 4096        // the most clients with a count of turns, and the most clients with credit
	workCredit    = 8           // credit for each job that is begun for a client; a REQUEST of rank known uses up one
	maxCredit     = 64          // the most credit of one client
	reverseTurn   = 4           // every fourth turn takes the ranks in reverse order
	newRequestAge = time.Second // how long a REQUEST counts as new, see Queue.best
)

// Request is a REQUEST that waits for an answer. P is what the caller keeps with it.
type Request[P any] struct {
	Key   thread.Key
	Event *envelope.Envelope
	Page  P // of the caller

	NotBefore time.Time // after a failed answer: when to retry
	Pause     Backoff
	Unposted  *envelope.Offer // the offer of an earlier try that could not be posted; nil: none

	rank     rank
	sequence int       // the number of the REQUEST in the order of arrival
	arrived  time.Time // when Put added the REQUEST
	expires  time.Time // when the ttl of the REQUEST ends, counted from its arrival
}

// Queue stores the REQUESTs that wait for an answer and decides which REQUEST is next. It is safe for concurrent use.
type Queue[P any] struct {
	Wake chan struct{} // has one element after a REQUEST was added

	mu       sync.Mutex
	lists    [rankCount][]*Request[P]
	bytes    [rankCount]int               // the size of each list
	arrivals int                          // the number of REQUESTs that have arrived
	turns    int                          // the number of REQUESTs that Next has returned
	served   map[didkey.DID]int           // the number of turns of each client since the time in counted
	counted  time.Time                    // when served was last cleared
	credit   *recent.Map[didkey.DID, int] // the credit of each client, see workCredit
}

// NewQueue returns an empty queue.
func NewQueue[P any]() *Queue[P] {
	return &Queue[P]{Wake: make(chan struct{}, 1), served: map[didkey.DID]int{},
		credit: recent.New[didkey.DID, int](maxClients)}
}

// Earn adds workCredit to the credit of a client. It is called when the agent begins to work for that client.
func (q *Queue[P]) Earn(client didkey.DID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	have, _ := q.credit.Get(client)
	q.credit.Add(client, min(have+workCredit, maxCredit))
}

// Put adds a REQUEST that has just arrived. It returns the REQUESTs that no longer fit. They may include w.
func (q *Queue[P]) Put(w *Request[P], now time.Time) (dropped []*Request[P]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.arrivals++
	w.sequence, w.arrived, w.expires = q.arrivals, now, now.Add(w.Event.TTL)
	switch credit, _ := q.credit.Get(w.Key.Client); {
	case credit > 0:
		q.credit.Add(w.Key.Client, credit-1)
		w.rank = known
	case w.Event.Recipient != "":
		w.rank = directed
	default:
		w.rank = broadcast
	}
	return q.insert(w)
}

// PutBack adds a REQUEST again that Next has returned, but that could not be answered. It returns the REQUESTs that no
// longer fit.
func (q *Queue[P]) PutBack(w *Request[P]) (dropped []*Request[P]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.insert(w)
}

// insert adds a REQUEST to the list of its rank and returns the REQUESTs that no longer fit. The caller holds q.mu.
func (q *Queue[P]) insert(w *Request[P]) (dropped []*Request[P]) {
	list := &q.lists[w.rank]
	*list = append(*list, w)
	q.bytes[w.rank] += size(w)
	for len(*list) > queueLength || q.bytes[w.rank] > queueBytes {
		last := 0
		for i := range *list {
			if q.outranks((*list)[last], (*list)[i]) {
				last = i
			}
		}
		dropped = append(dropped, q.remove(w.rank, last))
	}
	select {
	case q.Wake <- struct{}{}:
	default:
	}
	return dropped
}

// size returns the size of a REQUEST in bytes.
func size[P any](w *Request[P]) int { return len(w.Event.Canonical()) }

// outranks reports whether a is kept rather than b if only one of them fits. Both have the same rank. The client with
// fewer turns wins, then the REQUEST that arrived later. The caller holds q.mu.
func (q *Queue[P]) outranks(a, b *Request[P]) bool {
	if x, y := q.served[a.Key.Client], q.served[b.Key.Client]; x != y {
		return x < y
	}
	return a.sequence > b.sequence
}

// remove removes and returns the REQUEST with index i of a rank. The caller holds q.mu.
func (q *Queue[P]) remove(r rank, i int) *Request[P] {
	list := q.lists[r]
	w, end := list[i], len(list)-1
	list[i], list[end] = list[end], nil
	q.lists[r] = list[:end]
	q.bytes[r] -= size(w)
	return w
}

// Withdraw removes and returns the REQUEST of a thread, or nil if the queue does not have it.
func (q *Queue[P]) Withdraw(key thread.Key) *Request[P] {
	q.mu.Lock()
	defer q.mu.Unlock()
	for r := range rankCount {
		if i := slices.IndexFunc(q.lists[r], func(w *Request[P]) bool { return w.Key == key }); i >= 0 {
			return q.remove(r, i)
		}
	}
	return nil
}

// Next removes and returns the REQUEST to answer now, and counts one post in p. If no REQUEST can be answered now, w is
// nil, and wait is how long the caller waits before it calls Next again; 0: until a REQUEST is added. late are REQUESTs
// whose ttl has ended. They are removed as well.
func (q *Queue[P]) Next(now time.Time, p *Pace) (w *Request[P], late []*Request[P], wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now.Sub(q.counted) >= turnWindow || len(q.served) >= maxClients {
		clear(q.served)
		q.counted = now
	}
	for i := range rankCount {
		r := i
		if q.turns%reverseTurn == reverseTurn-1 {
			r = rankCount - 1 - i
		}
		late = append(late, q.expire(r, now)...)
		best, soonest := q.best(r, now)
		if best >= 0 {
			soonest = p.until(r, now)
		}
		if best >= 0 && soonest == 0 {
			w = q.remove(r, best)
			q.served[w.Key.Client]++
			q.turns++
			p.Spend(now)
			return w, late, 0
		}
		if soonest > 0 && (wait == 0 || soonest < wait) {
			wait = soonest
		}
	}
	return nil, late, wait
}

// expire removes and returns the REQUESTs of a rank that have waited for longer than their ttl. The caller holds q.mu.
func (q *Queue[P]) expire(r rank, now time.Time) (late []*Request[P]) {
	for i := len(q.lists[r]) - 1; i >= 0; i-- {
		if !now.Before(q.lists[r][i].expires) {
			late = append(late, q.remove(r, i))
		}
	}
	return late
}

// best returns the index of the REQUEST of a rank to answer next. If the agent has to wait before it retries any of
// them, best returns -1 and the time until the first retry. If the rank is empty, best returns -1 and 0.
//
// The client with the fewest turns comes first. If several clients have equally few turns, best picks one of their new
// REQUESTs (see newRequestAge) at random, because to pick the newest would favour a client that floods the queue. If
// none of these REQUESTs is new, best picks the newest. The caller holds q.mu.
func (q *Queue[P]) best(r rank, now time.Time) (best int, soonest time.Duration) {
	best = -1
	list, newCount := q.lists[r], 0
	for i, w := range list {
		pause := w.NotBefore.Sub(now)
		if pause > 0 {
			if soonest == 0 || pause < soonest {
				soonest = pause
			}
			continue
		}
		isNew := now.Sub(w.arrived) < newRequestAge
		switch {
		case best < 0, q.served[w.Key.Client] < q.served[list[best].Key.Client]:
			best, newCount = i, 0
		case q.served[w.Key.Client] > q.served[list[best].Key.Client]:
			continue
		case isNew && newCount > 0:
			if rand.N(newCount+1) == 0 {
				best = i
			}
		case w.sequence > list[best].sequence:
			best = i
		}
		if isNew {
			newCount++
		}
	}
	return best, soonest
}

// Slots is a set of slots that clients share. A free slot goes to the waiting client that holds the fewest slots.
// If several clients hold equally few, it goes to the one that has waited longest. The owner sets Free before first
// use.
type Slots struct {
	mu      sync.Mutex
	Free    int                // the number of free slots
	held    map[didkey.DID]int // the number of slots that each client holds; clients without a slot are absent
	waiting []*slotWaiter      // in the order of their calls of Acquire
}

// slotWaiter is a call of Acquire that waits.
type slotWaiter struct {
	client  didkey.DID
	granted chan struct{} // closed when the client gets its slot
}

// Acquire waits for a slot. The caller returns the slot with Release. Errors: the cause of ctx's end.
func (t *Slots) Acquire(ctx context.Context, client didkey.DID) error {
	mine := &slotWaiter{client: client, granted: make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, mine)
	t.assign()
	t.mu.Unlock()
	select {
	case <-mine.granted:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	i := slices.Index(t.waiting, mine)
	if i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
	t.mu.Unlock()
	if i < 0 { // assign has granted the slot in the meantime
		t.Release(client)
	}
	return context.Cause(ctx)
}

// Release returns a slot that Acquire has granted to the client.
func (t *Slots) Release(client didkey.DID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Free++
	if t.held[client]--; t.held[client] == 0 {
		delete(t.held, client)
	}
	t.assign()
}

// assign grants the free slots to waiting clients. The caller holds the mutex.
func (t *Slots) assign() {
	for t.Free > 0 && len(t.waiting) > 0 {
		next := 0
		for i, w := range t.waiting {
			if t.held[w.client] < t.held[t.waiting[next].client] {
				next = i
			}
		}
		w := t.waiting[next]
		t.waiting = slices.Delete(t.waiting, next, next+1)
		t.Free--
		if t.held == nil {
			t.held = map[didkey.DID]int{}
		}
		t.held[w.client]++
		close(w.granted)
	}
}
