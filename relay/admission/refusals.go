package admission

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

// Limits on what is logged about refusals.
const (
	refusalLogInterval   = time.Minute // between two lines about the same limit and network
	refusalFlushInterval = 10 * time.Second
	maxTrackedRefusals   = 256 // limits and networks with lines of their own; refusals beyond these are only counted
)

// refusals logs that limits have refused requests. For each limit and network, it logs a line when refusals begin.
// After that it logs at most one line in refusalLogInterval, with the number of refusals.
type refusals struct {
	log *slog.Logger

	mu        sync.Mutex
	seen      map[refusalKey]*refusal
	untracked int // refusals for which seen had no room
}

type refusalKey struct {
	limit   string
	network netip.Prefix
}

// refusal describes the last refusal for one limit and network.
type refusal struct {
	addr     netip.Addr
	did      didkey.DID // empty: unknown
	count    int        // refusals since the last line
	loggedAt time.Time  // when the last line was logged
}

func newRefusals(log *slog.Logger) *refusals {
	return &refusals{log: log, seen: map[refusalKey]*refusal{}}
}

// NoteRefusal records that p was refused, if err is the refusal of a limit. did is the client's identity. It is empty
// if the client has not proven one.
func (g *Gate) NoteRefusal(p Peer, did didkey.DID, err error) {
	if err == nil {
		return // before anything is allocated
	}
	refused, ok := errors.AsType[*envelope.Error](err)
	if !ok || refused.Code != envelope.CodeRateLimited {
		return
	}
	g.refusals.note(refusalKey{refused.Limit(), network(p.Addr)}, p.Addr, did, time.Now())
}

func (s *refusals) note(k refusalKey, addr netip.Addr, did didkey.DID, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.seen[k]
	switch {
	case before != nil:
		before.addr, before.did = addr, did
		before.count++
	case len(s.seen) >= maxTrackedRefusals:
		s.untracked++
	default:
		s.seen[k] = &refusal{addr: addr, did: did, loggedAt: now}
		s.logLine(k, *s.seen[k], 1)
	}
}

func (s *refusals) logLine(k refusalKey, r refusal, count int) {
	s.log.Warn("refused by a limit", "limit", k.limit, "addr", r.addr, "network", k.network, "did", r.did, "count", count)
}

// run logs the counted refusals, until ctx ends.
func (s *refusals) run(ctx context.Context) {
	tick := time.NewTicker(refusalFlushInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.flush(now)
		}
	}
}

// flush logs the refusals since the last line of each limit and network, if that line is old enough. It removes limits
// and networks without new refusals.
func (s *refusals) flush(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, r := range s.seen {
		switch {
		case now.Sub(r.loggedAt) < refusalLogInterval:
		case r.count == 0:
			delete(s.seen, k)
		default:
			s.logLine(k, *r, r.count)
			r.count, r.loggedAt = 0, now
		}
	}
	if s.untracked > 0 && len(s.seen) < maxTrackedRefusals {
		s.log.Warn("refused by limits, for addresses without log lines of their own", "count", s.untracked)
		s.untracked = 0
	}
}
