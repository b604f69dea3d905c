package envelope

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// ReadType is the typ of every read token. An envelope must have a member type, and a token must not have one. So a
// token is never valid as an envelope, nor an envelope as a token. Call tokens have another typ, see Call.
const ReadType = "agora-read"

// Limits of a token (PROTOCOL §8). They hold for read tokens and call tokens.
const (
	MaxReadToken = 8 << 10 // characters
	MinNonce     = 16      // characters from A–Z a–z 0–9 - _
	MaxNonce     = 64
)

// Read is a signed request to read: who reads, from which relay, and what. It is valid once (PROTOCOL §8). Do not trust
// anything in a Read before Verify has returned nil.
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

// NewNonce returns a new nonce of 128 random bits.
func NewNonce() string {
	var random [16]byte
	rand.Read(random[:]) // never returns an error (crypto/rand)
	return base64.RawURLEncoding.EncodeToString(random[:])
}

// Sign returns the token of r, signed by signer. The token's reader is signer, whatever r.Reader is. If Nonce is empty,
// Sign makes a new one.
func (r Read) Sign(signer Signer) (token string, err error) {
	return signToken(signer, r.members(ReadType))
}

// members returns the members of a token, without did and sig. If Nonce is empty, they have a new one.
func (r Read) members(typ string) map[string]any {
	return map[string]any{"typ": typ, "aud": r.Audience, "method": r.Method, "target": r.Target,
		"ts": FormatTime(r.TS), "nonce": cmp.Or(r.Nonce, NewNonce())}
}

// signToken returns the token with these members, signed by signer.
func signToken(signer Signer, members map[string]any) (token string, err error) {
	members["did"] = signer.DID()
	signed, err := signedJSON(signer, members)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(signed), nil
}

// ParseRead parses a token: the part of an Authorization header after "Agora ". It checks everything that needs neither
// a clock nor a key nor the request.
// Errors: CodeUnauthorized.
func ParseRead(token string) (*Read, error) {
	r := new(Read)
	return r, r.parse(token, readForm, nil)
}

// tokenForm is what differs between read tokens and call tokens.
type tokenForm struct {
	typ, members string // members is the list of its members, for errors
	strings      int    // in its JSON: the names of all members, and their values
}

var readForm = tokenForm{ReadType, "typ, did, aud, method, target, ts, nonce and sig", 16}

// parse parses a token. body receives the member body of a call token. It is nil for a read token.
func (r *Read) parse(token string, form tokenForm, body *string) (err error) {
	if r.canonical, err = decodeToken(token, form); err != nil {
		return err
	}
	return r.decode(form, body)
}

// decodeToken returns the RFC 8785 form of a token's JSON.
func decodeToken(token string, form tokenForm) (canonical []byte, err error) {
	if len(token) > MaxReadToken {
		return nil, badRead("it is longer than %d characters", MaxReadToken)
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(token)
	// Go's decoder skips line breaks, even in strict mode.
	if err != nil || strings.ContainsAny(token, "\r\n") {
		return nil, badRead("it is not unpadded base64url")
	}
	// Canonicalizing a text with many members costs ten times as much as checking a valid token. So such texts are
	// refused first.
	if Depth(text) > 1 || stringsIn(text, form.strings) > form.strings {
		return nil, badRead("it must be a flat JSON object of %s", form.members)
	}
	canonical, err = Canonicalize(text)
	if err != nil || !isObject(canonical) {
		return nil, badRead("its base64url does not encode one JSON object (I-JSON, RFC 7493)")
	}
	return canonical, nil
}

// stringsIn counts the strings in a JSON text. It stops counting at limit+1.
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

// decode reads the members of the token. A token has exactly these members, and all values are strings.
func (r *Read) decode(form tokenForm, body *string) error {
	var typ, did, ts string
	fields := map[string]*string{"typ": &typ, "did": &did, "aud": &r.Audience, "method": &r.Method, "target": &r.Target,
		"ts": &ts, "nonce": &r.Nonce, "sig": &r.sig}
	if body != nil {
		fields["body"] = body
	}
	count := 0
	for name, value := range members(r.canonical) {
		field := fields[name]
		if field == nil {
			return badRead("it has a member other than %s", form.members)
		}
		var ok bool
		if *field, ok = stringValue(value); !ok {
			return badRead("its %s is not a string", name)
		}
		count++
	}
	if count != len(fields) {
		return badRead("it must have %s", form.members)
	}
	r.Reader = didkey.DID(did)
	var ok bool
	switch {
	case typ != form.typ:
		return badRead("its typ is not %q", form.typ)
	case !validNonce(r.Nonce):
		return badRead("its nonce must be %d to %d characters from A-Z, a-z, 0-9, - and _", MinNonce, MaxNonce)
	}
	if r.TS, ok = ParseTime(ts); !ok {
		return badRead("its ts is not an RFC 3339 date-time such as 2026-02-02T15:30:00.000Z")
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

// Verify checks the reader's identifier and the signature, as Envelope.Verify does for an envelope.
// Errors: CodeUnauthorized.
func (r *Read) Verify() error { return r.VerifyWith(didkey.ParseVerifier) }

// VerifyWith is like Verify, but gets keys from parse. The Parse method of a didkey.Verifiers is such a function.
func (r *Read) VerifyWith(parse func(string) (*didkey.Verifier, error)) error {
	reader, err := parse(string(r.Reader))
	if err != nil {
		return badRead("its did is not a did:key of an Ed25519 key")
	}
	sig, err := decodeSig(r.sig)
	if err != nil {
		return badRead("its sig must be the 64 signature bytes as %d characters of unpadded base64url", sigLength)
	}
	if !reader.Verify(withoutSig(r.canonical), sig) {
		return badRead("its signature does not verify under did; sign the RFC 8785 form without sig")
	}
	return nil
}

// Once returns a key under which to remember that the token was used. Two tokens have the same key if and only if they
// have the same reader and the same nonce. This also holds for a read token and a call token. (The nonce contains no
// line break, so the parts of the key are unambiguous.)
func (r *Read) Once() []byte {
	return bytes.Join([][]byte{[]byte(r.Reader), []byte(r.Nonce)}, []byte{'\n'})
}

func badRead(format string, args ...any) *Error {
	e := Errorf(CodeUnauthorized, "the token in Authorization is malformed: "+format, args...)
	e.Details = map[string]any{DetailReason: ReasonMalformed}
	return e
}
