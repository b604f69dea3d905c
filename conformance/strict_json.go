package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/agora-relay/agora/envelope"
)

var (
	invalid      = refused(http.StatusBadRequest, envelope.CodeInvalidRequest)
	invalidDID   = refused(http.StatusBadRequest, envelope.CodeInvalidDID)
	badSignature = refused(http.StatusForbidden, envelope.CodeInvalidSignature)
	tooLarge     = refused(http.StatusRequestEntityTooLarge, envelope.CodePayloadTooLarge)
)

const wireForm = "PROTOCOL §1 "

// jsonChecks are about the text of a body. What a careless parser would make of each refused one is a message that was
// properly signed, so a relay that is careless accepts it.
var jsonChecks = []Check{
	{Number: "S-1", Title: "An envelope may come bare or as {\"envelope\":{…}}, and is delivered bare", Cites: wireForm + "body", run: accepts(
		variant{what: "the envelope as the body"},
		variant{what: "{\"envelope\":…} around the envelope", text: func(body string) string { return `{"envelope":` + body + `}` }},
	)},
	{Number: "S-2", Title: "A body that is no JSON object is refused", Cites: wireForm + "body", run: refuses(invalid,
		variant{what: "an empty body", text: always("")},
		variant{what: "a body that is no JSON", text: always("hello")},
		variant{what: "an array around the envelope", text: func(body string) string { return "[" + body + "]" }},
		variant{what: "the envelope as a JSON string", text: func(body string) string { return string(canonical(body)) }},
		variant{what: "null", text: always("null")},
		variant{what: "half a body", text: func(body string) string { return body[:len(body)/2] }},
	)},
	{Number: "S-3", Title: "A byte order mark is refused", Cites: wireForm + "body", run: refuses(invalid,
		variant{what: "a byte order mark before the body", text: func(body string) string { return "\ufeff" + body }})},
	{Number: "S-4", Title: "Data after the envelope is refused", Cites: wireForm + "JSON", run: refuses(invalid,
		variant{what: "a second object after the body", text: func(body string) string { return body + "{}" }},
		variant{what: "a letter after the body", text: func(body string) string { return body + "x" }},
		variant{what: "a zero byte after the body", text: func(body string) string { return body + "\x00" }},
	)},
	{Number: "S-5", Title: "A member name that stands twice in an object is refused, at any depth", Cites: wireForm + "JSON", run: refuses(invalid,
		variant{what: "two ids, the last one signed", text: replace(`{`, `{"id":"msg_other",`)},
		variant{what: "two ids, the first one signed", text: func(body string) string { return strings.TrimSuffix(body, "}") + `,"id":"msg_other"}` }},
		variant{what: "two request_ids in payload", text: replace(`"payload":{`, `"payload":{"intent":"other",`)},
		variant{what: "two equal members deep in params", edit: set("payload.params", map[string]any{"list": []any{map[string]any{"x": 1}}}),
			text: replace(`{"x":1}`, `{"x":0,"x":1}`)},
	)},
	{Number: "S-6", Title: "Names are compared after unescaping", Cites: wireForm + "JSON", run: refuses(invalid,
		variant{what: `id and \u0069d`, text: replace(`{`, `{"\u0069d":"msg_other",`)})},
	{Number: "S-7", Title: "Half of a surrogate pair is refused", Cites: wireForm + "JSON", run: refuses(invalid,
		variant{what: `\ud800 alone`, edit: set("payload.params.text", "\ufffd"), text: replace("\ufffd", `\ud800`)},
		variant{what: `\udc00 alone`, edit: set("payload.params.text", "\ufffd"), text: replace("\ufffd", `\udc00`)},
		variant{what: `a lone surrogate in a name`, edit: set("payload.\ufffd", 1), text: replace("\ufffd", `\ud8ff`)},
	)},
	{Number: "S-8", Title: "Invalid UTF-8 is refused", Cites: wireForm + "JSON", run: refuses(invalid,
		variant{what: "the byte ff in a string", edit: set("payload.params.text", "\ufffd"), text: replace("\ufffd", "\xff")},
		variant{what: "an overlong slash", edit: set("payload.params.text", "\ufffd\ufffd"), text: replace("\ufffd\ufffd", "\xc0\xaf")},
		variant{what: "a surrogate in UTF-8", edit: set("payload.params.text", "\ufffd\ufffd\ufffd"), text: replace("\ufffd\ufffd\ufffd", "\xed\xa0\x80")},
	)},
	{Number: "S-9", Title: "Noncharacters and zero characters in strings are allowed", Cites: wireForm + "JSON", run: accepts(
		variant{what: "U+FFFF in a string", edit: set("payload.params.text", "\uffff")},
		variant{what: "U+FDD0 and U+0000 in a string", edit: set("payload.params.text", "\ufdd0\u0000")},
	)},
	{Number: "S-10", Title: "A number that no finite double holds, and more than 1,000 costly numbers, are refused", Cites: wireForm + "JSON; numbers", run: refuses(invalid,
		variant{what: "1e400", edit: set("payload.params.n", 1), text: replace(`{"n":1}`, `{"n":1e400}`)},
		variant{what: "-1e309", edit: set("payload.params.n", 1), text: replace(`{"n":1}`, `{"n":-1e309}`)},
		variant{what: "1,001 numbers below 1e-307", edit: set("payload.params.n", make([]int, 1001)), text: replace(listed(1001, "0"), listed(1001, "1e-400"))},
		variant{what: "1,001 numbers of 18 significant digits", edit: set("payload.params.n", json.RawMessage(listed(1001, "1"))),
			text: replace(listed(1001, "1"), listed(1001, "1.00000000000000001"))},
	)},
	{Number: "S-11", Title: "JSON's grammar is kept", Cites: wireForm + "JSON", run: refuses(invalid,
		variant{what: "a number with a leading zero", edit: set("payload.params.n", 1), text: replace(`{"n":1}`, `{"n":01}`)},
		variant{what: "a number with a plus", edit: set("payload.params.n", 1), text: replace(`{"n":1}`, `{"n":+1}`)},
		variant{what: "NaN", edit: set("payload.params.n", nil), text: replace(`{"n":null}`, `{"n":NaN}`)},
		variant{what: "a comma before the end", text: func(body string) string { return strings.TrimSuffix(body, "}") + ",}" }},
		variant{what: "a comment", text: replace(`{`, `{/**/`)},
		variant{what: "a line break inside a string", edit: set("payload.params.text", "a\nb"), text: replace(`a\nb`, "a\nb")},
		variant{what: "single quotes", text: replace(`"version"`, `'version'`)},
	)},
	{Number: "S-12", Vectors: "canonicalize.json", Title: "What is delivered is the RFC 8785 form, byte by byte", Cites: wireForm + "Signature", run: deliveredCanonical},
	{Number: "S-13", Vectors: "canonicalize.json", Title: "Digits beyond a double's precision vanish, and the signature is asked after that", Cites: wireForm + "JSON",
		run: accepts(
			variant{what: "0.1 with 30 digits", edit: set("payload.params.n", 0.1), text: replace(`0.1`, `0.100000000000000000000000000001`)},
			variant{what: "2^53 written as 9007199254740993", edit: set("payload.params.n", 9007199254740992), text: replace(`9007199254740992`, `9007199254740993`)},
			variant{what: "1e-400, which is 0", edit: set("payload.params.n", 0), text: replace(`{"n":0}`, `{"n":1e-400}`)},
			variant{what: "1,000 numbers below 1e-307", edit: set("payload.params.n", make([]int, 1000)), text: replace(listed(1000, "0"), listed(1000, "1e-400"))},
			variant{what: "2,000 numbers of 17 significant digits with zeros on both sides", edit: set("payload.params.n", json.RawMessage(listed(2000, "0.012345678901234567"))),
				text: replace(listed(2000, "0.012345678901234567"), listed(2000, "0.01234567890123456700"))},
		)},
	{Number: "S-14", Title: "A body may nest 64 levels deep", Cites: wireForm + "body", run: accepts(
		variant{what: "64 levels of arrays and objects", edit: set("payload.params", nested(62))})},
	{Number: "S-15", Title: "A body that nests deeper than 64 levels is refused", Cites: wireForm + "body", run: refuses(invalid,
		variant{what: "65 levels of arrays and objects", edit: set("payload.params", nested(63))},
		variant{what: "a thousand levels", edit: set("payload.params", nested(998))},
		variant{what: "100 000 levels", text: always(strings.Repeat("[", 100_000))},
	)},
	{Number: "S-16", Title: "The largest body is accepted, one byte more is 413", Cites: wireForm + "body", run: sizes},
	{Number: "S-17", Title: "A top-level name that differs from a known one only by case is refused", Cites: wireForm + "member names", run: refuses(invalid,
		variant{what: "Type beside type", edit: set("Type", "OFFER")},
		variant{what: "ſig (with a long s) beside sig", edit: set("ſig", "x")},
		variant{what: "SENDER beside sender", edit: set("SENDER", map[string]any{})},
		variant{what: "Ts instead of ts", edit: func(m message) { m["Ts"] = m["ts"]; delete(m, "ts") }},
		variant{what: "thread with a capital T instead of thread", edit: func(m message) { m["Thread"] = m["thread"]; delete(m, "thread") }},
	)},
	{Number: "S-18", Title: "Unknown members are allowed, signed and kept", Cites: wireForm + "member names", run: accepts(
		variant{what: "unknown members at the top", edit: also(set("x-trace", "1"), set("extra", map[string]any{"a": []int{1}}))},
		variant{what: "unknown members in sender, thread, meta and payload", edit: also(set("sender.x", 1), set("thread.x", 1), set("meta.x", 1), set("payload.x", 1))},
		variant{what: "an unknown member named envelope", edit: set("envelope", map[string]any{"id": "inner"})},
	)},
}

func always(body string) func(string) string { return func(string) string { return body } }

// nested returns arrays in arrays, so many levels.
func nested(levels int) json.RawMessage {
	return json.RawMessage(strings.Repeat("[", levels) + strings.Repeat("]", levels))
}

// listed returns a list with count equal numbers.
func listed(count int, number string) string {
	return "[" + strings.Repeat(number+",", count-1) + number + "]"
}

func deliveredCanonical(p *probe) {
	client, agent := p.actor("a client"), p.actor("an agent")
	m := p.request(client, agent)
	awkward(m)
	l := m.sign(client)
	p.accepted(p.post("a REQUEST, indented, signed in its RFC 8785 form", []byte(indented(string(l.body)))), l)
	a := p.poll("since", p.hour(), "recipient", agent.did(), "timeout", "1")
	p.delivers(p.page(a), l)
	p.expect("the answer holds the canonical bytes that were signed")
	if !strings.Contains(string(a.body), string(l.body)) {
		got := string(a.body)
		if _, rest, ok := strings.Cut(got, `"events":[`); ok {
			got = rest
		}
		p.failf("it holds the same JSON in other bytes: %s where %s was signed", differing([]byte(got), l.body), differing(l.body, []byte(got)))
	}
}

// sizes asks at the limit the relay names, or else at the protocol's.
func sizes(p *probe) {
	limit := envelope.DefaultMaxBytes
	known := p.call("", "GET", "/.well-known/agora.json", nil, nil, 0)
	if own := known.object("limits").number("bodyBytes"); own >= 1024 {
		limit = int(own)
	}
	if limit > 2<<20 {
		p.end(Skipped, "the relay takes bodies of %d bytes; more than 2 MiB is not sent by this kit", limit)
	}
	client, agent := p.actor("a client"), p.actor("an agent")
	for _, size := range []struct{ bytes, over int }{{limit, 0}, {limit + 1, 1}} {
		m := p.request(client, agent)
		set("payload.params.text", "")(m)
		short := len(m.sign(client).body)
		set("payload.params.text", strings.Repeat("x", size.bytes-short))(m)
		l := m.sign(client)
		what := fmt.Sprintf("a REQUEST of %d bytes, where the limit is %d", len(l.body), limit)
		if size.over == 0 {
			p.accepted(p.post(what, l.body), l)
		} else {
			p.refuse(tooLarge, what, l.body)
		}
	}
}

// number returns a member that is a number, else 0.
func (a answer) number(name string) (n float64) {
	_ = json.Unmarshal(a.members[name], &n) // stays 0
	return n
}
