//go:build faults && linux

package faults

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tracer is a strace process that is attached to a running relay.
type tracer struct {
	t   testing.TB
	cmd *exec.Cmd
	log string
	err tailBuffer
}

// needStrace fails the test if strace is missing. The test is not skipped, because then a failure could go unnoticed.
func needStrace(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		t.Fatalf("this test needs strace; install it: %v", err)
	}
}

// trace attaches strace with additional arguments to all threads of the relay.
func trace(t testing.TB, relay *server, args ...string) *tracer {
	t.Helper()
	needStrace(t)
	tr := &tracer{t: t, log: filepath.Join(t.TempDir(), "strace.log")}
	args = append([]string{"-f", "-y", "-o", tr.log, "-p", fmt.Sprint(relay.process.Process.Pid)}, args...)
	tr.cmd = exec.Command("strace", args...)
	tr.cmd.Stderr = &tr.err
	useProcessGroup(tr.cmd)
	must(t, tr.cmd.Start())
	t.Cleanup(func() { _ = killGroup(tr.cmd) })
	within(t, 10*time.Second, "strace is attached",
		func() bool { return strings.Contains(tr.err.String(), "attached") })
	return tr
}

// detach ends strace and returns its log. The relay keeps running.
func (tr *tracer) detach() calls {
	tr.t.Helper()
	must(tr.t, syscall.Kill(-tr.cmd.Process.Pid, syscall.SIGINT))
	_ = tr.cmd.Wait() // strace ends because of the signal
	return readCalls(tr.t, tr.log)
}

// call is a system call. strace stops a thread when it enters a call and when it leaves the call, and writes its log in
// the order of these stops. So if one call leaves at an earlier line than another call enters, it ended before the
// other call began, even in another thread.
type call struct {
	name, text       string
	enter, leave     int // lines of the log; leave is 0 if the call never returned
	failed, injected bool
}

type calls []*call

var (
	entryLine  = regexp.MustCompile(`^(\d+) +(\w+)\((.*)$`)
	resumeLine = regexp.MustCompile(`^(\d+) +<\.\.\. (\w+) resumed>(.*)$`)
)

func readCalls(t testing.TB, log string) (all calls) {
	t.Helper()
	text, err := os.ReadFile(log)
	must(t, err)
	open := map[string]*call{} // by thread
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSuffix(line, "\n")
		if m := entryLine.FindStringSubmatch(line); m != nil {
			c := &call{name: m[2], text: m[3], enter: n}
			all = append(all, c)
			if strings.HasSuffix(line, "<unfinished ...>") {
				open[m[1]] = c
			} else {
				c.end(n, m[3])
			}
		} else if m := resumeLine.FindStringSubmatch(line); m != nil && open[m[1]] != nil {
			open[m[1]].end(n, m[3])
			delete(open, m[1])
		}
	}
	return all
}

func (c *call) end(line int, text string) {
	c.leave = line
	c.failed = strings.Contains(text, " = -1 ")
	c.injected = strings.Contains(text, "(INJECTED)")
}

// isOn reports whether the call has one of these names and a file descriptor of a file whose path ends with file.
func (c *call) isOn(file string, names ...string) bool {
	for _, name := range names {
		if c.name == name {
			return strings.Contains(c.text, file+">")
		}
	}
	return false
}

func (all calls) countInjected() (n int) {
	for _, c := range all {
		if c.injected {
			n++
		}
	}
	return n
}

// TestNoConnectionGoesOut tests that the relay opens no connection, whatever addresses messages contain (SECURITY.md
// T23). It looks at the system calls. So it also notices connections to other addresses, and lookups of names that do
// not exist.
func TestNoConnectionGoesOut(t *testing.T) {
	relay := newServer(t, longTimeouts...)
	relay.start()
	tr := trace(t, relay, "-e", "trace=connect,sendto,accept4")
	postAndReadAll(t, relay, "canary.invalid")
	all := tr.detach()
	accepted := 0
	for _, c := range all {
		if c.name == "accept4" {
			accepted++
		} else {
			t.Errorf("the relay makes the system call %s(%s", c.name, c.text)
		}
	}
	if accepted == 0 {
		t.Error("strace has seen no system calls")
	}
}

// tracedLoad posts n messages from each poster, with all posters at the same time. It returns the answers.
func tracedLoad(t testing.TB, relay *server, posters, n int) (taken, refused []answer) {
	t.Helper()
	type outcome struct{ taken, refused []answer }
	done := make(chan outcome)
	to := newKey(t).DID()
	for range posters {
		key := newKey(t)
		go func() {
			var o outcome
			for range n {
				e := request(t, key, to, time.Hour, 100)
				a, err := relay.tryAsk(http.MethodPost, "/events", e.Canonical())
				switch {
				case err != nil:
					t.Errorf("a post got no answer: %v", err)
				case a.OK:
					o.taken = append(o.taken, a)
				default:
					o.refused = append(o.refused, a)
				}
			}
			done <- o
		}()
	}
	for range posters {
		o := <-done
		taken, refused = append(taken, o.taken...), append(refused, o.refused...)
	}
	return taken, refused
}
