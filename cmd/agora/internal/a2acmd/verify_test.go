package a2acmd

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
)

// what a relay changes in a task breaks its proof, and the error says what.
func TestCheckProof(t *testing.T) {
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	words := func(role a2a.Role, text string) a2a.Message {
		return a2a.Message{MessageID: "m-" + text, Role: role, Parts: []a2a.Part{a2a.TextPart(text)}}
	}
	answer := words(a2a.Agent, "done")
	made := func() a2a.Task {
		p := a2a.Proven{Task: "tsk_1", Turn: 2, State: a2a.Completed, Request: words(a2a.User, "blue"), Message: &answer,
			Artifacts: []a2a.Artifact{{ArtifactID: "a", Parts: []a2a.Part{a2a.TextPart("result")}}}}
		proof, err := p.Sign(key)
		if err != nil {
			t.Fatal(err)
		}
		return a2a.Task{ID: p.Task, Status: a2a.Status{State: p.State, Message: p.Message}, Artifacts: p.Artifacts,
			History:  []a2a.Message{words(a2a.User, "paint"), words(a2a.Agent, "which color?"), p.Request, answer},
			Metadata: map[string]json.RawMessage{a2a.ProofURI: jsontext.Compact(proof)}}
	}
	if p, err := checkProof(made(), key.DID()); err != nil || p.Turn != 2 {
		t.Fatalf("%+v, %v", p, err)
	}
	for want, change := range map[string]func(*a2a.Task){
		"another request":   func(task *a2a.Task) { task.History[2] = words(a2a.User, "red") },
		"another artifacts": func(task *a2a.Task) { task.Artifacts[0].Parts[0] = a2a.TextPart("other") },
		"another message":   func(task *a2a.Task) { m := words(a2a.Agent, "failed"); task.Status.Message = &m },
		"another state":     func(task *a2a.Task) { task.Status.State = a2a.Rejected },
		"another task":      func(task *a2a.Task) { task.ID = "tsk_2" },
		"is about turn 2":   func(task *a2a.Task) { task.History = append(task.History, words(a2a.User, "more")) },
		"has no proof":      func(task *a2a.Task) { task.Metadata = nil },
		"is not finished":   func(task *a2a.Task) { task.Status.State = a2a.Working },
	} {
		task := made()
		change(&task)
		if _, err := checkProof(task, key.DID()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	other, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := checkProof(made(), other.DID()); err == nil {
		t.Error("another DID is not noticed")
	}
}
