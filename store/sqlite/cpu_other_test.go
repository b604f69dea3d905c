//go:build !linux

package sqlite

import "time"

func cpuTime() time.Duration { return 0 }
