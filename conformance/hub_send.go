package conformance

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

var uuid4Form = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// hubSendChecks test POST /messages.
var hubSendChecks = []hubCheck{
	{number: "hub.send.queued", title: "A message to an absent agent gets 202 with the delivery and state queued",
		cites: `HUB "Sending"; H-10`, run: func(h *hubProbe) {
			alice, bob := h.two()
			m := h.send(alice, bob, "to an absent agent")
			h.wantDelivery(m, http.StatusAccepted, "queued", "queued")
			h.want(uuid4Form.MatchString(m.trace), m.answer, "the trace_id is a UUID of version 4")
			h.keepsState(m, "queued")
		}},
	{number: "hub.send.stream", title: "A message to an agent with an open stream gets 200 with delivered_sse and sent",
		cites: `HUB "Sending"; H-10`, run: func(h *hubProbe) {
			alice, bob := h.two()
			s := h.open(bob, "")
			m := h.send(alice, bob, "to an open stream")
			h.wantMessages(s, m)
			h.wantDelivery(m, http.StatusOK, "delivered_sse", "sent")
			h.want(uuid4Form.MatchString(m.trace), m.answer, "the trace_id is a UUID of version 4")
		}},
	{number: "hub.send.form", title: "receiver_id must be an address or a name, and stream a boolean",
		cites: `HUB "Sending"`, run: func(h *hubProbe) {
			alice, bob := h.two()
			for _, value := range []any{true, false} {
				h.sendWith(alice, bob, set("stream", value))
			}
			h.refuseEnvelopes(alice, bob, append(setEach("receiver_id", "", "@", "a@b@c", "a b@c", "ä", "a/b", nil, 1,
				strings.Repeat("a", 127)+"@b", []any{bob.id}), append(setEach("stream", "true", 1, "", []any{}),
				without("receiver_id"))...)...)
		}},
	{number: "hub.send.receiver", title: "A message to an unknown agent is refused with 404 ERR_AGENT_NOT_FOUND",
		cites: `HUB "Sending"`, run: func(h *hubProbe) {
			a := h.one()
			body := letter(a, a, "hello")
			for _, receiver := range []string{"nobody@conformance.example", h.hub.address(), "nobody-here",
				"nobody@did.key"} {
				body["receiver_id"] = receiver
				h.wantNoAgent(h.write(a.key, "/messages", body))
			}
		}},
	{number: "hub.send.sender", title: "Only the agent itself can be the sender",
		cites: `HUB "Sending"`, run: func(h *hubProbe) {
			alice, bob := h.two()
			h.wantError(h.write(alice.key, "/messages", letter(bob, alice, "hello")), http.StatusForbidden,
				"ERR_SENDER_MISMATCH")
			stranger := &hubAgent{id: h.hub.address()}
			h.wantError(h.write(alice.key, "/messages", letter(stranger, bob, "hello")), http.StatusBadRequest,
				"ERR_SENDER_NOT_REGISTERED")
			h.describe("the history of both")
			rows := append(h.history(alice), h.history(bob)...)
			h.expect("no message")
			if len(rows) != 0 {
				h.failf("%s", describeRows(rows))
			}
		}},
	{number: "hub.send.order", title: "A request that breaks two rules gets the answer of the earlier one",
		cites: `HUB "Sending"; H-9`, run: orderOfRules},
	{number: "hub.send.ids", title: "id and timestamp grow strictly, also when several agents send at the same time",
		cites: `HUB "Sending"; H-21`, run: func(h *hubProbe) {
			agents := h.take(3)
			for _, a := range h.inParallel(36, func(i int) answer {
				from, to := agents[i%3], agents[(i+1)%3]
				return h.write(from.key, "/messages", letter(from, to, strconv.Itoa(i)))
			}) {
				h.wantData(a, http.StatusOK, http.StatusAccepted)
			}
			for _, a := range agents {
				h.wantGrowing(h.history(a), 24)
			}
		}},
}

// wantGrowing ends the check unless there are at least this many rows, and their ids and timestamps grow strictly.
func (h *hubProbe) wantGrowing(rows []answer, atLeast int) {
	h.expect("at least %d rows, in the order of id; the timestamps grow too, and all of them differ", atLeast)
	if len(rows) < atLeast {
		h.failf("%d rows", len(rows))
	}
	for i, row := range rows {
		if !timeForm.MatchString(row.text("timestamp")) || row.number("id") < 1 || i > 0 &&
			(row.number("id") <= rows[i-1].number("id") || row.text("timestamp") <= rows[i-1].text("timestamp")) {
			h.failf("%s", describeRows(rows[max(0, i-1):i+1]))
		}
	}
}

// orderOfRules sends messages that break two rules each. The rules, in order: the key, the body, the sender is
// registered, the sender is the key's agent, the Idempotency-Key, the receiver.
func orderOfRules(h *hubProbe) {
	alice, bob := h.two()
	used := http.Header{"Idempotency-Key": {newID("order")}}
	bad := http.Header{"Idempotency-Key": {strings.Repeat("k", 257)}}
	first := letter(alice, bob, "the first message with the key")
	h.accepted(alice, bob, first, h.ask("", http.MethodPost, "/messages", alice.key, used, first))
	invalid, unregistered := set("envelope.x", 1), set("envelope.sender_id", h.hub.address())
	mismatch, nobody := set("envelope.sender_id", bob.id), set("receiver_id", h.hub.address())
	none := func(message) {}
	for _, c := range []struct {
		what   string
		key    string
		header http.Header
		change func(message)
		status int
		code   string
	}{
		{"an unknown key and an invalid body", unknownKey, nil, invalid, 401, "ERR_UNAUTHORIZED"},
		{"an unknown key and an unregistered sender", unknownKey, nil, unregistered, 401, "ERR_UNAUTHORIZED"},
		{"an unknown key and an unknown receiver", unknownKey, nil, nobody, 401, "ERR_UNAUTHORIZED"},
		{"an unknown key and a used Idempotency-Key", unknownKey, used, none, 401, "ERR_UNAUTHORIZED"},
		{"an invalid body and an unregistered sender", alice.key, nil, combine(invalid, unregistered), 400,
			"ERR_VALIDATION"},
		{"an invalid body and another sender", alice.key, nil, combine(invalid, mismatch), 400, "ERR_VALIDATION"},
		{"an invalid body and a used Idempotency-Key", alice.key, used, invalid, 400, "ERR_VALIDATION"},
		{"an invalid body and an unknown receiver", alice.key, nil, combine(invalid, nobody), 400, "ERR_VALIDATION"},
		{"an unregistered sender, who is also not the key's agent", alice.key, nil, unregistered, 400,
			"ERR_SENDER_NOT_REGISTERED"},
		{"an unregistered sender and a used Idempotency-Key", alice.key, used, unregistered, 400,
			"ERR_SENDER_NOT_REGISTERED"},
		{"an unregistered sender and an unknown receiver", alice.key, nil, combine(unregistered, nobody), 400,
			"ERR_SENDER_NOT_REGISTERED"},
		{"another sender and a used Idempotency-Key", alice.key, used, mismatch, 403, "ERR_SENDER_MISMATCH"},
		{"another sender and a malformed Idempotency-Key", alice.key, bad, mismatch, 403, "ERR_SENDER_MISMATCH"},
		{"another sender and an unknown receiver", alice.key, nil, combine(mismatch, nobody), 403,
			"ERR_SENDER_MISMATCH"},
		{"a used Idempotency-Key and an unknown receiver", alice.key, used, nobody, 409, "ERR_IDEMPOTENCY_CONFLICT"},
		{"a malformed Idempotency-Key and an unknown receiver", alice.key, bad, nobody, 400, "ERR_VALIDATION"},
	} {
		body := letter(alice, bob, "breaks two rules")
		c.change(body)
		h.wantError(h.ask(c.what, http.MethodPost, "/messages", c.key, c.header, body), c.status, c.code)
	}
}

// hubIdempotencyChecks test the header Idempotency-Key of POST /messages.
var hubIdempotencyChecks = []hubCheck{
	{number: "hub.idempotency.repeat",
		title: "A repeated request gets the first answer, byte for byte, with Idempotent-Replay, and sends nothing",
		cites: `GATEWAYS "Idempotency-Key"; G-21`, run: func(h *hubProbe) {
			alice, bob := h.two()
			body, key := letter(alice, bob, "sent once"), newID("once")
			first := h.sendKeyed(alice, bob, key, body, nil)
			again := h.sendKeyed(alice, bob, key, body, nil)
			h.wantReplay(again.answer, first.answer)
			spaced := strings.ReplaceAll(string(canonical(body)), `":`, `"`+" :\n")
			h.wantReplay(h.sendKeyed(alice, bob, key, body, []byte(spaced)).answer, first.answer)
			rows := h.history(bob)
			h.expect("one message in the history of the receiver")
			if len(rows) != 1 {
				h.failf("%s", describeRows(rows))
			}
		}},
	{number: "hub.idempotency.conflict",
		title: "The same Idempotency-Key with another body gets 409 ERR_IDEMPOTENCY_CONFLICT",
		cites: `GATEWAYS "Idempotency-Key"; G-22`, run: func(h *hubProbe) {
			alice, bob := h.two()
			key := newID("conflict")
			first := h.sendKeyed(alice, bob, key, letter(alice, bob, "the first"), nil)
			h.wantError(h.askIdempotent(alice, key, letter(alice, bob, "another")), http.StatusConflict,
				"ERR_IDEMPOTENCY_CONFLICT")
			h.wantReplay(h.sendKeyed(alice, bob, key, letter(alice, bob, "the first"), nil).answer, first.answer)
			h.rowOf(bob, first)
		}},
	{number: "hub.idempotency.callers", title: "The same Idempotency-Key of two agents is two keys",
		cites: `GATEWAYS "Idempotency-Key"; G-23`, run: func(h *hubProbe) {
			alice, bob, carol := h.three()
			key := newID("shared")
			first := h.sendKeyed(alice, carol, key, letter(alice, carol, "from one agent"), nil)
			second := h.sendKeyed(bob, carol, key, letter(bob, carol, "from another agent"), nil)
			h.want(first.trace != second.trace, second.answer, "another message")
			h.rowOf(carol, first)
			h.rowOf(carol, second)
		}},
	{number: "hub.idempotency.refusal", title: "A 4xx is not kept: the Idempotency-Key works once the receiver exists",
		cites: `GATEWAYS "Idempotency-Key"; G-24, H-35`, run: func(h *hubProbe) {
			alice := h.one()
			bob := &hubAgent{id: h.hub.address()}
			key, body := newID("later"), letter(alice, bob, "to an agent that does not exist yet")
			h.wantNoAgent(h.askIdempotent(alice, key, body))
			h.wantNoAgent(h.askIdempotent(alice, key, body))
			bob, _ = h.register(bob.id)
			first := h.sendKeyed(alice, bob, key, body, nil)
			h.want(first.answer.header.Get("Idempotent-Replay") == "", first.answer, "no Idempotent-Replay")
			h.wantReplay(h.sendKeyed(alice, bob, key, body, nil).answer, first.answer)
			h.rowOf(bob, first)
		}},
	{number: "hub.idempotency.form", title: "An Idempotency-Key has 1 to 256 printable ASCII characters",
		cites: `GATEWAYS "Idempotency-Key"`, run: func(h *hubProbe) {
			alice, bob := h.two()
			unique := newID("form")
			for _, key := range []string{"!" + unique[len(unique)-8:], unique + strings.Repeat("k", 256-len(unique)),
				unique + ` !"#$%&'()*+,-./:;<=>?@[\]^_{|}~`} {
				h.sendKeyed(alice, bob, key, letter(alice, bob, "hello"), nil)
			}
			for _, key := range []string{"", strings.Repeat("k", 257), unique + "é", unique + "\x80", "a\tb"} {
				h.wantInvalid(h.askIdempotent(alice, key, letter(alice, bob, "hello")))
			}
		}},
	{number: "hub.idempotency.race",
		title: "Of several equal requests at the same time, one sends, and all get its answer",
		cites: `GATEWAYS "Idempotency-Key"; G-21`, run: func(h *hubProbe) {
			alice, bob := h.two()
			key, body := newID("race"), letter(alice, bob, "sent once")
			answers := h.inParallel(8, func(int) answer { return h.askIdempotent(alice, key, body) })
			first := h.accepted(alice, bob, body, answers[0])
			replays := 0
			for _, answered := range answers {
				h.want(string(answered.body) == string(answers[0].body) && answered.status == answers[0].status,
					answered, "the same answer as the other requests: %s", answers[0])
				if answered.header.Get("Idempotent-Replay") == "true" {
					replays++
				}
			}
			h.expect("Idempotent-Replay: true in 7 of 8 answers")
			if replays != 7 {
				h.failf("in %d answers", replays)
			}
			h.rowOf(bob, first)
			if rows := h.history(bob); len(rows) != 1 {
				h.failf("%d messages: %s", len(rows), describeRows(rows))
			}
		}},
}

// askIdempotent posts a body to /messages with an Idempotency-Key.
func (h *hubProbe) askIdempotent(from *hubAgent, key string, body any) answer {
	return h.ask(fmt.Sprintf("with Idempotency-Key: %q", key), http.MethodPost, "/messages", from.key,
		http.Header{"Idempotency-Key": {key}}, body)
}

// sendKeyed sends a message with an Idempotency-Key. The hub must accept it. text is the body as it is sent; nil: the
// compact form.
func (h *hubProbe) sendKeyed(from, to *hubAgent, key string, body message, text []byte) sentMessage {
	if text == nil {
		text = canonical(body)
	}
	return h.accepted(from, to, body, h.askIdempotent(from, key, text))
}

// wantReplay ends the check unless a is the answer first, again.
func (h *hubProbe) wantReplay(a, first answer) {
	h.want(a.status == first.status && string(a.body) == string(first.body) &&
		a.header.Get("Idempotent-Replay") == "true", a, "Idempotent-Replay: true, and the first answer again: %s",
		first)
}
