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

// A sealingCase is one message by Alice to Bob. In its texts, SEALED stands for the value of the sealed member.
type sealingCase struct {
	name, reason string // the message opens if reason is empty
	typ          string
	clear        string // the payload that relays see, with SEALED
	plaintext    string // the text to encrypt, with padding
	payload      string // the opened payload, if the message opens

	info      func(string) string  // replaces the correct info
	enc       string               // hex; replaces the ephemeral public key
	aad       string               // replaces the empty aad
	member    func(string) string  // makes the value of the sealed member, as JSON, from the ciphertext's base64url
	change    func(raw []byte)     // changes enc and ciphertext
	cut       int                  // number of bytes to remove at the end
	begin     func(d draft) draft  // changes the envelope before its payload is sealed
	finish    func(d draft) draft  // changes the envelope between sealing and signing
	recipient *key                 // replaces Bob
	opener    *key                 // replaces the recipient as the one who opens
	signed    func(d draft) string // signs the envelope; replaces a good signature
}

// sealings returns the vectors of sealing.json: first keys, then messages.
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
			DID: spell(unhex(p.y)), Reason: "A point of small order is not an identity, so nothing may be sealed to it."})
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
	// The info has clear members of the payload only, so it does not depend on the ciphertext.
	info := d.with("payload", c.clear).sealInfo()
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

// filled appends spaces to a text until its length is a multiple of 256 bytes.
func filled(text string) string {
	return text + strings.Repeat(" ", (256-len(text)%256)%256)
}

// sealInfo returns the info of a sealing: exactly these six members of the message, in RFC 8785 form.
func (d draft) sealInfo() string {
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
	info := map[string]string{"id": e.ID, "type": e.Type, "sender": e.Sender.ID, "recipient": e.Recipient.ID,
		"thread": e.Thread.ID}
	if e.Payload.RequestID != nil {
		info["request_id"] = *e.Payload.RequestID
		if e.Thread.ID == "" {
			info["thread"] = *e.Payload.RequestID
		}
	}
	text, err := json.Marshal(info)
	if err != nil {
		panic(err)
	}
	return string(canonical(text))
}
