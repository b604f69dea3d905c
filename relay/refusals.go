package relay

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Bounds of what the log says about refusals by limits.
const (
	refusalPause = time.Minute // between two lines about one limit and one network
	refusalTick  = 10 * time.Second
	maxRefusals  = 256 // lines in a pause; what is beyond is only counted
)

// refusals tells the log of refusals by limits: a line when one begins, and then at most one in refusalPause for each
// limit and network, with how many there were.
type refusals struct {
	log *slog.Logger

	mu    sync.Mutex
	seen  map[refusalKey]*refusal
	other int // of more limits and networks than seen may hold
}

type refusalKey struct {
	limit   string
	network netip.Prefix
}

// refusal is the last one of its key.
type refusal struct {
	peer  netip.Addr
	did   didkey.DID // empty: not known
	count int        // since the last line
	told  time.Time  // when that was
}

func newRefusals(log *slog.Logger) *refusals {
	return &refusals{log: log, seen: map[refusalKey]*refusal{}}
}

// noteRefusal notes that p was refused, if err is the refusal of a limit. did is who asked, empty if nobody has shown it.
func (r *Relay) noteRefusal(p Peer, did didkey.DID, err error) {
	if err == nil {
		return // before anything is allocated
	}
	refused, ok := errors.AsType[*envelope.Error](err)
	if !ok || refused.Code != envelope.CodeRateLimited {
		return
	}
	r.refusals.note(refusalKey{refused.Limit(), network(p.Addr)}, p.Addr, did, time.Now())
}

func (s *refusals) note(k refusalKey, peer netip.Addr, did didkey.DID, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.seen[k]
	switch {
	case before != nil:
		before.peer, before.did = peer, did
		before.count++
	case len(s.seen) >= maxRefusals:
		s.other++
	default:
		s.seen[k] = &refusal{peer: peer, did: did, told: now}
		s.tell(k, *s.seen[k], 1)
	}
}

func (s *refusals) tell(k refusalKey, r refusal, count int) {
	s.log.Warn("refused by a limit", "limit", k.limit, "addr", r.peer, "network", k.network, "did", r.did, "count", count)
}

// run tells of what was counted, until ctx ends.
func (s *refusals) run(ctx context.Context) {
	tick := time.NewTicker(refusalTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.sum(now)
		}
	}
}

// sum tells of refusals since the last line, where that is old enough, and forgets those that have ended.
func (s *refusals) sum(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, r := range s.seen {
		switch {
		case now.Sub(r.told) < refusalPause:
		case r.count == 0:
			delete(s.seen, k)
		default:
			s.tell(k, *r, r.count)
			r.count, r.told = 0, now
		}
	}
	if s.other > 0 && len(s.seen) < maxRefusals {
		s.log.Warn("refused by limits, of more addresses than are told of", "count", s.other)
		s.other = 0
	}
}
