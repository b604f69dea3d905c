package didkey

import (
	"crypto/ecdh"
	"crypto/sha512"
	"errors"
	"math/big"
	"slices"
)

// An Ed25519 key is also one for X25519: the two curves are one curve in two forms (RFC 7748 §4.1), and both take
// their private scalar from the same bytes. Messages are sealed to identities with it (docs/SEALING.md).

// prime is 2^255-19.
var prime = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(19))

// X25519 returns the public key for X25519 of the identity: u = (1+y)/(1-y) mod 2^255-19. The arithmetic takes a time
// that depends on the key, which is public. It refuses what Parse refuses; y = 1, which has no u, is among that.
func (d DID) X25519() (*ecdh.PublicKey, error) {
	if _, err := Parse(string(d)); err != nil {
		return nil, err
	}
	y := slices.Clone(d.PublicKey())
	y[len(y)-1] &= 0x7f // the sign of x, which u has no use for
	slices.Reverse(y)
	one, coordinate := big.NewInt(1), new(big.Int).SetBytes(y)
	below := new(big.Int).Sub(one, coordinate)
	u := new(big.Int).Add(one, coordinate)
	u.Mul(u, below.ModInverse(below.Mod(below, prime), prime)).Mod(u, prime)
	raw := u.FillBytes(make([]byte, len(y)))
	slices.Reverse(raw)
	return ecdh.X25519().NewPublicKey(raw)
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
