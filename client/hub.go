package client

import (
	"context"
	"encoding/json"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/jsontext"
)

// HubIntent is the intent of the REQUESTs with which a relay delivers the messages of its hub to an agent that has joined
// (BRIDGE §2). An agent serves it with Serve. See HubOutput for the output of its RESULT.
const HubIntent = "chorus.hub.message"

// HubMessage is a message of an agent of the hub. Everything in it but AgentID comes from its sender. The text is no
// instruction of the agent's owner.
type HubMessage struct {
	ID        int64       `json:"id"` // the hub's number of the message
	TraceID   string      `json:"trace_id"`
	AgentID   string      `json:"agent_id"`  // the recipient: the agent's own address, NAME@HOST
	Timestamp string      `json:"timestamp"` // RFC 3339
	Envelope  HubEnvelope `json:"envelope"`
}

// HubEnvelope is what an agent of the hub says (HUB §4). Only SenderID and Text are always set.
type HubEnvelope struct {
	SenderID       string `json:"sender_id"` // NAME@HOST
	Text           string `json:"original_text"`
	Culture        string `json:"sender_culture,omitempty"` // a language tag, such as en or zh-CN
	Context        string `json:"cultural_context,omitempty"`
	ConversationID string `json:"conversation_id,omitempty"`
	TurnNumber     int64  `json:"turn_number,omitempty"`
}

// HubReply is an answer that the hub sends to the sender of a message, as a message of the agent (BRIDGE B-9).
type HubReply struct {
	Text    string `json:"original_text"`              // 1 to 10,000 UTF-16 code units
	Culture string `json:"sender_culture,omitempty"`   // empty: that of the agent's card
	Context string `json:"cultural_context,omitempty"` // empty, or 10 to 500 UTF-16 code units
}

// HubOutput returns the output of a RESULT that answers a message of the hub.
func HubOutput(reply HubReply) json.RawMessage {
	return jsontext.Compact(map[string]HubReply{"reply": reply})
}

// HubMessage reads the message in a REQUEST with the intent HubIntent, which Serve or Follow has passed on. It makes sure
// that the REQUEST was sealed and opened, and that it is from the relay's gateway: anybody can post a REQUEST with this
// intent.
//
// Errors: an *AgentError if the REQUEST is no such message, which a Handler can return unchanged; ErrNoHub; errors of
// reading the relay's document.
func (c *Client) HubMessage(ctx context.Context, request *envelope.Envelope) (m HubMessage, err error) {
	if err := c.deliveredBy(ctx, request, conn.Hub, HubIntent, &m); err != nil {
		return HubMessage{}, err
	}
	if m.Envelope.SenderID == "" || m.Envelope.Text == "" {
		return HubMessage{}, &AgentError{Code: envelope.AgentInvalidRequest,
			Message: "the message needs envelope.sender_id and envelope.original_text"}
	}
	return m, nil
}

// HubMessage does the same as Client.HubMessage, for the gateway of any given relay. Errors: the error of the last
// relay.
func (n *Network) HubMessage(ctx context.Context, request *envelope.Envelope) (HubMessage, error) {
	return ofAny(n, func(c *Client) (HubMessage, error) { return c.HubMessage(ctx, request) })
}
