package hub

import (
	"fmt"
	"net/http"
	"strings"
	"unicode/utf16"

	"github.com/agora-relay/agora/conformance/kit"
)

// wide is a character that has one UTF-16 code unit and three bytes. control has one code unit, and six characters in
// JSON.
const (
	wide    = "中"
	control = "\x01"
)

// units returns the length of a text in UTF-16 code units.
func units(text string) int { return len(utf16.Encode([]rune(text))) }

// hubEnvelopeChecks test the fields of envelopes.
var hubEnvelopeChecks = []hubCheck{
	{Number: "hub.envelope.strict", Title: "An unknown member of an envelope is refused, and so is a missing one",
		Cites: `HUB "Endpoints"; H-2`, Run: refusesEnvelopes(kit.Set("envelope.x", 1),
			kit.Set("envelope.receiver_id", "bob@conformance.example"), kit.Set("envelope.Sender_id", "a@b"),
			kit.Set("envelope.timestamp", "2026-03-20T10:00:00.000Z"), kit.Set("envelope.agent_card", nil),
			kit.Without("envelope.chorus_version"), kit.Without("envelope.sender_id"), kit.Without("envelope.original_text"),
			kit.Without("envelope.sender_culture"), kit.Without("envelope"), kit.Set("envelope", nil), kit.Set("envelope",
				[]any{}),
			kit.Set("envelope", "hello"))},
	{Number: "hub.envelope.version", Title: `chorus_version must be "0.4"`, Cites: `HUB "Endpoints"`,
		Run: refusesEnvelopes(setEach("envelope.chorus_version", "0.3", "0.5", "0.4.0", "", " 0.4", 0.4, nil)...)},
	{Number: "hub.envelope.sender", Title: "sender_id must be an address", Cites: `HUB "Endpoints"`,
		Run: refusesEnvelopes(setEach("envelope.sender_id", "", "alice", "@", "a@b@c", "a b@c", "alice@", "ä@b",
			strings.Repeat("a", 127)+"@b", nil, 1, map[string]any{"id": "a@b"})...)},
	{Number: "hub.envelope.culture", Title: "sender_culture must be a culture", Cites: `HUB "Endpoints"`,
		Run: func(h *hubProbe) {
			alice, bob := h.two()
			for _, culture := range goodCultures {
				h.sendWith(alice, bob, kit.Set("envelope.sender_culture", culture))
			}
			h.refuseEnvelopes(alice, bob, setEach("envelope.sender_culture", badCultures...)...)
		}},
	{Number: "hub.envelope.text",
		Title: "original_text has 1 to 10,000 UTF-16 code units", Cites: `HUB "Endpoints"; H-1`,
		Run: boundsOf("original_text", 1, 10_000)},
	{Number: "hub.envelope.context", Title: "cultural_context has 10 to 500 UTF-16 code units",
		Cites: `HUB "Endpoints"; H-1`, Run: boundsOf("cultural_context", 10, 500)},
	{Number: "hub.envelope.conversation", Title: "conversation_id has 0 to 64 UTF-16 code units",
		Cites: `HUB "Endpoints"; H-1`, Run: boundsOf("conversation_id", 0, 64)},
	{Number: "hub.envelope.turn", Title: "turn_number is an integer from 1 to 2⁵³−1", Cites: `HUB "Endpoints"; H-1`,
		Run: func(h *hubProbe) {
			alice, bob := h.two()
			for _, turn := range []any{1, 2, 1<<53 - 1} {
				h.sendWith(alice, bob, kit.Set("envelope.turn_number", turn))
			}
			h.refuseEnvelopes(
				alice,
				bob,
				setEach("envelope.turn_number", 0, -1, 1.5, 1<<53, 1e300, "1", true, nil, []any{1})...)
		}},
	{Number: "hub.envelope.size", Title: "An envelope has at most 60,000 UTF-16 code units as compact JSON",
		Cites: `HUB "Endpoints"; H-1`, Run: envelopeSize},
	{Number: "hub.envelope.unchanged",
		Title: "An envelope is delivered as it was sent, by the stream and in the history",
		Cites: `HUB "Endpoints"`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			s := h.open(bob, "")
			for _, text := range []string{"<a href=\"x\">&amp;'\\/", "a\nb\r\nc\td", "\x01\u001f\u007f",
				kit.Astral + wide + "é" + "e\u0301",
				"\u2028\u2029\ufeff\ufffe\uffff", "\u202egnp.exe\u200b", "data: x\n\nevent: closed\ndata: {}\n\n",
				"${7*7}{{7*7}}"} {
				m := h.sendWith(alice, bob, kit.Set("envelope.original_text", text),
					kit.Set("envelope.cultural_context", text+strings.Repeat(".", 10)),
					kit.Set("envelope.conversation_id", text), kit.Set("envelope.turn_number", 1<<53-1))
				f, data, ok := h.messageWithin(s, kit.PromptLimit)
				h.Expect("the envelope as it was sent: %s", kit.Canonical(m.envelope))
				if !ok || !kit.SameJSON(data.Members["envelope"], m.envelope) {
					h.Failf("on the stream: %s", kit.Excerpt([]byte(f.raw), 600))
				}
				if row := h.rowOf(bob, m); !kit.SameJSON(row.Members["envelope"], m.envelope) {
					h.Failf("in the history: %s", kit.Excerpt(row.Body, 600))
				}
			}
		}},
}

// setEach returns a change for each value of a member.
func setEach(path string, values ...any) (changes []func(kit.Message)) {
	for _, value := range values {
		changes = append(changes, kit.Set(path, value))
	}
	return changes
}

// sendWith sends a short message with these changes. The hub must accept it.
func (h *hubProbe) sendWith(from, to *hubAgent, changes ...func(kit.Message)) sentMessage {
	body := letter(from, to, "hello")
	kit.Combine(changes...)(body)
	return h.sendBody(from, to, body)
}

// refusesEnvelopes returns a check that sends a good message, which the hub must take, and one with each of these
// changes, which it must refuse.
func refusesEnvelopes(changes ...func(kit.Message)) func(*hubProbe) {
	return func(h *hubProbe) {
		alice, bob := h.two()
		h.refuseEnvelopes(alice, bob, changes...)
	}
}

func (h *hubProbe) refuseEnvelopes(from, to *hubAgent, changes ...func(kit.Message)) {
	h.send(from, to, "a good message")
	before := len(h.history(to))
	for _, change := range changes {
		body := letter(from, to, "hello")
		change(body)
		h.wantInvalid(h.Write(from.key, "/messages", body))
	}
	h.Describe("the history of the receiver")
	rows := h.history(to)
	h.Expect("no refused message")
	if len(rows) != before {
		h.Failf("%s", kit.DescribeRows(rows))
	}
}

// boundsOf returns a check of both sides of the bounds on a text, in UTF-16 code units. Bytes and characters would give
// other bounds.
func boundsOf(member string, shortest, longest int) func(*hubProbe) {
	return func(h *hubProbe) {
		alice, bob := h.two()
		path := "envelope." + member
		texts := []string{strings.Repeat("a", shortest), strings.Repeat(wide, shortest), strings.Repeat("a", longest),
			strings.Repeat(wide, longest), strings.Repeat(kit.Astral, longest/2),
			"a" + strings.Repeat(kit.Astral, longest/2-1) + "b"}
		if shortest > 1 {
			texts = append(texts, strings.Repeat(kit.Astral, shortest/2))
		}
		for _, text := range texts {
			m := h.sendWith(alice, bob, kit.Set(path, text))
			row := h.rowOf(bob, m)
			h.Want(kit.SameJSON(row.Members["envelope"], m.envelope), row, "%s with %d code units, unchanged", member,
				units(text))
		}
		refused := []any{strings.Repeat("a", longest+1), strings.Repeat(wide, longest+1),
			strings.Repeat(kit.Astral, longest/2) + "a", strings.Repeat(kit.Astral, longest/2+1),
			strings.Repeat(kit.Astral, longest), 1, nil,
			[]any{"a"}}
		if shortest > 0 {
			refused = append(refused, "", strings.Repeat("a", shortest-1), strings.Repeat(wide, shortest-1),
				strings.Repeat(kit.Astral, (shortest-1)/2))
		}
		h.refuseEnvelopes(alice, bob, setEach(path, refused...)...)
	}
}

// envelopeSize sends envelopes at both sides of the limit on their size. Control characters make a short text long in
// JSON.
func envelopeSize(h *hubProbe) {
	alice, bob := h.two()
	ofSize := func(size int) kit.Message {
		body := letter(alice, bob, "")
		rest := size - len(kit.Canonical(body["envelope"]))
		kit.Set("envelope.original_text", strings.Repeat(control, rest/6)+strings.Repeat("a", rest%6))(body)
		if got := len(kit.Canonical(body["envelope"])); got != size {
			panic(fmt.Sprintf("the envelope has %d bytes instead of %d", got, size))
		}
		return body
	}
	h.sendBody(alice, bob, ofSize(60_000))
	h.wantError(h.Write(alice.key, "/messages", ofSize(60_001)), http.StatusBadRequest, "ERR_VALIDATION")
	h.wantError(h.Write(alice.key, "/messages", ofSize(60_006)), http.StatusBadRequest, "ERR_VALIDATION")
	// More than 60,000 bytes, but fewer code units.
	m := h.sendWith(alice, bob, kit.Set("envelope.original_text", strings.Repeat(control, 9_700)+strings.Repeat(wide,
		300)),
		kit.Set("envelope.cultural_context", strings.Repeat(wide, 500)))
	h.Describe("an envelope with %d bytes and %d code units", len(kit.Canonical(m.envelope)),
		units(string(kit.Canonical(m.envelope))))
	h.rowOf(bob, m)
}
