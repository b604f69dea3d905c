package joins

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// TestJoinInAllLanguages is B-14: the sums and the id that the packages for JavaScript and Python make too. So an agent
// that changes its language registers nothing again. Their tests read the same file.
func TestJoinInAllLanguages(t *testing.T) {
	text, err := os.ReadFile("../../testdata/join.json")
	if err != nil {
		t.Fatal(err)
	}
	var shared struct {
		DID     didkey.DID        `json:"did"`
		UUID    string            `json:"uuid"`
		Sums    map[string]string `json:"sums"`
		Options struct {
			Manifest       envelope.Manifest
			Name, Culture  string
			Credits        float64
			Public, Listed bool
		} `json:"options"`
	}
	if err := json.Unmarshal(text, &shared); err != nil {
		t.Fatal(err)
	}
	o := Options{Manifest: shared.Options.Manifest, Name: shared.Options.Name, Culture: shared.Options.Culture,
		Credits: shared.Options.Credits, Public: shared.Options.Public, Listed: shared.Options.Listed}
	if len(shared.Sums) != len((&Joiner{}).protocols()) {
		t.Errorf("there are %d sums", len(shared.Sums))
	}
	for name, want := range shared.Sums {
		if got, err := o.sum(name); err != nil || got != want {
			t.Errorf("the sum of %s is %s, %v, want %s", name, got, err, want)
		}
	}
	if got := agentUUID(shared.DID); got != shared.UUID {
		t.Errorf("the id is %s, want %s", got, shared.UUID)
	}
}
