package gateway

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay/httpapi"
)

// This file has refusals in the form of the relay's own errors (PROTOCOL §5).

// Codes of refusals that the relay itself does not have.
const (
	CodeConflict envelope.Code = "CONFLICT"
	CodeGone     envelope.Code = "GONE"
)

// Conflict refuses a name that is taken, another body for an Idempotency-Key, or what does not fit the present state.
func Conflict(message string) error { return envelope.Errorf(CodeConflict, "%s", message) }

// Gone refuses a key that was valid once.
func Gone(message string) error { return envelope.Errorf(CodeGone, "%s", message) }

// Forbidden refuses what a caller may not do.
func Forbidden(message string) error { return envelope.Errorf(envelope.CodeForbidden, "%s", message) }

// NotFound refuses a request for what does not exist.
func NotFound(message string) error { return envelope.Errorf(envelope.CodeNotFound, "%s", message) }

// Unauthorized refuses a request without a valid key.
func Unauthorized(message string) error {
	return envelope.Errorf(envelope.CodeUnauthorized, "%s", message)
}

// LimitReached refuses a request because a limit of a gateway is reached.
func LimitReached(limit string, retryAfter time.Duration, format string, args ...any) error {
	e := envelope.Errorf(envelope.CodeRateLimited, format, args...)
	e.RetryAfter, e.Details = retryAfter, map[string]any{envelope.DetailLimit: limit}
	return e
}

// ResponseTo returns the response that an HTTP request with this error would get, for an Answerer. answerTo is the Errors
// of its Mount. It returns an error that others must not see.
func ResponseTo(err error, answerTo func(error) (httpapi.ErrorAnswer, bool)) (Response, error) {
	if err == nil {
		return Response{Status: http.StatusOK}, nil
	}
	answer, known := answerTo(err)
	if !known || errors.Is(err, context.Canceled) {
		return Response{}, err
	}
	r := Response{Status: answer.Status}
	if answer.RetryAfter > 0 {
		r.RetryAfter = strconv.FormatInt(int64(math.Ceil(answer.RetryAfter.Seconds())), 10)
	}
	return r, nil
}

// RelayForm returns the answer to an error in the form of the relay's own errors. It also knows ErrOtherBody and the codes
// of this file. If a key is missing, and not the token of a signed call, the answer asks for a Bearer key.
func RelayForm(err error) (httpapi.ErrorAnswer, bool) {
	if errors.Is(err, ErrOtherBody) {
		err = Conflict(ErrOtherBody.Error())
	}
	answer, ok := httpapi.RelayError(err)
	if !ok {
		return answer, false
	}
	e, _ := errors.AsType[*envelope.Error](err)
	switch e.Code {
	case CodeConflict:
		answer.Status = http.StatusConflict
	case CodeGone:
		answer.Status = http.StatusGone
	case envelope.CodeUnauthorized:
		if e.Reason() == "" {
			answer.Challenge = "Bearer"
		}
	}
	return answer, true
}
