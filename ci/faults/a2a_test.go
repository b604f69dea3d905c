//go:build a2a

package faults

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// sampleWords is what a shell program must do to be the sample agent of ci/a2a, except that it cannot ask for input.
const sampleWords = `read -r word rest || test -n "$word"
case "$word" in
hold) exec sleep 600 ;;
chunks) printf %s "$rest" | tr -d ' ' ;;
*) printf %s "$rest" ;;
esac`

// Programs of others.
const (
	a2aClientJS = "../../sdk/js/test/a2aclient.mjs"
	a2aServerJS = "../../sdk/js/test/a2aserver.mjs"
)

// running is a program that runs until the test ends.
type running struct {
	*process
	out tailBuffer // of both outputs
}

// run starts a program, and waits until its output has the text ready.
func run(t testing.TB, ready string, line ...string) *running {
	t.Helper()
	p := &running{process: &process{Cmd: exec.Command(line[0], line[1:]...), ended: make(chan struct{})}}
	useProcessGroup(p.Cmd)
	p.Stdout, p.Stderr = &p.out, &p.out
	must(t, p.Start())
	go func() {
		_ = p.Wait() // the output says why
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill(t)
		if t.Failed() {
			t.Logf("the end of the output of %v:\n%s", line, p.out.String())
		}
	})
	within(t, startTimeout, "output of "+line[0], func() bool {
		select {
		case <-p.ended:
			t.Fatalf("%v has ended", line)
		default:
		}
		return strings.Contains(p.out.String(), ready)
	})
	return p
}

// kill kills the program with all that it has started.
func (p *running) kill(t testing.TB) {
	must(t, killGroup(p.Cmd))
	<-p.ended
}

// agora runs the program under test, which must succeed, and returns its output.
func agora(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command(binary, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("agora %s: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// a2aEndpoint is where callers reach an agent.
type a2aEndpoint struct {
	base, key string
	args      []string // of the client that checks it
}

// found returns what a regular expression with one group finds in a text.
func found(t testing.TB, pattern, text string) string {
	t.Helper()
	match := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if match == nil {
		t.Fatalf("no %s in %s", pattern, text)
	}
	return match[1]
}

// workConcurrency is how many programs an agora work runs at the same time.
const workConcurrency = 4

// workEndpoint starts an agora work with a shell program, and publishes its endpoint. start starts it again.
func workEndpoint(t testing.TB, relay, script string) (e a2aEndpoint, agent *running, start func() *running) {
	t.Helper()
	key := filepath.Join(t.TempDir(), "work.key")
	agora(t, "keygen", key)
	start = func() *running {
		return run(t, "working for", binary, "work", "--key", key, "--relay", relay, "--intent", "sample.do",
			"--input", "text",
			"--concurrency", strconv.Itoa(workConcurrency), "--attempts", "1000", "--grace", "1s", "--", "sh", "-c", script)
	}
	agent = start()
	within(t, startTimeout, "the relay has the manifest", func() bool {
		out, err := exec.Command(binary, "a2a", "publish", "--key", key, "--relay", relay).Output()
		if err == nil {
			e.base = found(t, `"url":"([^"]*)"`, string(out))
		}
		return err == nil
	})
	e.key = found(t, `(aa_[\w-]{43})`, agora(t, "a2a", "keys", "new", "alice", "--key", key, "--relay", relay))
	return e, agent, start
}

// exposed starts a server of others, and agora a2a expose for it. public says that callers need no key.
func exposed(t testing.TB, relay string, public bool, server ...string) a2aEndpoint {
	t.Helper()
	key := filepath.Join(t.TempDir(), "expose.key")
	agora(t, "keygen", key)
	at := strings.TrimSpace(run(t, "\n", server...).out.String())
	line := []string{binary, "a2a", "expose", at, "--key", key, "--relay", relay, "--concurrency", "4"}
	if public {
		line = append(line, "--public")
	}
	printed := run(t, "Leave:", line...).out.String()
	e := a2aEndpoint{base: found(t, `Base URL: (\S+)`, printed), args: []string{"input"}}
	if !public {
		e.key = found(t, `Key: +(\S+)`, printed)
	}
	return e
}

// TestA2AClients lets the SDKs of the A2A project for Go and JavaScript call an agora work, and servers that are made
// with both SDKs behind agora a2a expose: cards, both bindings, sending, streams, input, cancel and lists (A-2, A-5,
// make a2a runs it.
func TestA2AClients(t *testing.T) {
	t.Parallel()
	client := filepath.Join(t.TempDir(), "a2a.exe")
	if out, err := exec.Command("go", "build", "-C", "../a2a", "-o", client, ".").CombinedOutput(); err != nil {
		t.Fatalf("cannot build ci/a2a: %v\n%s", err, out)
	}
	relay := newServer(t, "--a2a", "--log-level", "warn")
	relay.start()
	at, err := relay.address(t.Context())
	must(t, err)
	work, _, _ := workEndpoint(t, at, sampleWords)
	for name, endpoint := range map[string]a2aEndpoint{
		"work": work, "GoServer": exposed(t, at, true, client, "serve"),
		"JavaScriptServer": exposed(t, at, false, "node", a2aServerJS),
	} {
		for language, line := range map[string][]string{"Go": {client, "call"}, "JavaScript": {"node", a2aClientJS}} {
			t.Run(name+"From"+language, func(t *testing.T) {
				t.Parallel()
				line = append(append(line, endpoint.base), endpoint.args...)
				cmd := exec.CommandContext(t.Context(), line[0], line[1:]...)
				cmd.Env = append(os.Environ(), "A2A_KEY="+endpoint.key)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v: %v\n%s", line, err, out)
				}
			})
		}
	}
}
