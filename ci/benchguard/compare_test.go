package main

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// recorded parses a transcript of this program from testdata. The transcripts "usual" and "again" are from the same
// source, measured twice on a busy machine. For "slower" the source was changed: every body took the slow path to its
// canonical form, even if it was already canonical.
func recorded(t *testing.T, name string) map[string]stage {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	stages, err := parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return stages
}

func TestNoiseIsNoRegression(t *testing.T) {
	var out strings.Builder
	if n := report(&out, baseline{Stages: recorded(t, "usual")}, recorded(t, "again")); n != 0 ||
		!strings.Contains(out.String(), "no regression") {
		t.Errorf("%d regressions, want none\n%s", n, out.String())
	}
}

func TestRegressionIsReported(t *testing.T) {
	var out strings.Builder
	if n := report(&out, baseline{Stages: recorded(t, "usual")}, recorded(t, "slower")); n != 1 {
		t.Errorf("%d regressions, want 1\n%s", n, out.String())
	}
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "REGRESSION") != strings.HasPrefix(line, "envelope Parse/canonical ") {
			t.Error(line)
		}
	}
}

// TestMissingStageIsReported checks that a stage of the baseline that is not measured counts as a regression.
func TestMissingStageIsReported(t *testing.T) {
	now := recorded(t, "again")
	delete(now, "envelope Parse/canonical")
	var out strings.Builder
	if n := report(&out, baseline{Stages: recorded(t, "usual")}, now); n != 1 ||
		strings.Contains(out.String(), "no regression") {
		t.Errorf("%d regressions, want 1\n%s", n, out.String())
	}
}

func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		before, now stage
		want        string
	}{
		"no change":                           {stage{1, 0}, stage{1, 0}, ""},
		"slower by less than 25 %":            {stage{1, 0}, stage{1.24, 0}, ""},
		"slower by more than 25 %":            {stage{1, 0}, stage{1.26, 0}, "REGRESSION"},
		"slower within this run's spread":     {stage{1, 0}, stage{1.5, 0.3}, ""},
		"slower within the baseline's spread": {stage{1, 0.3}, stage{1.5, 0}, ""},
		"slower within both spreads":          {stage{1, 0.3}, stage{1.8, 0.3}, ""},
		"slower by more than both spreads":    {stage{1, 0.2}, stage{1.7, 0.2}, "REGRESSION"},
		"faster by less than the limit":       {stage{1, 0}, stage{0.81, 0}, ""},
		"faster by more than the limit":       {stage{1, 0}, stage{0.79, 0}, "faster"},
	} {
		if got, _ := judge(c.before, c.now); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

const output = `goos: linux
pkg: github.com/agora-relay/agora/envelope
BenchmarkStdVerify-2   	    1652	     40000 ns/op	       0 B/op	       0 allocs/op
PASS
pkg: github.com/agora-relay/agora/store/sqlite
BenchmarkAppend/callers=16-2 	    1000	    145263 ns/op	    80000 cpu-ns/op	      6884 events/s
PASS
pkg: github.com/agora-relay/agora/envelope
BenchmarkStdVerify-2   	    1652	     60000 ns/op	       0 B/op	       0 allocs/op
BenchmarkVerify-2   	    1652	     90000 ns/op	     976 B/op	       8 allocs/op
`

// TestParse checks that CPU time is used if there is one, that the fastest times are used, and that the name of a stage
// contains its package.
func TestParse(t *testing.T) {
	got, err := parse(output + strings.ReplaceAll(output, "80000 cpu", "96000 cpu"))
	if err != nil {
		t.Fatal(err)
	}
	// The times in µs are: yardstick 40, 60, 40, 60; Append 80, 96; Verify 90, 90.
	want := map[string]stage{"store/sqlite Append/callers=16": {2, 0.2}, "envelope Verify": {2.25, 0}}
	for name, w := range want {
		if g := got[name]; math.Abs(g.Ratio-w.Ratio) > 1e-9 || math.Abs(g.Spread-w.Spread) > 1e-9 {
			t.Errorf("%s: %+v, want %+v", name, g, w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d stages: %+v", len(got), got)
	}
	for _, wrong := range []string{"", "PASS\n", "BenchmarkX-2 100 fast ns/op\n", "BenchmarkX-2 100 12 B/op\n",
		"pkg: x\nBenchmarkX-2 100 12 ns/op\n"} {
		if got, err := parse(wrong); err == nil {
			t.Errorf("%q was accepted as %+v", wrong, got)
		}
	}
}

// TestBaselineIsCurrent checks that the committed baseline contains stages of every package that is measured.
func TestBaselineIsCurrent(t *testing.T) {
	data, err := os.ReadFile("baseline.json")
	if err != nil {
		t.Fatal(err)
	}
	var b baseline
	if err := json.Unmarshal(data, &b); err != nil {
		t.Fatal(err)
	}
	for _, of := range batches {
		if !slices.ContainsFunc(keys(b.Stages), func(name string) bool { return strings.HasPrefix(name, of.pkg+" ") }) {
			t.Errorf("the baseline has no stage of %s", of.pkg)
		}
	}
}

func keys(m map[string]stage) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	return names
}
