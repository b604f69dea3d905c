//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/a2a/a2aclient"
	"github.com/agora-relay/agora/internal/jsontext"
)

// startA2A runs agora work --a2a for a script, and returns a client of its endpoint, which everybody may call.
func (w *workTest) startA2A(script string, flags ...string) *a2aclient.Client {
	w.t.Helper()
	log, _ := w.start(script, append([]string{"--a2a", "--public"}, flags...)...)
	e := &exposing{t: w.t, printed: map[string]string{"DID": string(w.agent)}}
	e.printed["Base URL"] = regexp.MustCompile(`over A2A at (http\S+/)\n`).FindStringSubmatch(log.String())[1]
	return e.caller()
}

// agora work --a2a publishes the endpoint, says where it is, and serves it. A-33: with --output lines, each line reaches
// the caller while the program runs. A-43: the agent signs what it has sent.
func TestWorkA2ALines(t *testing.T) {
	t.Parallel()
	w := newWorkTest(t, startServe(t, "--a2a", "--data", filepath.Join(t.TempDir(), "data")).relay)
	c := w.startA2A(`read -r text; case $text in
wait) echo one; until [ -e DIR/go ]; do sleep 0.05; done; printf 'two\n\nend';;
fail) echo half; exit 65;;
bytes) printf '\377\n';;
flood) yes 0123456789012345678901234567890123456789;;
esac`, "--input", "text", "--output", "lines", "--name", "Reader")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var lines []string
	var task string
	err := c.Stream(ctx, a2aText("wait", ""), func(e a2a.Stream) error {
		if e.Task != nil {
			task = e.Task.ID
		}
		if u := e.ArtifactUpdate; u != nil {
			if first := len(lines) == 0; u.Append == first || first && u.Artifact.Name != "output" {
				t.Errorf("the chunk is %s", jsontext.Compact(u))
			}
			for _, part := range u.Artifact.Parts {
				lines = append(lines, *part.Text)
			}
			return os.WriteFile(w.file("go"), nil, 0o600) // the program ends only after its first line has come
		}
		return nil
	})
	if got := fmt.Sprintf("%q", lines); err != nil || got != `["one\n" "two\n" "\n" "end"]` {
		t.Errorf("the lines are %s, %v", got, err)
	}
	got, err := c.Get(ctx, task)
	if err != nil || got.Status.State != a2a.Completed || got.Metadata[a2a.ProofURI] == nil {
		t.Fatalf("the task is %s, %v", jsontext.Compact(got), err)
	}
	proof, err := a2a.ParseProof("", got.Metadata[a2a.ProofURI])
	proven := a2a.Proven{Task: task, Turn: 1, State: a2a.Completed, Request: got.History[0], Artifacts: got.Artifacts}
	if err == nil {
		err = proven.Verify(proof, w.agent)
	}
	if err != nil {
		t.Error(err)
	}
	for words, want := range map[string][2]string{
		"nothing": {"TASK_STATE_COMPLETED []", ""},
		"fail":    {"TASK_STATE_REJECTED [half\n]", "the program exited with the code 65"},
		"bytes":   {"TASK_STATE_FAILED []", "is not UTF-8"},
		"flood":   {"TASK_STATE_FAILED", ""},
	} {
		answer, err := c.Send(ctx, a2aText(words, ""))
		if err != nil || answer.Task == nil {
			t.Fatalf("%s: %v", words, err)
		}
		said := ""
		if m := answer.Task.Status.Message; m != nil {
			said = m.Text()
		}
		if state := fmt.Sprint(answer.Task.Status.State, " ", texts(*answer.Task)); !strings.HasPrefix(state, want[0]) || !strings.Contains(said, want[1]) {
			t.Errorf("%s: %.300s, %s", words, state, said)
		}
	}
	if output, failure := w.result(w.hire(map[string]string{"text": "fail"})); failure == nil {
		t.Errorf("an ordinary job that fails gets %s", output)
	}
	if output, _ := w.result(w.hire(map[string]string{"text": "wait"})); output != `"one\ntwo\n\nend"` {
		t.Errorf("an ordinary job gets %s", output)
	}
}

// TestWorkA2AManifest checks the card of an agent with a manifest, that its own intents are served too, and that an output
// of another kind becomes an artifact.
func TestWorkA2AManifest(t *testing.T) {
	w := newWorkTest(t, startServe(t, "--a2a", "--data", filepath.Join(t.TempDir(), "data")).relay)
	manifest := w.file("bob.json")
	if err := os.WriteFile(manifest, []byte(`{"id":"cap_bob","name":"Bob","intents":[{"id":"test","name":"tests"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c := w.startA2A(`echo '{"n":1}'`, "--manifest", manifest, "--listed")
	card := c.Upstream.Card
	if card.Name != "Bob" || len(card.Skills) != 1 || card.Skills[0].Name != "tests" || len(card.Capabilities.Extensions) != 0 {
		t.Errorf("the card is %s", jsontext.Compact(card))
	}
	answer, err := c.Send(t.Context(), a2aText("x", ""))
	if err != nil || answer.Task == nil || string(answer.Task.Artifacts[0].Parts[0].Data) != `{"n":1}` {
		t.Errorf("the answer is %s, %v", jsontext.Compact(answer), err)
	}
	if output, _ := w.result(w.hire(nil)); output != `{"n":1}` {
		t.Errorf("an ordinary job gets %s", output)
	}
	call, err := w.client.Request(t.Context(), client.RequestOptions{Intent: a2a.MessageIntent, Recipient: w.agent, Params: map[string]any{}})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range call.Offers(t.Context()) {
		if err == nil {
			t.Error("a stranger's turn gets an offer")
		}
		break
	}
}
