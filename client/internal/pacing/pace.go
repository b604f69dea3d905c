package pacing

import (
	"sync"
	"time"
)

// Rate is the relay's limit on the posts of one sender, as a token bucket: PerSecond is the rate at which it
// refills, Burst is its size.
type Rate struct{ PerSecond, Burst float64 }

// Pace delays an agent's offers so that they stay below the relay's rate limit. So the agent can always post a RESULT.
// Pace is a copy of the relay's token bucket for this sender. It delays offers only after the relay has refused a post
// because of the rate, because a relay on the same machine may have no limit. The zero value is ready to use.
type Pace struct {
	mu      sync.Mutex
	rate    Rate      // zero: the relay has not refused a post yet
	tokens  float64   // how many posts the relay would accept at once at the time counted; negative: too many were made
	counted time.Time // when tokens was computed
	closed  time.Time // no offers before this time
}

// Limited sets the rate after the relay has refused a post because the agent posts too often. It stops all offers for
// the time retryAfter.
func (p *Pace) Limited(rate Rate, retryAfter time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refill(now)
	p.rate, p.tokens, p.counted = rate, min(p.tokens, 0), now
	p.closed = now.Add(retryAfter)
}

// Close stops all offers for the time d.
func (p *Pace) Close(d time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := now.Add(d); until.After(p.closed) {
		p.closed = until
	}
}

// until returns how long a REQUEST of rank r has to wait; 0: it can be answered now. A REQUEST of rank known leaves an
// eighth of the burst unused, and any other REQUEST a quarter. These tokens are reserved for other messages.
func (p *Pace) until(r rank, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := max(p.closed.Sub(now), 0)
	if p.rate == (Rate{}) {
		return wait
	}
	p.refill(now)
	reserve := p.rate.Burst / 4
	if r == known {
		reserve = p.rate.Burst / 8
	}
	need := min(1+reserve, p.rate.Burst)
	if missing := need - p.tokens; missing > 0 {
		wait = max(wait, time.Duration(missing/p.rate.PerSecond*float64(time.Second))+time.Millisecond)
	}
	return wait
}

// Spend counts a post.
func (p *Pace) Spend(now time.Time) { p.add(-1, now) }

// Refund undoes a Spend whose post was not made.
func (p *Pace) Refund(now time.Time) { p.add(1, now) }

// add adds n tokens.
func (p *Pace) add(n float64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refill(now)
	p.tokens = max(p.tokens+n, -p.rate.Burst)
}

// refill adds the tokens for the time since the last call, up to the burst. The caller holds p.mu.
func (p *Pace) refill(now time.Time) {
	p.tokens = min(p.tokens+max(now.Sub(p.counted).Seconds(), 0)*p.rate.PerSecond, p.rate.Burst)
	p.counted = now
}
