package relay_test

import (
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// published returns the checkpoint that r has published.
func published(t *testing.T, r *relay.Relay) proof.Checkpoint {
	t.Helper()
	info, ok := r.Log()
	if !ok {
		t.Fatal("the relay keeps no log")
	}
	_, epoch, _ := strings.Cut(info.Origin, "/")
	text, err := r.Checkpoint(t.Context(), relay.Peer{Local: true}, epoch)
	if err != nil {
		t.Fatal(err)
	}
	c, err := proof.ParseCheckpoint(text)
	if err == nil {
		_, err = c.Verify()
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestPublish checks when checkpoints are published, and that none is smaller than the one before (LOG L-18).
func TestPublish(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	synctest.Test(t, func(t *testing.T) {
		c := relay.Config{Transparency: true, Key: key(t)}
		r, stop := runAt(t, path, c)
		size := func(want int64) {
			t.Helper()
			if got := published(t, r).Size; got != want {
				t.Errorf("the published log has %d leaves, want %d", got, want)
			}
		}
		size(1)
		alice := key(t)
		first := sign(t, alice, envelope.Draft{Payload: envelope.Request{Intent: "x"}})
		post(t, r, first)
		size(1)
		proved := func(want int64) {
			t.Helper()
			text, err := r.ProofOf(t.Context(), local, alice.DID(), first.ID)
			if err != nil {
				t.Fatal(err)
			}
			p, err := proof.Parse(text)
			if err != nil || p.Checkpoint.Size != want {
				t.Errorf("the proof is under a checkpoint of %d leaves, want %d (%v)", p.Checkpoint.Size, want, err)
			}
			if _, err := p.Verify(); err != nil {
				t.Error(err)
			}
		}
		proved(2) // under a new checkpoint, because the published one does not have the leaf
		time.Sleep(relay.PublishEvery + time.Millisecond)
		size(2)
		post(t, r, sign(t, alice, envelope.Draft{Payload: envelope.Request{Intent: "x"}}))
		proved(2)
		stop() // publishes a last one
		r, stop = runAt(t, path, c)
		size(3)
		stop()
	})
}

// TestLostLog checks that a relay does not start over a log that lacks what it has published (LOG L-14).
func TestLostLog(t *testing.T) {
	racing.Skip(t, "one thing after another")
	engine.OnlySQLite(t, "it changes a file")
	for what, text := range map[string]string{
		"leaves are missing": "DELETE FROM log_leaf WHERE at & 0xff > 0; UPDATE event SET leaf = NULL, salt = NULL",
		"a leaf is another":  "UPDATE log_leaf SET hashes = zeroblob(32) WHERE at & 0xff = 1",
	} {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "agora.db")
			c := relay.Config{Transparency: true, Key: key(t)}
			r, stop := runAt(t, path, c)
			for range 3 {
				post(t, r, sign(t, key(t), envelope.Draft{Payload: envelope.Request{Intent: "x"}}))
			}
			stop()
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec(text); err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			store, err := sqlite.Open(t.Context(), path, sqlite.Options{Reserve: 1 << 22})
			if err != nil {
				t.Fatal(err)
			}
			c.Store = store
			if _, err := relay.New(t.Context(), c); !errors.Is(err, relay.ErrLogLost) {
				t.Errorf("the relay starts: %v", err)
			}
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
