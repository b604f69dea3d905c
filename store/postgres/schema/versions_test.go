package schema

import (
	"io/fs"
	"testing"
)

// TestTogether checks the rule for which versions may run together: each schema has one, and no rule forgets what an
// earlier schema needs.
func TestTogether(t *testing.T) {
	files, err := fs.Glob(Files, "*.sql")
	if err != nil || len(files) != len(Current.Together) {
		t.Fatalf("%d schema files, and rules for %d: %v", len(files), len(Current.Together), err)
	}
	before := 1
	for i, need := range Current.Together {
		if need < before || need > i+1 {
			t.Errorf("schema %d needs nodes that support schema %d, and the one before needs %d", i+1, need, before)
		}
		before = need
	}
	if len(files) > maxVersion {
		t.Errorf("%d schemas, but there are locks for %d", len(files), maxVersion)
	}
}
