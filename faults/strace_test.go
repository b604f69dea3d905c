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

// tracer is strace on a running relay.
type tracer struct {
	t   testing.TB
	cmd *exec.Cmd
	log string
	err tail
}

// needStrace fails where there is no strace: what was not looked at is not right.
func needStrace(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		t.Fatalf("these tests need strace: %v", err)
	}
}

// trace attaches strace, with more arguments, to all threads of the relay.
func trace(t testing.TB, relay *server, args ...string) *tracer {
	t.Helper()
	needStrace(t)
	tr := &tracer{t: t, log: filepath.Join(t.TempDir(), "strace.log")}
	args = append([]string{"-f", "-y", "-o", tr.log, "-p", fmt.Sprint(relay.process.Process.Pid)}, args...)
	tr.cmd = exec.Command("strace", args...)
	tr.cmd.Stderr = &tr.err
	tether(tr.cmd)
	must(t, tr.cmd.Start())
	t.Cleanup(func() { _ = killAll(tr.cmd) })
	within(t, 10*time.Second, "strace attached", func() bool { return strings.Contains(tr.err.String(), "attached") })
	return tr
}

// detach ends strace and leaves the relay running. It returns the log.
func (tr *tracer) detach() calls {
	tr.t.Helper()
	must(tr.t, syscall.Kill(-tr.cmd.Process.Pid, syscall.SIGINT))
	_ = tr.cmd.Wait() // it ends by the signal
	return readCalls(tr.t, tr.log)
}

// call is a system call. Strace stops a thread when it enters and when it leaves a call, and writes its log in the order
// of these stops; so a call that has left at a line above another's entry was over before it, whatever threads they had.
type call struct {
	name, text    string
	enter, leave  int // lines; leave is 0 if it never returned
	failed, fault bool
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
	c.fault = strings.Contains(text, "(INJECTED)")
}

// on reports whether the call has one of the names and a file whose name ends so.
func (c *call) on(file string, names ...string) bool {
	for _, name := range names {
		if c.name == name {
			return strings.Contains(c.text, file+">")
		}
	}
	return false
}

func (all calls) faults() (n int) {
	for _, c := range all {
		if c.fault {
			n++
		}
	}
	return n
}

// The relay opens no connection, whatever messages say (THREATS T23): seen from the kernel, which a name that does not
// resolve, or a listener that is not asked, could not show.
func TestNoConnectionGoesOut(t *testing.T) {
	relay := newServer(t, patient...)
	relay.start()
	tr := trace(t, relay, "-e", "trace=connect,sendto,accept4")
	swallow(t, relay, "canary.invalid")
	all := tr.detach()
	accepted := 0
	for _, c := range all {
		if c.name == "accept4" {
			accepted++
		} else {
			t.Errorf("the relay calls %s(%s", c.name, c.text)
		}
	}
	if accepted == 0 {
		t.Error("strace has seen nothing")
	}
}

// tracedLoad posts n messages from each of so many posters, and returns the ids that got a 200.
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
