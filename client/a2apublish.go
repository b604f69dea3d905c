package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
)

// A2AEndpoint is the public endpoint of an agent at a relay (A2A §2).
type A2AEndpoint struct {
	// Manifest is what the card is made from: a skill for each intent. It needs a Name.
	Manifest envelope.Manifest
	// Card returns the card, in place of one made from Manifest. It is not signed yet; nil: Manifest is used.
	Card func(a2a.Endpoint, a2a.Access) a2a.Card
	// Proofs says in the card that the agent signs its turns, as ServeA2A does (A2A §7).
	Proofs bool
	Public bool     // everybody may call; else callers need a key, or sign with their own DID
	Listed bool     // the relay shows the endpoint in its list of agents
	Mode   a2a.Mode // empty: a2a.message, if Manifest has this intent or Card is set, else params
	Intent string   // in the mode params: for messages that name no skill; empty: the first one of Manifest
}

// A2ASettings are what a relay keeps of an endpoint.
type A2ASettings struct {
	Card   json.RawMessage `json:"card"`
	Access a2a.Access      `json:"access"`
	Mode   a2a.Mode        `json:"mode"`
	Intent string          `json:"intent,omitempty"`
	Listed bool            `json:"listed"`
}

// A2AAddress returns where A2A callers reach this client's agent, if it has published an endpoint. Errors: those of
// A2AGateway.
func (c *Client) A2AAddress(ctx context.Context) (at a2a.Endpoint, err error) {
	if c.conn.Signer == nil {
		return at, conn.ErrReadOnly
	}
	gateway, err := c.A2AGateway(ctx)
	return a2a.NewEndpoint(gateway, c.conn.Signer.DID()), err
}

// PublishA2A signs the card of this client's agent, and publishes its endpoint, in place of an earlier one. Callers reach
// the agent at the Base of the address that it returns. Errors: those of CallA2A; a Manifest without intents.
func (c *Client) PublishA2A(ctx context.Context, e A2AEndpoint) (at a2a.Endpoint, s A2ASettings, err error) {
	if at, err = c.A2AAddress(ctx); err != nil {
		return at, s, err
	}
	s = A2ASettings{Access: a2a.Keys, Mode: e.Mode, Listed: e.Listed}
	if e.Public {
		s.Access = a2a.Public
	}
	var card a2a.Card
	if e.Card != nil {
		card = e.Card(at, s.Access)
	} else {
		if len(e.Manifest.Intents) == 0 {
			return at, s, errors.New("client: the manifest for an A2A endpoint has no intents")
		}
		card = at.FromManifest(e.Manifest, s.Access)
	}
	switch {
	case s.Mode == "" && e.Card != nil:
		s.Mode = a2a.ModeMessage
	case s.Mode == "":
		s.Mode = a2a.ModeOf(e.Manifest)
	}
	if s.Mode == a2a.ModeParams {
		if s.Intent = e.Intent; s.Intent == "" && e.Card == nil {
			s.Intent = e.Manifest.Intents[0].ID
		}
	}
	if e.Proofs {
		card.Capabilities.Extensions = append(slices.DeleteFunc(slices.Clone(card.Capabilities.Extensions),
			func(x a2a.Extension) bool { return x.URI == a2a.ProofURI }), a2a.ProofExtension(c.conn.Signer.DID()))
	}
	if s.Card, err = at.Sign(card, s.Access, c.conn.Signer); err != nil {
		return at, s, err
	}
	return at, s, c.CallA2A(ctx, GatewayCall{Method: http.MethodPut, Path: "/" + at.DID.Multibase() + "/endpoint",
		Body: jsontext.Compact(s), Repeatable: true})
}
