package main

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"slices"

	"github.com/mr-tron/base58"
)

// key is an identity with a known seed. Use it in tests only, because the seeds are published here.
type key struct {
	seed    []byte
	private ed25519.PrivateKey
	did     string
}

// newKey returns the key whose seed is the byte n, 32 times.
func newKey(n byte) key {
	seed := bytes.Repeat([]byte{n}, ed25519.SeedSize)
	private := ed25519.NewKeyFromSeed(seed)
	return key{seed, private, spell(private.Public().(ed25519.PublicKey))}
}

// The identities in the vectors.
var (
	alice   = newKey(1) // the sender of single messages, and the client of conversations
	bob     = newKey(2) // the agent
	carol   = newKey(3) // a rival agent
	mallory = newKey(4) // a stranger
)

// spell encodes raw as a did:key of an Ed25519 key, even if raw is not a usable key.
func spell(raw []byte) string {
	return "did:key:z" + base58.Encode(slices.Concat([]byte{0xed, 0x01}, raw))
}

func unhex(digits string) []byte {
	raw, err := hex.DecodeString(digits)
	if err != nil {
		panic(err)
	}
	return raw
}

// smallOrder has the y coordinates of the points of order 1, 2, 4 and 8, little-endian and without the sign bit.
var smallOrder = []struct{ name, y string }{
	{"order-4", "0000000000000000000000000000000000000000000000000000000000000000"},
	{"identity", "0100000000000000000000000000000000000000000000000000000000000000"},
	{"order-2", "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"},
	{"order-8", "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"},
	{"order-8-other", "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"},
}

// withSign returns an encoded y with the sign bit set if sign is 1.
func withSign(y []byte, sign byte) []byte {
	raw := slices.Clone(y)
	raw[31] |= sign << 7
	return raw
}

// abovePrime returns the encoding of p + n, for n < 19. It is a second encoding of the coordinate n.
func abovePrime(n byte) []byte {
	raw := bytes.Repeat([]byte{0xff}, 32)
	raw[0] = 0xed + n
	raw[31] = 0x7f
	return raw
}
