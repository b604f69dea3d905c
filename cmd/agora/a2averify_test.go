package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/internal/a2a/a2atest"
)

// expose makes proofs, of a first turn, of a question and of the turn that answers it. agora a2a verify checks them.
func TestVerifyProof(t *testing.T) {
	relay := startServe(t, "--a2a", "--data", filepath.Join(t.TempDir(), "data")).relay
	server := a2atest.New("JSONRPC", "1.0")
	defer server.Close()
	x := newExposing(t, relay, server.URL)
	c := x.caller()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	key, _, _ := strings.Cut(x.printed["Key"], " ")
	bearer := filepath.Join(t.TempDir(), "alice.a2a")
	if err := os.WriteFile(bearer, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	verify := func(task string, code int, want string) {
		t.Helper()
		got, output := runAgora(ctx, "a2a", "verify", x.printed["Base URL"], "--task", task, "--bearer", bearer)
		if got != code || !strings.Contains(output, want) {
			t.Errorf("%s: exit code %d, %.300s; want %d, %s", task, got, output, code, want)
		}
	}
	line := func(task string, turn int, state, request string) string {
		return fmt.Sprintf(`"task":%q,"turn":%d,"state":"TASK_STATE_%s","request":%q`, task, turn, state, request)
	}
	send := func(words, task string) string {
		t.Helper()
		message := a2aText(words, task)
		message.Message.MessageID = "m"
		answer, err := c.Send(ctx, message)
		if err != nil || answer.Task == nil {
			t.Fatalf("%.20s: %.200v, %v", words, answer, err)
		}
		return answer.Task.ID
	}
	for words, state := range map[string]string{"echo hello": "COMPLETED", "chunks x": "COMPLETED", "reject x": "REJECTED"} {
		id := send(words, "")
		verify(id, 0, line(id, 1, state, words))
	}
	id := send("ask", "")
	verify(id, 0, line(id, 1, "INPUT_REQUIRED", "ask"))
	send("blue", id)
	verify(id, 0, line(id, 2, "COMPLETED", "blue"))
	id = send("echo "+strings.Repeat("x", 100<<10), "") // the REQUEST has no room for it, so expose reads it
	verify(id, 0, `"turn":1,"state":"TASK_STATE_COMPLETED","request":"echo xxx`)
	verify("tsk_none", 1, "There is no task with this id")
	verify(send("refuse x", ""), 1, "the task has no proof")
}
