package faults

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/internal/racing"
)

var (
	roundsFlag = flag.Int("rounds", 0,
		"kills in TestKillLoop before each audit, and in the loops of gateways; 0: 50 and 8 (4 in the loop with 1,000 jobs), "+
			"or 5 and 3 with -short or the race detector")
	minutesFlag = flag.Float64("minutes", 0,
		"repeat TestKillLoop, with an audit each time, for at least this many minutes")
	hoardEvents    = flag.Int("hoard-events", 15_000, "events in the database of TestReadersFromOneAddressDelayNoOther")
	hoardManifests = flag.Int("hoard-manifests", 100, "manifests of 100 KB each in that database")
	attackFlag     = flag.String("attack", "", "attack only these operations in TestAttacksDelayNoStranger: a regexp")
	bareFlag       = flag.Bool("bare", false, "run no tests, but the server of bareServer")
	seedFlag       = flag.Uint64("seed", 0, "seed of the random numbers; 0: a new seed, which the test logs")
)

// binary is the path of the program under test. It is built once for all tests, with the race detector if the tests
// have it.
var binary string

func TestMain(m *testing.M) {
	flag.Parse()
	run := func() (int, error) { return buildAndRun(m) }
	if *bareFlag {
		run = func() (int, error) { return 1, serveBare() }
	}
	code, err := run()
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
	binary = filepath.Join(folder, "agora.exe") // a name that can be executed on every system
	args := []string{"build", "-o", binary}
	if racing.Detector {
		args = append(args, "-race")
	}
	args = append(args, strings.Fields(os.Getenv("AGORA_BUILD_FLAGS"))...) // see the Makefile
	args = append(args, "github.com/agora-relay/agora/cmd/agora")
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("cannot build the relay: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// scaled returns n. With -short or the race detector it returns a tenth of n, but at least 1.
func scaled(n int) int {
	if racing.Detector || testing.Short() {
		return max(n/10, 1)
	}
	return n
}

// random returns a source of random numbers. It logs the seed, so that a run can be repeated with -seed.
func random(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// within waits until condition is true. It fails the test after timeout. It checks the condition again and again,
// because a process does not report changes of its state.
func within(t testing.TB, timeout time.Duration, what string, condition func() bool) {
	t.Helper()
	end := time.NewTimer(timeout)
	defer end.Stop()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !condition() {
		select {
		case <-end.C:
			t.Fatalf("timeout after %s while waiting for: %s", timeout, what)
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
