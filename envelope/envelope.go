// Package envelope is the message of Agora: its strict wire form, its signature, and ways to build one.
//
// The rule that keeps parsers from disagreeing about what was signed: a received body is brought into its RFC 8785
// form first, and only that form is decoded, by exact member names, verified, stored and delivered. Parse does the
// first half, Verify the second; between them a relay asks its clock (package replay), because that is cheaper than
// a signature. Nothing in an Envelope may be believed before Verify has returned nil.
//
// The package knows no thread rules and no clock; every error of Parse and Verify is an *Error.
package envelope

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// Limits of the wire form (PROTOCOL §1).
const (
	Version         = "1.0"
	DefaultMaxBytes = 128 << 10 // of a body, and of the canonical form of an envelope
	MaxDepth        = 64        // of nested arrays and objects in a body
	MaxHop          = 16
	DefaultTTL      = 300 * time.Second // what an absent meta.ttl means
)

// Type is the kind of a message. The list is closed.
type Type string

const (
	TypeRequest  Type = "REQUEST"
	TypeOffer    Type = "OFFER"
	TypeAccept   Type = "ACCEPT"
	TypeResult   Type = "RESULT"
	TypeError    Type = "ERROR"
	TypeCancel   Type = "CANCEL"
	TypeManifest Type = "MANIFEST" // announces capabilities and belongs to no thread
)

// Types returns every Type.
func Types() []Type {
	return []Type{TypeRequest, TypeOffer, TypeAccept, TypeResult, TypeError, TypeCancel, TypeManifest}
}

// TypeNames lists the types for people.
func TypeNames() string {
	var names []string
	for _, t := range Types() {
		names = append(names, string(t))
	}
	return strings.Join(names, ", ")
}

// Known reports whether t is one of Types.
func (t Type) Known() bool { return slices.Contains(Types(), t) }

// Party is a sender as the envelope presents it; name and url are the sender's own words.
type Party struct {
	ID   didkey.DID
	Name string
	URL  string
}

// Envelope is one message, decoded from its canonical form. It is not changed after Parse.
type Envelope struct {
	ID        string
	TS        time.Time // the sender's claim
	Type      Type
	Sender    Party
	Recipient didkey.DID // empty: a broadcast
	// Thread is thread.id, or payload.request_id where the message names no thread; empty for a MANIFEST.
	Thread    string
	RequestID string // payload.request_id, if any
	Payload   []byte // canonical JSON object
	Opened    bool   // Payload is what was sealed (see Open); the canonical form has it sealed still
	TTL       time.Duration
	Hop       int
	Relays    []string // meta.relay: the origins this message is meant for; nil: any

	sig       string
	canonical []byte
}

// Canonical returns the RFC 8785 form of the whole envelope, the bytes to store and deliver. Callers do not change
// them.
func (e *Envelope) Canonical() []byte { return e.canonical }

// Hash returns the SHA-256 of the canonical form, the same on every relay.
func (e *Envelope) Hash() [sha256.Size]byte { return sha256.Sum256(e.canonical) }

// MarshalJSON returns the canonical form.
func (e *Envelope) MarshalJSON() ([]byte, error) { return e.canonical, nil }

// PayloadString returns a string member of the payload, empty if it has none of that name or it is no string.
func (e *Envelope) PayloadString(name string) string {
	text, _ := stringValue(member(e.Payload, name))
	return text
}

// DecodePayload fills v, one of this package's payload types or any other, from the payload. Members are known by
// their exact names, so that what was signed means the same to readers in every language.
func (e *Envelope) DecodePayload(v any) error {
	return json.Unmarshal(exactly(e.Payload, reflect.TypeOf(v)), v)
}

// ExpiresAt is when the sender wants the message forgotten: ts + ttl.
func (e *Envelope) ExpiresAt() time.Time { return e.TS.Add(e.TTL) }

// signedPart returns what the signature covers.
func (e *Envelope) signedPart() []byte { return withoutSig(e.canonical) }

// withoutSig returns a canonical object without its member sig. Members are sorted, so cutting one out leaves
// canonical text.
func withoutSig(canonical []byte) []byte {
	start := 1
	for name, value := range members(canonical) {
		end := start + len(`"":`) + len(name) + len(value)
		if name == "sig" {
			if end < len(canonical)-1 {
				end++ // the comma behind
			} else if start > 1 {
				start-- // or the one before
			}
			return slices.Concat(canonical[:start], canonical[end:])
		}
		start = end + 1
	}
	return canonical
}

// Verify checks the parties' identifiers and the signature (PROTOCOL §1 "Signature", §2). It accepts exactly what
// crypto/ed25519 accepts, less the keys didkey refuses.
// Errors: CodeInvalidDID, CodeInvalidSignature.
func (e *Envelope) Verify() error { return e.VerifyWith(didkey.ParseVerifier) }

// VerifyWith is Verify with another way to get a key, such as a didkey.Verifiers' Parse.
func (e *Envelope) VerifyWith(parse func(string) (*didkey.Verifier, error)) error {
	sender, err := parse(string(e.Sender.ID))
	if err != nil {
		return Errorf(CodeInvalidDID, "sender.id: %v", err)
	}
	if e.Recipient != "" {
		if _, err := parse(string(e.Recipient)); err != nil {
			return Errorf(CodeInvalidDID, "recipient.id: %v", err)
		}
	}
	sig, err := decodeSig(e.sig)
	if err != nil {
		return err
	}
	if !sender.Verify(e.signedPart(), sig) {
		return Errorf(CodeInvalidSignature, "the signature does not verify under sender.id; "+
			"sign the RFC 8785 form of the envelope without its sig member")
	}
	return nil
}

const sigLength = 86 // unpadded base64url of 64 bytes

// decodeSig accepts one spelling of a signature only. Go's decoder skips line breaks even when strict, which the two
// length checks together rule out.
func decodeSig(text string) ([]byte, error) {
	if len(text) == sigLength {
		sig, err := base64.RawURLEncoding.Strict().DecodeString(text)
		if err == nil && len(sig) == ed25519.SignatureSize {
			return sig, nil
		}
	}
	return nil, Errorf(CodeInvalidSignature, "sig must be the 64 signature bytes as %d characters of unpadded base64url", sigLength)
}
