//go:build unix

package program

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// mode is the variable that makes this program play one that is run.
const mode = "PROGRAM_TEST_MODE"

func TestMain(m *testing.M) {
	if name := os.Getenv(mode); name != "" {
		play(name)
		return
	}
	goleak.VerifyTestMain(m)
}

// play behaves as a program that is run.
func play(name string) {
	sleep := func() { time.Sleep(2 * time.Minute) } // longer than any test waits
	child := func(name string) *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), mode+"="+name)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		return cmd
	}
	ready := func() { fmt.Fprintln(os.Stderr, "ready", os.Getpid()) }
	switch name {
	case "echo":
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "deaf":
		fmt.Print("did not read")
	case "hang":
		ready()
		sleep()
	case "ignore": // SIGTERM
		signal.Ignore(syscall.SIGTERM)
		ready()
		sleep()
	case "closed": // it closes its output and continues
		_ = os.Stdout.Close()
		_ = os.Stderr.Close()
		time.Sleep(100 * time.Millisecond)
		os.Exit(4)
	case "flood":
		for part := bytes.Repeat([]byte("x"), 4096); ; {
			if _, err := os.Stdout.Write(part); err != nil {
				return
			}
		}
	case "stderr":
		for i := range 100_000 {
			fmt.Fprintf(os.Stderr, "line %d %s\n", i, strings.Repeat("y", 2000))
		}
		fmt.Print("done")
	case "exit":
		code, _ := strconv.Atoi(os.Getenv("CODE"))
		fmt.Print("partial")
		fmt.Fprint(os.Stderr, "first\nthe reason\n\n")
		os.Exit(code)
	case "abort":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		sleep()
	case "background": // its child keeps the pipes, and it ends
		_ = child("hang").Start()
		fmt.Print("done")
	case "escape": // the same, but its child leaves the group
		cmd := child("hang")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		_ = cmd.Start()
		fmt.Print("done")
	case "family": // it waits for a child that waits for a child
		_ = child("parent").Run()
	case "parent":
		_ = child("hang").Run()
	case "outer": // it runs a program, and is killed
		_, _ = Run(context.Background(), Options{Argv: []string{os.Args[0]}, Env: append(os.Environ(), mode+"=hang"), MaxOutput: 10,
			Log: func(line []byte, _ int) { fmt.Fprintf(os.Stderr, "%s\n", line) }})
	}
}

// log collects the lines of standard error.
type log struct {
	mu      sync.Mutex
	lines   []string
	leftOut int
	ready   chan int // the pids of programs that are ready
}

func newLog() *log { return &log{ready: make(chan int, 10)} }

func (l *log) add(line []byte, leftOut int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leftOut += leftOut; leftOut > 0 {
		return
	}
	l.lines = append(l.lines, string(line))
	if pid, ok := strings.CutPrefix(string(line), "ready "); ok {
		n, _ := strconv.Atoi(pid)
		l.ready <- n
	}
}

// options returns the options that run this program in a mode.
func options(t *testing.T, name string, l *log) Options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Options{Argv: []string{self}, Env: append(os.Environ(), mode+"="+name), MaxOutput: 1 << 20, Grace: 20 * time.Second, Log: l.add}
}

// gone fails the test if a process does not end.
func gone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); syscall.Kill(pid, 0) == nil && !isZombie(pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the process %d goes on", pid)
		}
	}
}

// isZombie reports whether a process has ended and was not waited for.
func isZombie(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(text), ") Z ")
}

// TestInputAndOutput checks that a program gets its whole input, and that its whole output is returned.
func TestInputAndOutput(t *testing.T) {
	for _, size := range []int{0, 1, 1 << 20} {
		o := options(t, "echo", newLog())
		o.Input = bytes.Repeat([]byte("a"), size)
		if result, err := Run(t.Context(), o); err != nil || !bytes.Equal(result.Output, o.Input) {
			t.Errorf("%d bytes: %d bytes, %v", size, len(result.Output), err)
		}
	}
	o := options(t, "deaf", newLog())
	o.Input = make([]byte, 1<<20)
	if result, err := Run(t.Context(), o); err != nil || string(result.Output) != "did not read" {
		t.Errorf("%q, %v", result.Output, err)
	}
}

// TestExit checks what is returned about programs that fail.
func TestExit(t *testing.T) {
	for _, code := range []int{0, 1, 75, 255} {
		o := options(t, "exit", newLog())
		o.Env = append(o.Env, fmt.Sprintf("CODE=%d", code))
		result, err := Run(t.Context(), o)
		exit, failed := errors.AsType[*ExitError](err)
		if failed != (code != 0) || failed && (exit.Code != code || exit.Signal != "") || string(result.Output) != "partial" ||
			string(result.LastLine) != "the reason" {
			t.Errorf("%d: %q, %q, %v", code, result.Output, result.LastLine, err)
		}
	}
	_, err := Run(t.Context(), options(t, "abort", newLog()))
	if exit, ok := errors.AsType[*ExitError](err); !ok || exit.Signal != "killed" {
		t.Errorf("a program that was killed: %v", err)
	}
	_, err = Run(t.Context(), options(t, "closed", newLog()))
	if exit, ok := errors.AsType[*ExitError](err); !ok || exit.Code != 4 {
		t.Errorf("a program that closes its output: %v", err)
	}
	for _, name := range []string{filepath.Join(t.TempDir(), "missing"), t.TempDir()} {
		_, err := Run(t.Context(), Options{Argv: []string{name}})
		if _, ok := errors.AsType[*StartError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ended, options(t, "exit", newLog())); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// TestHang checks that a program that does not end is ended, with all of its group: when its time is over, when the
// context ends, and when it must end at once.
func TestHang(t *testing.T) {
	reason := errors.New("the reason")
	for name, test := range map[string]struct {
		mode  string
		grace time.Duration
		want  error
	}{
		"timeout":           {mode: "hang", grace: time.Hour, want: ErrTimeout},
		"timeout, ignored":  {mode: "ignore", want: ErrTimeout},
		"cancel":            {"hang", time.Hour, reason},
		"cancel, ignored":   {"ignore", 0, reason},
		"cancel, a family":  {"family", time.Hour, reason},
		"killed in between": {"ignore", time.Hour, reason},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLog()
			o := options(t, test.mode, l)
			o.Grace = test.grace
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			kill := make(chan struct{})
			o.Kill = kill
			if test.want == ErrTimeout {
				o.Timeout = 700 * time.Millisecond
			}
			ended := make(chan error, 1)
			go func() {
				_, err := Run(ctx, o)
				ended <- err
			}()
			pid := 0
			select {
			case pid = <-l.ready:
			case err := <-ended: // its time was over before it was ready
				ended <- err
			}
			if test.want == reason {
				cancel(reason)
			}
			if name == "killed in between" {
				close(kill)
			}
			if err := <-ended; !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
			if pid > 0 {
				gone(t, pid)
			}
		})
	}
}

// TestFork checks that a process in the background neither delays the end nor outlives it, and that one that has left
// the group does not delay the end by more than drainTime.
func TestFork(t *testing.T) {
	for _, name := range []string{"background", "escape"} {
		l := newLog()
		began := time.Now()
		result, err := Run(t.Context(), options(t, name, l))
		if err != nil || string(result.Output) != "done" {
			t.Errorf("%s: %q, %v", name, result.Output, err)
		}
		if took := time.Since(began); took > drainTime+10*time.Second {
			t.Errorf("%s: took %v", name, took)
		}
		select {
		case pid := <-l.ready:
			if name == "escape" {
				_ = syscall.Kill(pid, syscall.SIGKILL) // nobody else does
			}
			gone(t, pid)
		default: // it was killed before it was ready
		}
	}
}

// TestLines checks that lines are passed on whole and while the program runs, that a long one is cut between characters,
// and that nothing is lost if they are taken slowly.
func TestLines(t *testing.T) {
	long := strings.Repeat("x", MaxLine-1) + strings.Repeat("ä", MaxLine)
	for input, want := range map[string][]string{
		"":           nil,
		"a\n\nb":     {"a\n", "\n", "b"},
		"a\r\nb\n":   {"a\r\n", "b\n"},
		"\xff\n\xc3": {"\xff\n", "\xc3"},
		long + "\n":  {long[:MaxLine-1], long[MaxLine-1 : 2*MaxLine-1], long[2*MaxLine-1:] + "\n"},
	} {
		o := options(t, "echo", newLog())
		var got []string
		o.Input, o.Line = []byte(input), func(line []byte) error {
			got = append(got, string(line))
			if len(got) == 1 {
				time.Sleep(drainTime + 100*time.Millisecond) // the program has ended
			}
			return nil
		}
		result, err := Run(t.Context(), o)
		if err != nil || !slices.Equal(got, want) || len(result.Output) != 0 {
			t.Errorf("%.20q: %d lines, the first is %.20q, and %q, %v", input, len(got), got, result.Output, err)
		}
	}
	o := options(t, "flood", newLog())
	o.Line = func([]byte) error { return io.ErrClosedPipe }
	if _, err := Run(t.Context(), o); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("lines that are refused: %v", err)
	}
	o.MaxOutput, o.Line = MaxLine*3, func([]byte) error { return nil }
	if _, err := Run(t.Context(), o); !errors.Is(err, ErrTooMuchOutput) {
		t.Errorf("too many lines: %v", err)
	}
}

// TestFlood checks that a program that writes too much is killed, and that one whose log is too long is not.
func TestFlood(t *testing.T) {
	o := options(t, "flood", newLog())
	o.MaxOutput = 10_000
	if result, err := Run(t.Context(), o); !errors.Is(err, ErrTooMuchOutput) || len(result.Output) != o.MaxOutput {
		t.Errorf("%d bytes, %v", len(result.Output), err)
	}
	o = options(t, "echo", newLog())
	o.Input, o.MaxOutput = []byte("12345"), 4
	for range 20 { // it may end before or after its output is read
		if _, err := Run(t.Context(), o); !errors.Is(err, ErrTooMuchOutput) {
			t.Errorf("a byte too much: %v", err)
		}
	}
	o.MaxOutput = 5
	if _, err := Run(t.Context(), o); err != nil {
		t.Errorf("as much as is allowed: %v", err)
	}
	l := newLog()
	result, err := Run(t.Context(), options(t, "stderr", l))
	if err != nil || string(result.Output) != "done" {
		t.Errorf("%q, %v", result.Output, err)
	}
	if !strings.HasPrefix(string(result.LastLine), "line 99999 y") || len(result.LastLine) > maxLine {
		t.Errorf("the last line is %q", result.LastLine)
	}
	if n := len(l.lines); n < LogLines || n > 5*LogLines || n+l.leftOut != 100_000 || len(l.lines[0]) > maxLine {
		t.Errorf("%d lines, and %d left out", n, l.leftOut)
	}
}
