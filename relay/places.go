package relay

import (
	"net/netip"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// placeAgain is when who found no place may try again: one is free as soon as another request is answered.
const placeAgain = 5 * time.Second

// places counts what goes on at the same time. What comes from the relay's own machine takes no place.
type places struct {
	limit, full     string // the limit's name, and its refusal, which has verbs for a number and a network
	perAddress, all int    // Unlimited: any number

	mu    sync.Mutex
	sum   int
	taken map[netip.Prefix]int // by network, none of them 0
}

func newPlaces(limit, full string, perAddress, all int) *places {
	return &places{limit: limit, full: full, perAddress: perAddress, all: all, taken: map[netip.Prefix]int{}}
}

// take takes a place for p in each of its networks until leave is called, once. Refusals: CodeRateLimited, at once.
func (s *places) take(p Peer) (leave func(), err error) {
	if p.Local {
		return func() {}, nil
	}
	var array [len(widths)]netip.Prefix
	of := networks(p.Addr, &array)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range of {
		if most := s.perAddress * share(n); s.perAddress >= 0 && s.taken[n] >= most {
			return nil, noPlace(s.limit, s.full, most, named(n))
		}
	}
	if s.all >= 0 && s.sum >= s.all {
		return nil, noPlace(envelope.LimitPolls, "%d polls wait already, which is all that this relay holds; "+
			"try again in some seconds, or ask with timeout=0", s.all)
	}
	s.sum++
	for _, n := range of {
		s.taken[n]++
	}
	return func() { s.leave(p.Addr) }, nil
}

func (s *places) leave(addr netip.Addr) {
	var array [len(widths)]netip.Prefix
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum--
	for _, n := range networks(addr, &array) {
		if s.taken[n]--; s.taken[n] == 0 {
			delete(s.taken, n)
		}
	}
}

// Connect takes a place for a connection until leave is called, which is when it has ended: each holds one of the few
// files that the process may have open, whether it asks for anything or not. Refusals: CodeRateLimited, at once.
func (r *Relay) Connect(p Peer) (leave func(), err error) {
	leave, err = r.limiter.connections.take(p)
	r.noteRefusal(p, "", err)
	return leave, err
}

// Enter takes a place for a request of p until leave is called: whoever is slow to send or to read holds memory as long
// as that goes on, and may hold so much and no more. Refusals: CodeRateLimited, at once.
func (r *Relay) Enter(p Peer) (leave func(), err error) {
	leave, err = r.limiter.requests.take(p)
	r.noteRefusal(p, "", err)
	return leave, err
}

// wait takes a place for a poll that will wait. Refusals: CodeRateLimited, at once.
func (r *Relay) wait(p *Poll) (leave func(), err error) {
	if p.Wait <= 0 {
		return func() {}, nil
	}
	leave, err = r.limiter.polls.take(p.Peer)
	r.noteRefusal(p.Peer, p.Peer.Reader, err)
	return leave, err
}

func noPlace(limit, format string, args ...any) error {
	e := envelope.Errorf(envelope.CodeRateLimited, format, args...)
	e.RetryAfter, e.Details = placeAgain, map[string]any{envelope.DetailLimit: limit}
	return e
}
