package a2a

import (
	"bytes"
	"encoding/json"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
)

// This file changes tasks.

// add stores an event of a task. The caller stores the row of the task.
func (t *task) add(o *gateway.Op, e event) error {
	t.seq++
	e.task, e.seq, e.turn, e.at = t.n, t.seq, t.turn, o.Now
	t.bytes += e.size()
	if err := use(o.ExtTx, t.endpoint, 0, e.size()); err != nil {
		return err
	}
	return insertEvent(o.ExtTx, e)
}

// setStatus gives a task another status. message is nil, or the status message. flags are the flags of the event.
func (t *task) setStatus(o *gateway.Op, s wire.State, message *wire.Message, flags int64) error {
	e := event{kind: status, state: s, flags: flags}
	if message != nil {
		e.said, e.body = true, messageText(*message)
	}
	if err := t.add(o, e); err != nil {
		return err
	}
	t.state, t.statusAt, t.statusSeq = s, o.Now, t.seq
	if !s.Terminal() {
		return nil
	}
	t.ended = o.Now
	return use(o.ExtTx, t.endpoint, 1, 0)
}

// messageText returns a message without the ids that the relay sets.
func messageText(m wire.Message) string {
	return string(jsontext.Compact(m.In("", "", m.ReferenceTaskIDs)))
}

// addArtifact stores an artifact, or a chunk of one. A chunk that follows nothing begins an artifact.
func (t *task) addArtifact(o *gateway.Op, a wire.ArtifactUpdate) error {
	p, err := artifactByID(o, t.n, a.Artifact.ArtifactID)
	if err != nil {
		return err
	}
	e := event{kind: artifact}
	if e.body, e.parts = splitArtifact(a.Artifact); a.LastChunk {
		e.flags |= last
	}
	if p.place == 0 {
		t.artifacts++
		p = piece{task: t.n, place: t.artifacts, id: a.Artifact.ArtifactID}
		a.Append = false
	}
	if e.artifact = p.place; a.Append {
		e.flags |= appended
	} else {
		p.base = t.seq + 1
		if err := setArtifact(o.ExtTx, p); err != nil {
			return err
		}
	}
	return t.add(o, e)
}

// splitArtifact returns the JSON of an artifact without its parts, and the JSON of the parts, with commas between them.
func splitArtifact(a wire.Artifact) (body, parts string) {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(jsontext.Compact(a), &members) // it is an object
	list := members["parts"]
	delete(members, "parts")
	return string(jsontext.Compact(members)), string(bytes.TrimSuffix(bytes.TrimPrefix(list, []byte("[")), []byte("]")))
}

// outcome is what ends a turn.
type outcome struct {
	state     wire.State
	message   *wire.Message
	artifacts []wire.Artifact
	direct    bool // a call that still waits gets only the message
	proof     *wire.Proof
	proven    int64 // the newest event of the task when the proof was checked
}

// text returns an outcome with a text as its message.
func failure(s wire.State, text string) outcome { return outcome{state: s, message: agentText(text)} }

// agentText returns a message of an agent with one text.
func agentText(text string, more ...wire.Part) *wire.Message {
	text = gateway.CleanText(text)
	return &wire.Message{MessageID: gateway.NewID("msg_"), Role: wire.Agent,
		Parts: append([]wire.Part{wire.TextPart(text)}, more...)}
}

// finish ends the newest turn of a task.
func (g *Gateway) finish(o *gateway.Op, t task, u turn, out outcome) error {
	if size := out.size(); t.bytes+size > g.taskBytes {
		out = failure(wire.Failed, "The answer of the agent is too large for this task.")
	}
	if u.n != 0 && u.state != deliver.Over {
		u.state = deliver.Over
		u.prove(t, out)
		if err := updateTurn(o.ExtTx, u); err != nil {
			return err
		}
		o.Then(g.deliveries.Wake)
	}
	t.direct = out.direct && u.number == 1 && t.artifacts == 0 && len(out.artifacts) == 0 && out.message != nil &&
		!t.progressed()
	for _, a := range out.artifacts {
		if err := t.addArtifact(o, wire.ArtifactUpdate{Artifact: a, LastChunk: true}); err != nil {
			return err
		}
	}
	t.open = false
	if err := t.setStatus(o, out.state, out.message, endsTurn); err != nil {
		return err
	}
	return g.save(o, t)
}

// save stores a task that has new events, and tells those who wait for them.
func (g *Gateway) save(o *gateway.Op, t task) error {
	o.Then(func() { g.news.Tell(t.n) })
	if err := updateTask(o.ExtTx, t); err != nil {
		return err
	}
	return g.queuePushes(o, t)
}

// progressed reports whether the agent has sent events in the first turn of a task: before, there are the message of the
// caller, and the states SUBMITTED and WORKING.
func (t task) progressed() bool { return t.seq > 3 }

// size is about how much an outcome adds to its task.
func (out outcome) size() (n int64) {
	for _, a := range out.artifacts {
		n += int64(len(jsontext.Compact(a))) + 100
	}
	if out.message != nil {
		n += int64(len(jsontext.Compact(out.message)))
	}
	return n
}
