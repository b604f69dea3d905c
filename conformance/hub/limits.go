package hub

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// hubLimitChecks test the limits of a hub (HUB, "Limits"). The checks after the first one need many messages or
// registrations.
var hubLimitChecks = []hubCheck{
	{Number: "hub.limits.sender", Title: "100 messages from one sender can be queued for a receiver, and no more",
		Cites: `HUB "Limits"; H-34`, Run: func(h *hubProbe) {
			alice, bob, carol := h.three()
			key, body := kit.NewID("full"), letter(alice, bob, "the first of 100")
			first := h.sendKeyed(alice, bob, key, body, nil)
			h.fill(alice, bob, 99, "one of 100")
			full := h.Write(alice.key, "/messages", letter(alice, bob, "one too many"))
			h.wantFull(full, "queuedFromSender")
			h.wantReplay(h.sendKeyed(alice, bob, key, body, nil).answer, first.answer)
			want := 100
			if a := h.Write(carol.key, "/messages", letter(carol, bob, "from another sender")); !sameSource(a) {
				h.wantData(a, http.StatusAccepted)
				want++
			}
			h.send(alice, carol, "to another receiver")
			h.keepsState(first, "queued")
			rows := h.history(bob)
			h.Expect("%d messages in the history of the receiver", want)
			if len(rows) != want {
				h.Failf("%d", len(rows))
			}
			h.send(alice, bob, "when the queue is empty again")
		}},
	{Number: "hub.limits.messages",
		Title: "1,000 messages can be queued for a receiver, and no more", Cites: `HUB "Limits"; H-34`,
		Needs: kit.NeedsThorough, Run: func(h *hubProbe) {
			agents := h.take(11)
			bob, senders := agents[0], agents[1:]
			h.greet(bob, senders)
			h.fillBy(senders, bob)
			extra := h.newAgent()
			h.wantFull(h.Write(extra.key, "/messages", letter(extra, bob, "one too many")), "queuedMessages")
		}},
	{Number: "hub.limits.half",
		Title: "Senders that the receiver does not know fill half of its queue, and leave the rest to those that it knows",
		Cites: `HUB "Limits"; G-37`, Needs: kit.NeedsThorough, Run: func(h *hubProbe) {
			bob := h.newAgent() // who knows nobody
			agents := h.take(8)
			friend, heard, extra, strangers := agents[0], agents[1], agents[2], agents[3:]
			h.greet(bob, []*hubAgent{friend})
			h.send(heard, bob, "hello")
			h.history(bob)
			h.fillBy(strangers, bob)
			h.wantFull(h.Write(extra.key, "/messages", letter(extra, bob, "one too many")), "queuedMessages")
			h.send(friend, bob, "from a sender that the receiver has written to")
			h.send(heard, bob, "from a sender that the receiver has heard from")
		}},
	{Number: "hub.limits.bytes", Title: "16 MiB of envelopes can be queued for a receiver, and no more",
		Cites: `HUB "Limits"; H-34`, Needs: kit.NeedsThorough, Run: func(h *hubProbe) {
			agents := h.take(4)
			for _, a := range agents {
				a.lost = true // their histories are large now
			}
			h.greet(agents[0], agents[1:])
			h.fillBytes(agents[0], agents[1:])
		}},
	{Number: "hub.limits.registrations",
		Title: "20 new registrations in an hour are allowed to one address, and no more",
		Cites: `HUB "Limits"; H-34`, Needs: kit.NeedsThorough, Last: true, Run: func(h *hubProbe) {
			for range 30 {
				id := h.hub.address()
				a := h.Write("", "/register", registration(id))
				if a.Status == http.StatusTooManyRequests {
					h.wantLimit(a, "ERR_RATE_LIMITED", "registrations")
					return
				}
				h.keep(id, h.wantData(a, http.StatusCreated)).lost = true // no other check follows
			}
			h.End(kit.NotTested, "this needs a hub that limits this address; a hub may exempt its own machine")
		}},
}

// fill sends n short messages that stay queued.
func (h *hubProbe) fill(from, to *hubAgent, n int, text string) {
	const together = 9
	for i := 0; i < n; i += together {
		for _, a := range h.InParallel(min(together, n-i), func(j int) kit.Answer {
			return h.Write(from.key, "/messages", letter(from, to, fmt.Sprintf("%s %d", text, i+j)))
		}) {
			h.wantData(a, http.StatusAccepted)
		}
	}
}

// greet sends a message from one agent to others, which then are senders that it knows.
func (h *hubProbe) greet(from *hubAgent, others []*hubAgent) {
	for _, to := range others {
		h.send(from, to, "you may write to me")
	}
}

// fillBy sends 100 short messages from each of these agents, which stay queued.
func (h *hubProbe) fillBy(senders []*hubAgent, to *hubAgent) {
	for i := range 100 {
		for _, a := range h.InParallel(len(senders), func(j int) kit.Answer {
			return h.Write(senders[j].key, "/messages", letter(senders[j], to, strconv.Itoa(i)))
		}) {
			if sameSource(a) {
				h.End(kit.NotTested, "this needs agents of several networks, because the hub counts these as one sender; a hub counts "+
					"agents of the same machine apart")
			}
			h.wantData(a, http.StatusAccepted)
		}
	}
}

// sameSource reports whether a message was refused because its sender and others were registered from one network.
func sameSource(a kit.Answer) bool { return a.Object("error").Text("limit") == "queuedFromSender" }

// wantFull ends the check unless a is the refusal of a full inbox.
func (h *hubProbe) wantFull(a kit.Answer, limit string) { h.wantLimit(a, "ERR_INBOX_FULL", limit) }

// wantLimit ends the check unless a names this limit and says when to try again.
func (h *hubProbe) wantLimit(a kit.Answer, code, limit string) {
	h.wantError(a, http.StatusTooManyRequests, code)
	h.Want(a.Object("error").Text("limit") == limit && kit.WaitsForSeconds(a), a,
		"error.limit %q, and the header Retry-After with seconds, instead of %q", limit, a.Header.Get("Retry-After"))
}

// fillBytes sends the largest envelopes until the hub refuses one. It must take as many as 16 MiB hold.
func (h *hubProbe) fillBytes(to *hubAgent, senders []*hubAgent) {
	const most = 16 << 20
	total := 0
	for _, from := range senders {
		body := letter(from, to, strings.Repeat(control, 9_900))
		size := len(kit.Canonical(body["envelope"]))
		for range 100 {
			a := h.Write(from.key, "/messages", body)
			if sameSource(a) {
				h.End(kit.NotTested, "this needs agents of several networks, because the hub counts these as one sender")
			}
			if total+size > most {
				h.wantFull(a, "queuedBytes")
				small := h.Write(from.key, "/messages", letter(from, to, "a short message, which still fits"))
				h.wantData(small, http.StatusAccepted)
				return
			}
			h.wantData(a, http.StatusAccepted)
			total += size
		}
	}
}

// hubOperatorChecks test what only the operator may do.
var hubOperatorChecks = []hubCheck{
	{Number: "hub.operator.register",
		Title: "POST /agents by the operator gets 201 with a key, and then 200 with the key unchanged",
		Cites: `HUB "For operators"`, Needs: kit.NeedsOperator, Run: operatorRegisters},
	{Number: "hub.operator.form", Title: "POST /agents needs agent_id and endpoint",
		Cites: `HUB "Endpoints"; GATEWAYS "Requests to other servers"`,
		Needs: kit.NeedsOperator, Run: func(h *hubProbe) {
			operator, id := h.hub.OperatorKey, h.hub.address()
			for _, body := range []kit.Message{{"agent_id": id}, {"endpoint": "https://agent.example/"},
				{"agent_id": id, "endpoint": "https://agent.example/", "agent_card": map[string]any{}},
				{"agent_id": "bob", "endpoint": "https://agent.example/"}} {
				h.wantInvalid(h.Write(operator, "/agents", body))
			}
			h.wantError(h.Write(operator, "/agents", kit.Message{"agent_id": id, "endpoint": "https://10.0.0.1/"}),
				http.StatusBadRequest, "ERR_ENDPOINT_BLOCKED")
			h.wantNoAgent(h.Read("", "/agents/"+id))
		}},
	{Number: "hub.operator.delete", Title: "The operator can delete any agent, and register its address again",
		Cites: `HUB "For operators"; H-5, H-7`, Needs: kit.NeedsOperator, Run: func(h *hubProbe) {
			a, other := h.two()
			h.send(other, a, "before the deletion")
			operator := h.hub.OperatorKey
			a.lost = true
			first := h.remove(operator, a.id)
			deleted, _ := h.wantData(first, http.StatusOK).Flag("deleted")
			h.Want(deleted, first, `"deleted":true`)
			again := h.remove(operator, a.id)
			deleted, present := h.wantData(again, http.StatusOK).Flag("deleted")
			h.Want(present && !deleted, again, `"deleted":false`)
			h.wantNoKey(h.Read(a.key, "/agent/messages"))
			h.wantTaken(h.Write("", "/register", registration(a.id)))
			data := h.wantData(h.Write(operator, "/agents",
				kit.Message{"agent_id": a.id, "endpoint": "https://agent.example/receive"}), http.StatusCreated)
			fresh := h.keep(a.id, data)
			fresh.lost = true
			rows := h.rows(h.Read(fresh.key, "/agent/messages"))
			h.Expect("an empty history")
			if len(rows) != 0 {
				h.Failf("%s", kit.DescribeRows(rows))
			}
			h.wantData(h.remove(fresh.key, fresh.id), http.StatusOK)
		}},
	{Number: "hub.operator.send", Title: "The operator may send as any registered agent", Cites: `HUB "Sending"; H-9`,
		Needs: kit.NeedsOperator, Run: func(h *hubProbe) {
			alice, bob := h.two()
			operator := h.hub.OperatorKey
			body := letter(alice, bob, "sent by the operator")
			m := h.accepted(alice, bob, body, h.Write(operator, "/messages", body))
			h.rowOf(alice, m)
			h.rowOf(bob, m)
			kit.Set("envelope.sender_id", h.hub.address())(body)
			h.wantError(h.Write(operator, "/messages", body), http.StatusBadRequest, "ERR_SENDER_NOT_REGISTERED")
		}},
	{Number: "hub.operator.endpoint",
		Title: "The operator sees the endpoints of all agents", Cites: `HUB "Webhooks"; H-24`,
		Needs: kit.NeedsOperator, Run: func(h *hubProbe) {
			a := h.one()
			const endpoint = "https://agent.example/receive"
			h.rotate(a, kit.Set("endpoint", endpoint))
			listed := h.Read(h.hub.OperatorKey, "/agents/"+a.id)
			h.Want(h.wantData(listed, http.StatusOK).Text("endpoint") == endpoint, listed, "the endpoint")
		}},
	{Number: "hub.operator.purpose", Title: "The operator's key is refused where only an agent is the caller",
		Cites: `HUB "Endpoints"; GATEWAYS "Keys of callers"; G-10`, Needs: kit.NeedsOperator, Run: func(h *hubProbe) {
			for _, r := range keyedRequests {
				if r.path == "/messages" {
					continue
				}
				h.wantNotYours(h.askKeyed("with the operator's key", r.method, r.path, "Bearer "+h.hub.OperatorKey))
			}
		}},
}

func operatorRegisters(h *hubProbe) {
	operator, id := h.hub.OperatorKey, h.hub.address()
	const endpoint, other = "https://agent.example/receive", "https://agent.example/elsewhere"
	created := h.Write(operator, "/agents", kit.Message{"agent_id": id, "endpoint": endpoint})
	data := h.wantData(created, http.StatusCreated)
	a := h.keep(id, data)
	a.changed = true
	listed := h.Read(operator, "/agents/"+id)
	h.Want(h.wantData(listed, http.StatusOK).Text("endpoint") == endpoint, listed, "the endpoint")
	entry := h.listed(a)
	h.Want(string(entry.Members["culture"]) == "null", entry, `"culture":null for an agent without a card`)
	replaced := h.Write(operator, "/agents", kit.Message{"agent_id": id, "endpoint": other, "agent_card": card()})
	again := h.wantData(replaced, http.StatusOK)
	h.Want(again.Text("api_key") == "" || again.Text("api_key") == a.key, replaced, "no new api_key")
	listed = h.Read(a.key, "/agents/"+id)
	h.Want(h.wantData(listed, http.StatusOK).Text("endpoint") == other, listed,
		"the key of the first answer still works, and the endpoint is the new one")
}
