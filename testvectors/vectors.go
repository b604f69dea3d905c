package testvectors

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
)

//go:generate go run ./generate
//go:generate go run ./protocol

//go:embed didkey.json canonicalize.json sign.json verify.json window.json threads.json conversations.json
//go:embed reads.json sealing.json log.json relays.json schema/*.json
var files embed.FS

// Files returns this project's own vectors. The folder schema has the JSON Schemas of the vectors and of the protocol's
// messages. README.md explains the files to implementers in any language.
func Files() fs.FS { return files }

// Expect is the required result of a vector. The list is closed.
type Expect string

const (
	Accept Expect = "accept"
	Reject Expect = "reject"
)

// File is the structure of every vector file.
type File[T any] struct {
	Description string `json:"description"`
	Vectors     []T    `json:"vectors"`
}

// DIDKeyVector tests whether a text is the one accepted spelling of a usable key (didkey.json).
type DIDKeyVector struct {
	Name         string `json:"name"`
	DID          string `json:"did"`
	Expect       Expect `json:"expect"`
	PublicKeyHex string `json:"publicKeyHex,omitempty"` // if accepted
	SeedHex      string `json:"seedHex,omitempty"`      // RFC 8032 private key, if known
	Reason       string `json:"reason,omitempty"`       // if rejected
}

// CanonicalizeVector tests the RFC 8785 form of a text (canonicalize.json).
type CanonicalizeVector struct {
	Name   string `json:"name"`
	Input  []byte `json:"input"`
	Expect Expect `json:"expect"`
	Output []byte `json:"output,omitempty"` // if accepted
	Reason string `json:"reason,omitempty"` // if rejected
}

// SignVector tests the exact signature of an envelope (sign.json).
type SignVector struct {
	Name     string `json:"name"`
	SeedHex  string `json:"seedHex"` // RFC 8032 private key
	Input    []byte `json:"input"`   // unsigned envelope, not in canonical form
	Expect   Expect `json:"expect"`  // always Accept
	Signed   []byte `json:"signed"`  // the bytes that the signature covers
	Sig      string `json:"sig"`
	Envelope []byte `json:"envelope"` // canonical, with sig
	SHA256   string `json:"sha256"`   // hex, of Envelope
}

// VerifyVector tests whether a relay accepts a body. The rules of threads are not tested (verify.json).
type VerifyVector struct {
	Name      string `json:"name"`
	Now       string `json:"now"` // time on the relay's clock, RFC 3339
	Body      []byte `json:"body"`
	Expect    Expect `json:"expect"`
	ID        string `json:"id,omitempty"`        // if accepted
	Sender    string `json:"sender,omitempty"`    // if accepted
	Canonical []byte `json:"canonical,omitempty"` // if accepted: the canonical form of the envelope, without a wrapper
	Code      string `json:"code,omitempty"`      // if rejected
	Reason    string `json:"reason,omitempty"`    // if rejected
}

// WindowVector tests whether a message is fresh, and until when it is kept (window.json).
type WindowVector struct {
	Name      string `json:"name"`
	Now       string `json:"now"` // RFC 3339, like all times here
	TS        string `json:"ts"`
	TTL       int64  `json:"ttl"` // seconds
	Expect    Expect `json:"expect"`
	ExpiresAt string `json:"expiresAt,omitempty"` // if accepted
	Code      string `json:"code,omitempty"`      // if rejected
	Reason    string `json:"reason,omitempty"`    // if rejected
}

// ThreadVector tests one message in one situation of the thread table (threads.json).
type ThreadVector struct {
	Name       string          `json:"name"`
	Request    string          `json:"request"` // "broadcast" or "named"
	History    []ThreadMessage `json:"history"`
	Elapsed    int64           `json:"elapsed,omitempty"` // seconds between the last message of History and Message
	State      string          `json:"state"`             // state of the thread when Message arrives
	Message    ThreadMessage   `json:"message"`
	Expect     Expect          `json:"expect"`
	StateAfter string          `json:"state_after,omitempty"` // if accepted
	Code       string          `json:"code,omitempty"`        // if rejected
	Reason     string          `json:"reason,omitempty"`      // if rejected
}

// ReadVector tests whether a token is valid for a request (reads.json).
type ReadVector struct {
	Name    string `json:"name"`
	Now     string `json:"now"`    // time on the relay's clock, RFC 3339
	Origin  string `json:"origin"` // origin of the relay
	Method  string `json:"method"`
	Target  string `json:"target"` // path and query, as sent
	Token   string `json:"token"`  // the Authorization header after "Agora "
	Expect  Expect `json:"expect"`
	SeedHex string `json:"seedHex,omitempty"` // if accepted: RFC 8032 private key
	DID     string `json:"did,omitempty"`     // if accepted: the reader
	Signed  []byte `json:"signed,omitempty"`  // if accepted: the bytes that the signature covers
	Code    string `json:"code,omitempty"`    // if rejected
	Detail  string `json:"detail,omitempty"`  // if rejected: details.reason in the response
	Reason  string `json:"reason,omitempty"`  // if rejected
}

// ThreadMessage is a message of a ThreadVector. By and To are roles: client, agent, rival, withdrawn or stranger.
type ThreadMessage struct {
	By        string `json:"by"`
	Type      string `json:"type"`
	To        string `json:"to,omitempty"`        // empty: no recipient
	RequestID string `json:"requestId,omitempty"` // "other" or "none"; empty: the same as in the REQUEST
	Payload   string `json:"payload,omitempty"`   // "incomplete": without the members that its type requires
}

// Conversation is a sequence of posts to one relay. The relay is empty at the start (conversations.json).
type Conversation struct {
	Name  string             `json:"name"`
	Steps []ConversationStep `json:"steps"`
}

// ConversationStep is one post. Client and State, if given, are those of the thread that the message belongs to.
type ConversationStep struct {
	Now       string `json:"now"` // time on the relay's clock, RFC 3339
	Body      []byte `json:"body"`
	Expect    Expect `json:"expect"`
	Code      string `json:"code,omitempty"`      // if rejected
	Reason    string `json:"reason,omitempty"`    // if rejected
	State     string `json:"state,omitempty"`     // if accepted
	Client    string `json:"client,omitempty"`    // if accepted
	Duplicate bool   `json:"duplicate,omitempty"` // accepted as a duplicate and not stored again
}

// SealingVector tests the X25519 key of an identity or, if it has an Envelope, a message to open (sealing.json).
type SealingVector struct {
	Name       string `json:"name"`
	DID        string `json:"did,omitempty"`        // without Envelope: the identity
	SeedHex    string `json:"seedHex,omitempty"`    // RFC 8032 private key of the identity that opens Envelope
	PrivateHex string `json:"privateHex,omitempty"` // X25519 private key of that seed
	PublicHex  string `json:"publicHex,omitempty"`  // X25519 public key of DID, if accepted
	Envelope   []byte `json:"envelope,omitempty"`   // canonical, signed
	Expect     Expect `json:"expect"`
	Reason     string `json:"reason,omitempty"` // if rejected

	// If accepted: the values of the sealing, and the opened payload.
	EphemeralHex    string `json:"ephemeralHex,omitempty"` // X25519 private key
	Info            []byte `json:"info,omitempty"`
	SharedSecretHex string `json:"sharedSecretHex,omitempty"`
	KeyHex          string `json:"keyHex,omitempty"`
	NonceHex        string `json:"nonceHex,omitempty"`
	Plaintext       []byte `json:"plaintext,omitempty"`
	Payload         []byte `json:"payload,omitempty"` // canonical
}

// LogVector tests a proof, or evidence against a relay (log.json).
type LogVector struct {
	Name      string   `json:"name"`
	Proof     string   `json:"proof,omitempty"`
	Witnesses []string `json:"witnesses,omitempty"` // verifier keys of known witnesses
	Message   []byte   `json:"message,omitempty"`   // canonical, signed: the proof must be for this message, by Relay
	Relay     string   `json:"relay,omitempty"`     // DID; with accepted Evidence: the relay that it is against
	Evidence  []byte   `json:"evidence,omitempty"`  // without Proof
	Expect    Expect   `json:"expect"`
	Reason    string   `json:"reason,omitempty"` // if rejected

	// If accepted:
	Index    int64    `json:"index,omitempty"`
	Size     int64    `json:"size,omitempty"`
	Leaf     string   `json:"leaf,omitempty"`
	Cosigned []string `json:"cosigned,omitempty"` // the names of witnesses and the seconds of their signatures
	Kind     string   `json:"kind,omitempty"`     // of Evidence
}

// RelaysVector tests a chain of messages, or evidence against a client (relays.json).
type RelaysVector struct {
	Name     string `json:"name"`
	Chain    []byte `json:"chain,omitempty"`    // a JSON list of signed envelopes
	Evidence []byte `json:"evidence,omitempty"` // without Chain
	Expect   Expect `json:"expect"`
	Reason   string `json:"reason,omitempty"` // if rejected

	// If accepted:
	Client string `json:"client,omitempty"` // DID; with Evidence: against whom it is

	// Of Chain, if accepted:
	Hashes   []string `json:"hashes,omitempty"` // the content hash of each message, in hex
	Agent    string   `json:"agent,omitempty"`  // DID
	Home     string   `json:"home,omitempty"`   // DID of the relay that decides
	Intent   string   `json:"intent,omitempty"`
	Price    *Price   `json:"price,omitempty"`
	Accepted bool     `json:"accepted,omitempty"`
	Status   string   `json:"status,omitempty"` // of the RESULT
}

// Price is the price of an OFFER.
type Price struct {
	Amount   float64 `json:"amount"`
	Currency string  `json:"currency"`
}

// DIDKey returns the vectors of didkey.json. It and the functions below panic only if an embedded file is invalid.
// Tests check that all files are valid.
func DIDKey() []DIDKeyVector { return load[DIDKeyVector]("didkey.json") }

// Canonicalize returns the vectors of canonicalize.json.
func Canonicalize() []CanonicalizeVector { return load[CanonicalizeVector]("canonicalize.json") }

// Sign returns the vectors of sign.json.
func Sign() []SignVector { return load[SignVector]("sign.json") }

// Verify returns the vectors of verify.json.
func Verify() []VerifyVector { return load[VerifyVector]("verify.json") }

// Window returns the vectors of window.json.
func Window() []WindowVector { return load[WindowVector]("window.json") }

// Threads returns the vectors of threads.json.
func Threads() []ThreadVector { return load[ThreadVector]("threads.json") }

// Conversations returns the vectors of conversations.json.
func Conversations() []Conversation { return load[Conversation]("conversations.json") }

// Sealing returns the vectors of sealing.json.
func Sealing() []SealingVector { return load[SealingVector]("sealing.json") }

// Log returns the vectors of log.json.
func Log() []LogVector { return load[LogVector]("log.json") }

// Relays returns the vectors of relays.json.
func Relays() []RelaysVector { return load[RelaysVector]("relays.json") }

// Reads returns the vectors of reads.json.
func Reads() []ReadVector { return load[ReadVector]("reads.json") }

func load[T any](name string) []T {
	data, err := files.ReadFile(name)
	var file File[T]
	if err == nil {
		err = json.Unmarshal(data, &file)
	}
	if err == nil && len(file.Vectors) == 0 {
		err = fmt.Errorf("no vectors")
	}
	if err != nil {
		panic("testvectors: " + name + ": " + err.Error())
	}
	return file.Vectors
}
