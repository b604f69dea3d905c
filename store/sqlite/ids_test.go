package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

// TestIDFilter tests the filter by itself: it never says no to an id that it has, and when it is full, it rarely says yes
// to others (STORE S-3).
func TestIDFilter(t *testing.T) {
	const room = 100_000
	f := newIDFilter(room)
	hash := func(i int) uint64 { return hashOf(messageID{int64(i % 100), fmt.Sprint("id ", i)}) }
	for i := range room {
		f.add(hash(i))
	}
	wrong := 0
	for i := range room {
		if !f.has(hash(i)) {
			t.Fatalf("no to id %d, which it has", i)
		}
		if f.has(hash(room + i)) {
			wrong++
		}
	}
	if wrong > room*3/200 {
		t.Errorf("yes to %d of %d ids that it does not have", wrong, room)
	}
	if f.room != 0 || newIDFilter(0).has(1) || !(*idFilter)(nil).has(1) {
		t.Errorf("room for %d more", f.room)
	}
}

// fill makes a filter count as full.
func (f *idFilter) fill() {
	if f != nil {
		f.room = -1
	}
}

// awaitIDs waits until no filter is being made.
func awaitIDs(t *testing.T, s *Store) {
	t.Helper()
	for reading := true; reading; time.Sleep(time.Millisecond) {
		must(t, s.task(t.Context(), func(w *writer) error {
			reading = w.ids.reading
			return nil
		}))
	}
}

// wantIDs checks that the filter has the id of each message and thread in the tables, unless the tail has it.
func wantIDs(t *testing.T, s *Store) {
	t.Helper()
	must(t, s.task(t.Context(), func(w *writer) error {
		err := eachRow(func(scan scanner) error {
			var m messageID
			var by didkey.DID
			err := scan(&m.sender, &m.id, &by)
			_, unmerged := w.store.tail.find(ledger.MessageKey{Sender: by, ID: m.id})
			if !unmerged && !w.ids.filter.has(hashOf(m)) {
				t.Errorf("no to message %+v", m)
			}
			return err
		}, func() (*sql.Rows, error) {
			return w.conn.QueryContext(t.Context(),
				"SELECT s.sender, s.id, p.did FROM event_sent s JOIN party p ON p.id = s.sender")
		})
		return errors.Join(err, eachRow(func(scan scanner) error {
			var k thread.Key
			err := scan(&k.ID, &k.Client)
			if !w.ids.filter.has(hashOf(k)) && w.store.tail.threadOf(k) == 0 {
				t.Errorf("no to thread %+v", k)
			}
			return err
		}, func() (*sql.Rows, error) {
			return w.conn.QueryContext(t.Context(), "SELECT id, party FROM thread_role WHERE role = 2")
		}))
	}))
}

// TestIDsOfAllStored checks the filter against all stored ids after each group (STORE S-3, test 6): while batches are
// merged one row at a time, while new filters are made, after an undone group, and after restarts.
func TestIDsOfAllStored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	options := Options{mergeEvents: 6, mergeSlice: 1}
	s := openWith(t, path, options)
	stored := map[relay.Seq]relay.Entry{}
	undone := errors.New("undone")
	for i := range 60 {
		group := []relay.Entry{request(t, key(i%5), key(9).DID()), request(t, key(i%7), didkey.DID(""))}
		last := appendAll(t, s, group).Seq
		stored[last-1], stored[last] = group[0], group[1]
		_, err := s.Update(t.Context(), func(tx relay.StoreTx) error {
			_, err := tx.Append(request(t, key(3), key(4).DID()))
			return errors.Join(err, undone)
		})
		if !errors.Is(err, undone) {
			t.Fatal(err)
		}
		switch {
		case i%20 == 19:
			must(t, s.Close())
			s = openWith(t, path, options)
		case i%3 == 0:
			must(t, s.task(t.Context(), func(w *writer) error {
				w.ids.filter.fill() // the next merge makes a new one
				return nil
			}))
		case i%3 == 1:
			awaitIDs(t, s)
		}
		wantIDs(t, s)
	}
	awaitIDs(t, s)
	for seq, e := range stored {
		if again, err := s.Append(t.Context(), e); err != nil || again.Cursor.Seq != seq {
			t.Errorf("message %d, appended again, is message %d, %v", seq, again.Cursor.Seq, err)
		}
	}
	wantIntact(t, path, time.Now())
}

// TestIDsMergedMeanwhile checks that a new filter has the ids of batches that were merged after it had read the tables.
func TestIDsMergedMeanwhile(t *testing.T) {
	s := openWith(t, filepath.Join(t.TempDir(), "agora.db"), Options{mergeEvents: 2, mergeSlice: 100})
	must(t, s.task(t.Context(), func(w *writer) error {
		w.ids.reading = true
		return nil
	}))
	f, err := s.readIDs()
	must(t, err)
	for i := range 9 {
		appendAll(t, s, []relay.Entry{request(t, key(i), key(9).DID())})
	}
	must(t, s.task(t.Context(), func(w *writer) error {
		if w.merged < 4 {
			t.Errorf("only %d events are merged", w.merged)
		}
		w.ids.replace(f)
		return nil
	}))
	wantIDs(t, s)
}

// TestNewIDsAreNotSearched checks that a new message in a new thread needs no search in the tables (STORE S-3).
func TestNewIDsAreNotSearched(t *testing.T) {
	s := openWith(t, filepath.Join(t.TempDir(), "agora.db"), Options{mergeEvents: 1, mergeSlice: 100})
	for i := range 4 {
		appendAll(t, s, []relay.Entry{request(t, key(i), key(9).DID())})
	}
	awaitIDs(t, s)
	must(t, s.task(t.Context(), func(w *writer) error { return w.stmts.knownRows.Close() }))
	appendAll(t, s, []relay.Entry{request(t, key(1), key(9).DID())})
	must(t, s.task(t.Context(), func(w *writer) (err error) {
		w.stmts.knownRows, err = w.conn.PrepareContext(t.Context(), knownRows)
		return err
	}))
}

// TestFullIDFilter checks that the writer makes a larger filter when one is full.
func TestFullIDFilter(t *testing.T) {
	s := openWith(t, filepath.Join(t.TempDir(), "agora.db"), Options{mergeEvents: 1, mergeSlice: 100})
	appendAll(t, s, []relay.Entry{request(t, key(1), key(9).DID())})
	awaitIDs(t, s)
	must(t, s.task(t.Context(), func(w *writer) error {
		w.ids.filter.fill()
		return nil
	}))
	appendAll(t, s, []relay.Entry{request(t, key(2), key(9).DID())})
	appendAll(t, s, []relay.Entry{request(t, key(3), key(9).DID())})
	awaitIDs(t, s)
	must(t, s.task(t.Context(), func(w *writer) error {
		if w.ids.filter.room < minIDs/2 {
			t.Errorf("room for %d more ids", w.ids.filter.room)
		}
		return nil
	}))
	wantIDs(t, s)
}
