package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite/internal/dbfile"
	"github.com/agora-relay/agora/thread"
)

// withoutDescriptors is a child that takes every file descriptor before it uses its store. It prints the errors of each
// connection, of an append, a tick and Expire, and what they return after the descriptors are free again.
func withoutDescriptors(path string) error {
	ctx := context.Background()
	s, err := Open(ctx, path, Options{Reserve: 1 << 20, tickInterval: never})
	if err != nil {
		return err
	}
	if err := s.care.reserve.release(); err != nil {
		return err
	}
	if err := limitDescriptors(64); err != nil {
		return err
	}
	var taken []io.Closer
	for err == nil {
		var file *os.File
		if file, err = os.Open(os.DevNull); err == nil {
			taken = append(taken, file)
		}
	}
	if !errors.Is(err, syscall.EMFILE) {
		return err
	}
	for range readers { // each is kept open, so the next one is another connection
		conn, err := s.readDB.Conn(ctx)
		if err == nil {
			err = conn.QueryRowContext(ctx, "SELECT count(*) FROM event").Scan(new(int))
			taken = append(taken, conn)
		}
		fmt.Println("reader:", err)
	}
	_, err = s.writeDB.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)")
	fmt.Println("checkpointer:", err)
	var limit int
	inWriter := func(query string) error {
		return s.task(ctx, func(w *writer) error { return w.conn.QueryRowContext(ctx, query).Scan(&limit) })
	}
	if err := inWriter("PRAGMA max_page_count = 100"); err != nil {
		return err
	}
	fmt.Println("tick:", tick(s, time.Now()))
	fmt.Println("expire:", s.Expire(ctx, time.Now(), nil))
	if err := inWriter("PRAGMA max_page_count"); err != nil {
		return err
	}
	fmt.Println("limit set:", limit > 100)
	fmt.Println("append:", converse(ctx, s, 0))
	for _, c := range taken {
		if err := c.Close(); err != nil {
			return err
		}
	}
	fmt.Println("tick later:", tick(s, time.Now()))
	fmt.Println("expire later:", s.Expire(ctx, time.Now(), nil))
	size, err := fileSize(s.care.reserve.path)
	fmt.Println("reserve later:", size, err)
	return s.Close()
}

// TestWithoutDescriptors checks that posts and reads work while no file descriptor is free. Only the reserve cannot
// grow.
func TestWithoutDescriptors(t *testing.T) {
	out, err := start(t, "no-descriptors", filepath.Join(t.TempDir(), "agora.db")).rest()
	must(t, err)
	for want, n := range map[string]int{
		"reader: <nil>\n": readers, "checkpointer: <nil>\n": 1, "tick: " + errBusy.Error() + "\n": 1, "expire: " +
			errBusy.Error() + "\n": 1, "append: <nil>\n": 1, "limit set: true\n": 1,
		"tick later: <nil>\n": 1, "expire later: <nil>\n": 1, fmt.Sprintf("reserve later: %d <nil>\n", 1<<20): 1,
	} {
		if strings.Count(out, want) != n {
			t.Errorf("want %d times %q in\n%s", n, want, out)
		}
	}
}

// sqliteError returns SQLite's error for a missing file if text is empty, else for a file that holds text.
func sqliteError(t *testing.T, text string) error {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.db")
	if text != "" {
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	db, err := dbfile.OpenReadOnly(path)
	must(t, err)
	defer db.Close()
	if err = db.QueryRow("SELECT * FROM sqlite_schema").Scan(); err == nil || errors.Is(err, sql.ErrNoRows) {
		t.Fatal("the file can be opened")
	}
	return err
}

// TestErrorsThatStopWrites checks which errors of writes and reads close the store for messages. Temporary errors must
// not.
func TestErrorsThatStopWrites(t *testing.T) {
	cannotOpen, noDatabase := sqliteError(t, ""), sqliteError(t, strings.Repeat("no database ", 1000))
	for _, c := range []struct {
		err         error
		write, read error // errors of later writes; nil: the store stays open
	}{
		{&os.PathError{Op: "open", Err: syscall.EMFILE}, nil, nil},
		{fmt.Errorf("reserve: %w", syscall.ENFILE), nil, nil},
		{cannotOpen, nil, nil},
		{noDatabase, errDiskFailed, errDiskFailed},
		{&os.PathError{Op: "open", Err: syscall.EIO}, errDiskFailed, nil},
		{context.Canceled, errDiskFailed, nil},
	} {
		s := &care{log: slog.New(slog.DiscardHandler)}
		if told := s.handleError(c.err); !errors.Is(s.refusal(), c.write) || !errors.Is(told, errBusy) &&
			c.write == nil {
			t.Errorf("a write failed with %q: later writes return %v, its caller gets %v", c.err, s.refusal(), told)
		}
		s.state.Store(int32(accepting))
		if told := s.handleReadError(c.err); !errors.Is(s.refusal(), c.read) || !errors.Is(told, c.err) {
			t.Errorf("a read failed with %q: later writes return %v, its caller gets %v", c.err, s.refusal(), told)
		}
	}
}

// TestMisplacedFiles checks that the store accepts nothing after one of its files was moved, and that the log names the
// file.
func TestMisplacedFiles(t *testing.T) {
	replace := func(path string) error {
		if err := os.Rename(path, path+".old"); err != nil {
			return err
		}
		return os.WriteFile(path, nil, 0o600)
	}
	for name, c := range map[string]struct {
		suffix string
		change func(path string) error
		said   string
	}{
		"database removed": {"", os.Remove, "was moved or removed"},
		"database moved": {"", func(path string) error { return os.Rename(path, path+".old") }, "was moved or " +
			"removed"},
		"database replaced": {"", replace, "is another file"},
		"log removed":       {logSuffix, os.Remove, "was moved or removed"},
		"log replaced":      {logSuffix, replace, "is another file"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			path := filepath.Join(t.TempDir(), "agora.db")
			s := openWith(t, path, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
			// SQLite itself does not replace the files when it restarts or truncates the log.
			for range 3 {
				appendAll(t, s, requests(t, 2))
				must(t, s.task(t.Context(), func(w *writer) error { _, err := w.truncateLog(); return err }))
				must(t, tick(s, time.Now()))
			}
			must(t, c.change(path+c.suffix))
			for range 2 {
				if err := tick(s, time.Now()); !errors.Is(err, errDiskFailed) {
					t.Errorf("tick: %v", err)
				}
				if err := s.Expire(t.Context(), time.Now(), nil); !errors.Is(err, errDiskFailed) {
					t.Errorf("Expire: %v", err)
				}
			}
			if _, err := s.Append(t.Context(), requests(t, 1)[0]); !errors.Is(err, errDiskFailed) {
				t.Errorf("Append: %v", err)
			}
			if want := path + c.suffix + " " + c.said; strings.Count(log.String(), want) != 1 {
				t.Errorf("want %q exactly once in %s", want, log.String())
			}
		})
	}
}

// TestReadsOfADamagedDatabase checks that a read that finds damage returns the error and closes the store for messages.
func TestReadsOfADamagedDatabase(t *testing.T) {
	for name, read := range map[string]func(*Store, envelope.Envelope) error{
		"Read": func(s *Store, _ envelope.Envelope) error {
			_, err := s.Read(t.Context(), relay.Query{Expired: true, Limit: 1})
			return err
		},
		"Thread": func(s *Store, m envelope.Envelope) error {
			_, err := s.Thread(t.Context(), thread.Key{ID: m.Thread, Client: m.Sender.ID}, m.TS)
			return err
		},
		"Agents": func(s *Store, m envelope.Envelope) error {
			_, err := s.Agents(t.Context(), relay.AgentQuery{Now: m.TS, Limit: 1})
			return err
		},
		"Stats": func(s *Store, _ envelope.Envelope) error {
			_, err := s.Stats(t.Context())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openWith(t, filepath.Join(t.TempDir(), "agora.db"), Options{Log: slog.New(slog.DiscardHandler)})
			e := request(t, key(1), "")
			appendAll(t, s, []relay.Entry{e, messageOfSize(t, 1, 100, time.Now())})
			must(t, s.task(t.Context(), func(w *writer) error { _, err := w.truncateLog(); return err }))
			must(t, os.Truncate(s.path, pageSize)) // opens no descriptor, so SQLite's locks stay
			if err := read(s, *e.Envelope); err == nil || errors.Is(err, errDiskFailed) {
				t.Errorf("the read returns %v", err)
			}
			if _, err := s.Append(t.Context(), e); !errors.Is(err, errDiskFailed) {
				t.Errorf("Append: %v", err)
			}
		})
	}
}
