package envelope

import (
	"errors"
	"fmt"
	"time"
)

// Code is the reason why a relay refused something. The list is closed (PROTOCOL §5). Each transport maps a Code to its
// own status. The comments of the constants are the source of the table in PROTOCOL §5, which a test of package httpapi
// writes.
type Code string

const (
	// The body or a parameter is malformed, or a member has a value that it cannot have.
	CodeInvalidRequest Code = "INVALID_REQUEST"
	// The envelope's version is not "1.0".
	CodeUnsupportedVersion Code = "UNSUPPORTED_VERSION"
	// An identifier is not a did:key of a usable Ed25519 key.
	CodeInvalidDID Code = "INVALID_DID"
	// The ts is five minutes or more from the relay's clock, which `details.now` has. Sign again with the right time.
	CodeStaleTimestamp Code = "STALE_TIMESTAMP"
	// The message has expired by its ts and ttl.
	CodeExpired Code = "EXPIRED"
	// The signature does not verify under the sender's key.
	CodeInvalidSignature Code = "INVALID_SIGNATURE"
	// The sender may not do this: it is not a party of the thread, the message is for another relay, or the request comes from a foreign web page.
	CodeForbidden Code = "FORBIDDEN"
	// The read needs a signature, or its token is not valid (§8). `details.reason` says why, and the header `WWW-Authenticate` names the scheme.
	CodeUnauthorized Code = "UNAUTHORIZED"
	// No thread with this id is here, or none that the sender may see.
	CodeThreadNotFound Code = "THREAD_NOT_FOUND"
	// No unexpired MANIFEST of this agent is here.
	CodeAgentNotFound Code = "AGENT_NOT_FOUND"
	// There is nothing at this path.
	CodeNotFound Code = "NOT_FOUND"
	// The path takes other methods, which the header `Allow` lists.
	CodeMethodNotAllowed Code = "METHOD_NOT_ALLOWED"
	// The sender has used the id for another message.
	CodeDuplicateID Code = "DUPLICATE_ID"
	// The state of the thread does not allow the message (§4).
	CodeInvalidTransition Code = "INVALID_TRANSITION"
	// The body is larger than the relay takes.
	CodePayloadTooLarge Code = "PAYLOAD_TOO_LARGE"
	// The request has a Content-Encoding.
	CodeUnsupportedMedia Code = "UNSUPPORTED_MEDIA_TYPE"
	// A limit is reached, which `details.limit` names. The header `Retry-After` says when to try again.
	CodeRateLimited Code = "RATE_LIMITED"
	// The relay failed. Its log has the reason.
	CodeInternal Code = "INTERNAL_ERROR"
	// The disk is full or failed, the database is busy, or the relay shuts down. `Retry-After` says when to try again.
	CodeUnavailable Code = "UNAVAILABLE"
)

// Names of the details of an Error (PROTOCOL §5, §8).
const (
	DetailLimit     = "limit" // name of the limit that was reached, with CodeRateLimited
	DetailMaxOffers = "maxOffers"
	DetailStored    = "stored" // false: nothing was stored, with CodeUnavailable
	DetailNow       = "now"    // the time on the relay's clock
	DetailAudience  = "aud"    // the relay's origin
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
	ReasonUnknownCursor = "unknown_cursor" // the cursor belongs to another database, with CodeInvalidRequest
)

// Codes returns every Code. Tables and tests use it to cover all codes.
func Codes() []Code {
	return []Code{
		CodeInvalidRequest, CodeUnsupportedVersion, CodeInvalidDID, CodeStaleTimestamp, CodeExpired,
		CodeInvalidSignature, CodeForbidden, CodeUnauthorized, CodeThreadNotFound, CodeAgentNotFound, CodeNotFound,
		CodeMethodNotAllowed, CodeDuplicateID, CodeInvalidTransition, CodePayloadTooLarge, CodeUnsupportedMedia,
		CodeRateLimited, CodeInternal, CodeUnavailable,
	}
}

// Retryable reports whether the same request, sent again later byte for byte, may succeed.
func (c Code) Retryable() bool {
	return c == CodeRateLimited || c == CodeInternal || c == CodeUnavailable
}

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

// Retryable returns the "Retryable" column of the protocol's table. It is false for codes that the table does not list.
func (c AgentCode) Retryable() bool {
	switch c {
	case AgentInsufficientBudget, AgentTimeout, AgentUnavailable, AgentInternal:
		return true
	}
	return false
}

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
