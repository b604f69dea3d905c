package a2a

import (
	"encoding/json"
	"path"
)

// Stream is an event of a stream: exactly one of its fields.
type Stream struct {
	Task           *Task           `json:"task,omitempty"`
	Message        *Message        `json:"message,omitempty"`
	StatusUpdate   *StatusUpdate   `json:"statusUpdate,omitempty"`
	ArtifactUpdate *ArtifactUpdate `json:"artifactUpdate,omitempty"`
}

// StatusUpdate says that a task has another state.
type StatusUpdate struct {
	TaskID    string          `json:"taskId"`
	ContextID string          `json:"contextId,omitempty"`
	Status    Status          `json:"status"`
	Metadata  json.RawMessage `json:"metadata,omitempty"` // an object
}

// ArtifactUpdate brings an artifact, or a further chunk of one.
type ArtifactUpdate struct {
	TaskID    string          `json:"taskId,omitempty"`
	ContextID string          `json:"contextId,omitempty"`
	Artifact  Artifact        `json:"artifact"`
	Append    bool            `json:"append,omitempty"`    // the parts follow those that came before with this id
	LastChunk bool            `json:"lastChunk,omitempty"` // no more parts will come
	Metadata  json.RawMessage `json:"metadata,omitempty"`  // an object
}

// ParseStream reads an event. The answer of SendMessage has the same form, with a task or a message. Errors: BadParams.
func ParseStream(path string, text []byte) (Stream, error) {
	r := read(path, text)
	r.exactly("task", "message", "statusUpdate", "artifactUpdate")
	s := Stream{
		Task:           one(r, "task", ParseTask),
		Message:        one(r, "message", ParseMessage),
		StatusUpdate:   one(r, "statusUpdate", parseStatusUpdate),
		ArtifactUpdate: one(r, "artifactUpdate", parseTaskArtifact),
	}
	return s, r.err
}

func parseStatusUpdate(path string, text []byte) (StatusUpdate, error) {
	r := read(path, text)
	u := StatusUpdate{TaskID: r.text("taskId", true), ContextID: r.text("contextId", false), Metadata: r.object("metadata")}
	r.value("status", true)
	if status := one(r, "status", parseStatus); status != nil {
		u.Status = *status
	}
	return u, r.err
}

func parseTaskArtifact(path string, text []byte) (ArtifactUpdate, error) {
	u, err := parseArtifactUpdate(path, text)
	if err == nil && u.TaskID == "" {
		err = Invalid(path+".taskId", "is missing")
	}
	return u, err
}

func parseArtifactUpdate(path string, text []byte) (ArtifactUpdate, error) {
	r := read(path, text)
	u := ArtifactUpdate{
		TaskID:    r.text("taskId", false),
		ContextID: r.text("contextId", false),
		Append:    r.flag("append"),
		LastChunk: r.flag("lastChunk"),
		Metadata:  r.object("metadata"),
	}
	r.value("artifact", true)
	if artifact := one(r, "artifact", ParseArtifact); artifact != nil {
		u.Artifact = *artifact
	}
	return u, r.err
}

// Limits of what an agent sends (A2A §4, §5).
const (
	MaxEvents   = 64        // events of progress at once
	MaxProgress = 256 << 10 // bytes of their body
	MaxTask     = 4 << 20   // bytes that a task keeps
	MaxSealed   = 80 << 10  // bytes of params and of an output; with the sealing they fit into a message
)

// Progress is an event that an agent sends while it works: exactly one of its fields. The artifact's update has no ids.
type Progress struct {
	Status   *ProgressStatus `json:"statusUpdate,omitempty"`
	Artifact *ArtifactUpdate `json:"artifactUpdate,omitempty"`
}

// ProgressStatus is a state that an agent sends while it works: Working or AuthRequired.
type ProgressStatus struct {
	State   State    `json:"state"`
	Message *Message `json:"message,omitempty"`
}

// ParseProgress reads the body of POST {work}/events. Errors: BadParams.
func ParseProgress(body []byte) ([]Progress, error) {
	r := read("", body)
	if events := r.list("events", true); len(events) > MaxEvents {
		r.fail("events", "must have at most %d elements", MaxEvents)
	}
	progress := all(r, "events", true, parseProgress)
	return progress, r.err
}

func parseProgress(path string, text []byte) (Progress, error) {
	r := read(path, text)
	r.exactly("statusUpdate", "artifactUpdate")
	p := Progress{
		Status:   one(r, "statusUpdate", parseProgressStatus),
		Artifact: one(r, "artifactUpdate", parseArtifactUpdate),
	}
	if p.Artifact != nil {
		p.Artifact.TaskID, p.Artifact.ContextID = "", ""
	}
	return p, r.err
}

func parseProgressStatus(path string, text []byte) (ProgressStatus, error) {
	r := read(path, text)
	s := ProgressStatus{oneOf(r, "state", Working, AuthRequired), one(r, "message", ParseMessage)}
	return s, r.err
}

// Output is what an agent may return as output.a2a of a RESULT (A2A §4).
type Output struct {
	Artifacts []Artifact `json:"artifacts,omitempty"`
	Message   *Message   `json:"message,omitempty"` // becomes the status message
	Direct    bool       `json:"direct,omitempty"`  // a call that still waits may get the message in place of a task
	Proof     *Proof     `json:"proof,omitempty"`
}

// ParseOutput reads the object output.a2a. Errors: BadParams.
func ParseOutput(text []byte) (Output, error) {
	r := read("output.a2a", text)
	o := Output{
		Artifacts: all(r, "artifacts", false, ParseArtifact),
		Message:   one(r, "message", ParseMessage),
		Direct:    r.flag("direct"),
		Proof:     one(r, "proof", ParseProof),
	}
	return o, r.err
}

// Kinds of callers (A2A §4).
const (
	CallerKey       = "key"
	CallerDID       = "did"
	CallerAnonymous = "anonymous"
)

// Caller is who sent the message of a turn, as the relay says.
type Caller struct {
	Kind string `json:"kind"`
	Name string `json:"name,omitempty"` // of the key
	DID  string `json:"did,omitempty"`
}

// Turn is the params of a REQUEST with the intent a2a.message (A2A §4).
type Turn struct {
	Task                string          `json:"task"`
	Turn                int             `json:"turn"` // from 1 on
	Context             string          `json:"context"`
	Caller              Caller          `json:"caller"`
	Message             Message         `json:"message"`
	History             []Message       `json:"history"` // oldest first
	AcceptedOutputModes []string        `json:"acceptedOutputModes,omitempty"`
	Extensions          []string        `json:"extensions,omitempty"` // what the caller named in A2A-Extensions
	Metadata            json.RawMessage `json:"metadata,omitempty"`
	Partial             bool            `json:"partial,omitempty"` // history or parts are left out; Work has them
	Work                string          `json:"work"`              // the URL of the turn
}

// Notification is the params of a REQUEST with the intent a2a.notification (A2A §8): what a hook got.
type Notification struct {
	Hook          string          `json:"hook"`  // its id
	Event         json.RawMessage `json:"event"` // a Stream object
	Token         string          `json:"token"`
	Authorization string          `json:"authorization"` // the header of the push
}

// WorkPath returns the path of Work below the URL of the gateway.
func (t Turn) WorkPath() string { return "/work/" + path.Base(t.Work) }

// maxTurns is larger than the number of turns of every task.
const maxTurns = 1 << 30

// ParseTurn reads the params. Errors: BadParams.
func ParseTurn(text []byte) (Turn, error) {
	r := read("params", text)
	t := Turn{
		Task:                r.text("task", true),
		Context:             r.text("context", true),
		History:             all(r, "history", false, ParseMessage),
		AcceptedOutputModes: r.texts("acceptedOutputModes"),
		Extensions:          r.texts("extensions"),
		Metadata:            r.object("metadata"),
		Partial:             r.flag("partial"),
		Work:                r.text("work", true),
	}
	r.value("turn", true)
	if n := r.count("turn", 1, maxTurns); n != nil {
		t.Turn = *n
	}
	r.value("caller", true)
	if caller := one(r, "caller", parseCaller); caller != nil {
		t.Caller = *caller
	}
	r.value("message", true)
	message := one(r, "message", func(path string, text []byte) (Message, error) {
		return parseMessage(path, text, !t.Partial)
	})
	if message != nil {
		t.Message = *message
	}
	return t, r.err
}

func parseCaller(path string, text []byte) (Caller, error) {
	r := read(path, text)
	c := Caller{oneOf(r, "kind", CallerKey, CallerDID, CallerAnonymous), r.text("name", false), r.text("did", false)}
	return c, r.err
}
