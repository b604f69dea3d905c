package model

import (
	"flag"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

var (
	worlds = flag.Int("worlds", 100_000, "how many worlds are simulated")
	first  = flag.Uint64("first", 1, "the first seed; a world depends on nothing but its seed")
)

// TestJobsMove simulates jobs of two clients, one of which may be faithless, with three agents over three relays.
// Relays die, come back, also from older backups, and withhold messages; connections break; answers are lost; agents
// crash; clocks jump. An agent works once for a job, but for crashes; a faithful client signs nothing that convicts
// it; every job ends soon after the last fault (RELAYS ).
func TestJobsMove(t *testing.T) {
	var next, moved, worked atomic.Int64
	var running sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		running.Go(func() {
			for i := next.Add(1) - 1; i < int64(*worlds) && !t.Failed(); i = next.Add(1) - 1 {
				w := newWorld(*first + uint64(i))
				if w.run(); w.failed != "" {
					t.Errorf("seed %d, %s; see it again with -worlds 1 -first %d", *first+uint64(i), w.failed, *first+uint64(i))
				}
				moved.Add(int64(len(w.clients[0].legs) - 1))
				if w.clients[0].done {
					worked.Add(1)
				}
			}
		})
	}
	running.Wait()
	t.Logf("%d of %d jobs of faithful clients were done, after %d continuations", worked.Load(), *worlds, moved.Load())
	if worked.Load() < int64(*worlds)*9/10 || moved.Load() < int64(*worlds)/10 {
		t.Error("too few jobs were done or continued, so the model shows little")
	}
}
