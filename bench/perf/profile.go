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

// share is a stage's part of the CPU time of a post.
type share struct {
	Stage        string  `json:"stage"`
	Microseconds float64 `json:"microseconds"` // an event
}

// kind sorts stacks: a stack belongs to the first kind of which a frame's function matches.
type kind struct {
	stage  string
	frames *regexp.Regexp
}

// client is the load generator's stage, which is no part of the relay.
const client = "client"

// kinds go from what is inside to what is around it: a verification is part of a post, which is part of a request.
var kinds = []kind{
	{client, regexp.MustCompile(`httpapi_test\.|bench/stage\.`)},
	{"garbage collector", regexp.MustCompile(`^runtime\.(gcBgMarkWorker|gcAssistAlloc|bgsweep|bgscavenge|gcStart)`)},
	{"signature: crypto/ed25519", regexp.MustCompile(`^crypto/ed25519\.|/ed25519`)},
	{"signature: the rest", regexp.MustCompile(`envelope\.\(\*Envelope\)\.Verify`)},
	{"parse and canonical form", regexp.MustCompile(`agora/envelope\.Parse`)},
	{"store: fsync", regexp.MustCompile(`(?i)fsync|fdatasync`)},
	{"store: commit, its writes and checkpoints", regexp.MustCompile(`(?i)_sqlite3Wal|_pagerWal|sqlite3PagerCommit|VdbeHalt|checkpoint|\.commit|\.Commit`)},
	{"store: statements", regexp.MustCompile(`store/sqlite|modernc\.org|database/sql`)},
	{"wake the polls", regexp.MustCompile(`relay\.\(\*hub\)`)},
	{"relay: the rest of a post", regexp.MustCompile(`agora/relay\.`)},
	{"HTTP: read and write the socket", regexp.MustCompile(`^(internal/poll\.\(\*FD\)|syscall\.(write|read|Write|Read))`)},
	{"HTTP: net/http, routes, answers", regexp.MustCompile(`^net/http\.|gorilla/mux|relay/httpapi`)},
	{"Go's scheduler and network poller", regexp.MustCompile(`^runtime\.`)},
	{"other", regexp.MustCompile(``)},
}

// profile posts to a relay in a benchmark under the CPU profiler and sorts its stacks.
func profile(ctx context.Context) ([]share, error) {
	const events = 100_000
	dir, err := os.MkdirTemp("", "agora-profile")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	binary, cpu := filepath.Join(dir, "httpapi.test"), filepath.Join(dir, "cpu")
	c := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkPost$/^connections=32$", "-benchtime", fmt.Sprintf("%dx", events),
		"-timeout", "5m", "-o", binary, "-cpuprofile", cpu, "./relay/httpapi")
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	if err := c.Run(); err != nil {
		return nil, err
	}
	traces, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-traces", binary, cpu).Output()
	if err != nil {
		return nil, err
	}
	return sortStacks(string(traces), events)
}

// sortStacks reads what pprof -traces prints: stacks with their CPU time, the innermost frame first, and a line of dashes
// before each. The time of the client's stacks, and of signing before the benchmark, is left out.
func sortStacks(traces string, events int) ([]share, error) {
	spent := map[string]time.Duration{}
	_, stacks, found := strings.Cut(traces, "-----------+")
	if !found {
		return nil, fmt.Errorf("the profile has no stacks")
	}
	for stack := range strings.SplitSeq(stacks, "-----------+") {
		var cpu time.Duration
		var frames []string
		for text := range strings.Lines(stack) {
			fields := strings.Fields(text)
			if len(fields) > 1 && cpu == 0 && len(frames) == 0 {
				var err error
				if cpu, err = duration(fields[0]); err != nil {
					return nil, fmt.Errorf("a stack is not understood: %q", text)
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
	for _, k := range kinds {
		if us := float64(spent[k.stage].Nanoseconds()) / 1e3 / float64(events); k.stage != client && us > 0 {
			list = append(list, share{k.stage, math.Round(us*100) / 100})
		}
	}
	slices.SortStableFunc(list, func(a, b share) int { return int(math.Round(100 * (b.Microseconds - a.Microseconds))) })
	return list, nil
}

func stageOf(frames []string) string {
	for _, k := range kinds {
		if slices.ContainsFunc(frames, k.frames.MatchString) {
			return k.stage
		}
	}
	return "other"
}

// duration reads 10ms, 1.20s or 1.5mins.
func duration(text string) (time.Duration, error) {
	if minutes, ok := strings.CutSuffix(text, "mins"); ok {
		n, err := strconv.ParseFloat(minutes, 64)
		return time.Duration(n * float64(time.Minute)), err
	}
	return time.ParseDuration(text)
}
