package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/a2a/a2aclient"
	"github.com/agora-relay/agora/internal/a2a/a2atest"
	"github.com/agora-relay/agora/internal/jsontext"
)

// exposing is an agora a2a expose, or another agent, that runs as a process.
type exposing struct {
	t       *testing.T
	args    []string
	process *exec.Cmd
	log     logText
	printed map[string]string // what it has printed, by the name in front
}

// expose starts agora a2a expose for a server, with a new key.
func newExposing(t *testing.T, relay, server string, flags ...string) *exposing {
	t.Helper()
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "bob.key")
	if err := didkey.Save(file, key); err != nil {
		t.Fatal(err)
	}
	e := &exposing{t: t, args: append([]string{"a2a", "expose", server, "--key", file, "--relay", relay}, flags...)}
	t.Cleanup(e.kill)
	e.start()
	return e
}

func (e *exposing) start() {
	e.t.Helper()
	e.process, e.printed = exec.Command("agora", e.args...), map[string]string{}
	e.process.Stderr = &e.log
	stdout, err := e.process.StdoutPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	if err := e.process.Start(); err != nil {
		e.t.Fatal(err)
	}
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if e.printed[name] = strings.TrimSpace(value); name == "Leave" {
			return
		}
	}
	err = e.process.Wait()
	e.t.Fatalf("agora %s did not start: %v\n%s", e.args, err, e.log.String())
}

// kill ends the process without warning.
func (e *exposing) kill() {
	_ = e.process.Process.Kill()
	_ = e.process.Wait()
}

// caller returns a client of the endpoint with the key that was printed.
func (e *exposing) caller() *a2aclient.Client {
	e.t.Helper()
	base, err := a2aclient.CheckURL(e.printed["Base URL"])
	if err != nil {
		e.t.Fatal(err)
	}
	key, _, _ := strings.Cut(e.printed["Key"], " ")
	c, err := a2aclient.Open(e.t.Context(), base, a2aclient.Options{Bearer: key, DID: didkey.DID(e.printed["DID"])})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(c.Close)
	return c
}

func a2aText(words, task string) a2a.Send {
	return a2a.Send{Message: a2a.Message{MessageID: "m-" + words, Role: a2a.User, Parts: []a2a.Part{a2a.TextPart(words)}, TaskID: task}}
}

// texts returns the texts of the artifacts of a task.
func texts(task a2a.Task) (all []string) {
	for _, artifact := range task.Artifacts {
		text := ""
		for _, part := range artifact.Parts {
			text += *part.Text
		}
		all = append(all, text)
	}
	return all
}

// expose carries a server: send, stream, input and cancel. A-25: two callers with one contextId never share a
// conversation, also behind expose. The servers speak 1.0 and 0.3. A call that missed the end of its turn would wait for
// --a2a-wait, and fail.
func TestExpose(t *testing.T) {
	relay := startServe(t, "--a2a", "--a2a-wait", "1h", "--data", filepath.Join(t.TempDir(), "data")).relay
	for _, kind := range [][2]string{{"JSONRPC", "1.0"}, {"JSONRPC", "0.3"}} {
		t.Run(kind[1], func(t *testing.T) {
			server := a2atest.New(kind[0], kind[1])
			defer server.Close()
			x := newExposing(t, relay, server.URL)
			c := x.caller()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			defer func() {
				if t.Failed() {
					t.Logf("agora a2a expose says: %s", x.log.String())
				}
			}()
			exposeSend(ctx, t, c)
			exposeStream(ctx, t, c)
			exposeInput(ctx, t, c)
			exposeCancel(ctx, t, c, server)
			if !strings.Contains(x.printed["Try"], x.printed["Base URL"]+"message:send") || strings.Contains(x.log.String(), "panic") {
				t.Errorf("printed %q, log %s", x.printed, x.log.String())
			}
			for _, m := range server.Messages() {
				if context, _ := m["contextId"].(string); !strings.HasPrefix(context, "cv_") {
					t.Errorf("the server got the context %q", context)
				}
			}
		})
	}
}

func exposeSend(ctx context.Context, t *testing.T, c *a2aclient.Client) {
	t.Helper()
	for words, want := range map[string]string{
		"echo hello": "TASK_STATE_COMPLETED [hello]", "reject x": "TASK_STATE_REJECTED []", "refuse x": "TASK_STATE_REJECTED []",
	} {
		answer, err := c.Send(ctx, a2aText(words, ""))
		if err != nil || answer.Task == nil || fmt.Sprintf("%s %s", answer.Task.Status.State, texts(*answer.Task)) != want {
			t.Errorf("%s: %s, %v", words, jsontext.Compact(answer), err)
		}
	}
	answer, err := c.Send(ctx, a2aText("direct hi", ""))
	if err != nil || answer.Message == nil || *answer.Message.Parts[0].Text != "hi" {
		t.Errorf("direct: %+v, %v", answer, err)
	}
}

func exposeStream(ctx context.Context, t *testing.T, c *a2aclient.Client) {
	t.Helper()
	text, last, first := "", a2a.State(""), true
	err := c.Stream(ctx, a2aText("chunks a b c", ""), func(e a2a.Stream) error {
		if first != (e.Task != nil) {
			t.Errorf("event %+v; the first one must be the task, and no other", e)
		}
		first = false
		if u := e.ArtifactUpdate; u != nil {
			for _, part := range u.Artifact.Parts {
				text += *part.Text
			}
		}
		if e.StatusUpdate != nil {
			last = e.StatusUpdate.Status.State
		}
		return nil
	})
	if err != nil || text != "abc" || last != a2a.Completed {
		t.Errorf("stream: %q, %s, %v", text, last, err)
	}
}

func exposeInput(ctx context.Context, t *testing.T, c *a2aclient.Client) {
	t.Helper()
	asked, err := c.Send(ctx, a2aText("ask", ""))
	if err != nil || asked.Task.Status.State != a2a.InputRequired || *asked.Task.Status.Message.Parts[0].Text != "what?" {
		t.Fatalf("ask: %+v, %v", asked.Task, err)
	}
	answer, err := c.Send(ctx, a2aText("blue", asked.Task.ID))
	if err != nil || answer.Task.Status.State != a2a.Completed || fmt.Sprint(texts(*answer.Task)) != "[blue]" {
		t.Errorf("answer: %+v, %v", answer.Task, err)
	}
}

func exposeCancel(ctx context.Context, t *testing.T, c *a2aclient.Client, server *a2atest.Server) {
	t.Helper()
	held := a2aText("hold x", "")
	held.Configuration.ReturnImmediately = true
	answer, err := c.Send(ctx, held)
	if err != nil {
		t.Fatal(err)
	}
	awaitState(t, server, "WORKING")
	if task, err := c.Cancel(ctx, answer.Task.ID); err != nil || task.Status.State != a2a.Canceled {
		t.Errorf("cancel: %+v, %v", task, err)
	}
	awaitState(t, server, "CANCELED")
}

// awaitState waits until a task of the server has this state.
func awaitState(t *testing.T, server *a2atest.Server, state string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(25 * time.Millisecond) {
		if strings.Contains(fmt.Sprint(server.States()), state) {
			return
		}
	}
	t.Fatalf("no task became %s: %v", state, server.States())
}

// awaitTask waits until a task has ended.
func awaitTask(t *testing.T, c *a2aclient.Client, id string) a2a.Task {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		task, err := c.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if task.Status.State.Terminal() {
			return task
		}
	}
	t.Fatalf("the task %s did not end", id)
	return a2a.Task{}
}

// TestExposeKilled kills agora a2a expose while its server works. After the next start the task completes, and the server
// got the message once. A-24: an offline agent's task is SUBMITTED, and completes when it comes.
func TestExposeKilled(t *testing.T) {
	server := a2atest.New("JSONRPC", "1.0")
	defer server.Close()
	x := newExposing(t, startServe(t, "--a2a", "--a2a-wait", "1s", "--data", filepath.Join(t.TempDir(), "data")).relay, server.URL)
	c := x.caller()
	held, err := c.Send(t.Context(), a2aText("hold x", ""))
	if err != nil || held.Task.Status.State != a2a.Working {
		t.Fatalf("%+v, %v", held.Task, err)
	}
	awaitState(t, server, "WORKING")
	x.kill()
	offline, err := c.Send(t.Context(), a2aText("echo later", ""))
	if err != nil || offline.Task.Status.State != a2a.Submitted {
		t.Fatalf("%+v, %v", offline.Task, err)
	}
	server.Release()
	x.start()
	for id, want := range map[string]string{held.Task.ID: "[x]", offline.Task.ID: "[later]"} {
		if task := awaitTask(t, c, id); task.Status.State != a2a.Completed || fmt.Sprint(texts(task)) != want {
			t.Errorf("want %s, got %+v", want, task)
		}
	}
	if n := len(server.Messages()); n != 2 {
		t.Errorf("the server got %d messages: %v\n%s", n, server.Messages(), x.log.String())
	}
	if !strings.HasPrefix(x.printed["Key"], "made at an earlier start") {
		t.Errorf("printed %q", x.printed)
	}
	_ = x.process.Process.Signal(os.Interrupt)
	if err := x.process.Wait(); err != nil {
		t.Errorf("interrupted: %v\n%s", err, x.log.String())
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// TestBridge asks an agent whose work an A2A server does, and answers its question.
func TestBridge(t *testing.T) {
	server := a2atest.New("HTTP+JSON", "1.0")
	defer server.Close()
	relay := startServe(t, "--data", filepath.Join(t.TempDir(), "data")).relay
	folder := t.TempDir()
	for _, name := range []string{"bob.key", "alice.key"} {
		key, err := didkey.Generate()
		if err == nil {
			err = didkey.Save(filepath.Join(folder, name), key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	bridge := exec.Command("agora", "a2a", "bridge", server.URL, "--key", "bob.key", "--intent", "double.do", "--relay", relay)
	bridge.Dir = folder
	var log bytes.Buffer
	bridge.Stderr = &log
	if err := bridge.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = bridge.Process.Signal(os.Interrupt)
		if err := bridge.Wait(); err != nil {
			t.Errorf("interrupted: %v\n%s", err, log.String())
		}
	}()
	ask := func(params string, code int) string {
		t.Helper()
		cmd := exec.Command("agora", "ask", "double.do", "--key", "alice.key", "--relay", relay, "--params", params, "--settle", "0s", "--quiet", "--wait", "30s")
		cmd.Dir = folder
		out, err := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != code {
			t.Fatalf("agora ask %s: %v\n%s", params, err, out)
		}
		return string(out)
	}
	if out := ask(`{"text":"echo hi"}`, 0); !strings.Contains(out, `"text":"hi"`) || !strings.Contains(out, `"task":"task-1"`) {
		t.Errorf("echo: %s", out)
	}
	if out := ask(`{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"ask"}]}}`, 6); !strings.Contains(out, `"text":"what?"`) || !strings.Contains(out, `"task":"task-2"`) {
		t.Errorf("ask: %s", out)
	}
	if out := ask(`{"text":"blue","task":"task-2"}`, 0); !strings.Contains(out, `"text":"blue"`) {
		t.Errorf("answer: %s", out)
	}
}

// agora work serves A2A. With --input text its program gets the text of a message, also if the message has no room in
// the REQUEST, and nothing of a message without a text.
func TestWorkA2A(t *testing.T) {
	relay := startServe(t, "--a2a", "--data", filepath.Join(t.TempDir(), "data")).relay
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "bob.key")
	if err := didkey.Save(file, key); err != nil {
		t.Fatal(err)
	}
	worker := exec.Command("agora", "work", "--key", file, "--relay", relay, "--intent", a2a.MessageIntent, "--input", "text",
		"--", "tr", "a-z", "A-Z")
	var log bytes.Buffer
	worker.Stderr = &log
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = worker.Process.Signal(os.Interrupt)
		if err := worker.Wait(); err != nil {
			t.Errorf("interrupted: %v\n%s", err, log.String())
		}
	}()
	e := &exposing{t: t, printed: map[string]string{"DID": string(key.DID())}}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); { // until the relay has the manifest
		out, err := exec.Command("agora", "a2a", "publish", "--key", file, "--relay", relay, "--public").Output()
		if err == nil {
			_, after, _ := strings.Cut(string(out), `"url":"`)
			e.printed["Base URL"], _, _ = strings.Cut(after, `"`)
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	c := e.caller()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, words := range []string{"hello", strings.Repeat("x", 90_000)} {
		answer, err := c.Send(ctx, a2aText(words, ""))
		if err != nil || answer.Task == nil || fmt.Sprint(texts(*answer.Task)) != "["+strings.ToUpper(words)+"]" {
			t.Errorf("%.20s: %.300s, %v\n%s", words, jsontext.Compact(answer), err, log.String())
		}
	}
	silent := a2aText("", "")
	silent.Message.Parts = []a2a.Part{{URL: "https://files.example/a", MediaType: "text/plain"}}
	answer, err := c.Send(ctx, silent)
	if err != nil || answer.Task == nil || answer.Task.Status.State != a2a.Rejected {
		t.Errorf("without a text: %s, %v", jsontext.Compact(answer), err)
	}
}
