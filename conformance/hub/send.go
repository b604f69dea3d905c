package hub

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

var uuid4Form = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// hubSendChecks test POST /messages.
var hubSendChecks = []hubCheck{
	{Number: "hub.send.queued", Title: "A message to an absent agent gets 202 with the delivery and state queued",
		Cites: `HUB "Sending"; H-10`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			m := h.send(alice, bob, "to an absent agent")
			h.wantDelivery(m, http.StatusAccepted, "queued", "queued")
			h.Want(uuid4Form.MatchString(m.trace), m.answer, "the trace_id is a UUID of version 4")
			h.keepsState(m, "queued")
		}},
	{Number: "hub.send.stream", Title: "A message to an agent with an open stream gets 200 with delivered_sse and sent",
		Cites: `HUB "Sending"; H-10`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			s := h.open(bob, "")
			m := h.send(alice, bob, "to an open stream")
			h.wantMessages(s, m)
			h.wantDelivery(m, http.StatusOK, "delivered_sse", "sent")
			h.Want(uuid4Form.MatchString(m.trace), m.answer, "the trace_id is a UUID of version 4")
		}},
	{Number: "hub.send.form", Title: "receiver_id must be an address or a name, and stream a boolean",
		Cites: `HUB "Sending"`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			for _, value := range []any{true, false} {
				h.sendWith(alice, bob, kit.Set("stream", value))
			}
			h.refuseEnvelopes(alice, bob, append(setEach("receiver_id", "", "@", "a@b@c", "a b@c", "ä", "a/b", nil, 1,
				strings.Repeat("a", 127)+"@b", []any{bob.id}), append(setEach("stream", "true", 1, "", []any{}),
				kit.Without("receiver_id"))...)...)
		}},
	{Number: "hub.send.receiver", Title: "A message to an unknown agent is refused with 404 ERR_AGENT_NOT_FOUND",
		Cites: `HUB "Sending"`, Run: func(h *hubProbe) {
			a := h.one()
			body := letter(a, a, "hello")
			for _, receiver := range []string{"nobody@conformance.example", h.hub.address(), "nobody-here",
				"nobody@did.key"} {
				body["receiver_id"] = receiver
				h.wantNoAgent(h.Write(a.key, "/messages", body))
			}
		}},
	{Number: "hub.send.sender", Title: "Only the agent itself can be the sender",
		Cites: `HUB "Sending"`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			h.wantError(h.Write(alice.key, "/messages", letter(bob, alice, "hello")), http.StatusForbidden,
				"ERR_SENDER_MISMATCH")
			stranger := &hubAgent{id: h.hub.address()}
			h.wantError(h.Write(alice.key, "/messages", letter(stranger, bob, "hello")), http.StatusBadRequest,
				"ERR_SENDER_NOT_REGISTERED")
			h.Describe("the history of both")
			rows := append(h.history(alice), h.history(bob)...)
			h.Expect("no message")
			if len(rows) != 0 {
				h.Failf("%s", kit.DescribeRows(rows))
			}
		}},
	{Number: "hub.send.order", Title: "A request that breaks two rules gets the answer of the earlier one",
		Cites: `HUB "Sending"; H-9`, Run: orderOfRules},
	{Number: "hub.send.ids", Title: "id and timestamp grow strictly, also when several agents send at the same time",
		Cites: `HUB "Sending"; H-21`, Run: func(h *hubProbe) {
			agents := h.take(3)
			for _, a := range h.InParallel(36, func(i int) kit.Answer {
				from, to := agents[i%3], agents[(i+1)%3]
				return h.Write(from.key, "/messages", letter(from, to, strconv.Itoa(i)))
			}) {
				h.wantData(a, http.StatusOK, http.StatusAccepted)
			}
			for _, a := range agents {
				h.wantGrowing(h.history(a), 24)
			}
		}},
}

// wantGrowing ends the check unless there are at least this many rows, and their ids and timestamps grow strictly.
func (h *hubProbe) wantGrowing(rows []kit.Answer, atLeast int) {
	h.Expect("at least %d rows, in the order of id; the timestamps grow too, and all of them differ", atLeast)
	if len(rows) < atLeast {
		h.Failf("%d rows", len(rows))
	}
	for i, row := range rows {
		if !kit.TimeForm.MatchString(row.Text("timestamp")) || row.Number("id") < 1 || i > 0 &&
			(row.Number("id") <= rows[i-1].Number("id") || row.Text("timestamp") <= rows[i-1].Text("timestamp")) {
			h.Failf("%s", kit.DescribeRows(rows[max(0, i-1):i+1]))
		}
	}
}

// orderOfRules sends messages that break two rules each. The rules, in order: the key, the body, the sender is
// registered, the sender is the key's agent, the Idempotency-Key, the receiver.
func orderOfRules(h *hubProbe) {
	alice, bob := h.two()
	used := http.Header{"Idempotency-Key": {kit.NewID("order")}}
	bad := http.Header{"Idempotency-Key": {strings.Repeat("k", 257)}}
	first := letter(alice, bob, "the first message with the key")
	h.accepted(alice, bob, first, h.Ask("", http.MethodPost, "/messages", alice.key, used, first))
	invalid, unregistered := kit.Set("envelope.x", 1), kit.Set("envelope.sender_id", h.hub.address())
	mismatch, nobody := kit.Set("envelope.sender_id", bob.id), kit.Set("receiver_id", h.hub.address())
	none := func(kit.Message) {}
	for _, c := range []struct {
		what   string
		key    string
		header http.Header
		change func(kit.Message)
		status int
		code   string
	}{
		{"an unknown key and an invalid body", unknownKey, nil, invalid, 401, "ERR_UNAUTHORIZED"},
		{"an unknown key and an unregistered sender", unknownKey, nil, unregistered, 401, "ERR_UNAUTHORIZED"},
		{"an unknown key and an unknown receiver", unknownKey, nil, nobody, 401, "ERR_UNAUTHORIZED"},
		{"an unknown key and a used Idempotency-Key", unknownKey, used, none, 401, "ERR_UNAUTHORIZED"},
		{"an invalid body and an unregistered sender", alice.key, nil, kit.Combine(invalid, unregistered), 400,
			"ERR_VALIDATION"},
		{"an invalid body and another sender", alice.key, nil, kit.Combine(invalid, mismatch), 400, "ERR_VALIDATION"},
		{"an invalid body and a used Idempotency-Key", alice.key, used, invalid, 400, "ERR_VALIDATION"},
		{"an invalid body and an unknown receiver", alice.key, nil, kit.Combine(invalid, nobody), 400, "ERR_VALIDATION"},
		{"an unregistered sender, who is also not the key's agent", alice.key, nil, unregistered, 400,
			"ERR_SENDER_NOT_REGISTERED"},
		{"an unregistered sender and a used Idempotency-Key", alice.key, used, unregistered, 400,
			"ERR_SENDER_NOT_REGISTERED"},
		{"an unregistered sender and an unknown receiver", alice.key, nil, kit.Combine(unregistered, nobody), 400,
			"ERR_SENDER_NOT_REGISTERED"},
		{"another sender and a used Idempotency-Key", alice.key, used, mismatch, 403, "ERR_SENDER_MISMATCH"},
		{"another sender and a malformed Idempotency-Key", alice.key, bad, mismatch, 403, "ERR_SENDER_MISMATCH"},
		{"another sender and an unknown receiver", alice.key, nil, kit.Combine(mismatch, nobody), 403,
			"ERR_SENDER_MISMATCH"},
		{"a used Idempotency-Key and an unknown receiver", alice.key, used, nobody, 409, "ERR_IDEMPOTENCY_CONFLICT"},
		{"a malformed Idempotency-Key and an unknown receiver", alice.key, bad, nobody, 400, "ERR_VALIDATION"},
	} {
		body := letter(alice, bob, "breaks two rules")
		c.change(body)
		h.wantError(h.Ask(c.what, http.MethodPost, "/messages", c.key, c.header, body), c.status, c.code)
	}
}

// hubIdempotencyChecks test the header Idempotency-Key of POST /messages.
var hubIdempotencyChecks = []hubCheck{
	{Number: "hub.idempotency.repeat",
		Title: "A repeated request gets the first answer, byte for byte, with Idempotent-Replay, and sends nothing",
		Cites: `GATEWAYS "Idempotency-Key"; G-21`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			body, key := letter(alice, bob, "sent once"), kit.NewID("once")
			first := h.sendKeyed(alice, bob, key, body, nil)
			again := h.sendKeyed(alice, bob, key, body, nil)
			h.wantReplay(again.answer, first.answer)
			spaced := strings.ReplaceAll(string(kit.Canonical(body)), `":`, `"`+" :\n")
			h.wantReplay(h.sendKeyed(alice, bob, key, body, []byte(spaced)).answer, first.answer)
			rows := h.history(bob)
			h.Expect("one message in the history of the receiver")
			if len(rows) != 1 {
				h.Failf("%s", kit.DescribeRows(rows))
			}
		}},
	{Number: "hub.idempotency.conflict",
		Title: "The same Idempotency-Key with another body gets 409 ERR_IDEMPOTENCY_CONFLICT",
		Cites: `GATEWAYS "Idempotency-Key"; G-22`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			key := kit.NewID("conflict")
			first := h.sendKeyed(alice, bob, key, letter(alice, bob, "the first"), nil)
			h.wantError(h.askIdempotent(alice, key, letter(alice, bob, "another")), http.StatusConflict,
				"ERR_IDEMPOTENCY_CONFLICT")
			h.wantReplay(h.sendKeyed(alice, bob, key, letter(alice, bob, "the first"), nil).answer, first.answer)
			h.rowOf(bob, first)
		}},
	{Number: "hub.idempotency.callers", Title: "The same Idempotency-Key of two agents is two keys",
		Cites: `GATEWAYS "Idempotency-Key"; G-23`, Run: func(h *hubProbe) {
			alice, bob, carol := h.three()
			key := kit.NewID("shared")
			first := h.sendKeyed(alice, carol, key, letter(alice, carol, "from one agent"), nil)
			second := h.sendKeyed(bob, carol, key, letter(bob, carol, "from another agent"), nil)
			h.Want(first.trace != second.trace, second.answer, "another message")
			h.rowOf(carol, first)
			h.rowOf(carol, second)
		}},
	{Number: "hub.idempotency.refusal", Title: "A 4xx is not kept: the Idempotency-Key works once the receiver exists",
		Cites: `GATEWAYS "Idempotency-Key"; G-24, H-35`, Run: func(h *hubProbe) {
			alice := h.one()
			bob := &hubAgent{id: h.hub.address()}
			key, body := kit.NewID("later"), letter(alice, bob, "to an agent that does not exist yet")
			h.wantNoAgent(h.askIdempotent(alice, key, body))
			h.wantNoAgent(h.askIdempotent(alice, key, body))
			bob, _ = h.register(bob.id)
			first := h.sendKeyed(alice, bob, key, body, nil)
			h.Want(first.answer.Header.Get("Idempotent-Replay") == "", first.answer, "no Idempotent-Replay")
			h.wantReplay(h.sendKeyed(alice, bob, key, body, nil).answer, first.answer)
			h.rowOf(bob, first)
		}},
	{Number: "hub.idempotency.form", Title: "An Idempotency-Key has 1 to 256 printable ASCII characters",
		Cites: `GATEWAYS "Idempotency-Key"`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			unique := kit.NewID("form")
			for _, key := range []string{"!" + unique[len(unique)-8:], unique + strings.Repeat("k", 256-len(unique)),
				unique + ` !"#$%&'()*+,-./:;<=>?@[\]^_{|}~`} {
				h.sendKeyed(alice, bob, key, letter(alice, bob, "hello"), nil)
			}
			for _, key := range []string{"", strings.Repeat("k", 257), unique + "é", unique + "\x80", "a\tb"} {
				h.wantInvalid(h.askIdempotent(alice, key, letter(alice, bob, "hello")))
			}
		}},
	{Number: "hub.idempotency.race",
		Title: "Of several equal requests at the same time, one sends, and all get its answer",
		Cites: `GATEWAYS "Idempotency-Key"; G-21`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			key, body := kit.NewID("race"), letter(alice, bob, "sent once")
			answers := h.InParallel(8, func(int) kit.Answer { return h.askIdempotent(alice, key, body) })
			first := h.accepted(alice, bob, body, answers[0])
			replays := 0
			for _, answered := range answers {
				h.Want(string(answered.Body) == string(answers[0].Body) && answered.Status == answers[0].Status,
					answered, "the same answer as the other requests: %s", answers[0])
				if answered.Header.Get("Idempotent-Replay") == "true" {
					replays++
				}
			}
			h.Expect("Idempotent-Replay: true in 7 of 8 answers")
			if replays != 7 {
				h.Failf("in %d answers", replays)
			}
			h.rowOf(bob, first)
			if rows := h.history(bob); len(rows) != 1 {
				h.Failf("%d messages: %s", len(rows), kit.DescribeRows(rows))
			}
		}},
}

// askIdempotent posts a body to /messages with an Idempotency-Key.
func (h *hubProbe) askIdempotent(from *hubAgent, key string, body any) kit.Answer {
	return h.Ask(fmt.Sprintf("with Idempotency-Key: %q", key), http.MethodPost, "/messages", from.key,
		http.Header{"Idempotency-Key": {key}}, body)
}

// sendKeyed sends a message with an Idempotency-Key. The hub must accept it. text is the body as it is sent; nil: the
// compact form.
func (h *hubProbe) sendKeyed(from, to *hubAgent, key string, body kit.Message, text []byte) sentMessage {
	if text == nil {
		text = kit.Canonical(body)
	}
	return h.accepted(from, to, body, h.askIdempotent(from, key, text))
}

// wantReplay ends the check unless a is the answer first, again.
func (h *hubProbe) wantReplay(a, first kit.Answer) {
	h.Want(a.Status == first.Status && string(a.Body) == string(first.Body) &&
		a.Header.Get("Idempotent-Replay") == "true", a, "Idempotent-Replay: true, and the first answer again: %s",
		first)
}
