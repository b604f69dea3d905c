package serve

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/relay"
)

// TestMovedSource checks that what agora migrate has left behind is not served under the same identity (LOG L-17): it
// would continue a log that continues elsewhere.
func TestMovedSource(t *testing.T) {
	folder := t.TempDir()
	key, aside := filepath.Join(folder, datafolder.Key), filepath.Join(folder, "aside")
	start := func(newIdentity bool) error {
		t.Helper()
		c := Cmd{Data: folder, NewIdentity: newIdentity, MaxDisk: 1 << 30}
		store, err := c.openStore(t.Context(), relay.NoObserver{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := store.close(); err != nil {
				t.Error(err)
			}
		}()
		if moved, err := store.MovedTo(t.Context()); err == nil && moved == "" {
			defer func() {
				if err := store.MarkMoved(t.Context(), "postgres://db1/agora"); err != nil {
					t.Error(err)
				}
			}()
		}
		_, err = c.loadOrCreateKey(t.Context(), store)
		return err
	}
	refused := func(what string) {
		t.Helper()
		if err := start(false); err == nil || !strings.Contains(err.Error(), "was moved to postgres://db1/agora with agora migrate") {
			t.Errorf("%s: %v", what, err)
		}
	}
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	if err := start(false); err != nil { // the database is marked when it is closed
		t.Fatal(err)
	}
	refused("the same key")
	move(key, aside)
	if err := start(true); err != nil {
		t.Fatal(err)
	}
	if err := start(false); err != nil {
		t.Errorf("the new identity: %v", err)
	}
	move(aside, key)
	refused("the old key again")
}
