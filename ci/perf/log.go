package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/agora-relay/agora/internal/bench"
)

// logLimits are the least rates with a log, as shares of those without (LOG §9), by the number of connections.
var logLimits = []struct {
	connections, senders int
	least                float64
}{{1, 16, 0.80}, {32, 256, 0.90}, {256, 10_000, 0.90}}

// measureLog measures what a log costs: two relays, one with a log and one without, are loaded in turns. It prints the
// medians of the turns' ratios, and returns an error if one is below its limit.
func measureLog(ctx context.Context, s settings) (err error) {
	p := &perf{settings: s}
	folder, err := os.MkdirTemp(s.temp, "agora-log")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	var nodes [2]*node
	for i, state := range []string{"off", "on"} {
		if nodes[i], err = startNode(ctx, s.agora, filepath.Join(folder, state), "--transparency="+state); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, nodes[i].stop()) }()
	}
	table := "connections   events/s   CPU time   written, KB an event\n"
	var missed []string
	for _, limit := range logLimits {
		var reports [2][]bench.Report
		for round := range s.runs {
			for turn := range 2 {
				i := (round + turn) % 2
				r, err := p.load(ctx, nodes[i], p.flatOut(limit.connections, limit.senders))
				if err != nil {
					return err
				}
				reports[i] = append(reports[i], r)
			}
		}
		pairs := reports[:]
		rate := medianOf(pairRatios(pairs, func(r bench.Report) float64 { return r.Rate }))
		cpu := medianOf(pairRatios(pairs, func(r bench.Report) float64 { return r.Relay.CPUPerEvent }))
		written := func(r bench.Report) float64 { return r.Relay.Written / 1e3 }
		table += fmt.Sprintf("%11d   × %.3f    × %.3f    + %.2f\n", limit.connections, rate, cpu,
			median(reports[1], written)-median(reports[0], written))
		if rate < limit.least {
			missed = append(missed, fmt.Sprintf("%d connections: %.3f, must be %.2f", limit.connections, rate, limit.least))
		}
	}
	if _, err := fmt.Print(table); err != nil {
		return err
	}
	if len(missed) > 0 {
		return errors.New("the log costs too much: " + strings.Join(missed, "; "))
	}
	return nil
}
