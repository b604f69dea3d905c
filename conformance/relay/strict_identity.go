package relay

import (
	"encoding/base64"
	"encoding/hex"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

const didRules = "PROTOCOL §2"

// identityChecks test the rules for did:key. Each key has exactly one valid did.
var identityChecks = []relayCheck{
	{Number: "S-43", Title: "A did:key that is not in the multibase base58-btc is refused",
		Cites: didRules, run: refuses(invalidDID,
			variant{what: "the sender's key in hexadecimal", edit: respell(hexDID)},
			variant{what: "the sender's key in base64url",
				edit: respell(
					func(key []byte) string { return "did:key:u" + base64.RawURLEncoding.EncodeToString(key) })},
			variant{what: "the sender's key in base58-btc, but with the prefix Z of base58flickr",
				edit: respell(func(key []byte) string { return "did:key:Z" + base58(key) })},
			variant{what: "the sender's key in base58-btc without the prefix z",
				edit: respell(func(key []byte) string { return "did:key:" + base58(key) })},
		)},
	{Number: "S-44", Title: "A did:key is accepted only in its one canonical spelling",
		Cites: didRules + " (accepted ⇒ re-encoding gives the same text)", run: refuses(invalidDID,
			variant{what: "a fragment after the sender's did",
				edit: respell(func(key []byte) string { return base58DID(key) + "#" + base58(key) })},
			variant{what: "a space before the sender's did",
				edit: respell(func(key []byte) string { return " " + base58DID(key) })},
			variant{what: "a line break after the sender's did",
				edit: respell(func(key []byte) string { return base58DID(key) + "\n" })},
			variant{what: "a sender's did that begins with DID:KEY in upper case",
				edit: respell(func(key []byte) string { return "DID:KEY:z" + base58(key) })},
			variant{what: "a leading 1 (a zero byte in base58) before the key's digits",
				edit: respell(func(key []byte) string { return "did:key:z1" + base58(key) })},
			variant{what: "a character that base58 does not have",
				edit: respell(func(key []byte) string { return base58DID(key)[:55] + "0" })},
		)},
	{Number: "S-45", Title: "The length of a did:key is checked before it is decoded",
		Cites: didRules + " (base58 is quadratic)", run: longDID},
	{Number: "S-46", Title: "A did:key with another key type or key length is refused",
		Cites: didRules, run: refuses(invalidDID,
			variant{what: "a sender with an X25519 key",
				edit: respell(func(key []byte) string { return base58DID(append([]byte{0xec, 1}, key[2:]...)) })},
			variant{what: "a sender's did with 31 key bytes",
				edit: respell(func(key []byte) string { return base58DID(key[:33]) })},
			variant{what: "a sender's did with 33 key bytes",
				edit: respell(func(key []byte) string { return base58DID(append(key, 0)) })},
		)},
	{Number: "S-47",
		Title: "A sender whose key is a low-order point is refused, because one signature could fit all its messages",
		Cites: didRules,
		run:   refuses(invalidDID, lowOrder()...)},
	{Number: "S-48", Title: "A sender whose key has a non-canonical encoding (y ≥ p) is refused",
		Cites: didRules, run: refuses(invalidDID,
			variant{what: "y = p + 3 as the sender's key", edit: pointDID("f0" + strings.Repeat("ff", 30) + "7f")},
			variant{what: "y = p + 1, a non-canonical form of the identity point, as the sender's key",
				edit: pointDID("ee" + strings.Repeat("ff", 30) + "7f"), sign: identitySignature},
		)},
	{Number: "S-49", Title: "The did:key of a recipient must follow the same rules as that of a sender",
		Cites: didRules + "; §1 recipient", run: refuses(invalidDID,
			variant{what: "a recipient's key in hexadecimal", edit: recipientAs(hexDID)},
			variant{what: "a recipient that is the identity point",
				edit: recipientAs(func([]byte) string { return didOf("01" + strings.Repeat("00", 31)) })},
			variant{what: "a recipient with a fragment",
				edit: recipientAs(func(key []byte) string { return base58DID(key) + "#key" })},
			variant{what: "a recipient with an X25519 key",
				edit: recipientAs(func(key []byte) string { return base58DID(append([]byte{0xec, 1}, key[2:]...)) })},
		)},
}

// didOf returns a did:key for 32 bytes in hexadecimal. The bytes need not be a valid key.
func didOf(point string) string {
	key, err := hex.DecodeString(point)
	if err != nil {
		panic(err) // cannot happen: the points are constants of this file
	}
	return base58DID(append([]byte{0xed, 1}, key...))
}

func pointDID(point string) func(kit.Message) { return kit.Set("sender.id", didOf(point)) }

func recipientAs(as func(key []byte) string) func(kit.Message) {
	return func(m kit.Message) {
		kit.Set("recipient.id", as(keyBytes(m["recipient"].(map[string]any)["id"].(string))))(m)
	}
}

// lowOrder returns variants whose sender's key is a point of low order.
func lowOrder() []variant {
	var variants []variant
	for what, point := range map[string]string{
		"the identity point, with the signature that verifies for every message,": "01" + strings.Repeat("00", 31),
		"the point of order 2":                     "ec" + strings.Repeat("ff", 30) + "7f",
		"a point of order 4":                       strings.Repeat("00", 32),
		"a point of order 4, sign bit set":         strings.Repeat("00", 31) + "80",
		"a point of order 8":                       "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
		"the other point of order 8, sign bit set": "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
	} {
		variants = append(variants, variant{what: what + " as sender", edit: pointDID(point), sign: identitySignature})
	}
	return variants
}

// identitySignature signs with R = the identity point and s = 0. With a key of order 1 this signature verifies for
// every message.
func identitySignature(m kit.Message, from kit.Actor) kit.SignedMessage {
	sig := make([]byte, 64)
	sig[0] = 1
	return withSig(base64.RawURLEncoding.EncodeToString(sig))(m, from)
}

func longDID(p *relayProbe) {
	client := p.Actor("a client")
	m := p.Request(client, kit.Actor{})
	kit.Set("sender.id", "did:key:z6Mk"+strings.Repeat("z", 100_000))(m)
	body := m.Sign(client).Body
	// A machine that stalls makes one answer late. A relay that decodes the did makes each answer late.
	var took time.Duration
	for range 3 {
		started := time.Now()
		p.PostRefused(invalidDID, "a REQUEST whose sender's did has more than 100 000 characters", body)
		if took = time.Since(started); took <= kit.PromptLimit {
			return
		}
	}
	p.Expect("the refusal comes at once")
	p.Failf("the refusal took %v", took.Round(time.Millisecond))
}
