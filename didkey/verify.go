package didkey

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha512"
	"strings"
	"sync"

	"filippo.io/edwards25519"
)

// Verifier verifies the signatures of one identity. It holds the decoded public key. It is safe for concurrent use.
type Verifier struct {
	key    [ed25519.PublicKeySize]byte
	minusA edwards25519.Point
}

// ParseVerifier returns the Verifier of an identifier. It refuses the same identifiers as Parse.
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

// Verify reports whether sig is an Ed25519 signature of message. It gives the same result as crypto/ed25519.Verify
// (RFC 8032 §5.1.7, without the cofactor). It is faster, because crypto/ed25519 decodes the key each time.
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
		panic("didkey: a scalar refused the 64 bytes of SHA-512: " + err.Error())
	}
	r := new(edwards25519.Point).VarTimeDoubleScalarBaseMult(k, &v.minusA, s) // [s]B - [k]A
	return bytes.Equal(sig[:32], r.Bytes())
}

// Verifiers is a cache of Verifier values. It keeps the most recently used identities: at least cacheSize of them, and
// at most twice as many. A busy server sees the same senders and recipients again and again, and decoding a key costs a
// tenth of a verification. The zero value is ready to use. It is safe for concurrent use.
type Verifiers struct {
	mu               sync.Mutex
	recent, previous map[string]*Verifier // when recent is full, it becomes previous, and a new recent is made
}

// cacheSize is the number of identities in a full map of the cache. They take about 5 MB.
const cacheSize = 16_384

// Parse is like ParseVerifier, but uses the cache. Refused identifiers are not cached.
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
	c.add(strings.Clone(s), v) // the clone does not keep a longer text in memory that s is part of
	return v, nil
}

func (c *Verifiers) find(s string) *Verifier {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.recent[s]
	if ok {
		return v
	}
	if v, ok = c.previous[s]; ok {
		c.add(s, v)
	}
	return v
}

// add puts v into recent. The caller holds mu.
func (c *Verifiers) add(s string, v *Verifier) {
	if len(c.recent) >= cacheSize || c.recent == nil {
		c.previous, c.recent = c.recent, map[string]*Verifier{}
	}
	c.recent[s] = v
}
