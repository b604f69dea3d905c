package client

import (
	"errors"
	"time"

	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/envelope"
)

// permanent reports whether err is ErrOtherRelay, or an *envelope.Error that a retry would get again. The error may
// come from the relay or from the client itself, before it sent anything. Three kinds of errors are not permanent:
//   - ErrUnknownOutcome.
//   - An error because of the time (CodeStaleTimestamp, CodeExpired): a retry has a new timestamp, and a wrong clock
//     may be corrected.
//   - An error with a code that Code.Retryable allows. CodeRateLimited is such a code, with one exception: the limit on
//     the offers in a thread is permanent, because their number never goes down.
func permanent(err error) bool {
	refusal, ok := errors.AsType[*envelope.Error](err)
	switch {
	case errors.Is(err, ErrOtherRelay):
		return true
	case !ok, errors.Is(err, ErrUnknownOutcome),
		refusal.Code == envelope.CodeStaleTimestamp, refusal.Code == envelope.CodeExpired:
		return false
	case refusal.Code == envelope.CodeRateLimited:
		return refusal.Details["maxOffers"] != nil
	}
	return !refusal.Code.Retryable()
}

// InWords returns an error of a request with a text that says what happened and what to check, where Go's own text says
// neither: http and https mixed up, a connection that was closed, and no answer in time. It returns other errors
// unchanged. errors.Is and errors.As find the same as before.
func InWords(err error) error { return wire.InWords(err) }

// Unanswered reports whether err means that the relay gave no answer, or an answer without a decision: no connection, a
// timeout, a failure of a server, 429, or ErrUnknownOutcome. The same call may succeed later.
func Unanswered(err error) bool { return errors.Is(err, ErrUnknownOutcome) || wire.Unanswered(err) }

// retryAfter returns how long the relay asks to wait before a retry; 0: err does not say.
func retryAfter(err error) time.Duration {
	refusal, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		return 0
	}
	return refusal.RetryAfter
}
