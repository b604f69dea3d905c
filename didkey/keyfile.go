package didkey

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/agora-relay/agora/internal/fsync"
)

// keyFile is a private JSON Web Key (RFC 8037, kty OKP) whose key id is the did:key.
type keyFile struct {
	Kty string `json:"kty"`
	Crv string `json:"crv"`
	Kid string `json:"kid"`
	X   string `json:"x"` // public key, base64url
	D   string `json:"d"` // seed, base64url
}

// Save writes k to a new file at path, readable by its owner only. It never overwrites: a lost key is a lost identity.
// The file is there whole or not at all, whenever the process or the machine ends.
func Save(path string, k Key) (err error) {
	if k.private == nil {
		return errors.New("didkey: saving the zero Key")
	}
	text, err := json.MarshalIndent(keyFile{
		Kty: "OKP", Crv: "Ed25519", Kid: string(k.did),
		X: base64.RawURLEncoding.EncodeToString(k.private.Public().(ed25519.PublicKey)),
		D: base64.RawURLEncoding.EncodeToString(k.private.Seed()),
	}, "", "  ")
	if err != nil {
		return err
	}
	draft, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp") // mode 0600
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(draft.Name())) }()
	_, err = draft.Write(append(text, '\n'))
	if err == nil {
		err = draft.Sync()
	}
	if err = errors.Join(err, draft.Close()); err != nil {
		return err
	}
	err = os.Link(draft.Name(), path) // which, unlike a rename, replaces nothing
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists and is not overwritten; choose another name, or move it away if you are sure (%w)",
			path, fs.ErrExist)
	}
	if err != nil {
		return err
	}
	return fsync.Folder(filepath.Dir(path))
}

// LoadOrCreate reads the key at path, or makes one and saves it there if there is no file. Of several processes that do
// so at once, one makes the key and all return it. The folder must exist; the file is readable by its owner only.
// Errors: those of Load and Save. A file that cannot be read, or is damaged, is never replaced.
func LoadOrCreate(path string) (Key, error) {
	k, err := Load(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	if k, err = Generate(); err != nil {
		return Key{}, err
	}
	err = Save(path, k)
	if errors.Is(err, fs.ErrExist) { // another process was faster
		return Load(path)
	}
	if err != nil {
		return Key{}, err
	}
	return k, nil
}

// Load reads a key written by Save. It refuses a file that others than its owner can open, and one whose public
// parts do not belong to its private one.
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
	// The parser's own message may quote the file, and the file is a secret.
	if json.Unmarshal(text, &file) != nil || file.Kty != "OKP" || file.Crv != "Ed25519" {
		return Key{}, fmt.Errorf("%s is not an Ed25519 key file (a JSON Web Key with kty OKP); make one with: agora keygen", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return Key{}, fmt.Errorf("key file %s has mode %#o, so others can read it; run: chmod 600 %s", path, mode, path)
	}
	seed, err := base64.RawURLEncoding.DecodeString(file.D)
	if err != nil {
		return Key{}, fmt.Errorf("key file %s: member d is not base64url", path)
	}
	k, err := FromSeed(seed)
	if err != nil {
		return Key{}, fmt.Errorf("key file %s: %w", path, err)
	}
	public := base64.RawURLEncoding.EncodeToString(k.private.Public().(ed25519.PublicKey))
	if string(k.did) != file.Kid || public != file.X {
		return Key{}, fmt.Errorf("key file %s is damaged: its private key belongs to %s, which is not what its kid and x say", path, k.did)
	}
	return k, nil
}
