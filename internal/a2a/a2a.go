// Package a2a has the wire of Agent2Agent 1.0 (A2A): the objects and operations of its §5, the errors of its §6, and
// the cards and proofs of its §2 and §7. Relay, agents and callers use the same package, so they cannot disagree.
//
// The package is pure: no input, no output, no clock. Its functions read text in the form of RFC 8785, which Body
// returns. What they refuse is an *Error that names the member. Members that the specification does not have are kept
// in messages, parts and artifacts, and ignored elsewhere. A member that is null counts as absent, as in protobuf's JSON.
package a2a

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/agora-relay/agora/envelope"
)

// The names and sizes of the wire (A2A §5).
const (
	Version       = "1.0"            // the only version; patch numbers are never on the wire
	VersionName   = "A2A-Version"    // a header, and a query parameter
	ExtensionName = "A2A-Extensions" // a header: URIs, separated by commas
	PushToken     = "A2A-Notification-Token"
	PushTokenX    = "X-A2A-Notification-Token" // what the SDKs for Python and JavaScript read
	JSONType      = "application/json"
	A2AType       = "application/a2a+json"
	StreamType    = "text/event-stream"

	MaxBody   = 1 << 20 // bytes of a body
	MaxLevels = 48      // how deep arrays and objects of a body are nested
)

// The intents of the REQUESTs that an agent gets for A2A (A2A §4, §8), and the metadata of a message that names the
// intent of an agent in mode "params".
const (
	MessageIntent      = "a2a.message"
	NotificationIntent = "a2a.notification"
	IntentName         = "agora.intent"
)

// Method is an operation (A2A §5).
type Method struct {
	Name   string   // in JSON-RPC
	Verbs  []string // in HTTP+JSON
	Path   string   // in HTTP+JSON, below the agent's URL. {id} is a task; {cid} is a push configuration
	Stream bool     // the answer is a stream of Stream objects
}

var methods = []Method{
	{"SendMessage", []string{http.MethodPost}, "/message:send", false},
	{"SendStreamingMessage", []string{http.MethodPost}, "/message:stream", true},
	{"GetTask", []string{http.MethodGet}, "/tasks/{id}", false},
	{"ListTasks", []string{http.MethodGet}, "/tasks", false},
	{"CancelTask", []string{http.MethodPost}, "/tasks/{id}:cancel", false},
	{"SubscribeToTask", []string{http.MethodGet, http.MethodPost}, "/tasks/{id}:subscribe", true},
	{"CreateTaskPushNotificationConfig", []string{http.MethodPost}, "/tasks/{id}/pushNotificationConfigs", false},
	{"ListTaskPushNotificationConfigs", []string{http.MethodGet}, "/tasks/{id}/pushNotificationConfigs", false},
	{"GetTaskPushNotificationConfig", []string{http.MethodGet}, "/tasks/{id}/pushNotificationConfigs/{cid}", false},
	{"DeleteTaskPushNotificationConfig", []string{http.MethodDelete}, "/tasks/{id}/pushNotificationConfigs/{cid}", false},
	{"GetExtendedAgentCard", []string{http.MethodGet}, "/extendedAgentCard", false},
}

// Methods returns all operations.
func Methods() []Method { return append([]Method(nil), methods...) }

// FindMethod returns the operation with this name.
func FindMethod(name string) (m Method, ok bool) {
	for _, m := range methods {
		if m.Name == name {
			return m, true
		}
	}
	return Method{}, false
}

// Body returns the RFC 8785 form of a body or of an answer: one object of I-JSON (RFC 7493) of at most maxBytes bytes
// and MaxLevels levels. Errors: BadJSON; TooLarge.
func Body(body []byte, maxBytes int) (canonical []byte, err error) {
	canonical, err = envelope.ParseObject(body, maxBytes)
	if refused, ok := errors.AsType[*envelope.Error](err); ok && refused.Code == envelope.CodePayloadTooLarge {
		return nil, Front(http.StatusRequestEntityTooLarge, refused.Message)
	}
	if err != nil {
		return nil, Errorf(BadJSON, "%v", err)
	}
	if envelope.Depth(canonical) > MaxLevels {
		return nil, Errorf(BadJSON, "the JSON is nested deeper than %d levels", MaxLevels)
	}
	return canonical, nil
}

// RPC is a request of JSON-RPC. ID is a text or a number, as it was sent.
type RPC struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage // an object; {} if it was absent
}

// ParseRPC reads a request. body is what Body returned. If the error is not nil, ID is still what the answer needs:
// null if the request has no valid id. Errors: BadRequest.
func ParseRPC(body []byte) (RPC, error) {
	r := RPC{ID: json.RawMessage("null"), Params: json.RawMessage("{}")}
	members, err := membersOf("", body)
	if err != nil {
		return r, err
	}
	if id := members["id"]; len(id) > 0 && (id[0] == '"' || id[0] == '-' || id[0] >= '0' && id[0] <= '9') {
		r.ID = id
	} else {
		return r, Errorf(BadRequest, "id must be a text or a number; notifications and batches are not supported")
	}
	if string(members["jsonrpc"]) != `"2.0"` {
		return r, Errorf(BadRequest, `jsonrpc must be "2.0"`)
	}
	if method := members["method"]; len(method) == 0 || method[0] != '"' || json.Unmarshal(method, &r.Method) != nil {
		return r, Errorf(BadRequest, "method must be a text, such as SendMessage")
	}
	if params := members["params"]; present(params) {
		if params[0] != '{' {
			return r, Errorf(BadRequest, "params must be an object")
		}
		r.Params = params
	}
	return r, nil
}
