package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// startHub starts agora serve --hub and returns the URL of the hub.
func startHub(t *testing.T) string {
	t.Helper()
	serve := exec.Command("agora", "serve", "--hub", "--hub-name", "relay.example", "--addr", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "data"))
	serve.Stderr = new(bytes.Buffer)
	stdout, err := serve.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = serve.Process.Kill()
		_ = serve.Wait()
	})
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if url, ok := strings.CutPrefix(lines.Text(), "listening on "); ok {
			return url + "/hub"
		}
	}
	t.Fatalf("the hub did not start: %s", serve.Stderr)
	return ""
}

// killer is a proxy in front of a hub. It kills a command of agora when the command has come to a chosen point.
type killer struct {
	t     *testing.T
	hub   string
	url   string
	proxy *httptest.Server

	mu     sync.Mutex
	passed int         // points that the command has passed
	last   int         // the point at which it is killed
	victim *os.Process // nil: no command runs
	log    []string    // the requests of the command that were passed on to the hub
}

func newKiller(t *testing.T) *killer {
	k := &killer{t: t, hub: startHub(t)}
	k.proxy = httptest.NewServer(k)
	t.Cleanup(func() {
		k.proxy.CloseClientConnections()
		k.proxy.Close()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	k.url = k.proxy.URL
	return k
}

// point is called at each point: before and after a request reaches the hub, and with each part of an answer. It
// reports whether it has killed the command.
func (k *killer) point() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.passed++; k.passed == k.last && k.victim != nil {
		time.Sleep(time.Duration(rand.IntN(4000)) * time.Microsecond) // what the command does meanwhile is cut off somewhere
		_ = k.victim.Kill()
		return true
	}
	return false
}

func (k *killer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if k.point() {
		return // the request does not reach the hub
	}
	request, err := http.NewRequestWithContext(r.Context(), r.Method, k.hub+r.URL.RequestURI(), r.Body)
	if err != nil {
		k.t.Error(err)
		return
	}
	request.Header = r.Header.Clone()
	k.mu.Lock()
	k.log = append(k.log, r.Method+" "+r.URL.Path)
	k.mu.Unlock()
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return // the command was killed before the hub has answered
	}
	defer response.Body.Close()
	k.point()
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(response.StatusCode)
	for part := make([]byte, 4096); ; {
		n, err := response.Body.Read(part)
		if _, failed := w.Write(part[:n]); err != nil || failed != nil || http.NewResponseController(w).Flush() != nil {
			break
		}
		k.point()
	}
	k.point()
}

// run runs a command and kills it at a point; 0: it is not killed. It returns the output, how many points the command
// has passed, and the requests that were passed on.
func (k *killer) run(point int, args ...string) (stdout string, passed int, requests []string) {
	k.t.Helper()
	command := exec.Command("agora", append([]string{"hub"}, args...)...)
	var out, problems bytes.Buffer
	command.Stdout, command.Stderr = &out, &problems
	k.mu.Lock()
	if err := command.Start(); err != nil {
		k.t.Fatal(err)
	}
	k.passed, k.last, k.victim, k.log = 0, point, command.Process, nil
	k.mu.Unlock()
	err := command.Wait()
	k.proxy.CloseClientConnections() // waits until the requests of a killed command have ended
	k.mu.Lock()
	defer k.mu.Unlock()
	k.victim = nil
	if err != nil && (point == 0 || k.passed < point) {
		k.t.Logf("agora hub %q: %v, %s", args, err, problems.String())
	}
	return out.String(), k.passed, k.log
}

// call sends a request to the hub with the key of an agent, and returns the data of the answer.
func (k *killer) call(dir, method, path, body string) (data json.RawMessage) {
	k.t.Helper()
	var who struct {
		Key string `json:"api_key"`
	}
	if err := json.Unmarshal(readFile(k.t, filepath.Join(dir, "chorus-credentials.json")), &who); err != nil {
		k.t.Fatal(err)
	}
	request, err := http.NewRequest(method, k.hub+path, strings.NewReader(body))
	if err != nil {
		k.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+who.Key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		k.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	var answer struct{ Data json.RawMessage }
	if err != nil || json.Unmarshal(text, &answer) != nil || response.StatusCode > 299 {
		k.t.Fatalf("%s %s: %s, %v", method, path, text, err)
	}
	return answer.Data
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// catchUp runs inbox until its state says that it has everything, and returns what it prints.
func (k *killer) catchUp(dir string) (printed string) {
	k.t.Helper()
	var rows []struct{ ID int64 }
	if err := json.Unmarshal(k.call(dir, http.MethodGet, "/agent/messages", ""), &rows); err != nil || len(rows) == 0 {
		k.t.Fatalf("no messages, %v", err)
	}
	want := fmt.Sprintf("{\"last_id\":%d}\n", rows[len(rows)-1].ID)
	for range 20 { // a slow machine may need more than one run
		out, _, _ := k.run(0, "inbox", "--timeout", "1s", "--dir", dir)
		printed += out
		if state := readFile(k.t, filepath.Join(dir, "chorus-history", ".state.json")); string(state) == want {
			return printed
		}
	}
	k.t.Errorf("the state of %s never became %s", dir, want)
	return printed
}

// checkHistory checks that an agent and the hub have the same history with a peer, to the byte: each message once, and
// whole. It returns the lines by trace_id.
func (k *killer) checkHistory(dir, me, peer string) map[string]string {
	k.t.Helper()
	var rows []struct {
		ID         int64           `json:"id"`
		Trace      string          `json:"trace_id"`
		SenderID   string          `json:"sender_id"`
		ReceiverID string          `json:"receiver_id"`
		Envelope   json.RawMessage `json:"envelope"`
		Timestamp  time.Time       `json:"timestamp"`
	}
	if err := json.Unmarshal(k.call(dir, http.MethodGet, "/agent/messages", ""), &rows); err != nil {
		k.t.Fatal(err)
	}
	history := string(readFile(k.t, filepath.Join(dir, "chorus-history", peer+".jsonl")))
	lines := map[string]string{}
	for _, row := range rows {
		direction := "sent"
		if row.SenderID != me {
			direction = "received"
		}
		line := fmt.Sprintf(`{"ts":%q,"dir":%q,"peer":%q,"envelope":%s,"id":%d,"trace_id":%q}`+"\n",
			row.Timestamp.Format("2006-01-02T15:04:05Z"), direction, peer, row.Envelope, row.ID, row.Trace)
		lines[row.Trace] = line
		if n := strings.Count("\n"+history, "\n"+line); n != 1 {
			k.t.Errorf("the history has this line %d times: %s", n, line)
		}
	}
	for line := range strings.Lines(history) {
		if json.Valid([]byte(line)) && !strings.Contains(line, `"trace_id"`) {
			k.t.Errorf("the history has a line without trace_id: %s", line)
		}
	}
	return lines
}

// register registers an agent and returns its folder.
func (k *killer) register(name string) (dir string) {
	k.t.Helper()
	dir = filepath.Join(k.t.TempDir(), name)
	if out, _, _ := k.run(0, "register", name, "--hub", k.url, "--culture", "en", "--dir", dir); !strings.Contains(out, "api_key") {
		k.t.Fatalf("register prints %q", out)
	}
	return dir
}

// H-36: register is killed at every point. The credentials are then either there and whole, or absent. They are lost
// only if the hub had registered the agent and the command had not yet read the key.
func TestKilledRegister(t *testing.T) {
	t.Parallel()
	k := newKiller(t)
	lost := 0
	for point := 1; ; point++ {
		name := fmt.Sprintf("agent%d", point)
		dir := filepath.Join(t.TempDir(), name)
		args := []string{"register", name, "--hub", k.url, "--culture", "en", "--dir", dir}
		_, passed, requests := k.run(point, args...)
		out, _, _ := k.run(0, args...)
		if out == "" {
			lost++
			if !slices.Contains(requests, "POST /register") {
				t.Errorf("killed at point %d, the agent can no longer register", point)
			}
			continue
		}
		if saved := readFile(t, filepath.Join(dir, "chorus-credentials.json")); string(saved) != out {
			t.Errorf("killed at point %d, the credentials are %q, and printed were %q", point, saved, out)
		}
		k.call(dir, http.MethodGet, "/agent/messages", "") // the key is valid
		if passed < point {
			t.Logf("%d points; the key was lost at %d of them", passed, lost)
			if passed < 4 || lost == 0 { // one point is after the hub has answered, and before the command reads it
				t.Error("too few points, or a command got the answer that it should not get")
			}
			return
		}
	}
}

// H-36: send is killed at every point. Afterwards inbox completes the history: no message that the hub has is missing,
// and none is there twice.
func TestKilledSend(t *testing.T) {
	t.Parallel()
	k := newKiller(t)
	alice, bob := k.register("alice"), k.register("bob")
	for point := 1; ; point++ {
		_, passed, _ := k.run(point, "send", "bob", fmt.Sprintf("killed at %d", point), "--dir", alice)
		if passed < point {
			if passed < 9 {
				t.Errorf("only %d points", passed)
			}
			break
		}
	}
	k.catchUp(alice)
	k.catchUp(bob)
	if sent := k.checkHistory(alice, "alice@relay.example", "bob@relay.example"); len(sent) < 4 {
		t.Errorf("only %d messages were sent", len(sent))
	}
	k.checkHistory(bob, "bob@relay.example", "alice@relay.example")
}

// H-36: inbox is killed at every point while messages come in both ways. In the end each message is in the history once
// and was printed, and is confirmed.
func TestKilledInbox(t *testing.T) {
	t.Parallel()
	k := newKiller(t)
	alice, bob := k.register("alice"), k.register("bob")
	send := func(n int) {
		k.call(alice, http.MethodPost, "/messages", fmt.Sprintf(`{"receiver_id":"bob","envelope":{"chorus_version":"0.4","sender_id":"alice@relay.example",`+
			`"original_text":"message %d %s","sender_culture":"en"}}`, n, strings.Repeat("x", rand.IntN(9000))))
	}
	printed := ""
	n := 0
	for point := 1; point <= 24; point++ {
		send(n)
		send(n + 1)
		var sending sync.WaitGroup
		sending.Go(func() {
			time.Sleep(100 * time.Millisecond) // by then the stream is usually open
			send(n + 2)
			send(n + 3)
		})
		out, _, _ := k.run(point, "inbox", "--timeout", "2s", "--count", "4", "--dir", bob)
		printed += out
		sending.Wait()
		n += 4
	}
	printed += k.catchUp(bob)
	lines := k.checkHistory(bob, "bob@relay.example", "alice@relay.example")
	if len(lines) != n {
		t.Errorf("%d messages, want %d", len(lines), n)
	}
	for _, line := range lines {
		if !strings.Contains(printed, line) {
			t.Errorf("never printed was %.300s", line)
		}
	}
	var rows []struct{ State string }
	if err := json.Unmarshal(k.call(alice, http.MethodGet, "/agent/messages", ""), &rows); err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if row.State != "delivered" {
			t.Errorf("a message is %s", row.State)
		}
	}
}
