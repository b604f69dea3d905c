package testvectors_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/agora-relay/agora/internal/promised"
)

// TestFixtureVectors checks that each vector of an earlier version is still there, and says the same. So what those
// versions signed, verified and refused, this one signs, verifies and refuses, too.
func TestFixtureVectors(t *testing.T) {
	files, err := filepath.Glob("*.json")
	if err != nil {
		t.Fatal(err)
	}
	var now []string
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var file struct{ Vectors []any }
		if err := json.Unmarshal(text, &file); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, v := range file.Vectors {
			canonical, err := json.Marshal(v) // sorted, and the same for the same vector
			if err != nil {
				t.Fatal(err)
			}
			digest := sha256.Sum256(canonical)
			now = append(now, fmt.Sprintf("%s %v %x", name, v.(map[string]any)["name"], digest[:6]))
		}
	}
	promised.Keep(t, "..", "vectors", now, nil)
}
