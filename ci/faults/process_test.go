package faults

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// startTimeout is how long a relay may take until it listens or ends.
const startTimeout = 30 * time.Second

// server is a relay with one data folder. It runs as one process at a time, and can be started again. The process is
// killed when the test ends, at the latest. start, kill and stop may be called by one goroutine only, address by any.
type server struct {
	t             testing.TB
	data          string
	args          []string // additional arguments of agora serve
	commandPrefix []string // a command that runs the relay, such as strace with its arguments; nil: none

	process *process // the current or last process

	mu    sync.Mutex
	url   string
	ready chan struct{} // closed while the relay runs and listens
}

// process is one process of a relay.
type process struct {
	*exec.Cmd
	listens chan string   // receives the relay's URL once
	ended   chan struct{} // closed when the process has ended; code is set before
	code    int
	stderr  tailBuffer
}

// newServer returns a relay with a new data folder. It is not started yet.
func newServer(t testing.TB, args ...string) *server {
	t.Helper()
	return serverOn(t, filepath.Join(t.TempDir(), "data"), args...)
}

func serverOn(t testing.TB, data string, args ...string) *server {
	s := &server{t: t, data: data, args: args, ready: make(chan struct{})}
	t.Cleanup(func() {
		if s.process == nil {
			return
		}
		s.kill()
		if t.Failed() {
			t.Logf("the end of the relay's error output:\n%s", s.process.stderr.String())
		}
	})
	return s
}

// launch starts the process. It does not wait until the relay listens.
func (s *server) launch() error {
	line := append(append([]string{}, s.commandPrefix...), binary, "serve", "--addr", "127.0.0.1:0", "--data", s.data)
	line = append(line, s.args...)
	p := &process{Cmd: exec.Command(line[0], line[1:]...), listens: make(chan string, 1), ended: make(chan struct{})}
	useProcessGroup(p.Cmd)
	p.Stdout, p.Stderr = &urlFinder{found: p.listens}, &p.stderr
	if err := p.Start(); err != nil {
		return err
	}
	s.process = p
	go func() {
		_ = p.Wait() // only the exit code matters
		p.code = p.ProcessState.ExitCode()
		close(p.ended)
	}()
	return nil
}

// start starts the process and waits until the relay listens.
func (s *server) start() {
	s.t.Helper()
	if err := s.tryStart(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) tryStart() error {
	if err := s.launch(); err != nil {
		return err
	}
	timer := time.NewTimer(startTimeout)
	defer timer.Stop()
	select {
	case url := <-s.process.listens:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.url = url
		close(s.ready)
		return nil
	case <-s.process.ended:
		return fmt.Errorf("the relay ended during its start with exit code %d and the output %q", s.process.code,
			s.process.stderr.String())
	case <-timer.C:
		return fmt.Errorf("the relay does not listen after %s; its output is %q", startTimeout,
			s.process.stderr.String())
	}
}

// address returns the URL at which the relay listens. While the relay is down, address waits.
func (s *server) address(ctx context.Context) (string, error) {
	s.mu.Lock()
	ready := s.ready
	s.mu.Unlock()
	select {
	case <-ready:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.url, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// down makes calls of address wait from now on.
func (s *server) down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.url != "" {
		s.url, s.ready = "", make(chan struct{})
	}
}

// kill kills the process, like a crash.
func (s *server) kill() {
	s.down()
	if err := killGroup(s.process.Cmd); err != nil {
		s.t.Errorf("cannot kill the relay: %v", err)
	}
	<-s.process.ended
}

// stop interrupts the process, waits until it has ended, and returns its exit code.
func (s *server) stop() int {
	s.t.Helper()
	s.down()
	must(s.t, s.process.Process.Signal(os.Interrupt))
	s.waitForExit(15 * time.Second)
	return s.process.code
}

func (s *server) waitForExit(timeout time.Duration) {
	s.t.Helper()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-s.process.ended:
	case <-timer.C:
		s.t.Fatalf("the relay is still running after %s", timeout)
	}
}

// mustFailToStart starts a relay that must refuse to run, and returns its error output. The relay must end within
// startTimeout.
func (s *server) mustFailToStart() string {
	s.t.Helper()
	must(s.t, s.launch())
	s.waitForExit(startTimeout)
	select {
	case <-s.process.listens:
		s.t.Error("the relay listens, but it must refuse to start")
	default:
	}
	if output := s.process.stderr.String(); s.process.code <= 0 || strings.TrimSpace(output) == "" {
		s.t.Errorf("a relay that cannot start must print an error and end with an exit code above 0; "+
			"it ended with %d and the output %q", s.process.code, output)
	}
	return s.process.stderr.String()
}

// tailBuffer keeps the last 8 KiB that are written to it.
type tailBuffer struct {
	mu   sync.Mutex
	text []byte
}

const tailLength = 8 << 10

func (w *tailBuffer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, p...)
	if over := len(w.text) - tailLength; over > 0 {
		w.text = w.text[over:]
	}
	return len(p), nil
}

func (w *tailBuffer) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.text)
}

// urlFinder finds "listening on URL" in the output of a relay.
type urlFinder struct {
	text  bytes.Buffer
	found chan string // receives the URL; nil after that
}

func (f *urlFinder) Write(p []byte) (int, error) {
	f.text.Write(p)
	_, rest, ok := strings.Cut(f.text.String(), "listening on ")
	if url, _, whole := strings.Cut(rest, "\n"); ok && whole && f.found != nil {
		f.found <- url
		f.found = nil
	}
	return len(p), nil
}
