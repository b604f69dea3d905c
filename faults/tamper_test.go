package faults

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What is on disk is not what was acknowledged: a relay that finds this at its start says so and does not run, unless
// it is told to accept the loss (THREATS T26). The high-water mark outside the write-ahead log tells it.
func TestDamagedData(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, older, data string){
		"a bit of the write-ahead log is flipped": func(t *testing.T, _, data string) { flipMiddle(t, filepath.Join(data, "agora.db-wal")) },
		"the write-ahead log is gone":             func(t *testing.T, _, data string) { must(t, os.Remove(filepath.Join(data, "agora.db-wal"))) },
		"the write-ahead log is cut":              func(t *testing.T, _, data string) { cutHalf(t, filepath.Join(data, "agora.db-wal")) },
		"the database is yesterday's":             func(t *testing.T, older, data string) { copyDatabase(t, older, data) },
	} {
		t.Run(name, func(t *testing.T) {
			relay := newServer(t, patient...)
			relay.start()
			keys := newKeys(t, 2)
			relay.mustTake(request(t, keys[0], keys[1].DID(), time.Hour, 0))
			relay.kill()
			older := t.TempDir()
			copyDatabase(t, relay.data, older)
			relay.start()
			for range 10 {
				relay.mustTake(request(t, keys[0], keys[1].DID(), time.Hour, 2000))
			}
			relay.kill()
			damage(t, older, relay.data)

			if said := relay.fails(startTime); !strings.Contains(said, "--accept-loss") {
				t.Errorf("the relay does not say how to go on after a loss: %q", said)
			}
			knowing := serverOn(t, relay.data, append([]string{"--accept-loss"}, patient...)...)
			knowing.start()
			kept, _ := knowing.stored("0")
			again := knowing.mustTake(request(t, keys[0], keys[1].DID(), time.Hour, 0))
			if len(kept) > 10 {
				t.Errorf("nothing was lost, %d events are there: the damage was none", len(kept))
			}
			knowing.kill()
			relay.start() // once accepted, the loss is not brought up again
			if events, _ := relay.stored("0"); len(events) != len(kept)+1 || events[len(kept)].ID != again.ID {
				t.Errorf("after the loss was accepted %d and one more events are kept, %d are there", len(kept), len(events))
			}
		})
	}
}

// copyDatabase replaces the database in the folder to by that of another, whatever else lies there. Neither is in use.
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
	must(t, os.RemoveAll(filepath.Join(to, "agora.db-shm"))) // made again from the log
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
