package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/agora-relay/agora/didkey"
)

type keygenCmd struct {
	File string `arg:"" optional:"" default:"agora.key" help:"File to make. It is never overwritten."`
}

func (keygenCmd) Help() string {
	return "Writes a private JSON Web Key that only you can read, and prints the did:key to give to others.\n\n" +
		"Example:\n  agora keygen alice.key"
}

func (c keygenCmd) Run(env environment) error {
	key, err := didkey.Generate()
	if err != nil {
		return err
	}
	if err := didkey.Save(c.File, key); err != nil {
		return err
	}
	// The name goes to standard error, so that standard output is the identity and nothing else.
	fmt.Fprintf(env.stderr, "The private key is in %s; keep it, and keep it to yourself. The identity is:\n", c.File)
	_, err = fmt.Fprintln(env.stdout, key.DID())
	return err
}

type didCmd struct {
	DID *string `arg:"" name:"did" optional:"" help:"The identifier to check."`
	Key string  `help:"Show the identity of this key file instead." placeholder:"FILE"`
}

func (didCmd) Help() string {
	return "Prints one line of JSON with did and publicKeyHex, or says on standard error why the text is not accepted.\n\n" +
		"Examples:\n  agora did did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp\n  agora did --key alice.key"
}

func (c didCmd) Validate() error {
	if (c.DID == nil) == (c.Key == "") {
		return fmt.Errorf("give either a did:key or --key FILE")
	}
	return nil
}

func (c didCmd) Run(env environment) error {
	did, err := c.did()
	if err != nil {
		return err
	}
	return json.NewEncoder(env.stdout).Encode(struct {
		DID       didkey.DID `json:"did"`
		PublicKey string     `json:"publicKeyHex"`
	}{did, hex.EncodeToString(did.PublicKey())})
}

func (c didCmd) did() (didkey.DID, error) {
	if c.Key == "" {
		return didkey.Parse(*c.DID)
	}
	key, err := didkey.Load(c.Key)
	return key.DID(), err
}
