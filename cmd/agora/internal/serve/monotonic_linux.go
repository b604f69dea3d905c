package serve

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic returns the time by CLOCK_MONOTONIC.
func monotonic() (now time.Duration, known bool) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, false
	}
	return time.Duration(t.Nano()), true
}
