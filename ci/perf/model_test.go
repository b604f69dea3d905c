package main

import (
	"math"
	"strings"
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
	}{{1, 1000}, {4, 2000}, {64, 10_000}, {256, 20_000}, {512, 15_000}} {
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

func TestModel(t *testing.T) {
	m, ok := newModel(sampleResults())
	if !ok {
		t.Fatal("newModel found no constants for the model")
	}
	for name, c := range map[string][2]float64{
		"relay's CPU time per group":                    {m.Relay.Group, 256e-6},
		"relay's CPU time per event":                    {m.Relay.Event, 100e-6},
		"generator's CPU time per event":                {m.Generator.Event, 20e-6},
		"2 connections: groups of one event":            {m.rate(2), 1000},
		"4 connections: limited by latency":             {m.rate(4), 2000},
		"64 connections: limited by CPU":                {m.rate(64), 2 / 128e-6},
		"1024 connections: groups of at most 256":       {m.rate(1024), 2 / 121e-6},
		"without the generator":                         {m.rateWithoutGenerator(256), 2 / 102e-6},
		"memory":                                        {m.memory(1000), 66e6},
		"polls in 1 GB":                                 {m.polls(1e9), 950e6 / 16_000},
		"no polls in less memory than the base":         {m.polls(1e6), 0},
		"disk: rows for 1800 s, threads for 86 700 s":   {m.disk(10, 300), 10 * (1800*1000 + 86_700*500)},
		"disk: rows for a day, threads for two days":    {m.disk(10, day), 10 * (86_400*1000 + 172_800*500)},
		"disk used at the highest rate that fits on it": {m.disk(m.maxRate(64e9, day), day), 64e9},
	} {
		if !near(c[0], c[1]) {
			t.Errorf("%s: %g, want %g", name, c[0], c[1])
		}
	}
}

// TestPredictions checks the error of each kind of prediction.
func TestPredictions(t *testing.T) {
	list := predict(sampleResults())
	want := map[string]float64{ // prefix of What → Error
		"events/s on 4 connections":        0,
		"events/s on 64 connections":       2/128e-6/10_000 - 1,
		"µs of relay CPU per event on":     0,
		"MB of memory that 5000 polls add": -.2,
		"MB on disk for 1000000 events":    .25,
	}
	for _, p := range list {
		for what, err := range want {
			if strings.HasPrefix(p.What, what) {
				if math.Abs(p.Error-err) > 1e-9 {
					t.Errorf("%s: error %g, want %g", p.What, p.Error, err)
				}
				delete(want, what)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("predictions are missing: %v; there are %+v", want, list)
	}
}

func TestIncompleteResultsGiveNoPrediction(t *testing.T) {
	for name, remove := range map[string]func(*results){
		"one connection":   func(r *results) { r.Connections = r.Connections[1:] },
		"many connections": func(r *results) { r.Connections = r.Connections[:3] },
		"the memory":       func(r *results) { r.Figures.Memory = 0 },
		"the polls":        func(r *results) { r.Figures.BytesPerPoll = 0 },
		"the disk":         func(r *results) { r.Figures.EventBytes = 0 },
	} {
		r := sampleResults()
		remove(r)
		if list := predict(r); list != nil || r.nodeTable() != "" {
			t.Errorf("predictions without the measurement of %s: %+v", name, list)
		}
	}
}
