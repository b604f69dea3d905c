package pacing

import (
	"context"
	"math/rand/v2"
	"time"
)

// The pauses between attempts grow from about minPause to about MaxPause.
const (
	minPause = 500 * time.Millisecond
	MaxPause = 30 * time.Second
)

// Backoff computes the pauses between attempts from the number of failures in a row. The zero value is ready to use.
type Backoff struct{ failures int }

// Reset counts from no failures again.
func (b *Backoff) Reset() { b.failures = 0 }

// Next returns the next pause: at least atLeast, plus a random time. The random time about doubles with each failure,
// up to limit. Because it is random, clients that failed at the same moment do not retry at the same moment.
func (b *Backoff) Next(atLeast, limit time.Duration) time.Duration {
	span := min(minPause<<min(b.failures, 10), limit)
	b.failures++
	pause := atLeast + rand.N(span/2+1)
	if atLeast == 0 {
		pause += span / 2
	}
	return pause
}

// Wait sleeps for the next pause. It returns ctx's error if ctx ends first.
func (b *Backoff) Wait(ctx context.Context, atLeast, limit time.Duration) error {
	return Sleep(ctx, b.Next(atLeast, limit))
}

// Sleep waits. It returns ctx's error if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
