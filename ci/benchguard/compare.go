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

// stage is the result of one benchmark, relative to a verification by crypto/ed25519.
type stage struct {
	// Ratio is the time of the fastest round ÷ the time of the fastest verification.
	Ratio float64 `json:"ratio"`
	// Spread is the relative difference between the two fastest rounds, plus the same for the verification.
	Spread float64 `json:"spread"`
}

const (
	module    = "github.com/agora-relay/agora/"
	yardstick = "envelope StdVerify"
)

// parse returns the stages in a transcript. A transcript is the output of several test binaries, one after the other.
// It must contain the yardstick and at least one other benchmark.
func parse(transcript string) (map[string]stage, error) {
	samples, err := samplesOf(transcript)
	if err != nil {
		return nil, err
	}
	std, known := samples[yardstick]
	if !known || len(samples) == 1 {
		return nil, fmt.Errorf("the transcript must have times of %s and of other benchmarks", yardstick)
	}
	stages := map[string]stage{}
	for name, list := range samples {
		if name != yardstick {
			stages[name] = stage{
				Ratio: round(slices.Min(list) / slices.Min(std)), Spread: round(spread(list) + spread(std)),
			}
		}
	}
	return stages, nil
}

// spread returns how much slower the second fastest time is than the fastest, as a fraction. It estimates how much the
// fastest time varies by chance.
func spread(list []float64) float64 {
	if len(list) < 2 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[1]/sorted[0] - 1
}

// samplesOf reads the output lines of benchmarks. It returns the times of each benchmark in nanoseconds, by name. If a
// benchmark reports its CPU time, that is used, because the elapsed time includes waiting.
func samplesOf(transcript string) (samples map[string][]float64, err error) {
	pkg := ""
	samples = map[string][]float64{}
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
				return nil, fmt.Errorf("the output line of a benchmark has a value that is not a number: %q", line)
			}
		}
		ns := cmp.Or(values["cpu-ns/op"], values["ns/op"])
		if !(ns > 0) {
			return nil, fmt.Errorf("the output line of a benchmark has no time: %q", line)
		}
		name = pkg + " " + name
		samples[name] = append(samples[name], ns)
	}
	return samples, nil
}

func round(v float64) float64 { return math.Round(v*1e4) / 1e4 }

// minChange is the smallest change that is reported, in addition to the spread.
const minChange = 0.25

// judge compares now with before. It returns the verdict, and by how much now may differ without one.
func judge(before, now stage) (verdict string, bound float64) {
	bound = minChange + before.Spread + now.Spread
	switch change := now.Ratio / before.Ratio; {
	case change > 1+bound:
		return "REGRESSION", bound
	case change < 1/(1+bound):
		return "faster", bound
	}
	return "", bound
}

// report writes a table for people and returns the number of regressions. A stage of the baseline that was not measured
// counts as a regression.
func report(w io.Writer, base baseline, now map[string]stage) (regressions int) {
	fmt.Fprintf(w, "times relative to a verification by crypto/ed25519; the baseline is from %s (%s)\n",
		base.Date, base.Machine)
	fmt.Fprintf(w, "%-36s %10s %10s %8s %8s\n", "", "baseline", "now", "change", "allowed")
	for _, name := range slices.Sorted(maps.Keys(now)) {
		n := now[name]
		before, known := base.Stages[name]
		if !known {
			fmt.Fprintf(w, "%-36s %10s %10.3f                    new\n", name, "-", n.Ratio)
			continue
		}
		verdict, bound := judge(before, n)
		fmt.Fprintf(w, "%-36s %10.3f %10.3f %+7.0f%% %7.0f%%  %s\n",
			name, before.Ratio, n.Ratio, 100*(n.Ratio/before.Ratio-1), 100*bound, verdict)
		if verdict == "REGRESSION" {
			regressions++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(base.Stages)) {
		if _, there := now[name]; !there {
			fmt.Fprintf(w, "%-36s %10.3f %10s                    missing\n", name, base.Stages[name].Ratio, "-")
			regressions++ // the stage may have become slower, and that would not be noticed
		}
	}
	switch regressions {
	case 0:
		fmt.Fprintln(w, "no regression")
	default:
		fmt.Fprintf(w, "%d regressions; if they are intended, write a new baseline with make bench-guard UPDATE=1\n",
			regressions)
	}
	return regressions
}
