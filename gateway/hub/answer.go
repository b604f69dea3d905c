package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay/httpapi"
)

// The codes of the hub's errors.
const (
	codeValidation     = "ERR_VALIDATION"
	codeUnauthorized   = "ERR_UNAUTHORIZED"
	codeForbidden      = "ERR_FORBIDDEN"
	codeNotFound       = "ERR_NOT_FOUND"
	codeMethod         = "ERR_METHOD_NOT_ALLOWED"
	codeTooLarge       = "ERR_PAYLOAD_TOO_LARGE"
	codeMedia          = "ERR_UNSUPPORTED_MEDIA_TYPE"
	codeRateLimited    = "ERR_RATE_LIMITED"
	codeInternal       = "ERR_INTERNAL"
	codeUnavailable    = "ERR_UNAVAILABLE"
	codeAgentNotFound  = "ERR_AGENT_NOT_FOUND"
	codeIDTaken        = "ERR_AGENT_ID_TAKEN"
	codeRegistryFull   = "ERR_REGISTRY_FULL"
	codeInboxFull      = "ERR_INBOX_FULL"
	codeNoSender       = "ERR_SENDER_NOT_REGISTERED"
	codeSenderMismatch = "ERR_SENDER_MISMATCH"
	codeConflict       = "ERR_IDEMPOTENCY_CONFLICT"
	codeBlocked        = "ERR_ENDPOINT_BLOCKED"
	codeUnreachable    = "ERR_AGENT_UNREACHABLE"
	codeTimeout        = "ERR_TIMEOUT"
)

// apiError is a refusal in the hub's format.
type apiError struct {
	status     int
	code       string
	message    string
	limit      string // the limit that was reached, for status 429
	retryAfter time.Duration
	signed     signedError
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

// refuse returns a refusal. format and args are as for fmt.Sprintf.
func refuse(status int, code, format string, args ...any) error {
	return &apiError{status: status, code: code, message: fmt.Sprintf(format, args...)}
}

// limitReached refuses a request because a limit of the hub is reached.
func limitReached(code, limit string, retryAfter time.Duration, format string, args ...any) error {
	return &apiError{status: http.StatusTooManyRequests, code: code, message: fmt.Sprintf(format, args...), limit: limit,
		retryAfter: retryAfter}
}

// unauthorized refuses a request without a valid key.
func unauthorized() error {
	return refuse(http.StatusUnauthorized, codeUnauthorized,
		"this needs the current key of an agent, as Authorization: Bearer KEY; read your credentials again, and register "+
			"only if you never did")
}

// unknownAgent is the answer for an address that no agent has. The address may be any text from a path.
func unknownAgent(address string) error {
	if !isAddress(address) {
		return refuse(http.StatusNotFound, codeAgentNotFound, "no agent has this id; an id has the form name@host")
	}
	return refuse(http.StatusNotFound, codeAgentNotFound, "no agent is registered as %s; GET /discover lists the agents",
		address)
}

// relayErrors has the status and the code with which the hub answers an error of the relay or of its front.
var relayErrors = map[envelope.Code]struct {
	status int
	code   string
}{
	envelope.CodeInvalidRequest:   {http.StatusBadRequest, codeValidation},
	envelope.CodeUnauthorized:     {http.StatusUnauthorized, codeUnauthorized},
	envelope.CodeForbidden:        {http.StatusForbidden, codeForbidden},
	envelope.CodeNotFound:         {http.StatusNotFound, codeNotFound},
	envelope.CodeMethodNotAllowed: {http.StatusMethodNotAllowed, codeMethod},
	envelope.CodePayloadTooLarge:  {http.StatusRequestEntityTooLarge, codeTooLarge},
	envelope.CodeUnsupportedMedia: {http.StatusUnsupportedMediaType, codeMedia},
	envelope.CodeRateLimited:      {http.StatusTooManyRequests, codeRateLimited},
	envelope.CodeInternal:         {http.StatusInternalServerError, codeInternal},
	envelope.CodeUnavailable:      {http.StatusServiceUnavailable, codeUnavailable},
}

type errorBody struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Limit   string `json:"limit,omitempty"`
	signedError
}

// signedError says why a signed call was refused.
type signedError struct {
	Reason   string `json:"reason,omitempty"`
	Now      any    `json:"now,omitempty"`
	Audience any    `json:"aud,omitempty"`
}

type metadata struct {
	Timestamp string `json:"timestamp"`
	HasMore   bool   `json:"has_more,omitempty"`
}

// errors returns the answer to an error. It is the Errors of the hub's Mount.
func (h *Hub) errors(err error) (httpapi.ErrorAnswer, bool) {
	if errors.Is(err, gateway.ErrOtherBody) {
		err = refuse(http.StatusConflict, codeConflict,
			"another body was sent with this Idempotency-Key; use a new key for a new message")
	}
	e, known := errors.AsType[*apiError](err)
	if !known {
		cause, ok := errors.AsType[*envelope.Error](err)
		if !ok {
			return httpapi.ErrorAnswer{}, false
		}
		as, ok := relayErrors[cause.Code]
		if !ok {
			return httpapi.ErrorAnswer{}, false
		}
		e = &apiError{status: as.status, code: as.code, message: cause.Message, retryAfter: cause.RetryAfter,
			signed: signedError{cause.Reason(), cause.Details[envelope.DetailNow], cause.Details[envelope.DetailAudience]}}
		if as.code == codeTooLarge {
			e.message = fmt.Sprintf("the body is larger than %d bytes", gateway.MaxBody)
		}
		if as.status == http.StatusTooManyRequests {
			if e.limit = cause.Limit(); e.limit != limitRegistrations {
				e.limit = envelope.LimitRequests
			}
		}
	}
	answer := httpapi.ErrorAnswer{Status: e.status, RetryAfter: e.retryAfter, Body: struct {
		Success  bool      `json:"success"`
		Error    errorBody `json:"error"`
		Metadata metadata  `json:"metadata"`
	}{false, errorBody{e.code, e.message, e.limit, e.signed}, h.metadata()}}
	if e.status == http.StatusUnauthorized {
		answer.Challenge = "Bearer"
	}
	return answer, true
}

func (h *Hub) metadata() metadata { return metadata{Timestamp: gateway.Stamp(h.now().UnixNano())} }

// answerBody returns the body of a success.
func (h *Hub) answerBody(data any) []byte {
	return append(jsontext.Compact(struct {
		Success  bool     `json:"success"`
		Data     any      `json:"data"`
		Metadata metadata `json:"metadata"`
	}{true, data, h.metadata()}), '\n')
}

// answer writes a success.
func (h *Hub) answer(w http.ResponseWriter, status int, data any) error {
	return httpapi.WriteJSON(w, status, json.RawMessage(h.answerBody(data)))
}
