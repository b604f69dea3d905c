//go:build a2a

package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// B-17: one agent, one program, five protocols. The program is tr, which knows none of them. Callers of each protocol ask
// while the relay and the agent are killed: nothing is lost or answered twice, work is repeated only after a kill of the
// agent, and the books balance.
func TestOneWorkerForAllProtocols(t *testing.T) {
	t.Parallel()
	sdk := filepath.Join(t.TempDir(), "a2a.exe")
	if out, err := exec.Command("go", "build", "-C", "../a2a", "-o", sdk, ".").CombinedOutput(); err != nil {
		t.Fatalf("cannot build ci/a2a: %v\n%s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := l.Addr().String() // the addresses of the agent have it
	must(t, l.Close())
	relay := newServer(t, "--addr", address, "--hub", "--jobs", "--channel", "--a2a", "--log-level", "warn",
		"--outbound-allow", "127.0.0.1", "--pending-timeout", "24h", "--active-timeout", "24h")
	relay.start()
	b := &oneWorker{t: t, relay: "http://" + address, sdk: sdk, runs: filepath.Join(t.TempDir(), "runs")}
	agent := b.work()
	b.meet()

	var asking sync.WaitGroup
	for _, ask := range []func(){b.askAgora, b.askHub, b.askRegistry, b.askChannel, b.askA2A} {
		asking.Go(ask)
	}
	const agentKills = 2
	for range agentKills {
		sleep(time.Second)
		relay.kill()
		relay.start()
		sleep(time.Second)
		agent.kill(t)
		agent = b.work()
	}
	asking.Wait()
	b.audit(agentKills)
	agent.kill(t)
	if left := agora(t, "work", "--leave", "--key", b.key, "--relay", b.relay); strings.Count(left, "left ") != 4 {
		t.Errorf("the agent leaves %s", left)
	}
	if code := relay.stop(); code != 0 {
		t.Errorf("the relay ended with exit code %d", code)
	}
	if out, err := exec.Command(binary, "check", "--data", relay.data).CombinedOutput(); err != nil {
		t.Errorf("agora check: %v\n%s", err, out)
	}
}

// workerRounds is how often each protocol is used.
const workerRounds = 12

// oneWorker is an agent that is reached through all protocols, and those who ask it.
type oneWorker struct {
	t                          testing.TB
	relay, sdk, runs           string
	key                        string // of the agent: a file
	did, hub, job, inbox, base string // its addresses
	a2aKey                     string
	alice, hirer               string // keys
	service                    *httptest.Server

	end  time.Time // of all asking
	mu   sync.Mutex
	said map[string][]string // what the agent has said in the channel, by the id of the message
}

// work starts the agent. At each start it says the same addresses.
func (b *oneWorker) work() *running {
	b.t.Helper()
	if b.key == "" {
		b.key = filepath.Join(b.t.TempDir(), "work.key")
		b.did = found(b.t, `(did:key:\w+)`, agora(b.t, "keygen", b.key))
	}
	p := run(b.t, "working for", binary, "work", "--key", b.key, "--relay", b.relay, "--also", "all", "--credits", "0.5",
		"--name", "Upper", "--intent", "text.upper", "--input", "text", "--concurrency", "4", "--attempts", "1000", "--grace", "1s",
		"--", "sh", "-c", `read -r text || test -n "$text" || exit 75 # the agent was killed before it has written the text
printf '%s\n' "$text" >>'`+b.runs+`'
sleep 0.02
printf %s "$text" | tr a-z A-Z`)
	for pattern, to := range map[string]*string{`at the hub as (\S+)`: &b.hub, `as the agent ([0-9a-f-]{36})`: &b.job,
		`secret connection string: (\S+)`: &b.inbox, `over A2A at (\S+),`: &b.base, `secret key (aa_[\w-]{43})`: &b.a2aKey} {
		if got := found(b.t, pattern, p.out.String()); *to != "" && *to != got {
			b.t.Errorf("after a restart the agent is %s, and was %s", got, *to)
		} else {
			*to = got
		}
	}
	return p
}

// meet registers those who ask.
func (b *oneWorker) meet() {
	var registered struct {
		Data struct {
			Key string `json:"api_key"`
		}
	}
	b.must(b.call(http.MethodPost, b.relay+"/hub/register", "", map[string]any{"agent_id": "alice@127.0.0.1", "agent_card": map[string]any{
		"card_version": "0.3", "user_culture": "en", "supported_languages": []string{"en"}}}, &registered), http.StatusCreated)
	var account struct {
		Key string `json:"api_key"`
	}
	b.must(b.call(http.MethodPost, b.relay+"/jobs/accounts", "", map[string]string{"owner_id": "hirer"}, &account), http.StatusCreated)
	b.alice, b.hirer, b.said = registered.Data.Key, account.Key, map[string][]string{}
	b.end = time.Now().Add(2 * time.Minute)
	b.service = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event struct{ Type, Content string }
		if json.NewDecoder(r.Body).Decode(&event) == nil && event.Type == "message" {
			b.mu.Lock()
			defer b.mu.Unlock()
			key := r.Header.Get("Idempotency-Key") // a service takes a repeated event once
			if said := b.said[r.URL.Path]; len(said) == 0 || said[0] != key {
				b.said[r.URL.Path] = append(said, key, event.Content)
			}
		}
	}))
	b.t.Cleanup(b.service.Close)
}

// call sends a request, and decodes the answer if there is one. It returns its status; 0: there was none.
func (b *oneWorker) call(method, url, key string, body, answer any, headers ...string) int {
	var text []byte
	var err error
	if body != nil {
		text, err = json.Marshal(body)
		must(b.t, err)
	}
	r, err := http.NewRequest(method, url, bytes.NewReader(text))
	must(b.t, err)
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := connections.Do(r)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	if text, err = io.ReadAll(response.Body); err == nil {
		err = json.Unmarshal(text, answer)
	}
	if err != nil {
		return 0
	}
	return response.StatusCode
}

func (b *oneWorker) must(status, want int) {
	b.t.Helper()
	if status != want {
		b.t.Fatalf("the status is %d, want %d", status, want)
	}
}

// insist calls do until it succeeds. It may fail while the relay or the agent is down.
func (b *oneWorker) insist(what string, do func(attempt int) bool) {
	for attempt := 0; time.Now().Before(b.end); attempt++ {
		if do(attempt) {
			return
		}
		sleep(100 * time.Millisecond)
	}
	b.t.Errorf("%s: it fails again and again", what)
}

// textOf returns the text that is asked in a round. Each is different.
func (b *oneWorker) textOf(protocol string, round int) string {
	sleep(50 * time.Millisecond)
	return fmt.Sprintf("%s message %d", protocol, round)
}

// askAgora hires the agent with agora ask.
func (b *oneWorker) askAgora() {
	key := filepath.Join(b.t.TempDir(), "ask.key")
	agora(b.t, "keygen", key)
	for round := range workerRounds {
		text := b.textOf("agora", round)
		b.insist("agora ask", func(attempt int) bool {
			params := fmt.Sprintf(`{"text":"%s, attempt %d"}`, text, attempt)
			out, err := exec.Command(binary, "ask", "text.upper", "--key", key, "--relay", b.relay, "--to", b.did, "--params", params).Output()
			want := strings.ToUpper(fmt.Sprintf(`"%s, attempt %d"`, text, attempt))
			if got := strings.TrimSpace(string(out)); err == nil && got != want {
				b.t.Errorf("agora ask prints %s, want %s", got, want)
			}
			return err == nil
		})
	}
}

// askHub writes messages to the agent. What it replies is in alice's history.
func (b *oneWorker) askHub() {
	for round := range workerRounds {
		text := b.textOf("hub", round)
		b.insist("POST /messages", func(int) bool {
			var sent struct{ Success bool }
			b.call(http.MethodPost, b.relay+"/hub/messages", b.alice, map[string]any{"receiver_id": b.hub, "envelope": map[string]any{
				"chorus_version": "0.4", "sender_id": "alice@127.0.0.1", "original_text": text, "sender_culture": "en"}}, &sent,
				"Idempotency-Key", text)
			return sent.Success
		})
	}
}

// askRegistry hires the agent for credits.
func (b *oneWorker) askRegistry() {
	for round := range workerRounds {
		text := b.textOf("jobs", round)
		id := fmt.Sprintf("00000000-0000-4000-8000-%012d", round)
		b.insist("POST /a/{id}/jobs", func(int) bool {
			var result struct {
				Status string
				Output struct{ Result string } `json:"output_data"`
				Cost   float64                 `json:"execution_cost"`
			}
			status := b.call(http.MethodPost, b.relay+"/jobs/a/"+b.job+"/jobs", b.hirer, map[string]any{"job_id": id,
				"orchestrator_id": "hirer", "skill_name": "text.upper", "budget": 1, "input_data": map[string]string{"text": text}}, &result)
			if status != http.StatusOK || result.Status != "SUCCESS" && result.Status != "FAILURE" {
				return false
			}
			if result.Status != "SUCCESS" || result.Output.Result != strings.ToUpper(text) || result.Cost != 0.5 {
				b.t.Errorf("the registry answers %+v", result)
			}
			return true
		})
	}
}

// askChannel plays a service of channels that delivers what was said to the agent's inbox.
func (b *oneWorker) askChannel() {
	for round := range workerRounds {
		text := b.textOf("channel", round)
		b.insist("POST /inbox/sk_…", func(int) bool {
			status := b.call(http.MethodPost, b.inbox, "", map[string]any{"channel": map[string]string{"id": "C1"},
				"message":  map[string]string{"id": text, "sender": "zoe", "content": text},
				"callback": fmt.Sprintf("%s/%d", b.service.URL, round)}, new(any))
			return status/100 == 2
		})
	}
}

// askA2A calls the agent with the SDK of the A2A project.
func (b *oneWorker) askA2A() {
	for round := range workerRounds {
		text := b.textOf("a2a", round)
		b.insist("the A2A SDK", func(attempt int) bool {
			said := fmt.Sprintf("%s, attempt %d", text, attempt)
			cmd := exec.CommandContext(b.t.Context(), b.sdk, "say", b.base, said)
			cmd.Env = append(os.Environ(), "A2A_KEY="+b.a2aKey)
			out, err := cmd.Output()
			if err == nil && string(out) != strings.ToUpper(said) {
				b.t.Errorf("the A2A task has %q, want %q", out, strings.ToUpper(said))
			}
			return err == nil
		})
	}
}

// audit checks what cannot be seen in the answers: that each message of the hub and of the channel has one answer, that
// work was repeated only after a kill of the agent, and that the books balance.
func (b *oneWorker) audit(agentKills int) {
	b.t.Helper()
	replies := map[string]int{}
	within(b.t, time.Minute, "replies at the hub and in the channel", func() bool {
		var page struct {
			Data []struct {
				Envelope struct {
					Text   string `json:"original_text"`
					Sender string `json:"sender_id"`
				}
			}
		}
		if b.call(http.MethodGet, b.relay+"/hub/agent/messages?limit=100", b.alice, nil, &page) != http.StatusOK {
			return false
		}
		clear(replies)
		for _, m := range page.Data {
			if m.Envelope.Sender == b.hub {
				replies[m.Envelope.Text]++
			}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(replies) == workerRounds && len(b.said) == workerRounds
	})
	for round := range workerRounds {
		if want := strings.ToUpper(fmt.Sprintf("hub message %d", round)); replies[want] != 1 {
			b.t.Errorf("the hub has %d replies %q, want 1", replies[want], want)
		}
		said := b.said[fmt.Sprintf("/%d", round)]
		if want := strings.ToUpper(fmt.Sprintf("channel message %d", round)); len(said) != 2 || said[1] != want {
			b.t.Errorf("in the channel the agent has said %q, want %q once", said, want)
		}
	}
	runs, err := os.ReadFile(b.runs)
	must(b.t, err)
	count := map[string]int{}
	for line := range strings.Lines(string(runs)) {
		count[line]++
	}
	repeated := 0
	for text, n := range count {
		if repeated += n - 1; n > 1+agentKills {
			b.t.Errorf("the program ran %d times for %q", n, text)
		}
	}
	if repeated > workConcurrency*agentKills {
		b.t.Errorf("the program ran %d times too often, with %d kills of the agent", repeated, agentKills)
	}
	var account struct{ Balance float64 }
	b.must(b.call(http.MethodGet, b.relay+"/jobs/accounts/hirer", b.hirer, nil, &account), http.StatusOK)
	if want := 100 - 0.5*workerRounds; account.Balance != want {
		b.t.Errorf("the hirer has %v credits, want %v", account.Balance, want) // agora check adds up what the agent has
	}
}
