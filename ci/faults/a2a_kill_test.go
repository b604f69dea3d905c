//go:build a2a

package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
)

const (
	a2aCallers    = 4
	a2aKillRounds = 6
	a2aEnd        = 2 * time.Minute // until all tasks have ended
)

// TestA2AKillLoop kills a relay and an agora work again and again, while callers send messages. It tests that no task
// that was answered is lost, that each has one REQUEST and one answer, and that work is repeated only after a kill of
// the agent. In the end, agora check must find nothing.
func TestA2AKillLoop(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := l.Addr().String() // the endpoint has it in its URL
	must(t, l.Close())
	relay := newServer(t, "--addr", address, "--a2a", "--log-level", "warn", "--pending-timeout", "24h",
		"--active-timeout", "24h")
	relay.start()
	r := random(t)
	load := &a2aLoad{t: t, runs: filepath.Join(t.TempDir(), "runs"), answered: map[string]string{},
		stop: make(chan struct{})}
	endpoint, agent, startAgent := workEndpoint(t, "http://"+address, `read -r text || test -n "$text" || exit 75 # the agent was killed before it has written the text
printf '%s\n' "$text" >>'`+load.runs+`'
sleep 0.02
printf %s "$text"`)
	load.a2aEndpoint = endpoint
	for n := range a2aCallers {
		load.done.Go(func() { load.call(n) })
	}
	began, agentKills := time.Now(), 0
	rounds := max(*roundsFlag, a2aKillRounds)
	for round := range rounds {
		sleep(minUptime + time.Duration(r.Int64N(int64(maxUptime-minUptime))))
		if round%3 != 0 {
			agent.kill(t)
			agentKills++
		}
		if round%3 != 1 {
			relay.kill()
			relay.start()
		}
		if round%3 != 0 {
			agent = startAgent()
		}
	}
	close(load.stop)
	load.done.Wait()
	answered := len(load.answered)
	load.audit(relay, agentKills)
	if code := relay.stop(); code != 0 {
		t.Errorf("the relay ended with exit code %d", code)
	}
	if out, err := exec.Command(binary, "check", "--data", relay.data).CombinedOutput(); err != nil {
		t.Errorf("agora check: %v\n%s", err, out)
	}
	t.Logf("%d rounds, %d kills of the agent, in %s: %d messages, %d answered", rounds, agentKills,
		time.Since(began).Round(time.Second), load.sent, answered)
}

// a2aLoad are callers who send messages to one endpoint.
type a2aLoad struct {
	t testing.TB
	a2aEndpoint
	runs string        // the file with a line for each run of the program
	stop chan struct{} // is closed when no more messages are sent
	done sync.WaitGroup

	mu       sync.Mutex
	sent     int
	answered map[string]string // the text of each task that was answered
}

// ask sends a request and decodes the answer. The error says that there was none.
func (l *a2aLoad) ask(method, path string, body, answer any) (status int, err error) {
	text, err := json.Marshal(body)
	must(l.t, err)
	r, err := http.NewRequest(method, strings.TrimSuffix(l.base, "/")+path, bytes.NewReader(text))
	must(l.t, err)
	r.Header.Set("Authorization", "Bearer "+l.key)
	r.Header.Set("Content-Type", "application/json")
	response, err := connections.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if text, err = io.ReadAll(response.Body); err == nil && response.StatusCode == http.StatusOK {
		err = json.Unmarshal(text, answer)
	}
	return response.StatusCode, err
}

// call sends messages of one caller, each once.
func (l *a2aLoad) call(caller int) {
	for n := 0; ; n++ {
		select {
		case <-l.stop:
			return
		case <-time.After(30 * time.Millisecond):
		}
		text := fmt.Sprintf("caller %d, message %d", caller, n)
		var answer struct{ Task a2aTask }
		status, err := l.ask(http.MethodPost, "/message:send", map[string]any{
			"configuration": map[string]any{"returnImmediately": true},
			"message": map[string]any{"messageId": "m", "role": "ROLE_USER",
				"parts": []any{map[string]string{"text": text}}},
		}, &answer)
		l.mu.Lock()
		if l.sent++; err == nil && status == http.StatusOK {
			l.answered[answer.Task.ID] = text
		}
		l.mu.Unlock()
	}
}

// a2aTask is a task as a caller sees it.
type a2aTask struct {
	ID        string
	Status    struct{ State string }
	Artifacts []struct{ Parts []struct{ Text string } }
	History   []struct{ Parts []struct{ Text string } }
}

// tasks returns all tasks of the caller.
func (l *a2aLoad) tasks() (all []a2aTask) {
	query := url.Values{"includeArtifacts": {"true"}, "historyLength": {"1"}, "pageSize": {"100"}}
	for {
		var page struct {
			Tasks         []a2aTask
			NextPageToken string
		}
		status, err := l.ask(http.MethodGet, "/tasks?"+query.Encode(), nil, &page)
		if must(l.t, err); status != http.StatusOK {
			l.t.Fatalf("a list of the tasks has the status %d", status)
		}
		all = append(all, page.Tasks...)
		if page.NextPageToken == "" {
			return all
		}
		query.Set("pageToken", page.NextPageToken)
	}
}

// audit waits until all tasks have ended, and compares them with what was sent, with what is stored, and with the runs
// of the program.
func (l *a2aLoad) audit(relay *server, agentKills int) {
	t := l.t
	var tasks []a2aTask
	within(t, a2aEnd, "all tasks have ended", func() bool {
		tasks = l.tasks()
		return !slices.ContainsFunc(tasks, func(task a2aTask) bool { return task.Status.State != "TASK_STATE_COMPLETED" })
	})
	runs, err := os.ReadFile(l.runs)
	must(t, err)
	ran := map[string]int{}
	for line := range strings.Lines(string(runs)) {
		ran[strings.TrimSpace(line)]++
	}
	texts, repeated := map[string]bool{}, 0
	for _, task := range tasks {
		if len(task.History) != 1 || len(task.Artifacts) != 1 {
			t.Errorf("the task %s has %d messages and %d artifacts", task.ID, len(task.History), len(task.Artifacts))
			continue
		}
		text := task.History[0].Parts[0].Text
		if want, ok := l.answered[task.ID]; ok && want != text || text != task.Artifacts[0].Parts[0].Text {
			t.Errorf("the task for %q has the message %q and the artifact %+v", want, text, task.Artifacts[0])
		}
		if texts[text] || ran[text] == 0 {
			t.Errorf("%q has another task (%t), and was worked on %d times", text, texts[text], ran[text])
		}
		texts[text] = true
		repeated += ran[text] - 1
		delete(l.answered, task.ID)
		delete(ran, text)
	}
	if len(l.answered) > 0 || len(ran) > 0 {
		t.Errorf("these were answered and are lost: %v; these have no task and were worked on: %v", l.answered, ran)
	}
	if repeated > agentKills*workConcurrency {
		t.Errorf("%d runs were repeated after %d kills of the agent", repeated, agentKills)
	}
	l.auditThreads(relay, len(tasks))
	t.Logf("%d tasks, %d runs repeated", len(tasks), repeated)
}

// auditThreads checks that each task has one thread, with one REQUEST and one RESULT.
func (l *a2aLoad) auditThreads(relay *server, tasks int) {
	events, _ := relay.stored("0")
	threads := map[string]map[envelope.Type]int{}
	for _, e := range events {
		if !strings.HasPrefix(e.Thread, "trn_") {
			continue
		}
		if threads[e.Thread] == nil {
			threads[e.Thread] = map[envelope.Type]int{}
		}
		threads[e.Thread][e.Type]++
	}
	for thread, types := range threads {
		if types[envelope.TypeRequest] != 1 || types[envelope.TypeResult] != 1 {
			l.t.Errorf("the thread %s has %v", thread, types)
		}
	}
	if len(threads) != tasks {
		l.t.Errorf("%d tasks have %d threads", tasks, len(threads))
	}
}
