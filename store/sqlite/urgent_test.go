package sqlite

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// fullStore returns a store that has reached its size limit, and the numbers of its events. The first one is the REQUEST
// of a thread.
func fullStore(t *testing.T) (s *Store, request *envelope.Envelope, stored []relay.Seq, now time.Time) {
	t.Helper()
	s = openWith(t, filepath.Join(t.TempDir(), "agora.db"), Options{MaxBytes: 1 << 20, Reserve: 1 << 18,
		Log: slog.New(slog.DiscardHandler), Extensions: []relay.Extension{{Name: "op",
			Migrations: []string{"CREATE TABLE op_note (text TEXT NOT NULL PRIMARY KEY)"}}}})
	now = time.Now().Truncate(time.Millisecond)
	must(t, tick(s, now))
	first := requests(t, 1)
	appendAll(t, s, first)
	fill(t, s, 3000, now)
	for _, e := range events(t, s) {
		stored = append(stored, e.Seq)
	}
	return s, first[0].Envelope, stored, now
}

// TestOperatorOnFullDisk checks that the operator can remove messages, end threads and change the tables of extensions
// while the store is full and refuses messages. After a removal the store accepts messages again.
func TestOperatorOnFullDisk(t *testing.T) {
	s, request, stored, now := fullStore(t)
	note := func(tx relay.StoreTx) error {
		_, err := tx.Exec("INSERT INTO op_note (text) VALUES ('x') ON CONFLICT DO NOTHING")
		return err
	}
	if _, err := s.Update(t.Context(), note); !errors.Is(err, errDiskFull) {
		t.Errorf("an update of a client: %v", err)
	}
	for range 3 {
		if _, err := s.Govern(t.Context(), note); err != nil {
			t.Errorf("a change of the operator: %v", err)
		}
	}
	must(t, s.EndThread(t.Context(), thread.Key{Client: request.Sender.ID, ID: request.Thread}, now))
	if _, err := s.Append(t.Context(), messageOfSize(t, 1, 1, now)); !errors.Is(err, errDiskFull) {
		t.Errorf("a message to the full store: %v", err)
	}
	gone := stored[:len(stored)/2]
	removed, err := s.Remove(t.Context(), gone, now)
	if err != nil || !slices.Equal(removed, gone) {
		t.Fatalf("Remove removed %d of %d events, %v", len(removed), len(gone), err)
	}
	must(t, tick(s, now))
	appendAll(t, s, []relay.Entry{messageOfSize(t, 1, 3000, now)})
	if got := pragma(t, s.readDB, "integrity_check"); got != "ok" {
		t.Errorf("integrity: %s", got)
	}
}

// TestOperatorOnFailedDisk checks that nothing is removed after the disk has failed.
func TestOperatorOnFailedDisk(t *testing.T) {
	s, request, stored, now := fullStore(t)
	s.care.state.Store(int32(diskFailed))
	if _, err := s.Remove(t.Context(), stored, now); !errors.Is(err, errDiskFailed) {
		t.Errorf("Remove: %v", err)
	}
	if err := s.EndThread(t.Context(), thread.Key{Client: request.Sender.ID, ID: request.Thread}, now); !errors.Is(err, errDiskFailed) {
		t.Errorf("EndThread: %v", err)
	}
	if _, err := s.Govern(t.Context(), func(relay.StoreTx) error { return nil }); !errors.Is(err, errDiskFailed) {
		t.Errorf("Govern: %v", err)
	}
}

// TestUrgentUsesReserve checks that a change of the operator gets the room of the reserve if there is no other, and
// that the reserve is there again afterwards.
func TestUrgentUsesReserve(t *testing.T) {
	s, _, _, _ := fullStore(t)
	size := func() int64 {
		n, err := fileSize(s.care.reserve.path)
		must(t, err)
		return n
	}
	before, ran := size(), 0
	must(t, s.urgent(func(run runTask) error {
		if size() > 0 {
			return errDiskFull
		}
		return run(func(*writer) error { ran++; return nil })
	}))
	if before == 0 || ran != 1 || size() != before {
		t.Errorf("the change ran %d times; the reserve had %d bytes and now has %d", ran, before, size())
	}
	if err := s.urgent(func(runTask) error { return errDiskFull }); !errors.Is(err, errNoReserve) {
		t.Errorf("a change for which the reserve is too small: %v", err)
	}
	if size() != before {
		t.Errorf("the reserve has %d bytes, want %d", size(), before)
	}
}

// TestRemoveInSmallSteps checks that a removal changes few pages at a time on a full disk, so that they fit into the
// reserve.
func TestRemoveInSmallSteps(t *testing.T) {
	s, _, stored, _ := fullStore(t)
	s.care.logLimit.Store(16)
	for scarce, want := range map[bool]int{false: min(len(stored), removeStep), true: 1} {
		must(t, s.task(t.Context(), func(w *writer) error {
			w.scarce = scarce
			defer func() { w.scarce = false }()
			n, err := w.removable(stored)
			if n != want {
				t.Errorf("scarce %t: a transaction removes %d events, want %d", scarce, n, want)
			}
			return err
		}))
	}
}

// TestCompactOfFullStore checks that a full store can be made smaller.
func TestCompactOfFullStore(t *testing.T) {
	s, _, stored, now := fullStore(t)
	_, _, err := s.Compact(t.Context(), now)
	must(t, err) // the disk itself has room
	if _, err = s.Remove(t.Context(), stored, now); err != nil {
		t.Fatal(err)
	}
	before, after, err := s.Compact(t.Context(), now)
	if err != nil || after >= before/2 {
		t.Errorf("Compact after a removal: %d bytes before, %d now, %v", before, after, err)
	}
	if info, err := os.Stat(s.path); err != nil || info.Size() != after {
		t.Errorf("the file: %v, %v", info, err)
	}
}
