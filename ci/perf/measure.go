package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/agora-relay/agora/internal/bench"
)

// perf runs the measurements and adds their results to results.
type perf struct {
	settings
	results *results
}

// load runs a bench with options o against n and returns its report. It returns an error if the run found mismatches,
// if the run was interrupted, or if the relay's CPU time and memory are not known.
func (p *perf) load(ctx context.Context, n *node, o bench.Options) (bench.Report, error) {
	o.PID = n.pid()
	o.Progress = func(g bench.Progress) {
		fmt.Fprintf(os.Stderr, "   %-13s %9d  %9.0f/s\r", g.Doing, g.Events, g.Rate)
	}
	r, err := bench.Run(ctx, n.url, o)
	if err != nil {
		return r, err
	}
	if !r.Holds() || r.Interrupted {
		return r, fmt.Errorf("the run was interrupted or found errors: %+v", r)
	}
	if r.Relay == nil {
		return r, fmt.Errorf("the CPU time and memory of the relay's process are not known; run this on Linux")
	}
	if r.Floor != nil {
		fmt.Fprintf(os.Stderr, "   %.3f × floor (%.0f/s)\n", r.FloorRatio, r.Floor.Rate)
	}
	fmt.Fprintf(os.Stderr, "   %6.0f/s = %.3f × std (%.0f/s), ack p50 %.2f p99 %.2f ms, "+
		"relay %.1f µs = %.2f verifications, %.0f MB, generator %.1f µs\n",
		r.Rate, r.RateRatio, r.Std.Mean, r.Ack.P50, r.Ack.P99,
		r.Relay.CPUPerEvent, r.Relay.Verifications, float64(r.Relay.RSSAfter)/1e6, r.Generator.CPUPerEvent)
	return r, nil
}

// flatOut returns the options of a run that posts at full speed.
func (p *perf) flatOut(connections, senders int) bench.Options {
	return bench.Options{Connections: connections, Senders: senders, Duration: p.duration,
		WarmUp: min(p.duration, time.Second)}
}

// repeat runs all the options against n in turn, p.runs times. It returns the reports for each of the options.
func (p *perf) repeat(ctx context.Context, n *node, options ...bench.Options) ([][]bench.Report, error) {
	reports := make([][]bench.Report, len(options))
	for range p.runs {
		for i, o := range options {
			r, err := p.load(ctx, n, o)
			if err != nil {
				return nil, err
			}
			reports[i] = append(reports[i], r)
		}
	}
	return reports, nil
}

// median returns the median of f over the reports.
func median(reports []bench.Report, f func(bench.Report) float64) float64 {
	return medianOf(collect(reports, f))
}

// collect returns f of each report.
func collect(reports []bench.Report, f func(bench.Report) float64) (values []float64) {
	for _, r := range reports {
		values = append(values, f(r))
	}
	return values
}

// medianOf returns the median of values.
func medianOf(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

func rateRatio(r bench.Report) float64 { return r.RateRatio }
func std(r bench.Report) float64       { return r.Std.Mean }

// pairRatios divides f of each report in reports[1] by f of the report in reports[0] from the same round.
func pairRatios(reports [][]bench.Report, f func(bench.Report) float64) (ratios []float64) {
	for i, first := range reports[0] {
		ratios = append(ratios, f(reports[1][i])/f(first))
	}
	return ratios
}

// posting measures the rate of accepted events. Row id gets the rate as a ratio to std, and row floor the ratio to the
// floor. The measurement post32 also fills three more rows: cpu and written have what the relay needs per event, and
// tail has the ratio of the latencies p99 and p50.
func posting(id, floor string, connections, senders int) func(context.Context, *perf) error {
	return func(ctx context.Context, p *perf) error {
		return p.withNode(ctx, func(n *node) error {
			o := p.flatOut(connections, senders)
			o.Floor = bench.FloorCommand(p.agora)
			all, err := p.repeat(ctx, n, o)
			if err != nil {
				return err
			}
			p.results.add(floor, median(all[0], std),
				collect(all[0], func(r bench.Report) float64 { return r.FloorRatio }))
			p.results.add(id, median(all[0], std), collect(all[0], rateRatio))
			if id == "post32" {
				p.results.add("cpu", median(all[0], std),
					collect(all[0], func(r bench.Report) float64 { return r.Relay.Verifications }))
				p.results.add("written", median(all[0], std),
					collect(all[0], func(r bench.Report) float64 { return r.Relay.Written / 1e3 }))
				p.results.add("tail", median(all[0], std),
					collect(all[0], func(r bench.Report) float64 { return r.Ack.P99 / r.Ack.P50 }))
			}
			return nil
		})
	}
}

// bulk measures the rate of bulk requests on one connection.
func (p *perf) bulk(ctx context.Context) error {
	return p.withNode(ctx, func(n *node) error {
		o := p.flatOut(1, 256)
		o.Bulk = 5000
		all, err := p.repeat(ctx, n, o)
		if err != nil {
			return err
		}
		p.results.add("bulk", median(all[0], std), collect(all[0], rateRatio))
		return nil
	})
}

// pretty measures the rate with bodies that are not canonical, as a ratio to the rate with canonical bodies.
func (p *perf) pretty(ctx context.Context) error {
	return p.withNode(ctx, func(n *node) error {
		pretty := p.flatOut(32, 256)
		pretty.Pretty = true
		all, err := p.repeat(ctx, n, p.flatOut(32, 256), pretty)
		if err != nil {
			return err
		}
		p.results.add("pretty", median(all[0], std), pairRatios(all, rateRatio))
		return nil
	})
}

// deliver measures the time from sending a post to its delivery.
func (p *perf) deliver(ctx context.Context) error {
	return p.withNode(ctx, func(n *node) error {
		o := bench.Options{Mode: bench.Deliver, Pollers: 1000, Rate: 200, Duration: 2 * p.duration,
			WarmUp: time.Second}
		all, err := p.repeat(ctx, n, o)
		if err != nil {
			return err
		}
		p.results.add("deliver50", median(all[0], std),
			collect(all[0], func(r bench.Report) float64 { return r.DeliveryFromSending.P50 }))
		p.results.add("deliver99", median(all[0], std),
			collect(all[0], func(r bench.Report) float64 { return r.DeliveryFromSending.P99 }))
		return nil
	})
}

// idlePolls is the number of idle polls in the measurement idle.
const idlePolls = 5000

// idle measures the posting rate with idle polls, as a ratio to the rate without idle polls.
func (p *perf) idle(ctx context.Context) error {
	return p.withNode(ctx, func(n *node) error {
		withIdle := p.flatOut(32, 256)
		withIdle.Idle = idlePolls
		all, err := p.repeat(ctx, n, p.flatOut(32, 256), withIdle)
		if err != nil {
			return err
		}
		p.results.add("idle", median(all[0], std), pairRatios(all, rateRatio))
		return nil
	})
}

// rss measures the relay's memory per idle poll with 10 000 idle polls. It then measures it with half as many on
// another relay. The second result shows whether it grows with the number.
func (p *perf) rss(ctx context.Context) error {
	var grown [2]float64
	for i, polls := range []int{10_000, idlePolls} {
		err := p.withNode(ctx, func(n *node) error {
			r, err := p.load(ctx, n, bench.Options{Idle: polls, Connections: 1, Rate: 20, Duration: time.Second})
			if err == nil {
				grown[i] = float64(r.Relay.RSSPerIdle)
				if i == 0 {
					p.results.add("rss", r.Std.Mean, []float64{grown[i] / 1e3})
				}
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	p.results.Figures.BytesPerPoll, p.results.Figures.BytesPerPollAtHalf = grown[0], grown[1]
	return nil
}

// catchUp measures the rate of one reader that is 100 000 events behind, and the sizes of events and threads on disk.
func (p *perf) catchUp(ctx context.Context) error {
	return p.withNode(ctx, func(n *node) error {
		r, err := p.load(ctx, n, bench.Options{Mode: bench.CatchUp, Connections: 64})
		if err != nil {
			return err
		}
		p.results.add("catchup", r.Std.Mean, []float64{r.ReadRatio})
		if err := n.stop(); err != nil {
			return err
		}
		f := &p.results.Figures
		f.EventBytes, f.ThreadBytes, err = n.bytesEach(ctx)
		return err
	})
}

// curve measures rates and latencies with 1 to 512 connections.
func (p *perf) curve(ctx context.Context) error {
	var points []point
	err := p.withNode(ctx, func(n *node) error {
		for connections := 1; connections <= 512; connections *= 2 {
			r, err := p.load(ctx, n, p.flatOut(connections, 256))
			if err != nil {
				return err
			}
			points = append(points, point{At: connections, Rate: r.Rate, Ratio: r.RateRatio, Std: r.Std.Mean,
				P50: r.Ack.P50, P99: r.Ack.P99, CPU: r.Relay.CPUPerEvent, GeneratorCPU: r.Generator.CPUPerEvent})
		}
		return nil
	})
	if err == nil {
		p.results.Connections = points
	}
	return err
}
