// Package joins registers an agent at the gateways of a relay, and removes it there (BRIDGE §4). A journal remembers
// each registration. Nothing that has not changed is registered again within a day.
package joins

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

// Options say where and how an agent can be reached. See client.JoinOptions.
type Options struct {
	Protocols              []string
	Manifest               envelope.Manifest
	Name                   string
	Culture                string
	Credits                float64
	Public, Listed, Proofs bool
}

// Joiner joins the gateways of one relay.
type Joiner struct {
	Conn    *conn.Conn
	Journal *journal.Journal
	// Channel and A2A register the agent at these gateways. before is the earlier registration; zero: there was none.
	Channel, A2A func(ctx context.Context, o Options, before journal.Joined) (journal.Joined, error)
}

// again is after how long Join registers again what has not changed, because the relay may have lost it.
const again = 24 * time.Hour

// protocol is how an agent joins a gateway and leaves it.
type protocol struct {
	name  string
	join  func(context.Context, Options, journal.Joined) (journal.Joined, error)
	leave func(id string) (path string)
}

// protocols returns the protocols in the order in which an agent joins them.
func (j *Joiner) protocols() []protocol {
	return []protocol{
		{conn.Hub, j.hub, func(id string) string { return "/agents/" + id }},
		{conn.Jobs, j.jobs, func(id string) string { return "/agents/" + id }},
		{conn.Channel, j.Channel, conn.InboxPath},
		{conn.A2A, j.A2A, func(id string) string { return "/" + id + "/endpoint" }},
	}
}

// chosen returns the protocols with these names, or those of the gateways that the relay has.
func (j *Joiner) chosen(o Options, g conn.Gateways) (all []protocol, err error) {
	var known []string
	for _, p := range j.protocols() {
		known = append(known, p.name)
		switch {
		case !slices.Contains(o.Protocols, p.name) && (len(o.Protocols) > 0 || g.URLs[p.name] == ""):
		case g.URLs[p.name] == "":
			return nil, j.Conn.NoGateway(p.name)
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

// Join registers the agent, see client.Client.Join. The places that were joined before an error are returned with it.
func (j *Joiner) Join(ctx context.Context, o Options) (places []journal.Place, err error) {
	if j.Conn.Signer == nil {
		return nil, conn.ErrReadOnly
	}
	g, err := j.Conn.AllGateways(ctx)
	if err != nil {
		return nil, err
	}
	all, err := j.chosen(o, g)
	if err != nil {
		return nil, err
	}
	relay, err := j.Conn.RelayDID(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		before := j.Journal.JoinedAt(relay)[p.name]
		sum, err := o.sum(p.name)
		if err != nil {
			return places, err
		}
		now := journal.Joined{Sum: sum, At: j.Conn.Now().UTC().Truncate(time.Second)}
		if before.Sum == now.Sum && now.At.Sub(before.At).Abs() < again {
			places = append(places, before.Place)
			continue
		}
		done, err := p.join(ctx, o, before)
		if err != nil {
			return places, fmt.Errorf("client: joining %s: %w", p.name, err)
		}
		done.Relay, done.Protocol, done.Sum, done.At = j.Conn.Base, p.name, now.Sum, now.At
		if err := j.Journal.Join(relay, p.name, &done); err != nil {
			return places, err
		}
		places = append(places, done.Place)
		if before.ID != "" && before.ID != done.ID {
			if err := j.leave(ctx, p, before.ID); err != nil {
				return places, err
			}
		}
	}
	return places, nil
}

// sum identifies a registration. All languages make it in the same way, so that an agent can change its language.
func (o Options) sum(protocol string) (string, error) {
	m := o.Manifest
	intents := [][2]string{}
	for _, intent := range m.Intents {
		intents = append(intents, [2]string{intent.ID, intent.Name})
	}
	canonical, err := envelope.Canonicalize(jsontext.Compact(map[string]any{
		"protocol": protocol, "agent": o.AgentName(), "culture": cmp.Or(o.Culture, defaultCulture), "credits": o.Credits,
		"public": o.Public, "listed": o.Listed, "proofs": o.Proofs, "intents": intents,
		"manifest": [4]string{m.ID, m.Name, m.Description, m.Version},
	}))
	sum := sha256.Sum256(canonical)
	return base64.RawURLEncoding.EncodeToString(sum[:12]), err
}

// Leave removes what Join has registered, and returns the places.
func (j *Joiner) Leave(ctx context.Context) (left []journal.Place, err error) {
	relay, err := j.Conn.RelayDID(ctx)
	if err != nil {
		return nil, err
	}
	before := j.Journal.JoinedAt(relay)
	for _, p := range j.protocols() {
		place, has := before[p.name]
		if !has {
			continue
		}
		if err := j.leave(ctx, p, place.ID); err != nil {
			return left, err
		}
		if err := j.Journal.Join(relay, p.name, nil); err != nil {
			return left, err
		}
		left = append(left, place.Place)
	}
	return left, nil
}

// leave removes a registration. It is no error if the registration does not exist any more.
func (j *Joiner) leave(ctx context.Context, p protocol, id string) error {
	err := j.Conn.Call(ctx, p.name, conn.Call{Method: http.MethodDelete, Path: p.leave(id), Repeatable: true})
	if status := wire.StatusOf(err); err == nil || status == http.StatusNotFound || status == http.StatusGone ||
		errors.Is(err, j.Conn.NoGateway(p.name)) ||
		p.name == conn.Channel && status == http.StatusForbidden { // a relay does not say whether others have an inbox
		return nil
	}
	return fmt.Errorf("client: leaving %s: %w", p.name, err)
}

// AgentName returns the name of the agent for people.
func (o Options) AgentName() string {
	return cmp.Or(o.Name, o.Manifest.Name, o.Manifest.ID, "agent")
}
