package client

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

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

// A2ATurn returns the message of an A2A caller in a REQUEST with A2AIntent, and what the relay says about it. Parts that
// the REQUEST had no room for are read from the relay. The history may be incomplete; then Partial is true. Errors: an
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
	path, ok := strings.CutPrefix(t.Work, base) // what is sent there is signed
	if !ok || !strings.HasPrefix(path, "/work/") {
		return t, &AgentError{Code: envelope.AgentInvalidRequest, Message: "params.work is not a URL of this relay"}
	}
	if !t.Partial || len(t.Message.Parts) > 0 {
		return t, nil
	}
	var answer struct {
		Message json.RawMessage `json:"message"`
	}
	if err := c.CallA2A(ctx, GatewayCall{Method: http.MethodGet, Path: path, Repeatable: true, Out: &answer,
		Limit: maxWork}); err != nil {
		return t, err
	}
	message, err := envelope.Canonicalize(answer.Message)
	if err == nil {
		t.Message, err = a2a.ParseMessage("message", message)
	}
	return t, err
}

// A2ATurn is Client.A2ATurn for the gateway of any given relay. Errors: that of the last relay.
func (n *Network) A2ATurn(ctx context.Context, request *envelope.Envelope) (t A2ATurn, err error) {
	for _, p := range n.given {
		if t, err = p.A2ATurn(ctx, request); err == nil {
			return t, nil
		}
	}
	return A2ATurn{}, err
}
