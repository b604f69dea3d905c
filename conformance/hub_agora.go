package conformance

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/agora-relay/agora/envelope"
)

// hubAgoraChecks test what a hub hands to an agent whose endpoint is its DID, and what the answers of the agent do.
var hubAgoraChecks = []hubCheck{
	{number: "hub.agora.register",
		title: "A registration with a DID as its endpoint belongs to that DID, whose signed calls stand for the key",
		cites: `HUB "Agents with a DID"; B-1`, needs: needsDID, run: hubRegistersDID},
	{number: "hub.agora.request", title: "A message becomes one sealed REQUEST of the gateways' DID, and is queued until then",
		cites: `HUB "Agents with a DID"; B-2, B-7`, needs: needsDID, run: func(h *hubProbe) {
			w, m := h.deliver(h.one(), set("envelope.cultural_context", "<Please> be formal: 你好 "+astral))
			h.wantForm(w, "hub_")
			params := w.says.object("params")
			h.want(w.says.text("intent") == "chorus.hub.message" && w.says.members["constraints"] == nil, w.says,
				"the intent chorus.hub.message, and no constraints")
			row := h.keepsState(m.sentMessage, "queued")
			h.expect("the params have agent_id, trace_id, id, timestamp and envelope, as in the history: %s", excerpt(row.body, 600))
			if len(params.members) != 5 || params.text("agent_id") != m.to.id || params.text("trace_id") != row.text("trace_id") ||
				params.number("id") != row.number("id") || params.text("timestamp") != row.text("timestamp") ||
				!sameJSON(params.members["envelope"], m.envelope) {
				h.failf("%s", w.says)
			}
			h.succeedAfterOffer(w, m, map[string]any{})
		}},
	{number: "hub.agora.order", title: "A sender has one REQUEST at a time, in order, and other senders do not wait for it",
		cites: `HUB "Agents with a DID"; B-3`, needs: needsDID, run: func(h *hubProbe) {
			alice, bob := h.two()
			first, m1 := h.deliver(alice)
			second := h.letterToWorker(alice)
			m2 := h.sendLater(alice, second)
			other, m3 := h.deliver(bob)
			h.takeOn(first)
			h.wantNoWork("the second message of a sender, before the RESULT of the first", isLetter(second))
			h.succeedAfterOffer(other, m3, map[string]any{})
			h.succeed(first, map[string]any{})
			h.wantState(m1.sentMessage, "delivered")
			h.wait(m1)
			next := h.wantWork("the second message, after the RESULT of the first", isLetter(second), func() { h.look(m2) })
			h.succeedAfterOffer(next, m2, map[string]any{})
		}},
	{number: "hub.agora.result", title: "A free OFFER is accepted and makes the message sent, and a RESULT makes it delivered",
		cites: `HUB "Agents with a DID"; B-8`, needs: needsDID, run: func(h *hubProbe) {
			alice := h.one()
			for _, c := range []struct{ output, response any }{
				{map[string]any{"response": map[string]any{"status": "ok", "detail": "thanks"}},
					map[string]any{"status": "ok", "detail": "thanks"}},
				{map[string]any{"response": "thanks"}, map[string]any{"status": "ok"}},
				{"HELLO", map[string]any{"status": "ok"}},
			} {
				w, m := h.deliver(alice)
				h.takeOn(w)
				h.wantState(m.sentMessage, "sent")
				h.succeed(w, c.output)
				row := h.wantState(m.sentMessage, "delivered")
				h.want(sameJSON(row.members["receiver_response"], c.response) && row.text("delivered_via") == "agora", row,
					"delivered_via agora, and the receiver_response %s after the output %v", canonical(c.response), c.output)
				h.wait(m)
			}
		}},
	{number: "hub.agora.error", title: "An ERROR makes the message failed, with its code and its message",
		cites: `HUB "Agents with a DID"; B-8`, needs: needsDID, run: func(h *hubProbe) {
			w, m := h.deliver(h.one())
			h.takeOn(w)
			h.fail(w, "KIT_IS_TIRED", "not today")
			row := h.wantState(m.sentMessage, "failed")
			h.want(row.text("error_code") == "KIT_IS_TIRED" && row.text("detail") == "not today", row,
				`"error_code":"KIT_IS_TIRED" and "detail":"not today"`)
			h.wait(m)
		}},
	{number: "hub.agora.price", title: "An OFFER with a price is cancelled, and the message fails with ERR_AGENT_UNREACHABLE",
		cites: `HUB "Agents with a DID"; B-8`, needs: needsDID, run: func(h *hubProbe) {
			w, m := h.deliver(h.one())
			h.say(w, pricedOffer(w, 0.01, "EUR"))
			h.wantNext(w, envelope.TypeCancel)
			row := h.wantState(m.sentMessage, "failed")
			h.want(row.text("error_code") == "ERR_AGENT_UNREACHABLE", row, `"error_code":"ERR_AGENT_UNREACHABLE"`)
			h.wait(m)
		}},
	{number: "hub.agora.reply", title: "output.reply is sent to the sender once, with its conversation_id and the next turn_number",
		cites: `HUB "Agents with a DID"; B-9`, needs: needsDID, run: hubReplies},
	{number: "hub.agora.loop", title: "A reply to a reply to a reply is delivered up to depth 4, and one of depth 5 fails",
		cites: `HUB "Agents with a DID"; B-9`, needs: needsDID, run: hubStopsLoops},
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
	data := h.wantData(h.asAgent(http.MethodPost, "/register", registrationOfDID(id, h.agora.agent)), http.StatusCreated)
	h.hub.workers.ids = append(h.hub.workers.ids, id)
	h.want(data.text("api_key") == "", data, "no api_key")
	return id
}

// registrationOfDID returns the body of POST /register for an address whose endpoint is the DID of a.
func registrationOfDID(id string, a actor) message {
	body := registration(id)
	body["endpoint"] = a.endpoint()
	return body
}

func hubRegistersDID(h *hubProbe) {
	id, alice, eve := h.worker(), h.one(), h.actor("another DID")
	// Registering again makes no new key.
	again := h.wantData(h.asAgent(http.MethodPost, "/register", registrationOfDID(id, h.agora.agent)), http.StatusOK)
	h.want(again.text("api_key") == "" && again.object("registration").text("endpoint") == h.agora.agent.endpoint(), again,
		"no api_key, and the registration with the endpoint %s", h.agora.agent.endpoint())
	// Only the agent sees the endpoint.
	for _, key := range []string{"", alice.key} {
		data := h.wantData(h.read(key, "/agents/"+id), http.StatusOK)
		has, _ := data.flag("has_endpoint")
		h.want(has && data.members["endpoint"] == nil, data, `"has_endpoint":true and no endpoint for strangers`)
	}
	own := h.wantData(h.asAgent(http.MethodGet, "/agents/"+id, nil), http.StatusOK)
	h.want(own.text("endpoint") == h.agora.agent.endpoint(), own, "its endpoint for the agent itself")
	// A key, and another DID, can neither set such an endpoint nor change this one.
	h.wantBlocked(h.write("", "/register", registrationOfDID(h.hub.address(), h.agora.agent)))
	h.wantBlocked(h.write(alice.key, "/register", registrationOfDID(alice.id, h.agora.agent)))
	h.wantBlocked(h.sign(eve, http.MethodPost, "/register", registrationOfDID(h.hub.address(), h.agora.agent), nil, nil))
	h.wantTaken(h.sign(eve, http.MethodPost, "/register", registrationOfDID(id, eve), nil, nil))
	h.wantTaken(h.write(alice.key, "/register", registration(id)))
	// A signed call stands for the key.
	h.wantData(h.asAgent(http.MethodPost, "/agent/session?agent_id="+id, nil), http.StatusOK)
	h.wantNoKey(h.sign(eve, http.MethodPost, "/agent/session?agent_id="+id, nil, nil, nil))
	h.wantNotYours(h.sign(eve, http.MethodDelete, "/agents/"+id, nil, nil, nil))
	h.wantNotYours(h.gatewayProbe.remove(alice.key, "/agents/"+id))
	m := h.accepted(&hubAgent{id: id}, alice, letter(&hubAgent{id: id}, alice, "hello"),
		h.asAgent(http.MethodPost, "/messages", letter(&hubAgent{id: id}, alice, "hello")))
	h.want(len(m.trace) > 0, m.answer, "a message that the agent has sent")
}

// wantBlocked ends the check unless a is the refusal of an endpoint that the caller may not set.
func (h *hubProbe) wantBlocked(a answer) {
	h.wantError(a, http.StatusForbidden, "ERR_ENDPOINT_BLOCKED")
}

// delivered is a message to the run's agent. The answer to its POST may be held until the agent has answered.
type delivered struct {
	sentMessage
	body     message
	answered chan answer // has room for the answer to the POST
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
func (h *hubProbe) letterToWorker(from *hubAgent, changes ...func(message)) message {
	body := letter(from, &hubAgent{id: h.worker()}, newName())
	combine(changes...)(body)
	return body
}

// isLetter returns a function that reports whether a REQUEST has the message of a body.
func isLetter(body message) func(says answer) bool {
	return isText(body["receiver_id"], body["envelope"].(map[string]any)["original_text"])
}

// isText is isLetter for the receiver and the text of a message.
func isText(receiver, text any) func(says answer) bool {
	return func(says answer) bool {
		params := says.object("params")
		return params.text("agent_id") == receiver && params.object("envelope").text("original_text") == text
	}
}

// sendLater posts a message in the background.
func (h *hubProbe) sendLater(from *hubAgent, body message) delivered {
	m := delivered{sentMessage{from: from, to: &hubAgent{id: body["receiver_id"].(string)}, envelope: body["envelope"]}, body,
		make(chan answer, 1)}
	h.tasks.Go(func() { m.answered <- h.write(from.key, "/messages", body) })
	return m
}

// deliver sends a message to the run's agent, and returns the REQUEST that it becomes.
func (h *hubProbe) deliver(from *hubAgent, changes ...func(message)) (work, delivered) {
	body := h.letterToWorker(from, changes...)
	m := h.sendLater(from, body)
	w := h.wantWork("a message", isLetter(body), func() { h.look(m) })
	m.trace = w.says.object("params").text("trace_id")
	return w, m
}

// succeedAfterOffer does the work of a message, and waits for its end.
func (h *hubProbe) succeedAfterOffer(w work, m delivered, output any) {
	m.trace = w.says.object("params").text("trace_id")
	h.takeOn(w)
	h.succeed(w, output)
	h.wantState(m.sentMessage, "delivered")
	h.wait(m)
}

func hubReplies(h *hubProbe) {
	alice := h.one()
	for _, c := range []struct {
		changes []func(message)
		turn    int64
	}{
		{[]func(message){set("envelope.conversation_id", newName()), set("envelope.turn_number", 7)}, 8},
		{[]func(message){set("envelope.conversation_id", newName())}, 2},
	} {
		w, m := h.deliver(alice, c.changes...)
		h.takeOn(w)
		text := newName()
		said := h.succeed(w, map[string]any{"reply": map[string]any{"original_text": text}})
		h.wantState(m.sentMessage, "delivered")
		h.wait(m)
		h.saySigned(said) // a repeat has no effect
		h.sleep(quiet)
		var replies []answer
		for _, row := range h.history(alice) {
			if row.object("envelope").text("original_text") == text {
				replies = append(replies, row)
			}
		}
		sent := m.envelope.(map[string]any)
		h.expect("one reply in the history of the sender, with the sender %s, the conversation_id %v, the turn_number %d and the "+
			"culture en of the agent's card", m.to.id, sent["conversation_id"], c.turn)
		if len(replies) != 1 {
			h.failf("%d replies:\n%s", len(replies), describeRows(replies))
		}
		e := replies[0].object("envelope")
		if e.text("sender_id") != m.to.id || e.text("conversation_id") != sent["conversation_id"] ||
			e.number("turn_number") != float64(c.turn) || e.text("sender_culture") != "en" {
			h.failf("%s", excerpt(replies[0].body, 600))
		}
	}
}

// deepest is the largest depth of a reply that a hub delivers (B-9).
const deepest = 4

func hubStopsLoops(h *hubProbe) {
	me := &hubAgent{id: h.ownWorker()}
	text := newName()
	body := letter(me, me, text+" 0")
	h.tasks.Go(func() { _ = h.asAgent(http.MethodPost, "/messages", body) }) // the REQUEST shows that the hub has taken it
	for depth := range deepest + 1 {
		w := h.wantWork(fmt.Sprintf("a message of depth %d", depth), isText(me.id, fmt.Sprint(text, " ", depth)), nil)
		h.takeOn(w)
		h.succeed(w, map[string]any{"reply": map[string]any{"original_text": fmt.Sprint(text, " ", depth+1)}})
	}
	last := fmt.Sprint(text, " ", deepest+1)
	h.wantNoWork("a reply of depth 5", isText(me.id, last))
	for _, row := range h.rows(h.asAgent(http.MethodGet, "/agent/messages?agent_id="+me.id, nil)) {
		if row.object("envelope").text("original_text") == last {
			h.want(row.text("state") == "failed" && row.text("error_code") == "ERR_RATE_LIMITED", row,
				`the reply of depth 5 with "state":"failed" and "error_code":"ERR_RATE_LIMITED"`)
			return
		}
	}
	h.expect("the reply of depth 5 in the history of the agent, as failed")
	h.failf("it is not there")
}
