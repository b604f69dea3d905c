package relay

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/envelope"
)

var (
	invalid      = kit.Refused(http.StatusBadRequest, envelope.CodeInvalidRequest)
	invalidDID   = kit.Refused(http.StatusBadRequest, envelope.CodeInvalidDID)
	badSignature = kit.Refused(http.StatusForbidden, envelope.CodeInvalidSignature)
	tooLarge     = kit.Refused(http.StatusRequestEntityTooLarge, envelope.CodePayloadTooLarge)
)

const wireForm = "PROTOCOL §1 "

// jsonChecks test the text of bodies. Most refused bodies have a valid signature over what a careless parser would
// read, so a relay with a careless parser accepts them and fails the check.
var jsonChecks = []relayCheck{
	{Number: "S-1",
		Title: "An envelope may be posted alone or inside {\"envelope\":{…}}, and is delivered alone",
		Cites: wireForm + "body", run: accepts(
			variant{what: "the envelope as the body"},
			variant{what: "{\"envelope\":…} around the envelope",
				text: func(body string) string { return `{"envelope":` + body + `}` }},
		)},
	{Number: "S-2", Title: "A body that is not a JSON object is refused",
		Cites: wireForm + "body", run: refuses(invalid,
			variant{what: "an empty body", text: always("")},
			variant{what: "a body that is not JSON", text: always("hello")},
			variant{what: "an array around the envelope", text: func(body string) string { return "[" + body + "]" }},
			variant{what: "the envelope as a JSON string",
				text: func(body string) string { return string(kit.Canonical(body)) }},
			variant{what: "null", text: always("null")},
			variant{what: "only the first half of the body",
				text: func(body string) string { return body[:len(body)/2] }},
		)},
	{Number: "S-3", Title: "A body with a byte order mark is refused", Cites: wireForm + "body", run: refuses(invalid,
		variant{what: "a byte order mark before the body", text: func(body string) string { return "\ufeff" + body }})},
	{Number: "S-4", Title: "A body with data after the envelope is refused",
		Cites: wireForm + "JSON", run: refuses(invalid,
			variant{what: "a second object after the body", text: func(body string) string { return body + "{}" }},
			variant{what: "a letter after the body", text: func(body string) string { return body + "x" }},
			variant{what: "a zero byte after the body", text: func(body string) string { return body + "\x00" }},
		)},
	{Number: "S-5", Title: "A body with a duplicate member name in an object is refused, at any depth",
		Cites: wireForm + "JSON", run: refuses(invalid,
			variant{what: "two ids, where the last one was signed", text: replace(`{`, `{"id":"msg_other",`)},
			variant{what: "two ids, where the first one was signed",
				text: func(body string) string { return strings.TrimSuffix(body, "}") + `,"id":"msg_other"}` }},
			variant{what: "two members intent in payload",
				text: replace(`"payload":{`, `"payload":{"intent":"other",`)},
			variant{what: "two members with the same name deep in params",
				edit: kit.Set("payload.params", map[string]any{"list": []any{map[string]any{"x": 1}}}),
				text: replace(`{"x":1}`, `{"x":0,"x":1}`)},
		)},
	{Number: "S-6", Title: "Member names are compared after unescaping, so an escaped duplicate is refused",
		Cites: wireForm + "JSON", run: refuses(invalid,
			variant{what: `the members id and \u0069d`, text: replace(`{`, `{"\u0069d":"msg_other",`)})},
	{Number: "S-7", Title: "A body with a lone surrogate is refused", Cites: wireForm + "JSON", run: refuses(invalid,
		variant{what: `the lone surrogate \ud800`,
			edit: kit.Set("payload.params.text", "\ufffd"), text: replace("\ufffd", `\ud800`)},
		variant{what: `the lone surrogate \udc00`,
			edit: kit.Set("payload.params.text", "\ufffd"), text: replace("\ufffd", `\udc00`)},
		variant{what: `a lone surrogate in a member name`,
			edit: kit.Set("payload.\ufffd", 1), text: replace("\ufffd", `\ud8ff`)},
	)},
	{Number: "S-8", Title: "A body with invalid UTF-8 is refused", Cites: wireForm + "JSON", run: refuses(invalid,
		variant{what: "the byte ff in a string",
			edit: kit.Set("payload.params.text", "\ufffd"), text: replace("\ufffd", "\xff")},
		variant{what: "an overlong UTF-8 encoding of a slash",
			edit: kit.Set("payload.params.text", "\ufffd\ufffd"), text: replace("\ufffd\ufffd", "\xc0\xaf")},
		variant{what: "a surrogate in UTF-8",
			edit: kit.Set("payload.params.text", "\ufffd\ufffd\ufffd"),
			text: replace("\ufffd\ufffd\ufffd", "\xed\xa0\x80")},
	)},
	{Number: "S-9", Title: "Noncharacters and the character U+0000 are allowed in strings",
		Cites: wireForm + "JSON", run: accepts(
			variant{what: "U+FFFF in a string", edit: kit.Set("payload.params.text", "\uffff")},
			variant{what: "U+FDD0 and U+0000 in a string", edit: kit.Set("payload.params.text", "\ufdd0\u0000")})},
	{Number: "S-10",
		Title: "A body with a number that no finite double holds, or with more than 1,000 costly numbers, is refused",
		Cites: wireForm + "JSON; numbers", run: refuses(invalid,
			variant{what: "the number 1e400",
				edit: kit.Set("payload.params.n", 1), text: replace(`{"n":1}`, `{"n":1e400}`)},
			variant{what: "the number -1e309",
				edit: kit.Set("payload.params.n", 1), text: replace(`{"n":1}`, `{"n":-1e309}`)},
			variant{what: "1,001 numbers below 1e-307, one more than the limit",
				edit: kit.Set("payload.params.n", make([]int, 1001)),
				text: replace(listed(1001, "0"), listed(1001, "1e-400"))},
			variant{what: "1,001 numbers with 18 significant digits, one more than the limit",
				edit: kit.Set("payload.params.n", json.RawMessage(listed(1001, "1"))),
				text: replace(listed(1001, "1"), listed(1001, "1.00000000000000001"))},
		)},
	{Number: "S-11", Title: "A body with invalid JSON syntax is refused",
		Cites: wireForm + "JSON", run: refuses(invalid,
			variant{what: "a number with a leading zero",
				edit: kit.Set("payload.params.n", 1), text: replace(`{"n":1}`, `{"n":01}`)},
			variant{what: "a number with a plus sign",
				edit: kit.Set("payload.params.n", 1), text: replace(`{"n":1}`, `{"n":+1}`)},
			variant{what: "the value NaN",
				edit: kit.Set("payload.params.n", nil), text: replace(`{"n":null}`, `{"n":NaN}`)},
			variant{what: "a comma before the closing brace",
				text: func(body string) string { return strings.TrimSuffix(body, "}") + ",}" }},
			variant{what: "a comment", text: replace(`{`, `{/**/`)},
			variant{what: "a line break inside a string",
				edit: kit.Set("payload.params.text", "a\nb"), text: replace(`a\nb`, "a\nb")},
			variant{what: "a member name in single quotes", text: replace(`"version"`, `'version'`)},
		)},
	{Number: "S-12", Vectors: "canonicalize.json", Title: "The delivered envelope is the RFC 8785 form, byte for byte",
		Cites: wireForm + "Signature", run: deliveredCanonical},
	{Number: "S-13",
		Vectors: "canonicalize.json",
		Title:   "Digits beyond the precision of a double are dropped before the signature is verified",
		Cites:   wireForm + "JSON",
		run: accepts(
			variant{what: "0.1 written with 30 digits",
				edit: kit.Set("payload.params.n", 0.1), text: replace(`0.1`, `0.100000000000000000000000000001`)},
			variant{what: "2^53 written as 9007199254740993",
				edit: kit.Set("payload.params.n", 9007199254740992), text: replace(`9007199254740992`, `9007199254740993`)},
			variant{what: "the number 1e-400, which becomes 0",
				edit: kit.Set("payload.params.n", 0), text: replace(`{"n":0}`, `{"n":1e-400}`)},
			variant{what: "1,000 numbers below 1e-307",
				edit: kit.Set("payload.params.n", make([]int, 1000)),
				text: replace(listed(1000, "0"), listed(1000, "1e-400"))},
			variant{what: "2,000 numbers with 17 significant digits and zeros before and after them",
				edit: kit.Set("payload.params.n", json.RawMessage(listed(2000, "0.012345678901234567"))),
				text: replace(listed(2000, "0.012345678901234567"), listed(2000, "0.01234567890123456700"))},
		)},
	{Number: "S-14", Title: "A body with 64 levels of nesting is accepted", Cites: wireForm + "body", run: accepts(
		variant{what: "64 levels of arrays and objects", edit: kit.Set("payload.params", nested(62))})},
	{Number: "S-15", Title: "A body with more than 64 levels of nesting is refused",
		Cites: wireForm + "body", run: refuses(invalid,
			variant{what: "65 levels of arrays and objects", edit: kit.Set("payload.params", nested(63))},
			variant{what: "1,000 levels of nesting", edit: kit.Set("payload.params", nested(998))},
			variant{what: "100,000 levels of nesting", text: always(strings.Repeat("[", 100_000))},
		)},
	{Number: "S-16", Title: "A body of the maximum size is accepted, and one byte more is refused with 413",
		Cites: wireForm + "body", run: bodySizes},
	{Number: "S-17", Title: "A top-level member name that differs from a known name only in case is refused",
		Cites: wireForm + "member names", run: refuses(invalid,
			variant{what: "the member Type in addition to type", edit: kit.Set("Type", "OFFER")},
			variant{what: "the member ſig, with a long s, in addition to sig", edit: kit.Set("ſig", "x")},
			variant{what: "the member SENDER in addition to sender", edit: kit.Set("SENDER", map[string]any{})},
			variant{what: "the member Ts instead of ts", edit: func(m kit.Message) { m["Ts"] = m["ts"]; delete(m, "ts") }},
			variant{what: "the member Thread instead of thread",
				edit: func(m kit.Message) { m["Thread"] = m["thread"]; delete(m, "thread") }},
		)},
	{Number: "S-18", Title: "Unknown members are allowed, covered by the signature, and delivered",
		Cites: wireForm + "member names", run: accepts(
			variant{what: "unknown members at the top",
				edit: kit.Combine(kit.Set("x-trace", "1"), kit.Set("extra", map[string]any{"a": []int{1}}))},
			variant{what: "unknown members in sender, thread, meta and payload",
				edit: kit.Combine(kit.Set("sender.x", 1), kit.Set("thread.x", 1), kit.Set("meta.x", 1), kit.Set("payload.x", 1))},
			variant{what: "an unknown member named envelope", edit: kit.Set("envelope", map[string]any{"id": "inner"})},
		)},
}

func always(body string) func(string) string { return func(string) string { return body } }

// nested returns so many levels of arrays inside arrays.
func nested(levels int) json.RawMessage {
	return json.RawMessage(strings.Repeat("[", levels) + strings.Repeat("]", levels))
}

// listed returns a JSON list with count equal numbers.
func listed(count int, number string) string {
	return "[" + strings.Repeat(number+",", count-1) + number + "]"
}

func deliveredCanonical(p *relayProbe) {
	client, agent := p.Actor("a client"), p.Actor("an agent")
	m := p.Request(client, agent)
	hardToEncode(m)
	signed := m.Sign(client)
	p.CheckAccepted(p.Post("an indented REQUEST, signed over its RFC 8785 form", []byte(indented(string(signed.Body)))),
		signed)
	a := p.Poll("since", p.HourAgo(), "recipient", agent.DID(), "timeout", "1")
	p.CheckEvents(p.CheckPage(a), signed)
	p.Expect("the answer contains the envelope in its RFC 8785 form, as it was signed")
	if !strings.Contains(string(a.Body), string(signed.Body)) {
		got := string(a.Body)
		if _, rest, ok := strings.Cut(got, `"events":[`); ok {
			got = rest
		}
		p.Failf("the answer does not contain the envelope byte for byte: it contains %s instead of %s",
			kit.FirstDifference([]byte(got), signed.Body), kit.FirstDifference(signed.Body, []byte(got)))
	}
}

// bodySizes tests bodies at the limit that the relay names, or else at the default limit of PROTOCOL §1.
func bodySizes(p *relayProbe) {
	limit := envelope.DefaultMaxBytes
	known := p.Document()
	if own := known.Object("limits").Number("bodyBytes"); own >= 1024 {
		limit = int(own)
	}
	if limit > 2<<20 {
		p.End(kit.Skipped, "the relay accepts bodies of %d bytes, and this check sends at most 2 MiB", limit)
	}
	client, agent := p.Actor("a client"), p.Actor("an agent")
	for _, size := range []struct{ bytes, over int }{{limit, 0}, {limit + 1, 1}} {
		m := p.Request(client, agent)
		kit.Set("payload.params.text", "")(m)
		short := len(m.Sign(client).Body)
		kit.Set("payload.params.text", strings.Repeat("x", size.bytes-short))(m)
		signed := m.Sign(client)
		what := fmt.Sprintf("a REQUEST of %d bytes, with a limit of %d bytes", len(signed.Body), limit)
		if size.over == 0 {
			p.CheckAccepted(p.Post(what, signed.Body), signed)
		} else {
			p.PostRefused(tooLarge, what, signed.Body)
		}
	}
}
