//go:build unix

package recipes

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long one block of commands may take, or a line of output may be awaited. The first build of a Go
// program takes longest.
const patience = 3 * time.Minute

// output is what a program prints.
type output struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{} // gets a value after each change, unless it has one
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.changed <- struct{}{}:
	default:
	}
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return unseen.ReplaceAllString(strings.ReplaceAll(o.text.String(), "\r\n", "\n"), "")
}

// unseen matches what a person at a terminal does not see: what sets colours and modes, and what \r lets other text
// replace.
var unseen = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]|[^\n]*\r")

// terminal is a shell that runs beside the test, in its own session.
type terminal struct {
	cmd      *exec.Cmd
	keyboard *os.File // the other side of the pseudo-terminal; nil: there is none, the shell runs a script
	output   output
	ended    chan struct{} // closed when the shell has ended
	err      error         // of cmd.Wait, after ended is closed
}

// start starts a shell that runs a script. files are its file descriptors from 3.
func start(t *testing.T, folder string, environment []string, script string, files ...*os.File) *terminal {
	t.Helper()
	term := &terminal{cmd: exec.Command("bash", "-euo", "pipefail", "-c", script), ended: make(chan struct{}),
		output: output{changed: make(chan struct{}, 1)}}
	term.cmd.Dir, term.cmd.Env, term.cmd.ExtraFiles = folder, environment, files
	term.cmd.Stdout, term.cmd.Stderr = &term.output, &term.output
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	term.cmd.WaitDelay = 10 * time.Second
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(term.ended)
		term.err = term.cmd.Wait()
	}()
	t.Cleanup(func() { term.stop(syscall.SIGKILL) })
	return term
}

// stop sends a signal to the shell and everything that it has started, and waits until the shell has ended. A
// pseudo-terminal is closed instead, as a person closes a window: the kernel sends SIGHUP then.
func (term *terminal) stop(signal syscall.Signal) {
	if term.keyboard != nil {
		_ = term.keyboard.Close()
	} else {
		_ = syscall.Kill(-term.cmd.Process.Pid, signal) // it fails if they have ended
	}
	select {
	case <-term.ended:
	case <-time.After(time.Minute):
		_ = syscall.Kill(-term.cmd.Process.Pid, syscall.SIGKILL)
		<-term.ended
	}
}

// await waits until the output has all lines that the docs show.
func (term *terminal) await(t *testing.T, shown string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		missing := missingLine(term.output.String(), shown)
		if missing == "" {
			return
		}
		select {
		case <-term.output.changed:
		case <-term.ended:
			if missing := missingLine(term.output.String(), shown); missing != "" {
				t.Fatalf("ended with %v, and has not printed %q, but:\n%s", term.err, missing, term.output.String())
			}
		case <-deadline:
			t.Fatalf("has not printed %q, but:\n%s", missing, term.output.String())
		}
	}
}

// missingLine returns the first line of shown that text does not have after the lines before it, or "".
func missingLine(text, shown string) string {
	lines := strings.Split(text, "\n")
	for want := range strings.Lines(shown) {
		want = strings.TrimRight(want, "\n")
		for len(lines) > 0 && !matches(lines[0], want) {
			lines = lines[1:]
		}
		if len(lines) == 0 {
			return want
		}
		lines = lines[1:]
	}
	return ""
}

// matches reports whether a line is the one that is shown, where … stands for any text.
func matches(line, shown string) bool {
	parts := strings.Split(shown, "…")
	if !strings.HasPrefix(line, parts[0]) {
		return false
	}
	line = line[len(parts[0]):]
	for i, part := range parts[1:] {
		if i == len(parts)-2 {
			return strings.HasSuffix(line, part)
		}
		_, after, found := strings.Cut(line, part)
		if !found {
			return false
		}
		line = after
	}
	return line == ""
}

// shell is the reader's own terminal: one shell, to which blocks of commands are given one after the other.
type shell struct {
	*terminal
	folder string // for the scripts and their outputs
	steps  int
	next   *os.File // takes the names of scripts
	done   *os.File // returns a byte after each script
}

// driver runs the scripts whose names come on descriptor 3, in the same shell.
const driver = `while IFS= read -r step <&3; do . "$step" >"$step.out" 2>&1 3<&- 4>&- </dev/null; echo >&4; done`

func newShell(t *testing.T, folder string, environment []string) *shell {
	t.Helper()
	readNext, next, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	done, writeDone, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &shell{folder: t.TempDir(), next: next, done: done}
	s.terminal = start(t, folder, environment, driver, readNext, writeDone)
	for _, f := range []io.Closer{readNext, writeDone} {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { next.Close(); done.Close() })
	return s
}

// run runs commands and returns what they print. The test fails if one of them fails.
func (s *shell) run(t *testing.T, commands string) string {
	t.Helper()
	printed, ok := s.try(t, commands)
	if !ok {
		t.Fatalf("a command fails, or takes too long:\n%s\nThe commands:\n%s", printed, commands)
	}
	return printed
}

// try is run, but reports whether the commands have succeeded. If one has failed, the shell has ended.
func (s *shell) try(t *testing.T, commands string) (printed string, ok bool) {
	t.Helper()
	s.steps++
	step := filepath.Join(s.folder, fmt.Sprint("step", s.steps))
	if err := os.WriteFile(step, []byte(commands), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(s.next, step); err != nil {
		t.Fatal(err)
	}
	if err := s.done.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	_, ended := s.done.Read(make([]byte, 1)) // io.EOF, or the time is over
	text, err := os.ReadFile(step + ".out")
	if err != nil {
		t.Fatal(err)
	}
	return string(text), ended == nil
}

func TestMissingLine(t *testing.T) {
	const text = "one\n{\"a\":1,\"b\":2}\nthree\n"
	for shown, want := range map[string]string{
		"one\nthree\n":        "",
		"three\none\n":        "one",
		"on\n":                "on",
		"…ne\n":               "",
		"{…\"b\":2}\n":        "",
		"{…\"b\":2\n":         "{…\"b\":2",
		"…\"a\":1…\"b\":2…\n": "",
		"…\"b\":2…\"a\":1…\n": "…\"b\":2…\"a\":1…",
		"one\n…\n…\n…\n…\n":   "…", // the text has an empty last line, and no fifth one
		"one\none\n":          "one",
	} {
		if got := missingLine(text, shown); got != want {
			t.Errorf("%q: %q is missing, want %q", shown, got, want)
		}
	}
}

// TestShell checks that the reader's shell keeps what is set, and that a block ends at the first command that fails.
func TestShell(t *testing.T) {
	s := newShell(t, t.TempDir(), nil)
	s.run(t, "A=1; f() { echo \"$A$B\"; }; mkdir sub; cd sub\n")
	if got := s.run(t, "B=2\nf\nbasename \"$PWD\"\ncat\n"); got != "12\nsub\n" {
		t.Errorf("printed %q", got)
	}
	if out, ok := s.try(t, "echo before\nfalse\necho after\n"); ok || out != "before\n" {
		t.Errorf("a command that fails: %v, %q", ok, out)
	}
}
