package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"github.com/agora-relay/agora/testvectors"
)

// A sealingCase is one message of Alice's to Bob. In its texts SEALED stands for the sealed payload member's text.
type sealingCase struct {
	name, reason string // no reason: it opens
	typ          string
	clear        string // the payload that relays see
	plaintext    string // as it is encrypted, padding included
	payload      string // what opens, where it opens

	info      func(string) string  // another info than the right one
	enc       string               // hex, instead of the ephemeral public key
	aad       string               // instead of none
	member    func(string) string  // the sealed member as JSON, made from the ciphertext's base64url
	change    func(raw []byte)     // changes enc and ciphertext
	cut       int                  // bytes left out at the end
	begin     func(d draft) draft  // changes the envelope before its payload is sealed
	finish    func(d draft) draft  // changes it between sealing and signing
	recipient *key                 // instead of Bob
	opener    *key                 // instead of the recipient
	signed    func(d draft) string // instead of a good signature
}

// sealings are the vectors of sealing.json: first keys, then messages.
func sealings() (vectors []testvectors.SealingVector) {
	for n := byte(1); n <= 12; n++ {
		k := newKey(n)
		private := x25519Private(k.seed)
		vectors = append(vectors, testvectors.SealingVector{Name: "key-of-seed-" + hex.EncodeToString([]byte{n}), Expect: testvectors.Accept,
			DID: k.did, SeedHex: hex.EncodeToString(k.seed), PrivateHex: hex.EncodeToString(private), PublicHex: hex.EncodeToString(x25519Public(private))})
	}
	for sign, name := range []string{"key-of-the-base-point", "key-of-the-base-point-negated"} {
		point := withSign(unhex("58"+strings.Repeat("66", 31)), byte(sign))
		vectors = append(vectors, testvectors.SealingVector{Name: name, Expect: testvectors.Accept, DID: spell(point),
			PublicHex: "09" + strings.Repeat("00", 31)})
	}
	for _, p := range smallOrder {
		vectors = append(vectors, testvectors.SealingVector{Name: "key-of-small-order-" + p.name, Expect: testvectors.Reject,
			DID: spell(unhex(p.y)), Reason: "A point of small order is no identity, so nothing is sealed to it."})
	}
	for _, c := range slices.Concat(sealingTable, sealingRefusals()) {
		vectors = append(vectors, c.vector())
	}
	return vectors
}

func (c sealingCase) vector() testvectors.SealingVector {
	recipient := bob
	if c.recipient != nil {
		recipient = *c.recipient
	}
	d := newDraft(c.name).with("type", quote(c.typ)).with("recipient", party(recipient.did))
	if c.begin != nil {
		d = c.begin(d)
	}
	// The place is read off the clear members before the ciphertext is among them.
	info := d.with("payload", c.clear).place()
	if c.info != nil {
		info = c.info(info)
	}
	var enc []byte
	if c.enc != "" {
		enc = unhex(c.enc)
	}
	ephemeral := sha256.Sum256([]byte(c.name))
	ephemeral[0] &= 248
	ephemeral[31] = ephemeral[31]&127 | 64
	private := x25519Private(recipient.seed)
	s := hpkeSeal(ephemeral[:], enc, x25519Public(private), []byte(info), []byte(c.aad), []byte(c.plaintext))
	raw := slices.Concat(s.enc, s.ciphertext)
	if c.change != nil {
		c.change(raw)
	}
	text := base64.RawURLEncoding.EncodeToString(raw[:len(raw)-c.cut])
	member := quote("v1." + text)
	if c.member != nil {
		member = c.member(text)
	}
	d = d.with("payload", strings.Replace(c.clear, `"SEALED"`, member, 1))
	if c.finish != nil {
		d = c.finish(d)
	}
	whole := d.signed
	if c.signed != nil {
		whole = func() string { return c.signed(d) }
	}
	if c.opener != nil {
		recipient = *c.opener
	}
	v := testvectors.SealingVector{Name: c.name, SeedHex: hex.EncodeToString(recipient.seed), Envelope: canonical([]byte(whole()))}
	if c.reason != "" {
		v.Expect, v.Reason = testvectors.Reject, c.reason
		return v
	}
	v.Expect, v.Payload = testvectors.Accept, []byte(c.payload)
	v.EphemeralHex, v.Info, v.Plaintext = hex.EncodeToString(ephemeral[:]), []byte(info), []byte(c.plaintext)
	v.SharedSecretHex, v.KeyHex, v.NonceHex = hex.EncodeToString(s.shared), hex.EncodeToString(s.key), hex.EncodeToString(s.nonce)
	return v
}

// filled fills a text up with spaces to a multiple of 256 bytes.
func filled(text string) string {
	return text + strings.Repeat(" ", (256-len(text)%256)%256)
}

// place is what a ciphertext is bound to: these six members of the message and no others, in RFC 8785 form.
func (d draft) place() string {
	var e struct {
		ID, Type                  string
		Sender, Recipient, Thread struct{ ID string }
		Payload                   struct {
			RequestID *string `json:"request_id"`
		}
	}
	if err := json.Unmarshal([]byte(d.text()), &e); err != nil {
		panic(err)
	}
	place := map[string]string{"id": e.ID, "type": e.Type, "sender": e.Sender.ID, "recipient": e.Recipient.ID, "thread": e.Thread.ID}
	if e.Payload.RequestID != nil {
		place["request_id"] = *e.Payload.RequestID
		if e.Thread.ID == "" {
			place["thread"] = *e.Payload.RequestID
		}
	}
	text, err := json.Marshal(place)
	if err != nil {
		panic(err)
	}
	return string(canonical(text))
}
