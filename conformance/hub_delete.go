package conformance

import (
	"net/http"
)

// hubDeleteChecks test the end of a registration. Most of them end an agent and register its address again with the
// deleted key, which costs one registration.
var hubDeleteChecks = []hubCheck{
	{number: "hub.delete.own",
		title: "DELETE by the agent itself ends its key, its registration and its stream; others are refused",
		cites: `HUB "Registration and keys"; H-5`, run: func(h *hubProbe) {
			alice, bob := h.two()
			h.wantNotYours(h.remove(bob.key, alice.id))
			h.wantNoKey(h.remove("", alice.id))
			h.wantNoKey(h.remove(unknownKey, alice.id))
			h.rows(h.read(alice.key, "/agent/messages"))
			s := h.open(alice, "")
			h.wantDeleted(alice, true)
			h.wantClosed(s, "deleted")
			for _, r := range keyedRequests {
				h.wantNoKey(h.askKeyed("with the deleted key", r.method, r.path, "Bearer "+alice.key))
			}
			h.wantNoAgent(h.read("", "/agents/"+alice.id))
			h.wantNoText(h.read("", "/discover"), "not the deleted agent", `"`+alice.id+`"`)
			h.wantNoText(h.read("", "/agents"), "not the deleted agent", `"`+alice.id+`"`)
			h.wantNoAgent(h.write(bob.key, "/messages", letter(bob, alice, "hello")))
			h.wantError(h.write(bob.key, "/messages", letter(alice, bob, "hello")), http.StatusBadRequest,
				"ERR_SENDER_NOT_REGISTERED")
		}},
	{number: "hub.delete.again", title: "A DELETE that the deleted key repeats is answered with 200 and deleted false",
		cites: `HUB "Registration and keys"; H-6`, run: func(h *hubProbe) {
			a := h.one()
			h.wantDeleted(a, true)
			h.wantDeleted(a, false)
			h.wantDeleted(a, false)
			h.revive(a)
		}},
	{number: "hub.delete.reserved",
		title: "Only the deleted key can register a deleted address, and gets 201 and an empty history",
		cites: `HUB "Registration and keys"; H-7, H-8`, run: func(h *hubProbe) {
			alice, bob, carol := h.three()
			h.rowOf(alice, h.send(bob, alice, "before the deletion"))
			before := h.send(alice, bob, "also before the deletion")
			h.wantDeleted(alice, true)
			for _, key := range []string{"", unknownKey, carol.key} {
				h.wantTaken(h.write(key, "/register", registration(alice.id)))
			}
			deleted := alice.key
			h.revive(alice)
			h.describe("the history of the agent that is registered again")
			rows := h.rows(h.read(alice.key, "/agent/messages"))
			h.expect("no rows")
			if len(rows) != 0 {
				h.failf("%s", describeRows(rows))
			}
			h.wantOnly(h.open(alice, "0"))
			h.rowOf(bob, before)
			h.wantNoKey(h.read(deleted, "/agent/messages"))
			h.remove(deleted, alice.id) // must not delete the new registration
			h.rowOf(alice, h.send(bob, alice, "after the deletion"))
		}},
	{number: "hub.delete.queue", title: "DELETE fails what is queued for the agent, with ERR_AGENT_NOT_FOUND",
		cites: `HUB "Registration and keys"`, run: func(h *hubProbe) {
			alice, bob := h.two()
			queued := h.send(alice, bob, "queued at the deletion")
			h.wantDelivery(queued, http.StatusAccepted, "queued", "queued")
			h.wantDeleted(bob, true)
			row := h.wantState(queued, "failed")
			h.want(row.text("error_code") == "ERR_AGENT_NOT_FOUND", row, "the error_code ERR_AGENT_NOT_FOUND")
			h.revive(bob)
			h.wantOnly(h.open(bob, ""))
		}},
}

// remove sends DELETE for an agent.
func (h *hubProbe) remove(key, id string) answer {
	return h.ask("", http.MethodDelete, "/agents/"+id, key, nil, nil)
}

// wantDeleted deletes a with its own key. The answer must say whether the agent was still there.
func (h *hubProbe) wantDeleted(a *hubAgent, now bool) {
	a.lost = true
	answered := h.remove(a.key, a.id)
	data := h.wantData(answered, http.StatusOK)
	deleted, present := data.flag("deleted")
	h.want(present && deleted == now && data.text("agent_id") == a.id, answered, `{"deleted":%v,"agent_id":%q}`, now,
		a.id)
}

// revive registers a deleted agent again, with its deleted key.
func (h *hubProbe) revive(a *hubAgent) {
	data := h.wantData(h.write(a.key, "/register", registration(a.id)), http.StatusCreated)
	h.want(data.text("api_key") != a.key, data, "another api_key")
	a.key, a.lost, a.seen = data.text("api_key"), false, "0"
}

// hubEndpointChecks test the endpoints of agents. No message is sent to these agents, so the hub calls no endpoint.
var hubEndpointChecks = []hubCheck{
	{number: "hub.endpoint.hidden", title: "No answer to a stranger contains an endpoint; it has has_endpoint instead",
		cites: `HUB "Webhooks"; H-24`, run: func(h *hubProbe) {
			alice, bob := h.two()
			const secret = "https://agent.example/receive/53cr3t"
			h.rotate(alice, set("endpoint", secret))
			for _, key := range []string{"", bob.key} {
				for _, path := range []string{"/agents", "/agents/" + alice.id, "/discover", "/invite/" + alice.id} {
					h.wantNoText(h.read(key, path), "no endpoint", "53cr3t", "agent.example/receive")
				}
				h.wantNoText(h.ask("Accept: application/json", http.MethodGet, "/invite/"+alice.id, key,
					http.Header{"Accept": {"application/json"}}, nil), "no endpoint", "53cr3t")
				h.wantNoText(h.write(key, "/register", registration(alice.id)), "no endpoint", "53cr3t")
				listed := h.read(key, "/agents/"+alice.id)
				has, _ := h.wantData(listed, http.StatusOK).flag("has_endpoint")
				h.want(has, listed, `"has_endpoint":true`)
			}
		}},
	{number: "hub.endpoint.own",
		title: "An agent sees its own endpoint, and a registration without endpoint removes it",
		cites: `HUB "Webhooks"`, run: func(h *hubProbe) {
			a := h.one()
			const endpoint = "https://agent.example/receive"
			data := h.rotate(a, set("endpoint", endpoint))
			h.want(data.object("registration").text("endpoint") == endpoint, data, "registration has the endpoint")
			listed := h.read(a.key, "/agents/"+a.id)
			h.want(h.wantData(listed, http.StatusOK).text("endpoint") == endpoint, listed, "the endpoint")
			h.rotate(a)
			listed = h.read(a.key, "/agents/"+a.id)
			h.want(h.wantData(listed, http.StatusOK).text("endpoint") == "", listed, "no endpoint")
			has, _ := h.wantData(h.read("", "/agents/"+a.id), http.StatusOK).flag("has_endpoint")
			h.want(!has, listed, "has_endpoint is not true")
		}},
	{number: "hub.endpoint.blocked",
		title: "An endpoint that the hub must not call is refused with 400 ERR_ENDPOINT_BLOCKED",
		cites: `HUB "Webhooks"; GATEWAYS "Requests to other servers"; G-14`, run: blockedEndpoints},
}

func blockedEndpoints(h *hubProbe) {
	a := h.one()
	own := h.inviteJSON(h.readAs("/invite/"+a.id, "application/json")).text("hub")
	register := func(endpoint any) answer {
		body := registration(a.id)
		body["endpoint"] = endpoint
		return h.write(a.key, "/register", body)
	}
	for _, endpoint := range append(blockedURLs(), own+"/x") {
		h.wantError(register(endpoint), http.StatusBadRequest, "ERR_ENDPOINT_BLOCKED")
	}
	for _, endpoint := range append(notURLs(), "") {
		h.wantError(register(endpoint), http.StatusBadRequest, "ERR_ENDPOINT_BLOCKED", "ERR_VALIDATION")
	}
	h.rotate(a, set("endpoint", longURL(2048)))
}
