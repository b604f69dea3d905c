package model

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/deal"
)

const (
	relays, clients, agents = 3, 2, 3
	parties                 = clients + agents

	step     = 5 * time.Second
	attempts = 3

	everybody = -1
	pending   = 5 * time.Minute // until a thread without ACCEPT ends
	active    = time.Hour
)

// message is an envelope. Its hash is a number, so nobody can make another one with the same hash.
type message struct {
	kind     envelope.Type
	from, to int // parties; or everybody
	thread   int
	hash, re envelope.Hash
	root     envelope.Hash // of a REQUEST
	price    float64
}

// room is a thread at a relay.
type room struct {
	client  int
	state   string // PENDING, ACTIVE or ended
	agent   int
	offers  []int
	changed time.Duration
}

// relay keeps what it is given, unless it is restored from a backup. It may withhold messages.
type relay struct {
	up        bool
	rooms     map[int]room
	stored    []*message
	withholds [parties]bool
	backup    *relay
}

func (r *relay) copied() *relay {
	c := &relay{up: true, rooms: map[int]room{}, stored: slices.Clone(r.stored)}
	for id, one := range r.rooms {
		one.offers = slices.Clone(one.offers)
		c.rooms[id] = one
	}
	return c
}

// answer is what a sender gets for a post.
type answer int

const (
	stored answer = iota
	refused
	none
)

// world has the parties, and decides by a seed what goes wrong.
type world struct {
	*rand.Rand
	now     time.Duration
	calm    bool // nothing goes wrong any more
	relays  [relays]*relay
	cut     [parties][relays]bool
	clock   [parties]time.Duration // how far a clock is ahead
	clients [clients]*buyer
	agents  [agents]*worker
	greedy  bool // the last agent asks for another price in each thread
	floods  int  // how many REQUESTs come at once to fill the book of an agent; 0: that does not happen
	numbers uint64
	failed  string
}

func newWorld(seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 1))}
	w.greedy = seed%16 == 3
	switch {
	case seed%4096 == 1:
		w.floods = deal.MaxJobs + 10
	case seed%64 == 1:
		w.floods = deal.MaxOfClient + 10
	}
	for i := range w.relays {
		w.relays[i] = &relay{up: true, rooms: map[int]room{}}
	}
	for i := range w.agents {
		w.agents[i] = &worker{world: w, me: clients + i}
		w.agents[i].start()
	}
	for i := range w.clients {
		w.clients[i] = &buyer{world: w, me: i, faithless: i == 1 && w.IntN(2) == 0,
			agent:  clients + w.IntN(agents),
			begins: time.Duration(w.IntN(60)) * step}
		if w.IntN(2) == 0 || w.clients[i].faithless {
			w.clients[i].agent = everybody
		}
	}
	return w
}

var epoch = time.Unix(1_770_000_000, 0)

// at returns the time by a party's clock.
func (w *world) at(party int) time.Time { return epoch.Add(w.now + w.clock[party]) }

func (w *world) hash() (h envelope.Hash) {
	w.numbers++
	binary.BigEndian.PutUint64(h[:], w.numbers)
	return h
}

func (w *world) fail(format string, args ...any) {
	if w.failed == "" {
		w.failed = fmt.Sprintf("at %v: ", w.now) + fmt.Sprintf(format, args...)
	}
}

var names = func() (all [parties]didkey.DID) {
	for i := range all {
		all[i] = didkey.DID(fmt.Sprintf("did:party:%d", i))
	}
	return all
}()

var homes = [relays]didkey.DID{"did:relay:0", "did:relay:1", "did:relay:2"}

// reaches reports whether a party has a connection to a relay that is up.
func (w *world) reaches(party, relay int) bool { return w.relays[relay].up && !w.cut[party][relay] }

// post posts a message. The answer may be lost, after the relay has stored it or before.
func (w *world) post(r int, m *message) answer {
	if !w.reaches(m.from, r) || !w.calm && w.IntN(20) == 0 {
		return none
	}
	got := w.relays[r].take(m, w.now)
	if !w.calm && w.IntN(20) == 0 {
		return none
	}
	return got
}

// take stores a message if the state of its thread allows that, as a relay does.
func (r *relay) take(m *message, now time.Duration) answer {
	for _, known := range r.stored {
		if known.hash == m.hash {
			return stored
		}
	}
	one, exists := r.rooms[m.thread]
	if exists {
		one = one.aged(now)
	}
	switch {
	case m.kind == envelope.TypeRequest && !exists:
		one = room{client: m.from, state: "PENDING", agent: -1}
	case m.kind == envelope.TypeOffer && one.state == "PENDING":
		one.offers = append(one.offers, m.from)
	case m.kind == envelope.TypeAccept && one.state == "PENDING" && m.from == one.client &&
		slices.Contains(one.offers, m.to):
		one.state, one.agent = "ACTIVE", m.to
	case m.kind == envelope.TypeResult && one.state == "ACTIVE" && m.from == one.agent,
		m.kind == envelope.TypeCancel && (one.state == "PENDING" || one.state == "ACTIVE") && m.from == one.client:
		one.state = "ended"
	default:
		return refused
	}
	one.changed = now
	r.rooms[m.thread] = one
	r.stored = append(r.stored, m)
	return stored
}

// aged returns the thread as the relay's timeouts leave it.
func (one room) aged(now time.Duration) room {
	if one.state == "PENDING" && now-one.changed > pending || one.state == "ACTIVE" && now-one.changed > active {
		one.state = "ended"
	}
	return one
}

// read returns what a party sees at a relay; ok is false if the relay gives no answer.
func (w *world) read(party, r int) (all []*message, ok bool) {
	if !w.reaches(party, r) {
		return nil, false
	}
	if w.relays[r].withholds[party] {
		return nil, true
	}
	return w.relays[r].stored, true
}

// run lets things go wrong for a while, and then lets all jobs end.
func (w *world) run() {
	for faults := 20 + w.IntN(100); w.failed == ""; w.now += step {
		if faults--; faults >= 0 {
			w.disturb()
		} else if !w.calm {
			w.heal()
		}
		for _, c := range w.clients {
			c.act()
		}
		for _, a := range w.agents {
			a.act()
		}
		if w.calm && w.ended() {
			return
		}
		if faults < -int(30*time.Minute/step) {
			w.fail("a job has not ended half an hour after the last fault")
		}
	}
}

func (w *world) ended() bool {
	for _, c := range w.clients {
		if c.order == nil || !c.done && !c.stuck() {
			return false
		}
	}
	return true
}

// disturb makes something go wrong, most often nothing.
func (w *world) disturb() {
	i, p := w.IntN(relays), w.IntN(parties)
	r := w.relays[i]
	switch w.IntN(8) {
	case 0:
		r.up = !r.up
	case 1:
		w.cut[p][i] = !w.cut[p][i]
	case 2:
		r.withholds[p] = !r.withholds[p]
	case 3:
		r.backup = r.copied()
	case 4:
		if r.backup != nil && w.IntN(3) == 0 {
			w.relays[i] = r.backup.copied()
			for _, a := range w.agents {
				clear(a.seen) // the relay does not know their positions any more
			}
		}
	case 5:
		if p >= clients {
			w.agents[p-clients].crash()
		}
	case 6:
		w.clock[p] = time.Duration(w.IntN(1200)-600) * time.Second
	case 7:
		if w.IntN(8) == 0 {
			w.flood(w.agents[w.IntN(agents)])
		}
	}
}

// flood fills the book of an agent with jobs of one client, or of many. They all get an ACCEPT, or none does.
func (w *world) flood(a *worker) {
	accepted := w.IntN(2) == 0
	for i := range w.floods {
		client := names[w.IntN(clients)]
		if w.floods > deal.MaxOfClient+10 {
			client = didkey.DID(fmt.Sprint("did:stranger:", i%64))
		}
		k := deal.Key{Client: client, Root: w.hash(), Payload: digest}
		if !a.book.HasRoom(k) {
			continue
		}
		a.book.Offered(k, []byte{1}, a.at(a.me).Add(24*time.Hour))
		if accepted {
			a.book.Accept(k, deal.Place{Relay: homes[0], Thread: fmt.Sprint(w.numbers), Accept: w.hash()}, 0, a.at(a.me))
			a.flooded = append(a.flooded, k)
		}
	}
	if w.floods > 0 {
		a.sync()
	}
}

// heal ends all faults, but one relay may stay dead.
func (w *world) heal() {
	w.calm = true
	w.cut = [parties][relays]bool{}
	dead := w.IntN(2 * relays)
	for i, r := range w.relays {
		r.up, r.withholds = i != dead, [parties]bool{}
	}
}

var digest deal.Digest

// key returns the job of a REQUEST.
func key(m *message) deal.Key { return deal.Key{Client: names[m.from], Root: m.root, Payload: digest} }
