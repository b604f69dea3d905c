//go:build postgres

package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

var items = relay.Extension{Name: "items", Migrations: []string{
	"CREATE TABLE items_item (n BIGINT PRIMARY KEY, name TEXT NOT NULL, data BYTEA)",
	"CREATE INDEX items_item_by_name ON items_item (name)"}}

const addItem = "INSERT INTO items_item (n, name, data) VALUES (?, ?, ?)"

func openItems(t *testing.T) *Store {
	t.Helper()
	return open(t, t.TempDir(), Options{Extensions: []relay.Extension{items}})
}

// names returns the names of all items, as a View reads them.
func names(t *testing.T, s *Store) (all string) {
	t.Helper()
	_, err := s.View(t.Context(), func(q relay.Querier) error {
		return q.Query(func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			all += name
			return err
		}, "SELECT name FROM items_item ORDER BY n")
	})
	must(t, err)
	return all
}

func add(n int, name string) func(relay.StoreTx) error {
	return func(tx relay.StoreTx) error {
		_, err := tx.Exec(addItem, n, name, []byte{0, 255})
		return err
	}
}

// TestUpdate checks that the changes of an update are stored together, or not at all, and that others in its group do
// not suffer.
func TestUpdate(t *testing.T) {
	s := openItems(t)
	errWanted := errors.New("the test wants it")
	if _, err := s.Update(t.Context(), add(1, "a")); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(relay.StoreTx) error{
		"an error":        func(tx relay.StoreTx) error { return errors.Join(add(2, "b")(tx), errWanted) },
		"a taken number":  func(tx relay.StoreTx) error { return errors.Join(add(3, "c")(tx), add(1, "x")(tx)) },
		"an ignored one":  func(tx relay.StoreTx) error { _ = errors.Join(add(4, "d")(tx), add(1, "x")(tx)); return nil },
		"another command": func(tx relay.StoreTx) error { _, err := tx.Exec("COMMIT"); return err },
	} {
		if _, err := s.Update(t.Context(), f); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	func() {
		defer func() {
			if p := recover(); p != errWanted {
				t.Errorf("the panic was %v", p)
			}
		}()
		_, _ = s.Update(t.Context(), func(tx relay.StoreTx) error {
			_ = add(5, "e")(tx)
			panic(errWanted)
		})
	}()
	if got := names(t, s); got != "a" {
		t.Errorf("the items are %q, want a", got)
	}
	end, err := s.Read(t.Context(), relay.Query{})
	must(t, err)
	if end.Cursor.Seq != 1 {
		t.Errorf("the end is %v; an update that stores rows takes one number", end.Cursor)
	}
}

// TestUpdateAppends checks that messages and rows are stored together and delivered, and that a refusal of one message
// leaves the update usable.
func TestUpdateAppends(t *testing.T) {
	s := openItems(t)
	w := watchAll(t, s)
	first := request(t, key(1), "t")
	_, err := s.Update(t.Context(), func(tx relay.StoreTx) error {
		if _, err := tx.Append(first); err != nil {
			return err
		}
		if _, err := tx.Append(request(t, key(1), "t")); envelope.CodeOf(err) != envelope.CodeInvalidTransition {
			return fmt.Errorf("a second REQUEST in the thread: %v", err)
		}
		r, err := tx.Append(first)
		if err != nil || !r.Duplicate {
			return fmt.Errorf("the same message again: %+v, %v", r, err)
		}
		var n int64
		if err := tx.Query(func(scan func(...any) error) error { return errors.Join(scan(&n), add(int(n), "a")(tx)) },
			"SELECT count(*) FROM items_item WHERE n > ?", -1); err != nil {
			return err
		}
		_, err = tx.Append(request(t, key(2), "t"))
		return err
	})
	must(t, err)
	if got := w.until(t, 2); len(got) != 2 || names(t, s) != "a" {
		t.Errorf("delivered %v, items %q", got, names(t, s))
	}
	_, err = s.Update(t.Context(), func(tx relay.StoreTx) error {
		_, err := tx.Append(request(t, key(3), "t"))
		return errors.Join(err, context.Canceled)
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	page, err := s.Read(t.Context(), relay.Query{Limit: 9})
	must(t, err)
	if len(page.Events) != 2 {
		t.Errorf("%d events are stored, want 2: the last update was undone", len(page.Events))
	}
}

// TestSlowUpdate checks that an update that takes too long is undone, and that posts continue.
func TestSlowUpdate(t *testing.T) {
	s := openItems(t)
	release := make(chan struct{})
	defer close(release)
	began := time.Now()
	_, err := s.Update(t.Context(), func(tx relay.StoreTx) error {
		_ = add(1, "a")(tx)
		<-release
		return nil
	})
	if e, ok := errors.AsType[*envelope.Error](err); !ok || !e.NothingStored() || time.Since(began) < ledger.UpdateTime {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	if _, err := s.Append(t.Context(), request(t, key(1), "t")); err != nil || names(t, s) != "" {
		t.Errorf("a post afterwards: %v; items %q", err, names(t, s))
	}
}

// TestMigrations checks that each migration of an extension runs once, and that names of others are refused.
func TestMigrations(t *testing.T) {
	place := t.TempDir()
	for range 2 {
		s, err := openAt(t.Context(), place, Options{Extensions: []relay.Extension{items}})
		must(t, err)
		must(t, s.Close())
	}
	for want, x := range map[string]relay.Extension{
		"this program has only 1": {Name: "items", Migrations: items.Migrations[:1]},
		"must begin with other_":  {Name: "other", Migrations: []string{"CREATE TABLE mine (n BIGINT)"}},
		"cannot be named event":   {Name: "event"},
	} {
		s, err := openAt(t.Context(), place, Options{Extensions: []relay.Extension{x}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, %v; want %q", x, s, err, want)
		}
	}
}

// TestAssign checks which values can be read into which variables.
func TestAssign(t *testing.T) {
	var n int64
	var small int8
	var flag bool
	var text string
	var data []byte
	var whatever any
	var maybe *int64
	must(t, assignAll([]any{&n, &flag, &text, &data, &whatever, &maybe},
		[]any{int32(7), int64(1), "x", []byte{1}, true, nil}))
	if n != 7 || !flag || text != "x" || string(data) != "\x01" || whatever != true || maybe != nil {
		t.Error(n, flag, text, data, whatever, maybe)
	}
	for _, c := range []struct{ into, value any }{
		{&n, "1"}, {&small, int64(300)}, {&flag, int64(2)}, {&text, int64(1)}, {&n, nil}, {n, int64(1)}, {&data, true},
	} {
		if err := assign(c.into, c.value); err == nil {
			t.Errorf("a %T was read into a %T", c.value, c.into)
		}
	}
}

// TestMasked checks that no form of a DSN shows its password.
func TestMasked(t *testing.T) {
	for dsn, want := range map[string]string{
		"postgres://agora:pa5s@a,b:5433/agora?x=y":         "postgres://agora:***@a,b:5433/agora?x=y",
		"postgres://agora@a/agora":                         "postgres://agora@a/agora",
		"host=a password=pa5s dbname=agora":                "host=a password=*** dbname=agora",
		"host=a PASSWORD='pa5s with spaces' dbname=agora":  "host=a PASSWORD=*** dbname=agora",
		"postgres://a/agora?user=agora&password=pa5s&x=ab": "postgres://a/agora?user=agora&password=***&x=ab",
	} {
		if got := Masked(dsn); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestViewEndsWithItsContext checks that the statement of a View ends when the View's time is over, and that the next
// View works.
func TestViewEndsWithItsContext(t *testing.T) {
	s := openItems(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := s.View(ctx, func(q relay.Querier) error {
		return q.Query(func(func(...any) error) error { return nil }, "SELECT COUNT(*) FROM generate_series(1, 1000000000000)")
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an endless View ended with %v", err)
	}
	if got := names(t, s); got != "" {
		t.Errorf("afterwards: %q", got)
	}
}
