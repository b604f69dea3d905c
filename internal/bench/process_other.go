//go:build !linux

package bench

import "time"

// process is another process on this machine. Its CPU time and memory are not known on this system.
type process struct{ pid int }

func findProcess(int, target) *process { return nil }

func (p *process) cpu() time.Duration { return 0 }
func (p *process) rss() int64         { return 0 }
func (p *process) written() int64     { return 0 }

// OwnCPU returns 0, because the CPU time is not known on this system.
func OwnCPU() time.Duration { return 0 }

// sleepPrecisely sleeps for d, with the precision of Go's timers.
func sleepPrecisely(d time.Duration) { time.Sleep(d) }
