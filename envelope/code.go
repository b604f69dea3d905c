package envelope

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Code is the reason why a relay refused something. The list is closed (PROTOCOL §5). Each transport maps a Code to its
// own status. A new code is a constant here and a row of codeTable.
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

// Names of the details of an Error (PROTOCOL §5, §8).
const (
	DetailLimit     = "limit" // name of the limit that was reached, with CodeRateLimited
	DetailMaxOffers = "maxOffers"
	DetailStored    = "stored" // false: nothing was stored, with CodeUnavailable
	DetailNow       = "now"    // the time on the relay's clock
	DetailAudience  = "aud"    // the relay's origin
	DetailHome      = "home"   // meta.home of a message that was posted to another relay
	DetailReason    = "reason" // one of the Reason constants: why a read or a signed call was refused
)

// Names of the limits. They are the values of DetailLimit, and are used in a relay's description of itself
// (PROTOCOL §5).
const (
	LimitPostsPerAddress          = "postsPerAddress"
	LimitReadsPerAddress          = "readsPerAddress"
	LimitPostsPerAgent            = "postsPerAgent"
	LimitBroadcastsPerAddress     = "broadcastsPerAddress"
	LimitConnectionsPerAddress    = "connectionsPerAddress"
	LimitNewConnectionsPerAddress = "newConnectionsPerAddress"
	LimitRequestsPerAddress       = "requestsPerAddress"
	LimitPollsPerAddress          = "pollsPerAddress"
	LimitPolls                    = "polls"
	LimitWritesPerAddress         = "writesPerAddress"
	LimitBulks                    = "bulks"
	LimitInbox                    = "inbox"
	LimitManifestsPerAgent        = "manifestsPerAgent"
	LimitOffersPerThread          = "offersPerThread"
	LimitRequests                 = "requests" // changing requests by one caller of a gateway (GATEWAYS, "Limits")
)

// Reasons why a read or a signed call was refused. They are the values of DetailReason (PROTOCOL §8; GATEWAYS, "Signed
// calls"). All except the last three come with CodeUnauthorized.
const (
	ReasonUnsigned      = "unsigned"       // the read needs a token, but there is none, or it is by another reader
	ReasonMalformed     = "malformed"      // the token is malformed or its signature is invalid
	ReasonAudience      = "audience"       // the token is for another relay; DetailAudience has this relay's origin
	ReasonRequest       = "request"        // the token is for another method or target
	ReasonTime          = "time"           // the token's ts is too old or too new; DetailNow has the relay's clock
	ReasonBody          = "body"           // the token is for another body; only signed calls name a body
	ReasonUsed          = "used"           // the token was used before
	ReasonRemoved       = "removed"        // the operator has removed the message with this id, with CodeForbidden
	ReasonPolicy        = "policy"         // the policy of the operator refuses the message, with CodeForbidden
	ReasonHome          = "home"           // meta.home names another relay; DetailHome has it, with CodeForbidden
	ReasonUnknownCursor = "unknown_cursor" // the cursor belongs to another database, with CodeInvalidRequest
)

// AgentCode is the code that an agent puts into an ERROR payload (Agora v1.0 "Error Codes"). Agents may use other
// codes. These constants are the codes that the protocol defines.
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

// AgentCodeInfo is a row of the table of AgentCodes.
type AgentCodeInfo struct {
	Code      AgentCode `json:"code"`
	Retryable bool      `json:"retryable"`
}

// AgentCodes returns the protocol's table of AgentCodes.
func AgentCodes() []AgentCodeInfo {
	return []AgentCodeInfo{
		{AgentInvalidRequest, false}, {AgentIntentNotSupported, false}, {AgentInsufficientBudget, true}, {AgentTimeout, true},
		{AgentUnavailable, true}, {AgentForbidden, false}, {AgentInternal, true},
	}
}

// Retryable returns the "Retryable" column of the protocol's table. It is false for codes that the table does not list.
func (c AgentCode) Retryable() bool { return slices.Contains(AgentCodes(), AgentCodeInfo{c, true}) }

// Error is a refusal: a code for programs, a sentence for people that says how to fix the problem, and details. It is
// sent to clients, so it never contains the text of other libraries' errors or of the refused input.
type Error struct {
	Code       Code
	Message    string
	Details    map[string]any
	RetryAfter time.Duration // how long to wait before a retry, if Code.Retryable; 0: not known, retry soon
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// NotStored returns an Error with CodeUnavailable whose details say that nothing was stored (PROTOCOL §5). They tell
// the client that the message was not posted.
func NotStored(message string, retryAfter time.Duration) *Error {
	return &Error{Code: CodeUnavailable, Message: message, RetryAfter: retryAfter, Details: map[string]any{DetailStored: false}}
}

// NothingStored reports whether the details of e say that nothing was stored.
func (e *Error) NothingStored() bool {
	stored, ok := e.Details[DetailStored].(bool)
	return ok && !stored
}

// CodeOf returns the code of the Error in err's chain. It returns CodeInternal if the chain has no Error, and an empty
// code if err is nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

// Limit returns the name of the limit that was reached, from the details of e. It is empty if the details name no
// limit.
func (e *Error) Limit() string { return e.text(DetailLimit) }

// Reason returns why a read or a signed call was refused, from the details of e. It is empty if the details give no
// reason.
func (e *Error) Reason() string { return e.text(DetailReason) }

// Now returns the time on the relay's clock when it refused, from the details of e. ok is false if they have no time.
func (e *Error) Now() (now time.Time, ok bool) { return ParseTime(e.text(DetailNow)) }

func (e *Error) text(detail string) string {
	text, _ := e.Details[detail].(string)
	return text
}

// Errorf returns an Error without details.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}
