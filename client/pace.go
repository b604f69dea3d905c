package client

import (
	"sync"
	"time"
)

// postRate is how often a relay lets one sender post: perSecond, after burst at once.
type postRate struct{ perSecond, burst float64 }

// usualRate is what a relay is taken to allow that does not say (PROTOCOL §5).
var usualRate = postRate{20, 40}

// rate returns how often one sender may post; nil if the document does not say.
func (w word) rate() *postRate {
	said := w.Limits.Rates.PostsPerAgent
	if said.PerSecond < 0.01 || said.PerSecond > 1e6 || said.Burst < 1 || said.Burst > 1e6 {
		return nil
	}
	return &postRate{said.PerSecond, said.Burst}
}

// postRate returns how often the relay lets this client post, as far as it has said.
func (c *Client) postRate() postRate {
	if said := c.rate.Load(); said != nil {
		return *said
	}
	return usualRate
}

// pace keeps an agent's offers below the rate that the relay allows it, so that a RESULT finds room whenever it comes.
// It does so once the relay has refused a post for its rate: a relay on the same machine never does. It is the relay's
// own count, kept here too. The zero pace is ready to use.
type pace struct {
	mu     sync.Mutex
	rate   postRate  // zero: nothing was refused yet
	tokens float64   // posts that the relay would take at once, at the time counted
	count  time.Time // when tokens was right
	closed time.Time // no offers before
}

// limited notes that the relay has refused a post because the agent posts too often.
func (p *pace) limited(rate postRate, retryAfter time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refill(now)
	p.rate, p.tokens, p.count = rate, min(p.tokens, 0), now
	p.closed = now.Add(retryAfter)
}

// close lets nothing be offered for a while.
func (p *pace) close(d time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := now.Add(d); until.After(p.closed) {
		p.closed = until
	}
}

// until returns how long a REQUEST of this rank has to wait; 0: it may be answered now. Strangers' leave a quarter of
// the burst to others, known clients' an eighth.
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

// spend notes a post.
func (p *pace) spend(now time.Time) { p.add(-1, now) }

// refund notes that a post was not made after all.
func (p *pace) refund(now time.Time) { p.add(1, now) }

func (p *pace) add(n float64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refill(now)
	p.tokens = max(p.tokens+n, -p.rate.burst)
}

// refill adds what has come since. p.mu is held.
func (p *pace) refill(now time.Time) {
	p.tokens = min(p.tokens+max(now.Sub(p.count).Seconds(), 0)*p.rate.perSecond, p.rate.burst)
	p.count = now
}
