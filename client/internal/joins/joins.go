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
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/client/internal/journal"
	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/didkey"
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
			return nil, conn.ErrNoGateway[p.name]
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
		errors.Is(err, conn.ErrNoGateway[p.name]) ||
		p.name == conn.Channel && status == http.StatusForbidden { // a relay does not say whether others have an inbox
		return nil
	}
	return fmt.Errorf("client: leaving %s: %w", p.name, err)
}

// AgentName returns the name of the agent for people.
func (o Options) AgentName() string {
	return cmp.Or(o.Name, o.Manifest.Name, o.Manifest.ID, "agent")
}

// endpointOf returns the endpoint of a registration that belongs to a DID (BRIDGE B-1).
func endpointOf(did didkey.DID) string { return "agora:" + string(did) }

// notInName is what a name at the hub cannot have (HUB §2).
var notInName = regexp.MustCompile(`[^a-zA-Z0-9._-]+`)

// defaultCulture is the language of an agent that does not name one.
const defaultCulture = "en"

// maxHubAddress is the largest size of an address at the hub.
const maxHubAddress = 128

// hub registers NAME@HOST at the hub.
func (j *Joiner) hub(ctx context.Context, o Options, before journal.Joined) (journal.Joined, error) {
	g, err := j.Conn.Gateway(ctx, conn.Hub)
	if err != nil {
		return journal.Joined{}, err
	}
	var about struct {
		Name string `json:"server_name"`
	}
	err = j.Conn.Repeat(ctx, (*wire.Failure).Temporary, func(ctx context.Context) *wire.Failure {
		request := wire.Request{Base: g.URLs[conn.Hub], Method: http.MethodGet, Target: "/.well-known/chorus.json"}
		return j.Conn.Wire.Send(ctx, request, wire.Spec{Out: &about, Limit: wire.MaxDocument, Sister: true})
	})
	if err == nil && (about.Name == "" || notInName.MatchString(about.Name)) {
		err = errors.New("the hub's document has no valid server_name")
	}
	if err != nil {
		return journal.Joined{}, err
	}
	digits := strings.TrimPrefix(j.Conn.Signer.DID().Multibase(), "z6Mk")
	name := cmp.Or(strings.Trim(notInName.ReplaceAllString(o.AgentName(), "-"), "-"), "agent")
	name = name[:min(len(name), max(1, maxHubAddress-len(about.Name)-len("@-123456")))]
	names := []string{name, name + "-" + digits[:6]}
	if before.ID != "" && strings.HasPrefix(before.ID, names[1]+"@") {
		names = names[1:]
	}
	culture := cmp.Or(o.Culture, defaultCulture)
	for _, name := range names {
		address := name + "@" + about.Name
		err = j.Conn.Call(ctx, conn.Hub, conn.Call{Method: http.MethodPost, Path: "/register", Repeatable: true,
			Body: jsontext.Compact(map[string]any{
				"agent_id": address, "endpoint": endpointOf(j.Conn.Signer.DID()),
				"agent_card": map[string]any{"card_version": "0.3", "user_culture": culture, "supported_languages": []string{culture}},
			})})
		if err == nil {
			return journal.Joined{Place: journal.Place{Address: address}, ID: address}, nil
		}
		if wire.StatusOf(err) != http.StatusConflict {
			break
		}
	}
	return journal.Joined{}, err
}

// skillForm is the form of the name of a skill (JOBS §2).
var skillForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// maxSkills is how many skills an agent may have in the registry of jobs.
const maxSkills = 64

// skills returns the skills of the agent in the registry of jobs, and the intents that cannot be skills.
func (o Options) skills() (skills []map[string]any, skipped []string) {
	var names []string
	for _, intent := range o.Manifest.Intents {
		if envelope.IsGatewayIntent(intent.ID) {
			continue
		}
		if !skillForm.MatchString(intent.ID) || slices.Contains(names, intent.ID) ||
			len(skills) == maxSkills {
			skipped = append(skipped, intent.ID)
			continue
		}
		names = append(names, intent.ID)
		skills = append(skills, map[string]any{"skill_name": intent.ID, "description": cmp.Or(intent.Name, intent.ID),
			"cost_per_call": o.Credits, "input_schema": struct{}{}, "output_schema": struct{}{}})
	}
	return skills, skipped
}

// agentUUID returns the id of an agent in the registry of jobs. It depends on the DID only, so an agent that has lost its
// state does not become another one.
func agentUUID(did didkey.DID) string {
	sum := sha256.Sum256([]byte("agora jobs " + did))
	sum[6], sum[8] = sum[6]&0x0f|0x40, sum[8]&0x3f|0x80 // the form of a random UUID (RFC 9562 §5.4)
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// jobs registers the agent in the registry of jobs.
func (j *Joiner) jobs(ctx context.Context, o Options, before journal.Joined) (done journal.Joined, err error) {
	skills, skipped := o.skills()
	if len(skills) == 0 {
		return journal.Joined{}, errors.New("none of the agent's intents can be the name of a skill")
	}
	did := j.Conn.Signer.DID()
	for _, id := range []string{cmp.Or(before.ID, agentUUID(did)), ""} {
		form := map[string]any{"agent_name": o.AgentName(), "owner_id": did, "api_endpoint": endpointOf(did), "skills": skills}
		if id != "" {
			form["agent_id"] = id
		}
		var answer struct {
			ID string `json:"agent_id"`
		}
		err = j.Conn.Call(ctx, conn.Jobs, conn.Call{Method: http.MethodPost, Path: "/register",
			Repeatable: id != "", Body: jsontext.Compact(form), Out: &answer})
		if err == nil && answer.ID == "" {
			err = errors.New("the registry's answer has no agent_id")
		}
		if err == nil {
			return journal.Joined{Place: journal.Place{Address: answer.ID, Skipped: skipped}, ID: answer.ID}, nil
		}
		if wire.StatusOf(err) != http.StatusConflict {
			break
		}
	}
	return journal.Joined{}, err
}
