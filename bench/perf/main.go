// Command perf measures everything that docs/PERFORMANCE.md and docs/SCALING.md say in figures, and writes it there.
//
//	make perf [ROWS=post32,deliver]     or     go run ./bench/perf -agora bin/agora [-rows post32,deliver]
//	make profile                        or     go run ./bench/perf -profile
//
// Each measurement starts the given agora binary on a folder of its own, with its limits off, and puts it under load
// with package bench; both share the machine. What was measured goes to docs/perf/results.json, where a measurement that
// was not chosen keeps its last results; tables and graphs are made from that file. Progress goes to standard error.
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

// settings are the command line's.
type settings struct {
	agora    string
	rows     string
	docs     string
	runs     int
	duration time.Duration
	stored   int
	temp     string
	profile  bool
}

func main() {
	var s settings
	flag.StringVar(&s.agora, "agora", "bin/agora", "the `binary` to measure")
	flag.StringVar(&s.rows, "rows", "", "only these `measurements`, of "+strings.Join(measurementNames(), ", ")+"; with none as its word, tables and graphs are made again from the last results")
	flag.StringVar(&s.docs, "docs", "docs", "the `folder` where results, tables and graphs go")
	flag.IntVar(&s.runs, "runs", 3, "how often each thing is measured; the median counts")
	flag.DurationVar(&s.duration, "duration", 4*time.Second, "how long a run posts")
	flag.IntVar(&s.stored, "stored", 1_000_000, "to how many stored events the relay is filled")
	flag.StringVar(&s.temp, "temp", "", "where the relays' data goes, some GB (default: a folder for temporary files)")
	flag.BoolVar(&s.profile, "profile", false, "measure nothing but where the CPU time of a post goes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
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
		return fmt.Errorf("-runs must be 1 at least, -duration more than 0, -stored %d at least", 10*firstLevel)
	}
	p := &perf{settings: s, results: results}
	for _, m := range chosen {
		began := time.Now()
		fmt.Fprintf(os.Stderr, "== %s: %s\n", m.name, m.what)
		if err := m.measure(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		fmt.Fprintf(os.Stderr, "== %s took %v\n", m.name, time.Since(began).Round(time.Second))
		if err := results.save(s.docs); err != nil { // each as soon as it is there
			return err
		}
	}
	return results.save(s.docs)
}

// measurement is what can be chosen by -rows; each yields one row of the table or some.
type measurement struct {
	name, what string
	measure    func(context.Context, *perf) error
}

var measurements = []measurement{
	{"post32", "accepted events, 32 connections, 256 senders", posting("post32", "floor32", 32, 256)},
	{"post32x10k", "32 connections, 10 000 senders", posting("post32x10k", "floor32x10k", 32, 10_000)},
	{"post256", "256 connections, 256 senders", posting("post256", "floor256", 256, 256)},
	{"post256x10k", "256 connections, 10 000 senders", posting("post256x10k", "floor256x10k", 256, 10_000)},
	{"pretty", "bodies that are not canonical, in turns with canonical ones", method((*perf).pretty)},
	{"deliver", "delivery among 1 000 polls at 200 events/s", method((*perf).deliver)},
	{"idle", "posting beside 5 000 idle polls, in turns with none", method((*perf).idle)},
	{"rss", "memory of 10 000 idle polls", method((*perf).rss)},
	{"catchup", "a reader 100 000 events behind", method((*perf).catchUp)},
	{"stored", "growth up to a million stored events, and starting with them", method((*perf).stored)},
	{"connections", "the curve over connections", method((*perf).curve)},
}

func measurementNames() (names []string) {
	for _, m := range measurements {
		names = append(names, m.name)
	}
	return names
}

// choose returns the measurements named, all for "", none for "none".
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
			errs = append(errs, fmt.Errorf("%q is no measurement; there are %s", name, strings.Join(measurementNames(), ", ")))
			continue
		}
		chosen = append(chosen, measurements[i])
	}
	return chosen, errors.Join(errs...)
}

func method(f func(*perf, context.Context) error) func(context.Context, *perf) error {
	return func(ctx context.Context, p *perf) error { return f(p, ctx) }
}
