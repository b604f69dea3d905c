package sqlite

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite/check"
	"github.com/agora-relay/agora/thread"
)

// logKey is the key of the relay whose log these tests keep.
func logKey() didkey.Key { return key(99) }

// openLog opens a store that keeps a log.
func openLog(t testing.TB, path string) *Store {
	t.Helper()
	s := openWith(t, path, Options{mergeEvents: 16})
	_, _, err := s.KeepLog(t.Context(), logKey().DID())
	must(t, err)
	return s
}

// appendLogged appends an entry and returns what its proof says.
func appendLogged(t testing.TB, s *Store, e relay.Entry) *proof.Verified {
	t.Helper()
	receipt, err := s.Append(t.Context(), e)
	must(t, err)
	return verifyLogged(t, s, e, receipt)
}

// verifyLogged checks the proof of a receipt.
func verifyLogged(t testing.TB, s *Store, e relay.Entry, receipt relay.Receipt) *proof.Verified {
	t.Helper()
	l := receipt.Logged
	if l == nil {
		t.Fatal("the receipt has no leaf")
	}
	text, err := l.Growth.Prove(logKey(), proof.Origin{DID: logKey().DID(), Epoch: s.epoch}, l.Index, l.Leaf)
	must(t, err)
	p, err := proof.Parse(text)
	must(t, err)
	v, err := p.Verify()
	must(t, err)
	must(t, v.CheckMessage(e.Envelope, logKey().DID()))
	return v
}

// TestLogIsIntact checks that agora check finds nothing in a log that was written in groups, through restarts, with gaps,
// and after old tiles were removed (LOG L-13, L-14, L-16, L-17). For the leaves themselves see storetest.TestLog.
func TestLogIsIntact(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	s := openLog(t, path)
	for round := range 3 {
		var entries []relay.Entry
		for i := range 300 {
			entries = append(entries, request(t, key(3+i%5), key(2).DID()))
		}
		for i, o := range s.AppendAll(t.Context(), entries) {
			must(t, o.Err)
			verifyLogged(t, s, entries[i], o.Receipt)
		}
		must(t, s.Close())
		s = openLog(t, path)
		appendLogged(t, s, signed(t, key(2), envelope.Draft{Payload: envelope.Manifest{ID: "m"}}))
		wantIntact(t, path, time.Now())
		if round == 1 { // what is stored without the log leaves no gap in it
			must(t, s.Close())
			s = openAt(t, path)
			if receipt, err := s.Append(t.Context(), request(t, key(1), "")); err != nil || receipt.Logged != nil {
				t.Errorf("%+v, %v", receipt, err)
			}
			must(t, s.Close())
			s = openLog(t, path)
		}
	}
	later := time.Now().Add(100 * 24 * time.Hour)
	must(t, s.Expire(t.Context(), later, func(thread.Thread, time.Time) []*envelope.Envelope { return nil }))
	if first, err := s.FirstLeaf(t.Context(), 1); first != 3*256 || err != nil {
		t.Errorf("the first leaf is %d, %v", first, err)
	}
	wantIntact(t, path, later)
}

// TestLogSalts checks that the salt is erased with the body, and that the index of the leaf stays (LOG L-4).
func TestLogSalts(t *testing.T) {
	s := openLog(t, filepath.Join(t.TempDir(), "agora.db"))
	v := appendLogged(t, s, request(t, key(1), ""))
	removed, err := s.Remove(t.Context(), []relay.Seq{1}, time.Now())
	must(t, err)
	if len(removed) != 1 {
		t.Fatal(removed)
	}
	var leaf int64
	var salt []byte
	must(t, s.writeDB.QueryRowContext(t.Context(), "SELECT leaf, salt FROM event WHERE seq = 1").Scan(&leaf, &salt))
	if leaf != v.Index || salt != nil {
		t.Errorf("leaf %d, salt %x", leaf, salt)
	}
	wantIntact(t, s.path, time.Now())
}

// TestLostLeaves checks that the log does not continue if it lacks leaves of stored events.
func TestLostLeaves(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	s := openLog(t, path)
	appendLogged(t, s, request(t, key(1), ""))
	must(t, s.Close())
	spoil(t, path, "DELETE FROM log_leaf WHERE at = (SELECT max(at) FROM log_leaf)")
	if _, _, err := openAt(t, path).KeepLog(t.Context(), logKey().DID()); err == nil || !strings.Contains(err.Error(), "lacks the leaves") {
		t.Errorf("the log continues: %v", err)
	}
}

// TestLogOfCopy checks that a copy with another epoch begins a log after that of the original (LOG L-1, L-2, L-17).
func TestLogOfCopy(t *testing.T) {
	folder := t.TempDir()
	s := openLog(t, filepath.Join(folder, "agora.db"))
	appendLogged(t, s, request(t, key(1), ""))
	copied := filepath.Join(folder, "copy.db")
	_, err := Backup(t.Context(), s.path, copied, nil)
	must(t, err)
	c := openLog(t, copied)
	if v := appendLogged(t, c, request(t, key(1), "")); v.Index != 1 || v.Origin.Epoch == s.epoch {
		t.Errorf("the first leaf of the copy has %+v", v)
	}
	var start string
	must(t, c.writeDB.QueryRowContext(t.Context(), "SELECT start FROM log WHERE n = 2").Scan(&start))
	p, err := proof.ParseStart(start)
	must(t, err)
	if p.Previous == nil || p.Previous.Origin.Epoch != s.epoch || p.Previous.Size != 2 {
		t.Errorf("the start is %q", start)
	}
	wantIntact(t, copied, time.Now())
}

// TestCheckOfLog checks that changes of a log are noticed (LOG L-17).
func TestCheckOfLog(t *testing.T) {
	for what, text := range map[string]string{
		"a leaf is changed":        "UPDATE log_leaf SET hashes = zeroblob(32) WHERE rowid = (SELECT max(at) FROM log_leaf)",
		"a leaf is missing":        "DELETE FROM log_leaf WHERE at = (SELECT max(at) FROM log_leaf)",
		"a leaf too many":          "INSERT INTO log_leaf SELECT at + 5000, latest, seq, hashes FROM log_leaf ORDER BY at DESC LIMIT 1",
		"a node is changed":        "UPDATE log_node SET hash = zeroblob(32)",
		"a node is missing":        "DELETE FROM log_node",
		"a node too many":          "INSERT INTO log_node SELECT at + 1, hash FROM log_node",
		"the start is changed":     "UPDATE log SET start = replace(start, 'previous -', 'previous +')",
		"a salt is changed":        "UPDATE event SET salt = zeroblob(16) WHERE seq = 7",
		"a salt is missing":        "UPDATE event SET salt = NULL WHERE seq = 7",
		"two leaves are swapped":   "UPDATE event SET leaf = 9 - leaf WHERE seq IN (3, 4)",
		"a leaf is out of the log": "UPDATE event SET leaf = 5000 WHERE seq = 7",
	} {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "agora.db")
			s := openLog(t, path)
			var entries []relay.Entry
			for range 300 {
				entries = append(entries, request(t, key(1), ""))
			}
			for _, o := range s.AppendAll(t.Context(), entries) {
				must(t, o.Err)
			}
			must(t, s.Close())
			wantIntact(t, path, time.Now())
			spoil(t, path, text)
			var found []string
			_, err := check.Database(t.Context(), path, check.Options{Found: func(f check.Finding) { found = append(found, f.String()) }})
			must(t, err)
			if !slices.ContainsFunc(found, func(f string) bool {
				return strings.HasPrefix(f, "log") || strings.Contains(f, "leaf") || strings.Contains(f, "salt")
			}) {
				t.Errorf("findings: %q", found)
			}
		})
	}
}
