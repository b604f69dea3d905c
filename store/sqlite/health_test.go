package sqlite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// appendLimited is a child with a limit on file sizes, so that a write to the log fails as on a broken disk. It prints
// its receipts, the errors of the failing append and of later calls, and how many events can be read.
func appendLimited(path string) error {
	ctx := context.Background()
	s, err := Open(ctx, path, Options{tickInterval: never})
	if err != nil {
		return err
	}
	if err := limitFileSize(1 << 20); err != nil {
		return err
	}
	for err == nil {
		err = converse(ctx, s, 0)
	}
	fmt.Println("failed:", err)
	if err := limitFileSize(1 << 19); err != nil {
		return err
	}
	fmt.Println("again:", converse(ctx, s, 0))
	fmt.Println("tick:", tick(s, time.Now()))
	fmt.Println("expire:", s.Expire(ctx, time.Now(), nil))
	page, err := s.Read(ctx, relay.Query{Expired: true, Limit: 1 << 20})
	fmt.Println("read:", len(page.Events), err)
	return nil
}

// TestFailedWrite checks that the store accepts nothing after a failed write, even if later writes would succeed. Reads
// must work. After a restart the database must have all acknowledged events.
func TestFailedWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	child := start(t, "limited", path)
	out, err := child.rest()
	must(t, err)
	var receipts []string
	for line := range strings.Lines(out) {
		if !strings.Contains(line, ":") {
			receipts = append(receipts, strings.Fields(line)[1])
		}
	}
	for _, want := range []string{"failed: ", "again: ", "tick: ", "expire: "} {
		if !strings.Contains(out, want+errDiskFailed.Error()+"\n") {
			t.Errorf("want %q in %q", want+errDiskFailed.Error(), out)
		}
	}
	if !strings.Contains(out, fmt.Sprintf("read: %d <nil>\n", len(receipts))) || len(receipts) == 0 {
		t.Errorf("%d receipts, and %q", len(receipts), out)
	}
	if said := child.errors.String(); strings.Count(said, "the database failed") != 1 ||
		!strings.Contains(said, "disk I/O error") {
		t.Errorf("logged: %q", said)
	}
	s := openAt(t, path)
	stored := events(t, s)
	for i, id := range receipts {
		if i >= len(stored) || stored[i].ID != id {
			t.Fatalf("event %d was acknowledged as %s, but is not among the %d stored events", i+1, id, len(stored))
		}
	}
	checkThreads(t, s, relay.Cursor{})
	must(t, func() error { _, err := s.Append(t.Context(), request(t, key(1), "")); return err }())
}

// TestFailedConnection checks that a lost connection counts as a failed disk, also for a group with a refused entry.
func TestFailedConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	s := openAt(t, path)
	entries := requests(t, 4)
	appendAll(t, s, entries[:1])
	must(t, s.task(t.Context(), func(w *writer) error { return w.conn.Close() }))
	for i, err := range appendTogether(t, s, entries) {
		if !isCode(err, envelope.CodeUnavailable) || err.(*envelope.Error).RetryAfter != 30*time.Second {
			t.Errorf("caller %d gets %v", i, err)
		}
	}
	for name, err := range map[string]error{
		"tick":   tick(s, time.Now()),
		"Expire": s.Expire(t.Context(), time.Now(), nil),
		"Append": func() error { _, err := s.Append(t.Context(), entries[1]); return err }(),
	} {
		if err == nil || err.Error() != errDiskFailed.Error() {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(events(t, s)); n != 1 {
		t.Errorf("%d events can be read", n)
	}
	if _, err := s.Agents(t.Context(), relay.AgentQuery{Limit: 1}); err != nil {
		t.Errorf("the directory: %v", err)
	}
	must(t, s.Close())
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	s = openAt(t, path)
	appendAll(t, s, entries)
	if page, err := s.Read(t.Context(),
		relay.Query{Filter: relay.Filter{Recipient: didkey.DID("x")}, Limit: 1}); err != nil || len(page.Events) != 0 {
		t.Errorf("%+v, %v", page, err)
	}
}
