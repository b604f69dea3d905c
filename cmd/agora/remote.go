package main

import (
	"encoding/json"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// remote are the flags of the commands that talk to a relay.
type remote struct {
	Relay   urlText `env:"AGORA_RELAY" default:"${relay}" placeholder:"URL" help:"The relay (default: ${relay})."`
	Private bool    `env:"AGORA_PRIVATE" help:"Refuse to talk to a relay that shows messages to others than their sender and recipient."`
}

// reader adds an optional key, because some relays show a thread to its parties only.
type reader struct {
	remote
	Key string `env:"AGORA_KEY" placeholder:"FILE" help:"Your key file, for relays that show messages to their parties only."`
}

// identified adds a key that the command needs.
type identified struct {
	remote
	Key string `needed:"" env:"AGORA_KEY" placeholder:"FILE" help:"Your key file."`
}

// identity returns a client that reads with the key, or anonymously without one, and the DID of the key.
func (r reader) identity(env environment) (*client.Client, didkey.DID, error) {
	if r.Key == "" {
		c, err := r.connect(env, nil)
		return c, "", err
	}
	return identified(r).client(env)
}

func (i identified) client(env environment) (*client.Client, didkey.DID, error) {
	key, err := didkey.Load(i.Key)
	if err != nil {
		return nil, "", err
	}
	c, err := i.connect(env, key)
	return c, key.DID(), err
}

// attempts is how many times a post is tried. It is low because a person may be waiting for the result.
const attempts = 4

func (r remote) connect(env environment, signer envelope.Signer) (*client.Client, error) {
	return client.New(string(r.Relay), signer,
		client.Options{Logger: newLog(env), Attempts: attempts, RequireParties: r.Private})
}

// printJSON writes v as one line.
func (env environment) printJSON(v any) error {
	out := json.NewEncoder(env.stdout)
	out.SetEscapeHTML(false)
	return out.Encode(v)
}
