package didkey

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"github.com/agora-relay/agora/internal/fsync"
)

// keyFile is a private JSON Web Key (RFC 8037, kty OKP). Its key id is the did:key.
type keyFile struct {
	Kty string `json:"kty"`
	Crv string `json:"crv"`
	Kid string `json:"kid"`
	X   string `json:"x"` // public key, base64url
	D   string `json:"d"` // seed, base64url
}

// Save writes k to a new file at path that only its owner can read. It never overwrites a file, because a lost key is a
// lost identity. If the process or the machine stops at any time, the file is either complete or absent.
func Save(path string, k Key) error {
	text, err := Marshal(k)
	if err != nil {
		return err
	}
	return fsync.Create(path, text)
}

// Marshal returns the text of the file that Save writes.
func Marshal(k Key) ([]byte, error) {
	if k.private == nil {
		return nil, errors.New("didkey: the zero Key cannot be saved; use Generate, FromSeed or Load")
	}
	text, err := json.MarshalIndent(keyFile{
		Kty: "OKP", Crv: "Ed25519", Kid: string(k.did),
		X: base64.RawURLEncoding.EncodeToString(k.private.Public().(ed25519.PublicKey)),
		D: base64.RawURLEncoding.EncodeToString(k.private.Seed()),
	}, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

// LoadOrCreate loads the key at path. If there is no file, it generates a key and saves it there. If several processes
// do so at the same time, one of them creates the key, and all of them return it. The folder must exist. Only the owner
// can read the file. LoadOrCreate never replaces a file, even if the file is damaged or cannot be read.
// Errors: those of Load and Save.
func LoadOrCreate(path string) (Key, error) {
	k, err := Load(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	if k, err = Generate(); err != nil {
		return Key{}, err
	}
	err = Save(path, k)
	if errors.Is(err, fs.ErrExist) { // another process has created it since
		return Load(path)
	}
	if err != nil {
		return Key{}, err
	}
	return k, nil
}

// Load reads a key that Save has written. It refuses a file with any permission for users other than the owner, and a
// file whose public parts do not match its private key.
func Load(path string) (Key, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Key{}, fmt.Errorf("there is no key file %s; make one with: agora keygen %s (%w)", path, path, fs.ErrNotExist)
	}
	if err != nil {
		return Key{}, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Key{}, err
	}
	var file keyFile
	// The parser's own error may quote the file, which is secret.
	if json.Unmarshal(text, &file) != nil || file.Kty != "OKP" || file.Crv != "Ed25519" {
		return Key{}, fmt.Errorf("%s is not an Ed25519 key file (a JSON Web Key with kty OKP); "+
			"make one with: agora keygen", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return Key{}, fmt.Errorf("key file %s has mode %#o, so other users may access it; "+
			"run: chmod 600 %s", path, mode, path)
	}
	seed, err := base64.RawURLEncoding.DecodeString(file.D)
	if err != nil {
		return Key{}, fmt.Errorf("key file %s: the member d is not base64url", path)
	}
	k, err := FromSeed(seed)
	if err != nil {
		return Key{}, fmt.Errorf("key file %s: %w", path, err)
	}
	public := base64.RawURLEncoding.EncodeToString(k.private.Public().(ed25519.PublicKey))
	if string(k.did) != file.Kid || public != file.X {
		return Key{}, fmt.Errorf("key file %s is damaged: its private key belongs to %s, but kid and x do not match; "+
			"restore it from a backup", path, k.did)
	}
	return k, nil
}
