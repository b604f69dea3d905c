package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/sqlite/check"
	"github.com/agora-relay/agora/store/sqlite/internal/dbfile"
)

// books is an extension for these tests. It has accounts whose balances must equal the sums of their entries.
var books = relay.Extension{
	Name: "books",
	Migrations: []string{
		"CREATE TABLE books_account (name TEXT PRIMARY KEY, balance INTEGER NOT NULL) STRICT",
		"CREATE TABLE books_entry (n INTEGER PRIMARY KEY, account TEXT NOT NULL, amount INTEGER NOT NULL, " +
			"message TEXT NOT NULL) STRICT;" +
			"CREATE INDEX books_entry_by_account ON books_entry (account)",
	},
	Check: func(q relay.Querier, found func(where, what string)) error {
		return q.Query(func(scan func(...any) error) error {
			var name string
			var balance, sum int64
			if err := scan(&name, &balance, &sum); err != nil {
				return err
			}
			if balance != sum {
				found("account "+strconv.Quote(name), fmt.Sprintf("has %d, its entries sum to %d", balance, sum))
			}
			return nil
		}, "SELECT name, balance, (SELECT ifnull(sum(amount), 0) FROM books_entry WHERE account = name) "+
			"FROM books_account")
	},
}

var quietLog = slog.New(slog.DiscardHandler)

// addEntry returns an update that appends e and adds one unit to account.
func addEntry(e relay.Entry, account string) func(relay.StoreTx) error {
	return func(tx relay.StoreTx) error {
		receipt, err := tx.Append(e)
		if err != nil {
			return err
		}
		_, err = tx.Exec("INSERT INTO books_account (name, balance) VALUES (?, 1) "+
			"ON CONFLICT (name) DO UPDATE SET balance = balance + 1", account)
		if err == nil {
			_, err = tx.Exec("INSERT INTO books_entry (account, amount, message) VALUES (?, 1, ?)", account, receipt.ID)
		}
		return err
	}
}

func openBooks(t testing.TB, path string, o Options) *Store {
	t.Helper()
	o.Extensions = []relay.Extension{books}
	return openWith(t, path, o)
}

// leaving is the context of a client who leaves when the context has been asked a number of times.
type leaving struct {
	context.Context
	leave context.CancelFunc
	asked *atomic.Int32 // how many times are left
}

func (l leaving) count() {
	if l.asked.Add(-1) == 0 {
		l.leave()
		time.Sleep(time.Millisecond) // so that other goroutines notice it before this one continues
	}
}

func (l leaving) Done() <-chan struct{} {
	l.count()
	return l.Context.Done()
}

func (l leaving) Err() error {
	l.count()
	return l.Context.Err()
}

// TestViewsOfClientsWhoLeave ends the context of a View at each moment at which somebody asks it. Afterwards, all
// connections can be used.
func TestViewsOfClientsWhoLeave(t *testing.T) {
	s := openBooks(t, filepath.Join(t.TempDir(), "agora.db"), Options{})
	for moment := range int32(30) {
		for range readers {
			ctx, leave := context.WithCancel(t.Context())
			asked := atomic.Int32{}
			asked.Store(moment + 1)
			if _, err := s.View(leaving{ctx, leave, &asked}, func(relay.Querier) error { return nil }); err != nil && ctx.Err() == nil {
				t.Fatalf("after moment %d, the view of a client who stays: %v", moment, err)
			}
			leave()
		}
		for range readers {
			if _, err := s.View(t.Context(), func(relay.Querier) error { return nil }); err != nil {
				t.Fatalf("after clients have left at moment %d: %v", moment, err)
			}
		}
	}
}

// booked returns how often each message id occurs among the entries, and among the events.
func booked(t testing.TB, s *Store) (entries map[string]int, events map[string]int) {
	t.Helper()
	entries, events = map[string]int{}, map[string]int{}
	_, err := s.View(t.Context(), func(q relay.Querier) error {
		return q.Query(func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			entries[id]++
			return err
		}, "SELECT message FROM books_entry")
	})
	must(t, err)
	page, err := s.Read(t.Context(), relay.Query{Expired: true, Limit: 1 << 20})
	must(t, err)
	for _, e := range page.Events {
		events[e.ID]++
	}
	return entries, events
}

// checkBooks checks the database at path together with the extension's tables.
func checkBooks(t testing.TB, path string) (findings []string) {
	t.Helper()
	_, err := check.Database(t.Context(), path,
		check.Options{Extensions: []relay.Extension{books},
			Found: func(f check.Finding) { findings = append(findings, f.String()) }})
	must(t, err)
	return findings
}

// TestUpdateAmongPosts runs updates and posts in one group. An update that fails or panics stores nothing. All others
// are stored.
func TestUpdateAmongPosts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	s := openBooks(t, path, Options{Log: quietLog})
	refused := errors.New("no")
	var group []ledger.Job
	const posts = 252
	var expected, stored []string
	for i, e := range requests(t, posts) {
		group = append(group, ledger.Job{Entry: e, Done: make(chan relay.Outcome, 1)})
		expected = append(expected, e.Envelope.ID)
		switch i {
		case 50, 150:
			e := request(t, key(1), "")
			group = append(group, ledger.Job{Update: &ledger.Update{F: addEntry(e, "a")}, Done: make(chan relay.Outcome, 1)})
			stored = append(stored, e.Envelope.ID)
		case 100:
			e := request(t, key(1), "")
			group = append(group, ledger.Job{Update: &ledger.Update{F: func(tx relay.StoreTx) error {
				return errors.Join(addEntry(e, "a")(tx), refused)
			}}, Done: make(chan relay.Outcome, 1)})
		case 200:
			e := request(t, key(1), "")
			group = append(group, ledger.Job{Update: &ledger.Update{F: func(tx relay.StoreTx) error {
				must(t, addEntry(e, "b")(tx))
				panic("at the disco")
			}}, Done: make(chan relay.Outcome, 1)})
		}
	}
	must(t, s.task(t.Context(), func(w *writer) error { w.appendGroup(group); return nil }))
	var seqs []relay.Seq
	for i, j := range group {
		o := <-j.Done
		switch {
		case i == 102:
			if !errors.Is(o.Err, refused) {
				t.Errorf("an update that fails: %v", o.Err)
			}
		case i == 204:
			if o.Err != ledger.ErrPanicked || j.Update.Panicked != "at the disco" {
				t.Errorf("an update that panics: %v, %v", o.Err, j.Update.Panicked)
			}
		case o.Err != nil:
			t.Errorf("job %d: %v", i, o.Err)
		case j.Update == nil:
			seqs = append(seqs, o.Receipt.Cursor.Seq)
		}
	}
	for i := range seqs[1:] {
		if seqs[i+1] <= seqs[i] {
			t.Fatalf("post %d has number %d, the next has %d", i, seqs[i], seqs[i+1])
		}
	}
	entries, events := booked(t, s)
	if len(entries) != 2 || len(events) != posts+2 {
		t.Errorf("%d entries, %d events", len(entries), len(events))
	}
	for _, id := range append(expected, stored...) {
		if events[id] != 1 {
			t.Errorf("%s is stored %d times", id, events[id])
		}
	}
	for _, id := range stored {
		if entries[id] != 1 {
			t.Errorf("%s is booked %d times", id, entries[id])
		}
	}
	must(t, s.Close())
	if findings := checkBooks(t, path); findings != nil {
		t.Errorf("check: %q", findings)
	}
}

// TestUpdatePanics checks that a panic reaches the caller of Update, and that the store keeps working.
func TestUpdatePanics(t *testing.T) {
	s := openBooks(t, filepath.Join(t.TempDir(), "agora.db"), Options{Log: quietLog})
	func() {
		defer func() {
			if p := recover(); p != "oh" {
				t.Errorf("recovered %v", p)
			}
		}()
		_, err := s.Update(t.Context(), func(relay.StoreTx) error { panic("oh") })
		t.Errorf("it returned %v", err)
	}()
	_, err := s.Update(t.Context(), addEntry(request(t, key(1), ""), "a"))
	must(t, err)
}

// TestUpdateTooLong checks that an update is undone when its function takes too long, wherever the function waits.
// Later calls by the function have no effect. The caller learns that nothing was stored, and the log says why. Other
// updates need not wait for it.
func TestUpdateTooLong(t *testing.T) {
	for name, wait := range map[string]func(tx relay.StoreTx, goOn chan struct{}) error{
		"between statements": func(_ relay.StoreTx, goOn chan struct{}) error { <-goOn; return nil },
		"between the rows of a query": func(tx relay.StoreTx, goOn chan struct{}) error {
			return tx.Query(func(func(...any) error) error { <-goOn; return nil }, "SELECT 1 UNION SELECT 2")
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { updateTooLong(t, wait) }) })
	}
}

func updateTooLong(t *testing.T, wait func(tx relay.StoreTx, goOn chan struct{}) error) {
	var log bytes.Buffer
	s := openBooks(t, filepath.Join(t.TempDir(), "agora.db"), Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	over := make(chan error, 1)
	goOn := make(chan struct{})
	began := time.Now()
	_, err := s.Update(t.Context(), func(tx relay.StoreTx) error {
		must(t, addEntry(request(t, key(1), ""), "a")(tx))
		waited := wait(tx, goOn)
		_, err := tx.Exec("INSERT INTO books_account (name, balance) VALUES ('late', 1)")
		over <- err
		return errors.Join(waited, err)
	})
	if took := time.Since(began); !errors.Is(err, ledger.ErrTooLong) || took != ledger.UpdateTime {
		t.Errorf("after %v: %v", took, err)
	}
	if e, ok := errors.AsType[*envelope.Error](err); !ok || !e.NothingStored() || e.RetryAfter == 0 {
		t.Errorf("the refusal is %+v", err)
	}
	if !strings.Contains(log.String(), "do less work in one update") {
		t.Errorf("the log is %q", log.String())
	}
	_, err = s.Update(t.Context(), addEntry(request(t, key(2), ""), "a"))
	must(t, err)
	close(goOn)
	if err := <-over; !errors.Is(err, ledger.ErrTooLong) {
		t.Errorf("a statement after the end of the update: %v", err)
	}
	if entries, events := booked(t, s); len(entries) != 1 || len(events) != 1 {
		t.Errorf("%d entries, %d events", len(entries), len(events))
	}
}

// TestUpdateWritesDuringQuery checks that a function can write while it reads the rows of a query.
func TestUpdateWritesDuringQuery(t *testing.T) {
	s := openBooks(t, filepath.Join(t.TempDir(), "agora.db"), Options{})
	enough := errors.New("enough")
	_, err := s.Update(t.Context(), func(tx relay.StoreTx) error {
		for _, account := range []string{"a", "b", "c"} {
			must(t, addEntry(request(t, key(1), ""), account)(tx))
		}
		seen := 0
		err := tx.Query(func(scan func(...any) error) error {
			var name string
			must(t, scan(&name))
			if seen++; name == "b" {
				return enough
			}
			_, err := tx.Exec("UPDATE books_entry SET amount = 5 WHERE account = ?", name)
			return err
		}, "SELECT name FROM books_account ORDER BY name")
		if err != enough || seen != 2 {
			t.Errorf("%d rows, %v", seen, err)
		}
		_, err = tx.Exec("UPDATE books_account SET balance = 5 WHERE name = 'a'")
		return err
	})
	must(t, err)
	must(t, s.Close())
	if findings := checkBooks(t, s.path); findings != nil {
		t.Errorf("check: %q", findings)
	}
}

// TestUpdateWithBrokenAppend checks that an update is undone if the store failed to append, even if the function
// ignores the error.
func TestUpdateWithBrokenAppend(t *testing.T) {
	s := openBooks(t, filepath.Join(t.TempDir(), "agora.db"), Options{Log: quietLog})
	_, err := s.Append(t.Context(), signed(t, key(1),
		envelope.Draft{Thread: "t", Payload: envelope.Request{RequestID: "r", Intent: "echo"}}))
	must(t, err)
	execute(t, s, "UPDATE thread SET record = x'63'")
	offer := envelope.Draft{Thread: "t", Recipient: key(1).DID(), Payload: envelope.Offer{RequestID: "r"}}
	_, err = s.Update(t.Context(), func(tx relay.StoreTx) error {
		if _, err := tx.Append(signed(t, key(2), offer)); err == nil {
			t.Error("an OFFER to a damaged thread is stored")
		}
		return addEntry(request(t, key(3), ""), "a")(tx)
	})
	if err == nil || isCode(err, envelope.CodeInvalidRequest) {
		t.Errorf("the update returns %v", err)
	}
	if entries, events := booked(t, s); len(entries) != 0 || len(events) != 1 {
		t.Errorf("%d entries, %d events", len(entries), len(events))
	}
}

// TestUpdateTxEndsWithUpdate checks that a transaction cannot be used after its function has returned.
func TestUpdateTxEndsWithUpdate(t *testing.T) {
	s := openBooks(t, filepath.Join(t.TempDir(), "agora.db"), Options{})
	var kept relay.StoreTx
	_, err := s.Update(t.Context(), func(tx relay.StoreTx) error { kept = tx; return nil })
	must(t, err)
	_, err = kept.Append(request(t, key(1), ""))
	_, err2 := kept.Exec("INSERT INTO books_account (name, balance) VALUES ('a', 1)")
	err3 := kept.Query(nil, "SELECT 1")
	if err != ledger.ErrOver || err2 != ledger.ErrOver || err3 != ledger.ErrOver {
		t.Errorf("used afterwards: %v, %v, %v", err, err2, err3)
	}
}

// TestUpdateGoesOnAfterRefusals checks that a refused message changes nothing, and that the update may continue after
// it.
func TestUpdateGoesOnAfterRefusals(t *testing.T) {
	s := openBooks(t, filepath.Join(t.TempDir(), "agora.db"), Options{})
	stranger := signed(t, key(2), envelope.Draft{Thread: "t",
		Payload: envelope.Result{RequestID: "r", Status: "success"}})
	good := request(t, key(1), "")
	_, err := s.Update(t.Context(), func(tx relay.StoreTx) error {
		if _, err := tx.Append(stranger); !isCode(err, envelope.CodeThreadNotFound) {
			t.Errorf("a RESULT without a thread: %v", err)
		}
		if _, err := tx.Exec("INSERT INTO books_account (name) VALUES ('x')"); err == nil {
			t.Error("a row without a balance is inserted")
		}
		for _, text := range []string{"COMMIT", " rollback", "PRAGMA synchronous = OFF", "ATTACH 'x' AS y",
			"SAVEPOINT step",
			"SELECT 1; COMMIT", ""} {
			if _, err := tx.Exec(text); err == nil {
				t.Errorf("%s is run", text)
			}
		}
		if err := tx.Query(func(func(...any) error) error { return nil }, "SELECT\n1 ;\n"); err != nil {
			t.Errorf("a statement of several lines: %v", err)
		}
		return addEntry(good, "a")(tx)
	})
	must(t, err)
	if entries, _ := booked(t, s); entries[good.Envelope.ID] != 1 {
		t.Errorf("booked: %v", entries)
	}
}

// TestMarkCoversUpdates checks that the mark counts an update that stores no message. So an older copy of the database
// is noticed.
func TestMarkCoversUpdates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	s := openBooks(t, path, Options{})
	_, err := s.Append(t.Context(), request(t, key(1), ""))
	must(t, err)
	must(t, s.Close())
	before, err := os.ReadFile(path)
	must(t, err)
	s = openBooks(t, path, Options{})
	_, err = s.Update(t.Context(), func(tx relay.StoreTx) error {
		_, err := tx.Exec("INSERT INTO books_account (name, balance) VALUES ('a', 0)")
		return err
	})
	must(t, err)
	must(t, s.Close())
	must(t, os.WriteFile(path, before, 0o600))
	if _, err := Open(t.Context(), path,
		Options{Extensions: []relay.Extension{books}}); !errors.Is(err, dbfile.ErrLoss) {
		t.Errorf("opening a copy from before an update: %v", err)
	}
}

// TestUpdateOnFullDisk checks that updates are refused like posts while the disk is full.
func TestUpdateOnFullDisk(t *testing.T) {
	s := openBooks(t, filepath.Join(t.TempDir(), "agora.db"), Options{MaxBytes: 2 << 20, Log: quietLog})
	text := strings.Repeat("x", 100_000)
	var err error
	n := 0
	for ; err == nil && n < 100; n++ {
		_, err = s.Update(t.Context(), func(tx relay.StoreTx) error {
			_, err := tx.Exec("INSERT INTO books_entry (account, amount, message) VALUES ('a', 0, ?)",
				text+strconv.Itoa(n))
			if err != nil {
				return nil // the store refuses the update although the function ignores the error
			}
			return addEntry(request(t, key(1), ""), "a")(tx)
		})
	}
	if err != errDiskFull || n < 3 {
		t.Fatalf("after %d updates: %v", n, err)
	}
	if _, err := s.Append(t.Context(), request(t, key(1), "")); err != errDiskFull {
		t.Errorf("a post: %v", err)
	}
	if entries, events := booked(t, s); len(entries) != 2*len(events) || len(events) == 0 {
		t.Errorf("%d entries of %d events", len(entries), len(events))
	}
}

// TestBackupOfExtension checks that a backup has the extension's tables, and that a store can be opened on it.
func TestBackupOfExtension(t *testing.T) {
	dir := t.TempDir()
	s := openBooks(t, filepath.Join(dir, "agora.db"), Options{})
	for range 3 {
		_, err := s.Update(t.Context(), addEntry(request(t, key(1), ""), "a"))
		must(t, err)
	}
	copied := filepath.Join(dir, "copy.db")
	_, err := Backup(t.Context(), filepath.Join(dir, "agora.db"), copied, nil)
	must(t, err)
	if findings := checkBooks(t, copied); findings != nil {
		t.Errorf("check: %q", findings)
	}
	restored := openBooks(t, copied, Options{})
	_, err = restored.Update(t.Context(), addEntry(request(t, key(1), ""), "a"))
	must(t, err)
	if entries, events := booked(t, restored); len(entries) != 4 || len(events) != 4 {
		t.Errorf("%d entries, %d events", len(entries), len(events))
	}
}

// TestMigrationFails checks that a migration that fails half-way leaves the tables unchanged (G-6).
func TestMigrationFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	must(t, openBooks(t, path, Options{}).Close())
	worse := books
	worse.Migrations = append(books.Migrations[:2:2],
		"CREATE TABLE books_third (x INTEGER); INSERT INTO books_nowhere VALUES (1)")
	if _, err := Open(t.Context(), path, Options{Extensions: []relay.Extension{worse}}); err == nil ||
		!strings.Contains(err.Error(), "migration 3 of books") {
		t.Fatalf("opened: %v", err)
	}
	if findings := checkBooks(t, path); findings != nil {
		t.Errorf("check: %q", findings)
	}
	for _, foreign := range []string{"CREATE TABLE other (x INTEGER)", "CREATE INDEX late ON books_entry (amount)",
		"DROP INDEX thread_by_state"} {
		worse.Migrations = append(books.Migrations[:2:2], foreign)
		if s, err := Open(t.Context(), path, Options{Extensions: []relay.Extension{worse}}); err == nil ||
			!strings.Contains(err.Error(), "must begin with books_") {
			t.Errorf("%s: opened %v, %v", foreign, s, err)
		}
	}
	better := books
	better.Migrations = append(books.Migrations[:2:2], "CREATE TABLE books_third (x INTEGER)")
	must(t, openWith(t, path, Options{Extensions: []relay.Extension{better}}).Close())
	if _, err := Open(t.Context(), path, Options{Extensions: []relay.Extension{books}}); err == nil ||
		!strings.Contains(err.Error(), "newer version") {
		t.Errorf("opened by an older program: %v", err)
	}
	must(t, openAt(t, path).Close()) // a relay without the extension does not change its tables
	findings := checkBooks(t, path)
	if len(findings) != 1 || !strings.Contains(findings[0],
		"the tables of books have run 3 migrations, but this program has only 2") {
		t.Errorf("check by an older program: %q", findings)
	}
}

// TestCheckOfExtension checks that Database calls the extension's own check.
func TestCheckOfExtension(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	s := openBooks(t, path, Options{})
	_, err := s.Update(t.Context(), addEntry(request(t, key(1), ""), "a"))
	must(t, err)
	must(t, s.Close())
	spoil(t, path, "UPDATE books_account SET balance = 7")
	findings := checkBooks(t, path)
	if len(findings) != 1 || !strings.Contains(findings[0], `books account "a": has 7, its entries sum to 1`) {
		t.Errorf("found %q", findings)
	}
	spoil(t, path, "DROP INDEX books_entry_by_account")
	if findings := checkBooks(t, path); len(findings) != 2 {
		t.Errorf("found %q", findings)
	}
}

func TestExtensionNames(t *testing.T) {
	for _, names := range [][]string{{""}, {"Hub"}, {"a_b"}, {"hub", "hub"}, {"thread"}, {"sqlite"}} {
		var all []relay.Extension
		for _, name := range names {
			all = append(all, relay.Extension{Name: name})
		}
		if s, err := Open(t.Context(), filepath.Join(t.TempDir(), "agora.db"), Options{Extensions: all}); err == nil {
			t.Errorf("%q: opened", names)
			must(t, s.Close())
		}
	}
}

// updateForever is a child that runs updates until it is killed. It prints the id of each acknowledged message.
func updateForever(path string) error {
	s, err := Open(context.Background(), path, Options{Extensions: []relay.Extension{books}})
	if err != nil {
		return err
	}
	var workers sync.WaitGroup
	for n := range 4 {
		workers.Go(func() {
			for {
				now := time.Now()
				m, err := envelope.Draft{Payload: envelope.Request{Intent: "echo"}}.Sign(key(n), now)
				if err == nil {
					_, err = s.Update(context.Background(),
						addEntry(relay.Entry{Envelope: m, Received: now}, strconv.Itoa(n)))
				}
				if err != nil {
					fmt.Println(err)
					return
				}
				fmt.Println(m.ID)
			}
		})
	}
	workers.Wait()
	return nil
}

// TestUpdatesAfterKill kills a child that runs updates. Each acknowledged update must have its message and its rows
// afterwards. Any other update must have both or neither.
func TestUpdatesAfterKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	var acknowledged []string
	for range 4 {
		child := start(t, "update", path)
		for range 20 + rand.IntN(60) {
			line, err := child.lines.ReadString('\n')
			if err != nil {
				t.Fatalf("reading the child's receipt: %v; its standard error is %q", err, child.errors.String())
			}
			acknowledged = append(acknowledged, strings.TrimSpace(line))
		}
		must(t, child.Process.Kill())
		out, _ := child.rest() // ends with an error because the child was killed
		acknowledged = append(acknowledged, strings.Fields(out)...)
		s := openBooks(t, path, Options{})
		entries, events := booked(t, s)
		for _, id := range acknowledged {
			if entries[id] != 1 || events[id] != 1 {
				t.Errorf("%q was acknowledged, but is booked %d times and stored %d times", id, entries[id], events[id])
			}
		}
		if len(entries) != len(events) {
			t.Errorf("%d entries of %d events", len(entries), len(events))
		}
		must(t, s.Close())
		if findings := checkBooks(t, path); findings != nil {
			t.Errorf("check: %q", findings)
		}
	}
}
