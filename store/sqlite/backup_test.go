package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite/check"
)

// completeThread takes one thread from its REQUEST to its RESULT. It calls onReceipt for each receipt.
func completeThread(ctx context.Context, s *Store, n int, onReceipt func(relay.Receipt)) error {
	client, agent := key(n), key(n+1)
	id := envelope.NewID("thread", time.Now())
	for i, d := range []envelope.Draft{
		{Recipient: agent.DID(), Payload: envelope.Request{RequestID: "r", Intent: "translate"}},
		{Recipient: client.DID(), Payload: envelope.Offer{RequestID: "r"}},
		{Recipient: agent.DID(), Payload: envelope.Accept{RequestID: "r"}},
		{Recipient: client.DID(), Payload: envelope.Result{RequestID: "r", Status: "success"}},
	} {
		by := client
		if i%2 == 1 {
			by = agent
		}
		d.Thread = id
		now := time.Now()
		m, err := d.Sign(by, now)
		if err != nil {
			return err
		}
		receipt, err := s.Append(ctx, relay.Entry{Envelope: m, Received: now})
		if err != nil {
			return err
		}
		onReceipt(receipt)
	}
	return nil
}

// findings checks a database and returns its findings and the report.
func findings(t testing.TB, path string, now time.Time) (found []check.Finding, r check.Report) {
	t.Helper()
	r, err := check.Database(t.Context(), path,
		check.Options{Now: now, Found: func(f check.Finding) { found = append(found, f) }})
	must(t, err)
	if int64(len(found)) != r.Findings {
		t.Errorf("Found was called for %d findings, the report counts %d", len(found), r.Findings)
	}
	return found, r
}

// TestBackupWhileAppending copies a database while the writer is busy. The copy must be the state of one moment: every
// event acknowledged before the copy began, no gap in the numbers, and threads that agree with the events.
func TestBackupWhileAppending(t *testing.T) {
	s := openNew(t)
	var mu sync.Mutex
	acknowledged := map[relay.Seq]string{}
	var head relay.Seq
	enough, beyond := make(chan struct{}), make(chan struct{})
	target := relay.Seq(500)
	reached := enough
	told := func(r relay.Receipt) {
		mu.Lock()
		defer mu.Unlock()
		acknowledged[r.Cursor.Seq] = r.ID
		head = max(head, r.Cursor.Seq)
		if reached != nil && head > target {
			close(reached)
			reached = nil
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for n := range 8 {
		writers.Go(func() {
			for ctx.Err() == nil {
				if err := completeThread(ctx, s, 2*n, told); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	<-enough
	mu.Lock()
	before := make(map[relay.Seq]string, len(acknowledged))
	for seq, id := range acknowledged {
		before[seq] = id
	}
	mu.Unlock()

	path := filepath.Join(t.TempDir(), "copy.db")
	copied, err := Backup(t.Context(), databasePath(t, s), path, nil)
	must(t, err)
	mu.Lock()
	if reached, target = beyond, copied.Seq; head > target {
		close(beyond)
		reached = nil
	}
	mu.Unlock()
	<-beyond // wait until the original has more events than the copy
	stop()
	writers.Wait()

	if found, r := findings(t, path, time.Now()); len(found) > 0 || r.Events != copied.Events || r.Seq != copied.Seq {
		t.Errorf("Backup returned %+v, check reports %+v: %v", copied, r, found)
	}
	restored := openAt(t, path)
	there := events(t, restored)
	original := events(t, s)
	if int64(len(there)) != copied.Events || len(there) == len(original) || len(there) < len(before) {
		t.Fatalf("the copy has %d events, Backup returned %d; %d were acknowledged before it, %d are stored now",
			len(there), copied.Events, len(before), len(original))
	}
	for i, e := range there {
		if e.Seq != relay.Seq(i+1) || string(e.Body) != string(original[i].Body) {
			t.Fatalf("the copy's event %d has number %d or differs from the original's", i+1, e.Seq)
		}
	}
	for seq, id := range before {
		if int(seq) > len(there) || there[seq-1].ID != id {
			t.Errorf("event %d, %q, was acknowledged before the copy but is not in it", seq, id)
		}
	}
	checkThreads(t, restored, relay.Cursor{})
	if info, err := os.Stat(path); err != nil || info.Size() != copied.Bytes || info.Mode().Perm() != 0o600 &&
		runtime.GOOS != "windows" {
		t.Errorf("the copy: %v, %v; want %d bytes and mode 0600", info, err, copied.Bytes)
	}
}

// databasePath returns the path of a store's database file.
func databasePath(t testing.TB, s *Store) (path string) {
	t.Helper()
	must(t, s.readDB.QueryRowContext(t.Context(),
		"SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&path))
	return path
}

// TestRestore checks that a restored copy is a separate database. It refuses cursors of the original. Its numbers
// continue after its last event. Messages in the copy are duplicates, and later messages of the original can be posted
// again.
func TestRestore(t *testing.T) {
	s := openNew(t)
	kept, later := request(t, key(1), ""), request(t, key(1), "")
	first, err := s.Append(t.Context(), kept)
	must(t, err)
	path := filepath.Join(t.TempDir(), "copy.db")
	copied, err := Backup(t.Context(), databasePath(t, s), path, nil)
	must(t, err)
	if copied.Events != 1 || copied.Seq != 1 {
		t.Errorf("Backup returned %+v", copied)
	}
	second, err := s.Append(t.Context(), later)
	must(t, err)

	restored := openAt(t, path)
	for _, cursor := range []relay.Cursor{first.Cursor, second.Cursor} {
		if _, err := restored.Read(t.Context(), relay.Query{After: cursor, Limit: 1}); !errors.Is(err,
			relay.ErrUnknownCursor) {
			t.Errorf("Read with the original's cursor %v: %v", cursor, err)
		}
	}
	again, err := restored.Append(t.Context(), kept)
	if err != nil || !again.Duplicate || again.Cursor.Seq != first.Cursor.Seq {
		t.Errorf("append of a message that is in the copy: %+v, %v", again, err)
	}
	once, err := restored.Append(t.Context(), later)
	if err != nil || once.Duplicate || once.Cursor.Seq != copied.Seq+1 || once.Cursor.Epoch == first.Cursor.Epoch {
		t.Errorf("append of a message that is not in the copy: %+v, %v", once, err)
	}
	page, err := restored.Read(t.Context(), relay.Query{Limit: 10})
	if err != nil || len(page.Events) != 2 || page.Cursor != once.Cursor {
		t.Errorf("the restored database has %d events up to %v: %v", len(page.Events), page.Cursor, err)
	}
	// The original was not changed.
	if page, err := s.Read(t.Context(), relay.Query{After: first.Cursor, Limit: 10}); err != nil ||
		len(page.Events) != 1 {
		t.Errorf("the original has %d events after its first: %v", len(page.Events), err)
	}
}

// TestBackupAfterKill copies the database of a killed relay. The copy must have the events in the write-ahead log, and
// the files of the original must not change.
func TestBackupAfterKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	child := start(t, "append", path)
	var seq relay.Seq
	var id string
	for range 40 {
		if _, err := fmt.Fscanln(child.lines, &seq, &id); err != nil {
			t.Fatalf("reading the child's receipt: %v; its standard error is %q", err, child.errors.String())
		}
	}
	must(t, child.Process.Kill())
	_, _ = child.rest() // ends with an error because the child was killed
	files := func() (text string) {
		for _, name := range []string{path, path + "-wal"} {
			content, err := os.ReadFile(name) // allowed, because no connection has it open
			must(t, err)
			text += fmt.Sprintf("%x", content)
		}
		return text
	}
	before := files()
	copied, err := Backup(t.Context(), path, path+".copy", nil)
	must(t, err)
	if found, r := findings(t, path+".copy", time.Now()); len(found) > 0 || r.Events != copied.Events ||
		copied.Seq < seq {
		t.Errorf("Backup returned %+v, event %d was acknowledged; found %v", copied, seq, found)
	}
	if found, r := findings(t, path, time.Now()); len(found) > 0 || r.Events != copied.Events {
		t.Errorf("the original has %+v: %v", r, found)
	}
	if files() != before {
		t.Error("the original's files were changed")
	}
}

// TestBackupInterrupted checks that an interrupted backup leaves no file, whenever it is interrupted.
func TestBackupInterrupted(t *testing.T) {
	s := openNew(t)
	for n := range 50 {
		must(t, completeThread(t.Context(), s, 2*n, func(relay.Receipt) {}))
	}
	execute(t, s, "CREATE TABLE ballast (b BLOB)")
	execute(t, s, "INSERT INTO ballast WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n "+
		"WHERE i < 200) SELECT randomblob(20000) FROM n")
	dir := t.TempDir()
	interrupted := 0
	for wait := time.Duration(1); ; wait += wait/4 + 1000 {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		_, err := Backup(ctx, databasePath(t, s), filepath.Join(dir, "copy.db"), nil)
		cancel()
		if err == nil {
			break
		}
		interrupted++
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("after %s: %v", wait, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Fatalf("a backup interrupted after %s leaves %v, %v", wait, left, err)
		}
	}
	if interrupted < 10 {
		t.Errorf("the backup was interrupted only %d times", interrupted)
	}
}

func TestBackupRefuses(t *testing.T) {
	s := openNew(t)
	dir := t.TempDir()
	there := filepath.Join(dir, "there.db")
	must(t, os.WriteFile(there, []byte("mine"), 0o600))
	if _, err := Backup(t.Context(), databasePath(t, s), there, nil); !errors.Is(err, os.ErrExist) {
		t.Errorf("backup over an existing file: %v", err)
	}
	if content, err := os.ReadFile(there); err != nil || string(content) != "mine" {
		t.Errorf("the file is now %q, %v", content, err)
	}
	for _, from := range []string{filepath.Join(dir, "none.db"), there} {
		if _, err := Backup(t.Context(), from, filepath.Join(dir, "copy.db"), nil); err == nil {
			t.Errorf("a copy of %s was made", from)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("the folder holds %v, %v", left, err)
	}
}
