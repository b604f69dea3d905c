//go:build unix

package policycmd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/program"
	"github.com/agora-relay/agora/relay"
	"go.uber.org/goleak"
)

// TestMain runs the tests, or plays a policy command if the environment says so.
func TestMain(m *testing.M) {
	if mode := os.Getenv("POLICY_TEST_MODE"); mode != "" {
		play(mode)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// play is a policy command that behaves as mode says.
func play(mode string) {
	accept := func(id int64) { fmt.Printf("{\"id\":%d,\"accept\":true}\n", id) }
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	var waiting []int64
	switch mode {
	case "deaf": // it reads nothing
		time.Sleep(time.Hour)
	case "flood":
		for {
			if _, err := os.Stdout.Write(bytes.Repeat([]byte("x"), 4096)); err != nil {
				return
			}
		}
	}
	for lines.Scan() {
		var q Question
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		switch mode {
		case "environment":
			for _, variable := range os.Environ() {
				if strings.HasPrefix(variable, "AGORA_") {
					os.Exit(1)
				}
			}
			accept(q.ID)
		case "echo":
			fmt.Fprintf(os.Stdout, "{\"id\":%d,\"accept\":false,\"message\":%q}\n", q.ID, lines.Text())
		case "hostile":
			text, _ := json.Marshal(map[string]any{"id": q.ID, "accept": false,
				"message": "a\x1b[31m\u202e\nagora: forged" + strings.Repeat("ä", 1000)})
			fmt.Println(string(text))
		case "pairs": // it answers the second question before the first
			if waiting = append(waiting, q.ID); len(waiting) == 2 {
				accept(waiting[1])
				accept(waiting[0])
			}
		case "first-slow": // it never answers the first question
			if q.ID > 1 { // a later question may come before it
				accept(q.ID)
			}
		case "hang":
			time.Sleep(time.Hour)
		case "garbage":
			fmt.Println("yes")
		case "empty":
			fmt.Printf("{\"id\":%d}\n", q.ID)
		case "wrong-id":
			accept(q.ID + 1000)
		case "twice":
			accept(q.ID)
			accept(q.ID)
		case "die":
			os.Exit(3)
		case "grandchild": // its child keeps the pipes open
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "POLICY_TEST_MODE=deaf")
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			if err := cmd.Start(); err != nil {
				os.Exit(4)
			}
			_ = os.WriteFile(os.Getenv("POLICY_TEST_PID"), fmt.Appendln(nil, cmd.Process.Pid), 0o600)
			os.Exit(5)
		case "stderr":
			for i := range 100_000 {
				fmt.Fprintf(os.Stderr, "line %d \x1b[31m %s\n", i, strings.Repeat("y", 100))
			}
			accept(q.ID)
		case "once": // it dies after one answer
			accept(q.ID)
			os.Exit(0)
		default:
			accept(q.ID)
		}
	}
	if mode == "stays" { // it does not end with its input
		time.Sleep(time.Hour)
	}
}

// syncBuffer is a log.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// start runs a policy command of this mode until the test ends.
func start(t *testing.T, mode string, o Options) (*Command, *syncBuffer) {
	t.Helper()
	t.Setenv("POLICY_TEST_MODE", mode)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log := &syncBuffer{}
	o.Argv, o.Log = []string{program}, slog.New(slog.NewTextHandler(log, nil))
	c := New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return c, log
}

var sender = func() didkey.Key {
	k, err := didkey.FromSeed(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		panic(err) // cannot happen: any 32 bytes are a valid seed
	}
	return k
}()

func message(t *testing.T) *envelope.Envelope {
	t.Helper()
	e, err := envelope.Draft{Thread: "t", Payload: envelope.Request{RequestID: "r", Intent: "translate"}}.Sign(sender, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

var peer = relay.Peer{Addr: netip.MustParseAddr("192.0.2.7")}

func codeOf(err error) envelope.Code { return envelope.CodeOf(err) }

// TestQuestions checks what the program gets.
func TestQuestions(t *testing.T) {
	for _, payload := range []bool{false, true} {
		c, _ := start(t, "echo", Options{Payload: payload, Timeout: time.Minute})
		e := message(t)
		err := c.Screen(t.Context(), peer, e)
		refused, ok := errors.AsType[*envelope.Error](err)
		if !ok || refused.Code != envelope.CodeForbidden || refused.Code.Retryable() ||
			refused.Details[envelope.DetailReason] != envelope.ReasonPolicy {
			t.Fatalf("refused: %v", err)
		}
		_, text, _ := strings.Cut(refused.Message, "message: ")
		want := fmt.Sprintf(`{"id":1,"event":{"id":"%s","type":"REQUEST","sender":"%s","thread":"t","intent":"translate",`+
			`"bytes":%d`, e.ID, sender.DID(), len(e.Canonical()))
		if !strings.HasPrefix(text, want) {
			t.Errorf("the question is\n%s, want\n%s", text, want)
		}
		q, err := c.question(peer, e)
		if err != nil {
			t.Fatal(err)
		}
		var got Question
		if err := json.Unmarshal(q.line, &got); err != nil || got.Address != "192.0.2.7" || got.Local ||
			(got.Event.Payload != nil) != payload || bytes.Count(q.line, []byte("\n")) != 1 {
			t.Errorf("%v: %s", err, q.line)
		}
	}
}

// TestHostileMessage checks that a sender gets a short text without control characters.
func TestHostileMessage(t *testing.T) {
	c, _ := start(t, "hostile", Options{Timeout: time.Minute})
	err := c.Screen(t.Context(), peer, message(t))
	if text := err.Error(); codeOf(err) != envelope.CodeForbidden || strings.ContainsAny(text, "\x1b\n\u202e") || len([]rune(text)) > 500 {
		t.Errorf("%q", text)
	}
}

// TestEnvironment checks that the program gets no variable of agora.
func TestEnvironment(t *testing.T) {
	t.Setenv("AGORA_STORE", "postgres://agora:secret@db1/agora")
	c, log := start(t, "environment", Options{Timeout: time.Minute})
	if err := c.Screen(t.Context(), peer, message(t)); err != nil {
		t.Errorf("the program finds a variable of agora: %v %s", err, log)
	}
}

// TestPipelining checks that questions are open at the same time, and that answers may come in any order.
func TestPipelining(t *testing.T) {
	c, _ := start(t, "pairs", Options{Timeout: time.Minute})
	var asking sync.WaitGroup
	for range 2 {
		asking.Go(func() {
			if err := c.Screen(t.Context(), peer, message(t)); err != nil {
				t.Error(err)
			}
		})
	}
	asking.Wait()
}

// TestSlowDecision checks that one question without an answer fails alone, while others are answered.
func TestSlowDecision(t *testing.T) {
	c, log := start(t, "first-slow", Options{Timeout: time.Minute})
	ctx, giveUp := context.WithCancel(t.Context()) // ends the wait as Options.Timeout does
	defer giveUp()
	failed := make(chan error, 1)
	go func() { failed <- c.Screen(ctx, peer, message(t)) }()
	for c.nextID.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	for range 50 {
		if err := c.Screen(t.Context(), peer, message(t)); err != nil {
			t.Error(err)
		}
	}
	if len(failed) > 0 {
		t.Error("the slow decision has ended")
	}
	giveUp()
	if err := <-failed; codeOf(err) != envelope.CodeUnavailable || !codeOf(err).Retryable() {
		t.Errorf("the slow decision: %v", err)
	}
	if err := c.Screen(t.Context(), peer, message(t)); err != nil || strings.Contains(log.String(), "has failed") {
		t.Errorf("the program was killed: %v %s", err, log)
	}
}

// TestFaultyPrograms checks that a program that breaks a rule is killed and started again, and that messages are then
// refused or accepted as the setting says.
func TestFaultyPrograms(t *testing.T) {
	for mode, logged := range map[string]string{
		"hang": "it hangs", "deaf": "it hangs", "garbage": "no answer", "empty": "no answer", "die": "it has ended",
		"flood": "a line of more than", "wrong-id": "which is not open", "twice": "which is not open",
	} {
		for _, open := range []bool{false, true} {
			t.Run(fmt.Sprint(mode, open), func(t *testing.T) {
				timeout := time.Minute // only these two must run into it, on a busy machine too
				if mode == "hang" || mode == "deaf" {
					timeout = time.Second
				}
				c, log := start(t, mode, Options{Timeout: timeout, FailOpen: open})
				for !strings.Contains(log.String(), "has failed") {
					err := c.Screen(t.Context(), peer, message(t))
					answered := mode == "twice" && err == nil // the first of its answers
					if want := map[bool]envelope.Code{true: "", false: envelope.CodeUnavailable}[open]; codeOf(err) != want && !answered {
						t.Fatalf("got %v, want the code %q", err, want)
					}
				}
				if !strings.Contains(log.String(), logged) {
					t.Errorf("the log does not say %q: %s", logged, log)
				}
				for strings.Count(log.String(), "the policy command runs") < 2 { // it is started again
					time.Sleep(5 * time.Millisecond)
				}
			})
		}
	}
}

// TestRestart checks that a program that has ended is replaced, and that Health says so meanwhile.
func TestRestart(t *testing.T) {
	c, log := start(t, "once", Options{Timeout: time.Minute})
	accepted, sick := 0, false
	for accepted < 2 || !sick { // the pause before each start is longer, so one is noticed
		if c.Screen(t.Context(), peer, message(t)) == nil {
			accepted++
		}
		sick = sick || c.Health() != nil
	}
	if !sick || strings.Count(log.String(), "it is started again") < 1 {
		t.Errorf("sick: %v; %s", sick, log)
	}
}

// TestProcessGroup checks that the processes that a program has started are killed with it.
func TestProcessGroup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	t.Setenv("POLICY_TEST_PID", file)
	c, log := start(t, "grandchild", Options{Timeout: time.Minute})
	ctx, giveUp := context.WithCancel(t.Context()) // ends the wait as Options.Timeout does
	asked := make(chan error, 1)
	go func() { asked <- c.Screen(ctx, peer, message(t)) }()
	pid := 0
	for pid == 0 {
		time.Sleep(time.Millisecond)
		if text, err := os.ReadFile(file); err == nil && strings.HasSuffix(string(text), "\n") {
			if pid, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
				t.Fatal(err)
			}
		}
	}
	giveUp() // the child holds the pipes, so nothing else shows that the program has ended
	if err := <-asked; codeOf(err) != envelope.CodeUnavailable {
		t.Fatal(err)
	}
	for !strings.Contains(log.String(), "has failed") {
		time.Sleep(time.Millisecond)
	}
	for deadline := time.Now().Add(time.Minute); syscall.Kill(pid, 0) == nil && !isZombie(pid); {
		if time.Now().After(deadline) {
			t.Fatalf("process %d of the group runs after the group was killed", pid)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// isZombie reports whether a process has ended and was not waited for.
func isZombie(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(text), ") Z ")
}

// TestStandardError checks that a flood on standard error is logged in part, escaped, and delays no decision.
func TestStandardError(t *testing.T) {
	began := time.Now()
	c, log := start(t, "stderr", Options{Timeout: 5 * time.Minute})
	if err := c.Screen(t.Context(), peer, message(t)); err != nil {
		t.Fatal(err)
	}
	text := log.String()
	most := program.LogLines * (2 + int(time.Since(began)/program.LogInterval))
	if n := strings.Count(text, "the policy command says"); n > most || n == 0 {
		t.Errorf("%d lines are logged, want at most %d", n, most)
	}
	if strings.Contains(text, "\x1b") {
		t.Error("the log has control characters")
	}
}

// TestShutdown checks that the program ends with Run, also if it does not want to.
func TestShutdown(t *testing.T) {
	for _, mode := range []string{"accept", "stays", "deaf"} {
		t.Setenv("POLICY_TEST_MODE", mode)
		program, _ := os.Executable()
		c := New(Options{Argv: []string{program}, Log: slog.New(slog.DiscardHandler), Timeout: time.Minute})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.Run(ctx)
		}()
		if mode != "deaf" {
			if err := c.Screen(t.Context(), peer, message(t)); err != nil {
				t.Error(err)
			}
		}
		cancel()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatalf("%s: Run does not end", mode)
		}
		if err := c.Screen(t.Context(), peer, message(t)); codeOf(err) != envelope.CodeUnavailable {
			t.Errorf("after Run: %v", err)
		}
	}
}

// TestMissingProgram checks that a program that cannot be started makes every decision fail at once.
func TestMissingProgram(t *testing.T) {
	c := New(Options{Argv: []string{filepath.Join(t.TempDir(), "missing")}, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	for c.Health() == nil {
		time.Sleep(time.Millisecond)
	}
	if err := c.Screen(t.Context(), peer, message(t)); codeOf(err) != envelope.CodeUnavailable {
		t.Error(err)
	}
	cancel()
	<-done
}

// TestCrowd checks that very many questions at the same time are all answered or refused, and that none is lost.
func TestCrowd(t *testing.T) {
	c, _ := start(t, "accept", Options{Timeout: time.Minute})
	e := message(t)
	var asking sync.WaitGroup
	var mu sync.Mutex
	codes := map[envelope.Code]int{}
	for range 2000 {
		asking.Go(func() {
			code := codeOf(c.Screen(t.Context(), peer, e))
			mu.Lock()
			defer mu.Unlock()
			codes[code]++
		})
	}
	asking.Wait()
	if codes[""]+codes[envelope.CodeUnavailable] != 2000 || codes[""] < maxQueued {
		t.Errorf("%v", codes)
	}
}

// TestQueueIsBounded checks that questions are refused at once when too many wait for a program that does not read them.
func TestQueueIsBounded(t *testing.T) {
	c, _ := start(t, "deaf", Options{Timeout: time.Minute})
	e := message(t)
	ctx, cancel := context.WithCancel(t.Context())
	const all, room = 2000, 1000 // the pipe to the program has room for some hundred questions, too
	answered := make(chan error, all)
	for range all {
		go func() { answered <- c.Screen(ctx, peer, e) }()
	}
	for i := range all - room {
		select {
		case err := <-answered:
			if codeOf(err) != envelope.CodeUnavailable {
				t.Errorf("%v", err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("only %d of %d questions are refused at once", i, all)
		}
	}
	cancel()
	for range room {
		<-answered
	}
}
