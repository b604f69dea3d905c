package envelope

import (
	"fmt"
	"time"
)

// Code names why a relay refused something. The list is closed (PROTOCOL §5); each wire maps it to its own status.
type Code string

const (
	CodeInvalidRequest     Code = "INVALID_REQUEST"
	CodeUnsupportedVersion Code = "UNSUPPORTED_VERSION"
	CodeInvalidDID         Code = "INVALID_DID"
	CodeStaleTimestamp     Code = "STALE_TIMESTAMP"
	CodeExpired            Code = "EXPIRED"
	CodeInvalidSignature   Code = "INVALID_SIGNATURE"
	CodeForbidden          Code = "FORBIDDEN"
	CodeUnauthorized       Code = "UNAUTHORIZED"
	CodeThreadNotFound     Code = "THREAD_NOT_FOUND"
	CodeAgentNotFound      Code = "AGENT_NOT_FOUND"
	CodeNotFound           Code = "NOT_FOUND"
	CodeMethodNotAllowed   Code = "METHOD_NOT_ALLOWED"
	CodeDuplicateID        Code = "DUPLICATE_ID"
	CodeInvalidTransition  Code = "INVALID_TRANSITION"
	CodePayloadTooLarge    Code = "PAYLOAD_TOO_LARGE"
	CodeUnsupportedMedia   Code = "UNSUPPORTED_MEDIA_TYPE"
	CodeRateLimited        Code = "RATE_LIMITED"
	CodeInternal           Code = "INTERNAL_ERROR"
	CodeUnavailable        Code = "UNAVAILABLE"
)

// Codes returns every Code, for tables and tests that must not forget one.
func Codes() []Code {
	return []Code{
		CodeInvalidRequest, CodeUnsupportedVersion, CodeInvalidDID, CodeStaleTimestamp, CodeExpired,
		CodeInvalidSignature, CodeForbidden, CodeUnauthorized, CodeThreadNotFound, CodeAgentNotFound, CodeNotFound,
		CodeMethodNotAllowed, CodeDuplicateID, CodeInvalidTransition, CodePayloadTooLarge, CodeUnsupportedMedia,
		CodeRateLimited, CodeInternal, CodeUnavailable,
	}
}

// Retryable reports whether the same bytes may succeed later without a change.
func (c Code) Retryable() bool {
	return c == CodeRateLimited || c == CodeInternal || c == CodeUnavailable
}

// AgentCode is what an agent puts into an ERROR payload (Agora v1.0 "Error Codes"). Agents may use others; these are
// the ones whose meaning the protocol fixes.
type AgentCode string

const (
	AgentInvalidRequest     AgentCode = "INVALID_REQUEST"
	AgentIntentNotSupported AgentCode = "INTENT_NOT_SUPPORTED"
	AgentInsufficientBudget AgentCode = "INSUFFICIENT_BUDGET"
	AgentTimeout            AgentCode = "TIMEOUT"
	AgentUnavailable        AgentCode = "UNAVAILABLE"
	AgentForbidden          AgentCode = "FORBIDDEN"
	AgentInternal           AgentCode = "INTERNAL_ERROR"
)

// Retryable is the "Retryable" column of the protocol's table; false for codes it does not list.
func (c AgentCode) Retryable() bool {
	switch c {
	case AgentInsufficientBudget, AgentTimeout, AgentUnavailable, AgentInternal:
		return true
	}
	return false
}

// Error is a refusal: a code for programs, a sentence for people that says how to fix it, and details.
// It is what goes over the wire, so it never holds another library's words or the refused input.
type Error struct {
	Code       Code
	Message    string
	Details    map[string]any
	RetryAfter time.Duration // when the same may succeed, where Code.Retryable; 0: not known, soon
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// NotStored returns a CodeUnavailable whose details say that nothing was stored (PROTOCOL §5). So its receiver knows
// that the message was not posted.
func NotStored(message string, retryAfter time.Duration) *Error {
	return &Error{Code: CodeUnavailable, Message: message, RetryAfter: retryAfter, Details: map[string]any{"stored": false}}
}

// NothingStored reports whether the details of e say that nothing was stored.
func (e *Error) NothingStored() bool {
	stored, said := e.Details["stored"].(bool)
	return said && !stored
}

// Errorf returns an Error without details.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}
