package faults

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

var (
	roundsFlag     = flag.Int("rounds", 0, "kills in TestKillLoop; 0: 50, fewer with -short or the race detector")
	minutesFlag    = flag.Float64("minutes", 0, "how long TestKillLoop goes on, in steps of fifty rounds")
	hoardEvents    = flag.Int("hoard-events", 15_000, "events in the database of TestReadersFromOneAddressDelayNoOther")
	hoardManifests = flag.Int("hoard-manifests", 100, "manifests of 100 KB each in that database")
	seedFlag       = flag.Uint64("seed", 0, "seed of the random numbers; 0: a new one each time, which is printed")
)

// binary is the program under test, built once for all tests and with the race detector if they have it.
var binary string

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	folder, err := os.MkdirTemp("", "agora-faults")
	if err != nil {
		return 0, err
	}
	defer func() {
		if failed := os.RemoveAll(folder); err == nil {
			err = failed
		}
	}()
	binary = filepath.Join(folder, "agora.exe") // a name that every system runs
	args := []string{"build", "-o", binary}
	if raceDetector {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, "github.com/agora-relay/agora/cmd/agora")...).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("building the relay: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// scaled returns n, or a tenth of it where time or memory is short.
func scaled(n int) int {
	if raceDetector || testing.Short() {
		return max(n/10, 1)
	}
	return n
}

// random returns a source that the test's log tells how to repeat.
func random(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// within fails the test unless condition comes true in time. It asks again and again, as nothing outside a process
// tells when it has changed.
func within(t testing.TB, most time.Duration, what string, condition func() bool) {
	t.Helper()
	end := time.NewTimer(most)
	defer end.Stop()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !condition() {
		select {
		case <-end.C:
			t.Fatalf("not within %s: %s", most, what)
		case <-again.C:
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
