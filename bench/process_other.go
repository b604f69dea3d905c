//go:build !linux

package bench

import "time"

// process is another process on this machine, of which nothing is known on this system.
type process struct{ pid int }

func findProcess(int, target) *process { return nil }

func (p *process) cpu() time.Duration { return 0 }
func (p *process) rss() int64         { return 0 }

// OwnCPU returns 0: it is not known on this system.
func OwnCPU() time.Duration { return 0 }

func sleepPrecisely(d time.Duration) { time.Sleep(d) }
