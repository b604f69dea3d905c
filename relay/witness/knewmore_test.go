package witness_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/proof"
)

// TestWitnessThatKnewMore checks that a witness signs after its data was put back, although it had known more leaves
// than the log has.
func TestWitnessThatKnewMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relayKey, witnessKey := key(t), key(t)
		known := int64(10)
		url := network.add(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			s, err := proof.ParseSubmission(string(text))
			if err != nil || s.Old > s.Checkpoint.Size { // C2SP tlog-witness
				http.Error(w, "bad request", http.StatusBadRequest)
				return
			}
			if s.Old != known {
				w.WriteHeader(http.StatusConflict)
				fmt.Fprintln(w, known)
				return
			}
			signature, err := s.Checkpoint.Cosign("witness", witnessKey, time.Now())
			if err != nil {
				t.Error(err)
			}
			fmt.Fprint(w, signature.String())
		}))
		policy, err := proof.ParsePolicy(fmt.Sprintf("witness w %s %s\nquorum w\n",
			proof.VerifierKey("witness", witnessKey.DID()), url))
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		client := newClient(policy, slog.New(slog.NewTextHandler(&log, nil)))
		cosign := func() []proof.Signature {
			c, err := proof.SignCheckpoint(relayKey, proof.Origin{DID: relayKey.DID(), Epoch: 1}, 3, proof.Hash{})
			if err != nil {
				t.Fatal(err)
			}
			return client.Cosign(t.Context(), c, func(context.Context, int64) ([]proof.Hash, error) { return nil, nil })
		}
		if s := cosign(); len(s) > 0 || !strings.Contains(log.String(), "has only 3: the data of this relay was rolled") {
			t.Errorf("the relay was rolled back, and has %d signatures and the log %s", len(s), &log)
		}
		known = 0
		if s := cosign(); len(s) != 1 {
			t.Errorf("the witness was put back, and the relay has %d signatures: %s", len(s), &log)
		}
	})
}
