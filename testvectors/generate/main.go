// Command generate writes the vector files of package testvectors. Run it with go generate ./testvectors.
//
// The tables in this package have the expected results, written by hand from the protocol. Only bytes are computed:
// keys, signatures and canonical forms. They are computed by this package and the standard library, without the code
// that the vectors test. Seeds of keys and times are fixed, so the files are the same every time.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/agora-relay/agora/testvectors"
)

func main() {
	log.SetFlags(0)
	dir := flag.String("dir", ".", "folder to write the files to")
	flag.Parse()
	if err := writeAll(*dir); err != nil {
		log.Fatal(err)
	}
}

// writeAll writes every vector file to dir.
func writeAll(dir string) error {
	for _, write := range []func(string) error{
		writeFile("didkey.json", "Identifiers: is this text the one accepted spelling of a usable Ed25519 key?", didkeys),
		writeFile("canonicalize.json", "Canonicalization: the RFC 8785 form of an I-JSON text, or a refusal.", canonicalizations),
		writeFile("sign.json", "Signing: the exact bytes, signature and canonical envelope for a key and a text.", signings),
		writeFile("verify.json", "Verification: everything a relay checks of one body before it asks its store.", verifications),
		writeFile("window.json", "Freshness: is a message with this ts and ttl taken now, and until when is it kept?", windows),
		writeFile("threads.json", "The thread table: who may send what in which state, and what comes of it.", threads),
		writeFile("reads.json", "Signed reads: is this token good for this request to this relay at this time?", reads),
		writeFile("conversations.json", "Whole conversations: posts, one after the other, to a relay that starts empty.", conversations),
		writeFile("log.json", "Transparency logs: is this proof valid, and does this evidence show that a relay broke its word?", logVectors),
		writeFile("relays.json", "Deals without a relay: is this a chain of messages, and has this client accepted "+
			"two agents for one job?", relaysVectors),
		writeFile("sealing.json", "Sealing: keys for X25519, and messages whose payload only their recipient opens.", sealings),
	} {
		if err := write(dir); err != nil {
			return err
		}
	}
	return nil
}

// writeFile returns a function that writes one file. Each member of a vector is on its own line.
func writeFile[T any](name, description string, vectors func() []T) func(dir string) error {
	return func(dir string) error {
		var text bytes.Buffer
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(testvectors.File[T]{Description: description, Vectors: vectors()}); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return os.WriteFile(filepath.Join(dir, name), text.Bytes(), 0o644)
	}
}
