package client

import (
	"sync"
	"time"
)

// postRate is the relay's limit on the posts of one sender, as a token bucket: perSecond is the rate at which it
// refills, burst is its size.
type postRate struct{ perSecond, burst float64 }

// defaultRate is the default of PROTOCOL §5. The client uses it if the relay's document does not state the rate.
var defaultRate = postRate{20, 40}

// rate returns the document's limit on the posts of one sender, or nil if the limit is absent or out of range.
func (d document) rate() *postRate {
	stated := d.Limits.Rates.PostsPerAgent
	if stated.PerSecond < 0.01 || stated.PerSecond > 1e6 || stated.Burst < 1 || stated.Burst > 1e6 {
		return nil
	}
	return &postRate{stated.PerSecond, stated.Burst}
}

// postRate returns the relay's limit on the posts of this client: the limit in its document, else defaultRate.
func (c *Client) postRate() postRate {
	if stated := c.rate.Load(); stated != nil {
		return *stated
	}
	return defaultRate
}

// pace delays an agent's offers so that they stay below the relay's rate limit. So the agent can always post a RESULT.
// pace is a copy of the relay's token bucket for this sender. It delays offers only after the relay has refused a post
// because of the rate, because a relay on the same machine may have no limit. The zero value is ready to use.
type pace struct {
	mu      sync.Mutex
	rate    postRate  // zero: the relay has not refused a post yet
	tokens  float64   // how many posts the relay would accept at once at the time counted; negative: too many were made
	counted time.Time // when tokens was computed
	closed  time.Time // no offers before this time
}

// limited sets the rate after the relay has refused a post because the agent posts too often. It stops all offers for
// the time retryAfter.
func (p *pace) limited(rate postRate, retryAfter time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refill(now)
	p.rate, p.tokens, p.counted = rate, min(p.tokens, 0), now
	p.closed = now.Add(retryAfter)
}

// close stops all offers for the time d.
func (p *pace) close(d time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := now.Add(d); until.After(p.closed) {
		p.closed = until
	}
}

// until returns how long a REQUEST of rank r has to wait; 0: it can be answered now. A REQUEST of rank known leaves an
// eighth of the burst unused, and any other REQUEST a quarter. These tokens are reserved for other messages.
func (p *pace) until(r rank, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := max(p.closed.Sub(now), 0)
	if p.rate == (postRate{}) {
		return wait
	}
	p.refill(now)
	reserve := p.rate.burst / 4
	if r == known {
		reserve = p.rate.burst / 8
	}
	need := min(1+reserve, p.rate.burst)
	if missing := need - p.tokens; missing > 0 {
		wait = max(wait, time.Duration(missing/p.rate.perSecond*float64(time.Second))+time.Millisecond)
	}
	return wait
}

// spend counts a post.
func (p *pace) spend(now time.Time) { p.add(-1, now) }

// refund undoes a spend whose post was not made.
func (p *pace) refund(now time.Time) { p.add(1, now) }

// add adds n tokens.
func (p *pace) add(n float64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refill(now)
	p.tokens = max(p.tokens+n, -p.rate.burst)
}

// refill adds the tokens for the time since the last call, up to the burst. The caller holds p.mu.
func (p *pace) refill(now time.Time) {
	p.tokens = min(p.tokens+max(now.Sub(p.counted).Seconds(), 0)*p.rate.perSecond, p.rate.burst)
	p.counted = now
}
