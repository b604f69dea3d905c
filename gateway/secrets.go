package gateway

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/agora-relay/agora/didkey"
)

// Secrets encrypts what the relay needs later and no reader of its database may see: URLs with a key in them, and keys
// of other servers.
type Secrets struct{ aead cipher.AEAD }

// secretVersion is the first byte of an encrypted secret.
const secretVersion = 1

// NewSecrets returns the Secrets of gateway.key. They are encrypted with a key that is derived from it.
func NewSecrets(k didkey.Key) (Secrets, error) {
	key, err := k.Derive("agora at rest v1")
	if err != nil {
		return Secrets{}, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return Secrets{}, err
	}
	aead, err := cipher.NewGCM(block)
	return Secrets{aead}, err
}

// Place says where a secret is stored. A secret can be decrypted only in the place for which it was encrypted, so
// nobody who can write the database can exchange two secrets.
type Place struct {
	Table, Column string
	Row           any // the row's id: a number or a text
}

func (p Place) String() string { return fmt.Sprintf("%s/%s/%v", p.Table, p.Column, p.Row) }

// Encrypt returns the form of a secret that is stored in p. It differs each time.
func (s Secrets) Encrypt(p Place, secret []byte) []byte {
	nonce := make([]byte, 1+s.aead.NonceSize(), 1+s.aead.NonceSize()+len(secret)+s.aead.Overhead())
	nonce[0] = secretVersion
	rand.Read(nonce[1:]) // never returns an error (crypto/rand)
	return s.aead.Seal(nonce, nonce[1:], secret, []byte(p.String()))
}

// Decrypt returns the secret that is stored in p.
func (s Secrets) Decrypt(p Place, stored []byte) ([]byte, error) {
	n := 1 + s.aead.NonceSize()
	if len(stored) < n || stored[0] != secretVersion {
		return nil, errors.New("this is not a secret in the form of this version")
	}
	secret, err := s.aead.Open(nil, stored[1:n], stored[n:], []byte(p.String()))
	if err != nil {
		return nil, fmt.Errorf("the secret in %v was changed, or was encrypted with another gateway.key or for "+
			"another place", p)
	}
	return secret, nil
}
