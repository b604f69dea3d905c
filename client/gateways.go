package client

import (
	"context"
	"encoding/json"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/envelope"
)

// The gateways of a relay (GATEWAYS §3).

// The errors of calls that need a gateway, at a relay that does not have it.
var (
	ErrNoHub     = conn.ErrNoGateway[conn.Hub]
	ErrNoJobs    = conn.ErrNoGateway[conn.Jobs]
	ErrNoChannel = conn.ErrNoGateway[conn.Channel] // without it, there are no agent inboxes
	ErrNoA2A     = conn.ErrNoGateway[conn.A2A]
)

// FromGateway checks that a REQUEST comes from a gateway of this relay: it was sealed to this client and opened, and its
// sender is the DID in the relay's document. Anybody can post a REQUEST with the intent of a gateway. Errors: an
// *AgentError, which a Handler can return unchanged; errors of reading the relay's document.
func (c *Client) FromGateway(ctx context.Context, request *envelope.Envelope) error {
	if !request.Opened || c.conn.Signer == nil || request.Recipient != c.conn.Signer.DID() {
		return &AgentError{Code: envelope.AgentForbidden,
			Message: "what a gateway delivers must be sealed to its recipient"}
	}
	g, err := c.conn.AllGateways(ctx)
	if err != nil {
		return err
	}
	if request.Sender.ID != g.DID {
		return &AgentError{Code: envelope.AgentForbidden, Message: "only the relay's gateway sends this; its DID is in the " +
			"relay's document /.well-known/agora.json"}
	}
	return nil
}

// deliveredBy reads the params of a REQUEST with this intent from the gateway with this name. Errors: an *AgentError if
// the REQUEST is no such delivery; the error for a relay without this gateway; errors of reading the relay's document.
func (c *Client) deliveredBy(ctx context.Context, request *envelope.Envelope, name, intent string, params any) error {
	if request.Type != envelope.TypeRequest || request.PayloadString("intent") != intent {
		return &AgentError{Code: envelope.AgentIntentNotSupported, Message: "this is not a REQUEST with the intent " + intent}
	}
	if _, err := c.conn.Gateway(ctx, name); err != nil {
		return err
	}
	if err := c.FromGateway(ctx, request); err != nil {
		return err
	}
	var payload envelope.Request
	if err := request.DecodePayload(&payload); err != nil {
		return &AgentError{Code: envelope.AgentInvalidRequest, Message: "the payload of the REQUEST is malformed"}
	}
	if err := json.Unmarshal(payload.Params, params); err != nil {
		return &AgentError{Code: envelope.AgentInvalidRequest, Message: "the params of the delivery are malformed"}
	}
	return nil
}

// A2AGateway returns the base URL of the relay's A2A gateway (A2A §1). Errors: ErrNoA2A; those of ChannelGateway.
func (c *Client) A2AGateway(ctx context.Context) (baseURL string, err error) {
	g, err := c.conn.Gateway(ctx, conn.A2A)
	return g.URLs[conn.A2A], err
}

// GatewayCall is a signed call to a gateway (GATEWAYS §3).
type GatewayCall struct {
	Method, Path string // Path begins after the gateway's base URL
	Body         []byte // JSON; nil: the request has no body
	Status       int    // of a successful answer; 0: 200
	Repeatable   bool   // a repeat does no harm, even if the call has had its effect
	Out          any    // the answer is decoded into this; nil: it is not needed
	Limit        int    // bytes of the answer; 0: 64 KiB
}

// CallA2A sends a signed call to the relay's A2A gateway. Errors: ErrNoA2A; *envelope.Error. If the error says
// "unknown", the call is not repeatable, and may have had its effect.
func (c *Client) CallA2A(ctx context.Context, call GatewayCall) error {
	return c.conn.Call(ctx, conn.A2A, conn.Call(call))
}
