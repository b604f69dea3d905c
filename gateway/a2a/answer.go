package a2a

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// This file has the answers to errors (docs/A2A.md, "Errors").

// ownerError is an error that the owner of an endpoint gets, in the form of the relay's own errors.
type ownerError struct{ error }

// Unwrap returns the error itself.
func (e ownerError) Unwrap() error { return e.error }

// inRelayForm returns a handler whose errors are answered in the form of the relay's own errors.
func inRelayForm(h httpapi.Handler) httpapi.Handler {
	return func(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
		if err := h(w, r, from); err != nil {
			return ownerError{err}
		}
		return nil
	}
}

// answerTo returns the answer to an error in HTTP+JSON. For an error of the front, the answer is the same in both
// bindings. The Mount of the gateway has answerTo as its Errors.
func answerTo(err error) (httpapi.ErrorAnswer, bool) {
	if own, ok := errors.AsType[ownerError](err); ok {
		return gateway.RelayForm(own.error)
	}
	e, ok := errorOf(err)
	if !ok {
		return httpapi.ErrorAnswer{}, false
	}
	answer := httpapi.ErrorAnswer{Status: e.Status(), Body: json.RawMessage(e.HTTPBody())}
	if refused, ok := errors.AsType[*envelope.Error](err); ok {
		answer.RetryAfter = refused.RetryAfter
	}
	if answer.Status == http.StatusUnauthorized {
		answer.Challenge = "Bearer"
	}
	return answer, true
}

// The Mount of hooks has hookAnswerTo as its Errors. There every limit is answered with 503, because a server may
// repeat a push only after a 5xx.
func hookAnswerTo(err error) (httpapi.ErrorAnswer, bool) {
	if e, ok := errors.AsType[*envelope.Error](err); ok && e.Code == envelope.CodeRateLimited {
		err = envelope.NotStored("the hook takes no more events now; try again after Retry-After", e.RetryAfter)
	}
	return gateway.RelayForm(err)
}

// errorOf returns an error as A2A has it. ok is false for an error that strangers must not see.
func errorOf(err error) (e *wire.Error, ok bool) {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e, true
	}
	if errors.Is(err, gateway.ErrOtherBody) {
		return wire.Front(http.StatusConflict, gateway.ErrOtherBody.Error()), true
	}
	refused, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		return nil, false
	}
	switch status := refused.Code.Info().Status; status {
	case http.StatusBadRequest:
		return wire.Errorf(wire.BadParams, "%s", refused.Message), true
	case http.StatusInternalServerError:
		return wire.Errorf(wire.Fault, "%s", refused.Message), true
	default:
		return wire.Front(status, refused.Message), true
	}
}

// done is the answer to a request that has no result.
type done struct {
	OK bool `json:"ok"`
}
