package admission

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxGeneration is how many buckets a generation may hold. A bucket takes about 180 bytes, including its entry in the
// map. A relay has six kinds of buckets, with two generations each. So together they take at most 140 MB, for any
// number of addresses and identities. An AddressRate is one more kind.
const maxGeneration = 1 << 16

// buckets holds a token bucket for each key that was used recently. A bucket that is not used for the time it takes to
// fill is full again, like a new bucket. So it can be dropped without changing a limit. This is done with two
// generations. A bucket that is used moves to the fresh generation. When the time to fill has passed, the old
// generation is dropped, and the fresh generation becomes the old one. Buckets in debt (with fewer than zero tokens)
// are kept, up to half of maxGeneration.
//
// A generation also ends early when it has maxGeneration buckets. To get its buckets dropped early, an attacker must
// use at least maxGeneration other keys. Those keys already allow more requests than the attacker gains.
type buckets[K comparable] struct {
	factor func(K) int // how many times Rate a key has; nil: once

	mu         sync.Mutex
	Rate                     // with a negative PerSecond, every request is admitted and nothing is counted
	refill     time.Duration // the time it takes a bucket to fill, at most 24 hours
	fresh, old map[K]*rate.Limiter
	rotatedAt  time.Time // when the fresh generation began
	unreported map[K]int // tokens taken since the last report; nil: reports are not used
}

func newBuckets[K comparable](r Rate, factor func(K) int) *buckets[K] {
	b := &buckets[K]{factor: factor}
	b.setRate(time.Time{}, r)
	return b
}

// setRate changes the rate of all keys. A bucket keeps its tokens, up to its new size, and its debt. If r is unlimited,
// all buckets are dropped.
func (b *buckets[K]) setRate(now time.Time, r Rate) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Rate = r
	if r.PerSecond < 0 {
		b.fresh, b.old = map[K]*rate.Limiter{}, nil
		return
	}
	seconds := min(float64(r.Burst)/r.PerSecond, (24 * time.Hour).Seconds())
	b.refill = time.Duration(math.Ceil(seconds * float64(time.Second)))
	if b.fresh == nil {
		b.fresh = map[K]*rate.Limiter{}
	}
	for _, generation := range []map[K]*rate.Limiter{b.fresh, b.old} {
		for k, bucket := range generation {
			bucket.SetLimitAt(now, rate.Limit(r.PerSecond*float64(b.factorOf(k))))
			bucket.SetBurstAt(now, r.Burst*b.factorOf(k))
		}
	}
}

// currentRate returns the rate of a single key.
func (b *buckets[K]) currentRate() Rate {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Rate
}

// factorOf returns how many times Rate the key k has.
func (b *buckets[K]) factorOf(k K) int {
	if b.factor == nil {
		return 1
	}
	return b.factor(k)
}

// take takes one token from the bucket of each key. If one of the buckets has no token, take takes none from any
// bucket. It then returns how long it takes until that bucket has a token, and the index of its key.
func (b *buckets[K]) take(clock func() time.Time, keys ...K) (wait time.Duration, index int) {
	now := clock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.PerSecond < 0 {
		return 0, 0
	}
	for i, k := range keys {
		bucket := b.bucketFor(k, now)
		if bucket.AllowN(now, 1) {
			continue
		}
		for _, k := range keys[:i] {
			b.bucketFor(k, now).AllowN(now, -1)
		}
		return timeUntil(bucket, 1, now), i
	}
	b.recordSpent(1, keys)
	return 0, 0
}

// timeUntil returns how long it takes until bucket has this many tokens, rounded up to milliseconds.
func timeUntil(bucket *rate.Limiter, tokens float64, now time.Time) time.Duration {
	missing := (tokens - bucket.TokensAt(now)) / float64(bucket.Limit())
	return time.Duration(math.Ceil(missing*1000)) * time.Millisecond
}

// charge takes n more tokens from the bucket of each key, for a request that turned out to be expensive. It takes them
// even if the bucket has fewer. The key is then in debt: take refuses it until enough tokens have been added.
func (b *buckets[K]) charge(clock func() time.Time, n int, keys ...K) {
	if n <= 0 {
		return
	}
	now := clock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.PerSecond < 0 {
		return
	}
	for _, k := range keys {
		debit(b.bucketFor(k, now), n, now)
	}
	b.recordSpent(n, keys)
}

// debit takes n tokens from bucket, even if it has fewer.
func debit(bucket *rate.Limiter, n int, now time.Time) {
	for left := n; left > 0; left -= bucket.Burst() {
		bucket.ReserveN(now, min(left, bucket.Burst()))
	}
}

// recordSpent adds n tokens of each key to the next report. The report has at most MaxReported keys. The caller holds
// b.mu.
func (b *buckets[K]) recordSpent(n int, keys []K) {
	if b.unreported == nil {
		return
	}
	for _, k := range keys {
		if _, known := b.unreported[k]; known || len(b.unreported) < MaxReported {
			b.unreported[k] += n
		}
	}
}

// report returns the tokens that were taken since the last report, by key. The first call returns nil and starts the
// recording.
func (b *buckets[K]) report() (spent map[K]int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unreported == nil || len(b.unreported) > 0 {
		spent, b.unreported = b.unreported, map[K]int{}
	}
	return spent
}

// applyRemote takes the tokens that other nodes have taken from these buckets. A bucket may get into debt, as with
// charge.
func (b *buckets[K]) applyRemote(clock func() time.Time, others map[K]int) {
	now := clock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.PerSecond < 0 {
		return
	}
	for k, n := range others {
		bucket := b.bucketFor(k, now)
		if n < 0 {
			bucket.AllowN(now, n)
		}
		debit(bucket, n, now)
	}
}

// debtWait looks for a bucket of keys that is in debt. It returns how long it takes until the first such bucket is out
// of debt, and the index of its key. It returns a wait of 0 if no key is in debt.
func (b *buckets[K]) debtWait(clock func() time.Time, keys ...K) (wait time.Duration, index int) {
	now := clock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.PerSecond < 0 {
		return 0, 0
	}
	for i, k := range keys {
		if bucket := b.bucketFor(k, now); bucket.TokensAt(now) < 0 {
			return timeUntil(bucket, 0, now), i
		}
	}
	return 0, 0
}

// refund returns one token to the bucket of each key, for a request that does not count.
func (b *buckets[K]) refund(clock func() time.Time, keys ...K) {
	now := clock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.PerSecond < 0 {
		return
	}
	for _, k := range keys {
		b.bucketFor(k, now).AllowN(now, -1) // a full bucket stays as it is
	}
	b.recordSpent(-1, keys)
}

// bucketFor returns the bucket of k. It moves the bucket to the fresh generation, or creates it there.
func (b *buckets[K]) bucketFor(k K, now time.Time) *rate.Limiter {
	switch {
	case now.Before(b.rotatedAt): // the clock was set back; the buckets would not fill until it has caught up
		b.fresh, b.old, b.rotatedAt = map[K]*rate.Limiter{}, nil, now
	case now.Sub(b.rotatedAt) >= b.refill, len(b.fresh) >= maxGeneration:
		inDebt := map[K]*rate.Limiter{}
		for k, bucket := range b.old {
			if bucket.TokensAt(now) < 0 && len(inDebt) < maxGeneration/2 {
				inDebt[k] = bucket // keep the debt, see charge; other buckets are full again, or soon will be
			}
		}
		b.fresh, b.old, b.rotatedAt = inDebt, b.fresh, now
	}
	bucket := b.fresh[k]
	if bucket == nil {
		if bucket = b.old[k]; bucket == nil {
			factor := b.factorOf(k)
			bucket = rate.NewLimiter(rate.Limit(b.PerSecond*float64(factor)), b.Burst*factor)
		}
		b.fresh[k] = bucket
	}
	return bucket
}
