package client

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/envelope"
)

// Direct is the Protocol of a REQUEST that a client of the relay has sent itself.
const Direct = "agora"

// Origin says from where a REQUEST comes (BRIDGE B-16).
type Origin struct {
	Protocol string // Direct, or the name of the relay's gateway that sent it: "hub", "jobs", "channel", "a2a"
	// Sender is who asks, as that protocol names it: a DID, NAME@HOST, an account, a name in a channel, the name of a key.
	// Only a DID of Agora is proved. The rest is what strangers or the gateway say; empty: nothing.
	Sender string
}

// gatewayThreads are the prefixes of the threads that gateways open.
var gatewayThreads = map[string]string{"hub_": conn.Hub, "job_": conn.Jobs, "dlv_": conn.Channel, "trn_": conn.A2A}

// Origin returns from where a REQUEST comes. Errors: those of reading the relay's document.
func (c *Client) Origin(ctx context.Context, request *envelope.Envelope) (Origin, error) {
	direct := Origin{Protocol: Direct, Sender: string(request.Sender.ID)}
	prefix, _, _ := strings.Cut(request.Thread, "_")
	name := gatewayThreads[prefix+"_"]
	if name == "" || !request.Opened {
		return direct, nil
	}
	g, err := c.conn.AllGateways(ctx)
	if err != nil || g.URLs[name] == "" || request.Sender.ID != g.DID {
		return direct, err
	}
	var payload struct {
		Params      json.RawMessage `json:"params"`
		Constraints struct {
			Orchestrator string `json:"orchestrator_id"`
		} `json:"constraints"`
	}
	var params struct {
		Envelope HubEnvelope
		Message  struct{ Sender string }
		Caller   struct{ Name, DID string }
	}
	if json.Unmarshal(request.Payload, &payload) == nil && name != conn.Jobs {
		_ = json.Unmarshal(payload.Params, &params) // params of another form name nobody
	}
	switch name {
	case conn.Hub:
		return Origin{name, params.Envelope.SenderID}, nil
	case conn.Jobs:
		return Origin{name, payload.Constraints.Orchestrator}, nil
	case conn.Channel:
		return Origin{name, params.Message.Sender}, nil
	}
	return Origin{name, params.Caller.Name + params.Caller.DID}, nil // one of them, or none
}

// Origin does the same as Client.Origin, for the gateways of any given relay.
func (n *Network) Origin(ctx context.Context, request *envelope.Envelope) (o Origin, err error) {
	for _, p := range n.given {
		if o, err = p.Origin(ctx, request); err == nil && o.Protocol != Direct {
			break
		}
	}
	return o, err
}
