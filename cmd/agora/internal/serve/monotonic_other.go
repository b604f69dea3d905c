//go:build !linux

package serve

import "time"

// monotonic returns known = false: there is no systemd.
func monotonic() (now time.Duration, known bool) { return 0, false }
