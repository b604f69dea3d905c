package main

import (
	"math"
	"testing"
)

// sampleResults returns results with simple numbers. With one connection a post takes 1 ms. The relay's CPU time is 100
// µs per event and 256 µs per group. The generator's CPU time is 20 µs per event.
func sampleResults() *results {
	r := &results{Cores: 2, Figures: figures{BytesPerPoll: 16_000, BytesPerPollAtHalf: 20_000, Memory: 50e6,
		EventBytes: 1000, ThreadBytes: 500, LargeEvents: 1_000_000, LargeBytes: 1_200_000_000}}
	for _, p := range []struct {
		connections int
		rate        float64
	}{{1, 1000}, {4, 2000}, {32, 10_000}, {256, 20_000}, {512, 15_000}} {
		r.Connections = append(r.Connections, point{At: p.connections, Rate: p.rate, Ratio: p.rate / 50_000,
			Std: 50_000, P50: 1, P99: 2, CPU: 100 + 256/max(1, float64(p.connections)/2), GeneratorCPU: 20})
	}
	r.Stored = []point{
		{At: 10_000, Ratio: .3, P50: 1, P99: 3, Read50: .5, Read99: 1},
		{At: 1_000_000, Ratio: .29, P50: 1, P99: 4, Read50: .6, Read99: 2},
	}
	return r
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Max(math.Abs(a), math.Abs(b)) }

func TestCapacity(t *testing.T) {
	c := capacity{Base: 50e6, Poll: 16_000, Row: 1000, Thread: 500}
	for name, pair := range map[string][2]float64{
		"polls in 1 GB":                                 {c.polls(1e9), 950e6 / 16_000},
		"no polls in less memory than the base":         {c.polls(1e6), 0},
		"disk: rows for 1800 s, threads for 86 700 s":   {c.disk(10, 300), 10 * (1800*1000 + 86_700*500)},
		"disk: rows for a day, threads for two days":    {c.disk(10, day), 10 * (86_400*1000 + 172_800*500)},
		"disk used at the highest rate that fits on it": {c.disk(c.maxRate(64e9, day), day), 64e9},
	} {
		if !near(pair[0], pair[1]) {
			t.Errorf("%s: %g, want %g", name, pair[0], pair[1])
		}
	}
}

// TestIncompleteResults checks that the table of a node is empty if one of its figures has not been measured.
func TestIncompleteResults(t *testing.T) {
	for name, remove := range map[string]func(*results){
		"many connections": func(r *results) { r.Connections = r.Connections[:3] },
		"the memory":       func(r *results) { r.Figures.Memory = 0 },
		"the polls":        func(r *results) { r.Figures.BytesPerPoll = 0 },
		"the disk":         func(r *results) { r.Figures.EventBytes = 0 },
	} {
		r := sampleResults()
		remove(r)
		if table := r.nodeTable(); table != "" {
			t.Errorf("without the measurement of %s: %s", name, table)
		}
	}
}
