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

// Signer signs with one identity; didkey.Key is one, a hardware key may be another.
type Signer interface {
	DID() didkey.DID
	Sign(message []byte) ([]byte, error) // 64 bytes, Ed25519
}

// Draft is a message before it is signed. Only Payload is required; it decides the type.
type Draft struct {
	Payload    Payload
	ID         string    // empty: a new "msg_" id
	TS         time.Time // zero: the time of signing, in milliseconds
	SenderName string
	SenderURL  string
	Recipient  didkey.DID    // empty: broadcast
	Thread     string        // empty: for a Request, its request_id; else the payload's request_id decides
	TTL        time.Duration // whole seconds; 0: 24 h, so that a reader may be away for a night
	Relays     []string      // origins of the relays it is meant for; nil: any
	Seal       bool          // only the recipient can read the payload (docs/SEALING.md); it is never signed plain then
}

// DraftTTL is the lifetime Sign gives a Draft that names none.
const DraftTTL = 24 * time.Hour

// Sign completes d as of now, signs it and parses the result, so what it returns is what any relay will see.
func (d Draft) Sign(signer Signer, now time.Time) (*Envelope, error) {
	if d.Payload == nil {
		return nil, Errorf(CodeInvalidRequest, "a draft needs a payload; it decides the message's type")
	}
	if d.TTL == 0 {
		d.TTL = DraftTTL
	}
	if d.TTL%time.Second != 0 {
		return nil, Errorf(CodeInvalidRequest, "a TTL is a whole number of seconds, not %v", d.TTL)
	}
	if pointer, ok := d.Payload.(*Request); ok {
		d.Payload = *pointer
	}
	if request, ok := d.Payload.(Request); ok {
		if request.RequestID == "" {
			request.RequestID = NewID("req", now)
			d.Payload = request
		}
		if d.Thread == "" {
			// One id for both, because there are agents that leave the thread out and answer by request_id alone.
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
	meta := map[string]any{"ttl": int64(d.TTL / time.Second)}
	if d.Relays != nil {
		meta["relay"] = d.Relays
	}
	message := map[string]any{
		"version": Version, "id": d.ID, "ts": FormatTime(d.TS), "type": d.Payload.messageType(),
		"sender": sender, "payload": d.Payload, "meta": meta,
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

// seal puts a sealed payload in the place of the plain one.
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

// SignJSON signs an envelope written by hand: it fills version, id, ts and sender where they are absent and replaces
// any signature. The sender, if given, must be the signer.
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
				return nil, Errorf(CodeInvalidDID, "sender.id is not the signing key's %s; leave sender out or use its key", signer.DID())
			}
		}
		var text string // the name may hold escapes
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

// signedJSON returns the RFC 8785 form of message with the signature over it as its member sig.
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

// FormatTime writes t as envelopes made here carry it: UTC with milliseconds.
func FormatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

var crockford = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewID returns prefix, an underscore and a ULID in lower case: 48 bits of milliseconds and 80 random ones. Ids made
// later sort behind earlier ones, which keeps a store's index of them compact.
func NewID(prefix string, now time.Time) string {
	// 26 characters hold 130 bits: a ULID's 128 come behind two zero bits, so its 16 bytes are shifted right by two.
	var ulid, shifted [17]byte
	binary.BigEndian.PutUint64(ulid[:8], uint64(now.UnixMilli())<<16)
	rand.Read(ulid[6:16]) // never fails (crypto/rand)
	for i := range shifted {
		shifted[i] = ulid[i] >> 2
		if i > 0 {
			shifted[i] |= ulid[i-1] << 6
		}
	}
	return prefix + "_" + crockford.EncodeToString(shifted[:])[:26]
}
