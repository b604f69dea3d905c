package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// RemoveRequest is the body of POST /remove. It names one message by Sender and ID, or by Seq, or a thread by Client and
// Thread, or content of a gateway by Gateway and ID.
type RemoveRequest struct {
	Sender  didkey.DID `json:"sender,omitempty"`
	ID      string     `json:"id,omitempty"`
	Seq     relay.Seq  `json:"seq,omitempty"`
	Client  didkey.DID `json:"client,omitempty"`
	Thread  string     `json:"thread,omitempty"`
	Gateway string     `json:"gateway,omitempty"`
}

// Removed is the answer to POST /remove.
type Removed struct {
	Events []relay.Seq `json:"events"` // of the relay; empty for content of a gateway
}

func (a *api) remove(r *http.Request) (any, error) {
	var q RemoveRequest
	if err := read(r, &q); err != nil {
		return nil, err
	}
	// A removal that has begun is finished, also if the operator's command is interrupted.
	ctx := context.WithoutCancel(r.Context())
	removed, err := a.removeFrom(ctx, q)
	note(r, "events", removed, "sender", q.Sender, "id", q.ID, "client", q.Client, "thread", q.Thread, "gateway", q.Gateway)
	if err != nil {
		return nil, err
	}
	return Removed{append([]relay.Seq{}, removed...)}, nil
}

// RemoveSenderRequest is the body of POST /remove-sender. Sender is a DID, or a sender of a gateway in the form that the
// gateway has, such as bob@relay.example. A request removes at most a thousand things. If More of the answer is set,
// send the request again.
type RemoveSenderRequest struct {
	Sender string     `json:"sender"`
	Since  *time.Time `json:"since,omitempty"` // nil: always
}

// RemovedSender is the answer to POST /remove-sender.
type RemovedSender struct {
	Events   int            `json:"events"`   // messages of the relay
	Gateways map[string]int `json:"gateways"` // what gateways had, by the name of the gateway
	More     bool           `json:"more"`     // there may be more
}

func (a *api) removeSender(r *http.Request) (any, error) {
	var q RemoveSenderRequest
	if err := read(r, &q); err != nil {
		return nil, err
	}
	var since time.Time
	if q.Since != nil {
		since = *q.Since
	}
	if q.Sender == "" {
		return nil, invalid("name the sender")
	}
	ctx := context.WithoutCancel(r.Context()) // a batch that has begun is finished
	removed := RemovedSender{Gateways: map[string]int{}}
	var err error
	if did, failed := didkey.Parse(q.Sender); failed == nil {
		removed.Events, err = a.Relay.RemoveSender(ctx, did, since, maxBatch)
	}
	left := maxBatch - removed.Events
	if err == nil && left > 0 {
		removed.Gateways, err = a.RemoveSender(ctx, q.Sender, since, left)
	}
	for _, n := range removed.Gateways {
		left -= n
	}
	removed.More = left <= 0
	note(r, "sender", q.Sender, "since", q.Since, "events", removed.Events, "gateways", removed.Gateways)
	return removed, err
}

func (a *api) removeFrom(ctx context.Context, q RemoveRequest) ([]relay.Seq, error) {
	switch q {
	case RemoveRequest{Sender: q.Sender, ID: q.ID}:
		if q.Sender == "" || q.ID == "" {
			break
		}
		seq, err := a.Relay.FindEvent(ctx, q.Sender, q.ID)
		if err != nil {
			return nil, err
		}
		return a.Relay.Remove(ctx, seq)
	case RemoveRequest{Seq: q.Seq}:
		return a.Relay.Remove(ctx, q.Seq)
	case RemoveRequest{Client: q.Client, Thread: q.Thread}:
		if q.Client == "" || q.Thread == "" {
			break
		}
		return a.Relay.RemoveThread(ctx, thread.Key{Client: q.Client, ID: q.Thread})
	case RemoveRequest{Gateway: q.Gateway, ID: q.ID}:
		if q.Gateway == "" || q.ID == "" {
			break
		}
		return nil, a.Remove(ctx, q.Gateway, q.ID)
	}
	return nil, invalid("name one message by sender and id, or by seq, or one thread by client and thread, or the gateway " +
		"and the id of what it has")
}
