package envelope

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// ReadType is the typ of a Read's token. An envelope needs a type and a token may have none, so neither passes as the
// other.
const ReadType = "agora-read"

// Limits of a token (PROTOCOL §8).
const (
	MaxReadToken = 8 << 10 // characters
	MinNonce     = 16      // characters, of A–Z a–z 0–9 - _
	MaxNonce     = 64
)

// Read is one signed read: who asks which relay for what, once (PROTOCOL §8). Nothing in it may be believed before
// Verify has returned nil.
type Read struct {
	Reader   didkey.DID
	Audience string // the relay's public origin
	Method   string
	Target   string // path and raw query, as sent
	TS       time.Time
	Nonce    string

	sig       string
	canonical []byte
}

// NewNonce returns a nonce that nobody has used: 128 random bits.
func NewNonce() string {
	var random [16]byte
	rand.Read(random[:]) // never fails (crypto/rand)
	return base64.RawURLEncoding.EncodeToString(random[:])
}

// Sign returns the token for r by signer, whose identity is the Reader's. An empty Nonce means a new one.
func (r Read) Sign(signer Signer) (token string, err error) {
	if r.Nonce == "" {
		r.Nonce = NewNonce()
	}
	signed, err := signedJSON(signer, map[string]any{
		"typ": ReadType, "did": signer.DID(), "aud": r.Audience, "method": r.Method, "target": r.Target,
		"ts": FormatTime(r.TS), "nonce": r.Nonce,
	})
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(signed), nil
}

// ParseRead reads a token as it stands in an Authorization header behind "Agora ". It checks all that needs neither a
// clock nor a key nor the request.
// Errors: CodeUnauthorized.
func ParseRead(token string) (*Read, error) {
	if len(token) > MaxReadToken {
		return nil, badRead("it is longer than %d characters", MaxReadToken)
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(token)
	// Go's decoder skips line breaks even when strict.
	if err != nil || strings.ContainsAny(token, "\r\n") {
		return nil, badRead("it is no unpadded base64url")
	}
	// The canonical form costs ten times as much as all that a good token asks for, if the text is of many members.
	if depth(text) > 1 || stringsIn(text, maxReadStrings) > maxReadStrings {
		return nil, badRead("it must be a flat JSON object of typ, did, aud, method, target, ts, nonce and sig")
	}
	canonical, err := Canonicalize(text)
	if err != nil || !isObject(canonical) {
		return nil, badRead("what it encodes is not one JSON object (I-JSON, RFC 7493)")
	}
	r := &Read{canonical: canonical}
	return r, r.decode()
}

// maxReadStrings is how many strings the JSON of a token has: eight names and their values.
const maxReadStrings = 16

// stringsIn returns how many strings begin in a JSON text, counting no further than one behind limit.
func stringsIn(text []byte, limit int) (count int) {
	inString := false
	for i := 0; i < len(text) && count <= limit; i++ {
		switch {
		case inString && text[i] == '\\':
			i++
		case text[i] == '"':
			if inString = !inString; inString {
				count++
			}
		}
	}
	return count
}

// decode takes exactly the members that a token has, all of them strings.
func (r *Read) decode() error {
	var typ, did, ts string
	fields := map[string]*string{"typ": &typ, "did": &did, "aud": &r.Audience, "method": &r.Method, "target": &r.Target,
		"ts": &ts, "nonce": &r.Nonce, "sig": &r.sig}
	count := 0
	for name, value := range members(r.canonical) {
		field := fields[name]
		if field == nil {
			return badRead("it has a member that is none of typ, did, aud, method, target, ts, nonce and sig")
		}
		var ok bool
		if *field, ok = stringValue(value); !ok {
			return badRead("its %s is no string", name)
		}
		count++
	}
	if count != len(fields) {
		return badRead("it must have typ, did, aud, method, target, ts, nonce and sig")
	}
	r.Reader = didkey.DID(did)
	var ok bool
	switch {
	case typ != ReadType:
		return badRead("its typ is not %q", ReadType)
	case !validNonce(r.Nonce):
		return badRead("its nonce is not %d to %d characters of A-Z, a-z, 0-9, - and _", MinNonce, MaxNonce)
	}
	if r.TS, ok = ParseTime(ts); !ok {
		return badRead("its ts is no RFC 3339 date-time such as 2026-02-02T15:30:00.000Z")
	}
	return nil
}

func validNonce(s string) bool {
	if len(s) < MinNonce || len(s) > MaxNonce {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= '0' && c <= '9', c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

// Verify checks the reader's identifier and the signature as Envelope.Verify does.
// Errors: CodeUnauthorized.
func (r *Read) Verify() error { return r.VerifyWith(didkey.ParseVerifier) }

// VerifyWith is Verify with another way to get a key, such as a didkey.Verifiers' Parse.
func (r *Read) VerifyWith(parse func(string) (*didkey.Verifier, error)) error {
	reader, err := parse(string(r.Reader))
	if err != nil {
		return badRead("its did is no did:key of Ed25519")
	}
	sig, err := decodeSig(r.sig)
	if err != nil {
		return badRead("its sig is not 64 bytes as %d characters of unpadded base64url", sigLength)
	}
	if !reader.Verify(withoutSig(r.canonical), sig) {
		return badRead("its signature does not verify under did; sign the RFC 8785 form without sig")
	}
	return nil
}

// Once returns what a token may be used once by: the same for two of them exactly if their reader and their nonce
// are, as neither holds a line break.
func (r *Read) Once() []byte {
	return bytes.Join([][]byte{[]byte(r.Reader), []byte(r.Nonce)}, []byte{'\n'})
}

func badRead(format string, args ...any) *Error {
	e := Errorf(CodeUnauthorized, "the token in Authorization is malformed: "+format, args...)
	e.Details = map[string]any{DetailReason: ReasonMalformed}
	return e
}
