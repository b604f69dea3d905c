package main

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// recorded parses a transcript of this program: usual and again are the same source measured twice on a busy machine, in
// slower every body went the slow way to its canonical form.
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
	if n := report(&out, baseline{Stages: recorded(t, "usual")}, recorded(t, "again")); n != 0 || !strings.Contains(out.String(), "no regression") {
		t.Errorf("%d regressions\n%s", n, out.String())
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

// TestAStageThatIsGoneIsReported: one that is not measured any more may have become as slow as it likes.
func TestAStageThatIsGoneIsReported(t *testing.T) {
	now := recorded(t, "again")
	delete(now, "envelope Parse/canonical")
	var out strings.Builder
	if n := report(&out, baseline{Stages: recorded(t, "usual")}, now); n != 1 || strings.Contains(out.String(), "no regression") {
		t.Errorf("%d regressions, want 1\n%s", n, out.String())
	}
}

func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		before, now stage
		want        string
	}{
		"the same":                      {stage{1, 0}, stage{1, 0}, ""},
		"within a quarter":              {stage{1, 0}, stage{1.24, 0}, ""},
		"beyond a quarter":              {stage{1, 0}, stage{1.26, 0}, "REGRESSION"},
		"within this run's noise":       {stage{1, 0}, stage{1.5, 0.3}, ""},
		"within the baseline's noise":   {stage{1, 0.3}, stage{1.5, 0}, ""},
		"within both":                   {stage{1, 0.3}, stage{1.8, 0.3}, ""},
		"beyond the noise":              {stage{1, 0.2}, stage{1.7, 0.2}, "REGRESSION"},
		"a fifth less is not yet much":  {stage{1, 0}, stage{0.81, 0}, ""},
		"as much faster as would count": {stage{1, 0}, stage{0.79, 0}, "faster"},
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

// TestParse: CPU time goes before time, the fastest count, and a stage has its package's name.
func TestParse(t *testing.T) {
	got, err := parse(output + strings.ReplaceAll(output, "80000 cpu", "96000 cpu"))
	if err != nil {
		t.Fatal(err)
	}
	// The yardstick took 40, 60, 40, 60; Append 80, 96; Verify 90, 90.
	want := map[string]stage{"store/sqlite Append/callers=16": {2, 0.2}, "envelope Verify": {2.25, 0}}
	for name, w := range want {
		if g := got[name]; math.Abs(g.Ratio-w.Ratio) > 1e-9 || math.Abs(g.Spread-w.Spread) > 1e-9 {
			t.Errorf("%s: %+v, want %+v", name, g, w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d stages: %+v", len(got), got)
	}
	for _, wrong := range []string{"", "PASS\n", "BenchmarkX-2 100 fast ns/op\n", "BenchmarkX-2 100 12 B/op\n", "pkg: x\nBenchmarkX-2 100 12 ns/op\n"} {
		if got, err := parse(wrong); err == nil {
			t.Errorf("%q was taken for %+v", wrong, got)
		}
	}
}

// TestBaselineIsCurrent holds that the committed baseline has all stages that are measured.
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
