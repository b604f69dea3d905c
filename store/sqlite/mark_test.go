package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite/internal/dbfile"
)

// converseForever is a child like appendForever that completes one thread after the other.
func converseForever(path string) error {
	ctx := context.Background()
	s, err := Open(ctx, path, Options{})
	for err == nil {
		err = converse(ctx, s, 0)
	}
	return err
}

// leftovers are the files and receipts of a killed process.
type leftovers struct {
	files map[string][]byte // by suffix
	acks  []string          // ids of acknowledged events, in order
	mark  dbfile.Mark
}

const logSuffix, markSuffix = "-wal", ".mark"

// runAndKill runs a child until it has printed that many receipts, and kills it.
func runAndKill(t *testing.T, receipts int) leftovers {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agora.db")
	child := start(t, "converse", path)
	var r leftovers
	for range receipts {
		var seq int
		var id string
		if _, err := fmt.Fscanln(child.lines, &seq, &id); err != nil || seq != len(r.acks)+1 {
			t.Fatalf("reading the child's receipt %d: %v; its standard error is %q", seq, err, child.errors.String())
		}
		r.acks = append(r.acks, id)
	}
	must(t, child.Process.Kill())
	out, _ := child.rest() // ends with an error because the child was killed
	for line := range strings.Lines(out) {
		r.acks = append(r.acks, strings.Fields(line)[1])
	}
	r.files = map[string][]byte{}
	for _, suffix := range []string{"", logSuffix, markSuffix} {
		data, err := os.ReadFile(path + suffix)
		must(t, err)
		r.files[suffix] = data
	}
	var ok bool
	if r.mark, ok = dbfile.ParseMark(string(r.files[markSuffix])); !ok || int(r.mark.Seq) < len(r.acks) {
		t.Fatalf("the mark %q does not cover %d receipts", r.files[markSuffix], len(r.acks))
	}
	return r
}

// writeFiles writes the files into a new folder, with another write-ahead log.
func (r leftovers) writeFiles(t *testing.T, log []byte) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "agora.db")
	must(t, os.WriteFile(path, r.files[""], 0o600))
	must(t, os.WriteFile(path+logSuffix, log, 0o600))
	must(t, os.WriteFile(path+markSuffix, r.files[markSuffix], 0o600))
	return path
}

const lossMessage = "events %d to %d were acknowledged and are not in the database"

// reopen opens the files that writeFiles wrote and returns how many events they hold. The events must be a prefix of
// the acknowledged ones. If one is missing, Open must fail first and leave the write-ahead log unchanged.
func (r leftovers) reopen(t *testing.T, path string, log []byte) int {
	t.Helper()
	quiet := Options{Log: slog.New(slog.DiscardHandler)}
	s, refused := Open(t.Context(), path, quiet)
	if refused != nil {
		if got, err := os.ReadFile(path + logSuffix); err != nil || !bytes.Equal(got, log) {
			t.Errorf("the failed Open changed the write-ahead log: %d bytes of %d, %v", len(got), len(log), err)
		}
		must(t, os.Remove(path+markSuffix))
		s = openWith(t, path, quiet)
	}
	stored := events(t, s)
	for i, e := range stored {
		if int(e.Seq) != i+1 || i < len(r.acks) && e.ID != r.acks[i] {
			t.Fatalf("event %d is %s with number %d", i+1, e.ID, e.Seq)
		}
	}
	if lost := len(stored) < int(r.mark.Seq); lost != (refused != nil) ||
		lost && (!errors.Is(refused, dbfile.ErrLoss) ||
			!strings.Contains(refused.Error(), fmt.Sprintf(lossMessage, len(stored)+1, r.mark.Seq))) {
		t.Errorf("%d events of %d are stored, and Open returned %v", len(stored), r.mark.Seq, refused)
	}
	checkThreads(t, s, relay.Cursor{})
	if got := pragma(t, s.readDB, "integrity_check"); got != "ok" {
		t.Errorf("integrity: %s", got)
	}
	must(t, s.Close())
	return len(stored)
}

const logHeader, logFrame = 32, 24 + pageSize

// TestCutLog cuts the write-ahead log at any place. The database must hold a prefix of the acknowledged events, and the
// mark must show what is missing.
func TestCutLog(t *testing.T) {
	receipts, every, others := 40, 1, 60
	if testing.Short() {
		receipts, every, others = 20, 8, 20
	}
	r := runAndKill(t, receipts)
	log := r.files[logSuffix]
	var cuts []int
	for end := logHeader; end <= len(log); end += every * logFrame {
		cuts = append(cuts, end)
	}
	frames := len(cuts)
	for range others {
		cuts = append(cuts, rand.Intn(len(log)))
	}
	slices.Sort(cuts)
	before := 0
	for _, cut := range append(cuts, len(log)) {
		there := r.reopen(t, r.writeFiles(t, log[:cut]), log[:cut])
		if there < before {
			t.Fatalf("cut at byte %d, %d events are left; a shorter log left %d", cut, there, before)
		}
		before = there
	}
	if before < len(r.acks) {
		t.Errorf("the whole log holds %d events of %d", before, len(r.acks))
	}
	t.Logf("%d receipts, cut at %d frames and %d other places", len(r.acks), frames, others)
}

// TestFlippedBits flips bits of the write-ahead log. SQLite reads such a log as one that ends there. The mark must
// report every acknowledged event that is missing.
func TestFlippedBits(t *testing.T) {
	r := runAndKill(t, 40)
	log := r.files[logSuffix]
	short, flips := 0, 60
	if testing.Short() {
		flips = 20
	}
	for range flips {
		damaged := bytes.Clone(log)
		damaged[rand.Intn(len(log))] ^= 1 << rand.Intn(8)
		if r.reopen(t, r.writeFiles(t, damaged), damaged) < len(r.acks) {
			short++
		}
	}
	if short == 0 {
		t.Error("no flipped bit removed an event")
	}
}

// openLogged opens a store. text returns what the store has logged.
func openLogged(t *testing.T, path string, o Options) (s *Store, text func() string, err error) {
	t.Helper()
	var out bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&out, nil))
	s, err = Open(t.Context(), path, o)
	if err == nil {
		t.Cleanup(func() { must(t, s.Close()) })
	}
	return s, out.String, err
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, data, 0o600))
}

func appendAll(t testing.TB, s *Store, entries []relay.Entry) (last relay.Cursor) {
	t.Helper()
	for _, e := range entries {
		receipt, err := s.Append(t.Context(), e)
		must(t, err)
		last = receipt.Cursor
	}
	return last
}

// TestOlderCopy replaces a database by an older copy. Open must fail unless AcceptLoss is set. Then old cursors must
// not be accepted as cursors of new events.
func TestOlderCopy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	entries := requests(t, 9)
	s := openAt(t, path)
	appendAll(t, s, entries[:3])
	must(t, s.Close())
	copyFile(t, path, path+".copy")
	s = openAt(t, path)
	last := appendAll(t, s, entries[3:])
	must(t, s.Close())
	copyFile(t, path+".copy", path)

	for range 2 {
		_, _, err := openLogged(t, path, Options{})
		for _, want := range []string{fmt.Sprintf(lossMessage, 4, 9), path, "agora check --data " +
			filepath.Dir(path), "--accept-loss", "restore a backup"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("open: %v; want %q", err, want)
			}
		}
	}
	s, text, err := openLogged(t, path, Options{AcceptLoss: true})
	must(t, err)
	if !strings.Contains(text(), "level=ERROR") || !strings.Contains(text(), "loss is accepted") {
		t.Errorf("accepting a loss logs %q", text())
	}
	appendAll(t, s, entries[3:])
	if _, err := s.Read(t.Context(), relay.Query{After: last, Limit: 9}); !errors.Is(err, relay.ErrUnknownCursor) {
		t.Errorf("a cursor from before the loss: %v", err)
	}
	epoch := s.epoch
	must(t, s.Close())

	// If nothing is lost, AcceptLoss changes nothing.
	s, text, err = openLogged(t, path, Options{AcceptLoss: true})
	must(t, err)
	if s.epoch != epoch || text() != "" {
		t.Errorf("epoch %08x after %08x; %q", s.epoch, epoch, text())
	}
}

func TestMarkAtOpen(t *testing.T) {
	minute := func(m dbfile.Mark, minutes int) dbfile.Mark {
		m.Swept = nanos(time.Now().Add(time.Duration(minutes) * time.Minute))
		return m
	}
	for _, c := range []struct {
		name   string
		text   func(m dbfile.Mark) string // replaces the mark of three events
		lost   string                     // part of Open's error
		logged string
	}{
		{"unchanged", dbfile.Mark.String, "", ""},
		{"behind, as after a power cut", func(m dbfile.Mark) string { m.Seq = 1; return m.String() }, "", ""},
		{"of another database",
			func(m dbfile.Mark) string { return dbfile.Mark{Epoch: m.Epoch ^ 2, Seq: 9}.String() },
			"", "another database"},
		{"empty, from a start cut short", func(dbfile.Mark) string { return "" }, "", ""},
		{"ahead", func(m dbfile.Mark) string { m.Seq = 5; return m.String() }, fmt.Sprintf(lossMessage, 4, 5), ""},
		{"damaged", func(m dbfile.Mark) string { return strings.Replace(m.String(), "3", "4", 1) },
			"is damaged; run `agora check", ""},
		{"too short", func(m dbfile.Mark) string { return m.String()[:40] }, "is damaged", ""},
		{"too long", func(m dbfile.Mark) string { return m.String() + "x" }, "is damaged", ""},
		{"swept a while ago", func(m dbfile.Mark) string { return minute(m, -9).String() }, "", ""},
		{"swept in the future", func(m dbfile.Mark) string { return minute(m, 2).String() }, "",
			"level=ERROR msg=\"the clock is behind"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "agora.db")
			s := openAt(t, path)
			appendAll(t, s, requests(t, 3))
			epoch := s.epoch
			must(t, s.Close())
			text, err := os.ReadFile(path + markSuffix)
			must(t, err)
			m, ok := dbfile.ParseMark(string(text))
			if !ok || m.Seq != 3 || m.Epoch != epoch || len(text) != dbfile.MarkSize {
				t.Fatalf("the mark is %q", text)
			}
			must(t, os.WriteFile(path+markSuffix, []byte(c.text(m)), 0o600))

			s, said, err := openLogged(t, path, Options{})
			if c.lost != "" {
				if !errors.Is(err, dbfile.ErrLoss) || !strings.Contains(err.Error(), c.lost) {
					t.Errorf("open: %v", err)
				}
				s, _, err = openLogged(t, path, Options{AcceptLoss: true})
				must(t, err)
			} else {
				must(t, err)
			}
			if c.logged == "" && said() != "" || !strings.Contains(said(), c.logged) {
				t.Errorf("logged: %q, want %q", said(), c.logged)
			}
			if changed := s.epoch != epoch; changed != (c.lost != "") || len(events(t, s)) != 3 {
				t.Errorf("epoch changed: %v; %d events", changed, len(events(t, s)))
			}
			if text, err = os.ReadFile(path + markSuffix); err != nil || string(text) != s.care.mark.String() ||
				s.care.mark.Seq != 3 || s.care.mark.Epoch != s.epoch {
				t.Errorf("the mark is %q now, %v", text, err)
			}
		})
	}
}

// TestMarkOfSweeps checks that the mark has the time of the last sweep, within ten seconds, and that a tick syncs it.
func TestMarkOfSweeps(t *testing.T) {
	s := openNew(t)
	now := time.Now()
	for _, c := range []struct {
		at   time.Duration
		want time.Duration
	}{{0, 0}, {sweptInterval - 1, 0}, {sweptInterval, sweptInterval}, {0, 0}} {
		must(t, s.Expire(t.Context(), now.Add(c.at), nil))
		if got := instant(s.care.mark.Swept).Sub(now); got != c.want {
			t.Errorf("after a sweep at %v the mark has %v", c.at, got)
		}
	}
	if !s.care.unsynced.Load() {
		t.Error("the mark was written, but unsynced is false")
	}
	must(t, tick(s, now))
	if s.care.unsynced.Load() {
		t.Error("the mark was not synced")
	}
}

// TestDatabaseThatIsGone checks that Open does not start a new database if the old one was removed or emptied, and that
// it keeps the write-ahead log.
func TestDatabaseThatIsGone(t *testing.T) {
	for name, take := range map[string]func(path string) error{
		"removed": os.Remove, "emptied": func(path string) error { return os.Truncate(path, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "agora.db")
			s := openAt(t, path)
			appendAll(t, s, requests(t, 3))
			must(t, s.Close())
			must(t, take(path))
			must(t, os.WriteFile(path+logSuffix, []byte("a log"), 0o600))

			_, _, err := openLogged(t, path, Options{})
			if !errors.Is(err, dbfile.ErrLoss) || !strings.Contains(err.Error(), fmt.Sprintf(lossMessage, 1, 3)) {
				t.Errorf("open: %v", err)
			}
			if log, err := os.ReadFile(path + logSuffix); err != nil || string(log) != "a log" {
				t.Errorf("after the failed Open the log is %q, %v", log, err)
			}
			s, _, err = openLogged(t, path, Options{AcceptLoss: true})
			must(t, err)
			appendAll(t, s, requests(t, 1))
		})
	}
}
