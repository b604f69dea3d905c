package gateway

import (
	"crypto/rand"
	"encoding/base32"
	"strings"
)

// idLength is how many characters an id has after its prefix. Each has 5 random bits.
const idLength = 26

// NewID returns a new id: 26 characters of lower-case base32, which are 130 random bits, after a prefix.
func NewID(prefix string) string {
	var b [20]byte
	rand.Read(b[:]) // never returns an error (crypto/rand)
	return prefix + strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))[:idLength]
}
