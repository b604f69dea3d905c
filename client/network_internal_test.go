package client

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/proof"
)

// TestContradictionIsCaught: a relay whose proofs contradict each other within one log is not used any more, and the
// evidence is in a file. What can come from a restore does not count (RELAYS R-17).
func TestContradictionIsCaught(t *testing.T) {
	text, err := os.ReadFile("../testvectors/log.json")
	var file struct {
		Vectors []struct {
			Name, Expect string
			Evidence     []byte
		}
	}
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err != nil {
		t.Fatal(err)
	}
	kinds, restored := map[proof.Kind]bool{}, false
	for _, v := range file.Vectors {
		e, err := proof.ParseEvidence(v.Evidence)
		if err != nil || v.Expect != "accept" || len(e.Proofs) != 2 {
			continue
		}
		folder := t.TempDir()
		key, err := didkey.Generate()
		if err != nil {
			t.Fatal(err)
		}
		n, err := NewNetwork([]string{"https://relay.example"}, key, NetworkOptions{Evidence: folder})
		if err != nil {
			t.Fatal(err)
		}
		events, err := proof.ParseMessages(e.Events)
		if err != nil {
			t.Fatal(v.Name, err)
		}
		logs := map[proof.Origin]bool{}
		var relay didkey.DID
		for i, text := range e.Proofs {
			p, err := proof.Parse(text)
			var verified *proof.Verified
			if err == nil {
				verified, err = p.Verify()
			}
			if err != nil {
				t.Fatal(v.Name, err)
			}
			s := &proof.Statement{Proof: p, Verified: verified}
			if e.Kind == proof.KindSteps {
				s.Event = events[i]
			}
			relay, logs[verified.Origin] = verified.Origin.DID, true
			n.compare(s)
		}
		restored = restored || e.Kind == proof.KindSteps && len(logs) == 2
		files, err := filepath.Glob(folder + "/evidence-*.json")
		caught := n.state.IsCaught(relay)
		if want := e.Kind != proof.KindChain && len(logs) == 1; err != nil || caught != want || (len(files) == 1) != want {
			t.Errorf("%s, %s: caught %v, %d files, %v", v.Name, e.Kind, caught, len(files), err)
		}
		kinds[e.Kind] = true
	}
	if len(kinds) < 4 || !restored {
		t.Errorf("only the kinds %v were tried, two steps in two logs: %v", kinds, restored)
	}
}
