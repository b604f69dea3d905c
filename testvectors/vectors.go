package testvectors

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
)

//go:generate go run ./generate

//go:embed didkey.json canonicalize.json sign.json verify.json window.json threads.json conversations.json
//go:embed reads.json sealing.json schema/*.json
var files embed.FS

// Files returns this project's own vectors and, in the folder schema, the JSON Schemas of them and of the protocol's
// messages. README.md explains them to implementers in any language.
func Files() fs.FS { return files }

// Expect is what an implementation must do with a vector. The list is closed.
type Expect string

const (
	Accept Expect = "accept"
	Reject Expect = "reject"
)

// File is the form of every vector file.
type File[T any] struct {
	Description string `json:"description"`
	Vectors     []T    `json:"vectors"`
}

// DIDKeyVector asks whether a text is the one accepted spelling of a usable key (didkey.json).
type DIDKeyVector struct {
	Name         string `json:"name"`
	DID          string `json:"did"`
	Expect       Expect `json:"expect"`
	PublicKeyHex string `json:"publicKeyHex,omitempty"` // if accepted
	SeedHex      string `json:"seedHex,omitempty"`      // RFC 8032 private key, where it is known
	Reason       string `json:"reason,omitempty"`       // if rejected
}

// CanonicalizeVector asks for the RFC 8785 form of a text (canonicalize.json).
type CanonicalizeVector struct {
	Name   string `json:"name"`
	Input  []byte `json:"input"`
	Expect Expect `json:"expect"`
	Output []byte `json:"output,omitempty"` // if accepted
	Reason string `json:"reason,omitempty"` // if rejected
}

// SignVector asks for the signature of an envelope, byte by byte (sign.json).
type SignVector struct {
	Name     string `json:"name"`
	SeedHex  string `json:"seedHex"` // RFC 8032 private key
	Input    []byte `json:"input"`   // unsigned envelope, not in canonical form
	Expect   Expect `json:"expect"`  // always Accept
	Signed   []byte `json:"signed"`  // what the signature covers
	Sig      string `json:"sig"`
	Envelope []byte `json:"envelope"` // canonical, with sig
	SHA256   string `json:"sha256"`   // hex, of Envelope
}

// VerifyVector asks whether a relay takes a body, threads aside (verify.json).
type VerifyVector struct {
	Name      string `json:"name"`
	Now       string `json:"now"` // the relay's clock, RFC 3339
	Body      []byte `json:"body"`
	Expect    Expect `json:"expect"`
	ID        string `json:"id,omitempty"`        // if accepted
	Sender    string `json:"sender,omitempty"`    // if accepted
	Canonical []byte `json:"canonical,omitempty"` // if accepted: of the envelope, without a wrapper
	Code      string `json:"code,omitempty"`      // if rejected
	Reason    string `json:"reason,omitempty"`    // if rejected
}

// WindowVector asks whether a message is fresh and until when it is kept (window.json).
type WindowVector struct {
	Name      string `json:"name"`
	Now       string `json:"now"` // RFC 3339, as all times here
	TS        string `json:"ts"`
	TTL       int64  `json:"ttl"` // seconds
	Expect    Expect `json:"expect"`
	ExpiresAt string `json:"expiresAt,omitempty"` // if accepted
	Code      string `json:"code,omitempty"`      // if rejected
	Reason    string `json:"reason,omitempty"`    // if rejected
}

// ThreadVector is one cell of the thread table (threads.json).
type ThreadVector struct {
	Name       string          `json:"name"`
	Request    string          `json:"request"` // "broadcast" or "named"
	History    []ThreadMessage `json:"history"`
	Elapsed    int64           `json:"elapsed,omitempty"` // seconds between the last message of History and Message
	State      string          `json:"state"`             // when Message arrives
	Message    ThreadMessage   `json:"message"`
	Expect     Expect          `json:"expect"`
	StateAfter string          `json:"state_after,omitempty"` // if accepted
	Code       string          `json:"code,omitempty"`        // if rejected
	Reason     string          `json:"reason,omitempty"`      // if rejected
}

// ReadVector asks whether a token is good for a request (reads.json).
type ReadVector struct {
	Name    string `json:"name"`
	Now     string `json:"now"`    // the relay's clock, RFC 3339
	Origin  string `json:"origin"` // the relay's
	Method  string `json:"method"`
	Target  string `json:"target"` // as sent
	Token   string `json:"token"`  // what follows "Agora " in Authorization
	Expect  Expect `json:"expect"`
	SeedHex string `json:"seedHex,omitempty"` // if accepted: RFC 8032 private key
	DID     string `json:"did,omitempty"`     // if accepted: the reader
	Signed  []byte `json:"signed,omitempty"`  // if accepted: what the signature covers
	Code    string `json:"code,omitempty"`    // if rejected
	Detail  string `json:"detail,omitempty"`  // if rejected: details.reason of the answer
	Reason  string `json:"reason,omitempty"`  // if rejected
}

// ThreadMessage is a message of a ThreadVector; By and To are roles: client, agent, rival, withdrawn, stranger.
type ThreadMessage struct {
	By        string `json:"by"`
	Type      string `json:"type"`
	To        string `json:"to,omitempty"`        // empty: no recipient
	RequestID string `json:"requestId,omitempty"` // "other" or "none"; empty: the REQUEST's
	Payload   string `json:"payload,omitempty"`   // "incomplete": without a member its type requires
}

// Conversation is a sequence of posts to one relay that starts empty (conversations.json).
type Conversation struct {
	Name  string             `json:"name"`
	Steps []ConversationStep `json:"steps"`
}

// ConversationStep is one post. Client and State are of the thread the message moved, where the step asks for them.
type ConversationStep struct {
	Now       string `json:"now"` // the relay's clock, RFC 3339
	Body      []byte `json:"body"`
	Expect    Expect `json:"expect"`
	Code      string `json:"code,omitempty"`      // if rejected
	Reason    string `json:"reason,omitempty"`    // if rejected
	State     string `json:"state,omitempty"`     // if accepted
	Client    string `json:"client,omitempty"`    // if accepted
	Duplicate bool   `json:"duplicate,omitempty"` // accepted as a repetition, stored once
}

// SealingVector is an identity's key for X25519 or, with Envelope, a message to be opened with it (sealing.json).
type SealingVector struct {
	Name       string `json:"name"`
	DID        string `json:"did,omitempty"`        // without Envelope: the identity
	SeedHex    string `json:"seedHex,omitempty"`    // RFC 8032 private key of who opens
	PrivateHex string `json:"privateHex,omitempty"` // X25519 private key of that seed
	PublicHex  string `json:"publicHex,omitempty"`  // X25519 public key of DID, if accepted
	Envelope   []byte `json:"envelope,omitempty"`   // canonical, signed
	Expect     Expect `json:"expect"`
	Reason     string `json:"reason,omitempty"` // if rejected

	// If accepted: how it was sealed, and what opens.
	EphemeralHex    string `json:"ephemeralHex,omitempty"` // X25519 private key
	Info            []byte `json:"info,omitempty"`
	SharedSecretHex string `json:"sharedSecretHex,omitempty"`
	KeyHex          string `json:"keyHex,omitempty"`
	NonceHex        string `json:"nonceHex,omitempty"`
	Plaintext       []byte `json:"plaintext,omitempty"`
	Payload         []byte `json:"payload,omitempty"` // canonical
}

// DIDKey returns the vectors of didkey.json, Canonicalize those of canonicalize.json, and so on. They panic only if
// the embedded files are not what they are tested to be.
func DIDKey() []DIDKeyVector { return load[DIDKeyVector]("didkey.json") }

func Canonicalize() []CanonicalizeVector { return load[CanonicalizeVector]("canonicalize.json") }

func Sign() []SignVector { return load[SignVector]("sign.json") }

func Verify() []VerifyVector { return load[VerifyVector]("verify.json") }

func Window() []WindowVector { return load[WindowVector]("window.json") }

func Threads() []ThreadVector { return load[ThreadVector]("threads.json") }

func Conversations() []Conversation { return load[Conversation]("conversations.json") }

func Sealing() []SealingVector { return load[SealingVector]("sealing.json") }

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
