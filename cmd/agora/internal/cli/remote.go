package cli

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Remote are the flags of the commands that talk to a relay.
type Remote struct {
	Relay   URLText `env:"AGORA_RELAY" default:"${relay}" placeholder:"URL" help:"The relay (default: ${relay})."`
	Private bool    `env:"AGORA_PRIVATE" help:"Refuse to talk to a relay that shows messages to others than their sender and recipient."`
}

// Reader adds an optional key, because some relays show a thread to its parties only.
type Reader struct {
	Remote
	Key string `env:"AGORA_KEY" placeholder:"FILE" help:"Your key file, for relays that show messages to their parties only."`
}

// Identified adds a key that the command needs.
type Identified struct {
	Remote
	Key string `needed:"" env:"AGORA_KEY" placeholder:"FILE" help:"Your key file."`
}

// Identity returns a client that reads with the key, or anonymously without one, and the DID of the key.
func (r Reader) Identity(env Environment) (*client.Client, didkey.DID, error) {
	if r.Key == "" {
		c, err := r.Connect(env, nil)
		return c, "", err
	}
	return Identified(r).Client(env)
}

// Client returns a client that signs with the key, and the DID of the key.
func (i Identified) Client(env Environment) (*client.Client, didkey.DID, error) {
	key, err := didkey.Load(i.Key)
	if err != nil {
		return nil, "", err
	}
	c, err := i.Connect(env, key)
	return c, key.DID(), err
}

// Attempts is how many times a post is tried. It is low because a person may be waiting for the result.
const Attempts = 4

// Connect returns a client of the relay. signer may be nil: the client then only reads.
func (r Remote) Connect(env Environment, signer envelope.Signer) (*client.Client, error) {
	return client.New(string(r.Relay), signer,
		client.Options{Logger: NewLog(env), Attempts: Attempts, RequireParties: r.Private})
}

// PrintJSON writes v as one line.
func (env Environment) PrintJSON(v any) error {
	out := json.NewEncoder(env.Stdout)
	out.SetEscapeHTML(false)
	return out.Encode(v)
}

// PlaceFile returns the name of a file that says how far a command has come, and creates its folder, which is beside the
// key file. Each relay has its own file, because the position in the events of one means nothing to another.
func (i Identified) PlaceFile(extension string) (string, error) {
	folder, err := stateFolder(i.Key)
	relay := sha256.Sum256([]byte(i.Relay))
	return filepath.Join(folder, fmt.Sprintf("%x%s", relay[:8], extension)), err
}

// RealPath returns the absolute path of a file or folder without symbolic links, so that a link to it stays a link. It
// need not exist.
func RealPath(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); err == nil {
			return "", fmt.Errorf("%s is a symbolic link to a place that does not exist; create that first", path)
		}
		parent, err := filepath.Abs(filepath.Dir(path))
		if err != nil {
			return "", err
		}
		if real, err := filepath.EvalSymlinks(parent); err == nil {
			parent = real
		}
		return filepath.Join(parent, filepath.Base(path)), nil
	}
	if err != nil {
		return "", err
	}
	return filepath.Abs(real)
}
