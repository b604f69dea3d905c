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

// A2ATurn returns the message of an A2A caller in a REQUEST with A2AIntent, and what the relay says about it. Parts for
// which the REQUEST had no room are read from the relay. The history may be incomplete; then Partial is true. Errors: an
// *AgentError, which a Handler can return unchanged; those of FromGateway and CallA2A.
func (c *Client) A2ATurn(ctx context.Context, request *envelope.Envelope) (t A2ATurn, err error) {
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
	if !t.Partial || len(t.Message.Parts) > 0 {
		return t, nil
	}
	var answer struct {
		Message a2a.Message `json:"message"`
	}
	err = c.readWork(ctx, t, &answer)
	t.Message = answer.Message
	return t, err
}

// A2AEarlier returns the artifacts of the turns before t, which A2ATurn has returned. Errors: those of CallA2A.
func (c *Client) A2AEarlier(ctx context.Context, t A2ATurn) ([]a2a.Artifact, error) {
	if t.Turn == 1 {
		return nil, nil
	}
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

// A2ATurn is Client.A2ATurn for the gateway of any given relay. Errors: that of the last relay.
func (n *Network) A2ATurn(ctx context.Context, request *envelope.Envelope) (A2ATurn, error) {
	return ofAny(n, func(c *Client) (A2ATurn, error) { return c.A2ATurn(ctx, request) })
}
