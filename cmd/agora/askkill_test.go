//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/trade"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// gate is a proxy before a relay. A test can stop it at a moment, or let it change answers.
type gate struct {
	*httptest.Server
	relay *httputil.ReverseProxy

	mu      sync.Mutex
	before  func(r *http.Request, body string) bool           // true: stop before the relay gets the request
	after   func(r *http.Request, body, answer string) bool   // true: stop before the client gets the answer
	change  func(r *http.Request, body, answer string) string // "": cut the connection
	reached chan struct{}                                     // gets a value when the gate stops
}

func newGate(t *testing.T, relay string) *gate {
	t.Helper()
	target, err := url.Parse(relay)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{relay: httputil.NewSingleHostReverseProxy(target), reached: make(chan struct{}, 100)}
	g.relay.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	g.Server = httptest.NewServer(g)
	t.Cleanup(g.Close)
	return g
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	g.mu.Lock()
	before, after, change := g.before, g.after, g.change
	g.mu.Unlock()
	if before != nil && before(r, string(body)) {
		g.stop(r)
		return
	}
	answer := httptest.NewRecorder()
	g.relay.ServeHTTP(answer, r)
	text := answer.Body.String()
	if after != nil && after(r, string(body), text) {
		g.stop(r)
		return
	}
	if change != nil {
		if text = change(r, string(body), text); text == "" {
			panic(http.ErrAbortHandler)
		}
	}
	for name, values := range answer.Header() {
		if name != "Content-Length" {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(answer.Code)
	_, _ = io.WriteString(w, text) // the client may be gone
}

// stop tells the test that the moment has come, and keeps the client waiting.
func (g *gate) stop(r *http.Request) {
	g.reached <- struct{}{}
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

func (g *gate) open() { g.set(nil, nil, nil) }

func (g *gate) set(before func(*http.Request, string) bool, after func(r *http.Request, body, answer string) bool,
	change func(r *http.Request, body, answer string) string,
) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.before, g.after, g.change = before, after, change
}

// askProcess is agora ask in its own process.
type askProcess struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr logText
}

// start runs the command at the relay with this URL.
func (a *asker) start(url string, args ...string) *askProcess {
	a.t.Helper()
	p := &askProcess{t: a.t, cmd: exec.Command("agora", append([]string{"ask", "--key", a.file, "--relay", url}, args...)...)}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	return p
}

// end waits for the end of the process. The code is -1 if a signal has ended it.
func (p *askProcess) end() asked {
	p.t.Helper()
	timer := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() }) // the test then fails by the exit code
	defer timer.Stop()
	err := p.cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		p.t.Fatal(err)
	}
	return asked{p.cmd.ProcessState.ExitCode(), p.stdout.String(), p.stderr.String()}
}

func isPost(r *http.Request, body, typ string) bool {
	return r.Method == http.MethodPost && strings.Contains(body, `"type":"`+typ+`"`)
}

// moments are the moments of agora ask at which a test ends it. state is what the command says after Ctrl-C.
var moments = []struct {
	name   string
	before func(r *http.Request, body string) bool
	after  func(r *http.Request, body, answer string) bool
	state  string
}{
	{"before the first read", func(r *http.Request, _ string) bool { return strings.HasPrefix(r.URL.Path, "/threads/") }, nil, "this run has asked nothing"},
	{"before the REQUEST", func(r *http.Request, body string) bool { return isPost(r, body, "REQUEST") }, nil, "run the same command again with --thread t1"},
	{"after the REQUEST", nil, func(r *http.Request, body, _ string) bool { return isPost(r, body, "REQUEST") }, "the request is open until"},
	{"waiting for offers", nil, func(r *http.Request, _, answer string) bool {
		return r.URL.Path == "/events" && strings.Contains(answer, `"type":"OFFER"`)
	}, "offers so far: 1"},
	{"before the ACCEPT", func(r *http.Request, body string) bool { return isPost(r, body, "ACCEPT") }, nil, "offers so far: 1"},
	{"after the ACCEPT", nil, func(r *http.Request, body, _ string) bool { return isPost(r, body, "ACCEPT") }, ""},
	{"waiting for the result", nil, func(r *http.Request, _, answer string) bool {
		return r.Method == http.MethodGet && strings.Contains(answer, `"type":"ACCEPT"`)
	}, ""},
	{"before the result arrives", nil, func(r *http.Request, _, answer string) bool {
		return r.Method == http.MethodGet && strings.Contains(answer, `"type":"RESULT"`)
	}, "the result is there"},
}

// TestAskEndsAtEveryMoment interrupts and kills agora ask at each moment, and then runs it again. There must be one
// REQUEST, one ACCEPT, and the result.
func TestAskEndsAtEveryMoment(t *testing.T) {
	s := startServe(t, "--data", filepath.Join(t.TempDir(), "data"))
	alice := newAsker(t, s.relay)
	serveAgent(t, s.relay, "echo", 0.005, client.Handler{})
	for i, m := range moments {
		for _, signal := range []os.Signal{os.Interrupt, os.Kill} {
			id := "t" + string(rune('a'+i)) + signal.String()[:1]
			t.Run(m.name+", "+signal.String(), func(t *testing.T) {
				t.Parallel()
				a := *alice
				a.t = t
				g := newGate(t, s.relay)
				g.set(m.before, m.after, nil)
				args := []string{"echo", "--params", `"hello"`, "--max-cost", "1", quickly, "--thread", id}
				p := a.start(g.URL, args...)
				<-g.reached
				g.open()
				if err := p.cmd.Process.Signal(signal); err != nil {
					t.Fatal(err)
				}
				first := p.end()
				if signal == os.Interrupt {
					first.want(t, trade.OutcomeInterrupted, "", "agora: interrupted\n")
					if !strings.Contains(first.stderr, strings.ReplaceAll(m.state, "t1", id)) {
						t.Errorf("says %q, want %q", first.stderr, m.state)
					}
				} else if first.code != -1 {
					t.Errorf("was not killed: %+v", first)
				}
				// Without the intent, if the REQUEST is there: then the command that was printed is enough.
				if len(a.sent(id, envelope.TypeRequest)) == 1 {
					again := strings.Fields(lineOf(t, first.stderr+"  agora ask --thread "+id, "  agora ask --thread "+id))
					args = append(again[2:], quickly)
				}
				a.ask(args...).want(t, trade.OutcomeResult, "\"hello\"\n", "")
				a.ask("--thread", id).want(t, trade.OutcomeResult, "\"hello\"\n", "")
				a.wantOnce(id)
			})
		}
	}
}

// patiently calls try, which says how long a command took to end. It calls it again, a few times, while that is as long
// as the command waits for an answer after Ctrl-C, because the machine may have stood still.
func patiently(t *testing.T, try func(thread string) time.Duration, check func()) {
	t.Helper()
	for attempt := range 6 {
		if try(fmt.Sprint("t", attempt)) < trade.DescribePatience {
			break
		}
	}
	check()
}

// TestAskInterruptedPost interrupts agora ask while its ACCEPT is under way. The command waits for the answer, so that it
// can say in which state the thread is.
func TestAskInterruptedPost(t *testing.T) {
	s := startServe(t, "--data", filepath.Join(t.TempDir(), "data"))
	alice, g := newAsker(t, s.relay), newGate(t, s.relay)
	working := make(chan struct{})
	serveAgent(t, s.relay, "slow", 0, client.Handler{Work: func(context.Context, client.Job) (envelope.Result, error) {
		<-working
		return envelope.Result{}, nil
	}})
	defer close(working)
	var r asked
	patiently(t, func(thread string) time.Duration {
		release := make(chan struct{})
		g.set(func(r *http.Request, body string) bool {
			if isPost(r, body, "ACCEPT") {
				g.reached <- struct{}{}
				<-release
			}
			return false
		}, nil, nil)
		p := alice.start(g.URL, "slow", "--max-cost", "1", quickly, "--thread", thread)
		<-g.reached
		began := time.Now()
		if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond) // until the process has noticed
		close(release)
		r = p.end()
		return time.Since(began)
	}, func() {
		r.want(t, trade.OutcomeInterrupted, "", "has the job, and must deliver before")
		r.want(t, trade.OutcomeInterrupted, "", "agora: accepted the offer of ")
	})
}

// TestAskSecondInterrupt checks that a second Ctrl-C ends the command at once.
func TestAskSecondInterrupt(t *testing.T) {
	s := startServe(t, "--data", filepath.Join(t.TempDir(), "data"))
	alice, g := newAsker(t, s.relay), newGate(t, s.relay)
	g.set(func(r *http.Request, body string) bool { return isPost(r, body, "REQUEST") }, nil, nil)
	var p *askProcess
	var r asked
	var took time.Duration
	patiently(t, func(thread string) time.Duration {
		p = alice.start(g.URL, "echo", "--thread", thread)
		<-g.reached
		began := time.Now()
		ended := make(chan asked, 1)
		go func() { ended <- p.end() }()
		for { // two signals that the process gets together are one
			_ = p.cmd.Process.Signal(os.Interrupt) // it may have ended
			select {
			case r = <-ended:
				took = time.Since(began)
				return took
			case <-time.After(20 * time.Millisecond):
			}
		}
	}, func() {
		status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		if !ok || status.Signal() != syscall.SIGINT || took > trade.DescribePatience {
			t.Errorf("ended with %+v after %v", r, took)
		}
	})
}

// TestAskOutlivesTheRelay restarts the relay while agora ask waits for offers and for the result, and cuts the answers
// to its ACCEPT. The command continues by itself.
func TestAskOutlivesTheRelay(t *testing.T) {
	t.Parallel()
	relay := startRelayProcess(t)
	alice := newAsker(t, relay.URL)
	g := newGate(t, relay.URL)
	accepts, bodies := 0, map[string]bool{}
	g.set(nil, nil, func(r *http.Request, body, answer string) string {
		g.mu.Lock()
		defer g.mu.Unlock()
		if isPost(r, body, "ACCEPT") {
			bodies[body] = true
			if accepts++; accepts <= cli.Attempts { // the command gives up once, and then posts the same bytes again
				return ""
			}
		}
		return answer
	})
	p := alice.start(g.URL, "echo", "--params", "7", "--max-cost", "1", quickly, "--thread", "t1")
	alice.awaitSent("t1", envelope.TypeRequest)
	relay.restart()
	working, deliver := make(chan struct{}), make(chan struct{})
	serveAgent(t, relay.URL, "echo", 0.005, client.Handler{Work: func(_ context.Context, job client.Job) (envelope.Result, error) {
		close(working)
		<-deliver
		return envelope.Result{Output: job.Request.Params}, nil
	}})
	select {
	case <-working:
	case <-time.After(time.Minute):
		t.Fatalf("the agent does not begin to work; agora ask prints %+v", p.end())
	}
	relay.restart()
	close(deliver)
	r := p.end()
	r.want(t, trade.OutcomeResult, "7\n", "will be retried")
	alice.wantOnce("t1")
	if g.mu.Lock(); accepts <= cli.Attempts || len(bodies) != 1 {
		t.Errorf("the ACCEPT was posted %d times, and signed %d times", accepts, len(bodies))
	}
	g.mu.Unlock()
}

// TestAskDistrustsTheRelay checks that a relay that lies gets neither a second ACCEPT nor a false result.
func TestAskDistrustsTheRelay(t *testing.T) {
	s := startServe(t, "--data", filepath.Join(t.TempDir(), "data"))
	alice := newAsker(t, s.relay)
	bob, _ := serveAgent(t, s.relay, "echo", 0.005, client.Handler{})
	eve := newKey(t)
	forged := func(signer didkey.Key, id string) string {
		e, err := envelope.Draft{Thread: id, Recipient: alice.key.DID(), Payload: envelope.Result{RequestID: id, Status: "success",
			Output: json.RawMessage(`"forged"`)}}.Sign(signer, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return string(e.Canonical())
	}
	run := func(id string, change func(r *http.Request, body, answer string) string) asked {
		t.Helper()
		g := newGate(t, s.relay)
		g.set(nil, nil, change)
		a := *alice
		a.url = g.URL
		r := a.ask("echo", "--params", "7", "--max-cost", "1", "--thread", id, quickly, "--timeout", "20s")
		if n := len(alice.sent(id, envelope.TypeAccept)); n != 1 {
			t.Errorf("%s: %d ACCEPTs", id, n)
		}
		return r
	}
	run("pending", func(r *http.Request, _, answer string) string {
		if strings.HasPrefix(r.URL.Path, "/threads/") {
			return strings.NewReplacer(`"state":"ACTIVE"`, `"state":"PENDING"`, `"state":"COMPLETED"`, `"state":"PENDING"`).Replace(answer)
		}
		return answer
	}).want(t, trade.OutcomeRefused, "", "claims that no offer was accepted; do not trust this relay")
	run("stranger", func(r *http.Request, _, answer string) string {
		return strings.Replace(answer, `"events":[`, `"events":[`+forged(eve, "stranger")+`,`, 1)
	}).want(t, trade.OutcomeResult, "7\n", cli.ShortDID(bob))
	run("signature", func(r *http.Request, _, answer string) string {
		false := strings.ReplaceAll(forged(eve, "signature"), string(eve.DID()), string(bob))
		return strings.Replace(answer, `"events":[`, `"events":[`+false+`,`, 1)
	}).want(t, trade.OutcomeResult, "7\n", cli.ShortDID(bob))
	hidden := run("hidden", func(r *http.Request, body, answer string) string {
		if r.Method == http.MethodGet && strings.Contains(answer, `"type":"ACCEPT"`) {
			return `{"ok":true,"thread":{"id":"hidden","client":"` + string(alice.key.DID()) + `","state":"ACTIVE","transitions":[],"offers":[]},"events":[],"cursor":"7"}`
		}
		return answer
	})
	hidden.want(t, trade.OutcomeFailed, "", "shows no ACCEPT with your signature")
}
