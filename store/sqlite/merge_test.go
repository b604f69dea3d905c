package sqlite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/sqlite/check"
	"github.com/agora-relay/agora/store/sqlite/schema"
	"github.com/agora-relay/agora/store/storetest"
	"github.com/agora-relay/agora/thread"
)

// TestStoreMerges runs the suite of all stores with small batches and slices. STORE, tests 2: no result depends on how far
// the merge is.
func TestStoreMerges(t *testing.T) {
	sizes := []int{1, 3, 64}
	if testing.Short() {
		sizes = []int{3}
	}
	for _, size := range sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			open := func(ctx context.Context, place string, policy relay.Policy) (relay.Store, error) {
				return Open(ctx, filepath.Join(place, "agora.db"),
					Options{Policy: policy, Reserve: 1 << 16, mergeEvents: size, mergeSlice: 1})
			}
			storetest.Test(t, open)
			storetest.TestRemover(t, open)
		})
	}
}

// results are what a store answers to many queries.
type results struct {
	events  map[string][]relay.Seq
	threads map[string]string
}

// ask asks a store about everything that the keys 1 to 4 and the given threads have to do with.
func ask(t *testing.T, s *Store, threads []thread.Key, now time.Time) results {
	t.Helper()
	r := results{map[string][]relay.Seq{}, map[string]string{}}
	read := func(name string, f relay.Filter) {
		for _, q := range []relay.Query{
			{Filter: f, Now: now, Limit: 1000}, {Filter: f, Now: now, Limit: 1000, Backward: true, Removed: true},
			{Filter: f, Now: now, Limit: 1000, Expired: true, NewerThan: now.Add(-time.Hour)},
		} {
			page, err := s.Read(t.Context(), q)
			must(t, err)
			key := fmt.Sprint(name, q.Backward, q.Expired)
			r.events[key] = nil
			for _, e := range page.Events {
				r.events[key] = append(r.events[key], e.Seq)
			}
			q.MaxExamined, q.Limit = 2, 1
			var slow []relay.Seq
			for {
				page, err := s.Read(t.Context(), q)
				must(t, err)
				for _, e := range page.Events {
					slow = append(slow, e.Seq)
				}
				if q.After = page.Cursor; !page.More {
					break
				}
				if q.Backward {
					q.After, q.Until = relay.Cursor{}, page.Cursor.Seq+1
				}
			}
			if !q.Backward && !reflect.DeepEqual(slow, r.events[key]) {
				t.Errorf("%s in small steps: %v, want %v", key, slow, r.events[key])
			}
		}
	}
	read("all", relay.Filter{})
	for n := 1; n <= 4; n++ {
		did := key(n).DID()
		read(fmt.Sprint("to ", n), relay.Filter{Recipient: did})
		read(fmt.Sprint("to all or ", n), relay.Filter{Recipient: did, Broadcast: true})
		read(fmt.Sprint("by ", n), relay.Filter{Sender: did})
		read(fmt.Sprint("for ", n), relay.Filter{Viewer: relay.Viewer{Limited: true, DID: did}})
		read(fmt.Sprint("own of ", n), relay.Filter{Sender: did, Viewer: relay.Viewer{Limited: true, DID: did}})
	}
	read("for nobody", relay.Filter{Viewer: relay.Viewer{Limited: true}})
	for _, k := range threads {
		read("thread "+k.ID, relay.Filter{Thread: k.ID})
		read("thread of "+string(k.Client)+k.ID, relay.Filter{Thread: k.ID, Client: k.Client})
		for _, asked := range []thread.Key{k, {ID: k.ID}} {
			th, err := s.Thread(t.Context(), asked, now)
			r.threads[fmt.Sprint(asked)] = fmt.Sprint(inUTC(th), err)
			for n := 1; n <= 4; n++ {
				all, err := s.ThreadsOf(t.Context(), asked, key(n).DID(), now)
				var texts []string
				for _, th := range all {
					texts = append(texts, inUTC(th))
				}
				r.threads[fmt.Sprint(asked, n)] = fmt.Sprint(texts, err)
			}
		}
	}
	stats, err := s.Stats(t.Context())
	must(t, err)
	r.threads["states"] = fmt.Sprint(stats.Threads)
	return r
}

func inUTC(th thread.Thread) string {
	return fmt.Sprintf("%s %s %v", th.State, th.Agent, th.Transitions)
}

// load returns what the writer of a store finds for the ledger.
func load(t *testing.T, s *Store, w ledger.Wanted) (found ledger.Found) {
	t.Helper()
	must(t, s.task(t.Context(), func(writer *writer) (err error) { found, err = writer.Load(w); return err }))
	return found
}

// wantIntact checks a database that may be in use.
func wantIntact(t *testing.T, path string, now time.Time) {
	t.Helper()
	report, err := check.Database(t.Context(), path, check.Options{Now: now, Found: func(f check.Finding) { t.Error(f) }})
	if err != nil || report.Findings > 0 {
		t.Fatalf("check: %+v, %v", report, err)
	}
}

// copyDatabase copies the files of a database as a crash at this moment would leave them.
func copyDatabase(t *testing.T, path string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "agora.db")
	for _, suffix := range []string{"", "-wal"} {
		content, err := os.ReadFile(path + suffix)
		must(t, err)
		must(t, os.WriteFile(to+suffix, content, 0o600))
	}
	return to
}

// TestMergeStepByStep merges in slices of one row. Each slice first fails and is undone. After each slice the database is
// copied, as a crash would leave it, and opened. STORE, tests 1 to 4: the store and the copy answer as before, and each
// index has exactly its rows. In between, messages come, are removed, and a thread is ended.
func TestMergeStepByStep(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	s := openWith(t, path, Options{mergeSlice: 1})
	now := time.Now()
	post := func(by int, d envelope.Draft) relay.Seq {
		t.Helper()
		receipt, err := s.Append(t.Context(), signed(t, key(by), d))
		must(t, err)
		return receipt.Cursor.Seq
	}
	to := func(n int) didkey.DID { return key(n).DID() }
	ask1, offer := envelope.Request{RequestID: "r", Intent: "translate"}, envelope.Offer{RequestID: "r"}
	first := post(1, envelope.Draft{Thread: "open", Payload: ask1})
	post(2, envelope.Draft{Thread: "open", Recipient: to(1), Payload: offer})
	post(3, envelope.Draft{Thread: "open", Recipient: to(1), Payload: offer})
	post(1, envelope.Draft{Thread: "open", Recipient: to(3), Payload: envelope.Accept{RequestID: "r"}})
	post(1, envelope.Draft{Thread: "same", Recipient: to(2), Payload: ask1})
	post(4, envelope.Draft{Thread: "same", Payload: ask1})
	post(2, envelope.Draft{Thread: "same", Recipient: to(1), Payload: offer})
	post(2, envelope.Draft{Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{{ID: "translate"}}}})
	threads := []thread.Key{{ID: "open", Client: to(1)}, {ID: "same", Client: to(1)}, {ID: "same", Client: to(4)},
		{ID: "late", Client: to(2)}, {ID: "none", Client: to(2)}}
	wanted := ledger.Wanted{Threads: threads, Open: []string{"open", "same", "late"}, Oldest: []string{"same", "late"}}
	for n := 1; n <= 4; n++ {
		for _, id := range []string{"open", "same", "late"} {
			wanted.Of = append(wanted.Of, ledger.Participation{ID: id, Party: to(n)})
		}
		wanted.Inboxes = append(wanted.Inboxes, ledger.Inbox{Recipient: to(n), Network: ledger.AllNetworks, Now: now})
	}
	for _, e := range events(t, s) {
		m, err := envelope.Parse(e.Body, 0)
		must(t, err)
		wanted.Messages = append(wanted.Messages, ledger.MessageKey{Sender: m.Sender.ID, ID: m.ID})
	}
	failure := errors.New("this slice fails")
	slice := func(fails error) (more bool) {
		err := s.task(t.Context(), func(w *writer) error {
			return w.transact(func() (err error) {
				if more, err = w.mergeAny(1); err != nil {
					return err
				}
				return fails
			})
		})
		if !errors.Is(err, fails) {
			t.Fatal(err)
		}
		return more
	}
	merged := func(s *Store) (n relay.Seq) {
		var stored int64
		must(t, s.readDB.QueryRowContext(t.Context(), "SELECT "+schema.Merged).Scan(&stored))
		must(t, s.task(t.Context(), func(w *writer) error { n = w.merged; return nil }))
		if n != relay.Seq(stored) || n > relay.Seq(s.head.Load()) {
			t.Errorf("%d events are merged, %d are said to be, the last one is %d", n, stored, s.head.Load())
		}
		return n
	}
	steps := 0
	for last, more := relay.Seq(0), true; more; steps++ {
		switch steps {
		case 5:
			post(2, envelope.Draft{Thread: "late", Recipient: to(4), Payload: ask1})
			post(3, envelope.Draft{Thread: "open", Recipient: to(1), Payload: envelope.Result{RequestID: "r", Status: "success"}})
		case 20:
			_, err := s.Remove(t.Context(), []relay.Seq{first, first + 6}, now)
			must(t, err)
		case 40:
			must(t, s.EndThread(t.Context(), threads[2], now))
		}
		want, wantFound := ask(t, s, threads, now), load(t, s, wanted)
		slice(failure)
		more = slice(nil)
		if now := merged(s); now < last {
			t.Errorf("step %d: merged went from %d to %d", steps, last, now)
		} else {
			last = now
		}
		if testing.Short() && steps%4 > 0 && more {
			continue
		}
		wantIntact(t, path, now)
		copied := copyDatabase(t, path)
		crashed := openAt(t, copied)
		for name, s := range map[string]*Store{"the store": s, "its copy": crashed} {
			if got := ask(t, s, threads, now); !reflect.DeepEqual(got, want) {
				t.Fatalf("step %d: %s answers\n%v, want\n%v", steps, name, got, want)
			}
			got := load(t, s, wanted)
			got.End, wantFound.End = relay.Cursor{}, relay.Cursor{}
			if text := found(got); text != found(wantFound) {
				t.Fatalf("step %d: %s finds\n%s, want\n%s", steps, name, text, found(wantFound))
			}
		}
		merged(crashed)
		must(t, crashed.Close())
	}
	if last := merged(s); steps < 60 || last != relay.Seq(s.head.Load()) {
		t.Errorf("%d events were merged in %d steps", last, steps)
	}
}

// found returns a text of f that does not depend on the order of its sets.
func found(f ledger.Found) string {
	messages, threads := map[string]string{}, map[string]string{}
	for _, m := range f.Messages {
		n := int64(0)
		if m.Thread != nil {
			n = m.Thread.Number
		}
		messages[fmt.Sprint(m.MessageKey)] = fmt.Sprint(m.Seq, m.Expires, m.Removed, len(m.Body), n)
	}
	row := func(r ledger.Row) string { return fmt.Sprint(r.Number, r.Key, r.Due, r.Open, r.State, len(r.Record)) }
	for _, r := range f.Threads {
		threads[fmt.Sprint(r.Key)] = row(r)
	}
	text := fmt.Sprint(messages, threads, f.Inboxes)
	for _, lists := range [][][]ledger.Row{f.Of, f.Open, f.Oldest} {
		for _, list := range lists {
			for _, r := range list {
				text += "\n" + row(r)
			}
			text += "\n-"
		}
	}
	return text
}

// TestRolledBackEventsLeaveTheTail checks that nothing of an undone group is found later. STORE, tests 6.
func TestRolledBackEventsLeaveTheTail(t *testing.T) {
	s := openNew(t)
	appendAll(t, s, []relay.Entry{signed(t, key(1), envelope.Draft{Thread: "a", Payload: envelope.Request{RequestID: "r", Intent: "x"}})})
	failure := errors.New("no")
	undone := []relay.Entry{
		signed(t, key(2), envelope.Draft{Thread: "a", Recipient: key(1).DID(), Payload: envelope.Offer{RequestID: "r"}}),
		signed(t, key(2), envelope.Draft{Thread: "b", Recipient: key(3).DID(), Payload: envelope.Request{RequestID: "r", Intent: "x"}}),
	}
	_, err := s.Update(t.Context(), func(tx relay.StoreTx) error {
		for _, e := range undone {
			if _, err := tx.Append(e); err != nil {
				return err
			}
		}
		return failure
	})
	if !errors.Is(err, failure) {
		t.Fatal(err)
	}
	if n := s.tail.len(); n != 1 {
		t.Errorf("%d events are in the tail, want 1", n)
	}
	p := s.tail.growing
	if len(p.senders) != 1 || len(p.recipients) != 1 || len(p.threads) != 1 || len(p.roles) != 2 || len(p.changed) != 1 ||
		len(p.sent) != 1 || !p.changed[1].open {
		t.Errorf("the tail has %+v", p)
	}
	for _, e := range undone {
		if seq, err := s.Known(t.Context(), e.Envelope.Sender.ID, e.Envelope.ID); seq != 0 || err != nil {
			t.Errorf("%d, %v", seq, err)
		}
	}
	appendAll(t, s, undone)
	wantIntact(t, s.path, time.Now())
}

// TestMergeBeginsWithCommittedEvents checks that a merge never has events whose transaction is undone. Their numbers are
// given to other events, which must not count as merged.
func TestMergeBeginsWithCommittedEvents(t *testing.T) {
	s := openNew(t)
	failure := errors.New("no")
	err := s.task(t.Context(), func(w *writer) error {
		return w.transact(func() error {
			if _, _, err := w.ledger.Append(w, []relay.Entry{request(t, key(1), key(2).DID())}); err != nil {
				return err
			}
			if more, err := w.mergeAny(1); !more || err != nil {
				t.Errorf("%v, %v: the merge must wait for the commit", more, err)
			}
			return failure
		})
	})
	if !errors.Is(err, failure) {
		t.Fatal(err)
	}
	appendAll(t, s, []relay.Entry{request(t, key(3), key(4).DID())})
	for more := true; more; {
		write(t, s, func(w *writer) (err error) {
			more, err = w.mergeAny(100)
			return err
		})
	}
	wantIntact(t, s.path, time.Now())
}

// TestMergesKeepUp checks that the tail never has more than two batches.
func TestMergesKeepUp(t *testing.T) {
	const batch = 50
	s := openWith(t, filepath.Join(t.TempDir(), "agora.db"), Options{mergeEvents: batch})
	most := 0
	for i := range 40 {
		var entries []relay.Entry
		for j := range 13 {
			entries = append(entries, request(t, key(i%5), key(5+j).DID()))
		}
		for _, err := range appendTogether(t, s, entries) {
			must(t, err)
		}
		must(t, s.task(t.Context(), func(*writer) error { most = max(most, s.tail.len()); return nil }))
	}
	if most > 2*batch+13 || most < batch {
		t.Errorf("the tail had %d events, want %d to %d", most, batch, 2*batch+13)
	}
	wantIntact(t, s.path, time.Now())
}

// TestEventOrders checks that the order in which a merge fills an index is that of the index's columns. Otherwise a
// slice would touch more pages, and nothing else would show it.
func TestEventOrders(t *testing.T) {
	columns := map[string]func(a, b *tailRow) int{
		"sender":    func(a, b *tailRow) int { return cmp.Compare(a.sender, b.sender) },
		"recipient": func(a, b *tailRow) int { return cmp.Compare(a.recipient, b.recipient) },
		"id":        func(a, b *tailRow) int { return cmp.Compare(a.id, b.id) },
		"thread":    func(a, b *tailRow) int { return cmp.Compare(a.thread, b.thread) },
		"ts":        func(a, b *tailRow) int { return cmp.Compare(a.ts, b.ts) },
		"forget":    func(a, b *tailRow) int { return cmp.Compare(a.forget, b.forget) },
		"seq":       func(a, b *tailRow) int { return cmp.Compare(a.seq, b.seq) },
	}
	random := rand.New(rand.NewPCG(1, 2))
	rows := make([]tailRow, 60)
	for i := range rows {
		n := func() int64 { return random.Int64N(3) }
		rows[i] = tailRow{seq: relay.Seq(i + 1), sender: n(), recipient: n(), thread: n(), ts: n(), forget: n(),
			id: fmt.Sprint("id", i)}
	}
	var order func(a, b *tailRow) int
	for i, x := range schema.Indexes {
		if eventOrders[i] != nil {
			order = eventOrders[i]
		}
		for a := range rows {
			for b := range rows {
				want := 0
				for name := range strings.SplitSeq(x.Columns, ", ") {
					want = cmp.Or(want, columns[name](&rows[a], &rows[b]))
					if want != 0 || name == "seq" {
						break // seq is unique, so later columns do not matter
					}
				}
				if got := order(&rows[a], &rows[b]); got != want {
					t.Fatalf("%s: %+v and %+v compare as %d, want %d", x.Table, rows[a], rows[b], got, want)
				}
			}
		}
	}
}
