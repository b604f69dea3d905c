package faults

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestDamagedData tests that the relay refuses to start if acknowledged messages are missing on disk (SECURITY.md T26).
// It starts only if it is told to accept the loss. The relay detects the loss by a high-water mark outside of the
// write-ahead log.
func TestDamagedData(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, older, data string){
		"a bit of the write-ahead log is flipped": func(t *testing.T, _, data string) {
			flipMiddle(t, filepath.Join(data, "agora.db-wal"))
		},
		"the write-ahead log is gone": func(t *testing.T, _, data string) {
			must(t, os.Remove(filepath.Join(data, "agora.db-wal")))
		},
		"the write-ahead log is cut": func(t *testing.T, _, data string) {
			cutHalf(t, filepath.Join(data, "agora.db-wal"))
		},
		"the database is an older copy": func(t *testing.T, older, data string) {
			copyDatabase(t, older, data)
		},
	} {
		t.Run(name, func(t *testing.T) {
			relay := newServer(t, longTimeouts...)
			relay.start()
			keys := newKeys(t, 2)
			relay.mustAccept(request(t, keys[0], keys[1].DID(), time.Hour, 0))
			relay.kill()
			older := t.TempDir()
			copyDatabase(t, relay.data, older)
			relay.start()
			for range 10 {
				relay.mustAccept(request(t, keys[0], keys[1].DID(), time.Hour, 2000))
			}
			relay.kill()
			damage(t, older, relay.data)

			if output := relay.mustFailToStart(); !strings.Contains(output, "--accept-loss") {
				t.Errorf("the error of the relay does not name --accept-loss: %q", output)
			}
			accepting := serverOn(t, relay.data, append([]string{"--accept-loss"}, longTimeouts...)...)
			accepting.start()
			kept, _ := accepting.stored("0")
			again := accepting.mustAccept(request(t, keys[0], keys[1].DID(), time.Hour, 0))
			if len(kept) > 10 {
				t.Errorf("nothing was lost, because %d events are stored", len(kept))
			}
			accepting.kill()
			relay.start() // the loss was accepted, so the relay does not refuse again
			if events, _ := relay.stored("0"); len(events) != len(kept)+1 || events[len(kept)].ID != again.ID {
				t.Errorf(
					"after the loss was accepted, %d events and a new one must be stored, but %d events are stored",
					len(kept), len(events))
			}
		})
	}
}

// copyDatabase copies the database from one folder to another, where it replaces the old one. Other files stay. No
// relay may use either database.
func copyDatabase(t *testing.T, from, to string) {
	t.Helper()
	for _, name := range []string{"agora.db", "agora.db-wal"} {
		must(t, os.RemoveAll(filepath.Join(to, name)))
		in, err := os.Open(filepath.Join(from, name))
		if os.IsNotExist(err) {
			continue
		}
		must(t, err)
		out, err := os.Create(filepath.Join(to, name))
		must(t, err)
		_, err = io.Copy(out, in)
		must(t, err)
		must(t, in.Close())
		must(t, out.Close())
	}
	must(t, os.RemoveAll(filepath.Join(to, "agora.db-shm"))) // SQLite creates it again from the write-ahead log
}

func flipMiddle(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	text[len(text)/2] ^= 4
	must(t, os.WriteFile(path, text, 0o600))
}

func cutHalf(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	must(t, os.Truncate(path, info.Size()/2))
}
