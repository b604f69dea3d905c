package admission

import (
	"net/netip"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// slotRetryAfter is when to try again if no slot is free. A slot becomes free as soon as another request is answered.
const slotRetryAfter = 5 * time.Second

// slots limits how many connections, requests or polls there are at the same time. Local ones need no slot.
type slots struct {
	mu              sync.Mutex
	perAddress, all slotLimit
	total           int
	inUse           map[netip.Prefix]int // by network; no entry is 0
}

// slotLimit is a number of slots, with the name of the limit and the format of its refusal. The format has a verb for
// the number, and for the limit of one address also one for the network.
type slotLimit struct {
	most          int // Unlimited: any number
	name, message string
}

func newSlots(perAddress, all slotLimit) *slots {
	return &slots{perAddress: perAddress, all: all, inUse: map[netip.Prefix]int{}}
}

// setLimits changes the limits. Slots that are in use stay in use, even if there are more of them than are now allowed.
func (s *slots) setLimits(perAddress, all int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.perAddress.most, s.all.most = perAddress, all
}

// acquire takes a slot in each of p's networks. The caller must call release once, which frees the slots. acquire does
// not wait: if a slot is missing, it returns a refusal at once. Refusals: CodeRateLimited.
func (s *slots) acquire(p Peer) (release func(), err error) {
	if p.Local {
		return func() {}, nil
	}
	var buf [len(widths)]netip.Prefix
	prefixes := networks(p.Addr, &buf)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range prefixes {
		if allowed := s.perAddress.most * networkFactor(n); allowed >= 0 && s.inUse[n] >= allowed {
			return nil, s.perAddress.refusal(allowed, describeNetwork(n))
		}
	}
	if s.all.most >= 0 && s.total >= s.all.most {
		return nil, s.all.refusal(s.all.most)
	}
	s.total++
	for _, n := range prefixes {
		s.inUse[n]++
	}
	return func() { s.release(p.Addr) }, nil
}

func (s *slots) release(addr netip.Addr) {
	var buf [len(widths)]netip.Prefix
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	for _, n := range networks(addr, &buf) {
		if s.inUse[n]--; s.inUse[n] == 0 {
			delete(s.inUse, n)
		}
	}
}

// Connect takes a slot for a new connection. The caller must call release when the connection has ended. The number of
// connections is limited because each of them uses one of the files that the process may have open, even if it is idle.
// The rate of new connections is limited because a TLS handshake takes much CPU time. Connect does not wait for a slot.
// Refusals: CodeRateLimited, CodeForbidden if the address is banned.
func (g *Gate) Connect(p Peer) (release func(), err error) {
	if err := g.checkAddress(p.Addr); err != nil {
		return nil, err
	}
	err = g.connects.Take(p, g.now)
	if err == nil {
		release, err = g.connections.acquire(p)
	}
	g.NoteRefusal(p, "", err)
	return release, err
}

// HasFewConnections reports whether p's address has at most few open connections. Like the limits, it also looks at the
// larger networks around an IPv6 address: a /56 may have 4 times as many, and a /48 16 times. It is true for local
// peers.
func (g *Gate) HasFewConnections(p Peer, few int) bool {
	s := g.connections
	var buf [len(widths)]netip.Prefix
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range networks(p.Addr, &buf) {
		if !p.Local && s.inUse[n] > few*networkFactor(n) {
			return false
		}
	}
	return true
}

// Enter takes a slot for a request of p. The caller must call release when the request has been answered. A client that
// sends or reads slowly uses memory for all that time, so the number of its requests is limited. Enter does not wait
// for a slot. Refusals: CodeRateLimited.
func (g *Gate) Enter(p Peer) (release func(), err error) {
	release, err = g.requests.acquire(p)
	g.NoteRefusal(p, "", err)
	return release, err
}

// Poll takes a slot for a poll or a stream of p, which waits. The caller must call release when it has ended. Poll itself
// does not wait. Refusals: CodeRateLimited.
func (g *Gate) Poll(p Peer) (release func(), err error) {
	release, err = g.polls.acquire(p)
	g.NoteRefusal(p, p.Reader, err)
	return release, err
}

// maxBulks is how many bulk requests of all addresses the relay works on at a time. Each needs some MB of memory.
const maxBulks = 16

// Bulk takes a slot for a bulk request of p. The caller must call release when it has ended. Bulk does not wait.
// Refusals: CodeRateLimited.
func (g *Gate) Bulk(p Peer) (release func(), err error) {
	release, err = g.bulks.acquire(p)
	g.NoteRefusal(p, "", err)
	return release, err
}

// refusal returns the refusal of a client for which no slot is free. args are the values of the message.
func (l slotLimit) refusal(args ...any) error {
	e := envelope.Errorf(envelope.CodeRateLimited, l.message, args...)
	e.RetryAfter, e.Details = slotRetryAfter, map[string]any{envelope.DetailLimit: l.name}
	return e
}
