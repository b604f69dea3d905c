package hub

import (
	"context"
	"net/http"
	"time"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// deleteAgent is the handler of DELETE /agents/{id}. The agent's key can repeat the request for 30 days.
func (h *Hub) deleteAgent(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	address := h.longAddress(mux.Vars(r)["id"])
	key, _ := gateway.Bearer(r)
	c := caller{did: signerOf(r)}
	if c.did == "" {
		if err := h.Relay.View(r.Context(), from, func(q relay.Querier) (err error) {
			c, _, err = findDeleter(q, key, h.now())
			return err
		}); err != nil {
			return err
		}
	}
	if err := h.Relay.Gate().AdmitCaller(from, c.name()); err != nil {
		return err
	}
	if _, err := httpapi.ReadBody(w, r, gateway.MaxBody); err != nil { // what it says does not matter
		return err
	}
	deleted := false
	err := h.ending(context.WithoutCancel(r.Context()), from, "the agent has left the hub", requestsTo(address, c),
		func(o *op) (err error) {
			deleted, err = o.deleteBy(key, c.did, address)
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

// findDeleter returns the owner of a key that may delete an agent. repeats means that the key can only repeat the
// deletion of its agent. Errors: 401.
func findDeleter(q relay.Querier, key string, now time.Time) (c caller, repeats bool, err error) {
	holder, found, err := gateway.FindKey(q, key, now)
	if err != nil {
		return caller{}, false, err
	}
	c = caller{operator: holder.Kind == gateway.Operator, agent: holder.Owner, key: key}
	if !found || !c.operator && holder.Kind != gateway.HubAgent || holder.Only == onlyRotate {
		return caller{}, false, unauthorized()
	}
	return c, holder.Only == onlyDelete, nil
}

// deleteBy deletes the agent with this address if the key or the DID of the caller allows it. deleted is false if it was
// deleted before.
func (o *op) deleteBy(key string, did didkey.DID, address string) (deleted bool, err error) {
	c, repeats := caller{did: did}, false
	if did == "" {
		if c, repeats, err = findDeleter(o, key, o.hub.now()); err != nil { // again, because the key may have been replaced
			return false, err
		}
	}
	if !isAddress(address) {
		return false, unknownAgent(address)
	}
	a, err := agentByAddress(o, address)
	if err != nil {
		return false, err
	}
	if !c.operator && !c.owns(a) {
		if repeats {
			return false, unauthorized()
		}
		if !a.live() {
			return false, unknownAgent(address)
		}
		return false, refuse(http.StatusForbidden, codeForbidden, "only the agent itself or the operator can delete an agent")
	}
	if !a.live() {
		return false, nil
	}
	return true, o.delete(a)
}

// delete deletes an agent. The messages that are queued for it fail, and those that it works on as REQUESTs.
func (o *op) delete(a agent) error {
	a.deletedAt, a.endpoint = o.Now, []byte{}
	if err := o.saveAgent(a); err != nil {
		return err
	}
	o.agents--
	if err := changeUsage(o.ExtTx, a.n, func(u *usage) { u.framed = max(u.framed, neverFramed) }); err != nil {
		return err
	}
	if err := o.hub.outbox.RemoveLane(o.ExtTx, a.n); err != nil {
		return err
	}
	waiting, err := queuedFor(o, a.n)
	if err != nil {
		return err
	}
	asked, err := deliveries(o, "SELECT "+joinedDelivery+" FROM hub_request r JOIN hub_delivery d ON d.message = r.message "+
		"WHERE r.receiver = ? AND r.state > 0 AND d.state = 1", a.n)
	if err != nil {
		return err
	}
	for _, d := range append(waiting, asked...) {
		before := d.state
		d.state, d.result = failed, result{Code: codeAgentNotFound, Detail: "the receiver was deleted"}.text()
		if err := o.change(before, d); err != nil {
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
	o.Then(func() { o.hub.end(a.n, "deleted") })
	return nil
}

// end closes the stream of an agent and ends its session tokens.
func (h *Hub) end(agent int64, reason string) {
	h.sessions.drop(agent)
	h.streams.end(agent, reason)
}
