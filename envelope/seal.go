package envelope

import (
	"bytes"
	"crypto/ecdh"
	"crypto/hpke"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/agora-relay/agora/didkey"
)

// Only its recipient can read a sealed payload (docs/SEALING.md). The members that relays read stay unencrypted; these
// are the clear members. All other members are encrypted into one member, to the key in the recipient's did:key. The
// ciphertext is bound to the sender and the message (see sealInfo), so another sender cannot sign a copy of it. The
// signature covers a sealed payload like any other payload, and relays handle it like any other payload.

const (
	sealedMember  = "sealed"
	sealedVersion = "v1."    // prefix of the member's text
	sealedUnit    = 256      // bytes; plaintexts are padded to a multiple of it
	sealedMessage = "sealed" // replaces the message of a sealed ERROR, because relays require one
)

// clearMembers returns the members of a payload that relays read. They are not sealed.
func clearMembers(t Type) []string {
	row, _ := t.Info()
	return row.Clear
}

// ErrOpen is the only error of Open. It gives no reason, so that callers cannot reveal the reason to the sender.
var ErrOpen = errors.New("envelope: the sealed payload cannot be opened")

// Opener decrypts payloads that are sealed to one identity. A didkey.Key is an Opener; a hardware key may be another.
type Opener interface {
	DID() didkey.DID
	X25519() (ecdh.KeyExchanger, error)
}

// Sealed reports whether the payload was sent sealed. Payload is still encrypted if Opened is false.
func (e *Envelope) Sealed() bool {
	return e.Opened || e.Type != TypeManifest && member(e.Payload, sealedMember) != nil
}

// Open verifies e and decrypts its payload. It returns a copy of e with the payload that the sender sealed, as if the
// message had been sent unencrypted. Canonical and Hash of the copy are still those of the sealed message.
// Error: ErrOpen.
func (e *Envelope) Open(opener Opener) (*Envelope, error) {
	if e.Opened || !e.Sealed() || e.Recipient != opener.DID() || e.Verify() != nil {
		return nil, ErrOpen
	}
	clear, ciphertext, ok := e.splitSealed()
	if !ok {
		return nil, ErrOpen
	}
	plaintext, err := e.decrypt(opener, ciphertext)
	if err != nil {
		return nil, ErrOpen
	}
	secret, ok := readSecret(e.Type, plaintext)
	if !ok {
		return nil, ErrOpen
	}
	opened := *e
	opened.Opened = true
	if opened.Payload, err = Canonicalize(join(clear, secret)); err != nil {
		return nil, ErrOpen
	}
	return &opened, nil
}

// splitSealed returns the clear members of a sealed payload, as an object, and the bytes in its sealed member. ok is
// false if the payload has other members, because a reader could believe that they were sealed.
func (e *Envelope) splitSealed() (clear, ciphertext []byte, ok bool) {
	var text string
	standIn := e.Type != TypeError
	clear = rebuild('{', '}', func(add func(...[]byte)) {
		ok = true
		for name, value := range members(e.Payload) {
			switch {
			case name == sealedMember:
				text, _ = stringValue(value)
			case slices.Contains(clearMembers(e.Type), name):
				add([]byte(`"`+name+`":`), value)
			case !standIn && name == "message" && string(value) == `"`+sealedMessage+`"`:
				standIn = true
			default:
				ok = false
			}
		}
	})
	text, versioned := strings.CutPrefix(text, sealedVersion)
	ciphertext, err := base64.RawURLEncoding.DecodeString(text)
	// The decoder skips line breaks and accepts any spare bits in the last character. Comparing with the encoding of
	// the result allows only one spelling.
	return clear, ciphertext, ok && standIn && versioned && err == nil && base64.RawURLEncoding.EncodeToString(ciphertext) == text
}

// readSecret returns the decrypted members as a canonical object. ok is false if one of them is a clear member of this
// message type. So the reader sees the same clear members as the relay.
func readSecret(t Type, plaintext []byte) (secret []byte, ok bool) {
	if Depth(plaintext) > MaxDepth {
		return nil, false
	}
	secret, err := Canonicalize(plaintext)
	if err != nil || !isObject(secret) {
		return nil, false
	}
	for name := range members(secret) {
		if name == sealedMember || slices.Contains(clearMembers(t), name) {
			return nil, false
		}
	}
	message, _ := stringValue(member(secret, "message"))
	return secret, t != TypeError || message != ""
}

// seal returns the payload of e with all members encrypted except the clear ones. e is complete except for its
// signature.
func (e *Envelope) seal() ([]byte, error) {
	switch {
	case e.Type == TypeManifest:
		return nil, Errorf(CodeInvalidRequest, "a MANIFEST is public and cannot be sealed; send it without sealing")
	case e.Recipient == "":
		return nil, Errorf(CodeInvalidRequest, "a broadcast cannot be sealed; "+
			"name a recipient, because the payload is encrypted to the recipient's key")
	case e.Sealed():
		return nil, Errorf(CodeInvalidRequest, "the payload already has a member %q; remove it", sealedMember)
	}
	public, err := e.Recipient.X25519()
	if err != nil {
		return nil, Errorf(CodeInvalidDID, "recipient.id: %v", err)
	}
	clear := rebuild('{', '}', func(add func(...[]byte)) {
		for _, name := range clearMembers(e.Type) {
			if value := member(e.Payload, name); value != nil {
				add([]byte(`"`+name+`":`), value)
			}
		}
		if e.Type == TypeError {
			add([]byte(`"message":"` + sealedMessage + `"`))
		}
	})
	secret := rebuild('{', '}', func(add func(...[]byte)) {
		for name, value := range members(e.Payload) {
			if !slices.Contains(clearMembers(e.Type), name) {
				add([]byte(`"`+name+`":`), value)
			}
		}
	})
	if _, ok := readSecret(e.Type, secret); !ok {
		return nil, Errorf(CodeInvalidRequest, "the recipient could not open this payload: "+
			"it is nested deeper than %d levels, or it is an ERROR without a message", MaxDepth)
	}
	ciphertext, err := e.encrypt(public, padded(secret))
	if err != nil {
		return nil, err
	}
	text := sealedVersion + base64.RawURLEncoding.EncodeToString(ciphertext)
	return join(clear, []byte(`{"`+sealedMember+`":"`+text+`"}`)), nil
}

// padded appends spaces to a plaintext, so that the length of the ciphertext reveals less. Spaces mean nothing in JSON.
func padded(plaintext []byte) []byte {
	missing := (sealedUnit - len(plaintext)%sealedUnit) % sealedUnit
	return append(plaintext, bytes.Repeat([]byte(" "), missing)...)
}

// join returns the members of two objects as one object, in no particular order.
func join(a, b []byte) []byte {
	switch {
	case len(a) == len("{}"):
		return b
	case len(b) == len("{}"):
		return a
	}
	return slices.Concat(a[:len(a)-1], []byte(","), b[1:])
}

// encrypt and decrypt use HPKE in base mode, single-shot (RFC 9180 §6.1), with an empty aad. The info contains
// everything that the ciphertext must be bound to. The signature covers the rest.

func (e *Envelope) encrypt(public *ecdh.PublicKey, plaintext []byte) ([]byte, error) {
	info, err := e.sealInfo()
	if err != nil {
		return nil, err
	}
	key, err := hpke.NewDHKEMPublicKey(public)
	if err != nil {
		return nil, err
	}
	return hpke.Seal(key, hpke.HKDFSHA256(), hpke.ChaCha20Poly1305(), info, plaintext)
}

func (e *Envelope) decrypt(opener Opener, ciphertext []byte) ([]byte, error) {
	info, err := e.sealInfo()
	if err != nil {
		return nil, err
	}
	exchanger, err := opener.X25519()
	if err != nil {
		return nil, err
	}
	key, err := hpke.NewDHKEMPrivateKey(exchanger)
	if err != nil {
		return nil, err
	}
	return hpke.Open(key, hpke.HKDFSHA256(), hpke.ChaCha20Poly1305(), info, ciphertext)
}

// sealInfo returns the members of the message that its ciphertext is bound to, in RFC 8785 form. request_id is absent
// if the payload has none.
func (e *Envelope) sealInfo() ([]byte, error) {
	info := map[string]any{"id": e.ID, "recipient": e.Recipient, "sender": e.Sender.ID, "thread": e.Thread, "type": e.Type}
	if value := member(e.Payload, "request_id"); value != nil {
		info["request_id"] = json.RawMessage(value)
	}
	return canonicalOf(info)
}
