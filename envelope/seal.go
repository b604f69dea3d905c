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

// A sealed payload can be read by its recipient only (docs/SEALING.md). What the relay asks for stays clear; the rest
// is one member, encrypted to the key that the recipient's did:key names and bound to the place of the message, so
// that nobody can sign a copy of it as his own. The signature covers it like any payload, and relays notice nothing.

const (
	sealedMember  = "sealed"
	sealedVersion = "v1."    // what the member's text begins with
	sealedUnit    = 256      // bytes; plaintexts are padded to a multiple of it
	sealedMessage = "sealed" // stands for the message of a sealed ERROR, which relays want to see
)

// clearMembers are the members of a payload that relays read, and that therefore are not sealed.
func clearMembers(t Type) []string {
	switch t {
	case TypeRequest:
		return []string{"request_id", "intent"}
	case TypeResult:
		return []string{"request_id", "status"}
	case TypeError:
		return []string{"request_id", "code"}
	}
	return []string{"request_id"}
}

// ErrOpen is the one error of Open. It does not tell what is wrong, so that nobody passes it on to who sent the
// message.
var ErrOpen = errors.New("envelope: the sealed payload cannot be opened")

// Opener opens what is sealed to one identity; didkey.Key is one, a hardware key may be another.
type Opener interface {
	DID() didkey.DID
	X25519() (ecdh.KeyExchanger, error)
}

// Sealed reports whether the payload travels sealed. It is still closed if Opened is false.
func (e *Envelope) Sealed() bool {
	return e.Opened || e.Type != TypeManifest && member(e.Payload, sealedMember) != nil
}

// Open verifies e and returns a copy of it whose Payload is what the sender has sealed: what it would be had the
// message been sent plain. The canonical form and the hash stay those of the message as it was sent. Error: ErrOpen.
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

// splitSealed returns the clear members of a sealed payload, as an object, and what its sealed member holds. A sealed
// payload has no other members, as a reader could take them for sealed.
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
	// Encoded again, so that it has one spelling: the decoder skips line breaks and takes any last bits.
	return clear, ciphertext, ok && standIn && versioned && err == nil && base64.RawURLEncoding.EncodeToString(ciphertext) == text
}

// readSecret returns the members that were sealed, as a canonical object. None may be one that stands clear in messages
// of this type: what the relay has read is what the reader reads.
func readSecret(t Type, plaintext []byte) (secret []byte, ok bool) {
	if depth(plaintext) > MaxDepth {
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

// seal returns the payload of e, a message that is whole but for its signature, with all in it sealed that need not be
// clear.
func (e *Envelope) seal() ([]byte, error) {
	switch {
	case e.Type == TypeManifest:
		return nil, Errorf(CodeInvalidRequest, "a MANIFEST is for everybody and cannot be sealed")
	case e.Recipient == "":
		return nil, Errorf(CodeInvalidRequest, "a broadcast cannot be sealed: name the recipient, to whose key the payload is encrypted")
	case e.Sealed():
		return nil, Errorf(CodeInvalidRequest, "the payload has a member %q already", sealedMember)
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
		return nil, Errorf(CodeInvalidRequest, "the recipient could not open this payload: it nests deeper than %d levels, "+
			"or is an ERROR's without a message", MaxDepth)
	}
	ciphertext, err := e.encrypt(public, padded(secret))
	if err != nil {
		return nil, err
	}
	text := sealedVersion + base64.RawURLEncoding.EncodeToString(ciphertext)
	return join(clear, []byte(`{"`+sealedMember+`":"`+text+`"}`)), nil
}

// padded fills a plaintext up with spaces, so that its length tells less. They mean nothing in JSON.
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

// encrypt and decrypt are HPKE's base mode in one shot (RFC 9180 §6.1), with an empty aad: everything that a ciphertext
// is bound to is in the info, and the signature binds the rest.

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

// sealInfo returns the place of the message in RFC 8785 form. request_id is absent where the payload has none.
func (e *Envelope) sealInfo() ([]byte, error) {
	info := map[string]any{"id": e.ID, "recipient": e.Recipient, "sender": e.Sender.ID, "thread": e.Thread, "type": e.Type}
	if value := member(e.Payload, "request_id"); value != nil {
		info["request_id"] = json.RawMessage(value)
	}
	return canonicalOf(info)
}
