package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
)

// Proving are the flags of commands that post, about proofs (docs/PROOFS.md).
type Proving struct {
	Proofs     client.Proofs `default:"prefer" enum:"off,prefer,required" placeholder:"off|prefer|required" help:"Whether to check that the relay proves what it has stored: never (off), if it gives a proof (prefer, the default), or always (required)."`
	SaveProofs string        `placeholder:"FILE" help:"Add each proof to this file, with its message, as a line of JSON. agora audit reads such files."`
}

// SavedProof is a line of a file of proofs.
type SavedProof struct {
	Relay didkey.DID      `json:"relay"`
	Event json.RawMessage `json:"event"`
	Proof string          `json:"proof"`
}

// options adds the flags to o.
func (p Proving) options(env Environment, o client.Options) (client.Options, error) {
	o.Proofs = p.Proofs
	if p.SaveProofs == "" {
		return o, nil
	}
	if p.Proofs == client.ProofsOff {
		return o, errors.New("--save-proofs saves nothing with --proofs off; leave out one of them")
	}
	add := func(line []byte) error {
		f, err := os.OpenFile(p.SaveProofs, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(line) // with O_APPEND, lines of several commands do not mix
		return errors.Join(err, f.Sync(), f.Close())
	}
	if err := add(nil); err != nil {
		return o, fmt.Errorf("--save-proofs: %w", err)
	}
	o.Proved = func(e *envelope.Envelope, r client.Receipt) {
		line, err := json.Marshal(SavedProof{r.Proved.Origin.DID, e.Canonical(), r.Proof})
		if err == nil {
			err = add(append(line, '\n'))
		}
		if err != nil {
			env.Say("cannot save the proof of %s: %v", e.ID, err)
		}
	}
	return o, nil
}

// Poster are the flags of commands that post with a key.
type Poster struct {
	Identified
	Proving
}

// Client returns a client that signs with the key, and the DID of the key.
func (p Poster) Client(env Environment) (*client.Client, didkey.DID, error) {
	key, err := didkey.Load(p.Key)
	if err != nil {
		return nil, "", err
	}
	c, err := p.Connect(env, key)
	return c, key.DID(), err
}

// Connect returns a client of the relay that signs with key.
func (p Poster) Connect(env Environment, key envelope.Signer) (*client.Client, error) {
	return p.ConnectTo(env, p.Remote, key)
}

// ConnectPatiently is Connect for a command that nobody waits for. It tries for longer.
func (p Poster) ConnectPatiently(env Environment, key envelope.Signer) (*client.Client, error) {
	return p.Proving.connect(env, p.Remote, key, 0)
}

// ConnectTo returns a client of a relay that signs with key. If key is nil, the client only posts messages that are
// already signed.
func (p Proving) ConnectTo(env Environment, at Remote, key envelope.Signer) (*client.Client, error) {
	return p.connect(env, at, key, Attempts)
}

func (p Proving) connect(env Environment, at Remote, key envelope.Signer, attempts int) (*client.Client, error) {
	o, err := p.options(env, client.Options{Logger: NewLog(env), Attempts: attempts, RequireParties: at.Private})
	if err != nil {
		return nil, err
	}
	return client.New(string(at.Relay), key, o)
}

// ReadPolicy reads a policy of witnesses; nil if file is empty.
func ReadPolicy(file string) (*proof.Policy, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return proof.ParsePolicy(string(text))
}
