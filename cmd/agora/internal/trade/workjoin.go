package trade

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/envelope"
)

// How agora work takes work from the gateways of a relay (BRIDGE §4).

// allProtocols is the value of --also for all gateways that the relay has.
const allProtocols = "all"

// gatewayIntents are the intents of the REQUESTs that gateways send, by the names of the protocols. Jobs have the agent's
// own intents.
var gatewayIntents = map[string]string{"hub": client.HubIntent, "jobs": "", "channel": client.ChannelIntent, "a2a": client.A2AIntent}

// isGatewayIntent reports whether only a gateway sends REQUESTs with this intent.
func isGatewayIntent(intent string) bool {
	for _, other := range gatewayIntents {
		if intent != "" && intent == other {
			return true
		}
	}
	return false
}

// protocols returns the protocols of --also; nil: all that the relay has.
func (c WorkCmd) protocols() ([]string, error) {
	if slices.Contains(c.Also, allProtocols) {
		return nil, nil
	}
	for _, name := range c.Also {
		if _, known := gatewayIntents[name]; !known {
			return nil, fmt.Errorf("--also %s: there is no such protocol; use hub, jobs, channel, a2a or all", name)
		}
	}
	if c.A2A && !slices.Contains(c.Also, "a2a") {
		return append([]string{"a2a"}, c.Also...), nil
	}
	return c.Also, nil
}

// bridged reports whether the agent also takes work from gateways.
func (c WorkCmd) bridged() bool { return c.A2A || len(c.Also) > 0 }

// joins reports whether the agent joins a protocol, if the relay has it.
func (c WorkCmd) joins(name string) bool {
	return slices.Contains(c.Also, name) || slices.Contains(c.Also, allProtocols) || c.A2A && name == "a2a"
}

// placeTexts say how to read the address of a place.
var placeTexts = map[string]string{
	"hub":     "at the hub as %s",
	"jobs":    "in the registry of jobs as the agent %s",
	"channel": "from channels, by this secret connection string: %s",
	"a2a":     "over A2A at %s",
}

// join makes the agent reachable through other protocols, and says where. It returns the manifest to post
// with these addresses, and the intents to serve.
func (c WorkCmd) join(
	env cli.Environment, agent worker, posted envelope.Payload, manifest envelope.Manifest, intents []string,
) (envelope.Payload, []string, error) {
	names, err := c.protocols()
	if err != nil {
		return nil, nil, err
	}
	places, err := agent.relay.Join(env.Ctx, client.JoinOptions{Protocols: names, Manifest: manifest,
		Name: cmp.Or(c.Name, manifest.Name, intents[0]), Culture: c.Culture, Credits: c.Credits, Public: c.Public,
		Listed: c.Listed, Proofs: c.Output == outputLines, State: agent.state.State})
	if c.Price > 0 {
		env.Say("who asks through another protocol does not pay the price of %v %s", c.Price, c.Currency)
	}
	for _, p := range places {
		said := fmt.Sprintf(placeTexts[p.Protocol], p.Address)
		if p.Key != "" {
			said += ", with the secret key " + p.Key
		}
		env.Say("reachable %s", said)
		if len(p.Skipped) > 0 {
			env.Say("%s cannot name these intents, so they are left out: %s", p.Protocol, strings.Join(p.Skipped, ", "))
		}
		if intent := gatewayIntents[p.Protocol]; intent != "" && !slices.Contains(intents, intent) {
			intents = append(intents, intent)
		}
	}
	if err == nil {
		posted, err = envelope.WithAddresses(posted, client.Announced(places))
	}
	return posted, intents, err
}

// asker returns who wants a job: a DID, or what a gateway says.
func (w *workAgent) asker(ctx context.Context, job client.Job) string {
	o, err := w.relay.Origin(ctx, job.Envelope)
	if err != nil || o.Protocol == client.Direct {
		return string(job.Envelope.Sender.ID)
	}
	return strings.TrimSpace(o.Sender + " through the protocol " + o.Protocol)
}

// leave removes what --also has registered.
func (c WorkCmd) leave(env cli.Environment) (err error) {
	agent, err := c.open(env)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, agent.state.Close()) }()
	left, err := agent.relay.Leave(env.Ctx, agent.state.State)
	for _, p := range left {
		env.Say("left %s at %s, where the agent was %s", p.Protocol, p.Relay, p.Address)
	}
	if len(left) == 0 && err == nil {
		env.Say("the agent has joined no other protocol at %s", c.Names())
	}
	return err
}

// hubOutput returns the output of a RESULT for a message of the hub. A text is the reply.
func hubOutput(output json.RawMessage) json.RawMessage {
	var text string
	if json.Unmarshal(output, &text) != nil || len(output) == 0 || output[0] != '"' {
		return output
	}
	return client.HubOutput(client.HubReply{Text: text})
}
