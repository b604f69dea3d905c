package relay

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxGeneration bounds a generation of buckets, each about 160 bytes with its place in the map: two generations of the
// three kinds take 60 MB at most, however many addresses and identities there are in the world.
const maxGeneration = 1 << 16

// buckets holds a token bucket for each key that was used lately. A bucket untouched for as long as it takes to fill
// is full, like a new one, so nothing is lost with it. Hence two generations: what is touched moves into the fresh one,
// and every such time the old one is dropped and the fresh one takes its place.
//
// A generation that reaches maxGeneration gives way early. To gain from that, a flooder needs twice as many other keys
// for each bucket he wants to have full again, which already allow him more.
type buckets[K comparable] struct {
	Rate
	refill time.Duration

	mu         sync.Mutex
	fresh, old map[K]*rate.Limiter
	turned     time.Time // when fresh was begun
}

// newBuckets returns nil, which admits everything, where there is no limit.
func newBuckets[K comparable](r Rate) *buckets[K] {
	if r.PerSecond < 0 {
		return nil
	}
	seconds := min(float64(r.Burst)/r.PerSecond, (24 * time.Hour).Seconds())
	return &buckets[K]{Rate: r, refill: time.Duration(math.Ceil(seconds * float64(time.Second))), fresh: map[K]*rate.Limiter{}}
}

// take takes a token of k's bucket, or says how long it will be until there is one.
func (b *buckets[K]) take(k K, clock func() time.Time) (wait time.Duration) {
	if b == nil {
		return 0
	}
	now := clock()
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket := b.of(k, now)
	if bucket.AllowN(now, 1) {
		return 0
	}
	missing := (1 - bucket.TokensAt(now)) / b.PerSecond
	return time.Duration(math.Ceil(missing*1000)) * time.Millisecond // whole ones, so that it is never a hair too short
}

// charge takes more of k's bucket for what turned out to be dear. A bucket may come to owe; until it has paid, nothing
// is given from it.
func (b *buckets[K]) charge(k K, clock func() time.Time, n int) {
	if b == nil || n <= 0 {
		return
	}
	now := clock()
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket := b.of(k, now)
	for ; n > 0; n -= b.Burst {
		bucket.ReserveN(now, min(n, b.Burst))
	}
}

// giveBack puts a token back that was taken for nothing.
func (b *buckets[K]) giveBack(k K, clock func() time.Time) {
	if b == nil {
		return
	}
	now := clock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of(k, now).AllowN(now, -1) // more than a full bucket holds is lost
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
			bucket = rate.NewLimiter(rate.Limit(b.PerSecond), b.Burst)
		}
		b.fresh[k] = bucket
	}
	return bucket
}
