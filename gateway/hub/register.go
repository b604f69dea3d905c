package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/relay"
)

// registration is an agent as answers show it.
type registration struct {
	AgentID      string          `json:"agent_id"`
	Card         json.RawMessage `json:"agent_card"`
	RegisteredAt string          `json:"registered_at"`
	Endpoint     string          `json:"endpoint,omitempty"`     // only for the agent and the operator
	HasEndpoint  *bool           `json:"has_endpoint,omitempty"` // for others
}

// registration returns an agent as c may see it.
func (h *Hub) registration(a agent, c caller) (registration, error) {
	if !c.operator && !c.owns(a) {
		has := a.hasEndpoint()
		return newRegistration(a, &has), nil
	}
	r := newRegistration(a, nil)
	endpoint, err := h.endpoint(a)
	r.Endpoint = endpoint
	return r, err
}

// endpoint returns the URL of an agent's webhook, or a URL that names its DID; empty: it has neither.
func (h *Hub) endpoint(a agent) (string, error) {
	if a.did != "" {
		return deliver.Scheme + string(a.did), nil
	}
	if len(a.endpoint) == 0 {
		return "", nil
	}
	text, err := h.Secrets.Decrypt(endpointPlace(a.n), a.endpoint)
	return string(text), err
}

func endpointPlace(agent int64) gateway.Place {
	return gateway.Place{Table: agentTable, Column: "endpoint", Row: agent}
}

// registerBody is the body of a registration.
type registerBody struct {
	address  string
	culture  string     // of the card; empty: there is no card
	card     string     // JSON; empty: there is no card
	endpoint string     // the URL of the webhook; empty: there is none
	did      didkey.DID // it gets REQUESTs; empty: it does not
	source   int64      // from which the registration comes; 0: the agent counts alone
}

// readObject reads the body of a request, which must be one JSON object. It returns the RFC 8785 form of the body.
func (h *Hub) readObject(w http.ResponseWriter, r *http.Request, from relay.Peer) ([]byte, error) {
	_, canonical, err := h.ReadObject(w, r, from)
	return canonical, err
}

// parseRegistration checks the body of a registration. The operator must give an endpoint and may leave out the card;
// for others it is the other way round.
func (h *Hub) parseRegistration(body []byte, operator bool) (q registerBody, err error) {
	o := newObject("", body)
	if o.Err != nil {
		return q, o.Err
	}
	q.address = o.address("agent_id")
	if _, host, _ := strings.Cut(q.address, "@"); strings.EqualFold(host, reservedHost) {
		o.Fail("agent_id", "the host %s is reserved; use another host", reservedHost)
	}
	card, given := o.Members["agent_card"]
	if !given && !operator {
		o.Fail("agent_card", "is missing")
	}
	endpoint, hasEndpoint := o.Text("endpoint", operator)
	if o.Err != nil {
		return q, o.Err
	}
	if given {
		if q.culture, err = checkCard(card); err != nil {
			return q, err
		}
		q.card = string(card)
	}
	if hasEndpoint {
		var own bool
		if q.did, own, err = deliver.ParseEndpoint(endpoint); own && err == nil {
			return q, nil
		} else if err != nil {
			return q, refuse(http.StatusBadRequest, codeBlocked, "endpoint: %v", err)
		}
		if _, err := h.Outgoing.Check(endpoint); err != nil {
			return q, refuse(http.StatusBadRequest, codeBlocked, "endpoint: %v", err)
		}
		q.endpoint = endpoint
	}
	return q, nil
}

// postRegister is the handler of POST /register.
func (h *Hub) postRegister(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	body, err := h.readObject(w, r, from)
	if err != nil {
		return err
	}
	q, err := h.parseRegistration(body, false)
	if err != nil {
		return err
	}
	signer := signerOf(r)
	if signer != q.did {
		return refuse(http.StatusForbidden, codeBlocked, "endpoint: one that begins with %s needs a signed request of its DID, and "+
			"a signed request needs this endpoint with its own DID", deliver.Scheme)
	}
	key, newKey := "", ""
	if signer == "" {
		key, _ = gateway.Bearer(r)
		newKey = gateway.NewKey(gateway.HubAgent)
	} else if err := h.Relay.Gate().AdmitCaller(from, string(signer)); err != nil {
		return err
	}
	admit := h.admitRegistration(from)
	q.source = h.Source(from)
	var a agent
	status := 0
	err = h.update(context.WithoutCancel(r.Context()), from, func(o *op) (err error) {
		a, status, err = o.register(q, key, newKey, admit)
		return err
	})
	if err != nil {
		return err
	}
	shown, err := h.registration(a, caller{agent: a.n})
	if err != nil {
		return err
	}
	return h.answer(w, status, struct {
		AgentID      string       `json:"agent_id"`
		Key          string       `json:"api_key,omitempty"` // an agent with a DID has none
		Registration registration `json:"registration"`
	}{a.address, newKey, shown})
}

// admitRegistration returns a function that counts a new agent against the limit of the network address from. Further
// calls count nothing and return the same result, because an operation may run twice.
func (h *Hub) admitRegistration(from relay.Peer) func() error {
	return sync.OnceValue(func() error { return h.registrations.Take(from, h.now) })
}

// register creates an agent, or replaces its registration and its key. key is the key in the request; empty: it has
// none. An agent with a DID, which has signed the request, has no key (B-1). status is the HTTP status of the answer.
func (o *op) register(q registerBody, key, newKey string, admit func() error) (_ agent, status int, err error) {
	a, err := agentByAddress(o, q.address)
	if err != nil {
		return a, 0, err
	}
	holder, found, err := gateway.FindKey(o, key, o.hub.now())
	if err != nil {
		return a, 0, err
	}
	operator := found && holder.Kind == gateway.Operator
	own := found && holder.Kind == gateway.HubAgent && holder.Owner == a.n && a.did == ""
	signed := q.did != "" && a.did == q.did
	if !a.live() {
		if o.reserved(a) && !operator && !signed && !(own && holder.Only == onlyDelete) {
			return a, 0, addressTaken(q.address,
				"was deleted less than 30 days ago; only the key or the DID that it had can register it again")
		}
		a, err = o.create(q, a, admit)
		if err != nil {
			return a, 0, err
		}
		if q.did != "" {
			return a, http.StatusCreated, nil
		}
		return a, http.StatusCreated, o.addKey(newKey, a.n)
	}
	if signed {
		a, err = o.replace(q, a)
		return a, http.StatusOK, err
	}
	if q.did != "" || !own || holder.Only == onlyDelete {
		return a, 0, addressTaken(q.address, "is registered; to change it, send its current key as "+
			"Authorization: Bearer KEY; otherwise choose another address")
	}
	if err := o.rotate(a.n, holder.Only, newKey); err != nil {
		return a, 0, err
	}
	a, err = o.replace(q, a)
	return a, http.StatusOK, err
}

// addressTaken refuses a registration, because the caller may not have this address.
func addressTaken(address, why string) error {
	return refuse(http.StatusConflict, codeIDTaken, "%s %s", address, why)
}

// reserved reports whether the address of a deleted agent is still reserved.
func (o *op) reserved(a agent) bool {
	return a.n != 0 && o.Now < a.deletedAt+int64(reservedFor)
}

// addKey stores a new key of an agent.
func (o *op) addKey(key string, agent int64) error {
	return gateway.AddKey(o.ExtTx, key, gateway.Holder{Kind: gateway.HubAgent, Owner: agent})
}

// rotate replaces the key of an agent. only is gateway.Holder.Only of the key in the request. If the answer gets lost,
// the old key can repeat the rotation for rotationTime, until the new key is used.
func (o *op) rotate(agent int64, only, newKey string) error {
	if only == onlyRotate {
		if err := gateway.DropKeys(o.ExtTx, gateway.HubAgent, agent, ""); err != nil { // the new key was never used
			return err
		}
	} else {
		if err := gateway.DropKeys(o.ExtTx, gateway.HubAgent, agent, onlyRotate); err != nil {
			return err
		}
		until := o.hub.now().Add(rotationTime)
		if err := gateway.LimitKeys(o.ExtTx, gateway.HubAgent, agent, onlyRotate, until); err != nil {
			return err
		}
	}
	o.Then(func() { o.hub.end(agent, "rotated") })
	return o.addKey(newKey, agent)
}

// create registers a new agent. old is the deleted agent that had the address before, or the zero agent.
func (o *op) create(q registerBody, old agent, admit func() error) (a agent, err error) {
	if err := admit(); err != nil {
		return a, err
	}
	registered, err := o.Number("SELECT COUNT(*) FROM hub_agent WHERE deleted = 0")
	if err != nil {
		return a, err
	}
	if registered >= int64(o.hub.options.MaxAgents) {
		if made, err := o.makeRoom(); err != nil || !made {
			return a, cmp.Or(err, limitReached(codeRegistryFull, limitAgents, time.Hour, "this hub has %d agents, which is its "+
				"limit; use another hub, or ask its operator", o.hub.options.MaxAgents))
		}
	}
	if old.n != 0 {
		if err := gateway.DropKeys(o.ExtTx, gateway.HubAgent, old.n, onlyDelete); err != nil {
			return a, err
		}
	}
	if a.n, err = gateway.Next(o.ExtTx, agentCounter); err != nil {
		return a, err
	}
	a = o.fill(a, q)
	o.agents++
	if err := insertAgent(o.ExtTx, a); err != nil {
		return a, err
	}
	o.Then(func() { o.hub.directory.mark(a) })
	if err := o.setSource(a.n, q.source); err != nil {
		return a, err
	}
	return a, insertUsage(o.ExtTx, usage{agent: a.n, used: o.Now})
}

// fill sets the fields of an agent that a registration contains.
func (o *op) fill(a agent, q registerBody) agent {
	a.address, a.culture, a.card, a.registered, a.endpoint = q.address, q.culture, q.card, o.Now, []byte{}
	a.did = q.did
	if q.endpoint != "" {
		a.endpoint = o.hub.Secrets.Encrypt(endpointPlace(a.n), []byte(q.endpoint))
	}
	return a
}

// saveAgent replaces the row of an agent.
func (o *op) saveAgent(a agent) error {
	o.Then(func() { o.hub.directory.mark(a) })
	return updateAgent(o.ExtTx, a)
}

// replace stores a new registration of an agent. The messages that are queued go to the new endpoint.
func (o *op) replace(q registerBody, a agent) (agent, error) {
	a = o.fill(a, q)
	if err := o.saveAgent(a); err != nil {
		return a, err
	}
	waiting, err := queuedFor(o, a.n)
	if err != nil {
		return a, err
	}
	if err := o.hub.outbox.RemoveLane(o.ExtTx, a.n); err != nil || q.endpoint == "" {
		return a, err
	}
	for _, d := range waiting {
		if err := o.hub.outbox.Add(o.ExtTx, a.n, d.message); err != nil {
			return a, err
		}
	}
	o.Then(func() { o.hub.outbox.Wake(a.n) })
	return a, nil
}

// postAgent is the handler of POST /agents, with which the operator registers an agent. It does not change the key of a
// registered agent.
func (h *Hub) postAgent(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	c, err := h.admitChange(r.Context(), from, r)
	if err != nil {
		return err
	}
	if !c.operator {
		return refuse(http.StatusForbidden, codeForbidden, "only the operator can do this; an agent uses POST /register")
	}
	body, err := h.readObject(w, r, from)
	if err != nil {
		return err
	}
	q, err := h.parseRegistration(body, true)
	if err != nil {
		return err
	}
	if q.did != "" {
		return refuse(http.StatusForbidden, codeBlocked, "endpoint: the agent itself registers its DID, with a signed POST /register")
	}
	newKey := gateway.NewKey(gateway.HubAgent)
	var a agent
	status := 0
	err = h.update(context.WithoutCancel(r.Context()), from, func(o *op) (err error) {
		if err := o.check(c); err != nil {
			return err
		}
		if a, err = agentByAddress(o, q.address); err != nil {
			return err
		}
		if a.live() && a.did != "" {
			return refuse(http.StatusForbidden, codeBlocked, "endpoint: %s has a DID as its endpoint, and only that DID can change it",
				q.address)
		}
		if a.live() {
			status = http.StatusOK
			a, err = o.replace(q, a)
			return err
		}
		status = http.StatusCreated
		if a, err = o.create(q, a, func() error { return nil }); err != nil {
			return err
		}
		return o.addKey(newKey, a.n)
	})
	if err != nil {
		return err
	}
	shown, err := h.registration(a, c)
	if err != nil {
		return err
	}
	answer := struct {
		registration
		Key string `json:"api_key,omitempty"`
	}{registration: shown}
	if status == http.StatusCreated {
		answer.Key = newKey
	}
	return h.answer(w, status, answer)
}

// longAddress returns the address for a text in a path or in receiver_id. A text without @ is the name of an agent with
// the hub's own host.
func (h *Hub) longAddress(text string) string {
	if strings.Contains(text, "@") {
		return text
	}
	return text + "@" + h.options.Name
}
