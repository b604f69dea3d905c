package model

import (
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/deal"
)

// buyer is a client with one job. A faithless one accepts the offers of all agents.
type buyer struct {
	*world
	me, agent int
	faithless bool
	begins    time.Duration
	order     *deal.Order
	legs      []*thread
	root      envelope.Hash
	done      bool
	accepts   map[envelope.Hash]int // by REQUEST: for how many agents an ACCEPT was signed
	accepted  map[int]bool          // agents
	price     float64               // of the first accepted offer; 0: there is none
	retry     time.Duration
}

// thread is one thread of a job.
type thread struct {
	*deal.Leg
	relay           int
	request, accept *message
	unsent          *message // is posted again until the home answers
	since           time.Time
	cancelled       bool
}

func (b *buyer) act() {
	now := b.at(b.me)
	if b.now < b.begins {
		return
	}
	if b.order == nil {
		b.order = &deal.Order{Ends: now.Add(24 * time.Hour), Silence: 30 * time.Second, OfferWait: time.Minute}
		if b.agent != everybody {
			b.order.Recipient = names[b.agent]
		}
		b.accepts, b.accepted = map[envelope.Hash]int{}, map[int]bool{}
		b.open(0)
	}
	for _, t := range b.legs {
		b.send(t)
		b.follow(t)
	}
	at, _ := b.order.Due(now, func(didkey.DID) bool { return false })
	if !b.done && !at.IsZero() && !now.Before(at) && b.now >= b.retry {
		b.retry = b.now + step
		last := b.legs[len(b.legs)-1].relay
		for i := 1; i < relays; i++ {
			if next := (last + i) % relays; b.reaches(b.me, next) {
				b.open(next)
				break
			}
		}
	}
}

// open opens a thread at a relay.
func (b *buyer) open(r int) {
	to := everybody
	if agent := b.order.For(); agent != "" {
		to = slices.Index(names[:], agent)
	}
	m := &message{kind: envelope.TypeRequest, from: b.me, to: to, thread: int(b.numbers)<<1 | 1, hash: b.hash()}
	if m.root = b.root; b.root == (envelope.Hash{}) {
		m.root, b.root = m.hash, m.hash
	}
	if len(b.legs) > deal.MaxContinued {
		b.fail("client %d continues its job %d times", b.me, len(b.legs))
	}
	if !b.faithless && len(b.accepted) > 0 && !b.accepted[to] {
		b.fail("client %d continues its job for %d, but has accepted another agent (R-16)", b.me, to)
	}
	t := &thread{Leg: &deal.Leg{Home: homes[r], Opened: b.at(b.me)}, relay: r, request: m, unsent: m, since: b.at(b.me)}
	b.legs = append(b.legs, t)
	b.order.Add(t.Leg)
}

// send posts what the home has not answered yet, and cancels a thread that the job has left.
func (b *buyer) send(t *thread) {
	if t.unsent != nil {
		switch b.post(t.relay, t.unsent) {
		case none:
			t.Sent(t.since)
		case refused:
			if t.unsent == t.accept {
				t.Refused, t.Lost = true, "has refused the ACCEPT"
			}
			t.unsent = nil
		case stored:
			if t.unsent = nil; len(b.legs) == 1 || t == b.legs[len(b.legs)-1] {
				t.Sent(time.Time{})
			}
		}
	}
	if t.unsent == nil && !t.cancelled && b.order.MayCancel(t.Leg) {
		m := &message{kind: envelope.TypeCancel, from: b.me, to: b.agent, thread: t.request.thread,
			re: t.request.hash, hash: b.hash()}
		if t.accept != nil {
			b.fail("client %d cancels a thread with an ACCEPT (R-16)", b.me)
		}
		t.cancelled = b.post(t.relay, m) != none
	}
}

// follow reads a thread.
func (b *buyer) follow(t *thread) {
	all, ok := b.read(b.me, t.relay)
	t.Read(b.at(b.me), ok)
	if one, exists := b.relays[t.relay].rooms[t.request.thread]; ok && t.unsent == nil && t == b.legs[len(b.legs)-1] {
		switch one = one.aged(b.now); {
		case !exists:
			t.Lost = "has lost the thread"
		case one.state == "ended" && !t.Offered:
			t.Lost = "shows no offer"
		case t.accept != nil && one.agent < 0:
			t.Lost = "has lost the ACCEPT"
		}
	}
	for _, m := range all {
		switch {
		case m.thread != t.request.thread || m.to != b.me:
		case m.kind == envelope.TypeOffer && m.re == t.request.hash:
			t.Offered = true
			b.consider(t, m)
		case m.kind == envelope.TypeResult && t.accept != nil && m.re == t.accept.hash && m.from == t.accept.to && !b.done:
			b.done = true
		}
	}
}

// consider accepts an offer if the rules allow that. A faithless buyer accepts one of each agent.
func (b *buyer) consider(t *thread, offer *message) {
	if b.done || t.accept != nil && !t.Refused {
		return
	}
	if b.faithless {
		if b.accepted[offer.from] {
			return
		}
		t.Decided = true
	} else if b.order.Decide(t.Leg, names[offer.from], offer.price) != nil {
		return
	}
	t.accept = &message{kind: envelope.TypeAccept, from: b.me, to: offer.from, thread: t.request.thread,
		re: offer.hash, hash: b.hash()}
	t.unsent, t.since = t.accept, b.at(b.me)
	b.accepts[t.request.hash]++
	b.accepted[offer.from] = true
	if b.price == 0 {
		b.price = offer.price
	}
	if !b.faithless && offer.price > b.price {
		b.fail("client %d accepts %v, and before %v (R-16)", b.me, offer.price, b.price)
	}
	if !b.faithless && (b.accepts[t.request.hash] > 1 || len(b.accepted) > 1) {
		b.fail("client %d has signed ACCEPTs that convict it (R-9): %v agents, %d for one REQUEST", b.me,
			len(b.accepted), b.accepts[t.request.hash])
	}
}

// stuck reports whether the rules allow nothing more: all continuations are used, or the client is faithless.
func (b *buyer) stuck() bool {
	t := b.legs[len(b.legs)-1]
	one, exists := b.relays[t.relay].rooms[t.request.thread]
	over := !b.relays[t.relay].up || !exists || one.aged(b.now).state == "ended" || t.Refused
	return b.faithless || len(b.legs) > deal.MaxContinued && over || b.greedy && b.accepted[parties-1]
}

// worker is an agent with a state file.
type worker struct {
	*world
	me      int
	book    *deal.Book
	file    map[deal.Key]deal.Job // after the last fsync
	pending map[deal.Key]*deal.Job
	offers  map[int]*message // by thread
	known   map[int]*message // REQUESTs, by thread
	seen    map[envelope.Hash]bool
	running map[deal.Key]time.Duration // when the work ends
	owed    []owed                     // the ACCEPTs that wait for the outcome
	works   map[deal.Key]int
	crashes map[deal.Key]int // while the work was running
	flooded []deal.Key       // accepted jobs that only fill the book, until they end
}

// start reads the file, and all messages again: the positions are saved after the jobs.
func (a *worker) start() {
	a.book = &deal.Book{Changed: func(j *deal.Job, forgotten bool) {
		if forgotten && j.Accepted && !j.Over {
			a.fail("agent %d forgets an accepted job (R-18)", a.me)
		}
		if forgotten { // of those that are over, a full book forgets the oldest ones; see deal.Book.HasRoom
			delete(a.works, j.Key)
		}
		if a.pending[j.Key] = nil; !forgotten {
			saved := *j
			a.pending[j.Key] = &saved
		}
	}}
	a.pending, a.seen, a.running = map[deal.Key]*deal.Job{}, map[envelope.Hash]bool{}, map[deal.Key]time.Duration{}
	a.owed = nil
	if a.file == nil {
		a.file, a.works, a.crashes = map[deal.Key]deal.Job{}, map[deal.Key]int{}, map[deal.Key]int{}
		a.offers, a.known = map[int]*message{}, map[int]*message{}
	}
	for _, j := range a.file {
		a.book.Restore(j)
	}
}

func (a *worker) sync() {
	for k, j := range a.pending {
		if j == nil {
			delete(a.file, k)
		} else {
			a.file[k] = *j
		}
	}
	clear(a.pending)
}

func (a *worker) crash() {
	for k := range a.running {
		a.crashes[k]++
	}
	if a.IntN(2) == 0 {
		a.sync() // the system has written the file
	}
	a.start()
}

func (a *worker) act() {
	for r := range relays {
		all, _ := a.read(a.me, r)
		for _, m := range all {
			if !a.seen[m.hash] && (m.to == a.me || m.to == everybody) {
				a.seen[m.hash] = a.handle(r, m)
			}
		}
	}
	for k, ends := range a.running {
		if a.now >= ends {
			delete(a.running, k)
			a.book.Finish(k, deal.Outcome{Type: envelope.TypeResult}, a.at(a.me))
			a.sync()
		}
	}
	if len(a.flooded) > 0 && a.IntN(20) == 0 {
		for _, k := range a.flooded {
			a.book.Finish(k, deal.Outcome{Type: envelope.TypeResult}, a.at(a.me))
		}
		a.flooded = nil
	}
	a.tell()
}

// handle handles a message, and reports whether it is done with it.
func (a *worker) handle(r int, m *message) bool {
	switch m.kind {
	case envelope.TypeRequest:
		return a.quote(r, m)
	case envelope.TypeAccept:
		a.begin(r, m)
	case envelope.TypeCancel:
		if request := a.known[m.thread]; request != nil && a.book.Ended(key(request), deal.Place{Relay: homes[r],
			Thread: id(m)}, a.at(a.me)) {
			delete(a.running, key(request))
		}
	}
	return true
}

func id(m *message) string { return string(rune('a' + m.thread)) }

func (a *worker) quote(r int, m *message) bool {
	a.known[m.thread] = m
	if a.offers[m.thread] == nil {
		if !a.book.HasRoom(key(m)) {
			return true
		}
		price := float64(1 + a.IntN(3))
		if a.greedy && a.me == parties-1 {
			price = float64(1 + a.IntN(9))
		} else if a.floods > 0 { // the agent forgets the terms of jobs without an ACCEPT
			price = 1
		}
		if j, ok := a.book.Job(key(m)); ok && j.Terms != nil && !(a.greedy && a.me == parties-1) {
			price = float64(j.Terms[0])
		}
		a.offers[m.thread] = &message{kind: envelope.TypeOffer, from: a.me, to: m.from, thread: m.thread, re: m.hash,
			hash: a.hash(), price: price}
	}
	a.book.Expire(a.at(a.me))
	a.book.Offered(key(m), []byte{byte(a.offers[m.thread].price)}, a.at(a.me).Add(24*time.Hour))
	a.sync()
	return a.post(r, a.offers[m.thread]) != none
}

// begin begins the work for an ACCEPT, if the rules say so.
func (a *worker) begin(r int, m *message) {
	offer, request := a.offers[m.thread], a.known[m.thread]
	one := a.relays[r].rooms[m.thread].aged(a.now)
	if offer == nil || request == nil || m.re != offer.hash || m.from != request.from || one.state != "ACTIVE" ||
		one.agent != a.me {
		return
	}
	k := key(request)
	before, _ := a.book.Job(k)
	at := deal.Place{Relay: homes[r], Thread: id(m), Accept: m.hash, First: request.root == request.hash}
	action := a.book.Accept(k, at, 0, a.at(a.me))
	if action != deal.Work && action != deal.Answer {
		return
	}
	after, _ := a.book.Job(k)
	a.owed = slices.DeleteFunc(a.owed, func(o owed) bool {
		return o.accept == m || o.key == k && before.Newest.First && !after.Newest.First
	})
	a.owed = append(a.owed, owed{k, r, m})
	if action == deal.Answer {
		return
	}
	if _, busy := a.running[k]; busy {
		return
	}
	_, may := a.book.Begin(k, attempts)
	a.sync()
	if !may {
		a.book.Finish(k, deal.Outcome{Type: envelope.TypeError}, a.at(a.me))
		a.sync()
		return
	}
	a.running[k] = a.now + time.Duration(a.IntN(60))*time.Second
	if a.works[k]++; a.works[k] > 1+a.crashes[k] || a.works[k] > attempts {
		a.fail("agent %d works for the %d. time, and crashed %d times while it worked", a.me, a.works[k], a.crashes[k])
	}
}

// owed is an ACCEPT that waits for the outcome of its job, and its relay.
type owed struct {
	key    deal.Key
	relay  int
	accept *message
}

// tell posts outcomes to the threads that wait for them.
func (a *worker) tell() {
	a.owed = slices.DeleteFunc(a.owed, func(o owed) bool {
		if j, ok := a.book.Job(o.key); !ok || j.Outcome == nil {
			return false
		}
		m := &message{kind: envelope.TypeResult, from: a.me, to: o.accept.from, thread: o.accept.thread,
			re: o.accept.hash, hash: a.hash()}
		return a.post(o.relay, m) != none
	})
}
