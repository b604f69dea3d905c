package gateway

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// Reply is the answer to a request that was done.
type Reply struct {
	Status   int
	Body     []byte // JSON, with a line break at the end
	Replayed bool   // an earlier request with the same Idempotency-Key has got this answer
}

// NewReply returns a Reply with a value as JSON.
func NewReply(status int, v any) Reply {
	return Reply{Status: status, Body: append(jsontext.Compact(v), '\n')}
}

// Write sends the answer.
func (p Reply) Write(w http.ResponseWriter) error {
	if p.Replayed {
		w.Header().Set("Idempotent-Replay", "true")
	}
	return httpapi.WriteJSON(w, p.Status, json.RawMessage(p.Body))
}

// Once does an operation in one Update, together with its answer. If the request has an Idempotency-Key and is a repeat,
// Once returns the first answer instead. given is false if the request has no Idempotency-Key. admit is run first, also
// for a repeat; it checks again that the caller may do this. do may be run twice. Errors: those of Begin, admit and do;
// ErrOtherBody.
func (a *Answers) Once(
	ctx context.Context, from relay.Peer, r Repeat, given bool, admit func(*Op) error, do func(*Op) (Reply, error),
) (reply Reply, err error) {
	if given {
		end, err := a.Begin(ctx, r)
		if err != nil {
			return Reply{}, err
		}
		defer end()
	}
	// If the client disconnects now, the operation is still done.
	err = a.core.Update(context.WithoutCancel(ctx), from, func(o *Op) (err error) {
		reply = Reply{}
		if err := admit(o); err != nil {
			return err
		}
		if !given {
			reply, err = do(o)
			return err
		}
		stored, found, err := a.Find(o, r)
		if err != nil || found {
			reply = Reply{stored.Status, stored.Body, true}
			return err
		}
		if reply, err = do(o); err != nil {
			return err
		}
		if err := a.Add(o.ExtTx, r, 0); err != nil {
			return err
		}
		return a.Finish(o.ExtTx, r, reply.Status, reply.Body)
	})
	return reply, err
}
