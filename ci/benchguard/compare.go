package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// stage is what one benchmark costs, in verifications by crypto/ed25519.
type stage struct {
	Ratio  float64 `json:"ratio"`  // the median of the rounds
	Spread float64 `json:"spread"` // the largest less the smallest, as a part of the median
}

// sample is one line of the benchmarks' output.
type sample struct {
	name string
	ns   float64
}

const (
	module       = "github.com/agora-relay/agora/"
	standardName = "envelope StdVerify"
)

// parse returns the stages in a transcript: the output of test binaries, one after the other, the yardstick among them.
// A sample's yardstick is the mean of the last before and the first after it.
func parse(transcript string) (map[string]stage, error) {
	samples, err := samplesOf(transcript)
	if err != nil {
		return nil, err
	}
	ratios := map[string][]float64{}
	for i, s := range samples {
		if s.name == standardName {
			continue
		}
		isStandard := func(s sample) bool { return s.name == standardName }
		var std []float64
		if before := slices.Clone(samples[:i]); len(before) > 0 {
			slices.Reverse(before)
			if at := slices.IndexFunc(before, isStandard); at >= 0 {
				std = append(std, before[at].ns)
			}
		}
		if at := slices.IndexFunc(samples[i:], isStandard); at >= 0 {
			std = append(std, samples[i+at].ns)
		}
		if len(std) == 0 {
			return nil, fmt.Errorf("%s was measured, and %s was not", s.name, standardName)
		}
		ratios[s.name] = append(ratios[s.name], s.ns/mean(std))
	}
	if len(ratios) == 0 {
		return nil, fmt.Errorf("no benchmark was run")
	}
	stages := map[string]stage{}
	for name, list := range ratios {
		slices.Sort(list)
		middle := (list[(len(list)-1)/2] + list[len(list)/2]) / 2
		stages[name] = stage{Ratio: round(middle), Spread: round((list[len(list)-1] - list[0]) / middle)}
	}
	return stages, nil
}

// samplesOf reads the lines of benchmarks. CPU time counts where a benchmark gives it: its own times hold the waiting too.
func samplesOf(transcript string) (samples []sample, err error) {
	pkg := ""
	for line := range strings.Lines(transcript) {
		fields := strings.Fields(line)
		if len(fields) == 2 && fields[0] == "pkg:" {
			pkg = strings.TrimPrefix(fields[1], module)
		}
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(fields[0], "Benchmark")
		if at := strings.LastIndexByte(name, '-'); at > 0 {
			name = name[:at] // the number of cores
		}
		values := map[string]float64{}
		for i := 2; i+1 < len(fields); i += 2 {
			if values[fields[i+1]], err = strconv.ParseFloat(fields[i], 64); err != nil {
				return nil, fmt.Errorf("a benchmark's line is not understood: %q", line)
			}
		}
		ns := cmp.Or(values["cpu-ns/op"], values["ns/op"])
		if !(ns > 0) {
			return nil, fmt.Errorf("a benchmark's line without a time: %q", line)
		}
		samples = append(samples, sample{pkg + " " + name, ns})
	}
	return samples, nil
}

func mean(list []float64) float64 {
	sum := 0.0
	for _, v := range list {
		sum += v
	}
	return sum / float64(len(list))
}

func round(v float64) float64 { return math.Round(v*1e4) / 1e4 }

// What is no noise: more than the smallest change that is worth a word, and more than so many times the spread.
const (
	least  = 0.25
	beyond = 1.5
)

// judge says how now stands to before, and by how much it may differ.
func judge(before, now stage) (verdict string, bound float64) {
	bound = max(least, beyond*before.Spread, beyond*now.Spread)
	switch change := now.Ratio / before.Ratio; {
	case change > 1+bound:
		return "REGRESSION", bound
	case change < 1/(1+bound):
		return "faster", bound
	}
	return "", bound
}

// report writes a table for people and returns how many stages have a regression.
func report(w io.Writer, base baseline, now map[string]stage) (regressions int) {
	fmt.Fprintf(w, "stages in verifications by crypto/ed25519; the baseline is of %s (%s)\n", base.Date, base.Machine)
	fmt.Fprintf(w, "%-36s %10s %10s %8s %8s\n", "", "baseline", "now", "change", "noise")
	for _, name := range slices.Sorted(maps.Keys(now)) {
		n := now[name]
		before, known := base.Stages[name]
		if !known {
			fmt.Fprintf(w, "%-36s %10s %10.3f                    new\n", name, "-", n.Ratio)
			continue
		}
		verdict, bound := judge(before, n)
		fmt.Fprintf(w, "%-36s %10.3f %10.3f %+7.0f%% %7.0f%%  %s\n", name, before.Ratio, n.Ratio, 100*(n.Ratio/before.Ratio-1), 100*bound, verdict)
		if verdict == "REGRESSION" {
			regressions++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(base.Stages)) {
		if _, there := now[name]; !there {
			fmt.Fprintf(w, "%-36s %10.3f %10s                    gone\n", name, base.Stages[name].Ratio, "-")
		}
	}
	switch regressions {
	case 0:
		fmt.Fprintln(w, "no regression")
	default:
		fmt.Fprintf(w, "%d regressions; if they are meant, make bench-guard UPDATE=1 writes a new baseline\n", regressions)
	}
	return regressions
}
