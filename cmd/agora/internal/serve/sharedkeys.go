package serve

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/cmd/agora/internal/settings"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/internal/fsync"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/postgres"
)

// All nodes of a relay must have the same keys. They are files in the data folder of each node. The database has a hash
// of each, so a node with another key does not start. With --key-secret it also has the files themselves, encrypted.

// keySecret is the secret with which shared keys are encrypted.
type keySecret []byte

const keySecretPrefix = "agora-secret-"

// ReadKeySecret reads a secret that `agora key secret` has created.
func ReadKeySecret(path string) (keySecret, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("--key-secret: %w; create the file with agora key secret, and copy it to each node", err)
	}
	if cli.ReadableByOthers(info) {
		return nil, fmt.Errorf("--key-secret: other users may read %s; run: chmod 600 %s", path, cli.ShellQuoted(path))
	}
	if info.Size() > 1<<10 {
		return nil, fmt.Errorf("--key-secret: %s is not a secret that agora key secret has created", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	encoded, ok := strings.CutPrefix(strings.TrimSpace(string(text)), keySecretPrefix)
	secret, err := base64.RawURLEncoding.DecodeString(encoded)
	if !ok || err != nil || len(secret) != 32 {
		return nil, fmt.Errorf("--key-secret: %s is not a secret that agora key secret has created", path)
	}
	return secret, nil
}

// aead returns the cipher for a file. A new salt makes a new key, so that a nonce of zeros is used once.
func (s keySecret) aead(name string, salt []byte) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, s, salt, "agora shared key "+name, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

const keySaltSize = 32

// encrypt returns a random salt and the encrypted content of a file.
func (s keySecret) encrypt(name string, content []byte) ([]byte, error) {
	salt := make([]byte, keySaltSize)
	rand.Read(salt) // never fails (crypto/rand)
	a, err := s.aead(name, salt)
	if err != nil {
		return nil, err
	}
	return a.Seal(salt, make([]byte, a.NonceSize()), content, []byte(name)), nil
}

func (s keySecret) decrypt(name string, stored []byte) ([]byte, error) {
	if len(stored) < keySaltSize {
		return nil, errors.New("the stored key is damaged")
	}
	a, err := s.aead(name, stored[:keySaltSize])
	if err != nil {
		return nil, err
	}
	content, err := a.Open(nil, make([]byte, a.NonceSize()), stored[keySaltSize:], []byte(name))
	if err != nil {
		return nil, fmt.Errorf("%s in the database cannot be decrypted with this --key-secret; use the secret of the other "+
			"nodes", name)
	}
	return content, nil
}

// SharedKeys copies the keys that all nodes share into a data folder.
type SharedKeys struct {
	Store  *postgres.Store
	Folder string
	Secret keySecret // nil: the operator copies the files
	renew  bool      // with --new-identity
}

// Sync copies the key files that the nodes share into the data folder. If no node has a file yet, Sync creates it,
// unless the database must have been used with one. gateways says whether the keys of gateways are needed.
func (k SharedKeys) Sync(ctx context.Context, gateways bool) error {
	for _, name := range datafolder.Keys {
		if name != datafolder.Key && !gateways {
			continue
		}
		if err := k.syncFile(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (k SharedKeys) syncFile(ctx context.Context, name string) error {
	path := filepath.Join(k.Folder, name)
	content, err := readShared(path)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return err
	}
	if k.renew && name == datafolder.Key {
		if err := errors.Join(k.Store.Forget(ctx, hashSetting(name)), k.Store.Forget(ctx, fileSetting(name))); err != nil {
			return err
		}
	}
	if missing {
		if content, err = k.missing(ctx, name); err != nil {
			return err
		}
	}
	if k.Secret != nil {
		encrypted, err := k.Secret.encrypt(name, content)
		if err != nil {
			return err
		}
		stored, err := k.Store.Share(ctx, fileSetting(name), encrypted)
		if err != nil {
			return err
		}
		shared, err := k.Secret.decrypt(name, stored)
		if err != nil {
			return err
		}
		if missing {
			content = shared // another node may have stored it first
		}
	}
	hash := identityOf(name, content)
	stored, err := k.Store.Share(ctx, hashSetting(name), hash)
	if err != nil {
		return err
	}
	if !bytes.Equal(hash, stored) {
		return fmt.Errorf("%s is not that of the other nodes; copy their file to this node, or remove the file here and use "+
			"--key-secret", path)
	}
	if missing {
		return fsync.Create(path, content)
	}
	return nil
}

// missing returns the content of a file that this node does not have: what other nodes have stored, or a new key.
func (k SharedKeys) missing(ctx context.Context, name string) ([]byte, error) {
	if k.Secret != nil {
		stored, err := k.Store.Setting(ctx, fileSetting(name))
		if err != nil {
			return nil, err
		}
		if stored != nil {
			return k.Secret.decrypt(name, stored)
		}
	}
	hash, err := k.Store.Setting(ctx, hashSetting(name))
	if err != nil {
		return nil, err
	}
	if hash != nil {
		return nil, fmt.Errorf("%s is missing in %s, and the other nodes have it; copy their file to this node, or start all "+
			"nodes with --key-secret", name, k.Folder)
	}
	if err := k.checkUnused(ctx, name); err != nil {
		return nil, err
	}
	if name == datafolder.OperatorKey {
		return []byte(gateway.NewKey(gateway.Operator) + "\n"), nil
	}
	key, err := didkey.Generate()
	if err != nil {
		return nil, err
	}
	return didkey.Marshal(key)
}

// checkUnused returns an error if the database was used with a key that is missing now.
func (k SharedKeys) checkUnused(ctx context.Context, name string) error {
	restore := fmt.Errorf("%s is missing in %s, and the database was used with it; restore the file from a backup",
		name, k.Folder)
	switch name {
	case datafolder.Key:
		page, err := k.Store.Read(ctx, relay.Query{})
		if err != nil || page.Cursor.Seq == 0 || k.renew {
			return err
		}
		return fmt.Errorf("%w, or start with --new-identity to give the relay a new identity", restore)
	case datafolder.GatewayKey:
		var recorded didkey.DID
		_, err := k.Store.View(ctx, func(q relay.Querier) (err error) {
			recorded, err = gateway.RecordedDID(q)
			return err
		})
		if err != nil || recorded == "" {
			return err
		}
		return restore
	}
	return nil
}

// readShared reads the file of a key. It refuses a file that other users may access.
func readShared(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if cli.OpenToOthers(info) {
		return nil, fmt.Errorf("the file %s has mode %#o, so other users may access it; run: chmod 600 %s",
			path, info.Mode().Perm(), cli.ShellQuoted(path))
	}
	if info.Size() > 1<<16 {
		return nil, fmt.Errorf("the file %s is too large for a key", path)
	}
	return os.ReadFile(path)
}

// identityOf returns what all nodes compare of a file: the identity of a key, and a hash of the operator's key.
func identityOf(name string, content []byte) []byte {
	var key struct{ Kid string }
	if name != datafolder.OperatorKey && json.Unmarshal(content, &key) == nil && key.Kid != "" {
		return []byte(key.Kid) // didkey.Load checks the rest
	}
	hash := sha256.Sum256(bytes.TrimSpace(content))
	return hash[:]
}

func hashSetting(name string) string { return "hash." + name }
func fileSetting(name string) string { return "file." + name }

type KeyCmd struct {
	Secret keySecretCmd `cmd:"" help:"Create a secret with which nodes share their keys."`
	Fetch  keyFetchCmd  `cmd:"" help:"Write the keys that the nodes share into a data folder."`
}

type keySecretCmd struct {
	File string `arg:"" help:"The file to create. It is never overwritten."`
}

func (keySecretCmd) Help() string {
	return "Creates a file with a random secret. Copy it to each node of a relay, and start the nodes with --key-secret. They " +
		"then share relay.key, gateway.key and operator.key in the database, encrypted with this secret. Anyone who has the secret " +
		"and the database can act as the relay.\n\nExample:\n  agora key secret /etc/agora/key-secret"
}

func (c keySecretCmd) Run(env cli.Environment) error {
	secret := make([]byte, 32)
	rand.Read(secret) // never fails (crypto/rand)
	if err := fsync.Create(c.File, []byte(keySecretPrefix+base64.RawURLEncoding.EncodeToString(secret)+"\n")); err != nil {
		return err
	}
	_, err := fmt.Fprintf(env.Stdout, "created %s; copy it to each node, and keep a copy in a safe place\n", cli.Printable(c.File))
	return err
}

type keyFetchCmd struct {
	Store     StoreAddress `required:"" secret:"" placeholder:"URL" help:"The PostgreSQL database of the nodes (AGORA_STORE, AGORA_STORE_FILE)."`
	KeySecret string       `required:"" placeholder:"FILE" help:"The secret of the nodes."`
	Data      string       `default:"./agora-data" placeholder:"FOLDER" help:"The data folder (default: ${default})."`
}

func (keyFetchCmd) Help() string {
	return "Writes relay.key, gateway.key and operator.key into a data folder, as far as the nodes share them. agora serve " +
		"does the same when it starts. Use this command to keep the keys outside of the database too. Files that exist are " +
		"not changed.\n\nExample:\n  agora key fetch --store postgres://agora@db1,db2/agora --key-secret /etc/agora/key-secret " +
		"--data backup"
}

// BeforeResolve reads the address of the database from the environment. kong calls it.
func (keyFetchCmd) BeforeResolve(ctx *kong.Context) error { return settings.ResolveSecrets(ctx) }

func (c keyFetchCmd) Run(env cli.Environment) error {
	secret, err := ReadKeySecret(c.KeySecret)
	if err != nil {
		return err
	}
	settings, err := postgres.ReadSettings(env.Ctx, string(c.Store), "file.")
	if err != nil {
		return err
	}
	if err := datafolder.Make(c.Data); err != nil {
		return err
	}
	written := 0
	for _, name := range datafolder.Keys {
		stored, ok := settings[fileSetting(name)]
		if !ok {
			continue
		}
		content, err := secret.decrypt(name, stored)
		if err != nil {
			return err
		}
		path := filepath.Join(c.Data, name)
		if err := fsync.Create(path, content); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		} else if err == nil {
			written++
			fmt.Fprintf(env.Stderr, "agora: wrote %s\n", cli.Printable(path))
		}
	}
	_, err = fmt.Fprintf(env.Stdout, "%s written into %s\n", cli.Count(int64(written), "key"), cli.Printable(c.Data))
	return err
}
