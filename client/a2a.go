package client

import (
	"context"
	"net/http"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/a2a"
)

// Messages of A2A callers (A2A §4).

// A2AIntent is the intent of a REQUEST with a message of an A2A caller.
const A2AIntent = a2a.MessageIntent

// maxWork is how many bytes GET {work} answers at most: a message, and all that its task keeps.
const maxWork = 8 << 20

// A2ATurn is a message of an A2A caller, and what the relay says about it (A2A §4).
type A2ATurn = a2a.Turn

// A2ATurn returns the message of an A2A caller in a REQUEST with A2AIntent, and what the relay says about it. If parts or
// history had no room in the REQUEST, it reads them from the relay. Errors: an *AgentError, which a Handler can return
// unchanged; those of FromGateway and CallA2A.
func (c *Client) A2ATurn(ctx context.Context, request *envelope.Envelope) (A2ATurn, error) {
	t, err := c.readTurn(ctx, request)
	if err != nil || !t.Partial {
		return t, err
	}
	var answer struct {
		Message a2a.Message   `json:"message"`
		History []a2a.Message `json:"history"`
	}
	if err = c.readWork(ctx, t, &answer); err == nil {
		t.Message, t.History, t.Partial = answer.Message, answer.History, false
	}
	return t, err
}

// readTurn is A2ATurn without what had no room in the REQUEST.
func (c *Client) readTurn(ctx context.Context, request *envelope.Envelope) (t A2ATurn, err error) {
	if err := c.FromGateway(ctx, request); err != nil {
		return t, err
	}
	var payload envelope.Request
	if err = request.DecodePayload(&payload); err == nil {
		var params []byte
		if params, err = envelope.Canonicalize(payload.Params); err == nil {
			t, err = a2a.ParseTurn(params)
		}
	}
	if err != nil {
		return t, &AgentError{Code: envelope.AgentInvalidRequest, Message: err.Error()}
	}
	base, err := c.A2AGateway(ctx)
	if err != nil {
		return t, err
	}
	if t.Work != base+t.WorkPath() { // what is sent there is signed
		return t, &AgentError{Code: envelope.AgentInvalidRequest, Message: "params.work is not a URL of this relay"}
	}
	return t, nil
}

// taskArtifacts returns the artifacts of the task of a turn, as the relay has them now. Errors: those of CallA2A.
func (c *Client) taskArtifacts(ctx context.Context, t A2ATurn) ([]a2a.Artifact, error) {
	var answer struct {
		Artifacts []a2a.Artifact `json:"artifacts"`
	}
	err := c.readWork(ctx, t, &answer)
	return answer.Artifacts, err
}

// readWork reads all of a turn from the relay.
func (c *Client) readWork(ctx context.Context, t A2ATurn, out any) error {
	return c.CallA2A(ctx, GatewayCall{Method: http.MethodGet, Path: t.WorkPath(), Repeatable: true, Out: out,
		Limit: maxWork})
}

// A2ATurn does the same as Client.A2ATurn, for the gateway of any given relay. Errors: the error of the last relay.
func (n *Network) A2ATurn(ctx context.Context, request *envelope.Envelope) (A2ATurn, error) {
	return ofAny(n, func(c *Client) (A2ATurn, error) { return c.A2ATurn(ctx, request) })
}
