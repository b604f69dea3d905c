package a2a

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/jsontext"
)

// Role says who wrote a message.
type Role string

// The roles.
const (
	User  Role = "ROLE_USER"
	Agent Role = "ROLE_AGENT"
)

// State is the state of a task.
type State string

// The states.
const (
	Submitted     State = "TASK_STATE_SUBMITTED"
	Working       State = "TASK_STATE_WORKING"
	InputRequired State = "TASK_STATE_INPUT_REQUIRED"
	AuthRequired  State = "TASK_STATE_AUTH_REQUIRED"
	Completed     State = "TASK_STATE_COMPLETED"
	Failed        State = "TASK_STATE_FAILED"
	Canceled      State = "TASK_STATE_CANCELED"
	Rejected      State = "TASK_STATE_REJECTED"
)

var states = []State{Submitted, Working, InputRequired, AuthRequired, Completed, Failed, Canceled, Rejected}

// Terminal reports whether a task in this state never changes again.
func (s State) Terminal() bool {
	return s == Completed || s == Failed || s == Canceled || s == Rejected
}

// Interrupted reports whether a task in this state waits for its caller.
func (s State) Interrupted() bool { return s == InputRequired || s == AuthRequired }

// results are the states in which a turn can end, beside Failed, and the statuses of their RESULTs (A2A §4).
var results = map[State]string{
	Completed: "success", InputRequired: "input-required", AuthRequired: "auth-required", Rejected: "rejected",
}

// Result returns the status of a RESULT that ends a turn in this state. All states that are not in the table fail.
func (s State) Result() string {
	if s == Canceled {
		return "canceled"
	}
	return cmp.Or(results[s], "failed")
}

// StateOf returns the state in which a RESULT with this status ends a turn.
func StateOf(status string) State {
	for state, name := range results {
		if name == status {
			return state
		}
	}
	return Failed
}

// Message is one message of a caller or an agent. One that was read is written as it was read, with all its members.
type Message struct {
	MessageID        string          `json:"messageId"`
	Role             Role            `json:"role"`
	Parts            []Part          `json:"parts"`
	ContextID        string          `json:"contextId,omitempty"`
	TaskID           string          `json:"taskId,omitempty"`
	Metadata         json.RawMessage `json:"metadata,omitempty"` // an object
	Extensions       []string        `json:"extensions,omitempty"`
	ReferenceTaskIDs []string        `json:"referenceTaskIds,omitempty"`

	source json.RawMessage // what was read; nil: the message was made here
}

// ParseMessage reads a message. path is its name in errors. Errors: BadParams.
func ParseMessage(path string, text []byte) (Message, error) { return parseMessage(path, text, true) }

// parseMessage reads a message. If it is not whole, its parts may have been left out (A2A §4).
func parseMessage(path string, text []byte, whole bool) (Message, error) {
	r := read(path, text)
	m := Message{
		MessageID:        r.text("messageId", true),
		Role:             oneOf(r, "role", User, Agent),
		Parts:            all(r, "parts", whole, ParsePart),
		ContextID:        r.text("contextId", false),
		TaskID:           r.text("taskId", false),
		Metadata:         r.object("metadata"),
		Extensions:       r.texts("extensions"),
		ReferenceTaskIDs: r.texts("referenceTaskIds"),
		source:           text,
	}
	return m, r.err
}

// In returns the message with other ids: of its context, of its task, and of the tasks that it refers to. Empty ones
// are left out.
func (m Message) In(contextID, taskID string, references []string) Message {
	m.ContextID, m.TaskID, m.ReferenceTaskIDs = contextID, taskID, references
	if m.source == nil {
		return m
	}
	values := map[string]any{"contextId": nil, "taskId": nil, "referenceTaskIds": nil}
	if contextID != "" {
		values["contextId"] = contextID
	}
	if taskID != "" {
		values["taskId"] = taskID
	}
	if len(references) > 0 {
		values["referenceTaskIds"] = references
	}
	m.source = set(m.source, values)
	return m
}

// Text returns all text parts, joined by line breaks.
func (m Message) Text() string {
	var texts []string
	for _, p := range m.Parts {
		if p.Text != nil {
			texts = append(texts, *p.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// WithoutParts returns the message without its parts, as in a REQUEST that is too small for them (A2A §4).
func (m Message) WithoutParts() Message {
	m.Parts = []Part{}
	if m.source != nil {
		m.source = set(m.source, map[string]any{"parts": m.Parts})
	}
	return m
}

// MarshalJSON returns what was read, or the fields.
func (m Message) MarshalJSON() ([]byte, error) {
	type plain Message
	return written(m.source, plain(m))
}

// UnmarshalJSON reads a message as ParseMessage does.
func (m *Message) UnmarshalJSON(text []byte) (err error) {
	*m, err = parseCopy(text, ParseMessage)
	return err
}

// Part is a piece of content: exactly one of Text, Raw, URL and Data. One that was read is written as it was read.
type Part struct {
	Text      *string         `json:"text,omitempty"`
	Raw       string          `json:"raw,omitempty"` // base64
	URL       string          `json:"url,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"` // any value
	MediaType string          `json:"mediaType,omitempty"`
	Filename  string          `json:"filename,omitempty"`
	Metadata  json.RawMessage `json:"metadata,omitempty"` // an object

	source json.RawMessage
}

// TextPart returns a part with a text.
func TextPart(text string) Part { return Part{Text: &text} }

// DataPart returns a part with a JSON value.
func DataPart(value json.RawMessage) Part { return Part{Data: value} }

// ParsePart reads a part. path is its name in errors. Errors: BadParams.
func ParsePart(path string, text []byte) (Part, error) {
	r := read(path, text)
	r.exactly("text", "raw", "url", "data")
	p := Part{
		Text:      r.optional("text"),
		Raw:       r.text("raw", false),
		URL:       r.text("url", false),
		Data:      r.members["data"],
		MediaType: r.text("mediaType", false),
		Filename:  r.text("filename", false),
		Metadata:  r.object("metadata"),
		source:    text,
	}
	if !validBase64(p.Raw) {
		r.fail("raw", "must be base64")
	}
	return p, r.err
}

// Media returns the media type of the part, or the default of its kind (A2A §5).
func (p Part) Media() string {
	switch {
	case p.MediaType != "":
		return p.MediaType
	case p.Text != nil:
		return "text/plain"
	case len(p.Data) > 0:
		return JSONType
	}
	return "application/octet-stream"
}

// MarshalJSON returns what was read, or the fields.
func (p Part) MarshalJSON() ([]byte, error) {
	type plain Part
	return written(p.source, plain(p))
}

// UnmarshalJSON reads a part as ParsePart does.
func (p *Part) UnmarshalJSON(text []byte) (err error) {
	*p, err = parseCopy(text, ParsePart)
	return err
}

// Artifact is a result of a task. One that was read is written as it was read.
type Artifact struct {
	ArtifactID  string          `json:"artifactId"`
	Parts       []Part          `json:"parts"`
	Name        string          `json:"name,omitempty"`
	Description string          `json:"description,omitempty"`
	Metadata    json.RawMessage `json:"metadata,omitempty"` // an object
	Extensions  []string        `json:"extensions,omitempty"`

	source json.RawMessage
}

// ParseArtifact reads an artifact. path is its name in errors. Errors: BadParams.
func ParseArtifact(path string, text []byte) (Artifact, error) {
	r := read(path, text)
	a := Artifact{
		ArtifactID:  r.text("artifactId", true),
		Parts:       all(r, "parts", true, ParsePart),
		Name:        r.text("name", false),
		Description: r.text("description", false),
		Metadata:    r.object("metadata"),
		Extensions:  r.texts("extensions"),
		source:      text,
	}
	return a, r.err
}

// Append returns the artifact with the parts of a later chunk. All other members stay those of the first chunk.
func (a Artifact) Append(chunk Artifact) Artifact {
	return a.With(append(a.Parts[:len(a.Parts):len(a.Parts)], chunk.Parts...))
}

// With returns the artifact with other parts.
func (a Artifact) With(parts []Part) Artifact {
	a.Parts = parts
	if a.source != nil {
		a.source = set(a.source, map[string]any{"parts": a.Parts})
	}
	return a
}

// MarshalJSON returns what was read, or the fields.
func (a Artifact) MarshalJSON() ([]byte, error) {
	type plain Artifact
	return written(a.source, plain(a))
}

// UnmarshalJSON reads an artifact as ParseArtifact does.
func (a *Artifact) UnmarshalJSON(text []byte) (err error) {
	*a, err = parseCopy(text, ParseArtifact)
	return err
}

// written returns what was read, or the fields.
func written(source json.RawMessage, fields any) ([]byte, error) {
	if source != nil {
		return source, nil
	}
	return jsontext.Compact(fields), nil
}

// parseCopy parses a text that its caller may change afterwards.
func parseCopy[T any](text []byte, parse func(path string, text []byte) (T, error)) (value T, err error) {
	canonical, err := envelope.Canonicalize(text)
	if err != nil {
		return value, err
	}
	return parse("", append([]byte(nil), canonical...))
}

// Status is the state of a task, and since when.
type Status struct {
	State     State    `json:"state"`
	Message   *Message `json:"message,omitempty"`
	Timestamp string   `json:"timestamp,omitempty"` // RFC 3339, UTC, milliseconds
}

func parseStatus(path string, text []byte) (Status, error) {
	r := read(path, text)
	s := Status{oneOf(r, "state", states...), one(r, "message", ParseMessage), r.text("timestamp", false)}
	return s, r.err
}

// Task is a task.
type Task struct {
	ID        string                     `json:"id"`
	ContextID string                     `json:"contextId,omitempty"`
	Status    Status                     `json:"status"`
	Artifacts []Artifact                 `json:"artifacts,omitempty"`
	History   []Message                  `json:"history,omitempty"` // oldest first
	Metadata  map[string]json.RawMessage `json:"metadata,omitempty"`
}

// ParseTask reads a task. path is its name in errors. Errors: BadParams.
func ParseTask(path string, text []byte) (Task, error) {
	r := read(path, text)
	t := Task{
		ID:        r.text("id", true),
		ContextID: r.text("contextId", false),
		Artifacts: all(r, "artifacts", false, ParseArtifact),
		History:   all(r, "history", false, ParseMessage),
	}
	if r.value("status", true) != nil {
		if status := one(r, "status", parseStatus); status != nil {
			t.Status = *status
		}
	}
	if metadata := r.object("metadata"); metadata != nil {
		t.Metadata = read(r.name("metadata"), metadata).members
	}
	return t, r.err
}
