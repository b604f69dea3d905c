package main

import (
	"bufio"
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

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// relayProcess is a relay in its own process.
type relayProcess struct {
	t         *testing.T
	cmd       *exec.Cmd
	data, URL string
}

func startRelayProcess(t *testing.T) *relayProcess {
	t.Helper()
	r := &relayProcess{t: t, data: filepath.Join(t.TempDir(), "data")}
	r.start("127.0.0.1:0")
	t.Cleanup(r.kill)
	return r
}

func (r *relayProcess) start(address string) {
	r.t.Helper()
	r.cmd = exec.Command("agora", "serve", "--addr", address, "--data", r.data)
	stdout, err := r.cmd.StdoutPipe()
	if err == nil {
		err = r.cmd.Start()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if at, ok := strings.CutPrefix(lines.Text(), "listening on "); ok {
			r.URL = at
			return
		}
	}
	r.t.Fatal("the relay does not start")
}

func (r *relayProcess) kill() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait() // it was killed
}

// restart kills the relay, and starts it again at the same address.
func (r *relayProcess) restart() {
	r.kill()
	r.start(strings.TrimPrefix(r.URL, "http://"))
}

// mcpProcess is a session with agora mcp in its own process.
type mcpProcess struct {
	t       *testing.T
	key     string
	cmd     *exec.Cmd
	session *mcp.ClientSession
}

func startMCP(t *testing.T, key string, relays ...string) *mcpProcess {
	t.Helper()
	args := []string{"mcp", "--key", key}
	for _, relay := range relays {
		args = append(args, "--relay", relay)
	}
	p := &mcpProcess{t: t, key: key, cmd: exec.Command("agora", args...)}
	var err error
	p.session, err = mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(),
		&mcp.CommandTransport{Command: p.cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.session.Close() }) // the test may have killed the process
	return p
}

func (p *mcpProcess) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.session.Close() // the process was killed
}

// try calls a tool and decodes the structured answer into out, unless out is nil. The error says what the tool said.
func (p *mcpProcess) try(tool string, args map[string]any, out any) error {
	result, err := p.session.CallTool(p.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return err
	}
	if result.IsError {
		return fmt.Errorf("%s: %s", tool, result.Content[0].(*mcp.TextContent).Text)
	}
	text, err := json.Marshal(result.StructuredContent)
	if err == nil && out != nil {
		err = json.Unmarshal(text, out)
	}
	return err
}

func (p *mcpProcess) call(tool string, args map[string]any, out any) {
	p.t.Helper()
	if err := p.try(tool, args, out); err != nil {
		p.t.Fatalf("%s %v: %v", tool, args, err)
	}
}

// limits runs agora mcp limits and returns what is reserved.
func limits(t *testing.T, key string, flags ...string) (reserved float64) {
	t.Helper()
	if _, err := didkey.LoadOrCreate(key); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	code := run(cli.Environment{Ctx: t.Context(), Stdout: &stdout, Stderr: &stderr}, append([]string{"mcp", "limits", "--key", key}, flags...))
	var answer struct {
		Reserved float64 `json:"reserved_usd"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &answer); err != nil || code != cli.ExitOK {
		t.Fatalf("agora mcp limits ended with %d: %s%s", code, stdout.String(), stderr.String())
	}
	return answer.Reserved
}

// TestMCPLimitsNeedAKey checks that a mistyped name does not create a key.
func TestMCPLimitsNeedAKey(t *testing.T) {
	key := filepath.Join(t.TempDir(), "typo.key")
	code, output := runAgora(t.Context(), "mcp", "limits", "--key", key, "--per-job", "1")
	if _, err := os.Stat(key); code == cli.ExitOK || !strings.Contains(output, "agora keygen "+key) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ended with %d: %s; the key: %v", code, output, err)
	}
}

type askedView struct {
	Thread, State string
	Offers        []struct{ Offer string }
	Result        *struct {
		Text string `json:"untrusted_text"`
	}
}

type nextJobView struct {
	Waiting        bool
	Thread, Client string
	ThreadID       struct {
		Text string `json:"untrusted_text"`
	} `json:"thread_id"`
}

// acceptHolder passes requests on to a relay, except ACCEPTs while hold is set: it tells held of them, and never
// answers.
type acceptHolder struct {
	*httputil.ReverseProxy
	mu   sync.Mutex
	hold bool
	held chan struct{}
}

func (h *acceptHolder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	h.mu.Lock()
	hold := h.hold && bytes.Contains(body, []byte(`"type":"ACCEPT"`))
	h.mu.Unlock()
	if hold {
		h.held <- struct{}{}
		<-r.Context().Done()
		return
	}
	h.ReverseProxy.ServeHTTP(w, r)
}

func (h *acceptHolder) set(hold bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hold = hold
}

// TestMCPKilled kills the hirer between the reservation and the ACCEPT, and the worker and the relay between the ACCEPT
// and the RESULT. Nothing may be lost, and nothing spent twice.
func TestMCPKilled(t *testing.T) {
	t.Parallel()
	relay := startRelayProcess(t)
	target, err := url.Parse(relay.URL)
	if err != nil {
		t.Fatal(err)
	}
	between := &acceptHolder{ReverseProxy: httputil.NewSingleHostReverseProxy(target), held: make(chan struct{}, 1)}
	between.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	front := httptest.NewServer(between)
	defer front.Close()
	folder := t.TempDir()
	aliceKey, bobKey := filepath.Join(folder, "alice.key"), filepath.Join(folder, "bob.key")
	limits(t, aliceKey, "--per-job", "0.5", "--per-day", "0.6")
	alice, bob := startMCP(t, aliceKey, front.URL), startMCP(t, bobKey, relay.URL)
	bob.call("offer_work", map[string]any{"name": "Bob", "services": []any{map[string]any{"intent": "echo", "price_usd": 0.5}}}, nil)
	ask := func() (v askedView) {
		waited := make(chan error, 1)
		go func() { waited <- bob.try("next_job", map[string]any{"wait_seconds": 3}, nil) }()
		alice.call("ask", map[string]any{"intent": "echo", "input": "hello", "wait_seconds": 30}, &v)
		if err := <-waited; err != nil {
			t.Fatal(err)
		}
		if len(v.Offers) != 1 {
			t.Fatalf("asked: %+v", v)
		}
		return v
	}
	first, second := ask(), ask()
	accept := func(v askedView) map[string]any {
		return map[string]any{"thread": v.Thread, "offer": v.Offers[0].Offer, "wait_seconds": 0}
	}
	between.set(true)
	ended := make(chan error, 1)
	go func() { ended <- alice.try("accept_offer", accept(first), nil) }()
	<-between.held
	alice.kill()
	if err := <-ended; err == nil {
		t.Error("accept_offer succeeds in a process that was killed")
	}
	between.set(false)
	if got := limits(t, aliceKey); got != 0.5 {
		t.Errorf("after the kill %v USD are reserved", got)
	}
	alice = startMCP(t, aliceKey, front.URL)
	if err := alice.try("accept_offer", accept(second), nil); err == nil || !strings.Contains(err.Error(), "the limit of a day") {
		t.Errorf("another offer: %v", err)
	}
	alice.call("accept_offer", accept(first), nil)
	if got := limits(t, aliceKey); got != 0.5 {
		t.Errorf("after the second try %v USD are reserved", got)
	}

	var job, again nextJobView
	bob.call("next_job", map[string]any{"wait_seconds": 30}, &job)
	bob.kill()
	relay.restart()
	bob = startMCP(t, bobKey, relay.URL)
	bob.call("next_job", map[string]any{"wait_seconds": 30}, &again)
	if job.ThreadID.Text != first.Thread || again != job {
		t.Errorf("the job is %+v, and after the kill %+v", job, again)
	}
	bob.call("deliver", map[string]any{"thread": again.Thread, "client": again.Client, "output": "HELLO"}, nil)
	var done askedView
	alice.call("follow_up", map[string]any{"thread": first.Thread, "wait_seconds": 30}, &done)
	if done.State != "done" || !strings.Contains(done.Result.Text, "HELLO") {
		t.Errorf("done: %+v", done)
	}
}

// TestMCPSeveral hires and works over two relays, of which the first dies before the job and comes back with the last
// message. An agent announces itself at all of them (RELAYS R-10). Only one process can take jobs with a key.
func TestMCPSeveral(t *testing.T) {
	t.Parallel()
	a, b := startRelayProcess(t), startRelayProcess(t)
	folder := t.TempDir()
	bobKey := filepath.Join(folder, "bob.key")
	alice, bob := startMCP(t, filepath.Join(folder, "alice.key"), a.URL, b.URL), startMCP(t, bobKey, a.URL, b.URL)
	service := map[string]any{"intent": "echo", "price_usd": 0}
	bob.call("offer_work", map[string]any{"name": "Bob", "services": []any{service}}, nil)
	for _, relay := range []string{a.URL, b.URL} {
		reader, err := client.New(relay, nil, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		page, err := reader.Agents(t.Context(), client.AgentQuery{Intent: "echo"})
		if err != nil || len(page.Agents) != 1 || strings.Count(string(page.Agents[0].Manifests[0].Payload), `"url"`) != 2 {
			t.Fatalf("%s has %+v, %v; want a MANIFEST with both relays", relay, page.Agents, err)
		}
	}
	a.kill()
	waited := make(chan error, 1)
	var job nextJobView
	go func() { waited <- bob.try("next_job", map[string]any{"wait_seconds": 60}, &job) }()
	var v askedView
	alice.call("ask", map[string]any{"intent": "echo", "input": "hello", "wait_seconds": 30}, &v)
	if len(v.Offers) != 1 {
		t.Fatalf("asked while the first relay is down: %+v", v)
	}
	alice.call("accept_offer", map[string]any{"thread": v.Thread, "offer": v.Offers[0].Offer, "wait_seconds": 0}, &v)
	if err := <-waited; err != nil || v.State != "working" || job.ThreadID.Text != v.Thread {
		t.Fatalf("accepted: %+v, %+v, %v", v, job, err)
	}
	second := startMCP(t, bobKey, a.URL, b.URL)
	err := second.try("next_job", map[string]any{"wait_seconds": 0}, nil)
	if err == nil || !strings.Contains(err.Error(), "uses the state file") {
		t.Errorf("a second process with the key takes jobs: %v", err)
	}
	a.start(strings.TrimPrefix(a.URL, "http://"))
	bob.call("deliver", map[string]any{"thread": job.Thread, "client": job.Client, "output": "HELLO"}, nil)
	if alice.call("follow_up", map[string]any{"thread": v.Thread, "wait_seconds": 30}, &v); v.State != "done" {
		t.Errorf("delivered: %+v", v)
	}
	bob.kill()
	second.call("next_job", map[string]any{"wait_seconds": 0}, &job)
	if !job.Waiting {
		t.Errorf("after a restart of the agent the job comes again: %+v", job)
	}
}

// TestMCPRace lets two processes with one key accept offers at the same time. Together they must stay within the limits.
func TestMCPRace(t *testing.T) {
	relay := startRelayProcess(t)
	key := filepath.Join(t.TempDir(), "alice.key")
	limits(t, key, "--per-job", "0.3", "--per-day", "1")
	alice := []*mcpProcess{startMCP(t, key, relay.URL), startMCP(t, key, relay.URL)}
	eve := newKey(t)
	seller, err := client.New(relay.URL, eve, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	own, err := didkey.Load(key)
	if err != nil {
		t.Fatal(err)
	}
	var offered []askedView
	for range 6 {
		var v askedView
		alice[0].call("ask", map[string]any{"intent": "echo", "wait_seconds": 0}, &v)
		record, err := seller.Thread(t.Context(), v.Thread, own.DID())
		if err != nil {
			t.Fatal(err)
		}
		offer := envelope.Draft{Thread: v.Thread, Recipient: own.DID(),
			Payload: envelope.Offer{RequestID: v.Thread, Price: &envelope.Price{Amount: 0.3, Currency: "USD"}}}
		if _, _, err := seller.Post(t.Context(), record.Join(offer)); err != nil {
			t.Fatal(err)
		}
		alice[1].call("follow_up", map[string]any{"thread": v.Thread, "wait_seconds": 0}, &v)
		offered = append(offered, v)
	}
	var all sync.WaitGroup
	for _, p := range alice {
		for _, v := range offered {
			all.Go(func() { // most of them are refused, by the limits or because the other process was first
				_ = p.try("accept_offer", map[string]any{"thread": v.Thread, "offer": v.Offers[0].Offer, "wait_seconds": 0}, nil)
			})
		}
	}
	all.Wait()
	accepted := 0
	for _, v := range offered {
		record, err := seller.Thread(t.Context(), v.Thread, own.DID())
		if err != nil {
			t.Fatal(err)
		}
		if record.State == thread.Active {
			accepted++
		}
	}
	if got := limits(t, key); accepted != 3 || got != 0.9 {
		t.Errorf("%d offers are accepted, and %v USD reserved", accepted, got)
	}
}

// TestMCPEnds checks that agora mcp ends without an error when its standard input ends, and when it is told to, while a
// tool waits; and that it prints nothing but the protocol.
func TestMCPEnds(t *testing.T) {
	relay := startRelayProcess(t)
	const begin = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"ask","arguments":{"intent":"x","wait_seconds":600},"_meta":{"progressToken":1}}}
`
	for name, end := range map[string]func(*exec.Cmd, io.Closer) error{
		"standard input ends": func(_ *exec.Cmd, stdin io.Closer) error { return stdin.Close() },
		"terminated":          func(c *exec.Cmd, _ io.Closer) error { return c.Process.Signal(syscall.SIGTERM) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, "agora", "mcp", "--key", filepath.Join(t.TempDir(), "alice.key"), "--relay", relay.URL)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		stdin, err1 := cmd.StdinPipe()
		stdout, err2 := cmd.StdoutPipe()
		if err := errors.Join(err1, err2, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(stdin, begin); err != nil {
			t.Fatal(err)
		}
		waiting := false
		began := time.Time{}
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			var message struct{ JSONRPC, Method string }
			if err := json.Unmarshal(lines.Bytes(), &message); err != nil || message.JSONRPC != "2.0" {
				t.Errorf("%s: printed %q", name, lines.Text())
			}
			if message.Method == "notifications/progress" && !waiting {
				waiting, began = true, time.Now()
				if err := end(cmd, stdin); err != nil {
					t.Error(err)
				}
			}
		}
		if err := cmd.Wait(); err != nil || !waiting || time.Since(began) > 20*time.Second || stderr.Len() > 0 {
			t.Errorf("%s: ended with %v after %v, and printed %q", name, err, time.Since(began), stderr.String())
		}
		cancel()
	}
}

// TestMCPOverHTTP checks that agora mcp --http creates a token that only its owner can read, serves clients that have
// it, and ends when it is told to.
func TestMCPOverHTTP(t *testing.T) {
	relay := startRelayProcess(t)
	key := filepath.Join(t.TempDir(), "alice.key")
	cmd := exec.Command("agora", "mcp", "--key", key, "--relay", relay.URL, "--http", "localhost:0")
	stderr, err := cmd.StderrPipe()
	if err = errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	lines.Scan()
	_, rest, _ := strings.Cut(lines.Text(), "listening on ")
	at, _, _ := strings.Cut(rest, ";")
	token, err := os.ReadFile(key + ".token")
	if info, failed := os.Stat(key + ".token"); errors.Join(err, failed) != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the token: %v, %v", info, err)
	}
	for given, want := range map[string]bool{strings.TrimSpace(string(token)): true, "wrong": false} {
		session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.StreamableClientTransport{
			Endpoint: at, MaxRetries: -1, HTTPClient: &http.Client{Transport: bearer{"Authorization": "Bearer " + given}}}, nil)
		if (err == nil) != want {
			t.Errorf("with the token %q: %v", given, err)
		}
		if err == nil {
			if _, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "spending"}); err != nil {
				t.Error(err)
			}
			_ = session.Close() // the session may have ended
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), drain(lines), cmd.Wait()); err != nil {
		t.Errorf("ended with %v", err)
	}
}

// drain reads further lines, which should not be there.
func drain(lines *bufio.Scanner) error {
	if lines.Scan() {
		return fmt.Errorf("printed %q", lines.Text())
	}
	return lines.Err()
}
