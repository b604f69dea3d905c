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
	perAddress, all int // Unlimited: any number

	mu    sync.Mutex
	sum   int
	taken map[netip.Addr]int // by network, none of them 0
}

func newPlaces(perAddress, all int) *places {
	return &places{perAddress: perAddress, all: all, taken: map[netip.Addr]int{}}
}

// take takes a place for p until leave is called, once. Where there is none, leave is nil and ofAddress says whether
// those of p's own address are meant or those of all.
func (s *places) take(p Peer) (leave func(), ofAddress bool) {
	if p.Local {
		return func() {}, false
	}
	from := network(p.Addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.perAddress >= 0 && s.taken[from] >= s.perAddress {
		return nil, true
	}
	if s.all >= 0 && s.sum >= s.all {
		return nil, false
	}
	s.sum++
	s.taken[from]++
	return func() { s.leave(from) }, false
}

func (s *places) leave(from netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum--
	if s.taken[from]--; s.taken[from] == 0 {
		delete(s.taken, from)
	}
}

// Connect takes a place for a connection until leave is called, which is when it has ended: each holds one of the few
// files that the process may have open, whether it asks for anything or not. Refusals: CodeRateLimited, at once.
func (r *Relay) Connect(p Peer) (leave func(), err error) {
	if leave, _ = r.limiter.connections.take(p); leave != nil {
		return leave, nil
	}
	return nil, noPlace(ConnectionsPerAddress, "%d connections of this address are open, and no more may be; use those",
		r.Limits.ConnectionsPerAddress)
}

// Enter takes a place for a request of p until leave is called: whoever is slow to send or to read holds memory as long
// as that goes on, and may hold so much and no more. Refusals: CodeRateLimited, at once.
func (r *Relay) Enter(p Peer) (leave func(), err error) {
	if leave, _ = r.limiter.requests.take(p); leave != nil {
		return leave, nil
	}
	return nil, noPlace(RequestsPerAddress, "%d requests of this address are under way, and no more may be; wait for their answers",
		r.Limits.RequestsPerAddress)
}

// wait takes a place for a poll that will wait. Refusals: CodeRateLimited, at once.
func (l *limiter) wait(p *Poll) (leave func(), err error) {
	if p.Wait <= 0 {
		return func() {}, nil
	}
	leave, ofAddress := l.polls.take(p.Peer)
	switch {
	case leave != nil:
		return leave, nil
	case ofAddress:
		return nil, noPlace(PollsPerAddress, "%d polls of this address wait already, and no more may; "+
			"end one, or ask with timeout=0", l.polls.perAddress)
	default:
		return nil, noPlace(Polls, "%d polls wait already, which is all that this relay holds; "+
			"try again in some seconds, or ask with timeout=0", l.polls.all)
	}
}

func noPlace(limit, format string, most int) error {
	e := envelope.Errorf(envelope.CodeRateLimited, format, most)
	e.RetryAfter, e.Details = placeAgain, map[string]any{"limit": limit}
	return e
}
