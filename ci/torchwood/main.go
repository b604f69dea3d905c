// Command torchwood checks the log and the witness of a relay with libraries of others, which know C2SP and nothing of
// Agora: Torchwood, and the client of the witness of transparency.dev.
//
//	go -C ci/torchwood run . verify POLICY < PROOF
//	go -C ci/torchwood run . feed POLICY LOG WITNESS
//
// POLICY is a file (C2SP tlog-policy) with the key of the log. verify checks a proof (C2SP tlog-proof) of the leaf that
// it has itself. feed reads the checkpoint of the log at the URL LOG, asks the witness at the URL WITNESS to sign it,
// and prints it with the new signature. It makes the consistency proof from the tiles of the log. Both commands fail
// unless the checkpoint meets the policy in the end.
//
// The command is a separate module, so that Agora does not depend on these libraries. The module also pins litewitness.
// make witness builds and uses both programs.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"filippo.io/torchwood"
	client "github.com/transparency-dev/witness/client/http"
	"github.com/transparency-dev/witness/witness"
	"golang.org/x/mod/sumdb/tlog"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "torchwood:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	verifies := len(args) == 2 && args[0] == "verify"
	feeds := len(args) == 4 && args[0] == "feed"
	if !verifies && !feeds {
		return errors.New("usage: torchwood verify POLICY < PROOF, or torchwood feed POLICY LOG WITNESS")
	}
	text, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	policy, err := torchwood.ParsePolicy(text)
	if err != nil {
		return err
	}
	if verifies {
		return verify(policy)
	}
	cosigned, err := feed(ctx, args[2], args[3])
	if err != nil {
		return err
	}
	if _, _, err := torchwood.VerifyCheckpoint(cosigned, policy); err != nil {
		return err
	}
	_, err = os.Stdout.Write(cosigned)
	return err
}

// verify checks the proof on standard input.
func verify(policy torchwood.Policy) error {
	proof, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	leaf, err := torchwood.ProofExtraData(proof)
	if err != nil {
		return err
	}
	return torchwood.VerifyProof(policy, tlog.RecordHash(leaf), proof)
}

// feed returns the checkpoint of a log with the signature of a witness.
func feed(ctx context.Context, log, at string) ([]byte, error) {
	tiles, err := torchwood.NewTileFetcher(log)
	if err != nil {
		return nil, err
	}
	signed, err := tiles.ReadEndpoint(ctx, "checkpoint")
	if err != nil {
		return nil, err
	}
	body, _, _ := strings.Cut(string(signed), "\n\n")
	checkpoint, err := torchwood.ParseCheckpoint(body + "\n")
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(at)
	if err != nil {
		return nil, err
	}
	w := client.NewWitness(u, http.DefaultClient)
	signatures, old, err := w.Update(ctx, 0, signed, nil)
	if errors.Is(err, witness.ErrCheckpointStale) {
		if old < 1 || old > uint64(checkpoint.N) {
			return nil, fmt.Errorf("the witness knows %d leaves of the log, the checkpoint has %d", old, checkpoint.N)
		}
		hashes := torchwood.TileHashReaderWithContext(ctx, checkpoint.Tree, tiles)
		path, failed := tlog.ProveTree(checkpoint.N, int64(old), hashes)
		if failed != nil {
			return nil, failed
		}
		var proof [][]byte
		for _, hash := range path {
			proof = append(proof, hash[:])
		}
		signatures, _, err = w.Update(ctx, old, signed, proof)
	}
	return slices.Concat(signed, signatures), err
}
