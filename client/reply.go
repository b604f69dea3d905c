package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/envelope"
)

// ChannelEvent is one event of an agent (CHANNEL §3). Type decides which of the other fields are sent:
//   - "message": Content
//   - "tool_call": Name, Args, ID
//   - "tool_result": ID, Content
//   - "status", "lifecycle": Status
//   - "error": Message, and Code unless it is empty
type ChannelEvent struct {
	Type    string
	Content string
	Name    string
	Args    json.RawMessage // a JSON object; nil: {}
	ID      string
	Status  string
	Message string
	Code    string
	// Key is the Idempotency-Key with which ChannelReply.Post sends the event; empty: a new random one. An agent that
	// may post the same event again after a restart sets a Key that is then the same.
	Key string
}

// MarshalJSON returns the event as it is posted.
func (e ChannelEvent) MarshalJSON() ([]byte, error) {
	members := map[string]any{"type": e.Type}
	switch e.Type {
	case "message":
		members["content"] = e.Content
	case "tool_call":
		members["name"], members["id"], members["args"] = e.Name, e.ID, e.Args
		if e.Args == nil {
			members["args"] = struct{}{}
		}
	case "tool_result":
		members["id"], members["content"] = e.ID, e.Content
	case "status", "lifecycle":
		members["status"] = e.Status
	case "error":
		members["message"] = e.Message
		if e.Code != "" {
			members["code"] = e.Code
		}
	default:
		return nil, fmt.Errorf("client: %q is not a type of event", e.Type)
	}
	return json.Marshal(members)
}

// ChannelOutput returns the output of a RESULT that sends these events to the service, in this order. Without events the
// agent says nothing. Errors: an event with an unknown type, or with Args that are not JSON.
func ChannelOutput(events ...ChannelEvent) (json.RawMessage, error) {
	return json.Marshal(map[string][]ChannelEvent{"events": append([]ChannelEvent{}, events...)})
}

// ErrCallbackEnded is in the error of ChannelReply.Post if the callback takes no more events: it has expired, the inbox
// was deleted, or the service no longer wants this agent's events (410).
var ErrCallbackEnded = errors.New("client: the callback of this delivery has ended")

// ChannelReply posts the events of an agent's answer to one delivery. It is for agents that say something while they
// work, and for those that do not answer in the thread. It is safe for concurrent use: events are posted one after the
// other, in the order of the calls of Post.
type ChannelReply struct {
	client       *Client
	base, target string        // the callback: its origin, and its path and query, which are secret
	turn         chan struct{} // a semaphore: full while an event is being posted
	ended        bool          // the callback has answered 410; only the holder of the turn uses it
}

// Reply returns the ChannelReply for a delivery.
func (c *Client) Reply(d ChannelDelivery) (*ChannelReply, error) {
	u, err := url.Parse(d.Callback)
	if err != nil || !validCallback(d.Callback) {
		return nil, fmt.Errorf("client: the callback of the delivery %s is not a URL", wire.Shorten(d.ID))
	}
	return &ChannelReply{client: c, base: u.Scheme + "://" + u.Host, target: u.RequestURI(),
		turn: make(chan struct{}, 1)}, nil
}

// Post posts one event. It repeats the event with the same Idempotency-Key after a temporary failure (no answer, 408,
// 429, 5xx), until ctx ends or Options.Attempts is reached, and waits as long as Retry-After says. So the event is
// stored once.
//
// Errors: ErrCallbackEnded; an *envelope.Error if the event was refused; ErrUnknownOutcome if it is unknown whether the
// event was stored. After ErrCallbackEnded all later calls return it without a request.
func (r *ChannelReply) Post(ctx context.Context, event ChannelEvent) error {
	body, err := json.Marshal(event)
	if err != nil {
		return err
	}
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if r.ended {
		return ErrCallbackEnded
	}
	return r.post(ctx, cmp.Or(event.Key, envelope.NewNonce()), body)
}

// post sends an event until it is clear whether it was stored, or the attempts end. The caller has the turn.
func (r *ChannelReply) post(ctx context.Context, key string, body []byte) error {
	mayBeStored := false
	err := r.client.conn.Repeat(ctx, (*wire.Failure).Temporary, func(ctx context.Context) *wire.Failure {
		request := wire.Request{Base: r.base, Method: http.MethodPost, Target: r.target, IdempotencyKey: key, Body: body}
		failed := r.client.conn.Wire.Send(ctx, request, wire.Spec{Out: new(struct{}), Limit: wire.MaxShort})
		if failed != nil {
			hideTarget(failed, r.base)
			mayBeStored = mayBeStored || !failed.NoEffect()
		}
		return failed
	})
	failed, ok := errors.AsType[*wire.Failure](err)
	switch {
	case !ok:
		return err
	case failed.Status == http.StatusGone:
		r.ended = true
		return fmt.Errorf("%w: %w", ErrCallbackEnded, failed)
	case mayBeStored && failed.Temporary(): // a refusal of a repeat proves that no earlier attempt was stored
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	}
	return err
}

// hideTarget removes the path of a secret URL from the error of a request.
func hideTarget(failed *wire.Failure, base string) {
	if request, ok := errors.AsType[*url.Error](failed.Err); ok {
		request.URL = base + "/…"
	}
}
