package main

import (
	"math"
	"strings"
	"testing"
)

// measured are results of a machine that is easy to reckon with: a lone post takes 1 ms; an event costs 100 µs and a
// group 256 µs of the relay's CPU time, an event 20 µs of the generator's.
func measured() *results {
	r := &results{Cores: 2, Figures: figures{BytesPerPoll: 16_000, BytesPerPollAtHalf: 20_000, Memory: 50e6,
		EventBytes: 1000, ThreadBytes: 500, LargeEvents: 1_000_000, LargeBytes: 1_200_000_000}}
	for _, p := range []struct {
		connections int
		rate        float64
	}{{1, 1000}, {4, 2000}, {64, 10_000}, {256, 20_000}, {512, 15_000}} {
		r.Connections = append(r.Connections, point{At: p.connections, Rate: p.rate, Ratio: p.rate / 50_000, Std: 50_000, P50: 1, P99: 2,
			CPU: 100 + 256/max(1, float64(p.connections)/2), GeneratorCPU: 20})
	}
	r.Stored = []point{{At: 10_000, Ratio: .3, P50: 1, P99: 3, Read50: .5, Read99: 1}, {At: 1_000_000, Ratio: .29, P50: 1, P99: 4, Read50: .6, Read99: 2}}
	return r
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Max(math.Abs(a), math.Abs(b)) }

func TestModel(t *testing.T) {
	m, ok := newModel(measured())
	if !ok {
		t.Fatal("not fitted")
	}
	for name, c := range map[string][2]float64{
		"a group":                                  {m.Relay.Group, 256e-6},
		"an event":                                 {m.Relay.Event, 100e-6},
		"an event of the generator":                {m.Generator.Event, 20e-6},
		"two wait for each other":                  {m.rate(2), 1000},
		"few connections wait for their answers":   {m.rate(4), 2000},
		"many use up the cores":                    {m.rate(64), 2 / 128e-6},
		"groups grow to 256":                       {m.rate(1024), 2 / 121e-6},
		"without the generator":                    {m.alone(256), 2 / 102e-6},
		"memory":                                   {m.memory(1000), 66e6},
		"polls in 1 GB":                            {m.polls(1e9), 950e6 / 16_000},
		"no polls in less than the base":           {m.polls(1e6), 0},
		"disk: rows for half an hour, a day more":  {m.disk(10, 300), 10 * (1800*1000 + 86_700*500)},
		"disk: rows for a day, threads for two":    {m.disk(10, day), 10 * (86_400*1000 + 172_800*500)},
		"what the disk bears is what it then hold": {m.disk(m.bearable(64e9, day), day), 64e9},
	} {
		if !near(c[0], c[1]) {
			t.Errorf("%s: %g, want %g", name, c[0], c[1])
		}
	}
}

func TestPredictionsHaveTheirError(t *testing.T) {
	list := predict(measured())
	want := map[string]float64{ // the error of each
		"events/s on 4 connections":         0,
		"events/s on 64 connections":        2/128e-6/10_000 - 1,
		"µs of the relay's CPU an event on": 0,
		"MB of memory that 5000 polls add":  -.2,
		"MB on disk of 1000000 events":      .25,
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
		t.Errorf("not predicted: %v; %+v", want, list)
	}
}

func TestNothingIsPredictedFromHalf(t *testing.T) {
	for name, lose := range map[string]func(*results){
		"a lone connection": func(r *results) { r.Connections = r.Connections[1:] },
		"many connections":  func(r *results) { r.Connections = r.Connections[:3] },
		"the memory":        func(r *results) { r.Figures.Memory = 0 },
		"the polls":         func(r *results) { r.Figures.BytesPerPoll = 0 },
		"the disk":          func(r *results) { r.Figures.EventBytes = 0 },
	} {
		r := measured()
		lose(r)
		if list := predict(r); list != nil || r.nodeTable() != "" {
			t.Errorf("without %s: %+v", name, list)
		}
	}
}
