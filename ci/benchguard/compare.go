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
	Ratio  float64 `json:"ratio"`  // the fastest round to the fastest verification; others only add to the time
	Spread float64 `json:"spread"` // how much more the second fastest took, and the second fastest verification, as parts
}

const (
	module    = "github.com/agora-relay/agora/"
	yardstick = "envelope StdVerify"
)

// parse returns the stages in a transcript: the output of test binaries, one after the other, the yardstick among them.
func parse(transcript string) (map[string]stage, error) {
	samples, err := samplesOf(transcript)
	if err != nil {
		return nil, err
	}
	std, known := samples[yardstick]
	if !known || len(samples) == 1 {
		return nil, fmt.Errorf("there are no times of %s, or of nothing else", yardstick)
	}
	stages := map[string]stage{}
	for name, list := range samples {
		if name != yardstick {
			stages[name] = stage{Ratio: round(slices.Min(list) / slices.Min(std)), Spread: round(spread(list) + spread(std))}
		}
	}
	return stages, nil
}

// spread says how much slower the second fastest is: how far chance alone may move the fastest.
func spread(list []float64) float64 {
	if len(list) < 2 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[1]/sorted[0] - 1
}

// samplesOf reads the lines of benchmarks: the nanoseconds of each, by name. CPU time counts where a benchmark gives it: its own times hold the waiting too.
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
				return nil, fmt.Errorf("a benchmark's line is not understood: %q", line)
			}
		}
		ns := cmp.Or(values["cpu-ns/op"], values["ns/op"])
		if !(ns > 0) {
			return nil, fmt.Errorf("a benchmark's line without a time: %q", line)
		}
		name = pkg + " " + name
		samples[name] = append(samples[name], ns)
	}
	return samples, nil
}

func round(v float64) float64 { return math.Round(v*1e4) / 1e4 }

// least is the smallest change that is worth a word, beyond what chance may do.
const least = 0.25

// judge says how now stands to before, and by how much it may differ.
func judge(before, now stage) (verdict string, bound float64) {
	bound = least + before.Spread + now.Spread
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
	fmt.Fprintf(w, "%-36s %10s %10s %8s %8s\n", "", "baseline", "now", "change", "allowed")
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
			regressions++ // what is not measured may be anything
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
