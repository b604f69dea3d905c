package relay

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/replay"
)

const (
	// tokenMemory is how long a token is remembered at least: from its use, a minute early, until it is a minute old.
	tokenMemory = 2 * ReadSkew
	// maxTokens bounds a generation of used tokens, of which there are two: 40 MB. It is 4369 reads a second.
	maxTokens = 1 << 19
)

// tokens is Nonces in this process's memory. What was remembered is never forgotten early to make room: whoever
// fills the memory keeps others from reading for two minutes at most, and never makes a used token fresh again. A relay
// with other Nonces still checks times by tokens of its own.
type tokens struct {
	started time.Time // to the millisecond, as clients write times
	max     int       // of a generation

	mu         sync.Mutex
	latest     time.Time // that the clock has shown
	fresh, old map[[16]byte]struct{}
	turned     time.Time // when fresh was begun
}

func newTokens(now time.Time) *tokens {
	return &tokens{started: now.Truncate(time.Millisecond), latest: now, max: maxTokens, fresh: map[[16]byte]struct{}{}, turned: now}
}

// isFresh reports whether a token of this ts could be one that was never used: within ReadSkew of now, and not before
// the start, because what was used until then is not known any more.
func (t *tokens) isFresh(ts, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.within(ts, now)
}

// within compares instants, as a difference saturates. The oldest is a minute before the latest time the clock has
// shown: what was forgotten was used two minutes before that, so a clock that is set back brings none of it back. If the
// clock is set back by more than replay.StepBack, the time before is taken to have been wrong. Otherwise nobody could
// read until the clock shows it again.
func (t *tokens) within(ts, now time.Time) bool {
	if now.After(t.latest) || now.Before(t.latest.Add(-replay.StepBack)) {
		t.latest = now
	}
	return !ts.Before(t.started) && ts.After(t.latest.Add(-ReadSkew)) && ts.Before(now.Add(ReadSkew))
}

// Use is that of Nonces. It refuses with CodeUnavailable if there is no room to remember id.
func (t *tokens) Use(_ context.Context, id [16]byte, ts, now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.within(ts, now) { // a request that was parsed before others, which are forgotten by now
		return ErrReadTime
	}
	if rest := t.latest.Sub(t.turned); rest >= tokenMemory || rest < 0 {
		t.fresh, t.old, t.turned = map[[16]byte]struct{}{}, t.fresh, t.latest
	}
	_, isFresh := t.fresh[id]
	_, isOld := t.old[id]
	if isFresh || isOld {
		return ErrReadUsed
	}
	if len(t.fresh) >= t.max {
		e := envelope.Errorf(envelope.CodeUnavailable, "the relay remembers as many signed reads as it can, and takes no other until it may forget some")
		e.RetryAfter = t.turned.Add(tokenMemory).Sub(t.latest)
		return e
	}
	t.fresh[id] = struct{}{}
	return nil
}

// Bounds of a generation of readers, of which there are two: in all, and from one network at an open relay.
const (
	maxPresent     = 1 << 14
	maxPresentFrom = 1 << 10
)

// presence knows who has signed a read in the last minutes: such agents are online (PROTOCOL §6). It is kept in memory.
// After a restart an agent is online again with its next poll. If more sign than it holds, some are shown as offline.
type presence struct {
	mu         sync.Mutex
	fresh, old map[didkey.DID]time.Time
	from       map[netip.Prefix]int // how many of fresh came from a network
	turned     time.Time
	unsent     map[didkey.DID]time.Time // since the last report; nil: nobody asks
}

// note keeps the minute of a read: the poll behind a message that only its parties see must not date it.
func (p *presence) note(reader didkey.DID, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn(now)
	p.add(reader, now)
}

// noteFrom is note for a reader in a network, which is counted.
func (p *presence) noteFrom(reader didkey.DID, network netip.Prefix, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn(now)
	if p.admits(reader, network) && p.add(reader, now) {
		p.from[network]++
	}
}

// wants reports whether noteFrom would change anything.
func (p *presence) wants(reader didkey.DID, network netip.Prefix, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn(now)
	return !p.fresh[reader].Equal(now.Truncate(time.Minute)) && p.admits(reader, network)
}

// turn begins a new generation when it is time. p.mu is held.
func (p *presence) turn(now time.Time) {
	if age := now.Sub(p.turned); p.fresh == nil || age >= OnlineWithin || age < 0 {
		p.fresh, p.old, p.from, p.turned = map[didkey.DID]time.Time{}, p.fresh, map[netip.Prefix]int{}, now
	}
}

// admits reports whether a network may mark a reader as present. p.mu is held.
func (p *presence) admits(reader didkey.DID, network netip.Prefix) bool {
	_, known := p.fresh[reader]
	return known || p.from[network] < maxPresentFrom
}

// add notes a reader and reports whether it is new. p.mu is held.
func (p *presence) add(reader didkey.DID, now time.Time) (isNew bool) {
	minute := now.Truncate(time.Minute)
	before, known := p.fresh[reader]
	if !known && len(p.fresh) >= maxPresent {
		return false
	}
	p.fresh[reader] = minute
	if p.unsent != nil && !before.Equal(minute) && len(p.unsent) < maxReported {
		p.unsent[reader] = minute
	}
	return !known
}

// report returns who was noted since the last report. The first call begins to collect.
func (p *presence) report() (seen map[didkey.DID]time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unsent == nil || len(p.unsent) > 0 {
		seen, p.unsent = p.unsent, map[didkey.DID]time.Time{}
	}
	return seen
}

// hear notes who was seen by siblings. They have counted their networks.
func (p *presence) hear(seen map[didkey.DID]time.Time, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn(now)
	for reader, at := range seen {
		if at.After(now) { // by a clock that is ahead of this node's
			at = now
		}
		at = at.Truncate(time.Minute)
		before, known := p.fresh[reader]
		if at.After(before) && (known || len(p.fresh) < maxPresent) {
			p.fresh[reader] = at
		}
	}
}

// last returns when reader has signed a read last; zero: not lately.
func (p *presence) last(reader didkey.DID) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, ok := p.fresh[reader]; ok {
		return at
	}
	return p.old[reader]
}
