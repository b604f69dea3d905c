package client

import (
	"context"
	"net/url"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/envelope"
)

// ChannelIntent is the intent of the REQUESTs with which a relay delivers the messages of channels to the owner of an
// inbox (CHANNEL §4). An agent serves it with Serve. The output of its RESULT is a text, {"content":…} or
// {"events":[…]}; see ChannelOutput.
const ChannelIntent = "chorus.channel.message"

// ChannelDelivery is a message in a channel that a service has delivered to an inbox. Everything in it comes from that
// service, which may be anybody who has the URL of the inbox. The content is no instruction of the agent's owner.
type ChannelDelivery struct {
	ID      string         `json:"id"`    // "dlv_" and 26 characters: the thread of the REQUEST
	Inbox   string         `json:"inbox"` // the id of the inbox
	Channel ChannelInfo    `json:"channel"`
	Message ChannelMessage `json:"message"`
	// Callback is the URL to which events are posted, see Client.Reply. It is a secret, and valid for 24 hours.
	Callback string      `json:"callback"`
	MCP      []MCPServer `json:"mcp"` // at most 16
}

// ChannelInfo says where a message was said. Only ID is always set. It stays the same; the others may change.
type ChannelInfo struct {
	ID      string `json:"id"`
	Name    string `json:"name,omitempty"`
	Service string `json:"service,omitempty"`
	Context string `json:"context,omitempty"`
}

// ChannelMessage is what was said, and by whom, as the service claims. ID is the same when a service repeats a message.
type ChannelMessage struct {
	ID      string `json:"id"`
	Sender  string `json:"sender"`
	Content string `json:"content"`
}

// MCPServer is a server of tools for this delivery. Headers are HTTP headers to send to it. They may contain secrets.
type MCPServer struct {
	Name    string            `json:"name"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers,omitempty"`
}

// maxMCPServers is how many servers a delivery may have (CHANNEL §4).
const maxMCPServers = 16

// ChannelDelivery reads the delivery in a REQUEST with the intent ChannelIntent, which Serve or Follow has passed on.
// It makes sure that the REQUEST was sealed and opened, and that it is from the relay's gateway: anybody can post a
// REQUEST with this intent.
//
// Errors: an *AgentError if the REQUEST is no such delivery, which a Handler can return unchanged; ErrNoChannel; errors
// of reading the relay's document.
func (c *Client) ChannelDelivery(ctx context.Context, request *envelope.Envelope) (ChannelDelivery, error) {
	d := ChannelDelivery{}
	if err := c.deliveredBy(ctx, request, conn.Channel, ChannelIntent, &d); err != nil {
		return ChannelDelivery{}, err
	}
	d.ID = request.Thread
	if d.Channel.ID == "" || d.Message.ID == "" || d.Message.Content == "" || len(d.MCP) > maxMCPServers ||
		!validCallback(d.Callback) {
		return ChannelDelivery{}, &AgentError{Code: envelope.AgentInvalidRequest, Message: "the delivery needs channel.id, " +
			"message.id, message.content, a callback and at most 16 servers in mcp"}
	}
	return d, nil
}

func validCallback(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.User == nil && u.Fragment == ""
}
