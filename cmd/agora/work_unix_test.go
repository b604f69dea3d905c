//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// workTest is a relay, an agent that runs agora work, and a client that hires it.
type workTest struct {
	t      *testing.T
	url    string
	folder string // of the test; the scripts run in it
	key    string // the agent's key file
	agent  didkey.DID
	client *client.Client
}

func newWorkTest(t *testing.T, url string) *workTest {
	t.Helper()
	w := &workTest{t: t, url: url, folder: t.TempDir(), key: filepath.Join(t.TempDir(), "bob.key")}
	bob := newKey(t)
	if err := didkey.Save(w.key, bob); err != nil {
		t.Fatal(err)
	}
	w.agent = bob.DID()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	var err error
	if w.client, err = client.New(url, newKey(t), client.Options{HTTPClient: &http.Client{Transport: transport}}); err != nil {
		t.Fatal(err)
	}
	return w
}

// file returns the name of a file in the folder of the test.
func (w *workTest) file(name string) string { return filepath.Join(w.folder, name) }

// args returns the arguments of agora work for a shell script. DIR in it is the folder of the test.
func (w *workTest) args(script string, flags ...string) []string {
	script = strings.ReplaceAll(script, "DIR", w.folder)
	args := append([]string{"work", "--relay", w.url, "--key", w.key, "--intent", "test"}, flags...)
	return append(args, "--", "sh", "-c", script)
}

// start runs agora work in this process. stop interrupts it, and returns its exit code.
func (w *workTest) start(script string, flags ...string) (log *logText, stop func() int) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	log = new(logText)
	ended := make(chan int, 1)
	go func() {
		ended <- run(cli.Environment{Ctx: ctx, Stdin: strings.NewReader(""), Stdout: log, Stderr: log}, w.args(script, flags...))
	}()
	code, stopped := 0, false
	stop = func() int {
		if cancel(); !stopped {
			code, stopped = <-ended, true
		}
		return code
	}
	w.t.Cleanup(func() {
		stop()
		if w.t.Failed() {
			w.t.Logf("agora work says: %s", log)
		}
	})
	log.await(w.t, "working for ")
	return log, stop
}

// process runs agora work in its own process, which the test may kill.
func (w *workTest) process(script string, flags ...string) (cmd *exec.Cmd, log *logText) {
	w.t.Helper()
	cmd, log = exec.Command("agora", w.args(script, flags...)...), new(logText)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.WaitDelay = time.Second // a program of a killed agent may hold standard error
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed, or waited for before
		if w.t.Failed() {
			w.t.Logf("agora work says: %s", log)
		}
	})
	log.await(w.t, "working for ")
	return cmd, log
}

// hire asks the agent for a job, and accepts its offer.
func (w *workTest) hire(params any) *client.Call {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	call, err := w.client.Request(ctx, client.RequestOptions{Intent: "test", Recipient: w.agent, Params: params})
	if err != nil {
		w.t.Fatal(err)
	}
	for offer, err := range call.Offers(ctx) {
		if err == nil {
			err = call.Accept(ctx, offer)
		}
		if err != nil {
			w.t.Fatal(err)
		}
		break
	}
	return call
}

// result waits for the answer to a call: its output, or the code and the message of the ERROR.
func (w *workTest) result(call *client.Call) (output string, failure *client.AgentError) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	result, err := call.Result(ctx)
	if failure, ok := errors.AsType[*client.AgentError](err); ok {
		return "", failure
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return string(result.Output), nil
}

// answers returns how many RESULTs and ERRORs the relay has of a call.
func (w *workTest) answers(call *client.Call) (n int) {
	w.t.Helper()
	record, err := w.client.Thread(w.t.Context(), call.Thread, "")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range record.Events {
		if e.Type == envelope.TypeResult || e.Type == envelope.TypeError {
			n++
		}
	}
	return n
}

// await waits until the file has at least n lines, and returns its lines.
func (w *workTest) await(name string, n int) []string {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(w.file(name))
		if lines := strings.Split(string(text), "\n"); len(lines) > n {
			return lines[:len(lines)-1]
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s has %q, %v; want %d lines", name, text, err, n)
		}
	}
}

// gone fails the test unless the process with the number in a line ends soon.
func (w *workTest) gone(line string) {
	w.t.Helper()
	pid, err := strconv.Atoi(line)
	if err != nil {
		w.t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); syscall.Kill(pid, 0) == nil && !isZombie(pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("the process %d still runs", pid)
		}
	}
}

// isZombie reports whether a process has ended and was not waited for.
func isZombie(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(text), ") Z ")
}

// TestWorkOutcomes checks what the client gets for what a program does.
func TestWorkOutcomes(t *testing.T) {
	url := startRelay(t, time.Now)
	for name, test := range map[string]struct {
		script string
		flags  string
		params any
		want   string // the output, or the code and the message
	}{
		"json":             {script: `printf '{"a": [1]}\n'`, want: `{"a":[1]}`},
		"text":             {script: `printf 'a "b"\n\n'`, want: `"a \"b\""`},
		"json as text":     {script: `echo 17`, flags: "--output text", want: `"17"`},
		"nothing":          {script: `exit 0`, want: `""`},
		"not JSON":         {script: `echo a`, flags: "--output json", want: "EXECUTION_FAILED: the program's output is not JSON"},
		"twice a member":   {script: `echo '{"a":1,"a":2}'`, want: "EXECUTION_FAILED: the program's output is JSON that no message may have"},
		"not UTF-8":        {script: `printf 'a\377'`, want: "EXECUTION_FAILED: the program's output is not UTF-8; it must encode other bytes, for example in base64"},
		"params":           {script: `cat`, flags: "--input params", params: map[string]any{"b": 1, "a": "<"}, want: `{"a":"<","b":1}`},
		"no params":        {script: `cat`, flags: "--input params", want: `null`},
		"text of a string": {script: `tr a-z A-Z`, flags: "--input text", params: "hi\nho", want: `"HI\nHO"`},
		"text of a member": {script: `wc -l | tr -d ' '`, flags: "--input text --output text", params: map[string]any{"text": "hi"}, want: `"1"`},
		"exit code":        {script: `echo secret >&2; exit 3`, want: "EXECUTION_FAILED: the program exited with the code 3"},
		"exit code, told":  {script: `printf 'no\033 such file\n\n' >&2; exit 3`, flags: "--error-detail", want: `EXECUTION_FAILED: the program exited with the code 3: no\u001b such file`},
		"temporary":        {script: `exit 75`, want: "UNAVAILABLE: the program exited with the code 75"},
		"wrong input":      {script: `exit 65`, want: "INVALID_REQUEST: the program exited with the code 65"},
		"signal":           {script: `kill -9 $$`, want: "EXECUTION_FAILED: the program was ended by a signal (killed)"},
		"hang":             {script: `sleep 1000`, flags: "--timeout 300ms", want: "TIMEOUT: the program did not end within 300ms"},
		"deaf hang":        {script: `trap '' TERM; sleep 1000`, flags: "--timeout 300ms --grace 100ms", want: "TIMEOUT: the program did not end within 300ms"},
		"flood":            {script: `yes`, want: "EXECUTION_FAILED: the program's output does not fit into a message of at most 128KiB"},
		"a little too long": {script: `head -c 130000 /dev/zero | tr '\0' x`,
			want: "EXECUTION_FAILED: the program's output does not fit into a message of at most 128KiB"},
		"many quotes": {script: `head -c 90000 /dev/zero | tr '\0' '"'`,
			want: "EXECUTION_FAILED: the program's output does not fit into a message of at most 128KiB"},
		"background":  {script: `sleep 1000 & echo done`, want: `"done"`},
		"environment": {script: `env | grep ^AGORA_ | cut -d= -f1 | sort | tr '\n' ' '`, want: `"AGORA_ATTEMPT AGORA_CLIENT AGORA_INTENT AGORA_REQUEST_ID AGORA_THREAD "`},
		"attempt":     {script: `printf '"%s"' "$AGORA_ATTEMPT$AGORA_INTENT"`, want: `"1test"`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkTest(t, url)
			t.Setenv("AGORA_MCP_TOKEN", "secret")
			log, stop := w.start(test.script, strings.Fields(test.flags)...)
			output, failure := w.result(w.hire(test.params))
			if failure != nil {
				output = failure.Error()
			}
			if output != test.want {
				t.Errorf("got %s, want %s", output, test.want)
			}
			for _, line := range []string{"started for", "after "} {
				log.await(t, line)
			}
			if code := stop(); code != cli.ExitOK {
				t.Errorf("ended with %d", code)
			}
		})
	}
}

// TestWorkJob checks the job that a program reads, also if it is sealed and large.
func TestWorkJob(t *testing.T) {
	w := newWorkTest(t, startRelay(t, time.Now))
	w.start(`cat > DIR/job; wc -c < DIR/job | tr -d ' '`)
	large := strings.Repeat("x<\u2028", 10_000)
	cost, deadline := 0.5, time.Now().Add(10*time.Minute).UTC().Truncate(time.Second)
	call, err := w.client.Request(t.Context(), client.RequestOptions{Intent: "test", Recipient: w.agent, Params: large, Seal: true,
		Title: "A title", Constraints: &envelope.Constraints{MaxCostUSD: &cost, Deadline: &deadline}})
	if err != nil {
		t.Fatal(err)
	}
	for offer, err := range call.Offers(t.Context()) {
		if err == nil {
			err = call.Accept(t.Context(), offer)
		}
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	output, failure := w.result(call)
	text, err := os.ReadFile(w.file("job"))
	if failure != nil || err != nil || output != strconv.Itoa(len(text)) || bytes.Count(text, []byte("\n")) != 1 {
		t.Fatalf("%s, %v, %v", output, failure, err)
	}
	var record *client.Thread
	if record, err = w.client.Thread(t.Context(), call.Thread, ""); err != nil || record.Agent != w.agent {
		t.Fatal(record, err)
	}
	for _, want := range []string{`{"thread":"` + call.Thread + `","request_id":"` + record.RequestID + `","intent":"test","client":"` +
		string(record.Client) + `","params":"x<`, `","attempt":1,"title":"A title","max_cost_usd":0.5,"deadline":"` + envelope.FormatTime(deadline) + `"}` + "\n"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("the job has not %s: %.300s … %s", want, text, text[len(text)-200:])
		}
	}
}

// TestWorkRefuses checks that requests that the program cannot read get no offer.
func TestWorkRefuses(t *testing.T) {
	w := newWorkTest(t, startRelay(t, time.Now))
	w.start("cat", "--input", "text", "--price", "0.5")
	for _, params := range []any{nil, 17, map[string]any{"text": 17}, []string{"text"}} {
		call, err := w.client.Request(t.Context(), client.RequestOptions{Intent: "test", Recipient: w.agent, Params: params})
		if err != nil {
			t.Fatal(err)
		}
		for offer, err := range call.Offers(t.Context()) {
			if refused, ok := errors.AsType[*client.AgentError](err); !ok || refused.Code != envelope.AgentInvalidRequest {
				t.Errorf("%v: %v, %v", params, offer, err)
			}
			break
		}
	}
}

// TestWorkLog checks that what a program says is shown escaped, and that a flood is cut.
func TestWorkLog(t *testing.T) {
	w := newWorkTest(t, startRelay(t, time.Now))
	if err := os.WriteFile(w.file("hostile"), []byte(hostile+"\xff\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log, _ := w.start(`cat DIR/hostile >&2; yes "a long line" | head -n 100000 >&2; echo done`)
	call := w.hire(nil)
	if output, failure := w.result(call); output != `"done"` {
		t.Errorf("%s, %v", output, failure)
	}
	text := log.await(t, "delivered after")
	if found := foundIn(text); len(found) > 0 {
		t.Errorf("the log has %q", found)
	}
	if n := strings.Count(text, "job "+call.Thread+": | "); n < 90 || n > 1000 || !strings.Contains(text, "lines are not shown") {
		t.Errorf("the log has %d lines: %.2000s", n, text)
	}
}

// TestWorkCancel checks that a program gets SIGTERM when the client cancels its job, and that the agent continues.
func TestWorkCancel(t *testing.T) {
	w := newWorkTest(t, startRelay(t, time.Now))
	log, _ := w.start(`[ "$(cat)" != '"hang"' ] || { trap 'echo term >> DIR/signals; exit' TERM; echo $$ >> DIR/pids; while :; do sleep 0.01; done; }`, "--input", "params")
	call := w.hire("hang")
	pid := w.await("pids", 1)[0]
	if err := call.Cancel(t.Context(), "not needed"); err != nil {
		t.Fatal(err)
	}
	w.await("signals", 1)
	w.gone(pid)
	log.await(t, "without an answer: client: the call was cancelled")
	if _, failure := w.result(w.hire("next")); failure != nil {
		t.Error(failure)
	}
	if n := w.answers(call); n != 0 {
		t.Errorf("the cancelled job has %d answers", n)
	}
}

// TestWorkConcurrency checks that no more programs run than --concurrency allows, but as many.
func TestWorkConcurrency(t *testing.T) {
	w := newWorkTest(t, startRelay(t, time.Now))
	w.start(`echo >> DIR/begun; while [ ! -e DIR/go ]; do sleep 0.01; done`, "--concurrency", "2")
	first, second := w.hire(1), w.hire(2)
	w.await("begun", 2)
	third, err := w.client.Request(t.Context(), client.RequestOptions{Intent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	for offer := range third.Offers(ctx) {
		if offer.Envelope != nil {
			t.Error("an agent that is busy has made an offer")
		}
		break
	}
	if err := os.WriteFile(w.file("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, call := range []*client.Call{first, second} {
		if _, failure := w.result(call); failure != nil {
			t.Error(failure)
		}
	}
	for _, err := range third.Offers(t.Context()) {
		if err != nil {
			t.Error(err)
		}
		break
	}
}

// TestWorkMaxJobs checks that the command ends by itself after its jobs, when their answers are stored.
func TestWorkMaxJobs(t *testing.T) {
	w := newWorkTest(t, startRelay(t, time.Now))
	cmd, _ := w.process("cat", "--max-jobs", "2", "--input", "params")
	for _, n := range []int{1, 2} {
		if output, _ := w.result(w.hire(n)); output != strconv.Itoa(n) {
			t.Errorf("got %s", output)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestWorkKilled kills the agent while its program runs. On Linux the program ends too. After the restart the job is
// begun again, and its client gets one answer.
func TestWorkKilled(t *testing.T) {
	w := newWorkTest(t, startRelay(t, time.Now))
	const script = `echo $$ >> DIR/pids; if [ $AGORA_ATTEMPT = 1 ]; then exec sleep 1000; fi; echo $AGORA_ATTEMPT`
	cmd, _ := w.process(script)
	call := w.hire(nil)
	pid := w.await("pids", 1)[0]
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if _, err := os.Stat("/proc/self/stat"); err == nil {
		w.gone(pid)
	}
	log, stop := w.start(script)
	if output, failure := w.result(call); output != "2" {
		t.Errorf("%s, %v", output, failure)
	}
	log.await(t, "attempt 2")
	if stop(); w.answers(call) != 1 {
		t.Errorf("the client got %d answers", w.answers(call))
	}
	// After another restart nothing is left to do.
	_, stop = w.start(`echo $$ >> DIR/pids; echo next`)
	if output, failure := w.result(w.hire(nil)); output != `"next"` {
		t.Errorf("the next job: %s, %v", output, failure)
	}
	stop()
	if n := len(w.await("pids", 3)); n != 3 {
		t.Errorf("the program was started %d times, want 3", n)
	}
}

// TestWorkPoison: a job whose program kills the agent each time is begun only a few times (RELAYS R-18). The system ends
// the program with its agent. With exec, the program is one process, so none is left.
func TestWorkPoison(t *testing.T) {
	w := newWorkTest(t, startRelay(t, time.Now))
	const script = `echo $AGORA_ATTEMPT >> DIR/attempts; kill -9 $PPID; exec sleep 1000`
	cmd, _ := w.process(script, "--attempts", "2")
	call := w.hire(nil)
	_ = cmd.Wait() // it was killed
	cmd, _ = w.process(script, "--attempts", "2")
	_ = cmd.Wait()
	w.process(script, "--attempts", "2")
	_, failure := w.result(call)
	if failure == nil || failure.Code != envelope.AgentInternal || !strings.Contains(failure.Message, "interrupted") {
		t.Errorf("%v", failure)
	}
	if lines := w.await("attempts", 2); strings.Join(lines, " ") != "1 2" {
		t.Errorf("the attempts are %q", lines)
	}
}

// TestWorkTakesOverState: the state file of version 0.1.0 counts: how far the agent has read, and how often a job was
// begun (RELAYS R-18).
func TestWorkTakesOverState(t *testing.T) {
	w := newWorkTest(t, startRelay(t, time.Now))
	const script = `echo $AGORA_ATTEMPT >> DIR/attempts; kill -9 $PPID; exec sleep 1000`
	file := w.file("state")
	cmd, _ := w.process(script, "--state", file)
	call := w.hire(nil)
	_ = cmd.Wait() // it was killed
	record, err := w.client.Thread(t.Context(), call.Thread, "")
	if err != nil {
		t.Fatal(err)
	}
	old := fmt.Sprintf("{\"relay\":%q,\"agent\":%q,\"cursor\":\"\",\"jobs\":{\"%s "+
		"%s\":{\"attempts\":4,\"at\":\"2026-02-02T12:00:00Z\"}}}\n",
		w.url, w.agent, record.Client, call.Thread)
	if err := os.WriteFile(file, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	w.process(script, "--state", file, "--attempts", "4")
	if _, failure := w.result(call); failure == nil || !strings.Contains(failure.Message, "interrupted") {
		t.Errorf("%v", failure)
	}
	if lines := w.await("attempts", 1); len(lines) != 1 {
		t.Errorf("the attempts are %q", lines)
	}
}

// TestWorkInterrupted: an agent that is interrupted passes the signal on, waits for its program, and ends with 0. The
// job is done at the next start, and the interruption does not count as an attempt.
func TestWorkInterrupted(t *testing.T) {
	for _, signal := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		w := newWorkTest(t, startRelay(t, time.Now))
		const script = `trap 'sleep 0.2; echo term >> DIR/signals; exit 0' TERM; echo $$ >> DIR/pids
			if [ $(wc -l < DIR/pids) -gt 1 ]; then echo $AGORA_ATTEMPT; exit; fi; while :; do sleep 0.01; done`
		cmd, log := w.process(script)
		call := w.hire(nil)
		w.await("pids", 1)
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("ended with %v", err)
		}
		w.await("signals", 1)
		if !strings.Contains(log.String(), "waiting up to 10s for 1 running job,") || w.answers(call) != 0 {
			t.Errorf("%d answers, and the log is %s", w.answers(call), log)
		}
		w.process(script)
		if output, failure := w.result(call); output != "1" {
			t.Errorf("%s, %v", output, failure)
		}
	}
}

// TestWorkSecondSignal: a second signal ends the agent and its programs at once, with all processes of their groups.
func TestWorkSecondSignal(t *testing.T) {
	w := newWorkTest(t, startRelay(t, time.Now))
	cmd, log := w.process(`trap '' TERM; sleep 1000 & echo $! >> DIR/pids; echo $$ >> DIR/pids; wait`, "--grace", "1h")
	w.hire(nil)
	pids := w.await("pids", 2)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	log.await(t, "Interrupt again")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
	for _, pid := range pids {
		w.gone(pid)
	}
}

// TestWorkRelayRestart kills the relay while a program runs, and starts it again. The answer is delivered.
func TestWorkRelayRestart(t *testing.T) {
	relay := startRelayProcess(t)
	w := newWorkTest(t, relay.URL)
	w.start(`echo >> DIR/begun; while [ ! -e DIR/go ]; do sleep 0.01; done; echo done`)
	call := w.hire(nil)
	w.await("begun", 1)
	relay.kill()
	if err := os.WriteFile(w.file("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // so that the RESULT most often finds no relay
	relay.start(strings.TrimPrefix(relay.URL, "http://"))
	if output, failure := w.result(call); output != `"done"` {
		t.Errorf("%s, %v", output, failure)
	}
	if record, err := w.client.Thread(t.Context(), call.Thread, ""); err != nil || record.State != thread.Completed {
		t.Errorf("%v, %v", record, err)
	}
	if n := len(w.await("begun", 1)); n != 1 {
		t.Errorf("the program was started %d times", n)
	}
}

// TestWorkLocks checks that one key works only once at a relay.
func TestWorkLocks(t *testing.T) {
	w := newWorkTest(t, startRelay(t, time.Now))
	_, stop := w.start("cat")
	var second bytes.Buffer
	if code := run(cli.Environment{Ctx: t.Context(), Stdout: &second, Stderr: &second}, w.args("cat")); code != cli.ExitFailed ||
		!strings.Contains(second.String(), "agora work, uses the state file") {
		t.Errorf("%d: %s", code, second.String())
	}
	stop()
	_, stop = w.start("cat")
	stop()
}
