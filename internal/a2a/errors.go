package a2a

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/agora-relay/agora/internal/jsontext"
)

// Code is an error of A2A (A2A §6). Its number is the code in JSON-RPC.
type Code int

// The errors.
const (
	TaskNotFound                   Code = -32001
	TaskNotCancelable              Code = -32002
	PushNotificationNotSupported   Code = -32003
	UnsupportedOperation           Code = -32004
	ContentTypeNotSupported        Code = -32005
	InvalidAgentResponse           Code = -32006
	ExtendedAgentCardNotConfigured Code = -32007
	ExtensionSupportRequired       Code = -32008
	VersionNotSupported            Code = -32009
	BadJSON                        Code = -32700
	BadRequest                     Code = -32600 // not a request of JSON-RPC
	UnknownMethod                  Code = -32601
	BadParams                      Code = -32602
	Fault                          Code = -32603
)

// CodeInfo is a row of the table of errors.
type CodeInfo struct {
	Code   Code
	HTTP   int    // the status in HTTP+JSON
	Status string // its name, as in google.rpc.Code
	Reason string // of the ErrorInfo; empty: the error has none
}

var codes = []CodeInfo{
	{TaskNotFound, 404, "NOT_FOUND", "TASK_NOT_FOUND"},
	{TaskNotCancelable, 400, "FAILED_PRECONDITION", "TASK_NOT_CANCELABLE"},
	{PushNotificationNotSupported, 400, "FAILED_PRECONDITION", "PUSH_NOTIFICATION_NOT_SUPPORTED"},
	{UnsupportedOperation, 400, "FAILED_PRECONDITION", "UNSUPPORTED_OPERATION"},
	{ContentTypeNotSupported, 400, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED"},
	{InvalidAgentResponse, 500, "INTERNAL", "INVALID_AGENT_RESPONSE"},
	{ExtendedAgentCardNotConfigured, 400, "FAILED_PRECONDITION", "EXTENDED_AGENT_CARD_NOT_CONFIGURED"},
	{ExtensionSupportRequired, 400, "FAILED_PRECONDITION", "EXTENSION_SUPPORT_REQUIRED"},
	{VersionNotSupported, 400, "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED"},
	{BadJSON, 400, "INVALID_ARGUMENT", ""},
	{BadRequest, 400, "INVALID_ARGUMENT", ""},
	{BadParams, 400, "INVALID_ARGUMENT", ""},
	{UnknownMethod, 404, "NOT_FOUND", ""},
	{Fault, 500, "INTERNAL", ""},
}

// fronts has the statuses with which a server refuses a request before it knows the operation (A2A §6, last rule).
var fronts = map[int]string{
	http.StatusUnauthorized:          "UNAUTHENTICATED",
	http.StatusForbidden:             "PERMISSION_DENIED",
	http.StatusNotFound:              "NOT_FOUND",
	http.StatusMethodNotAllowed:      "UNIMPLEMENTED",
	http.StatusConflict:              "ABORTED",
	http.StatusRequestEntityTooLarge: "RESOURCE_EXHAUSTED",
	http.StatusUnsupportedMediaType:  "INVALID_ARGUMENT",
	http.StatusTooManyRequests:       "RESOURCE_EXHAUSTED",
	http.StatusServiceUnavailable:    "UNAVAILABLE",
}

// Codes returns the table of errors.
func Codes() []CodeInfo { return append([]CodeInfo(nil), codes...) }

// Info returns the row of c. An unknown code has the row of Fault, with its own number.
func (c Code) Info() CodeInfo {
	for _, info := range codes {
		if info.Code == c {
			return info
		}
	}
	info := Fault.Info()
	info.Code = c
	return info
}

// The members of an error's details (A2A §6).
const (
	errorInfo  = "type.googleapis.com/google.rpc.ErrorInfo"
	badRequest = "type.googleapis.com/google.rpc.BadRequest"
	domain     = "a2a-protocol.org"
)

// Error is an error of A2A. Message is for people.
type Error struct {
	Code       Code
	HTTP       int // if not 0, the front refused the request with this status, and Code has no meaning
	Message    string
	Metadata   map[string]string // of the ErrorInfo, such as taskId
	Violations []Violation       // of BadParams
}

// Violation is a member that is wrong, such as "message.parts[0].text".
type Violation struct {
	Field       string `json:"field"`
	Description string `json:"description"`
}

// Errorf returns an error.
func Errorf(c Code, format string, args ...any) *Error {
	return &Error{Code: c, Message: fmt.Sprintf(format, args...)}
}

// Invalid returns BadParams for one member.
func Invalid(field, format string, args ...any) *Error {
	v := Violation{field, fmt.Sprintf(format, args...)}
	return &Error{Code: BadParams, Message: v.Field + " " + v.Description, Violations: []Violation{v}}
}

// NoTask returns TaskNotFound. It is the same for a task that does not exist and for one of another caller.
func NoTask(id string) *Error {
	e := Errorf(TaskNotFound, "There is no task with this id.")
	e.Metadata = map[string]string{"taskId": id}
	return e
}

// Front returns the error with which a server refuses a request before it knows the operation. status is one of those of
// §6, or 405, 409 (Idempotency-Key) or 415 (Content-Encoding).
func Front(status int, message string) *Error { return &Error{HTTP: status, Message: message} }

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Status returns the HTTP status of the error in HTTP+JSON. In JSON-RPC the status is 200, except if e.HTTP is not 0.
func (e *Error) Status() int { return cmp.Or(e.HTTP, e.Code.Info().HTTP) }

// details returns the details of an error, at most one.
func (e *Error) details() []any {
	if len(e.Violations) > 0 {
		return []any{map[string]any{"@type": badRequest, "fieldViolations": e.Violations}}
	}
	reason := e.Code.Info().Reason
	if reason == "" {
		return nil
	}
	info := map[string]any{"@type": errorInfo, "reason": reason, "domain": domain}
	if len(e.Metadata) > 0 {
		info["metadata"] = e.Metadata
	}
	return []any{info}
}

// frontBody is the one body that an error of the front has in both bindings.
func (e *Error) frontBody() []byte {
	return jsontext.Compact(map[string]any{"jsonrpc": "2.0", "id": nil,
		"error": map[string]any{"code": e.HTTP, "status": fronts[e.HTTP], "message": e.Message}})
}

// RPCBody returns the answer of JSON-RPC. id is the id of the request, or null.
func (e *Error) RPCBody(id json.RawMessage) []byte {
	if e.HTTP != 0 {
		return e.frontBody()
	}
	object := map[string]any{"code": e.Code, "message": e.Message}
	if details := e.details(); details != nil {
		object["data"] = details
	}
	return jsontext.Compact(map[string]any{"jsonrpc": "2.0", "id": id, "error": object})
}

// HTTPBody returns the answer of HTTP+JSON. Its status is e.Status().
func (e *Error) HTTPBody() []byte {
	if e.HTTP != 0 {
		return e.frontBody()
	}
	object := map[string]any{"code": e.Status(), "status": e.Code.Info().Status, "message": e.Message}
	if details := e.details(); details != nil {
		object["details"] = details
	}
	return jsontext.Compact(map[string]any{"error": object})
}

// ReadError reads the object "error" of an answer of either binding. status is the status of the answer. It understands
// every object: what it does not know becomes an error of the front with the status, or Fault.
func ReadError(object json.RawMessage, status int) *Error {
	var read struct {
		Code          int
		Message       string
		Data, Details json.RawMessage // SDKs of A2A 0.3 put anything into data
	}
	_ = json.Unmarshal(object, &read) // what cannot be read stays empty
	e := &Error{Code: Fault, Message: read.Message}
	var details []struct {
		Reason          string
		Metadata        map[string]string
		FieldViolations []Violation
	}
	if len(read.Data) == 0 {
		read.Data = read.Details
	}
	_ = json.Unmarshal(read.Data, &details)
	for _, d := range details {
		e.Violations = append(e.Violations, d.FieldViolations...)
		for _, info := range codes {
			if info.Reason != "" && info.Reason == d.Reason {
				e.Code, e.Metadata = info.Code, d.Metadata
				return e
			}
		}
	}
	switch {
	case read.Code < 0:
		e.Code = Code(read.Code)
	case len(e.Violations) > 0:
		e.Code = BadParams
	default:
		e.HTTP = cmp.Or(status, read.Code)
	}
	return e
}
