// Command mutants checks that the tests find errors. It makes one faulty version of the code after another, runs the
// tests that should fail, and reports the faults that no test has noticed. It ends with an error if there is such a
// fault, or if a fault does not fit the code any more.
//
//	go run ./ci/mutants [-run REGEXP] [-list] [-build] [-count 150] [-parallel 2] [-timeout 4m]
//
// A fault names a declaration, some names in it, and an edit of the syntax tree; see the type mutant. So formatting,
// comments and other edits of the same function do not affect it. The source files are not changed: the go command
// gets the faulty file with -overlay. Each fault takes some seconds to a minute. The order is drawn anew for each run,
// so with -count, each run tries other faults.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// mutant is one fault: an edit of one declaration.
type mutant struct {
	name string
	// in is a folder and a package-level declaration in it, such as "thread Thread.accept" or "replay DefaultMemory".
	// It may also be an SQL file and a table.
	in string
	// at are names that the edited node must mention, separated by spaces. Of all such nodes, the smallest is edited.
	// It must be the only one. A name is an identifier, a selector or its end (a.b.c, b.c, c), a call (f()), an index
	// (x[]), a literal, an operator, return or defer.
	at    string
	do    change
	tests string // arguments of go test; the tests must fail
}

// repetition is a fault of the list with other tests, which must fail too.
type repetition struct{ name, fault, tests string }

func main() {
	chosen := flag.String("run", "", "use only the faults whose name matches `REGEXP`")
	list := flag.Bool("list", false, "run nothing; print the faults and check that each fits the code")
	build := flag.Bool("build", false, "run nothing; check that the code compiles with each fault")
	count := flag.Int("count", 0, "try only this many faults, drawn by lot; 0: all")
	parallel := flag.Int("parallel", runtime.NumCPU(), "try this many faults at the same time")
	timeout := flag.Duration("timeout", 4*time.Minute,
		"stop the tests of a fault after this `time`; the fault then counts as noticed")
	flag.Parse()
	if err := run(*chosen, *list, *build, *count, max(*parallel, 1), *timeout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(chosen string, list, build bool, count, parallel int, timeout time.Duration) error {
	match, err := regexp.Compile(chosen)
	if err != nil {
		return err
	}
	all, err := allFaults()
	if err != nil {
		return err
	}
	selected := slices.DeleteFunc(all, func(m mutant) bool { return !match.MatchString(m.name) })
	if len(selected) == 0 {
		return errors.New("no fault has such a name")
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var problems []error
	for _, m := range selected {
		if list {
			fmt.Printf("%-55s %s\n", m.name, m.tests)
		}
		_, _, err := m.apply(".")
		if err == nil && build {
			err = m.build(dir)
		}
		problems = append(problems, err)
	}
	if err := errors.Join(problems...); list || build || err != nil {
		return err
	}
	rand.Shuffle(len(selected), func(i, j int) { selected[i], selected[j] = selected[j], selected[i] })
	if count > 0 {
		selected = selected[:min(count, len(selected))]
	}
	survived, tried := 0, make(chan outcome)
	go tryAll(selected, dir, parallel, timeout, tried)
	for o := range tried {
		verdict := "killed  "
		if o.err != nil {
			verdict = "FAILED  "
			problems = append(problems, o.err)
		} else if !o.killed {
			verdict = "SURVIVED"
			survived++
		}
		fmt.Printf("%s %-55s %5.1fs %s\n", verdict, o.name, o.took.Seconds(), o.why)
	}
	if survived > 0 {
		problems = append(problems, fmt.Errorf("no test notices %d of the %d faults", survived, len(selected)))
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	fmt.Printf("the tests noticed all %d faults\n", len(selected))
	return nil
}

// outcome is what try has returned for a fault.
type outcome struct {
	name   string
	killed bool
	why    string
	took   time.Duration
	err    error
}

// tryAll tries faults, some at the same time, each with a folder in dir. It sends what came out and closes the channel.
func tryAll(all []mutant, dir string, parallel int, timeout time.Duration, tried chan<- outcome) {
	defer close(tried)
	next := make(chan mutant)
	var workers sync.WaitGroup
	for i := range parallel {
		own := filepath.Join(dir, strconv.Itoa(i))
		workers.Go(func() {
			for m := range next {
				began, o := time.Now(), outcome{name: m.name}
				o.killed, o.why, o.err = m.try(own, timeout)
				o.took = time.Since(began)
				tried <- o
			}
		})
	}
	for _, m := range all {
		next <- m
	}
	close(next)
	workers.Wait()
}

// allFaults returns the faults of the list and the repetitions. Each name must be there once.
func allFaults() (all []mutant, err error) {
	named := map[string]mutant{}
	for _, m := range slices.Concat(topics...) {
		if _, twice := named[m.name]; twice {
			return nil, fmt.Errorf("two faults have the name %q", m.name)
		}
		named[m.name] = m
		all = append(all, m)
	}
	for _, r := range repetitions {
		m, ok := named[r.fault]
		if !ok {
			return nil, fmt.Errorf("%s repeats the fault %q, which is not in the list", r.name, r.fault)
		}
		m.name, m.tests = r.name, r.tests
		all = append(all, m)
	}
	return all, nil
}

// runGo runs a go command that sees the tree with the fault, and returns its output. The overlay is in the environment,
// so it also holds for go commands that tests start. failure is the error of the command.
func (m mutant) runGo(ctx context.Context, dir string, args ...string) (out string, failure, err error) {
	name, faulty, err := m.apply(".")
	if err != nil {
		return "", nil, err
	}
	sound, err := filepath.Abs(name)
	if err != nil {
		return "", nil, err
	}
	instead, list := filepath.Join(dir, "faulty"), filepath.Join(dir, "overlay.json")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {sound: instead}})
	err = errors.Join(err, os.MkdirAll(dir, 0o700), os.WriteFile(instead, []byte(faulty), 0o600),
		os.WriteFile(list, overlay, 0o600))
	if err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	// With the profile of cmd/agora, each fault would have almost all packages compiled once more.
	cmd.Env = append(os.Environ(), fmt.Sprintf("GOFLAGS=%s -pgo=off '-overlay=%s'", os.Getenv("GOFLAGS"), list))
	cmd.WaitDelay = 5 * time.Second
	text, failure := cmd.CombinedOutput()
	return string(text), failure, nil
}

// build compiles the package with the fault.
func (m mutant) build(dir string) error {
	folder, _, _ := strings.Cut(m.in, " ")
	if strings.HasSuffix(folder, ".sql") {
		folder = path.Dir(folder)
	}
	out, failure, err := m.runGo(context.Background(), dir, "build", "-o", os.DevNull, "./"+folder)
	if failure != nil {
		err = fmt.Errorf("%s: it does not compile: %w\n%s", m.name, failure, out)
	}
	return err
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// try runs the tests of m with the fault. why is the name of the first test that has failed.
func (m mutant) try(dir string, timeout time.Duration) (killed bool, why string, err error) {
	args := append([]string{"test", "-vet=off", "-failfast", "-timeout", timeout.String()}, strings.Fields(m.tests)...)
	ctx, cancel := context.WithTimeout(context.Background(), timeout+time.Minute)
	defer cancel()
	out, failure, err := m.runGo(ctx, dir, args...)
	switch {
	case err != nil || failure == nil:
		return false, "", err
	case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
		return false, "", fmt.Errorf("%s: it does not compile:\n%s", m.name, out)
	case ctx.Err() != nil || strings.Contains(out, "panic: test timed out"):
		return true, "(the tests do not end)", nil
	default:
		for _, found := range failed.FindAllStringSubmatch(out, -1) {
			why = found[1] // the innermost comes last
		}
		return true, why, nil
	}
}
