package didkey

import (
	"crypto/ecdh"
	"crypto/sha512"
	"errors"
)

// An Ed25519 key is also one for X25519: the two curves are one curve in two forms (RFC 7748 §4.1), and both take
// their private scalar from the same bytes. Messages are sealed to identities with it (docs/SEALING.md).

// X25519 returns the public key for X25519 of the identity: u = (1+y)/(1-y) mod 2^255-19. It refuses what Parse refuses.
// The point with y = 1, which has no u, is of small order and refused too.
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

// X25519 returns the private key for X25519 that belongs to k.DID().X25519: the scalar that RFC 8032 §5.1.5 makes of
// the seed, and Ed25519 signs with. The other half of the hash, which makes signatures unpredictable, is not in it.
func (k Key) X25519() (ecdh.KeyExchanger, error) {
	if k.private == nil {
		return nil, errors.New("didkey: opening with the zero Key")
	}
	digest := sha512.Sum512(k.private.Seed())
	scalar := digest[:32]
	scalar[0] &= 0xf8
	scalar[31] = scalar[31]&0x7f | 0x40
	return ecdh.X25519().NewPrivateKey(scalar)
}
