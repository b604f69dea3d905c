package relay

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxGeneration bounds a generation of buckets, each about 180 bytes with its place in the map: two generations of the
// four kinds take 100 MB at most, however many addresses and identities there are in the world.
const maxGeneration = 1 << 16

// buckets holds a token bucket for each key that was used lately. A bucket untouched for as long as it takes to fill
// is full, like a new one, so nothing is lost with it. Hence two generations: what is touched moves into the fresh one,
// and every such time the old one is dropped and the fresh one takes its place.
//
// A generation that reaches maxGeneration gives way early. To gain from that, a flooder needs twice as many other keys
// for each bucket he wants to have full again, which already allow him more.
type buckets[K comparable] struct {
	Rate
	share  func(K) int // how many times Rate a key has; nil: once
	refill time.Duration

	mu         sync.Mutex
	fresh, old map[K]*rate.Limiter
	turned     time.Time // when fresh was begun
	spent      map[K]int // tokens taken since the last report; nil: nobody asks
}

// newBuckets returns nil, which admits everything, where there is no limit.
func newBuckets[K comparable](r Rate, share func(K) int) *buckets[K] {
	if r.PerSecond < 0 {
		return nil
	}
	seconds := min(float64(r.Burst)/r.PerSecond, (24 * time.Hour).Seconds())
	return &buckets[K]{Rate: r, share: share, refill: time.Duration(math.Ceil(seconds * float64(time.Second))), fresh: map[K]*rate.Limiter{}}
}

// take takes a token from the bucket of each key. If one has none, nothing is taken: take says how long it will be until
// that one has a token, and which of keys it is.
func (b *buckets[K]) take(clock func() time.Time, keys ...K) (wait time.Duration, short int) {
	if b == nil {
		return 0, 0
	}
	now := clock()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, k := range keys {
		bucket := b.of(k, now)
		if bucket.AllowN(now, 1) {
			continue
		}
		for _, k := range keys[:i] {
			b.of(k, now).AllowN(now, -1)
		}
		return until(bucket, 1, now), i
	}
	b.count(1, keys)
	return 0, 0
}

// until returns when bucket will have so many tokens, rounded up to milliseconds.
func until(bucket *rate.Limiter, tokens float64, now time.Time) time.Duration {
	missing := (tokens - bucket.TokensAt(now)) / float64(bucket.Limit())
	return time.Duration(math.Ceil(missing*1000)) * time.Millisecond
}

// charge takes more from the bucket of each key for what turned out to be costly. A bucket may come to owe; until it
// has paid, nothing is given from it.
func (b *buckets[K]) charge(clock func() time.Time, n int, keys ...K) {
	if b == nil || n <= 0 {
		return
	}
	now := clock()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range keys {
		debit(b.of(k, now), n, now)
	}
	b.count(n, keys)
}

// debit takes n tokens from bucket, also if it has fewer.
func debit(bucket *rate.Limiter, n int, now time.Time) {
	for left := n; left > 0; left -= bucket.Burst() {
		bucket.ReserveN(now, min(left, bucket.Burst()))
	}
}

// count notes n tokens of each key for the next report. b.mu is held.
func (b *buckets[K]) count(n int, keys []K) {
	if b.spent == nil {
		return
	}
	for _, k := range keys {
		if _, known := b.spent[k]; known || len(b.spent) < maxReported {
			b.spent[k] += n
		}
	}
}

// report returns how many tokens were taken since the last report. The first call begins to count them.
func (b *buckets[K]) report() (spent map[K]int) {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spent == nil || len(b.spent) > 0 {
		spent, b.spent = b.spent, map[K]int{}
	}
	return spent
}

// hear takes the tokens that siblings have given. A bucket may come to owe, as with charge.
func (b *buckets[K]) hear(clock func() time.Time, others map[K]int) {
	if b == nil || len(others) == 0 {
		return
	}
	now := clock()
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, n := range others {
		bucket := b.of(k, now)
		if n < 0 {
			bucket.AllowN(now, n)
		}
		debit(bucket, n, now)
	}
}

// owes says how long it will be until no bucket of keys owes anything, and which of keys owes; 0 if none does.
func (b *buckets[K]) owes(clock func() time.Time, keys ...K) (wait time.Duration, short int) {
	if b == nil {
		return 0, 0
	}
	now := clock()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, k := range keys {
		if bucket := b.of(k, now); bucket.TokensAt(now) < 0 {
			return until(bucket, 0, now), i
		}
	}
	return 0, 0
}

// giveBack puts back a token that was taken from the bucket of each key for nothing.
func (b *buckets[K]) giveBack(clock func() time.Time, keys ...K) {
	if b == nil {
		return
	}
	now := clock()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range keys {
		b.of(k, now).AllowN(now, -1) // more than a full bucket holds is lost
	}
	b.count(-1, keys)
}

// of returns k's bucket as a member of the fresh generation.
func (b *buckets[K]) of(k K, now time.Time) *rate.Limiter {
	switch {
	case now.Before(b.turned): // the clock was set back, and by it the buckets would stay empty until now
		b.fresh, b.old, b.turned = map[K]*rate.Limiter{}, nil, now
	case now.Sub(b.turned) >= b.refill, len(b.fresh) >= maxGeneration:
		owing := map[K]*rate.Limiter{}
		for k, bucket := range b.old {
			if bucket.TokensAt(now) < 0 && len(owing) < maxGeneration/2 {
				owing[k] = bucket // see charge; any other is full again, or soon
			}
		}
		b.fresh, b.old, b.turned = owing, b.fresh, now
	}
	bucket := b.fresh[k]
	if bucket == nil {
		if bucket = b.old[k]; bucket == nil {
			times := 1
			if b.share != nil {
				times = b.share(k)
			}
			bucket = rate.NewLimiter(rate.Limit(b.PerSecond*float64(times)), b.Burst*times)
		}
		b.fresh[k] = bucket
	}
	return bucket
}
