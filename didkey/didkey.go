// Package didkey handles the identities of Agora: did:key identifiers of Ed25519 public keys.
//
// Each key has exactly one accepted spelling. All other texts that decode to the same bytes (another multibase, a
// fragment, an extra space) are refused. Otherwise programs that compare identifiers as text would see two identities
// for one key. Also refused are keys with which anyone can sign (low-order points), keys with a second encoding
// (y ≥ p), and keys that are not points on the curve.
//
// The package does no input or output except for key files (see Load and Save).
package didkey

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/mr-tron/base58"
	"github.com/multiformats/go-multibase"
)

// DID is a did:key identifier of an Ed25519 public key: 56 ASCII characters, "did:key:z6Mk" and 44 characters of
// base58btc. A DID returned by Parse or FromPublicKey is valid. A DID converted from a string may be invalid.
type DID string

const (
	prefix = "did:key:z6Mk" // multibase z, and how 0xed01 (the multicodec) and any 32 bytes begin in base58btc
	length = 56             // number of characters for every 32-byte key
)

// codec is the multicodec ed25519-pub (0xed) as a varint.
var codec = [2]byte{0xed, 0x01}

var errForm = errors.New(`not an Ed25519 did:key: want exactly 56 characters, "did:key:z6Mk" followed by 44 of base58btc`)

// Parse checks that s is the one accepted spelling of a usable Ed25519 public key. The rules are the rules of Agora
// v1.0 appendix A, and stricter: the length is checked before anything is decoded, because base58 takes quadratic time.
func Parse(s string) (DID, error) {
	key, err := decode(s)
	if err == nil {
		_, err = decodePoint(key)
	}
	if err != nil {
		return "", err
	}
	return DID(s), nil
}

// decode returns the 32 key bytes of s. It does not check whether they encode a usable key.
func decode(s string) (key [ed25519.PublicKeySize]byte, err error) {
	if len(s) != length || !strings.HasPrefix(s, prefix) {
		return key, errForm
	}
	raw, err := base58.Decode(s[len("did:key:z"):])
	if err != nil || len(raw) != len(codec)+len(key) || [2]byte(raw) != codec {
		return key, errForm
	}
	return [ed25519.PublicKeySize]byte(raw[len(codec):]), nil
}

// FromPublicKey returns the identifier of pub. It refuses the same keys as Parse.
func FromPublicKey(pub ed25519.PublicKey) (DID, error) {
	if len(pub) != ed25519.PublicKeySize {
		return "", fmt.Errorf("an Ed25519 public key must have 32 bytes, this one has %d", len(pub))
	}
	if _, err := decodePoint([ed25519.PublicKeySize]byte(pub)); err != nil {
		return "", err
	}
	text, err := multibase.Encode(multibase.Base58BTC, append(codec[:], pub...))
	if err != nil {
		return "", err
	}
	return DID("did:key:" + text), nil
}

// PublicKey returns the public key of d. It returns nil if d does not have the form of an identifier; a DID that was
// parsed always has it.
func (d DID) PublicKey() ed25519.PublicKey {
	key, err := decode(string(d))
	if err != nil {
		return nil
	}
	return key[:]
}

// Multibase returns the part of d after "did:key:". A manifest's auth.public_key names a key in this form.
func (d DID) Multibase() string { return strings.TrimPrefix(string(d), "did:key:") }

// Key is a private key and its identifier. The zero Key is not usable; see Generate, FromSeed and Load.
type Key struct {
	private ed25519.PrivateKey
	did     DID
}

// Generate returns a new random key.
func Generate() (Key, error) {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := rand.Read(seed); err != nil {
		return Key{}, err
	}
	return FromSeed(seed)
}

// FromSeed returns the key of a seed of 32 bytes (RFC 8032).
func FromSeed(seed []byte) (Key, error) {
	if len(seed) != ed25519.SeedSize {
		return Key{}, fmt.Errorf("an Ed25519 seed must have 32 bytes, this one has %d", len(seed))
	}
	private := ed25519.NewKeyFromSeed(seed)
	did, err := FromPublicKey(private.Public().(ed25519.PublicKey))
	if err != nil {
		return Key{}, err
	}
	return Key{private, did}, nil
}

// DID returns the identifier of the key.
func (k Key) DID() DID { return k.did }

// Sign returns the 64-byte Ed25519 signature of message.
func (k Key) Sign(message []byte) ([]byte, error) {
	if k.private == nil {
		return nil, errors.New("didkey: the zero Key cannot sign; use Generate, FromSeed or Load")
	}
	return ed25519.Sign(k.private, message), nil
}
