package main

import (
	"encoding/json"
	"log/slog"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// remote are the flags of the verbs that talk to a relay.
type remote struct {
	Relay urlText `env:"AGORA_RELAY" default:"${relay}" placeholder:"URL" help:"The relay (default: ${relay})."`
}

// identified adds the flag of those that act as somebody.
type identified struct {
	remote
	Key string `required:"" env:"AGORA_KEY" placeholder:"FILE" help:"Your key file."`
}

// client returns a client that is nobody and can only read.
func (r remote) client(env environment) (*client.Client, error) {
	return connect(env, string(r.Relay), nil)
}

func (i identified) client(env environment) (*client.Client, didkey.DID, error) {
	key, err := didkey.Load(i.Key)
	if err != nil {
		return nil, "", err
	}
	c, err := connect(env, string(i.Relay), key)
	return c, key.DID(), err
}

// attempts is how often a post is tried; somebody waits at a terminal.
const attempts = 4

func connect(env environment, relay string, signer envelope.Signer) (*client.Client, error) {
	log := slog.New(slog.NewTextHandler(env.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return client.New(relay, signer, client.Options{Logger: log, Attempts: attempts})
}

// printJSON writes v as one line.
func (env environment) printJSON(v any) error {
	out := json.NewEncoder(env.stdout)
	out.SetEscapeHTML(false)
	return out.Encode(v)
}
