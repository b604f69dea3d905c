package relay_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
)

// TestRoomOfExtensions checks that the room for extensions ends before the room for messages (G-36): clients then store
// nothing more in the tables of extensions, but messages are accepted, and the relay itself and its operator can still
// remove rows. When there is room again, clients may store rows again.
func TestRoomOfExtensions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 16 << 20
		o := sqlite.Options{Reserve: 1 << 20, MaxBytes: most, Extensions: []relay.Extension{tasksExtension}}
		r, stop := runOver(t, filepath.Join(t.TempDir(), "agora.db"), o, relay.Config{})
		t.Cleanup(stop)
		client := from("203.0.113.7")
		store := func(p relay.Peer, name string) error {
			time.Sleep(3 * time.Second) // the store looks at its room once a second
			return r.Update(t.Context(), p, func(tx relay.ExtTx) error {
				_, err := tx.Exec("INSERT INTO tasks_task (name, message) VALUES (?, ?)", name, strings.Repeat("x", 1<<20))
				return err
			})
		}
		stored := 0
		var err error
		for ; stored < 16 && err == nil; stored++ {
			err = store(client, strings.Repeat("n", stored+1))
		}
		wantCode(t, err, envelope.CodeUnavailable)
		if stored--; stored < 8 || stored > 14 {
			t.Errorf("clients have stored %d MB of %d MB, want about 12", stored, most>>20)
		}
		wantCode(t, store(relay.Peer{Local: true, Addr: client.Addr}, "a local client"), envelope.CodeUnavailable)
		alice := key(t)
		for i := range 20 {
			post(t, r, sign(t, alice, envelope.Draft{Payload: request, Thread: fmt.Sprintf("t%d", i)}))
		}
		for _, p := range []relay.Peer{{Local: true}, {Local: true, Operator: true}} {
			if err := r.Update(t.Context(), p, func(tx relay.ExtTx) error {
				_, err := tx.Exec("DELETE FROM tasks_task WHERE name IN (SELECT name FROM tasks_task ORDER BY name LIMIT 2)")
				return err
			}); err != nil {
				t.Errorf("%+v cannot remove rows: %v", p, err)
			}
		}
		if err := store(client, "again"); err != nil {
			t.Errorf("with room again: %v", err)
		}
	})
}
