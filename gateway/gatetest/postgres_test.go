//go:build postgres

package gatetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
)

var items = relay.Extension{Name: "items", Migrations: []string{`
CREATE TABLE items_item (
	n    BIGINT NOT NULL PRIMARY KEY,
	name TEXT   NOT NULL,
	data BYTEA
);
CREATE UNIQUE INDEX items_item_by_name ON items_item (name)`}}

const addItem = "INSERT INTO items_item (n, name, data) VALUES (?, ?, ?)"

var errWanted = errors.New("the test wants it")

// recording opens a store that records.
func recording(t *testing.T, path string, x relay.Extension) *recorder {
	t.Helper()
	return recordingOver(t, path, x, func(s Store) Store { return s })
}

// recordingOver is the same as recording, over a store that is wrapped by wrap.
func recordingOver(t *testing.T, path string, x relay.Extension, wrap func(Store) Store) *recorder {
	t.Helper()
	all := []relay.Extension{x}
	opened, err := sqlite.Open(t.Context(), path,
		sqlite.Options{Reserve: 1 << 22, Extensions: all, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r, err := record(wrap(opened), all)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() }) // the test has looked at the result of r.Close
	return r
}

func exec(text string, args ...any) func(relay.StoreTx) error {
	return func(tx relay.StoreTx) error {
		_, err := tx.Exec(text, args...)
		return err
	}
}

// query reads all rows. Their columns are read into fresh values of the same types as dest.
func query(text string, args []any, dest ...any) func(relay.StoreTx) error {
	return func(tx relay.StoreTx) error {
		return tx.Query(func(scan func(...any) error) error { return scan(dest...) }, text, args...)
	}
}

// TestSame checks that nothing is reported if both databases do the same. It also covers what an update may do: fail,
// panic, look at rows that it has just written, and leave a query early. The second round begins with the rows of the
// first.
func TestSame(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	for round := range int64(2) {
		r := recording(t, path, items)
		for i, f := range sameInBoth(10 * round) {
			if _, err := r.Update(t.Context(), f); err != nil {
				t.Fatalf("%d: %v", i, err)
			}
		}
		if _, err := r.Update(t.Context(), func(tx relay.StoreTx) error {
			return errors.Join(exec("DELETE FROM items_item")(tx), errWanted)
		}); !errors.Is(err, errWanted) {
			t.Fatal(err)
		}
		if _, err := r.Update(t.Context(), exec(addItem, 10*round, "a number that is taken", nil)); err == nil {
			t.Fatal("a number is taken twice")
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = r.Update(t.Context(), func(tx relay.StoreTx) error {
				panic(errors.Join(exec("DELETE FROM items_item")(tx), errWanted))
			})
		}()
		if n, err := count(t, r, func() {}); n != int(4*(round+1)) || err != nil || !r.steps[len(r.steps)-1].compared {
			t.Fatal(n, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// sameInBoth returns functions that both databases run alike. They add the items with the numbers first to first+3.
func sameInBoth(first int64) []func(relay.StoreTx) error {
	var n int64
	var name string
	var data []byte
	var exists bool
	called := func(text string) string { return fmt.Sprint(text, first) }
	return []func(relay.StoreTx) error{
		exec(addItem, first, called(`ä'?\`), []byte{0, 255}),
		exec(addItem, first+1, called(strings.Repeat("x", 1<<16)), nil),
		exec(addItem, first+2, called("one"), []byte{}),
		exec("INSERT INTO items_item (n, name) VALUES (?, ?) ON CONFLICT (n) DO NOTHING", first+2, "nobody"),
		exec("INSERT INTO items_item (n, name) VALUES (?, ?) ON CONFLICT (n) DO UPDATE SET name = excluded.name",
			first+2, called("two")),
		query("SELECT n, name, data FROM items_item", nil, &n, &name, &data),
		query("SELECT EXISTS (SELECT 1 FROM items_item WHERE n = ?)", []any{first}, &exists),
		query("SELECT count(*) > 3 FROM items_item", nil, &exists),
		query("SELECT n FROM items_item WHERE n >= 0 ORDER BY n DESC LIMIT ?", []any{2}, &n),
		query("SELECT name FROM (SELECT name FROM items_item ORDER BY name LIMIT ?) AS any_of_equals", []any{1}, &name),
		func(tx relay.StoreTx) error {
			err := tx.Query(func(func(...any) error) error { return errWanted }, "SELECT name FROM items_item")
			return errors.Join(exec(addItem, first+3, called("three"), nil)(tx), ignore(err))
		},
		func(tx relay.StoreTx) error {
			return tx.Query(func(scan func(...any) error) error {
				return errors.Join(scan(&n), exec("UPDATE items_item SET data = ? WHERE n = ?", []byte{byte(n)}, n)(tx))
			}, "SELECT n FROM items_item ORDER BY n")
		},
	}
}

func ignore(err error) error {
	if errors.Is(err, errWanted) {
		return nil
	}
	return err
}

// TestDifferences checks that each kind of difference is reported.
func TestDifferences(t *testing.T) {
	for want, f := range differences() {
		r := recording(t, filepath.Join(t.TempDir(), "agora.db"), items)
		for i, f := range []func(relay.StoreTx) error{exec(addItem, 1, "a", nil), exec(addItem, 2, "B", nil), f} {
			if _, err := r.Update(t.Context(), f); err != nil {
				t.Fatalf("%s: %d: %v", want, i, err)
			}
		}
		if err := r.Close(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// differences returns functions that the databases run in different ways, by a part of what is reported.
func differences() map[string]func(relay.StoreTx) error {
	var n int64
	var name string
	return map[string]func(relay.StoreTx) error{
		`PostgreSQL refuses the statement: syntax error at or near "OR"`: exec(
			"INSERT OR IGNORE INTO items_item (n, name) VALUES (1, 'x')"),

		`column "rowid" does not exist`: query("SELECT rowid FROM items_item", nil, &n),

		"invalid byte sequence for encoding": exec(addItem, 5, "a\x00b", nil),

		`row 1 is ("B") in SQLite and ("a") in PostgreSQL`: query("SELECT name FROM items_item ORDER BY name", nil, &name),

		"SQLite has 1 rows, PostgreSQL has 0; PostgreSQL does not have (1)": query(
			"SELECT n FROM items_item WHERE name LIKE 'A'", nil, &n),

		"SQLite has 1 rows, PostgreSQL has 0; PostgreSQL does not have ()": query(
			"SELECT n FROM (SELECT n FROM items_item WHERE name LIKE 'A' LIMIT ?) AS any_of_equals", []any{1}, &n),

		"PostgreSQL takes the parameter for integer": exec("UPDATE items_item SET n = n + 2 * ?", 1),

		"has the type numeric in PostgreSQL; use CAST": query("SELECT sum(n) FROM items_item", nil, &n),

		"bigint out of range": query("SELECT n FROM items_item WHERE n + CAST(? AS BIGINT) > 0", []any{math.MaxInt64}, &n),

		"row 1 is (1) in SQLite and (bool(true)) in PostgreSQL": query("SELECT EXISTS (SELECT 1)", nil, &n),

		"argument 2 is a string": exec("UPDATE items_item SET name = ? WHERE n = ?", "b", "1"),

		"argument 1 is a bool": exec("UPDATE items_item SET n = n + 5 * CAST(? AS BIGINT)", true),

		"a parameter has a number": exec("DELETE FROM items_item WHERE n = ?1", 1),

		"changes 2 rows in SQLite and 1 in PostgreSQL": exec("DELETE FROM items_item WHERE name > 'A'"),

		"the update continues after the error": func(tx relay.StoreTx) error {
			if exec(addItem, 1, "taken", nil)(tx) == nil {
				return errors.New("a number is taken twice")
			}
			return exec("DELETE FROM items_item")(tx)
		},

		`at the end, the table items_item: row 1 is (1, "a", <nil>) in SQLite and (1, "a", \x61) in PostgreSQL`: exec(
			"UPDATE items_item SET data = ? WHERE n = CASE WHEN 'a' < 'B' THEN 1 ELSE 2 END", []byte("a")),
	}
}

// TestTypesOfColumns checks that a column must have a type that both databases share.
func TestTypesOfColumns(t *testing.T) {
	for column, want := range map[string]string{"n INTEGER NOT NULL": "has the type integer in PostgreSQL",
		"n INTEGER PRIMARY KEY AUTOINCREMENT": "PostgreSQL refuses migration 1 of items"} {
		x := relay.Extension{Name: "items", Migrations: []string{"CREATE TABLE items_item (" + column + ")"}}
		r := recording(t, filepath.Join(t.TempDir(), "agora.db"), x)
		if err := r.Close(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// faulty is a store that runs the function of an Update twice, or does not store what it has done.
type faulty struct {
	Store
	broken bool
}

func (s *faulty) Update(ctx context.Context, f func(relay.StoreTx) error) (time.Duration, error) {
	took, err := s.Store.Update(ctx, func(tx relay.StoreTx) error { return errors.Join(f(tx), errWanted) })
	if s.broken || ignore(err) != nil {
		return took, err
	}
	return s.Store.Update(ctx, f)
}

// TestFunctionRunsTwice checks that only the last run of a function counts, and none if the store fails.
func TestFunctionRunsTwice(t *testing.T) {
	var store faulty
	r := recordingOver(t, filepath.Join(t.TempDir(), "agora.db"), items, func(s Store) Store {
		store.Store = s
		return &store
	})
	if _, err := r.Update(t.Context(), exec(addItem, 1, "a", nil)); err != nil {
		t.Fatal(err)
	}
	store.broken = true
	if _, err := r.Update(t.Context(), exec(addItem, 2, "b", nil)); !errors.Is(err, errWanted) {
		t.Fatal(err)
	}
	store.broken = false
	var dropped []bool
	for _, s := range r.steps {
		dropped = append(dropped, s.dropped)
	}
	if err := r.Close(); err != nil || !slices.Equal(dropped, []bool{true, false, true}) {
		t.Error(err, dropped)
	}
}

// TestCallerLeaves checks that an update counts as stored if its function succeeds after its caller has left. Views
// that ran before that are not compared.
func TestCallerLeaves(t *testing.T) {
	r := recording(t, filepath.Join(t.TempDir(), "agora.db"), items)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	_, err := r.Update(ctx, func(tx relay.StoreTx) error {
		leave()
		<-left
		return exec(addItem, 1, "a", nil)(tx)
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if n, err := count(t, r, func() {}); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	close(left)
	if err := r.Close(); err != nil || len(r.steps) != 2 || !r.steps[0].stored || r.steps[1].compared {
		t.Error(err, len(r.steps))
	}
}

// TestUpdateDuringView checks that the rows of a View are not compared if an Update begins before it ends.
func TestUpdateDuringView(t *testing.T) {
	r := recording(t, filepath.Join(t.TempDir(), "agora.db"), items)
	n, err := count(t, r, func() {
		if _, err := r.Update(t.Context(), exec(addItem, 1, "a", nil)); err != nil {
			t.Error(err)
		}
	})
	if n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := count(t, r, func() {}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if err := r.Close(); err != nil || len(r.steps) != 3 || r.steps[0].compared || !r.steps[2].compared {
		t.Error(err, len(r.steps))
	}
}

// count returns how many items a View counts. It calls before first.
func count(t *testing.T, r *recorder, before func()) (n int, err error) {
	_, err = r.View(t.Context(), func(q relay.Querier) error {
		before()
		return q.Query(func(scan func(...any) error) error { return scan(&n) }, "SELECT count(*) FROM items_item")
	})
	return n, err
}

// TestRunInBubble checks that a relay with synthetic time can be compared.
func TestRunInBubble(t *testing.T) {
	if os.Getenv(Env) == "" {
		t.Fatalf("%s is not set; use make postgres", Env)
	}
	synctest.Test(t, func(t *testing.T) {
		r := Relay(t, items)
		for i := range 3 {
			time.Sleep(time.Hour)
			if err := r.Update(t.Context(), relay.Peer{Local: true}, func(tx relay.ExtTx) error {
				_, err := tx.Exec(addItem, i, r.Now().String(), nil)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
	})
}
