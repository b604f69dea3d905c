package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite/schema"
	"github.com/agora-relay/agora/thread"
)

func TestSchemaIsBroughtUpToDate(t *testing.T) {
	files, err := fs.Glob(schema.Files, "*.sql")
	must(t, err)
	for i, name := range files {
		if !strings.HasPrefix(filepath.Base(name), fmt.Sprintf("%04d_", i+1)) {
			t.Errorf("schema file %d is called %s", i+1, name)
		}
	}
	for name, prepare := range map[string]func(path string) error{
		"no file":       func(string) error { return nil },
		"an empty file": func(path string) error { return os.WriteFile(path, nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "agora.db")
			must(t, prepare(path))
			s := openAt(t, path)
			_, err := s.Append(t.Context(), request(t, key(1), ""))
			must(t, err)
			if got := pragma(t, s.readDB, "user_version"); got != strconv.Itoa(len(files)) {
				t.Errorf("the schema is %s of %d", got, len(files))
			}
		})
	}
}

// pragma returns the value of a pragma on one connection, or on any connection of a pool.
func pragma(t testing.TB, db interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}, name string) (value string) {
	t.Helper()
	must(t, db.QueryRowContext(context.Background(), "PRAGMA "+name).Scan(&value))
	return value
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, path string)
		says    string
	}{
		{"a newer schema", func(t *testing.T, path string) {
			s := openAt(t, path)
			execute(t, s, "PRAGMA user_version = 999")
			must(t, s.Close())
		}, "written by a newer version, so use that version"},
		{"a newer schema without events in this table", func(t *testing.T, path string) {
			s := openAt(t, path)
			_, err := s.Append(t.Context(), request(t, key(1), ""))
			must(t, err)
			execute(t, s, "DELETE FROM event; PRAGMA user_version = 999")
			must(t, s.Close())
		}, "written by a newer version, so use that version"},
		{"a file that is no database", func(t *testing.T, path string) {
			must(t, os.WriteFile(path, []byte(strings.Repeat("not a database\n", 100)), 0o600))
		}, "not a database"},
		{"a missing folder", func(t *testing.T, path string) { must(t, os.Remove(filepath.Dir(path))) },
			"no such file"},
		{"a damaged epoch", func(t *testing.T, path string) {
			s := openAt(t, path)
			execute(t, s, "UPDATE meta SET value = 'x' WHERE name = 'epoch'")
			must(t, s.Close())
		}, "epoch is damaged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "data", "agora.db")
			must(t, os.Mkdir(filepath.Dir(path), 0o700))
			c.prepare(t, path)
			before, _ := os.ReadFile(path)
			for range 2 { // a failed Open must not keep the next one from succeeding
				s, err := Open(t.Context(), path, Options{})
				if err == nil {
					must(t, s.Close())
				}
				if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path) {
					t.Errorf("open: %v; want %q and the path", err, c.says)
				}
			}
			if after, _ := os.ReadFile(path); string(after) != string(before) {
				t.Error("the file was changed")
			}
		})
	}
}

func TestOneProcessAtATime(t *testing.T) {
	const cure = "stop the other relay or choose another data folder"
	path := filepath.Join(t.TempDir(), "agora.db")
	s := openAt(t, path)
	if _, err := Open(t.Context(), path, Options{}); err == nil || !strings.Contains(err.Error(), cure) {
		t.Errorf("a second open in the process: %v", err)
	}
	second := start(t, "open", path)
	if _, err := second.rest(); err == nil || !strings.Contains(second.errors.String(), cure) {
		t.Errorf("an open in another process: %v, %q", err, second.errors.String())
	}
	// The failed attempts did not disturb the store.
	_, err := s.Append(t.Context(), request(t, key(1), ""))
	must(t, err)

	must(t, s.Close())
	if _, err := start(t, "open", path).rest(); err != nil {
		t.Errorf("an open in another process, after Close: %v", err)
	}
}

func TestFileNames(t *testing.T) {
	for _, name := range []string{"a?mode=memory.db", "a#b.db", "100%.db", "%41.db", "with space.db",
		"a&_pragma=x.db", "ü+'\".db"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), name)
			must(t, os.Mkdir(dir, 0o700))
			s := openAt(t, filepath.Join(dir, name))
			_, err := s.Append(t.Context(), request(t, key(1), ""))
			must(t, err)
			events(t, s)
			must(t, s.Close()) // deletes the write-ahead log if no connection is open
			var got []string
			entries, err := os.ReadDir(dir)
			must(t, err)
			for _, e := range entries {
				got = append(got, e.Name())
			}
			if !slices.Equal(got, []string{name, name + ".lock", name + ".mark", name + ".reserve"}) {
				t.Errorf("the folder holds %q", got)
			}
			if n := len(events(t, openAt(t, filepath.Join(dir, name)))); n != 1 {
				t.Errorf("after reopening, the store has %d events", n)
			}
		})
	}
}

func TestPragmasAreInForce(t *testing.T) {
	s := openNew(t)
	check := func(t *testing.T, conn *sql.Conn, want map[string]string) {
		for name, value := range want {
			if got := pragma(t, conn, name); got != value {
				t.Errorf("%s is %s, want %s", name, got, value)
			}
		}
	}
	t.Run("writer", func(t *testing.T) {
		write(t, s, func(w *writer) error {
			check(t, w.conn, map[string]string{"journal_mode": "wal", "synchronous": "2", "busy_timeout": "250",
				"wal_autocheckpoint": "0", "trusted_schema": "0"})
			return nil
		})
	})
	for i := range readers { // each is kept open, so the next one is another connection
		conn, err := s.readDB.Conn(t.Context())
		must(t, err)
		defer conn.Close()
		t.Run(fmt.Sprint("reader ", i), func(t *testing.T) {
			check(t, conn, map[string]string{"journal_mode": "wal", "query_only": "1", "busy_timeout": "5000",
				"trusted_schema": "0"})
			if _, err := conn.ExecContext(t.Context(), "DELETE FROM event"); err == nil {
				t.Error("a reader can write")
			}
		})
	}
}

// TestCloseLeavesNoGoroutine relies on synctest, whose bubble ends only when all of its goroutines have ended.
func TestCloseLeavesNoGoroutine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(t.Context(), path, Options{})
		must(t, err)
		_, err = s.Append(t.Context(), request(t, key(1), ""))
		must(t, err)
		if n := len(events(t, s)); n != 1 {
			t.Errorf("%d events", n)
		}
		must(t, s.Close())
	})
}

// TestClosedStoreReturnsUnavailable checks that all methods return the same error code after Close.
func TestClosedStoreReturnsUnavailable(t *testing.T) {
	s := openNew(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, appended := s.Append(t.Context(), requests(t, 1)[0])
	_, read := s.Read(t.Context(), relay.Query{Limit: 1})
	_, asked := s.Thread(t.Context(), thread.Key{ID: "t"}, time.Now())
	_, agents := s.Agents(t.Context(), relay.AgentQuery{Limit: 1})
	_, stats := s.Stats(t.Context())
	for name, err := range map[string]error{"Append": appended, "Read": read, "Thread": asked, "Agents": agents,
		"Stats": stats} {
		if !isCode(err, envelope.CodeUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPanicOfARead checks that a panic in a read reaches its caller and does not end the process.
func TestPanicOfARead(t *testing.T) {
	s := openNew(t)
	func() {
		defer func() {
			if p := recover(); p != "boom" {
				t.Errorf("recovered %v", p)
			}
		}()
		_ = s.onReader(t.Context(), func() { panic("boom") }) // does not return
	}()
	must(t, s.onReader(t.Context(), func() {}))
}
