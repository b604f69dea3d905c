package admin_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agora-relay/agora/relay/admin"
)

// TestNewPath tests that what is made twice within a second gets two names, which sort in the order of making. The prefix
// contains what Go takes for a part of a time.
func TestNewPath(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "data2006.before-")
	now := time.Date(2026, 11, 26, 23, 59, 59, 999e6, time.UTC)
	for _, want := range []string{"20261126T235959Z", "20261127T000000Z", "20261127T000001Z"} {
		path, err := admin.NewPath(prefix, now)
		if err != nil || path != prefix+want {
			t.Fatalf("the path is %s (%v), want one that ends in %s", path, err, want)
		}
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
}
