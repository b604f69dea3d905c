package relay

import (
	"testing"
	"time"
	"unsafe"
)

// step sets the wall clock of a time that time.Now returned, and leaves its monotonic clock as it is: what a step of the
// machine's own clock does. There is no other way to make such a time than to reach into it (time.Time's first field
// counts the seconds from its 30th bit on).
func step(now time.Time, seconds uint64) time.Time {
	*(*uint64)(unsafe.Pointer(&now)) += seconds << 30
	return now
}

// The relay's own clock is time.Now, whose times are compared by their monotonic part as long as they have one: a step
// must show all the same.
func TestHorizonSeesAStepOfTheMachinesClock(t *testing.T) {
	start := time.Now()
	later := start.Add(time.Second)
	stepped := step(later, 3600)
	if stepped.Sub(later) != 0 || stepped.Unix()-later.Unix() != 3600 {
		t.Fatalf("stepping the clock by an hour made %v of %v", stepped, later)
	}
	var h horizon
	h.look(start, start)
	if got := h.look(stepped, later); !got.Equal(later.Round(0)) {
		t.Errorf("a step of an hour was believed at once: %v after %v", got, start)
	}
	later, stepped = later.Add(believedAfter), stepped.Add(believedAfter)
	if got := h.look(stepped, later); !got.Equal(stepped.Round(0)) {
		t.Errorf("a step that lasted is not believed: %v, want %v", got, stepped)
	}
}
