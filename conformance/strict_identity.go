package conformance

import (
	"encoding/base64"
	"encoding/hex"
	"strings"
	"time"
)

const didRules = "PROTOCOL §2"

// identityChecks are about did:key: one key has one name.
var identityChecks = []Check{
	{Number: "S-43", Title: "A did:key in another multibase is refused", Cites: didRules, run: refuses(invalidDID,
		variant{what: "the sender's key in hexadecimal", edit: respell(hexDID)},
		variant{what: "the sender's key in base64url", edit: respell(func(key []byte) string { return "did:key:u" + base64.RawURLEncoding.EncodeToString(key) })},
		variant{what: "the sender's key in base58-btc with the prefix of base58flickr", edit: respell(func(key []byte) string { return "did:key:Z" + base58(key) })},
		variant{what: "the sender's key in raw base58-btc", edit: respell(func(key []byte) string { return "did:key:" + base58(key) })},
	)},
	{Number: "S-44", Title: "A did:key has exactly one spelling", Cites: didRules + " (accepted ⇒ re-encoding gives the same text)", run: refuses(invalidDID,
		variant{what: "a fragment behind the sender's did", edit: respell(func(key []byte) string { return base58DID(key) + "#" + base58(key) })},
		variant{what: "a space before the sender's did", edit: respell(func(key []byte) string { return " " + base58DID(key) })},
		variant{what: "a line break behind the sender's did", edit: respell(func(key []byte) string { return base58DID(key) + "\n" })},
		variant{what: "DID:KEY in upper case", edit: respell(func(key []byte) string { return "DID:KEY:z" + base58(key) })},
		variant{what: "a 1, which is a leading zero, before the key's digits", edit: respell(func(key []byte) string { return "did:key:z1" + base58(key) })},
		variant{what: "a letter base58 does not have", edit: respell(func(key []byte) string { return base58DID(key)[:55] + "0" })},
	)},
	{Number: "S-45", Title: "The length is checked before anything is decoded", Cites: didRules + " (base58 is quadratic)", run: longDID},
	{Number: "S-46", Title: "A did:key of another kind of key, or of another length, is refused", Cites: didRules, run: refuses(invalidDID,
		variant{what: "an X25519 key", edit: respell(func(key []byte) string { return base58DID(append([]byte{0xec, 1}, key[2:]...)) })},
		variant{what: "31 bytes of key", edit: respell(func(key []byte) string { return base58DID(key[:33]) })},
		variant{what: "33 bytes of key", edit: respell(func(key []byte) string { return base58DID(append(key, 0)) })},
	)},
	{Number: "S-47", Title: "A low-order point is no sender: one constant signature would verify everything it says", Cites: didRules,
		run: refuses(invalidDID, lowOrder()...)},
	{Number: "S-48", Title: "A key whose encoding is not canonical (y ≥ p) is refused", Cites: didRules, run: refuses(invalidDID,
		variant{what: "y = p + 3 as the sender's key", edit: pointDID("f0" + strings.Repeat("ff", 30) + "7f")},
		variant{what: "y = p + 1, another way to write the identity", edit: pointDID("ee" + strings.Repeat("ff", 30) + "7f"), sign: identitySignature},
	)},
	{Number: "S-49", Title: "A recipient's did:key is held to the same rules", Cites: didRules + "; §1 recipient", run: refuses(invalidDID,
		variant{what: "a recipient in hexadecimal", edit: recipientAs(hexDID)},
		variant{what: "a recipient that is the identity point", edit: recipientAs(func([]byte) string { return didOf("01" + strings.Repeat("00", 31)) })},
		variant{what: "a recipient with a fragment", edit: recipientAs(func(key []byte) string { return base58DID(key) + "#key" })},
		variant{what: "an X25519 recipient", edit: recipientAs(func(key []byte) string { return base58DID(append([]byte{0xec, 1}, key[2:]...)) })},
	)},
}

// didOf writes 32 bytes in hexadecimal as a did:key, whether they are a usable key or not.
func didOf(point string) string {
	key, err := hex.DecodeString(point)
	if err != nil {
		panic(err) // ours
	}
	return base58DID(append([]byte{0xed, 1}, key...))
}

func pointDID(point string) func(message) { return set("sender.id", didOf(point)) }

func recipientAs(as func(key []byte) string) func(message) {
	return func(m message) { set("recipient.id", as(keyBytes(m["recipient"].(map[string]any)["id"].(string))))(m) }
}

// lowOrder returns messages by points of small order.
func lowOrder() []variant {
	var variants []variant
	for what, point := range map[string]string{
		"the identity point, with the signature that verifies everything": "01" + strings.Repeat("00", 31),
		"the point of order 2":                          "ec" + strings.Repeat("ff", 30) + "7f",
		"a point of order 4":                            strings.Repeat("00", 32),
		"a point of order 4 with the sign bit":          strings.Repeat("00", 31) + "80",
		"a point of order 8":                            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
		"the other point of order 8, with the sign bit": "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
	} {
		variants = append(variants, variant{what: what + " as sender", edit: pointDID(point), sign: identitySignature})
	}
	return variants
}

// identitySignature is R = the identity point, s = 0. Under a key of order one it verifies for every message.
func identitySignature(m message, from actor) letter {
	sig := make([]byte, 64)
	sig[0] = 1
	return withSig(base64.RawURLEncoding.EncodeToString(sig))(m, from)
}

func longDID(p *probe) {
	client := p.actor("a client")
	m := p.request(client, actor{})
	set("sender.id", "did:key:z6Mk"+strings.Repeat("z", 100_000))(m)
	started := time.Now()
	p.refuse(invalidDID, "a REQUEST whose sender's did has 100 000 characters", m.sign(client).body)
	p.expect("the refusal takes no time")
	if took := time.Since(started); took > promptly {
		p.failf("it took %v", took.Round(time.Millisecond))
	}
}
