package channel

import (
	"errors"
	"net/http"
	"slices"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay/httpapi"
)

// The names of the limits in answers with status 429, beside envelope.LimitRequests.
const (
	limitChannels    = "channels"
	limitMembers     = "members"
	limitConnections = "connections"
	limitInboxes     = "inboxes"
	limitEvents      = "callbackEvents"
)

// answerTo returns the answer to an error. It is the Errors of the gateway's Mount.
func answerTo(err error) (httpapi.ErrorAnswer, bool) {
	e, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		return gateway.RelayForm(err)
	}
	own := []string{limitChannels, limitMembers, limitConnections, limitInboxes, limitEvents}
	if e.Code == envelope.CodeRateLimited && !slices.Contains(own, e.Limit()) {
		limited := *e
		limited.Details = map[string]any{envelope.DetailLimit: envelope.LimitRequests}
		err = &limited
	}
	return gateway.RelayForm(err)
}

// inboxAnswerTo is the same as answerTo for deliveries to inboxes. There every limit is answered with 503, because a
// service may repeat a delivery only after a 5xx (C-23).
func inboxAnswerTo(err error) (httpapi.ErrorAnswer, bool) {
	if e, ok := errors.AsType[*envelope.Error](err); ok && e.Code == envelope.CodeRateLimited {
		err = envelope.NotStored("the inbox takes no more deliveries now; try again after Retry-After", e.RetryAfter)
	}
	return answerTo(err)
}

// stamp is a time in an answer.
type stamp int64

// MarshalText implements encoding.TextMarshaler.
func (s stamp) MarshalText() ([]byte, error) { return []byte(gateway.Stamp(int64(s))), nil }

// done is the answer to a request that has no result.
type done struct {
	OK bool `json:"ok"`
}

// writeList answers a request with a list, which is the member name of the answer. tail returns the text after the list.
func writeList(w http.ResponseWriter, name string, elements gateway.Elements, tail func() string) error {
	return httpapi.WriteList(w, httpapi.List{Head: `{"ok":true,"` + name + `":[`, Elements: elements, Tail: tail})
}
