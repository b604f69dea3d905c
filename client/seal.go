package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Sealed payloads (docs/SEALING.md). A sealed payload is encrypted to the key of the recipient. To open a payload is to
// decrypt it. The client opens payloads that are sealed to its own key when they arrive, so the rest of the package
// reads them like plaintext payloads. A payload that cannot be opened stays sealed ("closed"). It is never read as if
// it were plaintext.

var (
	// ErrPlain is in the error of Offers and Result if the agent answered a sealed request in plaintext.
	ErrPlain = errors.New("client: the agent has answered a sealed request in plaintext; " +
		"to accept such answers, allow plaintext answers")
	// ErrClosed is in the error of Offers and Result if an answer is sealed and cannot be decrypted with the client's
	// key.
	ErrClosed = errors.New("client: the agent's answer is sealed and cannot be decrypted with this client's key")
)

// Request returns the REQUEST of the thread, or nil if the relay does not show it because it has expired or is hidden.
func (t *Thread) Request() *envelope.Envelope {
	for _, e := range t.Events {
		if e.Type == envelope.TypeRequest && e.Sender.ID == t.Client && e.RequestID == t.RequestID {
			return e
		}
	}
	return nil
}

// Sealed reports whether any message between the thread's client and this agent is sealed, as far as the relay shows
// their messages. If so, all their further messages are sealed. Messages of other senders in the thread are ignored.
func (t *Thread) Sealed(agent didkey.DID) bool {
	return slices.ContainsFunc(t.Events, func(e *envelope.Envelope) bool {
		between := e.Sender.ID == t.Client && e.Recipient == agent || e.Sender.ID == agent && e.Recipient == t.Client
		return between && e.RequestID == t.RequestID && e.Sealed()
	})
}

// resumeSeal sets Seal and sealDirected of a resumed call according to the messages that the relay shows.
func (call *Call) resumeSeal(record *Thread) {
	agent := cmp.Or(call.agent, call.recipient)
	if request := record.Request(); request != nil {
		call.Seal = request.Sealed()
		call.sealDirected = agent != "" && record.Sealed(agent)
		return
	}
	call.Seal = agent != "" && record.Sealed(agent)
	call.sealDirected = true
}

// closed reports whether the payload is sealed and was not opened.
func closed(e *envelope.Envelope) bool { return e.Sealed() && !e.Opened }

// readable returns handler, except that it skips messages that are sealed to the client and could not be opened.
func (c *Client) readable(
	handler func(context.Context, *envelope.Envelope) error,
) func(context.Context, *envelope.Envelope) error {
	return func(ctx context.Context, e *envelope.Envelope) error {
		if closed(e) && c.conn.Signer != nil && e.Recipient == c.conn.Signer.DID() {
			return nil
		}
		return handler(ctx, e)
	}
}

// checkSeal returns an error if an answer is closed (ErrClosed), or is in plaintext although it must be sealed
// (ErrPlain).
func (call *Call) checkSeal(e *envelope.Envelope) error {
	switch {
	case closed(e):
		return fmt.Errorf("%w: %s %s", ErrClosed, e.Type, e.ID)
	case call.Seal && !call.AllowPlain && !e.Sealed():
		return fmt.Errorf("%w: %s %s", ErrPlain, e.Type, e.ID)
	}
	return nil
}

// Limit sets the constraints of a resumed call. It is needed if the relay no longer has the REQUEST, or if the REQUEST
// is sealed, because its own sender cannot decrypt it. Accept then checks offers against constraints; nil: no
// constraints.
func (call *Call) Limit(constraints *envelope.Constraints) {
	call.request = &envelope.Request{Constraints: constraints}
}

// notOpened is the ERROR for a client whose message cannot be opened. It is the same for every reason, so that it shows
// nothing about the reason (docs/SEALING.md).
var notOpened = AgentError{Code: envelope.AgentInvalidRequest,
	Message: "the sealed payload cannot be opened; seal it to this agent's key as described in docs/SEALING.md, " +
		"or send it in plaintext"}

// sealed reports whether the client has sealed any message of the thread to this agent. If so, the agent seals its
// answers. The message may have any request_id, because the request_id in the relay's record is not signed.
func (r *run) sealed(record *Thread, request *envelope.Envelope) bool {
	for _, e := range append(record.Events, r.event, request) {
		if e != nil && e.Sender.ID == r.key.Client && e.Recipient == r.agent.me && e.Sealed() {
			return true
		}
	}
	return false
}
