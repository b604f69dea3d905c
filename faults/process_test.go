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

// startTime is how long a relay may take until it listens, or gives up.
const startTime = 30 * time.Second

// server is a relay on one data folder: a process at a time, started again and again. Its process ends with the test
// at the latest. start, kill and stop belong to one goroutine; address is for all.
type server struct {
	t    testing.TB
	data string
	args []string // more of agora serve
	wrap []string // a command in front of it, such as strace; nil: none

	process *process // the present or last one

	mu  sync.Mutex
	url string
	up  chan struct{} // closed while it runs and listens
}

// process is one life of a relay.
type process struct {
	*exec.Cmd
	listens chan string   // gets its URL, once
	ended   chan struct{} // closed when it has ended, and then code is set
	code    int
	stderr  tail
}

// newServer returns a relay that is not started yet, on a fresh folder.
func newServer(t testing.TB, args ...string) *server {
	t.Helper()
	return serverOn(t, filepath.Join(t.TempDir(), "data"), args...)
}

func serverOn(t testing.TB, data string, args ...string) *server {
	s := &server{t: t, data: data, args: args, up: make(chan struct{})}
	t.Cleanup(func() {
		if s.process == nil {
			return
		}
		s.kill()
		if t.Failed() {
			t.Logf("the relay's last words:\n%s", s.process.stderr.String())
		}
	})
	return s
}

// launch starts the process and does not wait for it to listen.
func (s *server) launch() error {
	line := append(append([]string{}, s.wrap...), binary, "serve", "--addr", "127.0.0.1:0", "--data", s.data)
	line = append(line, s.args...)
	p := &process{Cmd: exec.Command(line[0], line[1:]...), listens: make(chan string, 1), ended: make(chan struct{})}
	tether(p.Cmd)
	p.Stdout, p.Stderr = &urlFinder{found: p.listens}, &p.stderr
	if err := p.Start(); err != nil {
		return err
	}
	s.process = p
	go func() {
		_ = p.Wait() // what matters of it is the code
		p.code = p.ProcessState.ExitCode()
		close(p.ended)
	}()
	return nil
}

// start starts the process and waits until it listens.
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
	patience := time.NewTimer(startTime)
	defer patience.Stop()
	select {
	case url := <-s.process.listens:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.url = url
		close(s.up)
		return nil
	case <-s.process.ended:
		return fmt.Errorf("the relay ended with code %d at its start, saying %q", s.process.code, s.process.stderr.String())
	case <-patience.C:
		return fmt.Errorf("the relay does not listen after %s; it says %q", startTime, s.process.stderr.String())
	}
}

// address returns where the relay listens, waiting while it is down.
func (s *server) address(ctx context.Context) (string, error) {
	s.mu.Lock()
	up := s.up
	s.mu.Unlock()
	select {
	case <-up:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.url, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// down lets those who ask for the address wait from now on.
func (s *server) down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.url != "" {
		s.url, s.up = "", make(chan struct{})
	}
}

// kill ends the process as a crash does.
func (s *server) kill() {
	s.down()
	if err := killAll(s.process.Cmd); err != nil {
		s.t.Errorf("killing the relay: %v", err)
	}
	<-s.process.ended
}

// stop asks the process to end and returns its exit code.
func (s *server) stop() int {
	s.t.Helper()
	s.down()
	must(s.t, s.process.Process.Signal(os.Interrupt))
	s.awaitEnd(15 * time.Second)
	return s.process.code
}

func (s *server) awaitEnd(most time.Duration) {
	s.t.Helper()
	patience := time.NewTimer(most)
	defer patience.Stop()
	select {
	case <-s.process.ended:
	case <-patience.C:
		s.t.Fatalf("the relay has not ended after %s", most)
	}
}

// fails starts a relay that must refuse to run, and returns what it said. Within most it must have ended.
func (s *server) fails(most time.Duration) string {
	s.t.Helper()
	must(s.t, s.launch())
	s.awaitEnd(most)
	select {
	case <-s.process.listens:
		s.t.Error("the relay listened although it had to refuse to start")
	default:
	}
	if said := s.process.stderr.String(); s.process.code <= 0 || strings.TrimSpace(said) == "" {
		s.t.Errorf("a relay that cannot start must say so and fail; exit code %d, saying %q", s.process.code, said)
	}
	return s.process.stderr.String()
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailLength = 8 << 10

func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, p...)
	if over := len(w.text) - tailLength; over > 0 {
		w.text = w.text[over:]
	}
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.text)
}

// urlFinder looks for "listening on URL" in what a relay prints.
type urlFinder struct {
	text  bytes.Buffer
	found chan string // nil once it was found
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
