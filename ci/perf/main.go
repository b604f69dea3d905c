// Command perf measures the figures in the generated tables and graphs of docs/PERFORMANCE.md and docs/SCALING.md, and
// writes these tables and graphs.
//
//	make perf [ROWS=post32,deliver]     or     go run ./ci/perf -agora bin/agora [-rows post32,deliver]
//	make profile                        or     go run ./ci/perf -profile
//	make pgo                            or     go run ./ci/perf -pgo
//	make bench-log                      or     go run ./ci/perf -agora bin/agora -log
//
// Each measurement starts the given agora binary in a new folder, with its limits turned off. It then loads the relay
// with package bench on the same machine. The results go to docs/perf/results.json. A measurement that was not selected
// keeps its previous results there. The tables and graphs are made from that file. Progress goes to standard error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

// settings are the values of the command line flags.
type settings struct {
	agora    string
	rows     string
	docs     string
	runs     int
	duration time.Duration
	stored   int
	temp     string
	profile  bool
	pgo      bool
	log      bool
}

func main() {
	var s settings
	flag.StringVar(&s.agora, "agora", "bin/agora", "the `binary` to measure")
	flag.StringVar(&s.rows, "rows", "", "comma-separated `measurements` to run, of "+
		strings.Join(measurementNames(), ", ")+"; \"none\" only makes the tables and graphs again from the last "+
		"results (default: all)")
	flag.StringVar(&s.docs, "docs", "docs", "the `folder` with the documents; results and graphs go to perf in it")
	flag.IntVar(&s.runs, "runs", 3, "how often each measurement is repeated; the result is the median")
	flag.DurationVar(&s.duration, "duration", 4*time.Second, "how long each run posts")
	flag.IntVar(&s.stored, "stored", 1_000_000, "number of events to store for the measurement \"stored\"")
	flag.StringVar(&s.temp, "temp", "", "folder for the relays' data, some GB (default: the system's temporary folder)")
	flag.BoolVar(&s.profile, "profile", false, "only measure how the CPU time of a post is divided among its stages")
	flag.BoolVar(&s.pgo, "pgo", false, "only measure which functions are busy, and write "+pgoFile+" for the compiler")
	flag.BoolVar(&s.log, "log", false, "only measure what a log of proofs costs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	if s.pgo {
		return updatePGO(ctx)
	}
	if s.log {
		return measureLog(ctx, s)
	}
	results, err := load(s.docs)
	if err != nil {
		return err
	}
	if s.profile {
		if results.Profile, err = profile(ctx); err != nil {
			return err
		}
		return results.save(s.docs)
	}
	chosen, err := choose(s.rows)
	if err != nil {
		return err
	}
	if s.runs < 1 || s.duration <= 0 || s.stored < 10*firstLevel {
		return fmt.Errorf("-runs must be at least 1, -duration more than 0, and -stored at least %d", 10*firstLevel)
	}
	p := &perf{settings: s, results: results}
	for _, m := range chosen {
		began := time.Now()
		fmt.Fprintf(os.Stderr, "== %s: %s\n", m.name, m.what)
		if err := m.measure(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		fmt.Fprintf(os.Stderr, "== %s took %v\n", m.name, time.Since(began).Round(time.Second))
		if err := results.save(s.docs); err != nil { // save each result at once, in case a later measurement fails
			return err
		}
	}
	return results.save(s.docs)
}

// measurement is a measurement that -rows can select. It adds one or more rows to the table.
type measurement struct {
	name, what string
	measure    func(context.Context, *perf) error
}

var measurements = []measurement{
	{"post32", "accepted events, 32 connections, 256 senders", posting("post32", "floor32", 32, 256)},
	{"post32x10k", "32 connections, 10 000 senders", posting("post32x10k", "floor32x10k", 32, 10_000)},
	{"post256", "256 connections, 256 senders", posting("post256", "floor256", 256, 256)},
	{"post256x10k", "256 connections, 10 000 senders", posting("post256x10k", "floor256x10k", 256, 10_000)},
	{"bulk", "bulk requests on one connection", method((*perf).bulk)},
	{"pretty", "bodies that are not canonical, in turns with canonical ones", method((*perf).pretty)},
	{"deliver", "delivery to 1 000 polls at 200 events/s", method((*perf).deliver)},
	{"idle", "posting with 5 000 idle polls, in turns with posting without idle polls", method((*perf).idle)},
	{"rss", "memory of 10 000 idle polls", method((*perf).rss)},
	{"catchup", "a reader 100 000 events behind", method((*perf).catchUp)},
	{"hub", "1 000 open streams of the hub and 500 messages/s", method((*perf).hub)},
	{"a2a", "1 000 open streams of A2A tasks, and agents that do tasks", method((*perf).a2a)},
	{"stored", "rates and latencies up to a million stored events, and starting with them", method((*perf).stored)},
	{"connections", "rates and latencies for different numbers of connections", method((*perf).curve)},
}

func measurementNames() (names []string) {
	for _, m := range measurements {
		names = append(names, m.name)
	}
	return names
}

// choose returns the measurements with the given names. It returns all for "" and none for "none".
func choose(rows string) (chosen []measurement, err error) {
	switch rows {
	case "":
		return measurements, nil
	case "none":
		return nil, nil
	}
	var errs []error
	for name := range strings.SplitSeq(rows, ",") {
		i := slices.IndexFunc(measurements, func(m measurement) bool { return m.name == strings.TrimSpace(name) })
		if i < 0 {
			errs = append(errs, fmt.Errorf("unknown measurement %q; use one of %s",
				name, strings.Join(measurementNames(), ", ")))
			continue
		}
		chosen = append(chosen, measurements[i])
	}
	return chosen, errors.Join(errs...)
}

// method turns a method of perf into the function that a measurement needs.
func method(f func(*perf, context.Context) error) func(context.Context, *perf) error {
	return func(ctx context.Context, p *perf) error { return f(p, ctx) }
}
