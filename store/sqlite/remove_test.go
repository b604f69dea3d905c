package sqlite

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite/check"
)

// TestRemovedContentIsOverwritten searches the files of a database for the content of removed messages, and checks the
// database. Less than a page of each may be left before Compact, and nothing after it.
func TestRemovedContentIsOverwritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	store, err := Open(t.Context(), path, Options{Reserve: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	secret := strings.Repeat("very secret ", 2000)
	now := time.Now()
	var seqs []relay.Seq
	for _, id := range []string{"one", "two", "three"} {
		text := secret
		if id == "two" {
			text = "short secret"
		}
		e, err := envelope.Draft{ID: id, Thread: id, Payload: envelope.Request{RequestID: "r", Intent: "echo",
			Title: text}}.Sign(key(1), now)
		if err != nil {
			t.Fatal(err)
		}
		r, err := store.Append(t.Context(), relay.Entry{Envelope: e, Received: now})
		if err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, r.Cursor.Seq)
	}
	left := func() (bytesLeft int) { // the store is closed
		for _, suffix := range []string{"", "-wal"} {
			text, err := os.ReadFile(path + suffix)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			bytesLeft += bytes.Count(text, []byte("very secret ")) * len("very secret ")
		}
		return bytesLeft
	}
	closeStore := func() {
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.Remove(t.Context(), seqs, now); err != nil {
		t.Fatal(err)
	}
	closeStore()
	if n := left(); n > 2*pageSize {
		t.Errorf("%d bytes of the removed content are left", n)
	}
	if store, err = Open(t.Context(), path, Options{Reserve: 1 << 16}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := store.Compact(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	closeStore()
	if n := left(); n > 0 {
		t.Errorf("%d bytes of the removed content are left after Compact", n)
	}
	report, err := check.Database(context.Background(), path, check.Options{Now: now, Found: func(f check.Finding) { t.Error(f) }})
	if err != nil || report.Findings > 0 {
		t.Errorf("%+v, %v", report, err)
	}
}
