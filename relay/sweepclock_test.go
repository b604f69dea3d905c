package relay

import (
	"testing"
	"time"
	"unsafe"
)

// stepWallClock changes the wall clock of a time from time.Now, and leaves its monotonic clock as it is. A step of the
// machine's clock has the same effect. The only way to make such a time is to change its memory: the first field of
// time.Time counts the seconds from its 30th bit on.
func stepWallClock(now time.Time, seconds uint64) time.Time {
	*(*uint64)(unsafe.Pointer(&now)) += seconds << 30
	return now
}

// TestSweepClockDetectsWallClockStep uses times from time.Now, as the relay does. Such times are compared by their
// monotonic clock. A step of the wall clock must be noticed anyway.
func TestSweepClockDetectsWallClockStep(t *testing.T) {
	start := time.Now()
	later := start.Add(time.Second)
	stepped := stepWallClock(later, 3600)
	if stepped.Sub(later) != 0 || stepped.Unix()-later.Unix() != 3600 {
		t.Fatalf("stepping the clock by an hour made %v of %v", stepped, later)
	}
	var h sweepClock
	h.advance(start, start)
	if got := h.advance(stepped, later); !got.Equal(later.Round(0)) {
		t.Errorf("a step of an hour was believed at once: %v after %v", got, start)
	}
	later, stepped = later.Add(acceptStepAfter), stepped.Add(acceptStepAfter)
	if got := h.advance(stepped, later); !got.Equal(stepped.Round(0)) {
		t.Errorf("a step that lasted is not believed: %v, want %v", got, stepped)
	}
}
