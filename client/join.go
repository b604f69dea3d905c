package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/client/internal/joins"
	"github.com/agora-relay/agora/client/internal/journal"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
)

// One identity, every protocol (BRIDGE §4). An agent registers its DID at the gateways of a relay. What their clients ask
// for then arrives as REQUESTs from the relay's gateway, and Serve takes them.

// JoinOptions say where and how an agent can be reached. Manifest is required.
type JoinOptions struct {
	// Protocols are names of gateways: "hub", "jobs", "channel", "a2a". nil: all that the relay has.
	Protocols []string
	// Manifest says what the agent does. Each intent becomes a skill in the registry of jobs and in the A2A card. The name
	// becomes the agent's name.
	Manifest envelope.Manifest
	// Name is the agent's name at the hub, before the @; empty: the name in the manifest. Characters that an address
	// cannot have become hyphens. If somebody else has the address, six characters of the DID are added.
	Name string
	// Culture is the language of the agent at the hub, a tag such as en or zh-CN; empty: en.
	Culture string
	// Credits is the price of a job in the registry of jobs, with at most four decimals.
	Credits float64
	// Public lets everybody call the A2A endpoint. Otherwise callers need a key; Join makes one.
	Public bool
	Listed bool // the relay shows the A2A endpoint in its list
	Proofs bool // the agent serves A2A with ServeA2A, so it signs what it says
	// State remembers where the agent has joined. A Network uses its own. nil: nothing is remembered, so each Join makes
	// another inbox and another key.
	State *State
}

// Place is where an agent can be reached through one protocol.
type Place struct {
	Relay    string `json:"relay"` // its URL
	Protocol string `json:"protocol"`
	// Address is, at the hub, NAME@HOST; in the registry of jobs, the id of the agent; for channels, the connection string
	// of an inbox, which is a secret; for A2A, the base URL of the endpoint.
	Address string `json:"address"`
	// Key is a key with which A2A callers may call, a secret; empty: they need none.
	Key string `json:"key,omitempty"`
	// Skipped are the intents that the protocol cannot name.
	Skipped []string `json:"skipped,omitempty"`
}

// Announced returns the addresses for the Manifest of an agent that has joined. It leaves out those that are secret.
func Announced(places []Place) (all []envelope.Address) {
	for _, p := range places {
		if p.Protocol != conn.Channel {
			all = append(all, envelope.Address{Protocol: p.Protocol, Address: p.Address})
		}
	}
	return all
}

// Join registers the agent at gateways of the relay, and returns the places at which it can be reached now. The State
// remembers each registration. Within a day, Join repeats one only if it has changed. Serve HubIntent, ChannelIntent
// and A2AIntent to take what arrives from the hub, from channels and over A2A; jobs have the agent's own intents.
//
// Errors: ErrNoHub, ErrNoJobs, ErrNoChannel, ErrNoA2A; a refusal of a gateway; those of writing the State. The places that
// were joined before the error are returned with it.
func (c *Client) Join(ctx context.Context, o JoinOptions) (places []Place, err error) {
	if o.State == nil {
		o.State = NewState()
	}
	joined, err := c.joiner(o.State).Join(ctx, joins.Options{Protocols: o.Protocols, Manifest: o.Manifest, Name: o.Name,
		Culture: o.Culture, Credits: o.Credits, Public: o.Public, Listed: o.Listed, Proofs: o.Proofs})
	return placesOf(joined), err
}

// Leave removes what Join has registered at this relay, by the State, and returns the places. Errors: a refusal of a
// gateway; those of writing the State.
func (c *Client) Leave(ctx context.Context, state *State) (left []Place, err error) {
	places, err := c.joiner(state).Leave(ctx)
	return placesOf(places), err
}

// placesOf returns the places of a Joiner.
func placesOf(joined []journal.Place) (places []Place) {
	for _, p := range joined {
		places = append(places, Place(p))
	}
	return places
}

// joiner returns the Joiner for this relay, which remembers in state.
func (c *Client) joiner(state *State) *joins.Joiner {
	return &joins.Joiner{Conn: c.conn, Journal: state.journal, Channel: c.joinChannel, A2A: c.joinA2A}
}

// joinChannel makes an inbox, unless the agent still has the earlier one.
func (c *Client) joinChannel(ctx context.Context, o joins.Options, before journal.Joined) (journal.Joined, error) {
	if before.ID != "" {
		inboxes, err := c.Inboxes(ctx)
		if err != nil {
			return journal.Joined{}, err
		}
		if slices.ContainsFunc(inboxes, func(i Inbox) bool { return i.ID == before.ID }) {
			return before, nil
		}
	}
	label := []rune(o.AgentName())
	inbox, url, err := c.NewInbox(ctx, string(label[:min(len(label), 80)]))
	return journal.Joined{Place: journal.Place{Address: url}, ID: inbox.ID}, err
}

// joinA2A publishes an endpoint.
func (c *Client) joinA2A(ctx context.Context, o joins.Options, before journal.Joined) (done journal.Joined, err error) {
	at, _, err := c.PublishA2A(ctx, A2AEndpoint{Manifest: o.Manifest, Public: o.Public, Listed: o.Listed, Proofs: o.Proofs,
		Mode: a2a.ModeMessage})
	done = journal.Joined{Place: journal.Place{Address: at.Base()}, ID: at.DID.Multibase()}
	if err != nil || o.Public {
		return done, err
	}
	if done.Key = before.Key; done.Key != "" {
		return done, nil
	}
	var answer struct {
		Key string `json:"key"`
	}
	err = c.CallA2A(ctx, GatewayCall{Method: http.MethodPost, Path: "/" + done.ID + "/keys", Status: http.StatusCreated,
		Out: &answer, Body: jsontext.Compact(map[string]string{"name": envelope.NewID("join", c.conn.Now())})})
	done.Key = answer.Key
	return done, err
}

// Join joins at all given relays, as Client.Join does. Errors: those of Client.Join, joined.
func (n *Network) Join(ctx context.Context, o JoinOptions) (places []Place, err error) {
	o.State = n.opts.State
	return n.atEach(func(c *Client) ([]Place, error) { return c.Join(ctx, o) })
}

// Leave leaves at all given relays, as Client.Leave does. Errors: those of Client.Leave, joined. A nil state is the
// network's own.
func (n *Network) Leave(ctx context.Context, state *State) ([]Place, error) {
	if state == nil {
		state = n.opts.State
	}
	return n.atEach(func(c *Client) ([]Place, error) { return c.Leave(ctx, state) })
}

// atEach calls do for each given relay.
func (n *Network) atEach(do func(*Client) ([]Place, error)) (places []Place, err error) {
	for _, p := range n.given {
		some, failed := do(p)
		places = append(places, some...)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", p.conn.Base, failed))
		}
	}
	return places, err
}
