// Command benchguard checks whether a stage of the relay has become slower than in the committed baseline.
//
//	go run ./ci/benchguard [-rounds 5] [-update] [-transcript FILE]
//
// The time of a stage is given as a ratio to the time of one verification by crypto/ed25519. The verification is
// measured again before each stage, so a slow or busy machine changes the ratio only a little. The command measures
// several rounds, one after the other. It uses the fastest time of each stage, because other work on the machine can
// only make a stage slower.
//
// A stage has a regression if it exceeds the baseline by more than 25 % plus the spread of this run and of the
// baseline. The spread is the difference between the two fastest rounds. If the environment variable STRICT is 1, a
// regression makes the command exit with status 1. Otherwise the command only reports it.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

const baselinePath = "ci/benchguard/baseline.json"

// baseline is the content of baseline.json, the results that later runs are compared with.
type baseline struct {
	Date    string           `json:"date"`
	Machine string           `json:"machine"`
	Stages  map[string]stage `json:"stages"`
}

// batch is one call of a test binary: the package, a regular expression for the benchmarks, and -test.benchtime.
type batch struct {
	pkg, benchmarks, time string
}

// Each of batches is measured after a measurement of std.
var (
	std     = batch{"envelope", "^BenchmarkStdVerify$", "80ms"}
	batches = []batch{
		{"envelope", "^Benchmark(Parse|IsCanonical|Verify)$", "50ms"},
		{"store/sqlite", "^BenchmarkAppend$", "1000x"},
		{"store/sqlite", "^BenchmarkRead$", "100ms"},
		{"relay", "^BenchmarkWake$", "10000x"},
		{"relay", "^BenchmarkPost$", "2000x"},
		{"relay/httpapi", "^BenchmarkPost$", "2000x"},
	}
)

func main() {
	rounds := flag.Int("rounds", 5, "how often each stage is measured")
	update := flag.Bool("update", false, "write the results of this run as the new baseline")
	transcript := flag.String("transcript", "", "also write the output of the benchmarks to `FILE`")
	flag.Parse()
	regressions, err := run(*rounds, *update, *transcript)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if regressions > 0 && os.Getenv("STRICT") == "1" {
		os.Exit(1)
	}
}

func run(rounds int, update bool, transcript string) (regressions int, err error) {
	var text bytes.Buffer
	if err := measure(&text, rounds); err != nil {
		return 0, err
	}
	if transcript != "" {
		if err := os.WriteFile(transcript, text.Bytes(), 0o644); err != nil {
			return 0, err
		}
	}
	now, err := parse(text.String())
	if err != nil {
		return 0, err
	}
	if update {
		b := baseline{time.Now().UTC().Format(time.DateOnly),
			fmt.Sprintf("%s/%s, %d cores, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version()), now}
		data, err := json.MarshalIndent(b, "", "  ")
		if err != nil {
			return 0, err
		}
		return 0, os.WriteFile(baselinePath, append(data, '\n'), 0o644)
	}
	data, err := os.ReadFile(baselinePath)
	if err != nil {
		return 0, err
	}
	var base baseline
	if err := json.Unmarshal(data, &base); err != nil {
		return 0, fmt.Errorf("%s: %w", baselinePath, err)
	}
	return report(os.Stdout, base, now), nil
}

// measure runs the benchmarks and writes their output to w.
func measure(w io.Writer, rounds int) error {
	dir, err := os.MkdirTemp("", "benchguard")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary := func(pkg string) string { return filepath.Join(dir, strings.ReplaceAll(pkg, "/", "_")+".test") }
	for _, b := range batches {
		if _, err := os.Stat(binary(b.pkg)); err == nil {
			continue
		}
		if out, err := exec.Command("go", "test", "-c", "-o", binary(b.pkg), "./"+b.pkg).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", b.pkg, err, out)
		}
	}
	for round := range rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, rounds)
		for _, b := range batches {
			for _, b := range []batch{std, b} {
				c := exec.Command(binary(b.pkg), "-test.run", "^$", "-test.bench", b.benchmarks,
					"-test.benchtime", b.time, "-test.timeout", "1m")
				c.Dir = b.pkg
				out, err := c.CombinedOutput()
				if err != nil {
					return fmt.Errorf("%s %s: %w\n%s", b.pkg, b.benchmarks, err, out)
				}
				if _, err := w.Write(out); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
