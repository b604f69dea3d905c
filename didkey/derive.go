package didkey

import (
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
)

// Derive returns 32 secret bytes that belong to k and info. They are HKDF-SHA256 (RFC 5869) of k's seed, without salt.
// Nobody can compute the seed, or the bytes of another info, from them.
func (k Key) Derive(info string) ([]byte, error) {
	if k.private == nil {
		return nil, errors.New("didkey: nothing can be derived from the zero Key; use Generate, FromSeed or Load")
	}
	return hkdf.Key(sha256.New, k.private.Seed(), nil, info, 32)
}
