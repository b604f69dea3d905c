package didkey

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha512"
	"strings"
	"sync"

	"filippo.io/edwards25519"
)

// Verifier checks the signatures of one identity. It holds the decoded public key. It is safe for concurrent use.
type Verifier struct {
	key    [ed25519.PublicKeySize]byte
	minusA edwards25519.Point
}

// ParseVerifier returns the Verifier of an identifier. It refuses what Parse refuses.
func ParseVerifier(s string) (*Verifier, error) {
	v := new(Verifier)
	var err error
	if v.key, err = decode(s); err != nil {
		return nil, err
	}
	point, err := decodePoint(v.key)
	if err != nil {
		return nil, err
	}
	v.minusA.Negate(point)
	return v, nil
}

// Verify reports whether sig is an Ed25519 signature of message. It answers as crypto/ed25519.Verify does (RFC 8032
// §5.1.7, without the cofactor). The difference is speed: that function decodes the key each time.
func (v *Verifier) Verify(message, sig []byte) bool {
	if len(sig) != ed25519.SignatureSize {
		return false
	}
	s, err := new(edwards25519.Scalar).SetCanonicalBytes(sig[32:])
	if err != nil {
		return false
	}
	hash := sha512.New()
	hash.Write(sig[:32])
	hash.Write(v.key[:])
	hash.Write(message)
	var digest [sha512.Size]byte
	k, err := new(edwards25519.Scalar).SetUniformBytes(hash.Sum(digest[:0]))
	if err != nil {
		panic("didkey: SHA-512 has 64 bytes: " + err.Error())
	}
	r := new(edwards25519.Point).VarTimeDoubleScalarBaseMult(k, &v.minusA, s) // [s]B - [k]A
	return bytes.Equal(sig[:32], r.Bytes())
}

// Verifiers is a cache of Verifier values. It keeps the identities that were asked for last, cacheSize at least and twice
// as many at most. A busy server meets the same senders and recipients again and again, and decoding a key costs a tenth
// of a verification. The zero value is ready to use, by several goroutines.
type Verifiers struct {
	mu             sync.Mutex
	recent, before map[string]*Verifier // recent becomes before when it is full
}

// cacheSize identities take some 5 MB.
const cacheSize = 16_384

// Parse is ParseVerifier with the cache. What is refused is not kept.
func (c *Verifiers) Parse(s string) (*Verifier, error) {
	if v := c.find(s); v != nil {
		return v, nil
	}
	v, err := ParseVerifier(s)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep(strings.Clone(s), v) // s may be a part of a long text
	return v, nil
}

func (c *Verifiers) find(s string) *Verifier {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.recent[s]
	if ok {
		return v
	}
	if v, ok = c.before[s]; ok {
		c.keep(s, v)
	}
	return v
}

// keep adds v to recent. The caller holds mu.
func (c *Verifiers) keep(s string, v *Verifier) {
	if len(c.recent) >= cacheSize || c.recent == nil {
		c.before, c.recent = c.recent, map[string]*Verifier{}
	}
	c.recent[s] = v
}
