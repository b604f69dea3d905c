package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite/check"
	"github.com/agora-relay/agora/store/sqlite/internal/dbfile"
	"github.com/agora-relay/agora/store/sqlite/schema"
	"github.com/agora-relay/agora/thread"
)

// olderDatabase writes the content of a database into a new one with the schema of version 0.1.0.
func olderDatabase(t *testing.T, path string) (older string) {
	t.Helper()
	older = filepath.Join(t.TempDir(), "agora.db")
	db, err := dbfile.Open(older, "immediate", []string{"journal_mode(WAL)"}, "rwc")
	must(t, err)
	db.SetMaxOpenConns(1)
	first, err := fs.ReadFile(schema.Files, "0001_initial.sql")
	must(t, err)
	for _, text := range []string{string(first), "PRAGMA user_version = 1", "ATTACH '" + path + "' AS newer",
		"INSERT INTO meta SELECT * FROM newer.meta WHERE name <> 'merged'", "INSERT INTO party SELECT * FROM newer.party",
		"INSERT INTO event SELECT seq, sender, id, recipient, type, thread, ts, received, expires, forget, body, charged, network FROM newer.event",
		"INSERT INTO thread SELECT * FROM newer.thread", "INSERT INTO thread_role SELECT * FROM newer.thread_role",
		"INSERT INTO manifest SELECT * FROM newer.manifest", "DETACH newer"} {
		_, err := db.ExecContext(t.Context(), text)
		must(t, err)
	}
	must(t, db.Close())
	return older
}

// TestRebuild opens a database of version 0.1.0. STORE, "Databases of 0.1.0 are migrated at the start". It is interrupted
// first, which changes nothing.
func TestRebuild(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	s := openAt(t, path)
	now := time.Now()
	var threads []thread.Key
	for n := 1; n <= 4; n++ {
		must(t, completeThreads(t.Context(), s, n))
		threads = append(threads, thread.Key{ID: "open", Client: key(n).DID()})
		_, err := s.Append(t.Context(), signed(t, key(n), envelope.Draft{Thread: "open",
			Payload: envelope.Request{RequestID: "r", Intent: "translate"}}))
		must(t, err)
	}
	must(t, s.mergeAll(t.Context()))
	want := ask(t, s, threads, now)
	must(t, s.Close())
	older := olderDatabase(t, path)

	before, err := os.ReadFile(older)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	began := slog.New(slog.NewTextHandler(writeFunc(func(line []byte) {
		if strings.Contains(string(line), "updating the database") {
			cancel() // the update has begun
		}
	}), nil))
	if s, err := Open(ctx, older, Options{Log: began}); !errors.Is(err, context.Canceled) {
		t.Errorf("opened %v, %v although it was interrupted", s, err)
	}
	if after, err := os.ReadFile(older); err != nil || !reflect.DeepEqual(after, before) {
		t.Errorf("an update that was interrupted has changed the database, %v", err)
	}
	for range 2 { // the second time nothing is to be done
		s := openAt(t, older)
		if got := ask(t, s, threads, now); !reflect.DeepEqual(got, want) {
			t.Errorf("the updated database answers\n%v, want\n%v", got, want)
		}
		if n := s.tail.len(); n != 0 {
			t.Errorf("%d events are not merged", n)
		}
		must(t, s.Close())
		wantIntact(t, older, now)
	}
}

// rebuildOnly is a child that opens a database of version 0.1.0. It prints a line when it begins to update the
// database, and one when it has done that.
func rebuildOnly(path string) error {
	log := slog.New(slog.NewTextHandler(writeFunc(func(line []byte) {
		if strings.Contains(string(line), "updating the database") {
			fmt.Println("begun")
		}
	}), nil))
	s, err := Open(context.Background(), path, Options{Log: log, Reserve: 1 << 20})
	if err != nil {
		return err
	}
	fmt.Println("done")
	return s.Close()
}

// TestKilledRebuild kills processes while they update a database of version 0.1.0. The next start updates it, and
// nothing is lost.
func TestKilledRebuild(t *testing.T) {
	const threads = 120
	path, now := filepath.Join(t.TempDir(), "agora.db"), time.Now()
	s := openAt(t, path)
	var entries []relay.Entry
	keys := []thread.Key{{ID: "thread-7", Client: key(1).DID()}}
	for n := range threads {
		id, client, agent := fmt.Sprint("thread-", n), key(n%40), key(n%40+1)
		for _, m := range []struct {
			by, to  didkey.Key
			payload envelope.Payload
		}{
			{client, agent, envelope.Request{RequestID: "r", Intent: "translate"}},
			{agent, client, envelope.Offer{RequestID: "r"}},
			{client, agent, envelope.Accept{RequestID: "r"}},
			{agent, client, envelope.Result{RequestID: "r", Status: "success"}},
		} {
			d := envelope.Draft{Thread: id, Recipient: m.to.DID(), Payload: m.payload}
			entries = append(entries, signed(t, m.by, d))
		}
	}
	for _, o := range s.AppendAll(t.Context(), entries) {
		must(t, o.Err)
	}
	must(t, s.mergeAll(t.Context()))
	want := ask(t, s, keys, now)
	must(t, s.Close())
	older := olderDatabase(t, path)
	content, err := os.ReadFile(older)
	must(t, err)

	took, killed := time.Duration(0), 0
	rounds := 8
	if testing.Short() {
		rounds = 5
	}
	for round := range rounds {
		copied := filepath.Join(t.TempDir(), "agora.db")
		must(t, os.WriteFile(copied, content, 0o600))
		child := start(t, "rebuild", copied)
		line, err := child.lines.ReadString('\n')
		if err != nil || line != "begun\n" {
			t.Fatalf("the child prints %q, %v; its standard error is %q", line, err, child.errors.String())
		}
		if began := time.Now(); round == 0 {
			out, err := child.rest()
			if must(t, err); out != "done\n" {
				t.Fatalf("the child prints %q", out)
			}
			took = time.Since(began)
		} else {
			time.Sleep(time.Duration(round) * took / time.Duration(rounds+1))
			must(t, child.Process.Kill())
			if out, _ := child.rest(); out == "" { // it ends with an error because it was killed
				killed++
			}
		}
		s := openAt(t, copied)
		if got := ask(t, s, keys, now); !reflect.DeepEqual(got, want) {
			t.Errorf("round %d: after the kill the database answers\n%v, want\n%v", round, got, want)
		}
		must(t, s.Close())
		wantIntact(t, copied, now)
	}
	if killed < rounds/3 {
		t.Errorf("only %d of %d updates were killed before their end", killed, rounds-1)
	}
}

// writeFunc is an io.Writer that passes what is written to a function.
type writeFunc func([]byte)

func (f writeFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

// completeThreads completes a few threads between the keys n and n+1.
func completeThreads(ctx context.Context, s *Store, n int) error {
	for range 3 {
		if err := completeThread(ctx, s, n, func(relay.Receipt) {}); err != nil {
			return err
		}
	}
	return nil
}

// TestNoRoomToRebuild checks that a database is not updated on a disk with too little room, and what the operator
// reads.
func TestNoRoomToRebuild(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	s := openAt(t, path)
	must(t, completeThreads(t.Context(), s, 1))
	must(t, s.Close())
	older := olderDatabase(t, path)
	before, err := os.ReadFile(older)
	must(t, err)
	room := int64(len(before)) // less than two and a half times as much
	o := Options{diskRoom: func(string) (int64, bool) { return room, true }, tickInterval: never}
	_, err = Open(t.Context(), older, o)
	if failed, ok := errors.AsType[noRoomToRebuild](err); !ok || failed.room != room || failed.needed < 2*room {
		t.Errorf("opened with too little room: %v", err)
	}
	if after, err := os.ReadFile(older); err != nil || !reflect.DeepEqual(after, before) {
		t.Errorf("the database has changed, %v", err)
	}
	found := ""
	_, err = check.Database(t.Context(), older, check.Options{Found: func(f check.Finding) { found += f.String() }})
	if err != nil || !strings.Contains(found, "run agora serve on it once") {
		t.Errorf("check: %q, %v", found, err)
	}
	room = 1 << 30
	openWith(t, older, o)
	text := noRoomToRebuild{needed: 900 << 20, room: 100 << 20}.Error()
	for _, want := range []string{"900 MB", "100 MB", "Nothing was changed"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
}
