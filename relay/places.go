package relay

import (
	"net/netip"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// placeAgain is when a poll that found no place may try again: one is free as soon as any other poll is answered.
const placeAgain = 5 * time.Second

// places counts the polls that wait. Those of the relay's own machine and those that do not wait take none.
type places struct {
	perAddress, all int // Unlimited: any number

	mu    sync.Mutex
	sum   int
	taken map[netip.Addr]int // by network, none of them 0
}

// take takes a place for p until leave is called, once. Refusals: CodeRateLimited, at once.
func (s *places) take(p Poll) (leave func(), err error) {
	if p.Peer.Local || p.Wait <= 0 {
		return func() {}, nil
	}
	from := network(p.Peer.Addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.perAddress >= 0 && s.taken[from] >= s.perAddress {
		return nil, noPlace(PollsPerAddress, "%d polls of this address wait already, and no more may; "+
			"end one, or ask with timeout=0", s.perAddress)
	}
	if s.all >= 0 && s.sum >= s.all {
		return nil, noPlace(Polls, "%d polls wait already, which is all that this relay holds; "+
			"try again in some seconds, or ask with timeout=0", s.all)
	}
	s.sum++
	s.taken[from]++
	return func() { s.leave(from) }, nil
}

func (s *places) leave(from netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum--
	if s.taken[from]--; s.taken[from] == 0 {
		delete(s.taken, from)
	}
}

func noPlace(limit, format string, most int) error {
	e := envelope.Errorf(envelope.CodeRateLimited, format, most)
	e.RetryAfter, e.Details = placeAgain, map[string]any{"limit": limit}
	return e
}
