// Command mutants asks whether the tests test: it puts one fault after another into a copy of the tree, runs the tests
// that should notice, and says which faults survived. It ends with an error if one did, or if one is no longer there to
// be made because the source has moved on.
//
//	go run ./ci/mutants [-run REGEXP] [-list] [-timeout 4m]
//
// The faults are in list.go. They are run one at a time, each in some seconds to a minute.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// mutant is one fault: a text of a file that stands there once, and what is put in its place.
type mutant struct {
	name  string
	file  string
	old   string
	new   string
	tests string // arguments of go test that must fail
}

func main() {
	chosen := flag.String("run", "", "only the faults whose name matches `REGEXP`")
	list := flag.Bool("list", false, "say which faults there are, and whether they can be made")
	timeout := flag.Duration("timeout", 4*time.Minute, "how long the tests of one fault may take; too long counts as noticed")
	flag.Parse()
	if err := run(*chosen, *list, *timeout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(chosen string, list bool, timeout time.Duration) error {
	match, err := regexp.Compile(chosen)
	if err != nil {
		return err
	}
	var selected []mutant
	var problems []error
	for _, m := range mutants {
		if !match.MatchString(m.name) {
			continue
		}
		if _, err := m.apply("."); err != nil {
			problems = append(problems, err)
		}
		selected = append(selected, m)
		if list {
			fmt.Printf("%-45s %s\n", m.name, m.tests)
		}
	}
	if list || len(problems) > 0 {
		return errors.Join(problems...)
	}
	if len(selected) == 0 {
		return errors.New("no fault has such a name")
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(dir, source{os.DirFS(".")}); err != nil {
		return err
	}
	survived := 0
	for _, m := range selected {
		began := time.Now()
		killed, why, err := m.try(dir, timeout)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", m.name, err))
			continue
		}
		verdict := "killed  "
		if !killed {
			verdict = "SURVIVED"
			survived++
		}
		fmt.Printf("%s %-45s %5.1fs %s\n", verdict, m.name, time.Since(began).Seconds(), why)
	}
	if survived > 0 {
		problems = append(problems, fmt.Errorf("%d of %d faults survived: no test notices them", survived, len(selected)))
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	fmt.Printf("all %d faults were noticed\n", len(selected))
	return nil
}

// apply returns the file of m in dir with the fault in it.
func (m mutant) apply(dir string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(dir, m.file))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.name, err)
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return nil, fmt.Errorf("%s: %s has the text to be changed %d times, not once; mend the list: %s", m.name, m.file, n, m.old)
	}
	return []byte(strings.Replace(string(text), m.old, m.new, 1)), nil
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// try runs the tests of m over the tree at dir with the fault in it, and takes it out again. why names the first test
// that noticed.
func (m mutant) try(dir string, timeout time.Duration) (killed bool, why string, err error) {
	path := filepath.Join(dir, m.file)
	sound, err := os.ReadFile(path)
	if err != nil {
		return false, "", err
	}
	faulty, err := m.apply(dir)
	if err != nil {
		return false, "", err
	}
	if err := os.WriteFile(path, faulty, 0o600); err != nil {
		return false, "", err
	}
	defer func() { err = errors.Join(err, os.WriteFile(path, sound, 0o600)) }()

	ctx, cancel := context.WithTimeout(context.Background(), timeout+time.Minute)
	defer cancel()
	args := append([]string{"test", "-failfast", "-timeout", timeout.String()}, strings.Fields(m.tests)...)
	test := exec.CommandContext(ctx, "go", args...)
	test.Dir, test.WaitDelay = dir, 5*time.Second
	out, failure := test.CombinedOutput()
	switch text := string(out); {
	case failure == nil:
		return false, "", nil
	case strings.Contains(text, "[build failed]") || strings.Contains(text, "[setup failed]"):
		return false, "", fmt.Errorf("it does not compile:\n%s", text)
	case ctx.Err() != nil || strings.Contains(text, "panic: test timed out"):
		return true, "(tests do not end)", nil
	default:
		for _, found := range failed.FindAllStringSubmatch(text, -1) {
			why = found[1] // the innermost comes last
		}
		return true, why, nil
	}
}
