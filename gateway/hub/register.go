package hub

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

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
	r := registration{AgentID: a.address, Card: json.RawMessage("null"), RegisteredAt: stamp(a.registered)}
	if a.card != "" {
		r.Card = json.RawMessage(a.card)
	}
	if !c.operator && c.agent != a.n {
		has := len(a.endpoint) > 0
		r.HasEndpoint = &has
		return r, nil
	}
	endpoint, err := h.endpoint(a)
	r.Endpoint = endpoint
	return r, err
}

// endpoint returns the URL of an agent's webhook; empty: it has none.
func (h *Hub) endpoint(a agent) (string, error) {
	if len(a.endpoint) == 0 {
		return "", nil
	}
	text, err := h.Secrets.Decrypt(endpointPlace(a.n), a.endpoint)
	return string(text), err
}

func endpointPlace(agent int64) gateway.Place {
	return gateway.Place{Table: agentTable, Column: "endpoint", Row: agent}
}

// request is the body of a registration.
type request struct {
	address, culture, card, endpoint string
}

// readObject reads a body that is one JSON object. It returns the form of RFC 8785.
func (h *Hub) readObject(w http.ResponseWriter, r *http.Request, from relay.Peer) ([]byte, error) {
	body, err := httpapi.ReadBody(w, r, maxBody)
	if err != nil {
		return nil, err
	}
	return h.Relay.Object(from, body, maxBody)
}

// parseRegistration checks the body of a registration. The operator must give an endpoint and may leave out the card;
// for others it is the other way round.
func (h *Hub) parseRegistration(body []byte, operator bool) (q request, err error) {
	o := parseObject("", body)
	if o.err != nil {
		return q, o.err
	}
	q.address = o.address("agent_id")
	if _, host, _ := strings.Cut(q.address, "@"); strings.EqualFold(host, reservedHost) {
		o.fail("agent_id", "the host %s is reserved; use another host", reservedHost)
	}
	card, given := o.members["agent_card"]
	if !given && !operator {
		o.fail("agent_card", "is missing")
	}
	endpoint, hasEndpoint := o.text("endpoint", operator)
	if o.err != nil {
		return q, o.err
	}
	if given {
		if q.culture, err = checkCard(card); err != nil {
			return q, err
		}
		q.card = string(card)
	}
	if hasEndpoint {
		if _, err := h.Outgoing.Check(endpoint); err != nil {
			return q, refuse(http.StatusBadRequest, codeBlocked, "endpoint: %v", err)
		}
		q.endpoint = endpoint
	}
	return q, nil
}

func (h *Hub) postRegister(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	body, err := h.readObject(w, r, from)
	if err != nil {
		return err
	}
	q, err := h.parseRegistration(body, false)
	if err != nil {
		return err
	}
	key, _ := gateway.Bearer(r)
	newKey := gateway.NewKey(gateway.HubAgent)
	admit := h.admitRegistration(from)
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
		Key          string       `json:"api_key"`
		Registration registration `json:"registration"`
	}{a.address, newKey, shown})
}

// admitRegistration returns a function that counts a new agent against the allowance of its address, once.
func (h *Hub) admitRegistration(from relay.Peer) func() error {
	counted := false
	return func() error {
		if counted {
			return nil
		}
		counted = true
		return h.registrations.Take(from, h.now)
	}
}

// register creates an agent, or replaces its registration and its key. key is the one that the request has.
func (o *op) register(q request, key, newKey string, admit func() error) (agent, int, error) {
	a, err := agentByAddress(o, q.address)
	if err != nil {
		return a, 0, err
	}
	holder, found, err := gateway.FindKey(o, key, o.hub.now())
	if err != nil {
		return a, 0, err
	}
	operator := found && holder.Kind == gateway.Operator
	own := found && holder.Kind == gateway.HubAgent && holder.Owner == a.n
	if !a.live() {
		if o.reserved(a) && !operator && !(own && holder.Only == onlyDelete) {
			return a, 0, taken(q.address, "was deleted less than 30 days ago; only the key that it had can register it again")
		}
		a, err = o.create(q, a, admit)
		if err != nil {
			return a, 0, err
		}
		return a, http.StatusCreated, o.addKey(newKey, a.n)
	}
	if !own || holder.Only == onlyDelete {
		return a, 0, taken(q.address, "is registered; to change it, send its current key as Authorization: Bearer KEY; otherwise "+
			"choose another address")
	}
	if err := o.rotate(a.n, holder.Only, newKey); err != nil {
		return a, 0, err
	}
	a, err = o.replace(q, a)
	return a, http.StatusOK, err
}

func taken(address, why string) error {
	return refuse(http.StatusConflict, codeIDTaken, "%s %s", address, why)
}

// reserved reports whether a deleted agent's address may not be registered by others yet.
func (o *op) reserved(a agent) bool {
	return a.n != 0 && o.now < a.deletedAt+int64(reservedFor)
}

func (o *op) addKey(key string, agent int64) error {
	return gateway.AddKey(o.ExtTx, key, gateway.Holder{Kind: gateway.HubAgent, Owner: agent})
}

// rotate replaces the key of an agent. The request came with a key that may do only what only says; empty: everything.
// If the answer gets lost, the old key can repeat the rotation, until the new key is used.
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
	o.then(func() { o.hub.end(agent, "rotated") })
	return o.addKey(newKey, agent)
}

// create registers a new agent. old is the agent that had the address before.
func (o *op) create(q request, old agent, admit func() error) (a agent, err error) {
	if err := admit(); err != nil {
		return a, err
	}
	registered, err := o.number("SELECT COUNT(*) FROM hub_agent WHERE deleted = 0")
	if err != nil {
		return a, err
	}
	if registered >= int64(o.hub.options.MaxAgents) {
		return a, full(codeRegistryFull, limitAgents, time.Hour, "this hub has %d agents, which is its limit; "+
			"use another hub, or ask its operator", o.hub.options.MaxAgents)
	}
	if old.n != 0 {
		if err := gateway.DropKeys(o.ExtTx, gateway.HubAgent, old.n, onlyDelete); err != nil {
			return a, err
		}
	}
	if a.n, err = gateway.Next(o.ExtTx, "hub_agent"); err != nil {
		return a, err
	}
	a = o.fill(a, q)
	o.agents++
	if err := insertAgent(o.ExtTx, a); err != nil {
		return a, err
	}
	return a, insertUsage(o.ExtTx, usage{agent: a.n, used: o.now})
}

// fill sets what a registration says.
func (o *op) fill(a agent, q request) agent {
	a.address, a.culture, a.card, a.registered, a.endpoint = q.address, q.culture, q.card, o.now, []byte{}
	if q.endpoint != "" {
		a.endpoint = o.hub.Secrets.Encrypt(endpointPlace(a.n), []byte(q.endpoint))
	}
	return a
}

// replace writes a new registration of an agent. What is queued goes to the new endpoint.
func (o *op) replace(q request, a agent) (agent, error) {
	a = o.fill(a, q)
	if err := updateAgent(o.ExtTx, a); err != nil {
		return a, err
	}
	waiting, err := deliveries(o, "SELECT "+deliveryColumns+" FROM hub_delivery WHERE receiver = ? AND state = 0 "+
		"ORDER BY message", a.n)
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
	o.then(func() { o.hub.outbox.Wake(a.n) })
	return a, nil
}

// postAgent registers an agent for the operator. It does not change the key of a registered agent.
func (h *Hub) postAgent(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	c, err := h.changing(r.Context(), from, r)
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

// deleteAgent deletes an agent. Its key can repeat that for 30 days.
func (h *Hub) deleteAgent(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	address := h.longAddress(mux.Vars(r)["id"])
	key, _ := gateway.Bearer(r)
	deleted := false
	err := h.update(context.WithoutCancel(r.Context()), from, func(o *op) (err error) {
		deleted, err = o.deleteBy(key, address, from)
		return err
	})
	if err != nil {
		return err
	}
	return h.answer(w, http.StatusOK, struct {
		Deleted bool   `json:"deleted"`
		AgentID string `json:"agent_id"`
	}{deleted, address})
}

// deleteBy deletes the agent with this address if the key allows it. deleted is false if it was deleted before.
func (o *op) deleteBy(key, address string, from relay.Peer) (deleted bool, err error) {
	holder, found, err := gateway.FindKey(o, key, o.hub.now())
	if err != nil {
		return false, err
	}
	operator := holder.Kind == gateway.Operator
	if !found || !operator && holder.Kind != gateway.HubAgent || holder.Only == onlyRotate {
		return false, unauthorized()
	}
	c := caller{operator: operator, agent: holder.Owner}
	if err := o.hub.Relay.AdmitCaller(from, c.name()); err != nil {
		return false, err
	}
	if !isAddress(address) {
		return false, missing(address)
	}
	a, err := agentByAddress(o, address)
	if err != nil {
		return false, err
	}
	if !operator && holder.Owner != a.n {
		if holder.Only != "" {
			return false, unauthorized() // a key of a deleted agent can do nothing else
		}
		if !a.live() {
			return false, missing(address)
		}
		return false, refuse(http.StatusForbidden, codeForbidden, "only the agent itself or the operator can delete an agent")
	}
	if !a.live() {
		return false, nil
	}
	return true, o.delete(a)
}

// missing is the answer for an agent that does not exist. The text may come from a path.
func missing(address string) error {
	if !isAddress(address) {
		return refuse(http.StatusNotFound, codeAgentNotFound, "no agent has this id; an id has the form name@host")
	}
	return unknownAgent(address)
}

// delete deletes an agent. What is queued for it fails.
func (o *op) delete(a agent) error {
	a.deletedAt, a.endpoint = o.now, []byte{}
	if err := updateAgent(o.ExtTx, a); err != nil {
		return err
	}
	o.agents--
	if err := o.hub.outbox.RemoveLane(o.ExtTx, a.n); err != nil {
		return err
	}
	waiting, err := deliveries(o, "SELECT "+deliveryColumns+" FROM hub_delivery WHERE receiver = ? AND state = 0 "+
		"ORDER BY message", a.n)
	if err != nil {
		return err
	}
	for _, d := range waiting {
		d.state, d.result = failed, result{Code: codeAgentNotFound, Detail: "the receiver was deleted"}.text()
		if err := o.change(queued, d); err != nil {
			return err
		}
	}
	if err := gateway.DropKeys(o.ExtTx, gateway.HubAgent, a.n, onlyRotate); err != nil {
		return err
	}
	until := o.hub.now().Add(reservedFor)
	if err := gateway.LimitKeys(o.ExtTx, gateway.HubAgent, a.n, onlyDelete, until); err != nil {
		return err
	}
	o.then(func() { o.hub.end(a.n, "deleted") })
	return nil
}

// end closes the stream of an agent and ends its sessions.
func (h *Hub) end(agent int64, reason string) {
	h.sessions.drop(agent)
	h.streams.end(agent, reason)
}

// longAddress returns the address that a text in a path or in receiver_id means: without an @, an agent of this hub.
func (h *Hub) longAddress(text string) string {
	if strings.Contains(text, "@") {
		return text
	}
	return text + "@" + h.options.Name
}
