package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// share is the CPU time that one stage takes of a post.
type share struct {
	Stage        string  `json:"stage"`
	Microseconds float64 `json:"microseconds"` // per event
}

// stagePattern assigns stacks to a stage. A stack belongs to the first of stagePatterns that matches the function name
// of one of its frames.
type stagePattern struct {
	stage  string
	frames *regexp.Regexp
}

// generator is the stage of the load generator, which is not part of the relay.
const generator = "client"

// stagePatterns are ordered from inner to outer stages. For example, a verification comes before the rest of a post,
// and a post before the rest of a request, because the stack of a verification contains the frames of all three.
var stagePatterns = []stagePattern{
	{generator, regexp.MustCompile(`httpapi_test\.|bench/stage\.`)},
	{"garbage collector", regexp.MustCompile(`^runtime\.(gcBgMarkWorker|gcAssistAlloc|bgsweep|bgscavenge|gcStart)`)},
	{"signature: verification", regexp.MustCompile(`didkey\.\(\*Verifier\)\.Verify`)},
	{"signature: the rest", regexp.MustCompile(`envelope\.\(\*Envelope\)\.Verify`)},
	{"parse and canonical form", regexp.MustCompile(`agora/envelope\.Parse`)},
	{"store: fsync", regexp.MustCompile(`(?i)fsync|fdatasync`)},
	{"store: commit, its writes and checkpoints", regexp.MustCompile(
		`(?i)_sqlite3Wal|_pagerWal|sqlite3PagerCommit|VdbeHalt|checkpoint|\.commit|\.Commit`)},
	{"store: statements", regexp.MustCompile(`store/sqlite|modernc\.org|database/sql`)},
	{"wake the polls", regexp.MustCompile(`relay\.\(\*hub\)`)},
	{"relay: the rest of a post", regexp.MustCompile(`agora/relay\.`)},
	{"HTTP: read and write the socket", regexp.MustCompile(
		`^(internal/poll\.\(\*FD\)|syscall\.(write|read|Write|Read))`)},
	{"HTTP: net/http, routes, answers", regexp.MustCompile(`^net/http\.|gorilla/mux|relay/httpapi`)},
	{"Go's scheduler and network poller", regexp.MustCompile(`^runtime\.`)},
	{"other", regexp.MustCompile(``)},
}

// profile runs the benchmark that posts to a relay, with the CPU profiler. It returns the CPU time of each stage.
func profile(ctx context.Context) ([]share, error) {
	const events = 100_000
	dir, err := os.MkdirTemp("", "agora-profile")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	binary, cpu, err := runPosts(ctx, dir, "^BenchmarkPost$/^connections=32$", events)
	if err != nil {
		return nil, err
	}
	traces, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-traces", binary, cpu).Output()
	if err != nil {
		return nil, err
	}
	return classifyStacks(string(traces), events)
}

// runPosts runs benchmarks of package httpapi with this number of events each. It returns the paths of the test binary
// and of the CPU profile, which are in dir.
func runPosts(ctx context.Context, dir, benchmarks string, events int) (binary, cpu string, err error) {
	binary, cpu = filepath.Join(dir, "httpapi.test"), filepath.Join(dir, "cpu")
	c := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", benchmarks,
		"-benchtime", fmt.Sprintf("%dx", events), "-timeout", "5m", "-o", binary, "-cpuprofile", cpu, "./relay/httpapi")
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	return binary, cpu, c.Run()
}

// classifyStacks returns the CPU time of each stage, divided by the number of events. traces is the output of pprof
// -traces: a list of stacks with their CPU times. A line of dashes comes before each stack, and the innermost frame is
// the first. The stacks of the client, and those of signing before the benchmark, are not counted.
func classifyStacks(traces string, events int) ([]share, error) {
	spent := map[string]time.Duration{}
	_, stacks, found := strings.Cut(traces, "-----------+")
	if !found {
		return nil, fmt.Errorf("the output of pprof -traces contains no stacks")
	}
	for stack := range strings.SplitSeq(stacks, "-----------+") {
		var cpu time.Duration
		var frames []string
		for text := range strings.Lines(stack) {
			fields := strings.Fields(text)
			if len(fields) > 1 && cpu == 0 && len(frames) == 0 {
				var err error
				if cpu, err = duration(fields[0]); err != nil {
					return nil, fmt.Errorf("the output of pprof -traces has a stack without a CPU time: %q", text)
				}
				fields = fields[1:]
			}
			if len(fields) > 0 && !strings.HasPrefix(fields[0], "---") {
				frames = append(frames, fields[0])
			}
		}
		if len(frames) > 0 {
			spent[stageOf(frames)] += cpu
		}
	}
	var list []share
	for _, k := range stagePatterns {
		if us := float64(spent[k.stage].Nanoseconds()) / 1e3 / float64(events); k.stage != generator && us > 0 {
			list = append(list, share{k.stage, math.Round(us*100) / 100})
		}
	}
	slices.SortStableFunc(list, func(a, b share) int {
		return int(math.Round(100 * (b.Microseconds - a.Microseconds)))
	})
	return list, nil
}

// stageOf returns the stage of a stack.
func stageOf(frames []string) string {
	for _, k := range stagePatterns {
		if slices.ContainsFunc(frames, k.frames.MatchString) {
			return k.stage
		}
	}
	return "other"
}

// duration parses a time as pprof prints it, such as 10ms, 1.20s or 1.5mins.
func duration(text string) (time.Duration, error) {
	if minutes, ok := strings.CutSuffix(text, "mins"); ok {
		n, err := strconv.ParseFloat(minutes, 64)
		return time.Duration(n * float64(time.Minute)), err
	}
	return time.ParseDuration(text)
}
