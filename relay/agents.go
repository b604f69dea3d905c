package relay

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// OnlineWithin is how recently an agent was heard from if it counts as online (PROTOCOL §6).
const OnlineWithin = 5 * time.Minute

// list checks a MANIFEST and returns what the directory needs of it.
// Errors: CodeInvalidRequest.
func list(e *envelope.Envelope) (*Listing, error) {
	var m envelope.Manifest
	var own struct {
		Auth struct {
			PublicKey *string `json:"public_key"` // present and empty is not absent
		} `json:"auth"`
	}
	if errors.Join(e.DecodePayload(&m), e.DecodePayload(&own)) != nil {
		return nil, envelope.Errorf(envelope.CodeInvalidRequest, "the payload is not a capability manifest; "+
			"its members must have the types of the protocol's section \"Capability Manifest\"")
	}
	if !envelope.ValidID(m.ID) {
		return nil, envelope.Errorf(envelope.CodeInvalidRequest, "a MANIFEST needs payload.id, 1 to 128 letters, digits or ._:~-")
	}
	if k := own.Auth.PublicKey; k != nil && *k != e.Sender.ID.Multibase() && *k != string(e.Sender.ID) {
		return nil, envelope.Errorf(envelope.CodeInvalidRequest, "payload.auth.public_key is not the sender's own key; nobody announces another's")
	}
	l := &Listing{ID: m.ID, Intents: []string{}}
	words := []string{m.ID, m.Name, m.Description, e.Sender.Name}
	for _, intent := range m.Intents {
		if intent.ID == "" {
			return nil, envelope.Errorf(envelope.CodeInvalidRequest, "each of payload.intents needs an id")
		}
		l.Intents = append(l.Intents, intent.ID)
		words = append(words, intent.ID, intent.Name)
	}
	l.Text = strings.ToLower(strings.Join(words, "\n"))
	return l, nil
}

// directoryBytes is how many bytes of manifests a page of the directory has.
const directoryBytes = 1 << 20

// Agents searches the directory as of now; see AgentQuery, whose Now is set here.
func (r *Relay) Agents(ctx context.Context, p Peer, q AgentQuery) (AgentPage, error) {
	if err := r.draining(); err != nil {
		return AgentPage{}, err
	}
	q.Now = r.Now()
	q.Text, q.MaxBytes = strings.ToLower(q.Text), directoryBytes
	q.Viewer = r.viewer(p)
	if !q.OnlineSince.IsZero() {
		q.Online = r.presence.since(q.OnlineSince)
	}
	page, err := r.Store.Agents(ctx, q)
	r.chargeRead(p, page.Took)
	r.heard(page.Agents)
	return page, err
}

// heard adds what signed reads tell to what the store knows of agents.
func (r *Relay) heard(agents []Agent) {
	for i := range agents {
		if at := r.presence.last(agents[i].DID); at.After(agents[i].LastSeen) {
			agents[i].LastSeen = at
		}
	}
}

// Online reports whether a was heard from lately enough to count as online.
func (r *Relay) Online(a Agent) bool { return a.LastSeen.After(r.Now().Add(-OnlineWithin)) }

// Agent returns all manifests of one agent.
// Errors: CodeAgentNotFound.
func (r *Relay) Agent(ctx context.Context, p Peer, did didkey.DID) ([]Agent, error) {
	if err := r.draining(); err != nil {
		return nil, err
	}
	page, err := r.Store.Agents(ctx, AgentQuery{DID: did, Now: r.Now(), Limit: MaxManifests, Viewer: r.viewer(p)})
	r.chargeRead(p, page.Took)
	r.heard(page.Agents)
	if err == nil && len(page.Agents) == 0 {
		err = envelope.Errorf(envelope.CodeAgentNotFound, "no unexpired MANIFEST of this agent is here; an agent announces itself by posting one")
	}
	return page.Agents, err
}
