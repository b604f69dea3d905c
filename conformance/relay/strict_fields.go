package relay

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/envelope"
)

var stale = kit.Refused(http.StatusBadRequest, envelope.CodeStaleTimestamp)

// fieldChecks test the rows of the table in PROTOCOL §1, from version to meta.
var fieldChecks = []relayCheck{
	{Number: "S-19", Title: "version must be the string \"1.0\"", Cites: wireForm + "version", run: refuses(
		kit.Refused(http.StatusBadRequest, envelope.CodeUnsupportedVersion),
		variant{what: "version 1.1", edit: kit.Set("version", "1.1")},
		variant{what: "version 1.0 as a number", edit: kit.Set("version", json.RawMessage("1.0"))},
		variant{what: "version \"1.0 \" with a space at its end", edit: kit.Set("version", "1.0 ")},
		variant{what: "no version", edit: kit.Without("version")})},
	{Number: "S-20",
		Title: "An id has 1 to 128 characters: letters and digits, and after the first character also ._:~-",
		Cites: wireForm + "id", run: accepts(
			variant{what: "an id of one character", edit: kit.Set("id", "0")},
			variant{what: "an id of 128 characters",
				edit: func(m kit.Message) { m["id"] = (m["id"].(string) + strings.Repeat("a", 128))[:128] }},
			variant{what: "an id with all allowed punctuation",
				edit: func(m kit.Message) { m["id"] = m["id"].(string) + "._:~-Z" }},
		)},
	{Number: "S-21", Title: "An id that is empty, longer than 128 characters or has another character is refused",
		Cites: wireForm + "id", run: refuses(invalid,
			variant{what: "an empty id", edit: kit.Set("id", "")},
			variant{what: "an id of 129 characters", edit: kit.Set("id", strings.Repeat("a", 129))},
			variant{what: "an id that starts with _", edit: kit.Set("id", "_msg")},
			variant{what: "an id with a space", edit: kit.Set("id", "msg 1")},
			variant{what: "an id with a slash", edit: kit.Set("id", "msg/1")},
			variant{what: "an id with a line break at its end", edit: kit.Set("id", "msg\n")},
			variant{what: "an id with a letter outside ASCII", edit: kit.Set("id", "msgé")},
			variant{what: "a number as id", edit: kit.Set("id", 7)},
			variant{what: "no id", edit: kit.Without("id")},
		)},
	{Number: "S-22", Title: "ts may have an offset and up to 9 fraction digits, and is compared as an instant",
		Cites: wireForm + "ts", run: accepts(
			variant{what: "ts with the offset +14:00", edit: formatTS("2006-01-02T15:04:05.000-07:00", 14*time.Hour)},
			variant{what: "ts with the offset -09:30",
				edit: formatTS("2006-01-02T15:04:05-07:00", -9*time.Hour-30*time.Minute)},
			variant{what: "ts in nanoseconds", edit: formatTS("2006-01-02T15:04:05.000000000Z07:00", 0)},
			variant{what: "ts in whole seconds", edit: formatTS("2006-01-02T15:04:05Z07:00", 0)},
			variant{what: "ts with one fraction digit", edit: formatTS("2006-01-02T15:04:05.0Z07:00", 0)},
		)},
	{Number: "S-23", Title: "A ts in a form that PROTOCOL §1 does not allow is refused",
		Cites: wireForm + "ts", run: refuses(invalid,
			variant{what: "ts with a comma before the fraction", edit: formatTS("2006-01-02T15:04:05,000Z07:00", 0)},
			variant{what: "ts with a lower case t", edit: formatTS("2006-01-02t15:04:05Z07:00", 0)},
			variant{what: "ts with a lower case z", edit: withTSEnding("z")},
			variant{what: "ts with a space instead of T", edit: formatTS("2006-01-02 15:04:05Z07:00", 0)},
			variant{what: "ts without an offset", edit: withTSEnding("")},
			variant{what: "ts with 10 fraction digits", edit: withTSEnding(".0000000000Z")},
			variant{what: "ts with a dot and no digits", edit: withTSEnding(".Z")},
			variant{what: "ts with the offset +24:00",
				edit: kit.Combine(formatTS(time.RFC3339, 23*time.Hour), func(m kit.Message) {
					ts, _ := time.Parse(time.RFC3339, m["ts"].(string)) // no error: formatTS has written it
					m["ts"] = ts.Add(time.Hour).Format("2006-01-02T15:04:05") + "+24:00"
				})},
			variant{what: "ts with an offset without a colon", edit: formatTS("2006-01-02T15:04:05-0700", time.Hour)},
			variant{what: "ts with a one-digit hour", edit: kit.Set("ts", "2026-02-02T5:30:00Z")},
			variant{what: "the 30th of February", edit: kit.Set("ts", "2026-02-30T15:30:00Z")},
			variant{what: "ts as a number of milliseconds", edit: func(m kit.Message) { m["ts"] = time.Now().UnixMilli() }},
			variant{what: "no ts", edit: kit.Without("ts")},
		)},
	{Number: "S-24", Title: "A ts outside the window is refused with STALE_TIMESTAMP, also in the years 1 and 9999",
		Cites: wireForm + "ts window", run: refuses(stale,
			variant{what: "ts 5m10s in the past", edit: shiftTS(-310 * time.Second)},
			variant{what: "ts 5m10s in the future", edit: shiftTS(310 * time.Second)},
			variant{what: "ts in the year 9999", edit: kit.Set("ts", "9999-12-31T23:59:59Z")},
			variant{what: "ts in the year 1", edit: kit.Set("ts", "0001-01-01T00:00:00Z")},
			variant{what: "ts in the year 2300, which overflows 64 bits of nanoseconds since 1970",
				edit: kit.Set("ts", "2300-01-01T00:00:00Z")},
		)},
	{Number: "S-25", Title: "The refusal of a stale ts has the relay's time in details.now",
		Cites: wireForm + "ts window", run: staleDetailsNow},
	{Number: "S-26", Title: "A type that is not exactly one of the seven types is refused",
		Cites: wireForm + "type", run: refuses(invalid,
			variant{what: "the type request in lower case", edit: kit.Set("type", "request")},
			variant{what: "the unknown type PING", edit: kit.Set("type", "PING")},
			variant{what: "the type TIMEOUT, which no message may have", edit: kit.Set("type", "TIMEOUT")},
			variant{what: "an empty type", edit: kit.Set("type", "")},
			variant{what: "a number as type", edit: kit.Set("type", 1)},
			variant{what: "no type", edit: kit.Without("type")},
		)},
	{Number: "S-27", Title: "sender must be an object whose id is a did:key",
		Cites: wireForm + "sender.id", run: refuses(invalidDID,
			variant{what: "no sender", edit: kit.Without("sender")},
			variant{what: "the sender's did as a string",
				edit: func(m kit.Message) { m["sender"] = m["sender"].(map[string]any)["id"] }},
			variant{what: "a sender without id", edit: kit.Without("sender.id")},
			variant{what: "a sender whose id is a number", edit: kit.Set("sender.id", 1)},
			variant{what: "a sender that is a did:web", edit: kit.Set("sender.id", "did:web:agent.example")},
		)},
	{Number: "S-28", Title: "sender.name and sender.url must be strings", Cites: wireForm + "sender.id", run: refuses(
		kit.Refused(http.StatusBadRequest, envelope.CodeInvalidDID, envelope.CodeInvalidRequest),
		variant{what: "a number as sender.name", edit: kit.Set("sender.name", 1)},
		variant{what: "an object as sender.url", edit: kit.Set("sender.url", map[string]any{})})},
	{Number: "S-29", Title: "recipient, if present, must be an object whose id is a did:key",
		Cites: wireForm + "recipient", run: refuses(invalidDID,
			variant{what: "recipient null", edit: kit.Set("recipient", nil)},
			variant{what: "an empty recipient", edit: kit.Set("recipient", map[string]any{})},
			variant{what: "an empty recipient.id", edit: kit.Set("recipient.id", "")},
			variant{what: "a recipient's did as a string",
				edit: func(m kit.Message) { m["recipient"] = m["recipient"].(map[string]any)["id"] }},
			variant{what: "a recipient's did with a space after it", edit: func(m kit.Message) {
				kit.Set("recipient.id", m["recipient"].(map[string]any)["id"].(string)+" ")(m)
			}},
		)},
	{Number: "S-30", Title: "payload must be an object", Cites: wireForm + "payload", run: refuses(invalid,
		variant{what: "an array as payload", edit: kit.Set("payload", []int{1})},
		variant{what: "a string as payload", edit: kit.Set("payload", "intent")},
		variant{what: "payload null", edit: kit.Set("payload", nil)},
		variant{what: "no payload", edit: kit.Without("payload")},
	)},
	{Number: "S-31", Title: "If a message has no thread, payload.request_id is the thread id",
		Cites: wireForm + "thread.id", run: threadByRequest},
	{Number: "S-32", Title: "A message without a valid thread id, in thread or in payload.request_id, is refused",
		Cites: wireForm + "thread.id", run: refuses(invalid,
			variant{what: "neither thread nor request_id", edit: kit.Without("thread", "payload.request_id")},
			variant{what: "an empty thread.id", edit: kit.Set("thread.id", "")},
			variant{what: "a thread without id", edit: kit.Set("thread", map[string]any{})},
			variant{what: "a thread.id with a slash", edit: kit.Set("thread.id", "a/b")},
			variant{what: "a thread that is a string", edit: kit.Set("thread", "thread_1")},
			variant{what: "a request_id with a space and no thread",
				edit: kit.Combine(kit.Without("thread"), kit.Set("payload.request_id", "req 1"))},
		)},
	{Number: "S-33", Title: "meta.ttl is optional and may be any whole number of seconds from 1, in any JSON notation",
		Cites: wireForm + "meta.ttl", run: accepts(
			variant{what: "ttl 300.0", edit: kit.Set("meta.ttl", 300), text: replace(`"ttl":300`, `"ttl":300.0`)},
			variant{what: "ttl 3e2", edit: kit.Set("meta.ttl", 300), text: replace(`"ttl":300`, `"ttl":3e2`)},
			variant{what: "no ttl", edit: kit.Without("meta.ttl")}, variant{what: "no meta", edit: kit.Without("meta")})},
	{Number: "S-34", Title: "A meta.ttl that is not a whole number of seconds from 1, or that overflows, is refused",
		Cites: wireForm + "meta.ttl", run: refuses(invalid,
			variant{what: "ttl 0", edit: kit.Set("meta.ttl", 0)},
			variant{what: "ttl -1", edit: kit.Set("meta.ttl", -1)},
			variant{what: "ttl 1.5", edit: kit.Set("meta.ttl", 1.5)},
			variant{what: "ttl as a string", edit: kit.Set("meta.ttl", "300")},
			variant{what: "ttl null", edit: kit.Set("meta.ttl", nil)},
			variant{what: "ttl 1e300, which overflows", edit: kit.Set("meta.ttl", 1e300)},
			variant{what: "ttl 2^63, which overflows", edit: kit.Set("meta.ttl", json.RawMessage("9223372036854775808"))},
		)},
	{Number: "S-35", Title: "A message that has already expired on arrival is refused with EXPIRED",
		Cites: wireForm + "already expired on arrival",
		run: refuses(kit.Refused(http.StatusBadRequest, envelope.CodeExpired),
			variant{what: "ts a minute ago and ttl 30", edit: kit.Combine(shiftTS(-time.Minute), kit.Set("meta.ttl", 30))},
			variant{what: "ts 10 s ago and ttl 1", edit: kit.Combine(shiftTS(-10*time.Second), kit.Set("meta.ttl", 1))},
		)},
	{Number: "S-36", Title: "meta.hop may be a whole number from 0 to 16, and is delivered unchanged",
		Cites: wireForm + "meta.hop", run: accepts(
			variant{what: "hop 0", edit: kit.Set("meta.hop", 0)}, variant{what: "hop 16", edit: kit.Set("meta.hop", 16)})},
	{Number: "S-37", Title: "A meta.hop that is not a whole number from 0 to 16 is refused",
		Cites: wireForm + "meta.hop", run: refuses(invalid,
			variant{what: "hop 17", edit: kit.Set("meta.hop", 17)},
			variant{what: "hop -1", edit: kit.Set("meta.hop", -1)},
			variant{what: "hop 0.5", edit: kit.Set("meta.hop", 0.5)},
			variant{what: "hop as a string", edit: kit.Set("meta.hop", "1")},
		)},
	{Number: "S-38", Title: "A message with a meta.relay that does not name this relay is refused",
		Cites: wireForm + "meta.relay",
		run: refuses(kit.Refused(http.StatusForbidden, envelope.CodeForbidden),
			variant{what: "another relay in meta.relay", edit: kit.Set("meta.relay", "https://relay.invalid")},
			variant{what: "a list of other relays in meta.relay",
				edit: kit.Set("meta.relay", []string{"https://a.invalid", "https://b.invalid"})},
			variant{what: "an empty list in meta.relay", edit: kit.Set("meta.relay", []string{})},
		)},
}

// signatureChecks test the member sig, and that a message has no effect before its signature is verified.
var signatureChecks = []relayCheck{
	{Number: "S-39", Title: "sig must be exactly 86 characters of unpadded base64url that re-encode to the same text",
		Cites: wireForm + "sig", run: refuses(badSignature,
			variant{what: "a sig with padding", sign: resigned(func(sig string) string { return sig + "==" })},
			variant{what: "a sig without its last character",
				sign: resigned(func(sig string) string { return sig[:85] })},
			variant{what: "a line break inside sig",
				sign: resigned(func(sig string) string { return sig[:40] + "\n" + sig[40:] })},
			variant{what: "an unused bit that is set in the last character of sig", sign: resigned(strayBits)},
			variant{what: "a space after sig", sign: resigned(func(sig string) string { return sig + " " })},
			variant{what: "a sig in the base64 alphabet with + and /", sign: plusAlphabet},
			variant{what: "a number as sig",
				sign: func(m kit.Message, from kit.Actor) kit.SignedMessage { m["sig"] = 1; return m.Encode(from) }},
			variant{what: "no sig", sign: func(m kit.Message, from kit.Actor) kit.SignedMessage { return m.Encode(from) }},
		)},
	{Number: "S-40", Title: "A signature that does not verify is refused with 403 INVALID_SIGNATURE",
		Cites: wireForm + "Signature", run: refuses(badSignature,
			variant{what: "the payload changed after signing", text: replace("conformance.check", "conformance.chess")},
			variant{what: "a signature over indented JSON", sign: signedIndented},
			variant{what: "a signature whose s is raised by the order of the group", sign: raisedS},
		)},
	{Number: "S-41",
		Title: "A message with an invalid signature has no effect: its id stays free and its thread does not change",
		Cites: wireForm + "(cheap checks come first, no side effect before the signature)", run: forgery},
	{Number: "S-42", Title: "The cheap checks come before the signature check",
		Cites: wireForm + "(size → depth → JSON → fields → window → DID → signature)", run: func(p *relayProbe) {
			forged := func(edit func(kit.Message)) []byte {
				client := p.Actor("a client")
				m := p.Request(client, kit.Actor{})
				edit(m)
				return withSig(strings.Repeat("A", 86))(m, client).Body
			}
			p.PostRefused(invalid, "a REQUEST with an empty id and an invalid signature", forged(kit.Set("id", "")))
			p.PostRefused(stale, "a REQUEST with a stale ts and an invalid signature", forged(shiftTS(-time.Hour)))
			p.PostRefused(stale, "a REQUEST with a stale ts, a sender that is not a did:key, and an invalid signature",
				forged(kit.Combine(shiftTS(-time.Hour), kit.Set("sender.id", "did:key:z6Mk"))))
			p.PostRefused(invalidDID, "a REQUEST with a sender that is not a did:key and an invalid signature",
				forged(kit.Set("sender.id", "did:key:z6Mk")))
		}},
}

// formatTS returns a change that writes ts in another layout and with another offset from UTC.
func formatTS(layout string, zone time.Duration) func(kit.Message) {
	return func(m kit.Message) {
		ts, err := time.Parse(time.RFC3339, m["ts"].(string))
		if err != nil {
			panic(err) // cannot happen: probe.message has written ts
		}
		ts = ts.UTC()
		if zone != 0 {
			ts = ts.In(time.FixedZone("", int(zone.Seconds())))
		}
		m["ts"] = ts.Format(layout)
	}
}

// withTSEnding returns a change that writes ts in whole seconds with this ending instead of Z.
func withTSEnding(tail string) func(kit.Message) {
	return func(m kit.Message) { m["ts"] = m["ts"].(string)[:len("2006-01-02T15:04:05")] + tail }
}

func staleDetailsNow(p *relayProbe) {
	client := p.Actor("a client")
	m := p.Request(client, kit.Actor{})
	shiftTS(-time.Hour)(m)
	a := p.PostRefused(stale, "a REQUEST dated an hour ago", m.Sign(client).Body)
	p.Expect("details.now is the relay's time in RFC 3339 form")
	now, ok := envelope.ParseTime(a.Object("details").Text("now"))
	if !ok || now.Sub(p.Now()).Abs() > time.Minute {
		p.Failf("%s", a)
	}
}

func threadByRequest(p *relayProbe) {
	t := p.conversation()
	t.thread = t.request
	var sent []kit.SignedMessage
	for _, move := range []string{"c.REQUEST>a", "a.OFFER", "c.ACCEPT>a", "a.RESULT"} {
		m, from := t.message(move)
		delete(m, "thread")
		sent = append(sent, p.PostAccepted(from, m))
	}
	p.CheckEvents(p.Events("since", p.HourAgo(), "thread", t.request, "timeout", "1"), sent...)
}

// resigned returns a function that signs a message and then changes the text of sig.
func resigned(respell func(string) string) func(kit.Message, kit.Actor) kit.SignedMessage {
	return func(m kit.Message, from kit.Actor) kit.SignedMessage {
		m.Sign(from)
		return withSig(respell(m["sig"].(string)))(m, from)
	}
}

const urlAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// strayBits sets one of the four bits of the last character that do not belong to the 64 bytes of a signature.
func strayBits(sig string) string {
	last := strings.IndexByte(urlAlphabet, sig[85])
	return sig[:85] + string(urlAlphabet[last|1])
}

// plusAlphabet writes sig in the standard base64 alphabet, with + and / instead of - and _. It signs messages with new
// ids until sig has one of these characters.
func plusAlphabet(m kit.Message, from kit.Actor) kit.SignedMessage {
	for {
		m["id"] = kit.NewID("msg")
		m.Sign(from)
		if sig := m["sig"].(string); strings.ContainsAny(sig, "-_") {
			return withSig(strings.NewReplacer("-", "+", "_", "/").Replace(sig))(m, from)
		}
	}
}

// raisedS adds the order of the group to s. The result is a second signature of the same message, which RFC 8032
// forbids.
func raisedS(m kit.Message, from kit.Actor) kit.SignedMessage {
	m.Sign(from)
	sig, err := base64.RawURLEncoding.DecodeString(m["sig"].(string))
	if err != nil {
		panic(err) // cannot happen: message.sign has written sig
	}
	order := [32]byte{
		0xed,
		0xd3,
		0xf5,
		0x5c,
		0x1a,
		0x63,
		0x12,
		0x58,
		0xd6,
		0x9c,
		0xf7,
		0xa2,
		0xde,
		0xf9,
		0xde,
		0x14,
		31: 0x10,
	}
	carry := 0
	for i := range order {
		carry += int(sig[32+i]) + int(order[i])
		sig[32+i] = byte(carry)
		carry >>= 8
	}
	return withSig(base64.RawURLEncoding.EncodeToString(sig))(m, from)
}

func forgery(p *relayProbe) {
	t := p.conversation()
	t.play("c.REQUEST>a a.OFFER")
	m, client := t.message("c.ACCEPT>a")
	genuine := m.Sign(client)
	forged := strings.Replace(string(genuine.Body), `"request_id":`, `"forged":true,"request_id":`, 1)
	p.PostRefused(badSignature, "an ACCEPT whose payload was changed after signing", []byte(forged))
	genuine.What = "the unchanged ACCEPT with the same id, after the changed one was refused"
	p.PostSigned(genuine)
}
