package a2a

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// This file manages endpoints and shows their cards.

// facts is what requests need to know of a card.
type facts struct {
	Modes      []string `json:"modes"`      // what messages may consist of
	Extensions []string `json:"extensions"` // URIs
	Required   []string `json:"required"`   // the extensions that callers must name
	Skills     []string `json:"skills"`     // ids
}

// factsOf returns the facts of a card.
func factsOf(c wire.Card) (f facts) {
	f.Modes = slices.Clone(c.DefaultInputModes)
	for _, s := range c.Skills {
		f.Modes, f.Skills = append(f.Modes, s.InputModes...), append(f.Skills, s.ID)
	}
	slices.Sort(f.Modes)
	f.Modes = slices.Compact(f.Modes)
	for _, x := range c.Capabilities.Extensions {
		if f.Extensions = append(f.Extensions, x.URI); x.Required {
			f.Required = append(f.Required, x.URI)
		}
	}
	return f
}

// known returns the facts of the card of an endpoint.
func (e endpoint) known() (f facts) {
	_ = json.Unmarshal([]byte(e.facts), &f) // the relay has written this text
	return f
}

// address returns the public address of an agent.
func (g *Gateway) address(did didkey.DID) wire.Endpoint { return wire.NewEndpoint(g.url, did) }

// agentOf returns the DID in the path of a request. Errors: CodeNotFound.
func agentOf(r *http.Request) (didkey.DID, error) {
	did, err := didkey.Parse("did:key:" + mux.Vars(r)["agent"])
	if err != nil {
		return "", noEndpoint
	}
	return did, nil
}

var noEndpoint = gateway.NotFound("there is no A2A endpoint at this path; its agent publishes one with agora a2a publish")

// endpoint returns the endpoint that the path of a request names. If the card was published while the relay had another
// URL, there is no endpoint until the owner publishes it again. Errors: CodeNotFound.
func (g *Gateway) endpoint(q relay.Querier, r *http.Request) (endpoint, error) {
	did, err := agentOf(r)
	if err != nil {
		return endpoint{}, err
	}
	e, err := endpointOf(q, did)
	if err == nil && (e.n == 0 || e.url != g.address(did).Base()) {
		err = noEndpoint
	}
	return e, err
}

// getCard is the handler of GET {E} and GET {E}/.well-known/agent-card.json. The card is sent as it was published.
func (g *Gateway) getCard(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	return g.writePublic(w, r, from, func(e endpoint) []byte { return e.card })
}

// getKeySet is the handler of GET {E}/jwks.json.
func (g *Gateway) getKeySet(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	return g.writePublic(w, r, from, func(e endpoint) []byte { return g.address(e.did).JWKS() })
}

// writePublic answers a request with a document of an endpoint. Clients may keep it for five minutes.
func (g *Gateway) writePublic(
	w http.ResponseWriter, r *http.Request, from relay.Peer, document func(endpoint) []byte,
) error {
	var e endpoint
	if err := g.Relay.View(r.Context(), from, func(q relay.Querier) (err error) {
		e, err = g.endpoint(q, r)
		return err
	}); err != nil {
		return err
	}
	body := document(e)
	httpapi.SetHeader(w, wire.JSONType)
	tag := httpapi.Tag(body)
	for name, value := range map[string]string{"Cache-Control": "public, max-age=300", "ETag": tag,
		"Last-Modified": time.Unix(0, e.changed).UTC().Format(http.TimeFormat)} {
		w.Header().Set(name, value)
	}
	if httpapi.HasTag(r.Header, tag) {
		w.Header().Del("Content-Type")
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	_, _ = w.Write(body) // an error means that the client has left
	return nil
}

// owned returns a handler that only the agent of the path may call.
func (g *Gateway) owned(main bool, h gateway.SignedHandler) httpapi.Handler {
	return inRelayForm(g.Signed(main, gateway.MaxBody,
		func(w http.ResponseWriter, r *http.Request, from relay.Peer, owner didkey.DID, body []byte) error {
			if did, err := agentOf(r); err != nil || did != owner {
				return gateway.Forbidden("only the agent itself may do this; the path must have the DID that signs the request")
			}
			return h(w, r, from, owner, body)
		}))
}

// shownEndpoint is an endpoint as its owner sees it.
type shownEndpoint struct {
	Card   json.RawMessage `json:"card"`
	Access wire.Access     `json:"access"`
	Mode   wire.Mode       `json:"mode"`
	Intent string          `json:"intent,omitempty"`
	Listed bool            `json:"listed"`
}

// writeEndpoint answers the owner with the endpoint.
func (g *Gateway) writeEndpoint(w http.ResponseWriter, e endpoint) error {
	return httpapi.WriteJSON(w, http.StatusOK, struct {
		OK       bool          `json:"ok"`
		Endpoint shownEndpoint `json:"endpoint"`
		URL      string        `json:"url"`
	}{true, shownEndpoint{e.card, e.access, e.mode, e.intent, e.listed}, e.url})
}

// getEndpoint is the handler of GET {E}/endpoint.
func (g *Gateway) getEndpoint(
	w http.ResponseWriter, r *http.Request, from relay.Peer, owner didkey.DID, _ []byte,
) error {
	var e endpoint
	if err := g.Relay.View(r.Context(), from, func(q relay.Querier) (err error) {
		e, err = liveEndpoint(q, owner)
		return err
	}); err != nil {
		return err
	}
	return g.writeEndpoint(w, e)
}

// liveEndpoint returns the endpoint of an agent. Errors: CodeNotFound.
func liveEndpoint(q relay.Querier, owner didkey.DID) (endpoint, error) {
	e, err := endpointOf(q, owner)
	if err == nil && e.n == 0 {
		err = noEndpoint
	}
	return e, err
}

// parseEndpoint checks the body of PUT {E}/endpoint.
func (g *Gateway) parseEndpoint(from relay.Peer, owner didkey.DID, sent []byte) (e endpoint, err error) {
	canonical, err := g.Relay.Object(from, slices.Clone(sent), gateway.MaxBody)
	if err != nil {
		return e, err
	}
	o := gateway.NewObject("", canonical)
	access, _ := o.Text("access", true)
	mode, _ := o.Text("mode", true)
	e = endpoint{did: owner, access: wire.Access(access), mode: wire.Mode(mode), url: g.address(owner).Base()}
	if e.access != wire.Public && e.access != wire.Keys {
		o.Fail("access", "must be public or keys")
	}
	if e.mode != wire.ModeMessage && e.mode != wire.ModeParams {
		o.Fail("mode", "must be message or params")
	}
	if e.intent, _ = o.Sized("intent", e.mode == wire.ModeParams, 1, maxIntent); e.mode == wire.ModeMessage {
		e.intent = ""
	}
	if listed, given := o.Members["listed"]; given && json.Unmarshal(listed, &e.listed) != nil {
		o.Fail("listed", "must be true or false")
	}
	if o.Err != nil {
		return e, o.Err
	}
	var raw map[string]json.RawMessage // with the bytes as they were sent
	if err := json.Unmarshal(sent, &raw); err != nil || len(raw["card"]) == 0 {
		return e, gateway.Invalid("card: is missing")
	}
	e.card = raw["card"]
	var card wire.Card
	err = g.Relay.Gate().Checking(from, func() (err error) {
		card, _, err = g.address(owner).CheckCard(slices.Clone(e.card), e.access)
		return err
	})
	e.name, e.description, e.facts = card.Name, card.Description, string(jsontext.Compact(factsOf(card)))
	return e, err
}

// maxIntent is how many bytes an intent may have.
const maxIntent = 256

// putEndpoint is the handler of PUT {E}/endpoint.
func (g *Gateway) putEndpoint(
	w http.ResponseWriter, r *http.Request, from relay.Peer, owner didkey.DID, sent []byte,
) error {
	e, err := g.parseEndpoint(from, owner, sent)
	if err != nil {
		return err
	}
	admit := sync.OnceValue(func() error { return g.newEndpoints.Take(from, g.Relay.Now) })
	err = g.Update(context.WithoutCancel(r.Context()), from, func(o *gateway.Op) error {
		before, err := endpointOf(o, owner)
		if err != nil {
			return err
		}
		e.n, e.created, e.changed, e.seen = before.n, before.created, o.Now, o.Now
		if e.n != 0 {
			o.Then(func() { g.closed.Tell(e.n) })
			return updateEndpoint(o.ExtTx, e)
		}
		return g.createEndpoint(o, &e, admit)
	})
	if err != nil {
		return err
	}
	return g.writeEndpoint(w, e)
}

// createEndpoint stores a new endpoint.
func (g *Gateway) createEndpoint(o *gateway.Op, e *endpoint, admit func() error) error {
	count, err := o.Number("SELECT COUNT(*) FROM a2a_endpoint WHERE deleted = 0")
	if err != nil {
		return err
	}
	if count >= int64(g.options.Endpoints) {
		return gateway.LimitReached(limitEndpoints, time.Hour, "this relay has %d A2A endpoints, which is its limit; its "+
			"operator can raise it with --a2a-endpoints", g.options.Endpoints)
	}
	if err := admit(); err != nil {
		return err
	}
	if e.n, err = gateway.Next(o.ExtTx, endpointCounter); err != nil {
		return err
	}
	e.created = o.Now
	return insertEndpoint(o.ExtTx, *e)
}

// deleteEndpoint is the handler of DELETE {E}/endpoint. The sweep ends the tasks.
func (g *Gateway) deleteEndpoint(
	w http.ResponseWriter, r *http.Request, from relay.Peer, owner didkey.DID, _ []byte,
) error {
	err := g.Update(context.WithoutCancel(r.Context()), from, func(o *gateway.Op) error {
		e, err := liveEndpoint(o, owner)
		if err != nil {
			return err
		}
		return g.closeEndpoint(o, e)
	})
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, done{true})
}

// closeEndpoint deletes an endpoint. Its keys stop working, and its streams and turns end, at once; the sweep removes the rows.
func (g *Gateway) closeEndpoint(o *gateway.Op, e endpoint) error {
	e.deleted, e.card = o.Now, []byte{}
	o.Then(func() { g.closed.Tell(e.n) })
	o.Then(g.wakeSweep)
	return updateEndpoint(o.ExtTx, e)
}

// online reports whether an agent can answer now.
func (g *Gateway) online(ctx context.Context, from relay.Peer, did didkey.DID) (bool, error) {
	a, err := g.agent(ctx, from, did)
	return err == nil && g.Relay.Online(a), err
}

// agent returns what the relay knows of an agent; the zero Agent: nothing.
func (g *Gateway) agent(ctx context.Context, from relay.Peer, did didkey.DID) (relay.Agent, error) {
	all, _, err := g.Relay.Agent(ctx, from, did)
	if envelope.CodeOf(err) == envelope.CodeAgentNotFound {
		return relay.Agent{}, nil
	}
	if err != nil {
		return relay.Agent{}, err
	}
	return all[0], nil
}
