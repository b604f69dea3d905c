//go:build postgres

package transfer_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/postgres"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest/engine"
	"github.com/agora-relay/agora/store/transfer"
	"github.com/agora-relay/agora/thread"
)

var items = relay.Extension{Name: "items", Migrations: []string{
	"CREATE TABLE items_item (n BIGINT PRIMARY KEY, name TEXT NOT NULL, data BYTEA); INSERT INTO items_item VALUES (9, 'x', NULL)"}}

var quiet = slog.New(slog.DiscardHandler)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func key(n byte) didkey.Key {
	k, err := didkey.FromSeed(bytes.Repeat([]byte{n}, 32))
	if err != nil {
		panic(err) // 32 bytes are always a valid seed
	}
	return k
}

// fill stores a conversation, manifests, and a row of an extension.
func fill(t *testing.T, s relay.Extender) {
	t.Helper()
	alice, bob := key(1), key(2)
	post := func(by didkey.Key, d envelope.Draft, listing *relay.Listing) {
		m, err := d.Sign(by, time.Now())
		must(t, err)
		_, err = s.Append(t.Context(), relay.Entry{Envelope: m, Received: time.Now(), Listing: listing})
		must(t, err)
	}
	_, err := s.Update(t.Context(), func(tx relay.StoreTx) error {
		_, err := tx.Exec("INSERT INTO items_item (n, name, data) VALUES (1, ?, ?), (2, '', ?)", "ä", []byte{0, 255}, []byte{})
		return err
	})
	must(t, err)
	for n := range 30 {
		id := fmt.Sprint("t", n)
		post(alice, envelope.Draft{Thread: id, Payload: envelope.Request{RequestID: "r", Intent: "x"}}, nil)
		post(bob, envelope.Draft{Recipient: alice.DID(), Thread: id, Payload: envelope.Offer{RequestID: "r"}}, nil)
		if n%2 == 0 {
			post(alice, envelope.Draft{Recipient: bob.DID(), Thread: id, Payload: envelope.Accept{RequestID: "r"}}, nil)
		}
		post(bob, envelope.Draft{Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{{ID: id}}}},
			&relay.Listing{ID: "m", Intents: []string{id, "ä\x00"}, Text: "a\x00text" + id})
	}
}

// seen returns as text what a reader can see of a store.
func seen(t *testing.T, s relay.Extender) string {
	t.Helper()
	var b strings.Builder
	page, err := s.Read(t.Context(), relay.Query{Limit: 1000, Removed: true})
	must(t, err)
	fmt.Fprintln(&b, page.Cursor)
	for _, e := range page.Events {
		fmt.Fprintln(&b, e.Seq, e.ID, e.TS, e.Received, e.Expires, e.Removed, string(e.Body))
	}
	for n := range 30 {
		found, err := s.Thread(t.Context(), thread.Key{Client: key(1).DID(), ID: fmt.Sprint("t", n)}, time.Now())
		must(t, err)
		fmt.Fprintf(&b, "%+v\n", found)
	}
	for _, q := range []relay.AgentQuery{{}, {Intent: "t29"}, {Text: "text"}, {Intent: "t1"}} {
		q.Now, q.Limit = time.Now(), 9
		agents, err := s.Agents(t.Context(), q)
		must(t, err)
		for _, a := range agents.Agents {
			fmt.Fprintln(&b, a.DID, a.LastSeen, string(a.Manifest))
		}
	}
	_, err = s.View(t.Context(), func(q relay.Querier) error {
		return q.Query(func(scan func(...any) error) error {
			var n int64
			var name string
			var data []byte
			var null int64
			err := scan(&n, &name, &data, &null)
			fmt.Fprintln(&b, n, name, data, null)
			return err
		}, "SELECT n, name, data, CASE WHEN data IS NULL THEN 1 ELSE 0 END FROM items_item ORDER BY n")
	})
	must(t, err)
	return b.String()
}

// same checks that a copy shows what the original did. It reports the first line that differs.
func same(t *testing.T, what, got, want string) {
	t.Helper()
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		if i >= len(g) || i >= len(w) || g[i] != w[i] {
			t.Errorf("%s differs in line %d:\n%.300s\n%.300s", what, i, strings.Join(g[min(i, len(g)):], "\n"),
				strings.Join(w[min(i, len(w)):], "\n"))
			return
		}
	}
}

// TestThereAndBack moves a store from SQLite to PostgreSQL and back. Each copy must show the same, with the same
// cursors, and continue: it knows the ids that were used, and the threads.
func TestThereAndBack(t *testing.T) {
	folder := t.TempDir()
	embedded := func(name string) *sqlite.Store {
		s, err := sqlite.Open(t.Context(), filepath.Join(folder, name), sqlite.Options{Reserve: 1 << 20, Log: quiet,
			Extensions: []relay.Extension{items}})
		must(t, err)
		return s
	}
	dsn, err := engine.Schema(t.Context(), folder)
	must(t, err)
	server := func() *postgres.Store {
		s, err := postgres.Open(t.Context(), dsn, postgres.Options{Log: quiet, AcceptAsync: true, Partition: 16,
			Extensions: []relay.Extension{items}})
		must(t, err)
		return s
	}
	first := embedded("first.db")
	keep := func(s relay.Store) (start string) {
		t.Helper()
		all, _, err := s.(relay.LogStore).KeepLog(t.Context(), key(9).DID())
		must(t, err)
		return all[0].Start
	}
	start := keep(first)
	fill(t, first)
	if removed, err := first.Remove(t.Context(), []relay.Seq{3}, time.Now()); err != nil || len(removed) != 1 {
		t.Fatalf("removed %v, %v", removed, err)
	}
	want := seen(t, first)
	size, err := first.LogSize(t.Context(), 1)
	must(t, err)

	there := server()
	head, copied, err := transfer.Move(t.Context(), first, there, "there", func() (transfer.Engine, error) {
		must(t, there.Close())
		there = server()
		return there, nil
	})
	must(t, err)
	if copied[transfer.Events].Rows != int64(head.Last)-1 || copied["items_item"].Rows != 3 {
		t.Errorf("copied %d events up to %d, and %d items", copied[transfer.Events].Rows, head.Last, copied["items_item"].Rows)
	}
	same(t, "PostgreSQL", seen(t, there), want)
	if _, _, err := transfer.Move(t.Context(), first, there, "there", nil); err == nil {
		t.Error("a database with messages was overwritten")
	}

	back := embedded("back.db")
	_, _, err = transfer.Move(t.Context(), there, back, "back", func() (transfer.Engine, error) {
		must(t, back.Close())
		back = embedded("back.db")
		return back, nil
	})
	must(t, err)
	same(t, "SQLite after the way back", seen(t, back), want)
	for s, want := range map[transfer.Engine]string{first: "there", there: "back", back: ""} {
		if to, err := s.MovedTo(t.Context()); to != want || err != nil {
			t.Errorf("the mark says %q, want %q, %v", to, want, err)
		}
	}
	for name, s := range map[string]relay.Extender{"PostgreSQL": there, "SQLite": back} {
		if keep(s) != start {
			t.Errorf("%s: another log begins", name)
		}
		log, index, leaf, err := s.(relay.LogStore).LogLeaf(t.Context(), 4)
		must(t, err)
		if _, wantIndex, want, err := first.LogLeaf(t.Context(), 4); log != 1 || err != nil || index != wantIndex || leaf != want {
			t.Errorf("%s: leaf %d of the log %d is %v, %v", name, index, log, leaf, err)
		}
		page, err := s.Read(t.Context(), relay.Query{Limit: 1})
		must(t, err)
		m, err := envelope.Parse(page.Events[0].Body, 1<<20)
		must(t, err)
		r, err := s.Append(t.Context(), relay.Entry{Envelope: m, Received: time.Now()})
		if err != nil || !r.Duplicate || r.Cursor.Seq != page.Events[0].Seq {
			t.Errorf("%s: the first message again: %+v, %v", name, r, err)
		}
		m, err = envelope.Draft{Thread: "t1", Payload: envelope.Cancel{RequestID: "r"}}.Sign(key(1), time.Now())
		must(t, err)
		r, err = s.Append(t.Context(), relay.Entry{Envelope: m, Received: time.Now()})
		if err != nil || r.Cursor.Seq != head.Last+1 || r.Logged == nil || r.Logged.Index != size {
			t.Errorf("%s: a further message: %+v, %v; want the number %d", name, r, err, head.Last+1)
		}
	}
	must(t, first.Close())
	must(t, there.Close())
	must(t, back.Close())
}
