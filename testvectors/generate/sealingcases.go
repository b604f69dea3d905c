package main

import (
	"encoding/base64"
	"strings"
)

const sealedRequest = `{"request_id":"req_1","intent":"translation.en_zh","sealed":"SEALED"}`

// sealingTable has the messages that open.
var sealingTable = []sealingCase{
	{name: "request", typ: "REQUEST", clear: sealedRequest,
		plaintext: filled(`{"constraints":{"max_cost_usd":0.01},"params":{"text":"Hello"},"title":"Translate"}`),
		payload: `{"constraints":{"max_cost_usd":0.01},"intent":"translation.en_zh","params":{"text":"Hello"},` +
			`"request_id":"req_1","title":"Translate"}`},
	{name: "offer", typ: "OFFER", clear: `{"request_id":"req_1","sealed":"SEALED"}`,
		plaintext: filled(`{"plan":"word by word","price":{"amount":0.005,"currency":"USD"}}`),
		payload:   `{"plan":"word by word","price":{"amount":0.005,"currency":"USD"},"request_id":"req_1"}`},
	{name: "accept", typ: "ACCEPT", clear: `{"request_id":"req_1","sealed":"SEALED"}`,
		plaintext: filled(`{"terms":{"price_usd":0.005}}`), payload: `{"request_id":"req_1","terms":{"price_usd":0.005}}`},
	{name: "result", typ: "RESULT", clear: `{"request_id":"req_1","status":"success","sealed":"SEALED"}`,
		plaintext: filled(`{"output":{"translation":"你好"}}`),
		payload:   `{"output":{"translation":"你好"},"request_id":"req_1","status":"success"}`},
	{name: "error", typ: "ERROR", clear: `{"code":"UNAVAILABLE","message":"sealed","request_id":"req_1","sealed":"SEALED"}`,
		plaintext: filled(`{"details":{"until":9},"message":"Back at nine"}`),
		payload:   `{"code":"UNAVAILABLE","details":{"until":9},"message":"Back at nine","request_id":"req_1"}`},
	{name: "error-whose-message-is-the-stand-in", typ: "ERROR", clear: `{"code":"C","message":"sealed","sealed":"SEALED"}`,
		plaintext: filled(`{"message":"sealed"}`), payload: `{"code":"C","message":"sealed"}`},
	{name: "cancel", typ: "CANCEL", clear: `{"request_id":"req_1","sealed":"SEALED"}`,
		plaintext: filled(`{"reason":"found it myself"}`), payload: `{"reason":"found it myself","request_id":"req_1"}`},
	{name: "without-request-id", typ: "CANCEL", clear: `{"sealed":"SEALED"}`,
		plaintext: filled(`{"reason":"why not"}`), payload: `{"reason":"why not"}`},
	{name: "with-an-empty-request-id", typ: "CANCEL", clear: `{"request_id":"","sealed":"SEALED"}`,
		plaintext: filled(`{}`), payload: `{"request_id":""}`},
	{name: "without-thread", typ: "REQUEST", clear: sealedRequest, begin: without("thread"),
		plaintext: filled(`{"title":"T"}`), payload: `{"intent":"translation.en_zh","request_id":"req_1","title":"T"}`},
	{name: "request-id-with-escapes", typ: "REQUEST", clear: `{"request_id":"\u0001\"<é😀","intent":"i","sealed":"SEALED"}`,
		plaintext: filled(`{}`), payload: `{"intent":"i","request_id":"\u0001\"<é😀"}`},
	{name: "to-oneself", typ: "REQUEST", clear: sealedRequest, recipient: &alice,
		plaintext: filled(`{"title":"T"}`), payload: `{"intent":"translation.en_zh","request_id":"req_1","title":"T"}`},
	{name: "empty-object-without-padding", typ: "RESULT", clear: `{"status":"s","sealed":"SEALED"}`, plaintext: `{}`, payload: `{"status":"s"}`},
	{name: "not-canonical", typ: "REQUEST", clear: sealedRequest, plaintext: "\t{ \"z\": 1.0,\r\n\"a\": \"\\u0041\\/\" }\n",
		payload: `{"a":"A/","intent":"translation.en_zh","request_id":"req_1","z":1}`},
	{name: "members-sorted-by-utf-16", typ: "OFFER", clear: `{"request_id":"r","sealed":"SEALED"}`,
		plaintext: filled(`{"s":3,"😀":2,"ﬁ":1}`), payload: `{"request_id":"r","s":3,"😀":2,"ﬁ":1}`},
	{name: "names-that-stand-clear-in-other-types", typ: "OFFER", clear: `{"request_id":"r","sealed":"SEALED"}`,
		plaintext: filled(`{"Request_id":5,"code":3,"intent":1,"message":4,"status":2}`),
		payload:   `{"Request_id":5,"code":3,"intent":1,"message":4,"request_id":"r","status":2}`},
	{name: "blocks-and-a-part", typ: "RESULT", clear: `{"request_id":"r","status":"success","sealed":"SEALED"}`,
		plaintext: filled(`{"output":"` + strings.Repeat("long ", 1000) + `"}`),
		payload:   `{"output":"` + strings.Repeat("long ", 1000) + `","request_id":"r","status":"success"}`},
	{name: "depth-64", typ: "RESULT", clear: `{"status":"s","sealed":"SEALED"}`, plaintext: `{"o":` + nested(63) + `}`,
		payload: `{"o":` + nested(63) + `,"status":"s"}`},
	{name: "sealed-then-signed-later", typ: "REQUEST", clear: sealedRequest, plaintext: filled(`{}`),
		payload: `{"intent":"translation.en_zh","request_id":"req_1"}`,
		finish: func(d draft) draft {
			return d.with("ts", `"2026-02-02T12:04:00Z"`).with("meta", `{"ttl":60}`).with("sender", `{"id":"`+alice.did+`","name":"A"}`)
		}},
}

func nested(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }

func without(name string) func(draft) draft { return with(name, "") }

func with(name, value string) func(draft) draft {
	return func(d draft) draft { return d.with(name, value) }
}

// sealingRefusals returns the messages that do not open. Each is the case "request" above with one fault.
func sealingRefusals() (cases []sealingCase) {
	add := func(c sealingCase) {
		if c.typ == "" {
			c.typ = "REQUEST"
		}
		if c.clear == "" {
			c.clear = sealedRequest
		}
		if c.plaintext == "" {
			c.plaintext = filled(`{"title":"T"}`)
		}
		cases = append(cases, c)
	}
	contextRefusals(add)
	textRefusals(add)
	plaintextRefusals(add)
	return cases
}

// contextRefusals adds sealed payloads that were copied to another message, and messages that are opened with a wrong
// key.
func contextRefusals(add func(sealingCase)) {
	signedBy := func(k key) func(draft) draft {
		return func(d draft) draft { d.key = k; return d.with("sender", party(k.did)) }
	}
	payload := strings.NewReplacer(`"req_1"`, `"req_2"`)
	for _, c := range []sealingCase{
		{name: "for-another", reason: "The payload is sealed to Bob, and Carol tries to open it.", opener: &carol},
		{name: "for-the-sender", reason: "The payload is sealed to Bob, so even its sender cannot open it.", opener: &alice},
		{name: "re-signed-by-another", reason: "Mallory has signed a copy of the payload as her own message.",
			finish: signedBy(mallory)},
		{name: "another-id", reason: "The payload was sealed for another id.", finish: with("id", `"msg_other"`)},
		{name: "another-thread", reason: "The payload was sealed for another thread.", finish: with("thread", `{"id":"thread_other"}`)},
		{name: "thread-lost",
			reason: "The payload was sealed for another thread, because without thread the request_id is the thread's id.",
			finish: without("thread")},
		{name: "another-type", reason: "The payload was sealed for a REQUEST, and the message is an OFFER.", typ: "REQUEST", clear: `{"request_id":"req_1","sealed":"SEALED"}`,
			finish: with("type", `"OFFER"`)},
		{name: "another-recipient", reason: "The payload is sealed to Bob, and the message is sent to Carol, who tries to open it.", opener: &carol,
			finish: with("recipient", party(carol.did))},
		{name: "another-recipient-for-the-first", reason: "The message is sent to Carol, so Bob cannot open it.",
			opener: &bob,
			finish: with("recipient", party(carol.did))},
		{name: "sealed-to-another-key-than-the-recipients", reason: "The payload is sealed to Bob's key, but the recipient is Carol.", opener: &bob,
			begin: with("recipient", party(carol.did))},
		{name: "no-recipient", reason: "A message without a recipient cannot be opened.", finish: without("recipient")},
		{name: "another-request-id", reason: "The payload was sealed for another request_id.",
			finish: func(d draft) draft { return d.with("payload", payload.Replace(d.value("payload"))) }},
		{name: "request-id-lost", reason: "The payload was sealed with a request_id, which is missing.",
			finish: func(d draft) draft {
				return d.with("payload", strings.Replace(d.value("payload"), `"request_id":"req_1",`, "", 1))
			}},
		{name: "bad-signature", reason: "The signature is of another message.",
			signed: func(d draft) string { return d.withSig(quote(d.with("meta", `{"ttl":301}`).sig())) }},
		{name: "info-empty", reason: "The payload was sealed with an empty info.", info: func(string) string { return "" }},
		{name: "info-with-null", reason: "The info has a request_id of null, although the payload has no request_id.", typ: "CANCEL", clear: `{"sealed":"SEALED"}`,
			info: func(s string) string { return strings.Replace(s, `,"sender"`, `,"request_id":null,"sender"`, 1) }},
		{name: "info-with-an-empty-text", reason: "The info has an empty request_id, although the payload has no request_id.", typ: "CANCEL", clear: `{"sealed":"SEALED"}`,
			info: func(s string) string { return strings.Replace(s, `,"sender"`, `,"request_id":"","sender"`, 1) }},
		{name: "info-not-canonical", reason: "The info has a space, so it is not canonical.", info: func(s string) string { return strings.Replace(s, ":", ": ", 1) }},
		{name: "info-with-intent", reason: "The info has a seventh member.",
			info: func(s string) string {
				return strings.Replace(s, `,"recipient"`, `,"intent":"translation.en_zh","recipient"`, 1)
			}},
		{name: "aad", reason: "The payload was sealed with an aad.", aad: "agora"},
		{name: "manifest", reason: "A MANIFEST is never sealed.", typ: "MANIFEST", clear: `{"id":"m","sealed":"SEALED"}`, begin: func(d draft) draft {
			return d.with("thread", `{"id":"t"}`)
		}, finish: without("thread")},
		{name: "plain", reason: "The payload has no sealed member.", finish: with("payload", `{"request_id":"req_1","intent":"translation.en_zh","title":"T"}`)},
	} {
		add(c)
	}
}

// textRefusals adds sealed members that are malformed, or whose enc or ciphertext was changed.
func textRefusals(add func(sealingCase)) {
	raw := func(value string) func(string) string { return func(string) string { return value } }
	spelled := func(change func(string) string) func(string) string {
		return func(text string) string { return quote("v1." + change(text)) }
	}
	for _, c := range []sealingCase{
		{name: "sealed-null", reason: "The sealed member is null.", member: raw("null")},
		{name: "sealed-object", reason: "The sealed member is an object.", member: raw(`{"v1":""}`)},
		{name: "sealed-empty", reason: "The sealed member is an empty string.", member: raw(`""`)},
		{name: "sealed-version-only", reason: "Nothing follows the version.", member: raw(`"v1."`)},
		{name: "sealed-without-version", reason: "The text does not begin with v1.", member: func(text string) string { return quote(text) }},
		{name: "sealed-version-2", reason: "There is no version 2.", member: func(text string) string { return quote("v2." + text) }},
		{name: "sealed-version-in-upper-case", reason: "The version is v1 in lower case.", member: func(text string) string { return quote("V1." + text) }},
		{name: "base64-padded", reason: "The base64url is padded.",
			member: func(text string) string { return quote("v1." + pad64(text)) }},
		{name: "base64-standard-alphabet", reason: "The text uses the standard alphabet of base64, and not that of base64url.", member: spelled(strings.NewReplacer("-", "+", "_", "/").Replace)},
		{name: "base64-line-break", reason: "The base64url has a line break.", member: spelled(func(text string) string { return text[:64] + `\n` + text[64:] })},
		{name: "base64-space-in-front", reason: "The base64url begins with a space.", member: spelled(func(text string) string { return " " + text })},
		{name: "base64-last-bits", reason: "The spare bits of the last character are not zero.", plaintext: filled(`{}`) + " ",
			member: spelled(lastBits)},
		{name: "truncated-by-a-byte", reason: "The last byte of the tag is missing.", cut: 1},
		{name: "truncated-by-the-tag", reason: "The tag is missing.", cut: 16},
		{name: "truncated-to-enc", reason: "There is no ciphertext.", cut: 256 + 16},
		{name: "truncated-to-31-bytes", reason: "The text ends within enc.", cut: 256 + 16 + 1},
		{name: "bit-of-enc", reason: "A bit of enc was changed.", change: flipped(0)},
		{name: "top-bit-of-enc", reason: "X25519 ignores the bit of enc that was changed, but the secret also depends on the bytes of enc.", change: flipped(31*8 + 7)},
		{name: "bit-of-ciphertext", reason: "A bit of the ciphertext was changed.", change: flipped(32 * 8)},
		{name: "bit-of-tag", reason: "The last bit of the tag was changed.", change: flipped((32+256+16)*8 - 1)},
		{name: "one-byte-more", reason: "A byte follows the tag.", member: func(text string) string {
			raw, _ := base64.RawURLEncoding.DecodeString(text)
			return quote("v1." + base64.RawURLEncoding.EncodeToString(append(raw, 0)))
		}},
	} {
		add(c)
	}
	for _, p := range montgomerySmallOrder {
		add(sealingCase{name: "enc-of-small-order-" + p.name, reason: "The ephemeral key is of small order, so everybody knows the secret.", enc: p.u})
	}
}

func lastBits(text string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, text[len(text)-1])
	return text[:len(text)-1] + alphabet[last|1:last|1+1]
}

func pad64(text string) string { return text + strings.Repeat("=", -len(text)&3) }

func flipped(bit int) func([]byte) {
	return func(raw []byte) { raw[bit/8] ^= 1 << (bit % 8) }
}

// montgomerySmallOrder are the u coordinates for which X25519 returns zero, with any private key (RFC 7748 §6.1).
var montgomerySmallOrder = []struct{ name, u string }{
	{"0", "0000000000000000000000000000000000000000000000000000000000000000"},
	{"1", "0100000000000000000000000000000000000000000000000000000000000000"},
	{"8", "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"},
	{"8-other", "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"},
	{"p-minus-1", "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"},
	{"p", "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"},
	{"p-plus-1", "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"},
}

// plaintextRefusals adds messages that are sealed correctly but have a plaintext that is not allowed.
func plaintextRefusals(add func(sealingCase)) {
	for _, c := range []sealingCase{
		{name: "plaintext-array", reason: "The plaintext is not an object.", plaintext: filled(`["title"]`)},
		{name: "plaintext-string", reason: "The plaintext is not an object.", plaintext: filled(`"title"`)},
		{name: "plaintext-null", reason: "The plaintext is not an object.", plaintext: filled(`null`)},
		{name: "plaintext-of-spaces", reason: "The plaintext has only padding.", plaintext: filled(" ")},
		{name: "plaintext-twice", reason: "The plaintext has a second object.", plaintext: filled(`{"title":"T"} {}`)},
		{name: "plaintext-cut", reason: "The plaintext is not JSON.", plaintext: filled(`{"title":"T"`)},
		{name: "plaintext-filled-with-zeros", reason: "The padding has zero bytes, and only spaces are allowed.",
			plaintext: `{"title":"T"}` + "\x00\x00\x00"},
		{name: "plaintext-byte-order-mark", reason: "The plaintext begins with a byte order mark.", plaintext: "\xef\xbb\xbf" + `{"title":"T"}`},
		{name: "plaintext-invalid-utf-8", reason: "The plaintext is not UTF-8.", plaintext: filled("{\"title\":\"\xff\"}")},
		{name: "plaintext-surrogate-alone", reason: "The plaintext has half of a surrogate pair.", plaintext: filled(`{"title":"\ud800"}`)},
		{name: "plaintext-number-1e400", reason: "The plaintext has a number that is too large for a double.",
			plaintext: filled(`{"title":1e400}`)},
		{name: "plaintext-duplicate", reason: "A name occurs twice in the plaintext.",
			plaintext: filled(`{"title":"T","title":"U"}`)},
		{name: "plaintext-duplicate-escaped", reason: "A name occurs twice in the plaintext, once with an escape.", plaintext: filled(`{"title":"T","\u0074itle":"U"}`)},
		{name: "plaintext-duplicate-nested", reason: "A name occurs twice in an inner object of the plaintext.", plaintext: filled(`{"params":[{"a":1,"a":1}]}`)},
		{name: "plaintext-depth-65", reason: "The plaintext has 65 levels.", plaintext: filled(`{"o":` + nested(64) + `}`)},
		{name: "plaintext-with-intent",
			reason:    "The payload has an unencrypted intent, so the sealed part must not have one.",
			plaintext: filled(`{"intent":"other"}`)},
		{name: "plaintext-with-the-same-intent", reason: "The payload has an unencrypted intent, so the sealed part must not have one, not even the same.", plaintext: filled(`{"intent":"translation.en_zh"}`)},
		{name: "plaintext-with-intent-escaped", reason: "The payload has an unencrypted intent, so the sealed part must not have one, not even with an escape.", plaintext: filled(`{"\u0069ntent":"other"}`)},
		{name: "plaintext-with-request-id", reason: "The sealed part has a request_id, which must never be sealed.", plaintext: filled(`{"request_id":"req_2"}`)},
		{name: "plaintext-with-request-id-and-none-clear", reason: "The sealed part has a request_id, which must never be sealed, even if the payload has none outside.", typ: "CANCEL",
			clear: `{"sealed":"SEALED"}`, plaintext: filled(`{"request_id":"req_1"}`)},
		{name: "plaintext-with-status", reason: "The payload has an unencrypted status, so the sealed part must not have one.", typ: "RESULT", clear: `{"status":"success","sealed":"SEALED"}`,
			plaintext: filled(`{"status":"failure"}`)},
		{name: "plaintext-with-code", reason: "The payload has an unencrypted code, so the sealed part must not have one.", typ: "ERROR", clear: `{"code":"C","message":"sealed","sealed":"SEALED"}`,
			plaintext: filled(`{"code":"D","message":"m"}`)},
		{name: "plaintext-with-sealed", reason: "The sealed part must not have a sealed member.",
			plaintext: filled(`{"sealed":"v1."}`)},
		{name: "error-without-message",
			reason: "The sealed part of an ERROR must have the message, because the one outside is only a stand-in.",
			typ:    "ERROR",
			clear:  `{"code":"C","message":"sealed","sealed":"SEALED"}`, plaintext: filled(`{"details":1}`)},
		{name: "error-with-an-empty-message", reason: "The message of an ERROR must not be empty.", typ: "ERROR",
			clear: `{"code":"C","message":"sealed","sealed":"SEALED"}`, plaintext: filled(`{"message":""}`)},
		{name: "error-with-two-messages", reason: "The message outside of the sealed part is not the stand-in.", typ: "ERROR",
			clear: `{"code":"C","message":"clear","sealed":"SEALED"}`, plaintext: filled(`{"message":"m"}`)},
		{name: "error-without-the-stand-in", reason: "There is no message outside of the sealed part.", typ: "ERROR", clear: `{"code":"C","sealed":"SEALED"}`,
			plaintext: filled(`{"message":"m"}`)},
		{name: "clear-member-beside", reason: "Besides sealed, only clear members are allowed, and title is not one.",
			clear: `{"request_id":"req_1","intent":"translation.en_zh","title":"clear","sealed":"SEALED"}`, plaintext: filled(`{"params":1}`)},
		{name: "clear-message-of-a-request", reason: "Only an ERROR may have a message outside of the sealed part.",
			clear: `{"request_id":"req_1","intent":"i","message":"sealed","sealed":"SEALED"}`},
		{name: "clear-status-of-an-offer", reason: "Only a RESULT may have a status outside of the sealed part.",
			typ:   "OFFER",
			clear: `{"request_id":"req_1","status":"s","sealed":"SEALED"}`},
	} {
		add(c)
	}
}
