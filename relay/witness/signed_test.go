package witness

import (
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
)

// TestSignedTextsDiffer checks that no signature of a relay's key can be taken for one of another kind (LOG §8): what it
// signs as an envelope, as a checkpoint and as the statement about its witness begins differently. The witness has
// another key in each epoch (LOG L-21).
func TestSignedTextsDiffer(t *testing.T) {
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	notice, err := envelope.Draft{Payload: envelope.Manifest{ID: "m"}}.Sign(key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	checkpoint, err := proof.SignCheckpoint(key, proof.Origin{DID: key.DID(), Epoch: 7}, 1, proof.Hash{})
	if err != nil {
		t.Fatal(err)
	}
	for beginning, text := range map[string]string{
		"{":                     string(notice.Canonical()),
		string(key.DID()) + "/": checkpoint.Body(),
		"agora-witness/1\n":     string(statement("key")),
	} {
		if !strings.HasPrefix(text, beginning) {
			t.Errorf("%.40q does not begin with %q", text, beginning)
		}
	}
	seen := map[didkey.DID]bool{key.DID(): true}
	for _, epoch := range []uint32{7, 8} {
		cosigner, name, err := identity(key, epoch)
		if err != nil {
			t.Fatal(err)
		}
		if seen[cosigner.DID()] || !strings.HasPrefix(name, string(key.DID())+"/witness/0000000") {
			t.Errorf("the witness of epoch %d is %s with the key %s", epoch, name, cosigner.DID())
		}
		seen[cosigner.DID()] = true
	}
}
