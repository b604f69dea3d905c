package main

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
)

// served is a relay that runs in this process.
type served struct {
	relay, hub string            // URLs; hub is the URL of the hub's separate listener, if it has one
	printed    map[string]string // the values of other lines that it has printed, by their beginning
	log        *logText
	stop       func()
}

// logText is a log that can be read while a relay writes it.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// await waits until the log has text, and returns the log.
func (l *logText) await(t *testing.T, text string) string {
	t.Helper()
	return l.awaitAfter(t, 0, text)
}

// awaitAfter is await without the first bytes of the log.
func (l *logText) awaitAfter(t *testing.T, first int, text string) string {
	t.Helper()
	for range 1000 {
		if after := l.String()[first:]; strings.Contains(after, text) {
			return after
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%q is not in the log: %s", text, l.String()[first:])
	return ""
}

// startServe runs agora serve with these flags until stop is called or the test ends.
func startServe(t *testing.T, flags ...string) (s served) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	read, write := io.Pipe()
	s = served{printed: map[string]string{}, log: new(logText)}
	ended := make(chan int, 1)
	go func() {
		args := append([]string{"serve"}, flags...)
		if !slices.Contains(flags, "--addr") {
			args = append(args, "--addr", "127.0.0.1:0")
		}
		ended <- run(cli.Environment{Ctx: ctx, Stdout: write, Stderr: s.log}, args)
		write.Close()
	}()
	for lines := bufio.NewScanner(read); s.relay == "" && lines.Scan(); {
		for _, before := range []string{"hub listening on ", "metrics at ", "redirecting ", "page at ", "listening on "} {
			if value, ok := strings.CutPrefix(lines.Text(), before); ok {
				s.printed[strings.TrimSpace(before)] = value
			}
		}
		s.relay, s.hub = s.printed["listening on"], s.printed["hub listening on"]
	}
	stopped := false
	s.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if code := <-ended; code != cli.ExitOK {
			t.Errorf("agora serve ended with %d: %s", code, s.log.String())
		}
	}
	t.Cleanup(s.stop)
	if s.relay == "" {
		s.stop()
		t.FailNow()
	}
	return s
}

// call sends a request and returns the answer: its status, the headers that a client uses, and its body. fields are the
// body, and then headers and their values.
func call(t *testing.T, method, url string, fields ...string) (status int, answer string) {
	t.Helper()
	body := ""
	if len(fields) > 0 {
		body, fields = fields[0], fields[1:]
	}
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		request.Header.Set(fields[i], fields[i+1])
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		t.Fatal(err)
	}
	answer = fmt.Sprintln(response.StatusCode)
	for _, name := range []string{"Allow", "Cache-Control", "Content-Type", "Idempotent-Replay", "Referrer-Policy",
		"Www-Authenticate"} {
		if value := response.Header.Get(name); value != "" {
			answer += name + ": " + value + "\n"
		}
	}
	return response.StatusCode, answer + string(text)
}

var times = regexp.MustCompile(`("metadata":\{"timestamp":|"uptime_seconds":)("[^"]*"|\d+)`)

// withoutTimes removes from an answer of the hub what says when it was given.
func withoutTimes(answer string) string { return times.ReplaceAllString(answer, "$1") }

const card = `{"card_version":"0.3","user_culture":"en","supported_languages":["en"]}`

// registerAgent registers an agent at a hub and returns its key.
func registerAgent(t *testing.T, hub, address string) (key string) {
	t.Helper()
	status, answer := call(t, "POST", hub+"/register", `{"agent_id":"`+address+`","agent_card":`+card+`}`)
	key = regexp.MustCompile(`ca_[0-9a-f]{32}`).FindString(answer)
	if status != http.StatusCreated || key == "" {
		t.Fatalf("%s is not registered: %s", address, answer)
	}
	return key
}

// sendHello sends a message to bob from alice, whose key this is.
func sendHello(t *testing.T, hub, key, text, id string) (status int, answer string) {
	t.Helper()
	return call(t, "POST", hub+"/messages", `{"receiver_id":"bob@relay.example","envelope":{"chorus_version":"0.4",`+
		`"sender_id":"alice@relay.example","original_text":"`+text+`","sender_culture":"en"}}`,
		"Authorization", "Bearer "+key, "Idempotency-Key", id)
}

// TestGatewaysAreOff checks G-1: without its flag, the paths of a gateway answer as any unknown path of the relay.
func TestGatewaysAreOff(t *testing.T) {
	s := startServe(t, "--data", filepath.Join(t.TempDir(), "data"))
	_, unknown := call(t, "GET", s.relay+"/nothing")
	if !strings.HasPrefix(unknown, "404\n") || !strings.Contains(unknown, `"error":"NOT_FOUND"`) {
		t.Fatalf("an unknown path: %s", unknown)
	}
	for _, path := range []string{"/hub", "/hub/", "/hub/health", "/hub/agents", "/.well-known/chorus.json", "/channel",
		"/channel/channels/x", "/channel/inboxes", "/jobs", "/jobs/health", "/jobs/k/x/health"} {
		if _, answer := call(t, "GET", s.relay+path); answer != unknown {
			t.Errorf("%s: %s", path, answer)
		}
	}
}

// TestHubPrefixAndListener checks G-2: below /hub and on the hub's own listener the answers are the same. It checks G-3:
// the hub's own listener serves no path of the relay.
func TestHubPrefixAndListener(t *testing.T) {
	s := startServe(t, "--data", filepath.Join(t.TempDir(), "data"), "--public-url", "https://relay.example", "--hub",
		"--hub-addr", "127.0.0.1:0")
	key := registerAgent(t, s.hub, "alice@relay.example")
	registerAgent(t, s.relay+"/hub", "bob@relay.example")
	for _, test := range []struct {
		method, path string
		fields       []string
	}{
		{"GET", "/", nil}, {"GET", "/health", nil}, {"GET", "/agents", nil}, {"GET", "/agents/alice@relay.example", nil},
		{"GET", "/agents/alice", nil}, {"GET", "/agents/nobody", nil}, {"GET", "/discover", nil}, {"GET", "/skill", nil},
		{"GET", "/discover", []string{"", "Authorization", "Bearer " + key}}, {"GET", "/discover?culture=!", nil},
		{"GET", "/invite/bob", []string{"", "Accept", "application/json"}}, {"GET", "/invite/bob", nil},
		{"GET", "/.well-known/chorus.json", nil}, {"GET", "/agent/messages", nil}, {"DELETE", "/agents", nil},
		{"GET", "/agent/messages", []string{"", "Authorization", "Bearer " + key}}, {"GET", "/nothing", nil},
		{"POST", "/register", []string{"{"}}, {"POST", "/messages", []string{"{}"}}, {"POST", "/register", []string{
			`{"agent_id":"bob@relay.example","agent_card":` + card + `}`}},
		{"POST", "/register", []string{strings.Repeat(" ", 65_537)}}, {"POST", "/register", []string{"{}", "Content-Encoding", "gzip"}},
	} {
		_, prefixed := call(t, test.method, s.relay+"/hub"+test.path, test.fields...)
		_, own := call(t, test.method, s.hub+test.path, test.fields...)
		if withoutTimes(prefixed) != withoutTimes(own) {
			t.Errorf("%s %s: below /hub %s\non the own listener %s", test.method, test.path, prefixed, own)
		}
	}
	for _, request := range []string{"GET /events", "POST /events", "GET /threads/t", "GET /.well-known/agora.json", "POST /seed",
		"GET /v1/messages", "POST /v1/messages", "GET /v1/agents", "GET /hub/health", "GET /hub/.well-known/chorus.json"} {
		method, path, _ := strings.Cut(request, " ")
		status, answer := call(t, method, s.hub+path)
		if status != http.StatusNotFound || !strings.Contains(answer, `"code":"ERR_NOT_FOUND"`) {
			t.Errorf("%s on the hub's own listener: %s", request, answer)
		}
	}
}

// TestServedBackup checks G-29: a served backup answers as the original did. It checks G-30: it gives no id that the
// original has given after the backup. It checks G-21: it still knows the answers of requests with an Idempotency-Key.
func TestServedBackup(t *testing.T) {
	data, backup := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "backup")
	// Without limits, because the relay charges the time that its work takes, which is long on a busy machine.
	flags := []string{"--public-url", "https://relay.example", "--post-rate-ip", "0", "--read-rate-ip", "0", "--hub", "--data"}
	s := startServe(t, append(flags, data)...)
	alice, bob := registerAgent(t, s.relay+"/hub", "alice@relay.example"), registerAgent(t, s.relay+"/hub", "bob@relay.example")
	operator, err := os.ReadFile(filepath.Join(data, datafolder.OperatorKey))
	if err != nil {
		t.Fatal(err)
	}
	asOperator := "Bearer " + strings.TrimSpace(string(operator))
	_, first := sendHello(t, s.relay+"/hub", alice, "one", "1")
	status, answer := call(t, "POST", s.relay+"/hub/agents",
		`{"agent_id":"carol@relay.example","endpoint":"https://carol.example/secret"}`, "Authorization", asOperator)
	if status != http.StatusCreated {
		t.Fatalf("the operator registers an agent: %s", answer)
	}
	// answers are what the hub answers to some reads.
	answers := func(s served) (all []string) {
		for _, caller := range []string{"Bearer " + alice, "Bearer " + bob, asOperator, "Bearer x", ""} {
			for _, path := range []string{"/agents", "/agents/alice@relay.example", "/agents/carol@relay.example", "/discover",
				"/agent/messages", "/.well-known/chorus.json", "/skill", "/invite/bob@relay.example", "/health"} {
				_, answer := call(t, "GET", s.relay+"/hub"+path, "", "Authorization", caller)
				all = append(all, "GET "+path+" "+withoutTimes(answer))
			}
		}
		return all
	}
	answers(s) // hands the message out, which changes its state
	before := answers(s)
	if code, output := runAgora(t.Context(), "backup", "--data", data, backup); code != cli.ExitOK {
		t.Fatal(output)
	}
	for n := range 3 {
		sendHello(t, s.relay+"/hub", alice, "later", fmt.Sprint("later", n))
	}
	given := newestMessage(t, s, bob)
	s.stop()

	s = startServe(t, append(flags, backup)...)
	for i, answer := range answers(s) {
		if answer != before[i] {
			t.Errorf("the original answers %s\nthe backup %s", before[i], answer)
		}
	}
	_, again := sendHello(t, s.relay+"/hub", alice, "one", "1")
	if again != strings.Replace(first, "Referrer-Policy", "Idempotent-Replay: true\nReferrer-Policy", 1) {
		t.Errorf("the first request was answered with %s\nits repeat with %s", first, again)
	}
	if status, answer := sendHello(t, s.relay+"/hub", alice, "two", "1"); status != http.StatusConflict { // G-22
		t.Errorf("another body with the same Idempotency-Key: %s", answer)
	}
	sendHello(t, s.relay+"/hub", alice, "in the backup", "later0")
	if n := newestMessage(t, s, bob); n <= given || n <= 1_000_000 {
		t.Errorf("the original gave ids up to %d, and the backup gives %d", given, n)
	}
	s.stop()
	if code, output := runAgora(t.Context(), "check", "--data", backup); code != cli.ExitOK {
		t.Error(output)
	}
}

// newestMessage returns the highest id in the history of an agent.
func newestMessage(t *testing.T, s served, key string) (newest int64) {
	t.Helper()
	_, answer := call(t, "GET", s.relay+"/hub/agent/messages", "", "Authorization", "Bearer "+key)
	var history struct {
		Data []struct {
			ID int64 `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(answer[strings.Index(answer, "{"):]), &history); err != nil {
		t.Fatal(err)
	}
	for _, m := range history.Data {
		newest = max(newest, m.ID)
	}
	return newest
}

// TestCheckReadsGatewayTables checks G-28 for the command: agora check reports a changed row of the shared tables and of
// the hub's.
func TestCheckReadsGatewayTables(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	s := startServe(t, "--hub", "--data", data)
	registerAgent(t, s.relay+"/hub", "alice@relay.example")
	s.stop()
	if code, output := runAgora(t.Context(), "check", "--data", data); code != cli.ExitOK {
		t.Fatal(output)
	}
	db, err := sql.Open("sqlite", filepath.Join(data, datafolder.Database))
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"gate_counter SET value = value + 1", "hub_agent SET registered = registered + 1"} {
		if _, err := db.ExecContext(t.Context(), "UPDATE "+table); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	code, output := runAgora(t.Context(), "check", "--data", data)
	if code != cli.ExitFailed || !strings.Contains(output, "gate_counter") || !strings.Contains(output, "hub_agent") {
		t.Errorf("%d: %s", code, output)
	}
}
