package relay

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// OnlineWithin is how long an agent counts as online after the relay last heard from it (PROTOCOL §6).
const OnlineWithin = 5 * time.Minute

// parseListing checks a MANIFEST and returns the fields that the directory needs. Errors: CodeInvalidRequest.
func parseListing(e *envelope.Envelope) (*Listing, error) {
	var m envelope.Manifest
	var declared struct {
		Auth struct {
			PublicKey *string `json:"public_key"` // a pointer, so that an empty key differs from an absent one
		} `json:"auth"`
		Relays json.RawMessage `json:"relays"` // null differs from absent
	}
	if errors.Join(e.DecodePayload(&m), e.DecodePayload(&declared)) != nil {
		return nil, envelope.Errorf(envelope.CodeInvalidRequest, "the payload is not a capability manifest; "+
			"its members must have the types of the protocol's section \"Capability Manifest\"")
	}
	if !envelope.ValidID(m.ID) {
		return nil, envelope.Errorf(envelope.CodeInvalidRequest, "a MANIFEST needs a payload.id "+
			"of 1 to 128 letters, digits or ._:~-")
	}
	if k := declared.Auth.PublicKey; k != nil && *k != e.Sender.ID.Multibase() && *k != string(e.Sender.ID) {
		return nil, envelope.Errorf(envelope.CodeInvalidRequest, "payload.auth.public_key is not the sender's own key; "+
			"set it to the sender's key, or leave it out")
	}
	if declared.Relays != nil && !envelope.ValidRelays(m.Relays) {
		return nil, envelope.Errorf(envelope.CodeInvalidRequest, "payload.relays must be 1 to %d objects, each with "+
			"the did of "+
			"another relay and its url, an origin such as https://relay.example", envelope.MaxRelays)
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
	l.Text = strings.ToValidUTF8(l.Text[:min(len(l.Text), maxSearchTextBytes)], "")
	return l, nil
}

// maxSearchTextBytes is how many bytes of a manifest's text a search reads.
const maxSearchTextBytes = 8 << 10

// agentPageBytes bounds the total size of the manifests on one page of the directory.
const agentPageBytes = 256 << 10

// Agents returns a page of the directory as of now. It sets the fields Now, MaxBytes, Online, Viewer and
// MaxExamined of q itself. The page may be Partial. A Partial page may be empty.
func (r *Relay) Agents(ctx context.Context, p Peer, q AgentQuery) (AgentPage, error) {
	if err := r.draining(); err != nil {
		return AgentPage{}, err
	}
	q.Now = r.now()
	q.Text, q.MaxBytes = strings.ToLower(q.Text), agentPageBytes
	q.Viewer = r.viewer(p)
	q.Online = func(did didkey.DID) bool { return r.presence.lastSeen(did).After(q.OnlineSince) }
	reader := r.newReader(p)
	reader.sliceSize, reader.minSliceSize = initialAgentSlice, minAgentSlice
	page, err := reader.searchAgents(ctx, q)
	r.addPresence(page.Agents)
	return page, err
}

// searchAgents reads a page of the directory slice by slice, as scan does for events.
func (r *storeReader) searchAgents(ctx context.Context, q AgentQuery) (AgentPage, error) {
	var page AgentPage
	for {
		q.MaxExamined = r.sliceSize
		slice, err := r.readAgentSlice(ctx, q)
		switch {
		case err != nil && page.Partial && isRateLimit(err):
			return page, nil // these manifests are already paid for
		case err != nil:
			return AgentPage{}, err
		case len(page.Agents) > 0 && len(slice.Agents) > 0 && len(slice.Agents[0].Manifest) > q.MaxBytes:
			page.More, page.Partial = true, false // a slice has at least one manifest, of any size
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
		if !r.continues(ctx, len(page.Agents) > 0, page.Took) {
			return page, ctx.Err()
		}
	}
}

// readAgentSlice reads one slice of q.
func (r *storeReader) readAgentSlice(ctx context.Context, q AgentQuery) (page AgentPage, err error) {
	if err := r.beginSlice(ctx); err != nil {
		return AgentPage{}, err
	}
	defer func() { r.endSlice(page.Took) }()
	return r.store.Agents(context.WithoutCancel(ctx), q)
}

// addPresence sets LastSeen of each agent to the time of its last signed read, if that is later. The store does not
// know about signed reads.
func (r *Relay) addPresence(agents []Agent) {
	for i := range agents {
		if lastRead := r.presence.lastSeen(agents[i].DID); lastRead.After(agents[i].LastSeen) {
			agents[i].LastSeen = lastRead
		}
	}
}

// Online reports whether the relay heard from a within the last OnlineWithin.
func (r *Relay) Online(a Agent) bool { return a.LastSeen.After(r.now().Add(-OnlineWithin)) }

// Agent returns the manifests of one agent. first has the first of them. rest yields the others in pieces. It reads
// each piece from the store when the caller asks for it, because all manifests of an agent together may be 16 times as
// large as a body. Errors: CodeAgentNotFound.
func (r *Relay) Agent(ctx context.Context, p Peer, did didkey.DID) (
	first []Agent, rest iter.Seq2[[]Agent, error], err error,
) {
	if err := r.draining(); err != nil {
		return nil, nil, err
	}
	reader := r.newReader(p)
	q := AgentQuery{DID: did, Now: r.now(), Limit: MaxManifests, MaxBytes: pieceBytes, Viewer: r.viewer(p)}
	page, err := reader.readAgentSlice(ctx, q)
	r.addPresence(page.Agents)
	if err == nil && len(page.Agents) == 0 {
		err = envelope.Errorf(envelope.CodeAgentNotFound, "this relay has no unexpired MANIFEST of this agent; "+
			"an agent is listed after it has posted one")
	}
	if err != nil {
		return nil, nil, err
	}
	return page.Agents, func(yield func([]Agent, error) bool) {
		reader.answerStarted = true // the answer has begun, so it cannot be refused any more
		for page.More {
			q.After = page.Next
			if page, err = reader.readAgentSlice(ctx, q); !yield(page.Agents, err) || err != nil {
				return
			}
		}
	}, nil
}

// LastRead returns when an agent has signed a read last, to the minute. It is zero if that was not in the last minutes.
func (r *Relay) LastRead(did didkey.DID) time.Time { return r.presence.lastSeen(did) }
