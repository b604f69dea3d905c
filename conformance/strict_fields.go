package conformance

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
)

var stale = refused(http.StatusBadRequest, envelope.CodeStaleTimestamp)

// fieldChecks are the rows of PROTOCOL §1's table, from version to meta.
var fieldChecks = []Check{
	{Number: "S-19", Title: "version is the string \"1.0\"", Cites: wireForm + "version", run: refuses(
		refused(http.StatusBadRequest, envelope.CodeUnsupportedVersion),
		variant{what: "version 1.1", edit: set("version", "1.1")},
		variant{what: "version 1.0 as a number", edit: set("version", json.RawMessage("1.0"))},
		variant{what: "version \"1.0 \" with a space", edit: set("version", "1.0 ")},
		variant{what: "no version", edit: without("version")},
	)},
	{Number: "S-20", Title: "An id has 1 to 128 characters: letters and digits, and behind the first ._:~- too", Cites: wireForm + "id", run: accepts(
		variant{what: "an id of one character", edit: set("id", "0")},
		variant{what: "an id of 128 characters", edit: func(m message) { m["id"] = (m["id"].(string) + strings.Repeat("a", 128))[:128] }},
		variant{what: "all punctuation that is allowed in its id", edit: func(m message) { m["id"] = m["id"].(string) + "._:~-Z" }},
	)},
	{Number: "S-21", Title: "Any other id is refused", Cites: wireForm + "id", run: refuses(invalid,
		variant{what: "an empty id", edit: set("id", "")},
		variant{what: "an id of 129 characters", edit: set("id", strings.Repeat("a", 129))},
		variant{what: "an id that starts with _", edit: set("id", "_msg")},
		variant{what: "an id with a space", edit: set("id", "msg 1")},
		variant{what: "an id with a slash", edit: set("id", "msg/1")},
		variant{what: "an id with a line break at its end", edit: set("id", "msg\n")},
		variant{what: "an id with a letter outside ASCII", edit: set("id", "msgé")},
		variant{what: "a number as id", edit: set("id", 7)},
		variant{what: "no id", edit: without("id")},
	)},
	{Number: "S-22", Title: "ts may have an offset and up to 9 fraction digits; instants count", Cites: wireForm + "ts", run: accepts(
		variant{what: "ts with the offset +14:00", edit: dated("2006-01-02T15:04:05.000-07:00", 14*time.Hour)},
		variant{what: "ts with the offset -09:30", edit: dated("2006-01-02T15:04:05-07:00", -9*time.Hour-30*time.Minute)},
		variant{what: "ts in nanoseconds", edit: dated("2006-01-02T15:04:05.000000000Z07:00", 0)},
		variant{what: "ts in whole seconds", edit: dated("2006-01-02T15:04:05Z07:00", 0)},
		variant{what: "ts with one fraction digit", edit: dated("2006-01-02T15:04:05.0Z07:00", 0)},
	)},
	{Number: "S-23", Title: "A ts in any other form is refused", Cites: wireForm + "ts", run: refuses(invalid,
		variant{what: "ts with a comma before the fraction", edit: dated("2006-01-02T15:04:05,000Z07:00", 0)},
		variant{what: "ts with a lower case t", edit: dated("2006-01-02t15:04:05Z07:00", 0)},
		variant{what: "ts with a lower case z", edit: withTail("z")},
		variant{what: "ts with a space for T", edit: dated("2006-01-02 15:04:05Z07:00", 0)},
		variant{what: "ts without an offset", edit: withTail("")},
		variant{what: "ts with 10 fraction digits", edit: withTail(".0000000000Z")},
		variant{what: "ts with a dot and no digits", edit: withTail(".Z")},
		variant{what: "ts with the offset +24:00", edit: also(dated(time.RFC3339, 23*time.Hour), func(m message) {
			ts, _ := time.Parse(time.RFC3339, m["ts"].(string)) // which dated has just written
			m["ts"] = ts.Add(time.Hour).Format("2006-01-02T15:04:05") + "+24:00"
		})},
		variant{what: "ts with an offset without colon", edit: dated("2006-01-02T15:04:05-0700", time.Hour)},
		variant{what: "ts with a one-digit hour", edit: set("ts", "2026-02-02T5:30:00Z")},
		variant{what: "the 30th of February", edit: set("ts", "2026-02-30T15:30:00Z")},
		variant{what: "ts as a number of milliseconds", edit: func(m message) { m["ts"] = time.Now().UnixMilli() }},
		variant{what: "no ts", edit: without("ts")},
	)},
	{Number: "S-24", Title: "A ts outside the window is STALE_TIMESTAMP, in the years 1 and 9999 too", Cites: wireForm + "ts window", run: refuses(stale,
		variant{what: "ts 5m10s in the past", edit: aged(-310 * time.Second)},
		variant{what: "ts 5m10s in the future", edit: aged(310 * time.Second)},
		variant{what: "ts in the year 9999", edit: set("ts", "9999-12-31T23:59:59Z")},
		variant{what: "ts in the year 1", edit: set("ts", "0001-01-01T00:00:00Z")},
		variant{what: "ts in the year 2300, further than 64 bits of nanoseconds", edit: set("ts", "2300-01-01T00:00:00Z")},
	)},
	{Number: "S-25", Title: "The refusal of a stale ts tells the relay's time in details.now", Cites: wireForm + "ts window", run: staleTellsNow},
	{Number: "S-26", Title: "type is one of seven, exactly", Cites: wireForm + "type", run: refuses(invalid,
		variant{what: "type request in lower case", edit: set("type", "request")},
		variant{what: "type PING", edit: set("type", "PING")},
		variant{what: "type TIMEOUT", edit: set("type", "TIMEOUT")},
		variant{what: "an empty type", edit: set("type", "")},
		variant{what: "a number as type", edit: set("type", 1)},
		variant{what: "no type", edit: without("type")},
	)},
	{Number: "S-27", Title: "sender is an object whose id is a did:key", Cites: wireForm + "sender.id", run: refuses(invalidDID,
		variant{what: "no sender", edit: without("sender")},
		variant{what: "the sender's did as a string", edit: func(m message) { m["sender"] = m["sender"].(map[string]any)["id"] }},
		variant{what: "a sender without id", edit: without("sender.id")},
		variant{what: "a sender whose id is a number", edit: set("sender.id", 1)},
		variant{what: "a sender that is a did:web", edit: set("sender.id", "did:web:agent.example")},
	)},
	{Number: "S-28", Title: "sender.name and sender.url are strings", Cites: wireForm + "sender.id", run: refuses(
		refused(http.StatusBadRequest, envelope.CodeInvalidDID, envelope.CodeInvalidRequest),
		variant{what: "a number as sender.name", edit: set("sender.name", 1)},
		variant{what: "an object as sender.url", edit: set("sender.url", map[string]any{})},
	)},
	{Number: "S-29", Title: "recipient, if it is there, is an object whose id is a did:key", Cites: wireForm + "recipient", run: refuses(invalidDID,
		variant{what: "recipient null", edit: set("recipient", nil)},
		variant{what: "an empty recipient", edit: set("recipient", map[string]any{})},
		variant{what: "an empty recipient.id", edit: set("recipient.id", "")},
		variant{what: "a recipient's did as a string", edit: func(m message) { m["recipient"] = m["recipient"].(map[string]any)["id"] }},
		variant{what: "a recipient's did with a space behind it", edit: func(m message) {
			set("recipient.id", m["recipient"].(map[string]any)["id"].(string)+" ")(m)
		}},
	)},
	{Number: "S-30", Title: "payload is an object", Cites: wireForm + "payload", run: refuses(invalid,
		variant{what: "an array as payload", edit: set("payload", []int{1})},
		variant{what: "a string as payload", edit: set("payload", "intent")},
		variant{what: "payload null", edit: set("payload", nil)},
		variant{what: "no payload", edit: without("payload")},
	)},
	{Number: "S-31", Title: "Without thread, payload.request_id is the thread's id", Cites: wireForm + "thread.id", run: threadByRequest},
	{Number: "S-32", Title: "A message with neither thread nor request_id, or with a bad one, is refused", Cites: wireForm + "thread.id", run: refuses(invalid,
		variant{what: "neither thread nor request_id", edit: without("thread", "payload.request_id")},
		variant{what: "an empty thread.id", edit: set("thread.id", "")},
		variant{what: "a thread without id", edit: set("thread", map[string]any{})},
		variant{what: "a thread.id with a slash", edit: set("thread.id", "a/b")},
		variant{what: "a thread that is a string", edit: set("thread", "thread_1")},
		variant{what: "a request_id with a space and no thread", edit: also(without("thread"), set("payload.request_id", "req 1"))},
	)},
	{Number: "S-33", Title: "meta.ttl is a whole number of seconds from 1, however it is written", Cites: wireForm + "meta.ttl", run: accepts(
		variant{what: "ttl 300.0", edit: set("meta.ttl", 300), text: replace(`"ttl":300`, `"ttl":300.0`)},
		variant{what: "ttl 3e2", edit: set("meta.ttl", 300), text: replace(`"ttl":300`, `"ttl":3e2`)},
		variant{what: "no ttl", edit: without("meta.ttl")},
		variant{what: "no meta", edit: without("meta")},
	)},
	{Number: "S-34", Title: "Any other meta.ttl is refused", Cites: wireForm + "meta.ttl", run: refuses(invalid,
		variant{what: "ttl 0", edit: set("meta.ttl", 0)},
		variant{what: "ttl -1", edit: set("meta.ttl", -1)},
		variant{what: "ttl 1.5", edit: set("meta.ttl", 1.5)},
		variant{what: "ttl as a string", edit: set("meta.ttl", "300")},
		variant{what: "ttl null", edit: set("meta.ttl", nil)},
		variant{what: "ttl 1e300, which overflows", edit: set("meta.ttl", 1e300)},
		variant{what: "ttl 2^63, which overflows", edit: set("meta.ttl", json.RawMessage("9223372036854775808"))},
	)},
	{Number: "S-35", Title: "What has expired before it arrives is refused with EXPIRED", Cites: wireForm + "already expired on arrival",
		run: refuses(refused(http.StatusBadRequest, envelope.CodeExpired),
			variant{what: "ts a minute ago and ttl 30", edit: also(aged(-time.Minute), set("meta.ttl", 30))},
			variant{what: "ts 10 s ago and ttl 1", edit: also(aged(-10*time.Second), set("meta.ttl", 1))},
		)},
	{Number: "S-36", Title: "meta.hop is a whole number from 0 to 16 and never changed", Cites: wireForm + "meta.hop", run: accepts(
		variant{what: "hop 0", edit: set("meta.hop", 0)}, variant{what: "hop 16", edit: set("meta.hop", 16)})},
	{Number: "S-37", Title: "Any other meta.hop is refused", Cites: wireForm + "meta.hop", run: refuses(invalid,
		variant{what: "hop 17", edit: set("meta.hop", 17)},
		variant{what: "hop -1", edit: set("meta.hop", -1)},
		variant{what: "hop 0.5", edit: set("meta.hop", 0.5)},
		variant{what: "hop as a string", edit: set("meta.hop", "1")},
	)},
	{Number: "S-38", Title: "A message bound to other relays by meta.relay is refused", Cites: wireForm + "meta.relay",
		run: refuses(refused(http.StatusForbidden, envelope.CodeForbidden),
			variant{what: "another relay in meta.relay", edit: set("meta.relay", "https://relay.invalid")},
			variant{what: "a list of other relays in meta.relay", edit: set("meta.relay", []string{"https://a.invalid", "https://b.invalid"})},
			variant{what: "an empty list in meta.relay", edit: set("meta.relay", []string{})},
		)},
}

// signatureChecks are about sig, and about what happens before it holds.
var signatureChecks = []Check{
	{Number: "S-39", Title: "sig is exactly 86 characters of unpadded base64url that re-encode to themselves", Cites: wireForm + "sig", run: refuses(badSignature,
		variant{what: "padding behind the signature", sign: resigned(func(sig string) string { return sig + "==" })},
		variant{what: "a signature cut by a character", sign: resigned(func(sig string) string { return sig[:85] })},
		variant{what: "a line break inside the signature", sign: resigned(func(sig string) string { return sig[:40] + "\n" + sig[40:] })},
		variant{what: "stray bits in the signature's last character", sign: resigned(strayBits)},
		variant{what: "a space behind the signature", sign: resigned(func(sig string) string { return sig + " " })},
		variant{what: "the signature in the alphabet of + and /", sign: plusAlphabet},
		variant{what: "a number as sig", sign: func(m message, from actor) letter { m["sig"] = 1; return m.sealed(from) }},
		variant{what: "no sig", sign: func(m message, from actor) letter { return m.sealed(from) }},
	)},
	{Number: "S-40", Title: "A signature that does not verify is 403 INVALID_SIGNATURE", Cites: wireForm + "Signature", run: refuses(badSignature,
		variant{what: "a changed payload", text: replace("conformance.check", "conformance.chess")},
		variant{what: "a signature over the indented JSON", sign: signedIndented},
		variant{what: "s of the signature raised by the group's order", sign: raisedS},
	)},
	{Number: "S-41", Title: "Nothing has an effect before the signature holds: a forgery neither takes the id nor moves the thread",
		Cites: wireForm + "(cheap checks come first, no side effect before the signature)", run: forgery},
	{Number: "S-42", Title: "Cheap checks come before the signature", Cites: wireForm + "(size → depth → JSON → fields → window → DID → signature)", run: func(p *probe) {
		forged := func(edit func(message)) []byte {
			client := p.actor("a client")
			m := p.request(client, actor{})
			edit(m)
			return withSig(strings.Repeat("A", 86))(m, client).body
		}
		p.refuse(invalid, "both an empty id and a false signature", forged(set("id", "")))
		p.refuse(stale, "both a stale ts and a false signature", forged(aged(-time.Hour)))
		p.refuse(stale, "a stale ts, a sender that is no did:key, and a false signature", forged(also(aged(-time.Hour), set("sender.id", "did:key:z6Mk"))))
		p.refuse(invalidDID, "both a sender that is no did:key and a false signature", forged(set("sender.id", "did:key:z6Mk")))
	}},
}

// dated writes ts in another layout and zone.
func dated(layout string, zone time.Duration) func(message) {
	return func(m message) {
		ts, err := time.Parse(time.RFC3339, m["ts"].(string))
		if err != nil {
			panic(err) // ours
		}
		ts = ts.UTC()
		if zone != 0 {
			ts = ts.In(time.FixedZone("", int(zone.Seconds())))
		}
		m["ts"] = ts.Format(layout)
	}
}

// withTail writes ts in whole seconds with another end than Z.
func withTail(tail string) func(message) {
	return func(m message) { m["ts"] = m["ts"].(string)[:len("2006-01-02T15:04:05")] + tail }
}

func staleTellsNow(p *probe) {
	client := p.actor("a client")
	m := p.request(client, actor{})
	aged(-time.Hour)(m)
	a := p.refuse(stale, "a REQUEST dated an hour ago", m.sign(client).body)
	p.expect("details.now is the relay's time, RFC 3339")
	now, ok := envelope.ParseTime(a.object("details").text("now"))
	if !ok || now.Sub(p.now()).Abs() > time.Minute {
		p.failf("%s", a)
	}
}

func threadByRequest(p *probe) {
	t := p.talk()
	t.thread = t.request
	var sent []letter
	for _, move := range []string{"c.REQUEST>a", "a.OFFER", "c.ACCEPT>a", "a.RESULT"} {
		m, from := t.message(move)
		delete(m, "thread")
		sent = append(sent, p.accept(from, m))
	}
	p.delivers(p.events("since", p.hour(), "thread", t.request, "timeout", "1"), sent...)
}

// resigned spells a good signature differently.
func resigned(respell func(string) string) func(message, actor) letter {
	return func(m message, from actor) letter {
		m.sign(from)
		return withSig(respell(m["sig"].(string)))(m, from)
	}
}

const urlAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// strayBits sets a bit that the last of 86 characters does not use.
func strayBits(sig string) string {
	last := strings.IndexByte(urlAlphabet, sig[85])
	return sig[:85] + string(urlAlphabet[last|1])
}

// plusAlphabet signs until the signature has a character that the two alphabets write differently.
func plusAlphabet(m message, from actor) letter {
	for {
		m["id"] = newID("msg")
		m.sign(from)
		if sig := m["sig"].(string); strings.ContainsAny(sig, "-_") {
			return withSig(strings.NewReplacer("-", "+", "_", "/").Replace(sig))(m, from)
		}
	}
}

// raisedS adds the order of the group to s: a second signature of the same message, which RFC 8032 excludes.
func raisedS(m message, from actor) letter {
	m.sign(from)
	sig, err := base64.RawURLEncoding.DecodeString(m["sig"].(string))
	if err != nil {
		panic(err) // ours
	}
	order := [32]byte{0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 31: 0x10}
	carry := 0
	for i := range order {
		carry += int(sig[32+i]) + int(order[i])
		sig[32+i] = byte(carry)
		carry >>= 8
	}
	return withSig(base64.RawURLEncoding.EncodeToString(sig))(m, from)
}

func forgery(p *probe) {
	t := p.talk()
	t.play("c.REQUEST>a a.OFFER")
	m, client := t.message("c.ACCEPT>a")
	genuine := m.sign(client)
	forged := strings.Replace(string(genuine.body), `"request_id":`, `"forged":true,"request_id":`, 1)
	p.refuse(badSignature, "an ACCEPT with a payload changed after signing", []byte(forged))
	genuine.what = "the genuine ACCEPT with the same id, after the forged one"
	p.acceptLetter(genuine)
}
