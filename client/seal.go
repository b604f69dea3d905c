package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Sealed payloads (docs/SEALING.md). What is sealed to the client's own key is opened as it comes in, so that the rest
// of the package reads it like any message. What does not open stays closed, and is never read as if it were plain.

var (
	// ErrPlain is in the error of Offers and Result if the agent answered a sealed request with a plain message.
	ErrPlain = errors.New("client: the agent has answered a sealed request in plain; allow that to take its answers")
	// ErrClosed is in the error of Offers and Result if an answer is sealed and cannot be opened with the client's key.
	ErrClosed = errors.New("client: the agent's answer is sealed and does not open with this key")
)

// open returns e opened if it is sealed to the client, and as it came otherwise or if it does not open.
func (c *Client) open(e *envelope.Envelope) *envelope.Envelope {
	opener, able := c.signer.(envelope.Opener)
	if !e.Sealed() || c.signer == nil || e.Recipient != c.signer.DID() {
		return e
	}
	if able {
		if opened, err := e.Open(opener); err == nil {
			return opened
		}
	}
	if c.unopened.first(key{e.Sender.ID, e.ID}) {
		c.log.Warn("a sealed message does not open with our key", "id", e.ID, "sender", e.Sender.ID)
	}
	return e
}

// once reports which messages were not reported before. It is safe for concurrent use.
type once struct {
	mu   sync.Mutex
	told *recent[key, struct{}] // nil: nothing yet
}

func (o *once) first(k key) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.told == nil {
		o.told = newRecent[key, struct{}](memory)
	}
	return o.told.add(k, struct{}{})
}

// Request returns the thread's REQUEST, nil if the relay does not show it: it has expired, or is hidden.
func (t *Thread) Request() *envelope.Envelope {
	for _, e := range t.Events {
		if e.Type == envelope.TypeRequest && e.Sender.ID == t.Client && e.RequestID == t.RequestID {
			return e
		}
	}
	return nil
}

// Sealed reports whether the client and this agent have sealed anything to each other, as far as the relay shows it.
// Then they go on so. Others who write into the thread do not matter.
func (t *Thread) Sealed(agent didkey.DID) bool {
	return slices.ContainsFunc(t.Events, func(e *envelope.Envelope) bool {
		between := e.Sender.ID == t.Client && e.Recipient == agent || e.Sender.ID == agent && e.Recipient == t.Client
		return between && e.RequestID == t.RequestID && e.Sealed()
	})
}

// resumeSeal learns from the relay's record how a resumed call is to go on.
func (call *Call) resumeSeal(record *Thread) {
	agent := cmp.Or(call.agent, call.recipient)
	if request := record.Request(); request != nil {
		call.Seal = request.Sealed()
		call.private = agent != "" && record.Sealed(agent)
		return
	}
	call.Seal = agent != "" && record.Sealed(agent)
	call.private = true
}

// closed reports whether the payload is sealed still.
func closed(e *envelope.Envelope) bool { return e.Sealed() && !e.Opened }

// readable returns handler for the messages that are not sealed to the client, or have opened.
func (c *Client) readable(handler func(context.Context, *envelope.Envelope) error) func(context.Context, *envelope.Envelope) error {
	return func(ctx context.Context, e *envelope.Envelope) error {
		if closed(e) && c.signer != nil && e.Recipient == c.signer.DID() {
			return nil
		}
		return handler(ctx, e)
	}
}

// checkSeal says why an answer of the agent's is not taken, nil if it is.
func (call *Call) checkSeal(e *envelope.Envelope) error {
	switch {
	case closed(e):
		return fmt.Errorf("%w: %s %s", ErrClosed, e.Type, e.ID)
	case call.Seal && !call.AllowPlain && !e.Sealed():
		return fmt.Errorf("%w: %s %s", ErrPlain, e.Type, e.ID)
	}
	return nil
}

// Limit tells a resumed call what its REQUEST asked for, where the relay cannot: it no longer has the REQUEST, or that
// is sealed and does not open for its own sender. Accept holds offers against constraints; nil sets no bounds.
func (call *Call) Limit(constraints *envelope.Constraints) {
	call.request = &envelope.Request{Constraints: constraints}
}

// notOpened is what every client is told whose message does not open, whatever the reason.
var notOpened = AgentError{Code: envelope.AgentInvalidRequest,
	Message: "the sealed payload cannot be opened; seal it to this agent's key as docs/SEALING.md has it, or send it plain"}

// sealed reports whether the client has sealed any message of the thread to this agent. Then the answers are sealed
// too. The request_id of that message does not matter, because the relay's record of the request is not signed.
func (r *run) sealed(record *Thread, request *envelope.Envelope) bool {
	for _, e := range append(record.Events, r.event, request) {
		if e != nil && e.Sender.ID == r.key.Client && e.Recipient == r.agent.me && e.Sealed() {
			return true
		}
	}
	return false
}
