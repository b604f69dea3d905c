package main

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestRealRelay builds the agora binary once and measures it.
func TestRealRelay(t *testing.T) {
	agora := filepath.Join(t.TempDir(), "agora")
	if out, err := exec.Command("go", "build", "-o", agora, "../../cmd/agora").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Run("one row", func(t *testing.T) { testOneRow(t, agora) })
	if testing.Short() {
		return // the rest keeps both processors busy for 10 s
	}
	t.Run("probe and starts", func(t *testing.T) { testProbeAndStarts(t, agora) })
}

// testOneRow measures one row with a real relay for 0.8 seconds. It checks the saved results and that no files are
// left.
func testOneRow(t *testing.T, agora string) {
	t.Parallel()
	// The relay's CPU time is counted in hundredths of a second. So each of the eight turns must last several of these.
	s := settings{agora: agora, rows: "post32", docs: docs(t), runs: 1, duration: 800 * time.Millisecond,
		stored: 10 * firstLevel, temp: t.TempDir()}
	if err := run(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	r, err := load(s.docs)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"post32", "floor32", "cpu", "tail"} {
		if row, ok := r.row(id); !ok || row.Value <= 0 || row.Std <= 0 || len(row.Samples) != 1 {
			t.Errorf("%s: %+v", id, row)
		}
	}
	if left, err := filepath.Glob(filepath.Join(s.temp, "*")); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

// testProbeAndStarts probes a relay, and measures how long it takes to start and how large its database is.
func testProbeAndStarts(t *testing.T, agora string) {
	t.Parallel()
	p := &perf{settings: settings{agora: agora, temp: t.TempDir(), runs: 1}, results: &results{}}
	if err := p.withNode(t.Context(), func(n *node) error {
		at, posted, err := p.probe(t.Context(), n)
		if err != nil || posted != probeEvents || at.Read50 <= 0 || at.Read99 < at.Read50 || at.Ratio <= 0 {
			t.Errorf("%d posted, %+v", posted, at)
		}
		if err != nil {
			return err
		}
		first := n.pid()
		took, err := p.measureStarts(t.Context(), n)
		if n.pid() == first || len(took) != 3 || slices.Min(took) <= 0 {
			t.Errorf("starts took %v, process %d and then %d", took, first, n.pid())
		}
		if size, err := n.size(); err != nil || size < 700*probeEvents {
			t.Errorf("the database has %d bytes, %v", size, err)
		}
		if event, thread, err := n.bytesEach(t.Context()); err != nil ||
			event < 700 || event > 2000 || thread < 100 || thread > 2000 {
			t.Errorf("%f bytes per event and %f bytes per thread, %v", event, thread, err)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
