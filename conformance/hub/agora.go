package hub

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/envelope"
)

// hubAgoraChecks test what a hub hands to an agent whose endpoint is its DID, and what the answers of the agent do.
var hubAgoraChecks = []hubCheck{
	{Number: "hub.agora.register",
		Title: "A registration with a DID as its endpoint belongs to that DID, whose signed calls stand for the key",
		Cites: `HUB "Agents with a DID"; B-1`, Needs: kit.NeedsDID, Run: hubRegistersDID},
	{Number: "hub.agora.request", Title: "A message becomes one sealed REQUEST of the gateways' DID, and is queued until then",
		Cites: `HUB "Agents with a DID"; B-2, B-7`, Needs: kit.NeedsDID, Run: func(h *hubProbe) {
			w, m := h.deliver(h.one(), kit.Set("envelope.cultural_context", "<Please> be formal: 你好 "+kit.Astral))
			h.WantForm(w, "hub_")
			params := w.Says.Object("params")
			h.Want(w.Says.Text("intent") == "chorus.hub.message" && w.Says.Members["constraints"] == nil, w.Says,
				"the intent chorus.hub.message, and no constraints")
			row := h.keepsState(m.sentMessage, "queued")
			h.Expect("the params have agent_id, trace_id, id, timestamp and envelope, as in the history: %s",
				kit.Excerpt(row.Body, 600))
			if len(params.Members) != 5 || params.Text("agent_id") != m.to.id ||
				params.Text("trace_id") != row.Text("trace_id") ||
				params.Number("id") != row.Number("id") || params.Text("timestamp") != row.Text("timestamp") ||
				!kit.SameJSON(params.Members["envelope"], m.envelope) {
				h.Failf("%s", w.Says)
			}
			h.succeedAfterOffer(w, m, map[string]any{})
		}},
	{Number: "hub.agora.order", Title: "A sender has one REQUEST at a time, in order, and other senders do not wait for it",
		Cites: `HUB "Agents with a DID"; B-3`, Needs: kit.NeedsDID, Run: func(h *hubProbe) {
			alice, bob := h.two()
			first, m1 := h.deliver(alice)
			second := h.letterToWorker(alice)
			m2 := h.sendLater(alice, second)
			other, m3 := h.deliver(bob)
			h.TakeOn(first)
			h.WantNoWork("the second message of a sender, before the RESULT of the first", isLetter(second))
			h.succeedAfterOffer(other, m3, map[string]any{})
			h.Succeed(first, map[string]any{})
			h.wantState(m1.sentMessage, "delivered")
			h.wait(m1)
			next := h.WantWork("the second message, after the RESULT of the first", isLetter(second), func() { h.look(m2) })
			h.succeedAfterOffer(next, m2, map[string]any{})
		}},
	{Number: "hub.agora.result", Title: "A free OFFER is accepted and makes the message sent, and a RESULT makes it delivered",
		Cites: `HUB "Agents with a DID"; B-8`, Needs: kit.NeedsDID, Run: func(h *hubProbe) {
			alice := h.one()
			for _, c := range []struct{ output, response any }{
				{map[string]any{"response": map[string]any{"status": "ok", "detail": "thanks"}},
					map[string]any{"status": "ok", "detail": "thanks"}},
				{map[string]any{"response": "thanks"}, map[string]any{"status": "ok"}},
				{"HELLO", map[string]any{"status": "ok"}},
			} {
				w, m := h.deliver(alice)
				h.TakeOn(w)
				h.wantState(m.sentMessage, "sent")
				h.Succeed(w, c.output)
				row := h.wantState(m.sentMessage, "delivered")
				h.Want(kit.SameJSON(row.Members["receiver_response"], c.response) && row.Text("delivered_via") == "agora", row,
					"delivered_via agora, and the receiver_response %s after the output %v", kit.Canonical(c.response), c.output)
				h.wait(m)
			}
		}},
	{Number: "hub.agora.error", Title: "An ERROR makes the message failed, with its code and its message",
		Cites: `HUB "Agents with a DID"; B-8`, Needs: kit.NeedsDID, Run: func(h *hubProbe) {
			w, m := h.deliver(h.one())
			h.TakeOn(w)
			h.Fail(w, "KIT_IS_TIRED", "not today")
			row := h.wantState(m.sentMessage, "failed")
			h.Want(row.Text("error_code") == "KIT_IS_TIRED" && row.Text("detail") == "not today", row,
				`"error_code":"KIT_IS_TIRED" and "detail":"not today"`)
			h.wait(m)
		}},
	{Number: "hub.agora.price", Title: "An OFFER with a price is cancelled, and the message fails with ERR_AGENT_UNREACHABLE",
		Cites: `HUB "Agents with a DID"; B-8`, Needs: kit.NeedsDID, Run: func(h *hubProbe) {
			w, m := h.deliver(h.one())
			h.Say(w, kit.PricedOffer(w, 0.01, "EUR"))
			h.WantNext(w, envelope.TypeCancel)
			row := h.wantState(m.sentMessage, "failed")
			h.Want(row.Text("error_code") == "ERR_AGENT_UNREACHABLE", row, `"error_code":"ERR_AGENT_UNREACHABLE"`)
			h.wait(m)
		}},
	{Number: "hub.agora.reply", Title: "output.reply is sent to the sender once, with its conversation_id and the next turn_number",
		Cites: `HUB "Agents with a DID"; B-9`, Needs: kit.NeedsDID, Run: hubReplies},
	{Number: "hub.agora.loop", Title: "A reply to a reply to a reply is delivered up to depth 4, and one of depth 5 fails",
		Cites: `HUB "Agents with a DID"; B-9`, Needs: kit.NeedsDID, Run: hubStopsLoops},
}

// hubWorkers are the addresses of the run's agent at the hub. The checks share the first one, because a hub allows few
// registrations. They must not read its messages: that would hand out to one check what another one has sent.
type hubWorkers struct {
	mu  sync.Mutex // held while the agent registers
	ids []string
}

// worker returns the address that the checks share. The agent is registered by then.
func (h *hubProbe) worker() string {
	w := &h.hub.workers
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.ids) == 0 {
		h.registerWorker()
	}
	return w.ids[0]
}

// ownWorker registers another address of the run's agent, for this check only.
func (h *hubProbe) ownWorker() string {
	h.worker() // that is the first one
	w := &h.hub.workers
	w.mu.Lock()
	defer w.mu.Unlock()
	return h.registerWorker()
}

// registerWorker registers an address of the run's agent.
func (h *hubProbe) registerWorker() string {
	id := h.hub.address()
	data := h.wantData(h.AsAgent(http.MethodPost, "/register", registrationOfDID(id, h.Agora.Agent)), http.StatusCreated)
	h.hub.workers.ids = append(h.hub.workers.ids, id)
	h.Want(data.Text("api_key") == "", data, "no api_key")
	return id
}

// registrationOfDID returns the body of POST /register for an address whose endpoint is the DID of a.
func registrationOfDID(id string, a kit.Actor) kit.Message {
	body := registration(id)
	body["endpoint"] = a.Endpoint()
	return body
}

func hubRegistersDID(h *hubProbe) {
	id, alice, eve := h.worker(), h.one(), h.Actor("another DID")
	// Registering again makes no new key.
	again := h.wantData(h.AsAgent(http.MethodPost, "/register", registrationOfDID(id, h.Agora.Agent)), http.StatusOK)
	h.Want(again.Text("api_key") == "" && again.Object("registration").Text("endpoint") == h.Agora.Agent.Endpoint(), again,
		"no api_key, and the registration with the endpoint %s", h.Agora.Agent.Endpoint())
	// Only the agent sees the endpoint.
	for _, key := range []string{"", alice.key} {
		data := h.wantData(h.Read(key, "/agents/"+id), http.StatusOK)
		has, _ := data.Flag("has_endpoint")
		h.Want(has && data.Members["endpoint"] == nil, data, `"has_endpoint":true and no endpoint for strangers`)
	}
	own := h.wantData(h.AsAgent(http.MethodGet, "/agents/"+id, nil), http.StatusOK)
	h.Want(own.Text("endpoint") == h.Agora.Agent.Endpoint(), own, "its endpoint for the agent itself")
	// A key, and another DID, can neither set such an endpoint nor change this one.
	h.wantBlocked(h.Write("", "/register", registrationOfDID(h.hub.address(), h.Agora.Agent)))
	h.wantBlocked(h.Write(alice.key, "/register", registrationOfDID(alice.id, h.Agora.Agent)))
	h.wantBlocked(h.Sign(eve, http.MethodPost, "/register", registrationOfDID(h.hub.address(), h.Agora.Agent), nil, nil))
	h.wantTaken(h.Sign(eve, http.MethodPost, "/register", registrationOfDID(id, eve), nil, nil))
	h.wantTaken(h.Write(alice.key, "/register", registration(id)))
	// A signed call stands for the key.
	h.wantData(h.AsAgent(http.MethodPost, "/agent/session?agent_id="+id, nil), http.StatusOK)
	h.wantNoKey(h.Sign(eve, http.MethodPost, "/agent/session?agent_id="+id, nil, nil, nil))
	h.wantNotYours(h.Sign(eve, http.MethodDelete, "/agents/"+id, nil, nil, nil))
	h.wantNotYours(h.GatewayProbe.Remove(alice.key, "/agents/"+id))
	m := h.accepted(&hubAgent{id: id}, alice, letter(&hubAgent{id: id}, alice, "hello"),
		h.AsAgent(http.MethodPost, "/messages", letter(&hubAgent{id: id}, alice, "hello")))
	h.Want(len(m.trace) > 0, m.answer, "a message that the agent has sent")
}

// wantBlocked ends the check unless a is the refusal of an endpoint that the caller may not set.
func (h *hubProbe) wantBlocked(a kit.Answer) {
	h.wantError(a, http.StatusForbidden, "ERR_ENDPOINT_BLOCKED")
}

// delivered is a message to the run's agent. The answer to its POST may be held until the agent has answered.
type delivered struct {
	sentMessage
	body     kit.Message
	answered chan kit.Answer // has room for the answer to the POST
}

// wait waits for the answer to the POST of m. The hub must have accepted m.
func (h *hubProbe) wait(m delivered) { h.accepted(m.from, m.to, m.body, <-m.answered) }

// look ends the check if the hub has refused m so far.
func (h *hubProbe) look(m delivered) {
	select {
	case a := <-m.answered:
		m.answered <- a
		h.accepted(m.from, m.to, m.body, a)
	default:
	}
}

// letterToWorker returns the body of a good POST /messages to the run's agent. Its text is a new one.
func (h *hubProbe) letterToWorker(from *hubAgent, changes ...func(kit.Message)) kit.Message {
	body := letter(from, &hubAgent{id: h.worker()}, kit.NewName())
	kit.Combine(changes...)(body)
	return body
}

// isLetter returns a function that reports whether a REQUEST has the message of a body.
func isLetter(body kit.Message) func(says kit.Answer) bool {
	return isText(body["receiver_id"], body["envelope"].(map[string]any)["original_text"])
}

// isText does the same as isLetter, for the receiver and the text of a message.
func isText(receiver, text any) func(says kit.Answer) bool {
	return func(says kit.Answer) bool {
		params := says.Object("params")
		return params.Text("agent_id") == receiver && params.Object("envelope").Text("original_text") == text
	}
}

// sendLater posts a message in the background.
func (h *hubProbe) sendLater(from *hubAgent, body kit.Message) delivered {
	m := delivered{sentMessage{from: from, to: &hubAgent{id: body["receiver_id"].(string)}, envelope: body["envelope"]},
		body,
		make(chan kit.Answer, 1)}
	h.Tasks.Go(func() { m.answered <- h.Write(from.key, "/messages", body) })
	return m
}

// deliver sends a message to the run's agent, and returns the REQUEST that it becomes.
func (h *hubProbe) deliver(from *hubAgent, changes ...func(kit.Message)) (kit.Work, delivered) {
	body := h.letterToWorker(from, changes...)
	m := h.sendLater(from, body)
	w := h.WantWork("a message", isLetter(body), func() { h.look(m) })
	m.trace = w.Says.Object("params").Text("trace_id")
	return w, m
}

// succeedAfterOffer does the work of a message, and waits for its end.
func (h *hubProbe) succeedAfterOffer(w kit.Work, m delivered, output any) {
	m.trace = w.Says.Object("params").Text("trace_id")
	h.TakeOn(w)
	h.Succeed(w, output)
	h.wantState(m.sentMessage, "delivered")
	h.wait(m)
}

func hubReplies(h *hubProbe) {
	alice := h.one()
	for _, c := range []struct {
		changes []func(kit.Message)
		turn    int64
	}{
		{[]func(kit.Message){kit.Set("envelope.conversation_id", kit.NewName()), kit.Set("envelope.turn_number", 7)}, 8},
		{[]func(kit.Message){kit.Set("envelope.conversation_id", kit.NewName())}, 2},
	} {
		w, m := h.deliver(alice, c.changes...)
		h.TakeOn(w)
		text := kit.NewName()
		said := h.Succeed(w, map[string]any{"reply": map[string]any{"original_text": text}})
		h.wantState(m.sentMessage, "delivered")
		h.wait(m)
		h.SaySigned(said) // a repeat has no effect
		h.Sleep(kit.Quiet)
		var replies []kit.Answer
		for _, row := range h.history(alice) {
			if row.Object("envelope").Text("original_text") == text {
				replies = append(replies, row)
			}
		}
		sent := m.envelope.(map[string]any)
		h.Expect("one reply in the history of the sender, with the sender %s, the conversation_id %v, the turn_number %d and the "+
			"culture en of the agent's card", m.to.id, sent["conversation_id"], c.turn)
		if len(replies) != 1 {
			h.Failf("%d replies:\n%s", len(replies), kit.DescribeRows(replies))
		}
		e := replies[0].Object("envelope")
		if e.Text("sender_id") != m.to.id || e.Text("conversation_id") != sent["conversation_id"] ||
			e.Number("turn_number") != float64(c.turn) || e.Text("sender_culture") != "en" {
			h.Failf("%s", kit.Excerpt(replies[0].Body, 600))
		}
	}
}

// deepest is the largest depth of a reply that a hub delivers (B-9).
const deepest = 4

func hubStopsLoops(h *hubProbe) {
	me := &hubAgent{id: h.ownWorker()}
	text := kit.NewName()
	body := letter(me, me, text+" 0")
	h.Tasks.Go(func() { _ = h.AsAgent(http.MethodPost, "/messages", body) }) // the REQUEST shows that the hub has taken it
	for depth := range deepest + 1 {
		w := h.WantWork(fmt.Sprintf("a message of depth %d", depth), isText(me.id, fmt.Sprint(text, " ", depth)), nil)
		h.TakeOn(w)
		h.Succeed(w, map[string]any{"reply": map[string]any{"original_text": fmt.Sprint(text, " ", depth+1)}})
	}
	last := fmt.Sprint(text, " ", deepest+1)
	h.WantNoWork("a reply of depth 5", isText(me.id, last))
	for _, row := range h.rows(h.AsAgent(http.MethodGet, "/agent/messages?agent_id="+me.id, nil)) {
		if row.Object("envelope").Text("original_text") == last {
			h.Want(row.Text("state") == "failed" && row.Text("error_code") == "ERR_RATE_LIMITED", row,
				`the reply of depth 5 with "state":"failed" and "error_code":"ERR_RATE_LIMITED"`)
			return
		}
	}
	h.Expect("the reply of depth 5 in the history of the agent, as failed")
	h.Failf("it is not there")
}
