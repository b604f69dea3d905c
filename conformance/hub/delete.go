package hub

import (
	"net/http"

	"github.com/agora-relay/agora/conformance/kit"
)

// hubDeleteChecks test the end of a registration. Most of them end an agent and register its address again with the
// deleted key, which costs one registration.
var hubDeleteChecks = []hubCheck{
	{Number: "hub.delete.own",
		Title: "DELETE by the agent itself ends its key, its registration and its stream; others are refused",
		Cites: `HUB "Registration and keys"; H-5`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			h.wantNotYours(h.remove(bob.key, alice.id))
			h.wantNoKey(h.remove("", alice.id))
			h.wantNoKey(h.remove(unknownKey, alice.id))
			h.rows(h.Read(alice.key, "/agent/messages"))
			s := h.open(alice, "")
			h.wantDeleted(alice, true)
			h.wantClosed(s, "deleted")
			for _, r := range keyedRequests {
				h.wantNoKey(h.askKeyed("with the deleted key", r.method, r.path, "Bearer "+alice.key))
			}
			h.wantNoAgent(h.Read("", "/agents/"+alice.id))
			h.WantNoText(h.Read("", "/discover"), "not the deleted agent", `"`+alice.id+`"`)
			h.WantNoText(h.Read("", "/agents"), "not the deleted agent", `"`+alice.id+`"`)
			h.wantNoAgent(h.Write(bob.key, "/messages", letter(bob, alice, "hello")))
			h.wantError(h.Write(bob.key, "/messages", letter(alice, bob, "hello")), http.StatusBadRequest,
				"ERR_SENDER_NOT_REGISTERED")
		}},
	{Number: "hub.delete.again", Title: "A DELETE that the deleted key repeats is answered with 200 and deleted false",
		Cites: `HUB "Registration and keys"; H-6`, Run: func(h *hubProbe) {
			a := h.one()
			h.wantDeleted(a, true)
			h.wantDeleted(a, false)
			h.wantDeleted(a, false)
			h.revive(a)
		}},
	{Number: "hub.delete.reserved",
		Title: "Only the deleted key can register a deleted address, and gets 201 and an empty history",
		Cites: `HUB "Registration and keys"; H-7, H-8`, Run: func(h *hubProbe) {
			alice, bob, carol := h.three()
			h.rowOf(alice, h.send(bob, alice, "before the deletion"))
			before := h.send(alice, bob, "also before the deletion")
			h.wantDeleted(alice, true)
			for _, key := range []string{"", unknownKey, carol.key} {
				h.wantTaken(h.Write(key, "/register", registration(alice.id)))
			}
			deleted := alice.key
			h.revive(alice)
			h.Describe("the history of the agent that is registered again")
			rows := h.rows(h.Read(alice.key, "/agent/messages"))
			h.Expect("no rows")
			if len(rows) != 0 {
				h.Failf("%s", kit.DescribeRows(rows))
			}
			h.wantOnly(h.open(alice, "0"))
			h.rowOf(bob, before)
			h.wantNoKey(h.Read(deleted, "/agent/messages"))
			h.remove(deleted, alice.id) // must not delete the new registration
			h.rowOf(alice, h.send(bob, alice, "after the deletion"))
		}},
	{Number: "hub.delete.queue", Title: "DELETE fails what is queued for the agent, with ERR_AGENT_NOT_FOUND",
		Cites: `HUB "Registration and keys"`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			queued := h.send(alice, bob, "queued at the deletion")
			h.wantDelivery(queued, http.StatusAccepted, "queued", "queued")
			h.wantDeleted(bob, true)
			row := h.wantState(queued, "failed")
			h.Want(row.Text("error_code") == "ERR_AGENT_NOT_FOUND", row, "the error_code ERR_AGENT_NOT_FOUND")
			h.revive(bob)
			h.wantOnly(h.open(bob, ""))
		}},
}

// remove sends DELETE for an agent.
func (h *hubProbe) remove(key, id string) kit.Answer {
	return h.Ask("", http.MethodDelete, "/agents/"+id, key, nil, nil)
}

// wantDeleted deletes a with its own key. The answer must say whether the agent was still there.
func (h *hubProbe) wantDeleted(a *hubAgent, now bool) {
	a.lost = true
	answered := h.remove(a.key, a.id)
	data := h.wantData(answered, http.StatusOK)
	deleted, present := data.Flag("deleted")
	h.Want(present && deleted == now && data.Text("agent_id") == a.id, answered, `{"deleted":%v,"agent_id":%q}`, now,
		a.id)
}

// revive registers a deleted agent again, with its deleted key.
func (h *hubProbe) revive(a *hubAgent) {
	data := h.wantData(h.Write(a.key, "/register", registration(a.id)), http.StatusCreated)
	h.Want(data.Text("api_key") != a.key, data, "another api_key")
	a.key, a.lost, a.seen = data.Text("api_key"), false, "0"
}

// hubEndpointChecks test the endpoints of agents. No message is sent to these agents, so the hub calls no endpoint.
var hubEndpointChecks = []hubCheck{
	{Number: "hub.endpoint.hidden", Title: "No answer to a stranger contains an endpoint; it has has_endpoint instead",
		Cites: `HUB "Webhooks"; H-24`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			const secret = "https://agent.example/receive/53cr3t"
			h.rotate(alice, kit.Set("endpoint", secret))
			for _, key := range []string{"", bob.key} {
				for _, path := range []string{"/agents", "/agents/" + alice.id, "/discover", "/invite/" + alice.id} {
					h.WantNoText(h.Read(key, path), "no endpoint", "53cr3t", "agent.example/receive")
				}
				h.WantNoText(h.Ask("Accept: application/json", http.MethodGet, "/invite/"+alice.id, key,
					http.Header{"Accept": {"application/json"}}, nil), "no endpoint", "53cr3t")
				h.WantNoText(h.Write(key, "/register", registration(alice.id)), "no endpoint", "53cr3t")
				listed := h.Read(key, "/agents/"+alice.id)
				has, _ := h.wantData(listed, http.StatusOK).Flag("has_endpoint")
				h.Want(has, listed, `"has_endpoint":true`)
			}
		}},
	{Number: "hub.endpoint.own",
		Title: "An agent sees its own endpoint, and a registration without endpoint removes it",
		Cites: `HUB "Webhooks"`, Run: func(h *hubProbe) {
			a := h.one()
			const endpoint = "https://agent.example/receive"
			data := h.rotate(a, kit.Set("endpoint", endpoint))
			h.Want(data.Object("registration").Text("endpoint") == endpoint, data, "registration has the endpoint")
			listed := h.Read(a.key, "/agents/"+a.id)
			h.Want(h.wantData(listed, http.StatusOK).Text("endpoint") == endpoint, listed, "the endpoint")
			h.rotate(a)
			listed = h.Read(a.key, "/agents/"+a.id)
			h.Want(h.wantData(listed, http.StatusOK).Text("endpoint") == "", listed, "no endpoint")
			has, _ := h.wantData(h.Read("", "/agents/"+a.id), http.StatusOK).Flag("has_endpoint")
			h.Want(!has, listed, "has_endpoint is not true")
		}},
	{Number: "hub.endpoint.blocked",
		Title: "An endpoint that the hub must not call is refused with 400 ERR_ENDPOINT_BLOCKED",
		Cites: `HUB "Webhooks"; GATEWAYS "Requests to other servers"; G-14`, Run: blockedEndpoints},
}

func blockedEndpoints(h *hubProbe) {
	a := h.one()
	own := h.inviteJSON(h.readAs("/invite/"+a.id, "application/json")).Text("hub")
	register := func(endpoint any) kit.Answer {
		body := registration(a.id)
		body["endpoint"] = endpoint
		return h.Write(a.key, "/register", body)
	}
	for _, endpoint := range append(kit.BlockedURLs(), own+"/x") {
		h.wantError(register(endpoint), http.StatusBadRequest, "ERR_ENDPOINT_BLOCKED")
	}
	for _, endpoint := range append(kit.NotURLs(), "") {
		h.wantError(register(endpoint), http.StatusBadRequest, "ERR_ENDPOINT_BLOCKED", "ERR_VALIDATION")
	}
	h.rotate(a, kit.Set("endpoint", kit.LongURL(2048)))
}
