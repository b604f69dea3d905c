package relay

import (
	"context"
	"errors"
	"iter"
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
	if len(m.Intents) > MaxIntents {
		return nil, envelope.Errorf(envelope.CodeInvalidRequest, "payload.intents has more than %d members; "+
			"spread them over several manifests", MaxIntents)
	}
	for _, intent := range m.Intents {
		if intent.ID == "" {
			return nil, envelope.Errorf(envelope.CodeInvalidRequest, "each of payload.intents needs an id")
		}
		l.Intents = append(l.Intents, intent.ID)
		words = append(words, intent.ID, intent.Name)
	}
	l.Text = strings.ToLower(strings.Join(words, "\n"))
	l.Text = strings.ToValidUTF8(l.Text[:min(len(l.Text), searchedBytes)], "")
	return l, nil
}

// searchedBytes is how much of a manifest's words a search looks through.
const searchedBytes = 8 << 10

// directoryBytes is how many bytes of manifests a page of the directory has.
const directoryBytes = 256 << 10

// Agents searches the directory as of now. It sets Now, MaxBytes, Online, Viewer and Look of q itself. The page may be
// Partial, and then empty.
func (r *Relay) Agents(ctx context.Context, p Peer, q AgentQuery) (AgentPage, error) {
	if err := r.draining(); err != nil {
		return AgentPage{}, err
	}
	q.Now = r.now()
	q.Text, q.MaxBytes = strings.ToLower(q.Text), directoryBytes
	q.Viewer = r.viewer(p)
	q.Online = func(did didkey.DID) bool { return r.presence.last(did).After(q.OnlineSince) }
	page, err := r.search(ctx, &work{peer: p, look: firstAgentLook, least: leastAgentLook}, q)
	r.heard(page.Agents)
	return page, err
}

// search reads a page of the directory, slice by slice, as scan reads events.
func (r *Relay) search(ctx context.Context, w *work, q AgentQuery) (AgentPage, error) {
	var page AgentPage
	for {
		q.Look = w.look
		slice, err := r.askAgents(ctx, w, q)
		switch {
		case err != nil && page.Partial && isRateLimit(err):
			return page, nil // so far it is paid for
		case err != nil:
			return AgentPage{}, err
		case len(page.Agents) > 0 && len(slice.Agents) > 0 && len(slice.Agents[0].Manifest) > q.MaxBytes:
			page.More, page.Partial = true, false // a slice has one manifest at least, whatever its size
			return page, nil
		}
		for _, a := range slice.Agents {
			q.MaxBytes -= len(a.Manifest)
		}
		q.Limit -= len(slice.Agents)
		q.After = slice.Next
		if len(page.Agents) > 0 {
			slice.Agents = append(page.Agents, slice.Agents...)
		}
		page = slice
		if !page.Partial || q.Limit <= 0 || q.MaxBytes <= 0 {
			return page, nil
		}
		if !w.goesOn(ctx, len(page.Agents) > 0, page.Took) {
			return page, ctx.Err()
		}
	}
}

// askAgents does one slice of q for w.
func (r *Relay) askAgents(ctx context.Context, w *work, q AgentQuery) (page AgentPage, err error) {
	if err := r.begin(ctx, w); err != nil {
		return AgentPage{}, err
	}
	defer func() { r.end(w, page.Took) }()
	return r.store.Agents(context.WithoutCancel(ctx), q)
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
func (r *Relay) Online(a Agent) bool { return a.LastSeen.After(r.now().Add(-OnlineWithin)) }

// Agent returns manifests of one agent: the first of them, and pieces of the rest, which are read as they are asked for,
// because all together may be 16 times as large as a body.
// Errors: CodeAgentNotFound.
func (r *Relay) Agent(ctx context.Context, p Peer, did didkey.DID) (first []Agent, rest iter.Seq2[[]Agent, error], err error) {
	if err := r.draining(); err != nil {
		return nil, nil, err
	}
	w := &work{peer: p}
	q := AgentQuery{DID: did, Now: r.now(), Limit: MaxManifests, MaxBytes: pieceBytes, Viewer: r.viewer(p)}
	page, err := r.askAgents(ctx, w, q)
	r.heard(page.Agents)
	if err == nil && len(page.Agents) == 0 {
		err = envelope.Errorf(envelope.CodeAgentNotFound, "no unexpired MANIFEST of this agent is here; an agent announces itself by posting one")
	}
	if err != nil {
		return nil, nil, err
	}
	return page.Agents, func(yield func([]Agent, error) bool) {
		w.sent = true // the beginning of the answer is on its way
		for page.More {
			q.After = page.Next
			if page, err = r.askAgents(ctx, w, q); !yield(page.Agents, err) || err != nil {
				return
			}
		}
	}, nil
}
