// Package envelope implements the messages of Agora: their strict JSON form, their signatures, and ways to build them.
//
// Parsers can disagree about the meaning of unusual JSON. To avoid that, a received body is first converted to its
// RFC 8785 form. Only that form is decoded (by exact member names), verified, stored and delivered. Parse converts and
// decodes; Verify checks the signature. Between the two, a relay checks the time (package replay), because that is
// cheaper than verifying a signature. Do not trust anything in an Envelope before Verify has returned nil.
//
// The package does not implement the rules of threads and does not read the clock. Every error of Parse and Verify is
// an *Error.
package envelope

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// Limits and defaults of the wire form (PROTOCOL §1).
const (
	Version         = "1.0"
	DefaultMaxBytes = 128 << 10 // maximum size of a body, and of an envelope's canonical form
	MaxDepth        = 64        // maximum nesting of arrays and objects in a body
	MaxHop          = 16
	DefaultTTL      = 300 * time.Second // lifetime of a message without meta.ttl
)

// Type is the kind of a message. The list is closed: a new type is a constant here and a row of typeTable.
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

// Party is the sender of an envelope. Name and URL are what the sender claims; nobody has checked them.
type Party struct {
	ID   didkey.DID
	Name string
	URL  string
}

// Envelope is one message, decoded from its canonical form. It does not change after Parse.
type Envelope struct {
	ID        string
	TS        time.Time // the time of sending, as the sender claims
	Type      Type
	Sender    Party
	Recipient didkey.DID // empty: a broadcast
	// Thread is thread.id, or payload.request_id if the message has no thread. It is empty for a MANIFEST.
	Thread    string
	RequestID string // payload.request_id, if any
	Payload   []byte // canonical JSON object
	Opened    bool   // Open has decrypted Payload; the canonical form still has it sealed
	TTL       time.Duration
	Hop       int
	Relays    []string // meta.relay: origins of the relays that may accept the message; nil: any relay
	Home      *Home    // meta.home; nil: none
	Re        Hash     // meta.re: the message that this one answers; zero: it does not say
	Continues Hash     // meta.continues, only of a REQUEST: the first REQUEST of the job; zero: it is the first one

	sig       string
	canonical []byte
}

// Hash is a content hash, see Envelope.Hash.
type Hash [sha256.Size]byte

// String returns h in lower-case hex.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText returns h in lower-case hex.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads the form that String returns.
func (h *Hash) UnmarshalText(text []byte) error {
	parsed, ok := ParseHash(string(text))
	if !ok {
		return fmt.Errorf("%q is not the hash of a message, 64 hex digits in lower case", text)
	}
	*h = parsed
	return nil
}

// ParseHash reads the form that String returns.
func ParseHash(text string) (h Hash, ok bool) {
	n, err := hex.Decode(h[:], []byte(text[:min(len(text), 2*len(h))]))
	return h, err == nil && n == len(h) && h.String() == text
}

// Home is the one relay that decides a thread (RELAYS §1).
type Home struct {
	DID didkey.DID `json:"did"`
	URL string     `json:"url"` // its origin, where to reach it
}

// Canonical returns the RFC 8785 form of the whole envelope. These are the bytes to store and deliver. Callers must not
// modify them.
func (e *Envelope) Canonical() []byte { return e.canonical }

// Hash returns the SHA-256 of the canonical form. It is the same on every relay.
func (e *Envelope) Hash() [sha256.Size]byte { return sha256.Sum256(e.canonical) }

// MarshalJSON returns the canonical form.
func (e *Envelope) MarshalJSON() ([]byte, error) { return e.canonical, nil }

// PayloadString returns a string member of the payload. It returns "" if there is no such member, or if it is not a
// string.
func (e *Envelope) PayloadString(name string) string {
	text, _ := stringValue(member(e.Payload, name))
	return text
}

// DecodePayload decodes the payload into v, which is one of this package's payload types or any other type. Members are
// matched by their exact names, unlike in encoding/json. So the payload means the same to readers in every language.
func (e *Envelope) DecodePayload(v any) error {
	return json.Unmarshal(keepExactNames(e.Payload, reflect.TypeOf(v)), v)
}

// ExpiresAt returns the time after which the sender no longer wants the message to be delivered: ts + ttl.
func (e *Envelope) ExpiresAt() time.Time { return e.TS.Add(e.TTL) }

// signedPart returns the bytes that the signature covers.
func (e *Envelope) signedPart() []byte { return withoutSig(e.canonical) }

// withoutSig returns a canonical object without its member sig. The result is canonical too, because the order of the
// other members does not change.
func withoutSig(canonical []byte) []byte {
	start := 1
	for name, value := range members(canonical) {
		end := start + len(`"":`) + len(name) + len(value)
		if name == "sig" {
			if end < len(canonical)-1 {
				end++ // remove the comma after sig too
			} else if start > 1 {
				start-- // sig is the last member: remove the comma before it
			}
			return slices.Concat(canonical[:start], canonical[end:])
		}
		start = end + 1
	}
	return canonical
}

// Verify checks the identifiers of sender and recipient, and the signature (PROTOCOL §1 "Signature", §2). It accepts
// the signatures that crypto/ed25519 accepts, except those by keys that package didkey refuses.
// Errors: CodeInvalidDID, CodeInvalidSignature.
func (e *Envelope) Verify() error { return e.VerifyWith(didkey.ParseVerifier) }

// VerifyWith is like Verify, but gets keys from parse. The Parse method of a didkey.Verifiers is such a function.
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

const sigLength = 86 // number of characters of 64 bytes in unpadded base64url

// decodeSig decodes a signature. It accepts only one spelling of each signature. Go's decoder skips line breaks, even
// in strict mode. The checks of both lengths together exclude them.
func decodeSig(text string) ([]byte, error) {
	if len(text) == sigLength {
		sig, err := base64.RawURLEncoding.Strict().DecodeString(text)
		if err == nil && len(sig) == ed25519.SignatureSize {
			return sig, nil
		}
	}
	return nil, Errorf(CodeInvalidSignature, "sig must be the 64 signature bytes as %d characters of unpadded base64url", sigLength)
}
