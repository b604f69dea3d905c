package faults

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

const (
	bridgeKillRounds = 4
	bridgeMessages   = 50 // fewer than the replies of a pair in a minute
	bridgeJobs       = 50
	bridgeEnd        = 2 * time.Minute // until all is done

	bridgeAgent, bridgeSender = "worker@x", "sender@x"
	bridgeJobAgent            = "00000000-0000-4000-8000-000000000001"
)

// TestBridgeKillLoop kills a relay with a hub and a registry of jobs again and again, while a client of each sends work to an
// agent with a DID. It tests that each message is delivered and answered once, that each job is done and paid once, and that
// the agent works once for each (B-4, B-9, B-12). In the end, agora check must find nothing.
func TestBridgeKillLoop(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := l.Addr().String() // tokens have the relay's URL in them
	must(t, l.Close())
	relay := newServer(t, "--addr", address, "--hub", "--jobs", "--channel", "--hub-name", "x", "--log-level", "warn")
	relay.start()
	b := newBridge(t, "http://"+address)
	r := random(t)
	rounds := max(*roundsFlag, bridgeKillRounds)
	for range rounds {
		sleep(minUptime + time.Duration(r.Int64N(int64(maxUptime-minUptime))))
		relay.kill()
		relay.start()
	}
	b.load.Wait()
	b.audit()
	b.stop()
	if code := relay.stop(); code != 0 {
		t.Errorf("the relay ended with exit code %d", code)
	}
	if out, err := exec.Command(binary, "check", "--data", relay.data).CombinedOutput(); err != nil {
		t.Errorf("agora check: %v\n%s", err, out)
	}
}

// bridge is an agent with a DID that works for the hub and for the registry of jobs, and a client of each.
type bridge struct {
	t              testing.TB
	url            string
	key            didkey.Key
	hubKey, jobKey string
	load           sync.WaitGroup
	stop           func()

	mu   sync.Mutex
	runs map[string]int // by the text of the work
}

func newBridge(t testing.TB, url string) *bridge {
	b := &bridge{t: t, url: url, runs: map[string]int{}}
	var err error
	b.key, err = didkey.Generate()
	must(t, err)
	did := string(b.key.DID())
	var registered struct {
		Data struct {
			Key string `json:"api_key"`
		}
	}
	card := map[string]any{"card_version": "0.3", "user_culture": "en", "supported_languages": []string{"en"}}
	b.must("POST", "/hub/register", "", map[string]any{"agent_id": bridgeSender, "agent_card": card}, &registered)
	b.hubKey = registered.Data.Key
	var opened struct {
		Key string `json:"api_key"`
	}
	b.must("POST", "/jobs/accounts", "", map[string]any{"owner_id": "hirer"}, &opened)
	b.jobKey = opened.Key
	b.must("POST", "/hub/register", "signed", map[string]any{"agent_id": bridgeAgent, "agent_card": card,
		"endpoint": "agora:" + did}, nil)
	b.must("POST", "/jobs/register", "signed", map[string]any{"agent_id": bridgeJobAgent, "agent_name": "worker",
		"owner_id": did, "api_endpoint": "agora:" + did,
		"skills": []any{map[string]any{"skill_name": "upper", "cost_per_call": 0.1}}}, nil)
	b.work()
	b.load.Go(b.sendMessages)
	b.load.Go(b.hire)
	return b
}

// work runs the agent until stop is called.
func (b *bridge) work() {
	c, err := client.New(b.url, b.key, client.Options{Logger: slog.New(slog.DiscardHandler), Attempts: 30})
	must(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		err := c.Serve(ctx, client.ServeOptions{Intents: []string{"upper", "chorus.hub.message"}}, client.Handler{
			Work: func(_ context.Context, j client.Job) (envelope.Result, error) {
				var params struct {
					Text     string
					Envelope struct {
						Text string `json:"original_text"`
					}
				}
				if err := json.Unmarshal(j.Request.Params, &params); err != nil {
					return envelope.Result{}, err
				}
				text := params.Text + params.Envelope.Text
				b.mu.Lock()
				b.runs[text]++
				b.mu.Unlock()
				upper := strings.ToUpper(text)
				output, err := json.Marshal(map[string]any{"text": upper, "reply": map[string]string{"original_text": upper}})
				return envelope.Result{Status: "success", Output: output}, err
			}})
		if ctx.Err() == nil {
			b.t.Errorf("the agent has ended: %v", err)
		}
	})
	b.stop = func() { cancel(); serving.Wait() }
	b.t.Cleanup(b.stop)
}

// ask sends a request. key is the caller's key, or "signed". Each of headers is a name and a value.
func (b *bridge) ask(method, path, key string, body, answer any, headers ...string) (status int, err error) {
	var text []byte
	if body != nil {
		text, err = json.Marshal(body)
		must(b.t, err)
	}
	r, err := http.NewRequest(method, b.url+path, bytes.NewReader(text))
	must(b.t, err)
	switch key {
	case "":
	case "signed":
		token, err := envelope.Call{Body: sha256.Sum256(text), Read: envelope.Read{Audience: b.url, Method: method, Target: path,
			TS: time.Now()}}.Sign(b.key)
		must(b.t, err)
		r.Header.Set("Authorization", "Agora "+token)
	default:
		r.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := connections.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if text, err = io.ReadAll(response.Body); err == nil && response.StatusCode < 300 && answer != nil {
		err = json.Unmarshal(text, answer)
	}
	return response.StatusCode, err
}

// must sends a request until it is done, because the relay may be down.
func (b *bridge) must(method, path, key string, body, answer any, headers ...string) {
	b.t.Helper()
	within(b.t, bridgeEnd, method+" "+path, func() bool {
		status, err := b.ask(method, path, key, body, answer, headers...)
		return err == nil && status < 300
	})
}

// sendMessages sends messages to the agent, each with an Idempotency-Key.
func (b *bridge) sendMessages() {
	for n := range bridgeMessages {
		b.must("POST", "/hub/messages", b.hubKey, map[string]any{"receiver_id": bridgeAgent,
			"envelope": map[string]any{"chorus_version": "0.4", "sender_id": bridgeSender, "sender_culture": "en",
				"original_text": fmt.Sprint("message ", n)}}, nil, "Idempotency-Key", rand.Text())
	}
}

// hire orders jobs of the agent.
func (b *bridge) hire() {
	for n := range bridgeJobs {
		b.must("POST", "/jobs/a/"+bridgeJobAgent+"/jobs?wait=0", b.jobKey, map[string]any{"job_id": bridgeJobID(n),
			"orchestrator_id": "hirer", "skill_name": "upper", "input_data": map[string]any{"text": fmt.Sprint("job ", n)},
			"budget": 0.15}, nil)
		sleep(20 * time.Millisecond)
	}
}

func bridgeJobID(n int) string { return fmt.Sprintf("00000000-0000-4000-9000-%012d", n) }

// audit waits until all is done, and checks what each client has, what was paid, and what the agent has done.
func (b *bridge) audit() {
	t := b.t
	type row struct {
		State    string
		Sender   string `json:"sender_id"`
		Envelope struct {
			Text string `json:"original_text"`
		}
	}
	var rows []row
	within(t, bridgeEnd, "all messages are delivered", func() bool {
		var history struct{ Data []row }
		b.must("GET", "/hub/agent/messages", b.hubKey, nil, &history)
		rows = history.Data
		delivered := 0
		for _, r := range rows {
			if r.Sender == bridgeSender && r.State == "delivered" {
				delivered++
			}
		}
		return delivered == bridgeMessages
	})
	within(t, bridgeEnd, "all jobs are done", func() bool {
		for n := range bridgeJobs {
			var job struct{ Status string }
			if b.must("GET", "/jobs/jobs/"+bridgeJobID(n), b.jobKey, nil, &job); job.Status != "SUCCESS" {
				return false
			}
		}
		return true
	})
	texts := map[string]int{}
	for _, r := range rows {
		texts[r.Envelope.Text]++
	}
	for n := range bridgeMessages {
		text := fmt.Sprint("message ", n)
		if sent, replies := texts[text], texts[strings.ToUpper(text)]; sent != 1 || replies != 1 {
			t.Errorf("%q was sent %d times and answered %d times", text, sent, replies)
		}
	}
	var hirer, worker struct{ Balance json.Number }
	b.must("GET", "/jobs/accounts/hirer", b.jobKey, nil, &hirer)
	b.must("GET", "/jobs/accounts/"+string(b.key.DID()), "signed", nil, &worker)
	if hirer.Balance != "95" || worker.Balance != "5" {
		t.Errorf("the balances are %s and %s, want 95 and 5", hirer.Balance, worker.Balance)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for text, n := range b.runs {
		if n != 1 {
			t.Errorf("the agent has worked on %q %d times", text, n)
		}
	}
	if len(b.runs) != bridgeMessages+bridgeJobs {
		t.Errorf("the agent has done %d works, want %d", len(b.runs), bridgeMessages+bridgeJobs)
	}
}
