package a2a

import (
	"encoding/json"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/jsontext"
)

// Bounds of params (A2A §5).
const (
	MaxPage     = 100
	DefaultPage = 50
	maxHistory  = 1 << 30
	maxPushID   = 128
)

// Send is the params of SendMessage and SendStreamingMessage.
type Send struct {
	Message       Message         `json:"message"`
	Configuration Configuration   `json:"configuration,omitzero"`
	Metadata      json.RawMessage `json:"metadata,omitempty"` // an object
}

// Configuration says how a caller wants its answer.
type Configuration struct {
	AcceptedOutputModes []string `json:"acceptedOutputModes,omitempty"`
	HistoryLength       *int     `json:"historyLength,omitempty"` // nil: the default
	ReturnImmediately   bool     `json:"returnImmediately,omitempty"`
	Push                *Push    `json:"taskPushNotificationConfig,omitempty"`
}

// underscored finds where a name of the .proto file has a capital letter in JSON.
var underscored = regexp.MustCompile(`_[a-z]`)

var contextForm = regexp.MustCompile(`^[A-Za-z0-9._:~-]{1,128}$`)

// ValidContext reports whether a context may have this id (A2A §5).
func ValidContext(id string) bool { return contextForm.MatchString(id) }

// params returns a reader of params. Members may also have the names of the protocol's .proto file, such as task_id,
// because parsers of ProtoJSON take both. Every operation refuses a tenant: the relay has none.
func params(text []byte) *reader {
	r := read("", text)
	for _, name := range sorted(r.members) {
		camel := underscored.ReplaceAllStringFunc(name, func(s string) string { return strings.ToUpper(s[1:]) })
		if !present(r.members[camel]) && r.err == nil {
			r.members[camel] = r.members[name]
		}
	}
	if r.text("tenant", false) != "" {
		r.fail("tenant", "must be empty or absent")
	}
	return r
}

// ParseSend reads the params. Errors: BadParams.
func ParseSend(text []byte) (Send, error) {
	r := params(text)
	r.value("message", true)
	s := Send{Metadata: r.object("metadata")}
	if m := one(r, "message", ParseMessage); m != nil {
		s.Message = *m
	}
	if s.Message.ContextID != "" && !ValidContext(s.Message.ContextID) {
		r.fail("message.contextId", "must have 1 to 128 letters, digits or ._:~-")
	}
	if c := one(r, "configuration", parseConfiguration); c != nil {
		s.Configuration = *c
	}
	return s, r.err
}

func parseConfiguration(path string, text []byte) (Configuration, error) {
	r := read(path, text)
	c := Configuration{r.texts("acceptedOutputModes"), r.count("historyLength", 0, maxHistory),
		r.flag("returnImmediately"), one(r, "taskPushNotificationConfig", parsePush)}
	return c, r.err
}

// TaskParams is the params of GetTask, CancelTask and SubscribeToTask. Each uses only some members.
type TaskParams struct {
	ID            string          `json:"id"`
	HistoryLength *int            `json:"historyLength,omitempty"` // nil: the default
	Metadata      json.RawMessage `json:"metadata,omitempty"`
}

// ParseTaskParams reads the params. Errors: BadParams.
func ParseTaskParams(text []byte) (TaskParams, error) {
	r := params(text)
	t := TaskParams{r.text("id", true), r.count("historyLength", 0, maxHistory), r.object("metadata")}
	return t, r.err
}

// List is the params of ListTasks.
type List struct {
	ContextID        string `json:"contextId,omitempty"`
	Status           State  `json:"status,omitempty"`
	PageSize         int    `json:"pageSize,omitempty"` // ParseList sets the default
	PageToken        string `json:"pageToken,omitempty"`
	HistoryLength    int    `json:"historyLength,omitempty"`
	After            string `json:"statusTimestampAfter,omitempty"` // RFC 3339
	IncludeArtifacts bool   `json:"includeArtifacts,omitempty"`
}

// ParseList reads the params. Errors: BadParams.
func ParseList(text []byte) (List, error) {
	r := params(text)
	l := List{ContextID: r.text("contextId", false), PageSize: DefaultPage, PageToken: r.text("pageToken", false),
		After: r.text("statusTimestampAfter", false), IncludeArtifacts: r.flag("includeArtifacts")}
	if r.text("status", false) != "" {
		l.Status = oneOf(r, "status", states...)
	}
	if n := r.count("pageSize", 1, MaxPage); n != nil {
		l.PageSize = *n
	}
	if n := r.count("historyLength", 0, maxHistory); n != nil {
		l.HistoryLength = *n
	}
	if _, ok := envelope.ParseTime(l.After); l.After != "" && !ok {
		r.fail("statusTimestampAfter", "must be a time such as 2026-02-02T12:00:00.000Z")
	}
	return l, r.err
}

// Page is the answer of ListTasks.
type Page struct {
	Tasks         []Task `json:"tasks"` // never null
	NextPageToken string `json:"nextPageToken"`
	PageSize      int    `json:"pageSize"`
	TotalSize     int    `json:"totalSize"`
}

// Push is a push configuration: where the events of a task are sent.
type Push struct {
	ID             string              `json:"id,omitempty"`
	TaskID         string              `json:"taskId,omitempty"`
	URL            string              `json:"url"`
	Token          string              `json:"token,omitempty"`
	Authentication *PushAuthentication `json:"authentication,omitempty"`
}

// PushAuthentication is the header Authorization of a push: Scheme, a space, and Credentials.
type PushAuthentication struct {
	Scheme      string `json:"scheme"`
	Credentials string `json:"credentials,omitempty"`
}

// ParsePush reads the params of CreateTaskPushNotificationConfig. Errors: BadParams.
func ParsePush(text []byte) (Push, error) {
	r := params(text)
	r.text("taskId", true)
	return pushOf(r)
}

func parsePush(path string, text []byte) (Push, error) { return pushOf(read(path, text)) }

func pushOf(r *reader) (Push, error) {
	p := Push{r.text("id", false), r.text("taskId", false), r.text("url", true), r.text("token", false),
		one(r, "authentication", parsePushAuthentication)}
	if len(p.ID) > maxPushID {
		r.fail("id", "must have 1 to %d bytes", maxPushID)
	}
	return p, r.err
}

func parsePushAuthentication(path string, text []byte) (PushAuthentication, error) {
	r := read(path, text)
	a := PushAuthentication{r.text("scheme", true), r.text("credentials", false)}
	return a, r.err
}

// PushParams is the params of the other operations with push configurations. ListTaskPushNotificationConfigs has no ID.
type PushParams struct {
	TaskID string `json:"taskId"`
	ID     string `json:"id,omitempty"`
}

// ParsePushParams reads the params. Errors: BadParams.
func ParsePushParams(text []byte, withID bool) (PushParams, error) {
	r := params(text)
	p := PushParams{r.text("taskId", true), r.text("id", withID)}
	return p, r.err
}

// QueryParams returns the params that a query of HTTP+JSON has. A parameter given twice has its first value. A value
// that is no number or truth value where one belongs stays a text, which the operation then refuses. Errors: BadJSON.
func QueryParams(query url.Values) (json.RawMessage, error) {
	object := map[string]any{}
	for name := range query {
		text := query.Get(name)
		switch name {
		case VersionName:
			continue
		case "historyLength", "pageSize":
			if n, err := strconv.Atoi(text); err == nil {
				object[name] = n
				continue
			}
		case "includeArtifacts":
			if b, err := strconv.ParseBool(text); err == nil {
				object[name] = b
				continue
			}
		}
		object[name] = text
	}
	return Body(jsontext.Compact(object), MaxBody)
}

// PathParams returns params with the ids that the path of HTTP+JSON has: of the task, and of the push configuration.
// They replace those that a body has. Empty ids change nothing.
func (m Method) PathParams(params json.RawMessage, task, config string) json.RawMessage {
	values := map[string]any{}
	switch {
	case task == "":
	case strings.Contains(m.Path, "/pushNotificationConfigs"):
		values["taskId"] = task
	default:
		values["id"] = task
	}
	if config != "" {
		values["id"] = config
	}
	if len(values) == 0 {
		return params
	}
	return set(params, values)
}
