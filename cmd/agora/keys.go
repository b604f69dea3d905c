package main

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
)

type keygenCmd struct {
	File string `arg:"" optional:"" default:"agora.key" help:"The file to create. It is never overwritten."`
}

func (keygenCmd) Help() string {
	return "Writes a private JSON Web Key that only you can read, and prints the did:key, your public identity.\n\n" +
		"Example:\n  agora keygen alice.key"
}

func (c keygenCmd) Run(env cli.Environment) error {
	key, err := didkey.Generate()
	if err != nil {
		return err
	}
	if err := didkey.Save(c.File, key); err != nil {
		return err
	}
	// The file name is printed to standard error, so that standard output contains only the identity.
	fmt.Fprintf(env.Stderr, "The private key is in %s; do not lose it, and keep it secret. The identity is:\n",
		cli.Printable(c.File))
	_, err = fmt.Fprintln(env.Stdout, key.DID())
	return err
}

type didCmd struct {
	DID *string `arg:"" name:"did" optional:"" help:"The did:key to check, or a name of the address book, or a key file whose identity is shown."`
	Key string  `help:"Show the identity of this key file." placeholder:"FILE"`
}

func (didCmd) Help() string {
	return "Prints one line of JSON with did and publicKeyHex. If the text is not a valid did:key, prints the " +
		"reason to standard error.\n\n" +
		"Examples:\n  agora did alice.key\n  agora did did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"
}

func (c didCmd) Validate() error {
	if (c.DID == nil) == (c.Key == "") {
		return fmt.Errorf("give exactly one of a did:key and a key file")
	}
	return nil
}

func (c didCmd) Run(env cli.Environment) error {
	did, err := c.did()
	if err != nil {
		return err
	}
	return env.PrintJSON(struct {
		DID       didkey.DID `json:"did"`
		PublicKey string     `json:"publicKeyHex"`
	}{did, hex.EncodeToString(did.PublicKey())})
}

func (c didCmd) did() (didkey.DID, error) {
	file := c.Key
	if c.DID != nil {
		_, missing := os.Stat(*c.DID)
		if missing != nil || strings.HasPrefix(*c.DID, "did:") {
			did, err := cli.PersonDID(*c.DID)
			if err != nil && !strings.HasPrefix(*c.DID, "did:") {
				err = fmt.Errorf("there is no key file %q, and it is neither a did:key nor a name: %w", *c.DID, err)
			}
			return did, err
		}
		file = *c.DID
	}
	key, err := didkey.Load(file)
	return key.DID(), err
}
