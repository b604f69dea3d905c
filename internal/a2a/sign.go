package a2a

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/jsontext"
)

// Signature is a JWS (RFC 7515) without its payload. Both members are base64url.
type Signature struct {
	Protected string `json:"protected,omitempty"`
	Signature string `json:"signature,omitempty"`
}

// header is the protected header of a signature.
type header struct {
	Alg string `json:"alg"`
	JKU string `json:"jku,omitempty"`
	KID string `json:"kid"`
	Typ string `json:"typ"`
}

func encode(text []byte) string { return base64.RawURLEncoding.EncodeToString(text) }

// signJWS signs a payload. jku is the URL of the key; empty: the header has none.
func signJWS(signer envelope.Signer, jku string, payload []byte) (Signature, error) {
	protected := encode(jsontext.Compact(header{"EdDSA", jku, keyID(signer.DID()), "JOSE"}))
	sig, err := signer.Sign([]byte(protected + "." + encode(payload)))
	return Signature{protected, encode(sig)}, err
}

// verifyJWS returns the header of a signature by did over a payload. ok is false if it is not one.
func verifyJWS(did didkey.DID, s Signature, payload []byte) (h header, ok bool) {
	verifier, err := didkey.ParseVerifier(string(did))
	if err != nil {
		return h, false
	}
	protected, err := base64.RawURLEncoding.Strict().DecodeString(s.Protected)
	if err != nil || json.Unmarshal(protected, &h) != nil || h.Alg != "EdDSA" || h.KID != keyID(did) {
		return h, false
	}
	sig, err := base64.RawURLEncoding.Strict().DecodeString(s.Signature)
	return h, err == nil && verifier.Verify([]byte(s.Protected+"."+encode(payload)), sig)
}

// payloads returns what the signatures of a card are over: its RFC 8785 form without signatures and, if that has
// characters above U+007E, the same with them escaped.
func payloads(canonical []byte) [][]byte {
	plain := set(canonical, map[string]any{"signatures": nil})
	if escaped := escape(plain); len(escaped) != len(plain) {
		return [][]byte{plain, escaped}
	}
	return [][]byte{plain}
}

// escape writes each UTF-16 unit above U+007E of a JSON text as \uXXXX, as Python's json does.
func escape(text []byte) (escaped []byte) {
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		i += size
		if r <= '~' {
			escaped = append(escaped, byte(r))
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			escaped = fmt.Appendf(escaped, `\u%04x`, unit)
		}
	}
	return escaped
}

// Sign returns the card of this endpoint in RFC 8785 form, with the signatures that all SDKs need. signer is the agent.
// It refuses a card that CheckCard would refuse. Errors: *envelope.Error with CodeInvalidRequest, that of the signer.
func (e Endpoint) Sign(c Card, a Access, signer envelope.Signer) ([]byte, error) {
	c.Signatures = nil
	canonical, err := envelope.Canonicalize(jsontext.Compact(c))
	if err != nil {
		return nil, err
	}
	for _, payload := range payloads(canonical) {
		signature, err := signJWS(signer, e.jwks(), payload)
		if err != nil {
			return nil, err
		}
		c.Signatures = append(c.Signatures, signature)
	}
	_, canonical, err = e.CheckCard(jsontext.Compact(c), a)
	return canonical, err
}

// checkSignatures checks that a card has exactly the signatures that Sign makes.
func (e Endpoint) checkSignatures(canonical []byte) error {
	signatures := signaturesOf(canonical)
	wanted := payloads(canonical)
	if len(signatures) != len(wanted) {
		return envelope.Errorf(envelope.CodeInvalidRequest, "card.signatures must have %d elements: one over the RFC 8785 "+
			"form and, if that is not ASCII, one over its escaped form", len(wanted))
	}
	for i, payload := range wanted {
		if h, ok := verifyJWS(e.DID, signatures[i], payload); !ok || h.JKU != e.jwks() || h.Typ != "JOSE" {
			return envelope.Errorf(envelope.CodeInvalidRequest, "card.signatures[%d] is not a JWS of %s with alg EdDSA, typ JOSE, "+
				"kid %s and jku %s", i, e.DID, keyID(e.DID), e.jwks())
		}
	}
	return nil
}

// maxSignatures is how many signatures of a card VerifyCard tries.
const maxSignatures = 16

func signaturesOf(canonical []byte) (signatures []Signature) {
	r := read("", canonical)
	for _, element := range r.list("signatures", false) {
		var s Signature
		if len(signatures) < maxSignatures && json.Unmarshal(element, &s) == nil {
			signatures = append(signatures, s)
		}
	}
	return signatures
}

// ErrUnsigned is the error of a card without a signature of the wanted DID.
var ErrUnsigned = errors.New("the card has no valid signature of this DID")

// VerifyCard checks that a card of any A2A server has a signature of did, over its RFC 8785 form or over the escaped
// one. It trusts no key that the card names. Errors: ErrUnsigned; others, if text is not I-JSON.
func VerifyCard(text []byte, did didkey.DID) error {
	canonical, err := envelope.ParseObject(text, MaxBody)
	if err != nil {
		return err
	}
	for _, payload := range payloads(canonical) {
		for _, s := range signaturesOf(canonical) {
			if _, ok := verifyJWS(did, s, payload); ok {
				return nil
			}
		}
	}
	return ErrUnsigned
}

func sorted[V any](members map[string]V) []string { return slices.Sorted(maps.Keys(members)) }
