package a2a_test

import (
	"strings"
	"testing"

	"github.com/agora-relay/agora/didkey"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
)

// artifactOf returns an artifact with texts.
func artifactOf(id string, texts ...string) wire.Artifact {
	a := wire.Artifact{ArtifactID: id}
	for _, text := range texts {
		a.Parts = append(a.Parts, wire.TextPart(text))
	}
	return a
}

// endProven ends the present turn with a proof of what is in p. sent are the artifacts of the RESULT.
func (s *stepper) endProven(status string, p wire.Proven, signer didkey.Key, sent ...wire.Artifact) {
	s.f.t.Helper()
	proof, err := p.Sign(signer)
	s.f.must(err)
	s.end(status, string(jsontext.Compact(object{"a2a": wire.Output{Artifacts: sent, Message: p.Message, Proof: &proof}})))
}

// proven returns the proof of a task and what it should be about, as its caller sees them.
func (c caller) proven(id string) (proof *wire.Proof, p wire.Proven) {
	c.f.t.Helper()
	task, err := wire.ParseTask("", canonical(c.f.t, c.task(id)))
	c.f.must(err)
	p = wire.Proven{Task: task.ID, State: task.Status.State, Artifacts: task.Artifacts, Message: task.Status.Message}
	for _, m := range task.History {
		if m.Role == wire.User {
			p.Request = m
			p.Turn++
		}
	}
	if text, found := task.Metadata[wire.ProofURI]; found {
		parsed, err := wire.ParseProof("", text)
		c.f.must(err)
		proof = &parsed
	}
	return proof, p
}

// a proof verifies, also if the agent has sent artifacts in pieces and in an earlier turn. A changed message, artifact,
// state or DID breaks it.
func TestProof(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.stepper(wire.Keys)
		did := a.key.DID()
		c := caller{agent: a.agent, key: a.newKey("alice")}
		id := text(c.sayAtOnce("hello", "metadata", object{"x": 1.5}, "extra", []any{}), "id")
		turn := <-a.turns
		f.want(a.progress(turn, chunk("a", "1", false, false), chunk("a", "2", true, true)), 200, "")
		question := wire.Message{MessageID: "q", Role: wire.Agent, Parts: []wire.Part{wire.TextPart("?")}}
		a.endProven("input-required", wire.Proven{Task: id, Turn: 1, State: wire.InputRequired, Request: turn.Message,
			Artifacts: []wire.Artifact{artifactOf("a", "1", "2")}, Message: &question}, a.key)
		proof, p := c.proven(id)
		if proof == nil || p.Turn != 1 || p.Verify(*proof, did) != nil {
			t.Fatalf("after turn 1: %+v, %+v", proof, p)
		}
		c.sayAtOnce("more", "taskId", id)
		turn = <-a.turns
		if proof, _ := c.proven(id); proof == nil || proof.Turn != "1" {
			t.Errorf("in turn 2 the proof is %+v", proof)
		}
		a.endProven("success", wire.Proven{Task: id, Turn: 2, State: wire.Completed, Request: turn.Message,
			Artifacts: []wire.Artifact{artifactOf("a", "1", "2"), artifactOf("b", "3")}}, a.key, artifactOf("b", "3"))
		proof, p = c.proven(id)
		if proof == nil || p.Turn != 2 || p.Verify(*proof, did) != nil {
			t.Fatalf("after turn 2: %+v, %+v", proof, p)
		}
		for name, change := range map[string]func(*wire.Proven){
			"message":  func(p *wire.Proven) { p.Request.MessageID += "x"; p.Request = remade(t, p.Request) },
			"artifact": func(p *wire.Proven) { p.Artifacts = p.Artifacts[:1] },
			"state":    func(p *wire.Proven) { p.State = wire.Rejected },
			"turn":     func(p *wire.Proven) { p.Turn = 1 },
		} {
			changed := p
			if change(&changed); changed.Verify(*proof, did) == nil {
				t.Errorf("another %s is not noticed", name)
			}
		}
		if p.Verify(*proof, newKey(t).DID()) == nil {
			t.Error("another DID is not noticed")
		}
	})
}

// remade returns a message that is written from its fields.
func remade(t *testing.T, m wire.Message) wire.Message {
	t.Helper()
	made := wire.Message{MessageID: m.MessageID, Role: m.Role, Parts: m.Parts}
	parsed, err := wire.ParseMessage("", jsontext.Compact(made))
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// the relay drops a proof that does not verify. The answer itself is taken.
func TestFalseProof(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.stepper(wire.Keys)
		c := caller{agent: a.agent, key: a.newKey("alice")}
		for name, change := range map[string]func(p *wire.Proven, signer *didkey.Key, sent *[]wire.Artifact){
			"nothing": func(*wire.Proven, *didkey.Key, *[]wire.Artifact) {},
			"signer":  func(_ *wire.Proven, k *didkey.Key, _ *[]wire.Artifact) { *k = newKey(t) },
			"state":   func(p *wire.Proven, _ *didkey.Key, _ *[]wire.Artifact) { p.State = wire.Rejected },
			"task":    func(p *wire.Proven, _ *didkey.Key, _ *[]wire.Artifact) { p.Task = "tsk_x" },
			"request": func(p *wire.Proven, _ *didkey.Key, _ *[]wire.Artifact) {
				p.Request = remade(t, p.Request)
				p.Request.MessageID = "x"
				p.Request = remade(t, p.Request)
			},
			"artifact": func(_ *wire.Proven, _ *didkey.Key, sent *[]wire.Artifact) {
				*sent = []wire.Artifact{artifactOf("b", "other")}
			},
		} {
			id := text(c.sayAtOnce("hello"), "id")
			turn := <-a.turns
			sent, signer := []wire.Artifact{artifactOf("b", "3")}, a.key
			p := wire.Proven{Task: id, Turn: 1, State: wire.Completed, Request: turn.Message, Artifacts: sent}
			change(&p, &signer, &sent)
			a.endProven("success", p, signer, sent...)
			proof, seen := c.proven(id)
			if seen.State != wire.Completed || len(seen.Artifacts) != 1 || (proof != nil) != (name == "nothing") {
				t.Errorf("another %s: the task is %+v, the proof %+v", name, seen, proof)
			}
		}
		large := strings.Repeat("x", 40<<10)
		id := text(c.sayAtOnce("hello"), "id")
		<-a.turns
		a.end("success", `{"a2a":{"proof":{"turn":"1","payload":"`+large+`","protected":"x","signature":"x"}}}`)
		if proof, p := c.proven(id); proof != nil || p.Request.MessageID == "" {
			t.Errorf("a large proof: %+v", proof)
		}
	})
}
