package a2acmd

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/a2a/a2aclient"
	"github.com/agora-relay/agora/internal/a2a/a2atest"
)

// newRunner returns a runner at a server, with the state in a file.
func newRunner(t *testing.T, s *a2atest.Server, file string) *runner {
	t.Helper()
	base, err := a2aclient.CheckURL(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	server, err := a2aclient.Open(t.Context(), base, a2aclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	state, err := openTurns(file, server.URL())
	if err != nil {
		t.Fatal(err)
	}
	return &runner{cli.Environment{Ctx: t.Context(), Stderr: new(bytes.Buffer)}, server, state}
}

func newTurn(words string) *turn {
	return &turn{id: "trn_1", task: "tsk_1", send: a2a.Send{Message: a2a.Message{MessageID: "m", Role: a2a.User,
		Parts: []a2a.Part{a2a.TextPart(words)}}}}
}

// TestRepeatedTurn runs a turn again after a crash. If the server had not named a task, the same message is sent again.
// If it had, the task is followed.
func TestRepeatedTurn(t *testing.T) {
	s := a2atest.New("JSONRPC", "1.0")
	defer s.Close()
	file := filepath.Join(t.TempDir(), "state")
	if _, again, err := newRunner(t, s, file).state.begin("trn_1", time.Now()); again || err != nil {
		t.Fatal(again, err)
	}
	for range 2 { // the second run follows the task of the first one
		run := newTurn("echo hello")
		if err := newRunner(t, s, file).run(t.Context(), run); err != nil || run.status.State != a2a.Completed || run.local != "task-1" ||
			len(run.artifacts) != 1 {
			t.Errorf("%+v, %v", run, err)
		}
	}
	if sent := s.Messages(); len(sent) != 1 || sent[0]["messageId"] != "m" {
		t.Errorf("the server got %v", sent)
	}
	state := newRunner(t, s, file).state
	if local := state.local("tsk_1"); local != "task-1" {
		t.Errorf("the task is %q", local)
	}
	if err := state.end("trn_1", "tsk_1"); err != nil || state.local("tsk_1") != "" {
		t.Errorf("the task is still %q, %v", state.local("tsk_1"), err)
	}
}

// TestCutStream checks that a stream which breaks off is continued by following the task.
func TestCutStream(t *testing.T) {
	s := a2atest.New("JSONRPC", "1.0")
	defer s.Close()
	run := newTurn("cut x")
	if err := newRunner(t, s, filepath.Join(t.TempDir(), "state")).run(t.Context(), run); err != nil || run.status.State != a2a.Completed ||
		*run.artifacts[0].Parts[0].Text != "cut off" || len(s.Messages()) != 1 {
		t.Errorf("%+v, %v, %v", run, err, s.Messages())
	}
}

// TestStateIsBounded checks that the file forgets the oldest turns and tasks, and all that is about another server.
func TestStateIsBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	s, err := openTurns(file, "http://a.example")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for i := range maxRows {
		s.file.Turns[fmt.Sprint("old", i)] = &turnRow{At: now.Add(time.Duration(i) * time.Second)}
		s.file.Tasks[fmt.Sprint("old", i)] = &taskRow{At: now.Add(time.Duration(i) * time.Second)}
	}
	if _, _, err = s.begin("new", now.Add(time.Hour*10)); err == nil {
		err = s.name("new", "new", "local", now.Add(time.Hour*10))
	}
	if err != nil || len(s.file.Turns) != maxRows || len(s.file.Tasks) != maxRows || s.file.Turns["old0"] != nil || s.file.Tasks["old0"] != nil || s.local("new") != "local" {
		t.Errorf("%d turns, %d tasks, %v", len(s.file.Turns), len(s.file.Tasks), err)
	}
	other, err := openTurns(file, "http://b.example")
	if err != nil || len(other.file.Turns)+len(other.file.Tasks) != 0 {
		t.Errorf("%d turns, %d tasks, %v", len(other.file.Turns), len(other.file.Tasks), err)
	}
}
