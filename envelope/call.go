package envelope

import (
	"crypto/sha256"
	"encoding/base64"
)

// CallType is the typ of every call token. The typ is signed. So a call token is never valid as a read token, nor a
// read token as a call token.
const CallType = "agora-call"

// Call is a signed request to a gateway (GATEWAYS, "Signed calls"). It is like a Read, but also names the body of the
// request. Its Reader is the caller. It is valid once. Do not trust anything in a Call before Verify has returned nil.
type Call struct {
	Read
	Body [sha256.Size]byte // SHA-256 of the request's body as it is sent, which may be empty
}

var callForm = tokenForm{CallType, "typ, did, aud, method, target, body, ts, nonce and sig", 18}

// Sign returns the token of c, signed by signer. The caller is signer, whatever c.Reader is. If Nonce is empty, Sign
// makes a new one.
func (c Call) Sign(signer Signer) (token string, err error) {
	members := c.members(CallType)
	members["body"] = base64.RawURLEncoding.EncodeToString(c.Body[:])
	return signToken(signer, members)
}

// ParseCall parses a token: the part of an Authorization header after "Agora ". It checks everything that needs neither
// a clock nor a key nor the request.
// Errors: CodeUnauthorized.
func ParseCall(token string) (*Call, error) {
	c := new(Call)
	var body string
	if err := c.parse(token, callForm, &body); err != nil {
		return nil, err
	}
	hash, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil || len(hash) != len(c.Body) || len(body) != base64.RawURLEncoding.EncodedLen(len(hash)) {
		return nil, badRead("its body must be the 32 bytes of a SHA-256 as 43 characters of unpadded base64url")
	}
	copy(c.Body[:], hash)
	return c, nil
}
