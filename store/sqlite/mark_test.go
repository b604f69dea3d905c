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

// converseForever is a child like appendForever that holds one conversation after the other.
func converseForever(path string) error {
	ctx := context.Background()
	s, err := Open(ctx, path, Options{})
	for err == nil {
		err = converse(ctx, s, 0)
	}
	return err
}

// remains is what a killed process left behind.
type remains struct {
	files map[string][]byte // by their suffix
	acks  []string          // ids in their order
	mark  dbfile.Mark
}

const logSuffix, markSuffix = "-wal", ".mark"

// killed runs a child until it has given so many receipts.
func killed(t *testing.T, receipts int) remains {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agora.db")
	child := start(t, "converse", path)
	var r remains
	for range receipts {
		var seq int
		var id string
		if _, err := fmt.Fscanln(child.lines, &seq, &id); err != nil || seq != len(r.acks)+1 {
			t.Fatalf("the child's receipt %d: %v; it says %q", seq, err, child.errors.String())
		}
		r.acks = append(r.acks, id)
	}
	must(t, child.Process.Kill())
	out, _ := child.rest() // ends with an error, having been killed
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

// put lays the files out anew, with another write-ahead log.
func (r remains) put(t *testing.T, log []byte) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "agora.db")
	must(t, os.WriteFile(path, r.files[""], 0o600))
	must(t, os.WriteFile(path+logSuffix, log, 0o600))
	must(t, os.WriteFile(path+markSuffix, r.files[markSuffix], 0o600))
	return path
}

const advice = "events %d to %d were acknowledged and are not in the database"

// reopen opens what was put and returns how many events it holds. They are a prefix of what was acknowledged, and Open
// refuses first if one is missing, without touching anything.
func (r remains) reopen(t *testing.T, path string, log []byte) int {
	t.Helper()
	quiet := Options{Log: slog.New(slog.DiscardHandler)}
	s, refused := Open(t.Context(), path, quiet)
	if refused != nil {
		if got, err := os.ReadFile(path + logSuffix); err != nil || !bytes.Equal(got, log) {
			t.Errorf("the refusal changed the write-ahead log: %d bytes of %d, %v", len(got), len(log), err)
		}
		must(t, os.Remove(path+markSuffix))
		s = openWith(t, path, quiet)
	}
	stored := events(t, s)
	for i, e := range stored {
		if int(e.Seq) != i+1 || i < len(r.acks) && e.ID != r.acks[i] {
			t.Fatalf("event %d is %s at %d", i+1, e.ID, e.Seq)
		}
	}
	if lost := len(stored) < int(r.mark.Seq); lost != (refused != nil) ||
		lost && (!errors.Is(refused, dbfile.ErrLoss) || !strings.Contains(refused.Error(), fmt.Sprintf(advice, len(stored)+1, r.mark.Seq))) {
		t.Errorf("%d events of %d are there, and Open says %v", len(stored), r.mark.Seq, refused)
	}
	checkThreads(t, s, relay.Cursor{})
	if got := pragma(t, s.readDB, "integrity_check"); got != "ok" {
		t.Errorf("integrity: %s", got)
	}
	must(t, s.Close())
	return len(stored)
}

const logHeader, logFrame = 32, 24 + pageSize

// A write-ahead log that ends anywhere leaves a prefix of what was acknowledged, whole, and the mark tells what is missing.
func TestCutLog(t *testing.T) {
	receipts, every, others := 40, 1, 60
	if raceDetector {
		receipts, every, others = 20, 8, 20
	}
	r := killed(t, receipts)
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
		there := r.reopen(t, r.put(t, log[:cut]), log[:cut])
		if there < before {
			t.Fatalf("cut at %d, %d events are left, and of less %d", cut, there, before)
		}
		before = there
	}
	if before < len(r.acks) {
		t.Errorf("uncut, it holds %d events of %d", before, len(r.acks))
	}
	t.Logf("%d receipts, cut at %d frames and %d other places", len(r.acks), frames, others)
}

// SQLite takes a damaged log for one that ends there. Nothing acknowledged is missing without a word.
func TestFlippedBits(t *testing.T) {
	r := killed(t, 40)
	log := r.files[logSuffix]
	short, flips := 0, 60
	if raceDetector {
		flips = 20
	}
	for range flips {
		damaged := bytes.Clone(log)
		damaged[rand.Intn(len(log))] ^= 1 << rand.Intn(8)
		if r.reopen(t, r.put(t, damaged), damaged) < len(r.acks) {
			short++
		}
	}
	if short == 0 {
		t.Error("no bit mattered")
	}
}

// logged returns what a store says that is opened with o.
func logged(t *testing.T, path string, o Options) (s *Store, text func() string, err error) {
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

// A database that was replaced by yesterday's copy is not served, unless its operator says so; then no reader's cursor
// passes for one of the new events'.
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
		_, _, err := logged(t, path, Options{})
		for _, want := range []string{fmt.Sprintf(advice, 4, 9), path, "agora check --data " + filepath.Dir(path), "--accept-loss", "restore a backup"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("open: %v; want %q", err, want)
			}
		}
	}
	s, text, err := logged(t, path, Options{AcceptLoss: true})
	must(t, err)
	if !strings.Contains(text(), "level=ERROR") || !strings.Contains(text(), "loss is accepted") {
		t.Errorf("accepting a loss is logged as %q", text())
	}
	appendAll(t, s, entries[3:])
	if _, err := s.Read(t.Context(), relay.Query{After: last, Limit: 9}); !errors.Is(err, relay.ErrUnknownCursor) {
		t.Errorf("a cursor from before the loss: %v", err)
	}
	epoch := s.epoch
	must(t, s.Close())

	// Accepted where nothing is lost, it changes nothing.
	s, text, err = logged(t, path, Options{AcceptLoss: true})
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
		text   func(m dbfile.Mark) string // what the mark of three events is replaced by
		lost   string                     // what Open says
		logged string
	}{
		{"as it was", dbfile.Mark.String, "", ""},
		{"behind, as after a power cut", func(m dbfile.Mark) string { m.Seq = 1; return m.String() }, "", ""},
		{"of another database", func(m dbfile.Mark) string { return dbfile.Mark{Epoch: m.Epoch ^ 2, Seq: 9}.String() }, "", "another database"},
		{"empty, from a start cut short", func(dbfile.Mark) string { return "" }, "", ""},
		{"ahead", func(m dbfile.Mark) string { m.Seq = 5; return m.String() }, fmt.Sprintf(advice, 4, 5), ""},
		{"damaged", func(m dbfile.Mark) string { return strings.Replace(m.String(), "3", "4", 1) }, "is damaged; look at it with `agora check", ""},
		{"too short", func(m dbfile.Mark) string { return m.String()[:40] }, "is damaged", ""},
		{"too long", func(m dbfile.Mark) string { return m.String() + "x" }, "is damaged", ""},
		{"swept a while ago", func(m dbfile.Mark) string { return minute(m, -9).String() }, "", ""},
		{"swept in what is the future now", func(m dbfile.Mark) string { return minute(m, 2).String() }, "", "level=ERROR msg=\"the clock is behind"},
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

			s, said, err := logged(t, path, Options{})
			if c.lost != "" {
				if !errors.Is(err, dbfile.ErrLoss) || !strings.Contains(err.Error(), c.lost) {
					t.Errorf("open: %v", err)
				}
				s, _, err = logged(t, path, Options{AcceptLoss: true})
				must(t, err)
			} else {
				must(t, err)
			}
			if c.logged == "" && said() != "" || !strings.Contains(said(), c.logged) {
				t.Errorf("logged: %q, want %q", said(), c.logged)
			}
			if changed := s.epoch != epoch; changed != (c.lost != "") || len(events(t, s)) != 3 {
				t.Errorf("the epoch is changed: %v; %d events", changed, len(events(t, s)))
			}
			if text, err = os.ReadFile(path + markSuffix); err != nil || string(text) != s.care.mark.String() || s.care.mark.Seq != 3 || s.care.mark.Epoch != s.epoch {
				t.Errorf("the mark is %q now, %v", text, err)
			}
		})
	}
}

// The mark says when the last sweep was, within ten seconds, and is on disk a tick later.
func TestMarkOfSweeps(t *testing.T) {
	s := openNew(t)
	now := time.Now()
	for _, c := range []struct {
		at   time.Duration
		want time.Duration
	}{{0, 0}, {sweptEvery - 1, 0}, {sweptEvery, sweptEvery}, {0, 0}} {
		must(t, s.Expire(t.Context(), now.Add(c.at), nil))
		if got := instant(s.care.mark.Swept).Sub(now); got != c.want {
			t.Errorf("after a sweep at %v the mark says %v", c.at, got)
		}
	}
	if !s.care.unsynced.Load() {
		t.Error("the mark was written and nobody knows")
	}
	must(t, tick(s, now))
	if s.care.unsynced.Load() {
		t.Error("the mark is not on disk")
	}
}

// A database that is gone, or cut to nothing, is not begun anew in silence, and what its log holds is left as it is.
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

			_, _, err := logged(t, path, Options{})
			if !errors.Is(err, dbfile.ErrLoss) || !strings.Contains(err.Error(), fmt.Sprintf(advice, 1, 3)) {
				t.Errorf("open: %v", err)
			}
			if log, err := os.ReadFile(path + logSuffix); err != nil || string(log) != "a log" {
				t.Errorf("the refusal left %q of the log, %v", log, err)
			}
			s, _, err = logged(t, path, Options{AcceptLoss: true})
			must(t, err)
			appendAll(t, s, requests(t, 1))
		})
	}
}
