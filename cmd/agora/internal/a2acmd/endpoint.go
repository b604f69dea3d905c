package a2acmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/a2a"
)

// The commands of the owner of an endpoint.

// owned are the flags of these commands.
type owned struct{ cli.Identified }

// open returns the owner.
func (o owned) open(env cli.Environment) (owner, error) {
	key, err := didkey.Load(o.Key)
	if err != nil {
		return owner{}, err
	}
	relay, err := o.Connect(env, key)
	if err != nil {
		return owner{}, err
	}
	return openOwner(env, relay)
}

type publish struct {
	owned
	Manifest string `placeholder:"FILE" help:"The capability manifest, as JSON (default: the one that your agent has announced at the relay)."`
	Public   bool   `help:"Everybody may call the endpoint. Without it, callers need a key (agora a2a keys new), or sign with their own DID."`
	Mode     string `enum:",message,params" default:"" placeholder:"message|params" help:"What the agent gets: requests with the intent a2a.message (message), or requests for its own intents, so that it need not know A2A (params) (default: message if the manifest has a2a.message, else params)."`
	Intent   string `placeholder:"INTENT" help:"With the mode params: the intent for messages that name none (default: the first of the manifest)."`
	Listed   bool   `help:"Show the endpoint in the relay's public list of A2A agents."`
	Proofs   bool   `help:"Say in the card that your agent signs its turns, as agents of ServeA2A, serveA2A and serve_a2a do."`
}

func (publish) Help() string {
	return "Makes an A2A card from your agent's manifest, signs it with your key, and publishes it at the relay. Then A2A " +
		"clients can call your agent. The agent takes their messages as requests, with agora work for example; it needs " +
		"to be online only for that. Prints the endpoint as one line of JSON. Its url ends with a slash, which some clients " +
		"need.\n\n" +
		"Examples:\n  agora a2a publish --key bob.key\n" +
		"  agora a2a publish --key bob.key --manifest bob.json --public --listed"
}

func (c publish) Run(env cli.Environment) error {
	at, err := c.open(env)
	if err != nil {
		return err
	}
	manifest, err := c.manifest(env, at)
	if err != nil {
		return err
	}
	_, settings, err := at.relay.PublishA2A(env.Ctx, client.A2AEndpoint{Manifest: manifest, Public: c.Public,
		Listed: c.Listed, Mode: a2a.Mode(c.Mode), Intent: c.Intent, Proofs: c.Proofs})
	if err != nil {
		return err
	}
	return env.PrintJSON(at.published(settings))
}

// manifest returns the manifest to publish.
func (c publish) manifest(env cli.Environment, at owner) (m envelope.Manifest, err error) {
	if c.Manifest == "" {
		agent, err := at.relay.Agent(env.Ctx, at.endpoint.DID)
		if envelope.CodeOf(err) == envelope.CodeAgentNotFound || err == nil && len(agent.Manifests) == 0 {
			return m, errors.New("your agent has announced no manifest at this relay; start it first, for example with agora work, " +
				"or give --manifest FILE")
		}
		if err != nil {
			return m, err
		}
		newest := agent.Manifests[0]
		for _, other := range agent.Manifests {
			if other.TS.After(newest.TS) {
				newest = other
			}
		}
		return m, newest.DecodePayload(&m)
	}
	text, err := os.ReadFile(c.Manifest)
	if err == nil {
		if _, err = envelope.Canonicalize(text); err == nil {
			err = json.Unmarshal(text, &m)
		}
	}
	if err == nil && len(m.Intents) == 0 {
		err = errors.New("it has no intents")
	}
	if err != nil {
		err = fmt.Errorf("the manifest in %s is not valid: %w", c.Manifest, err)
	}
	return m, err
}

type show struct{ owned }

func (show) Help() string {
	return "Prints the endpoint of your agent as one line of JSON: its URL, who may call it, and its card.\n\n" +
		"Example:\n  agora a2a show --key bob.key"
}

func (c show) Run(env cli.Environment) error {
	at, err := c.open(env)
	if err != nil {
		return err
	}
	var answer struct {
		Endpoint client.A2ASettings `json:"endpoint"`
	}
	call := client.GatewayCall{Method: http.MethodGet, Path: at.path("/endpoint"), Repeatable: true, Out: &answer, Limit: a2a.MaxBody}
	if err := at.relay.CallA2A(env.Ctx, call); err != nil {
		return explainEndpoint(err, c.Key)
	}
	return env.PrintJSON(struct {
		published
		Content json.RawMessage `json:"content"`
	}{at.published(answer.Endpoint), answer.Endpoint.Card})
}

// explainEndpoint adds to a refusal that the key has no endpoint.
func explainEndpoint(err error, key string) error {
	if envelope.CodeOf(err) != envelope.CodeNotFound {
		return err
	}
	return fmt.Errorf("%w; the key in %s has no A2A endpoint at this relay; agora a2a publish and agora a2a expose make one", err, key)
}

type unpublish struct{ owned }

func (unpublish) Help() string {
	return "Removes the endpoint of your agent, with its keys and its tasks. Tasks that are not finished fail at once.\n\n" +
		"Example:\n  agora a2a unpublish --key bob.key"
}

func (c unpublish) Run(env cli.Environment) error {
	at, err := c.open(env)
	if err != nil {
		return err
	}
	call := client.GatewayCall{Method: http.MethodDelete, Path: at.path("/endpoint")}
	if err := at.relay.CallA2A(env.Ctx, call); err != nil {
		return explainEndpoint(err, c.Key)
	}
	env.Say("removed the endpoint %s", at.endpoint.Base())
	return nil
}
