package didkey

import (
	"crypto/ecdh"
	"crypto/sha512"
	"errors"
)

// An Ed25519 key can be converted to an X25519 key. The two curves are two forms of one curve (RFC 7748 §4.1), and
// their private scalars come from the same bytes. Sealed messages are encrypted to the X25519 key (docs/SEALING.md).

// X25519 returns the X25519 public key of the identity: u = (1+y)/(1-y) mod 2^255-19. It refuses the same identities as
// Parse. The point with y = 1 has no u. It has small order, so it is refused.
func (d DID) X25519() (*ecdh.PublicKey, error) {
	key, err := decode(string(d))
	if err != nil {
		return nil, err
	}
	point, err := decodePoint(key)
	if err != nil {
		return nil, err
	}
	return ecdh.X25519().NewPublicKey(point.BytesMontgomery())
}

// X25519 returns the X25519 private key that belongs to k.DID().X25519(). It is the scalar that RFC 8032 §5.1.5 derives
// from the seed, and that Ed25519 signs with. It does not contain the other half of the hash, which makes signatures
// unpredictable.
func (k Key) X25519() (ecdh.KeyExchanger, error) {
	if k.private == nil {
		return nil, errors.New("didkey: the zero Key has no private key; use Generate, FromSeed or Load")
	}
	digest := sha512.Sum512(k.private.Seed())
	scalar := digest[:32]
	scalar[0] &= 0xf8
	scalar[31] = scalar[31]&0x7f | 0x40
	return ecdh.X25519().NewPrivateKey(scalar)
}
