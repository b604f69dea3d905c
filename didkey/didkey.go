// Package didkey handles the identities of Agora: did:key identifiers of Ed25519 public keys.
//
// One key has exactly one accepted spelling. Everything else that decodes to the same bytes (another multibase, a
// fragment, a stray space) is refused, because an identity with two names is two identities to whoever compares text.
// Keys that would let anybody sign (low-order points), that have a second encoding (y ≥ p) or that are no curve
// point at all are refused too.
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

// DID is a did:key identifier of an Ed25519 public key: 56 ASCII characters, "did:key:z6Mk" and 44 of base58btc.
// A DID that came from Parse or FromPublicKey is valid; one converted from a string is only a claim until parsed.
type DID string

const (
	prefix = "did:key:z6Mk" // multibase z, multicodec 0xed01 and the top bits of any 32 bytes after it
	length = 56             // every 32-byte key gives exactly this many characters
)

// multicodec ed25519-pub (0xed) as a varint.
var codec = [2]byte{0xed, 0x01}

var errForm = errors.New(`not an Ed25519 did:key: want exactly 56 characters, "did:key:z6Mk" followed by 44 of base58btc`)

// Parse checks that s is the one accepted spelling of a usable Ed25519 public key (Agora v1.0 appendix A, tightened:
// the length is checked before anything is decoded, as base58 takes quadratic time).
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

// decode returns the bytes that s names. It does not look at what they encode.
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

// FromPublicKey returns the identifier of pub; it refuses the keys Parse refuses.
func FromPublicKey(pub ed25519.PublicKey) (DID, error) {
	if len(pub) != ed25519.PublicKeySize {
		return "", fmt.Errorf("an Ed25519 public key has 32 bytes, this one %d", len(pub))
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

// PublicKey returns the key that d names. It returns nil if d does not have the form of an identifier, which one that
// was parsed always has.
func (d DID) PublicKey() ed25519.PublicKey {
	key, err := decode(string(d))
	if err != nil {
		return nil
	}
	return key[:]
}

// Multibase returns the part after "did:key:", the form in which a manifest's auth.public_key names a key.
func (d DID) Multibase() string { return strings.TrimPrefix(string(d), "did:key:") }

// Key is a private key with its identifier. The zero Key is not usable; see Generate, FromSeed and Load.
type Key struct {
	private ed25519.PrivateKey
	did     DID
}

// Generate makes a new random key.
func Generate() (Key, error) {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := rand.Read(seed); err != nil {
		return Key{}, err
	}
	return FromSeed(seed)
}

// FromSeed returns the key of a 32-byte RFC 8032 seed.
func FromSeed(seed []byte) (Key, error) {
	if len(seed) != ed25519.SeedSize {
		return Key{}, fmt.Errorf("an Ed25519 seed has 32 bytes, this one %d", len(seed))
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
		return nil, errors.New("didkey: signing with the zero Key")
	}
	return ed25519.Sign(k.private, message), nil
}
