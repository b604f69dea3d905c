package client

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/client/internal/journal"
	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/envelope"
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

// joinAgain is after how long Join registers again what has not changed, because the relay may have lost it.
const joinAgain = 24 * time.Hour

// protocol is how an agent joins a gateway and leaves it.
type protocol struct {
	name  string
	join  func(*Client, context.Context, JoinOptions, journal.Joined) (journal.Joined, error)
	leave func(id string) (path string)
}

// protocols are the protocols in the order in which an agent joins them.
var protocols = []protocol{
	{conn.Hub, (*Client).joinHub, func(id string) string { return "/agents/" + id }},
	{conn.Jobs, (*Client).joinJobs, func(id string) string { return "/agents/" + id }},
	{conn.Channel, (*Client).joinChannel, inboxPath},
	{conn.A2A, (*Client).joinA2A, func(id string) string { return "/" + id + "/endpoint" }},
}

// chosen returns the protocols with these names, or those of the gateways that the relay has.
func (o JoinOptions) chosen(g conn.Gateways) (all []protocol, err error) {
	var known []string
	for _, p := range protocols {
		known = append(known, p.name)
		switch {
		case !slices.Contains(o.Protocols, p.name) && (len(o.Protocols) > 0 || g.URLs[p.name] == ""):
		case g.URLs[p.name] == "":
			return nil, missing[p.name]
		default:
			all = append(all, p)
		}
	}
	for _, name := range o.Protocols {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("client: there is no protocol %q; the protocols are %s", name, strings.Join(known, ", "))
		}
	}
	if len(all) == 0 {
		return nil, errors.New("client: this relay has no gateways, so there is nothing to join")
	}
	return all, nil
}

// Join registers the agent at gateways of the relay, and returns the places at which it can be reached now. The State
// remembers each registration. Within a day, Join repeats one only if it has changed. Serve HubIntent, ChannelIntent
// and A2AIntent to take what arrives from the hub, from channels and over A2A; jobs have the agent's own intents.
//
// Errors: ErrNoHub, ErrNoJobs, ErrNoChannel, ErrNoA2A; a refusal of a gateway; those of writing the State. The places that
// were joined before the error are returned with it.
func (c *Client) Join(ctx context.Context, o JoinOptions) (places []Place, err error) {
	if c.conn.Signer == nil {
		return nil, conn.ErrReadOnly
	}
	g, err := c.conn.AllGateways(ctx)
	if err != nil {
		return nil, err
	}
	all, err := o.chosen(g)
	if err != nil {
		return nil, err
	}
	relay, err := c.conn.RelayDID(ctx)
	if err != nil {
		return nil, err
	}
	if o.State == nil {
		o.State = NewState()
	}
	for _, p := range all {
		before := o.State.journal.JoinedAt(relay)[p.name]
		sum, err := o.sum(p.name)
		if err != nil {
			return places, err
		}
		now := journal.Joined{Sum: sum, At: c.conn.Now().UTC().Truncate(time.Second)}
		if before.Sum == now.Sum && now.At.Sub(before.At).Abs() < joinAgain {
			places = append(places, Place(before.Place))
			continue
		}
		done, err := p.join(c, ctx, o, before)
		if err != nil {
			return places, fmt.Errorf("client: joining %s: %w", p.name, err)
		}
		done.Relay, done.Protocol, done.Sum, done.At = c.conn.Base, p.name, now.Sum, now.At
		if err := o.State.journal.Join(relay, p.name, &done); err != nil {
			return places, err
		}
		places = append(places, Place(done.Place))
		if before.ID != "" && before.ID != done.ID {
			if err := c.leave(ctx, p, before.ID); err != nil {
				return places, err
			}
		}
	}
	return places, nil
}

// sum identifies a registration. All languages make it in the same way, so that an agent can change its language.
func (o JoinOptions) sum(protocol string) (string, error) {
	m := o.Manifest
	intents := [][2]string{}
	for _, intent := range m.Intents {
		intents = append(intents, [2]string{intent.ID, intent.Name})
	}
	canonical, err := envelope.Canonicalize(jsontext.Compact(map[string]any{
		"protocol": protocol, "agent": o.agentName(), "culture": cmp.Or(o.Culture, defaultCulture), "credits": o.Credits,
		"public": o.Public, "listed": o.Listed, "proofs": o.Proofs, "intents": intents,
		"manifest": [4]string{m.ID, m.Name, m.Description, m.Version},
	}))
	sum := sha256.Sum256(canonical)
	return base64.RawURLEncoding.EncodeToString(sum[:12]), err
}

// Leave removes what Join has registered at this relay, by the State, and returns the places. Errors: a refusal of a
// gateway; those of writing the State.
func (c *Client) Leave(ctx context.Context, state *State) (left []Place, err error) {
	relay, err := c.conn.RelayDID(ctx)
	if err != nil {
		return nil, err
	}
	before := state.journal.JoinedAt(relay)
	for _, p := range protocols {
		place, has := before[p.name]
		if !has {
			continue
		}
		if err := c.leave(ctx, p, place.ID); err != nil {
			return left, err
		}
		if err := state.journal.Join(relay, p.name, nil); err != nil {
			return left, err
		}
		left = append(left, Place(place.Place))
	}
	return left, nil
}

// leave removes a registration. It is no error if the registration does not exist any more.
func (c *Client) leave(ctx context.Context, p protocol, id string) error {
	err := c.conn.Call(ctx, p.name, conn.Call{Method: http.MethodDelete, Path: p.leave(id), Repeatable: true})
	if status := statusOf(err); err == nil || status == http.StatusNotFound || status == http.StatusGone || errors.Is(err, missing[p.name]) ||
		p.name == conn.Channel && status == http.StatusForbidden { // a relay does not say whether others have an inbox
		return nil
	}
	return fmt.Errorf("client: leaving %s: %w", p.name, err)
}

// statusOf returns the HTTP status of a refusal; 0: err is none.
func statusOf(err error) int {
	if failed, ok := errors.AsType[*wire.Failure](err); ok {
		return failed.Status
	}
	return 0
}

// agentName returns the name of the agent for people.
func (o JoinOptions) agentName() string {
	return cmp.Or(o.Name, o.Manifest.Name, o.Manifest.ID, "agent")
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
		some, failed := do(p.Client)
		places = append(places, some...)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", p.conn.Base, failed))
		}
	}
	return places, err
}
