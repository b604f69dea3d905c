package envelope

import (
	"bytes"
	"crypto/rand"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// Signer signs messages with one identity. A didkey.Key is a Signer; a hardware key may be another.
type Signer interface {
	DID() didkey.DID
	Sign(message []byte) ([]byte, error) // 64 bytes, Ed25519
}

// Draft is a message before it is signed. Only Payload is required; it decides the type.
type Draft struct {
	Payload    Payload
	ID         string    // empty: Sign makes a new "msg_" id
	TS         time.Time // zero: the time of signing; written with milliseconds
	SenderName string
	SenderURL  string
	Recipient  didkey.DID    // empty: broadcast
	Thread     string        // empty: the payload's request_id, or a new id if that is not a valid id of a Request
	TTL        time.Duration // whole seconds; 0: DraftTTL
	Relays     []string      // origins of the relays that may accept the message; nil: any relay
	Home       *Home         // the relay that decides the thread; nil: the one that stores the message
	Re         Hash          // the message that this one answers; zero: it does not say
	Continues  Hash          // for a Request: the first REQUEST of the job; zero: it is the first one
	Seal       bool          // encrypt the payload to the recipient (docs/SEALING.md); never sign it unencrypted
}

// DraftTTL is the lifetime that Sign gives a Draft whose TTL is 0. It is long enough for a recipient that is offline
// overnight.
const DraftTTL = 24 * time.Hour

// Sign completes d as of now, signs it and parses the result. So the returned Envelope is what a relay reads.
func (d Draft) Sign(signer Signer, now time.Time) (*Envelope, error) {
	if d.Payload == nil {
		return nil, Errorf(CodeInvalidRequest, "a draft needs a payload; the payload determines the message type")
	}
	if d.TTL == 0 {
		d.TTL = DraftTTL
	}
	if d.TTL%time.Second != 0 {
		return nil, Errorf(CodeInvalidRequest, "the TTL must be a whole number of seconds, not %v", d.TTL)
	}
	if pointer, ok := d.Payload.(*Request); ok {
		d.Payload = *pointer
	}
	if request, ok := d.Payload.(Request); ok {
		if request.RequestID == "" {
			prefix := "thread" // of the thread too
			if d.Thread != "" {
				prefix = "req"
			}
			request.RequestID = NewID(prefix, now)
			d.Payload = request
		}
		if d.Thread == "" {
			// The thread and the request share one id, because some agents omit the thread and answer with request_id
			// alone.
			if d.Thread = request.RequestID; !ValidID(d.Thread) {
				d.Thread = NewID("thread", now)
			}
		}
	}
	if d.ID == "" {
		d.ID = NewID("msg", now)
	}
	if d.TS.IsZero() {
		d.TS = now
	}
	sender := map[string]any{"id": signer.DID()}
	if d.SenderName != "" {
		sender["name"] = d.SenderName
	}
	if d.SenderURL != "" {
		sender["url"] = d.SenderURL
	}
	message := map[string]any{
		"version": Version, "id": d.ID, "ts": FormatTime(d.TS), "type": d.Payload.messageType(),
		"sender": sender, "payload": d.Payload, "meta": d.meta(),
	}
	if d.Recipient != "" {
		message["recipient"] = map[string]any{"id": d.Recipient}
	}
	if d.Thread != "" {
		message["thread"] = map[string]any{"id": d.Thread}
	}
	if d.Seal {
		if err := seal(message); err != nil {
			return nil, err
		}
	}
	return sign(signer, message)
}

// meta returns the member meta.
func (d Draft) meta() map[string]any {
	meta := map[string]any{"ttl": int64(d.TTL / time.Second)}
	if d.Relays != nil {
		meta["relay"] = d.Relays
	}
	if d.Home != nil {
		meta["home"] = d.Home
	}
	for name, hash := range map[string]Hash{"re": d.Re, "continues": d.Continues} {
		if hash != (Hash{}) {
			meta[name] = hash.String()
		}
	}
	return meta
}

// seal replaces the payload of message by the sealed payload.
func seal(message map[string]any) error {
	text, err := canonicalOf(message)
	if err != nil {
		return err
	}
	plain, err := decode(text)
	if err != nil {
		return err
	}
	sealed, err := plain.seal()
	message["payload"] = json.RawMessage(sealed)
	return err
}

// SignJSON signs an envelope written by hand. It adds version, id, ts and sender if they are absent, and replaces any
// signature. A sender, if present, must be the signer.
func SignJSON(signer Signer, body []byte, now time.Time) (*Envelope, error) {
	canonical, err := Canonicalize(body)
	if err != nil {
		return nil, err
	}
	if !isObject(canonical) {
		return nil, Errorf(CodeInvalidRequest, "an envelope must be one JSON object")
	}
	if inner, ok := unwrap(canonical); ok {
		canonical = inner
	}
	message := map[string]any{
		"version": Version, "id": NewID("msg", now), "ts": FormatTime(now), "sender": map[string]any{"id": signer.DID()},
	}
	for name, value := range members(canonical) {
		if name == "sender" {
			if id, _ := stringValue(member(value, "id")); id != string(signer.DID()) {
				return nil, Errorf(CodeInvalidDID, "sender.id differs from %s, the identity of the signing key; "+
					"leave sender out, or sign with the sender's key", signer.DID())
			}
		}
		var text string // name without its escapes
		if err := json.Unmarshal([]byte(`"`+name+`"`), &text); err != nil {
			return nil, err
		}
		message[text] = json.RawMessage(value)
	}
	return sign(signer, message)
}

func sign(signer Signer, message map[string]any) (*Envelope, error) {
	signed, err := signedJSON(signer, message)
	if err != nil {
		return nil, err
	}
	return Parse(signed, 0)
}

// signedJSON signs message. It returns the RFC 8785 form of message with the signature in the member sig.
func signedJSON(signer Signer, message map[string]any) ([]byte, error) {
	delete(message, "sig")
	unsigned, err := canonicalOf(message)
	if err != nil {
		return nil, err
	}
	sig, err := signer.Sign(unsigned)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	message["sig"] = base64.RawURLEncoding.EncodeToString(sig)
	return canonicalOf(message)
}

func canonicalOf(message map[string]any) ([]byte, error) {
	var text bytes.Buffer
	if err := json.NewEncoder(&text).Encode(message); err != nil {
		return nil, Errorf(CodeInvalidRequest, "the payload cannot be written as JSON; check its raw JSON members")
	}
	return Canonicalize(text.Bytes())
}

// FormatTime formats t as envelopes built by this package do: RFC 3339 in UTC with milliseconds.
func FormatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

var crockford = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewID returns prefix, an underscore and a ULID in lower case. A ULID has 48 bits of milliseconds and 80 random bits.
// Later ids sort after earlier ones, which keeps a store's index of ids compact.
func NewID(prefix string, now time.Time) string {
	// 26 characters of base32 hold 130 bits. A ULID has 128 bits, with two zero bits in front. So the 16 bytes are
	// shifted right by two bits.
	var ulid, shifted [17]byte
	binary.BigEndian.PutUint64(ulid[:8], uint64(now.UnixMilli())<<16)
	rand.Read(ulid[6:16]) // never returns an error (crypto/rand)
	for i := range shifted {
		shifted[i] = ulid[i] >> 2
		if i > 0 {
			shifted[i] |= ulid[i-1] << 6
		}
	}
	return prefix + "_" + crockford.EncodeToString(shifted[:])[:26]
}
