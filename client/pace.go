package client

import (
	"sync"
	"time"
)

// postRate is how often a relay lets one sender post: perSecond, after burst at once.
type postRate struct{ perSecond, burst float64 }

// usualRate is assumed for a relay that does not state its rate: the default of PROTOCOL §5.
var usualRate = postRate{20, 40}

// rate returns how often one sender may post; nil if the document does not say.
func (d document) rate() *postRate {
	said := d.Limits.Rates.PostsPerAgent
	if said.PerSecond < 0.01 || said.PerSecond > 1e6 || said.Burst < 1 || said.Burst > 1e6 {
		return nil
	}
	return &postRate{said.PerSecond, said.Burst}
}

// postRate returns how often the relay lets this client post: as stated, else usualRate.
func (c *Client) postRate() postRate {
	if said := c.rate.Load(); said != nil {
		return *said
	}
	return usualRate
}

// pace keeps an agent's offers below the rate that the relay allows, so that there is always room to post a RESULT. It
// is a copy of the relay's own token bucket. It starts to count when the relay has refused a post because of the rate,
// which a relay on the same machine never does. The zero pace is ready to use.
type pace struct {
	mu      sync.Mutex
	rate    postRate  // zero: nothing was refused yet
	tokens  float64   // how many posts the relay would have accepted at once, at the time counted
	counted time.Time // when tokens was computed
	closed  time.Time // no offers before this time
}

// limited notes that the relay has refused a post because the agent posts too often.
func (p *pace) limited(rate postRate, retryAfter time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refill(now)
	p.rate, p.tokens, p.counted = rate, min(p.tokens, 0), now
	p.closed = now.Add(retryAfter)
}

// close stops all offers for this time.
func (p *pace) close(d time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := now.Add(d); until.After(p.closed) {
		p.closed = until
	}
}

// until returns how long a REQUEST of this rank has to wait; 0: it may be answered now. A stranger's REQUEST may not
// use the last quarter of the burst, and one of a known client may not use the last eighth.
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

// refund takes back a spend: the post was not made.
func (p *pace) refund(now time.Time) { p.add(1, now) }

func (p *pace) add(n float64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refill(now)
	p.tokens = max(p.tokens+n, -p.rate.burst)
}

// refill adds the tokens of the time since the last call. p.mu is held.
func (p *pace) refill(now time.Time) {
	p.tokens = min(p.tokens+max(now.Sub(p.counted).Seconds(), 0)*p.rate.perSecond, p.rate.burst)
	p.counted = now
}
