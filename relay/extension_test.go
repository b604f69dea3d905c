package relay_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/thread"
)

// tasksExtension is a minimal gateway. It opens threads for tasks.
var tasksExtension = relay.Extension{
	Name:       "tasks",
	Migrations: []string{"CREATE TABLE tasks_task (name TEXT PRIMARY KEY, message TEXT NOT NULL)"},
}

func startTasks(t *testing.T, c relay.Config) *relay.Relay {
	t.Helper()
	o := sqlite.Options{Reserve: 1 << 22, Extensions: []relay.Extension{tasksExtension}}
	r, stop := runOver(t, filepath.Join(t.TempDir(), "agora.db"), o, c)
	t.Cleanup(stop)
	return r
}

// beginTask opens a thread for a task and inserts the row of the task, in one transaction.
func beginTask(
	t *testing.T, r *relay.Relay, from relay.Peer, e *envelope.Envelope, name string, terms thread.Terms,
) (receipt relay.Receipt, err error) {
	t.Helper()
	checked, err := r.Check(from, e.Canonical())
	if err != nil {
		t.Fatal(err)
	}
	err = r.Update(t.Context(), from, func(tx relay.ExtTx) error {
		if receipt, err = tx.Append(checked, terms); err != nil {
			return err
		}
		_, err = tx.Exec("INSERT INTO tasks_task (name, message) VALUES (?, ?)", name, receipt.ID)
		return err
	})
	return receipt, err
}

func taskNames(t *testing.T, r *relay.Relay) (all []string) {
	t.Helper()
	err := r.View(t.Context(), local, func(q relay.Querier) error {
		return q.Query(func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			all = append(all, name)
			return err
		}, "SELECT name FROM tasks_task ORDER BY name")
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestUpdateIsDelivered checks that an event of an update wakes a waiting poll, and that its thread ends by its own
// terms, without notices.
func TestUpdateIsDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startTasks(t, relay.Config{})
		alice, bob := key(t), key(t)
		woken := make(chan relay.Page, 1)
		go func() {
			woken <- poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: bob.DID()}, Limit: 10, Wait: time.Minute})
		}()
		synctest.Wait()
		e := sign(t, alice, envelope.Draft{Payload: request, Thread: "t", Recipient: bob.DID()})
		receipt, err := beginTask(t, r, local, e, "one", thread.Terms{PendingTimeout: time.Hour, Quiet: true})
		if err != nil || receipt.State != thread.Pending {
			t.Fatalf("%+v, %v", receipt, err)
		}
		if page := <-woken; len(page.Events) != 1 || page.Events[0].ID != e.ID {
			t.Errorf("the poll got %+v", page)
		}
		post(t, r, sign(t, alice, envelope.Draft{Payload: request, Thread: "u", Recipient: bob.DID()}))
		time.Sleep(59 * time.Minute)
		state := func(id string) thread.State {
			th, err := r.Thread(t.Context(), local, thread.Key{Client: alice.DID(), ID: id})
			if err != nil {
				t.Fatal(err)
			}
			return th.Thread.State
		}
		if state("t") != thread.Pending || state("u") != thread.Failed {
			t.Errorf("after 59 minutes: %s by its own terms, and %s by the rules", state("t"), state("u"))
		}
		time.Sleep(2 * time.Minute)
		if state("t") != thread.Failed {
			t.Errorf("after an hour: %s", state("t"))
		}
		page := poll(t, r, relay.Poll{Filter: relay.Filter{Type: envelope.TypeError}, Limit: 10})
		for _, e := range page.Events {
			if m, err := envelope.Parse(e.Body, e.Size); err != nil || m.Thread == "t" {
				t.Errorf("a notice of %v, %v", m, err)
			}
		}
	})
}

// TestUpdateIsAllOrNothing checks that an update that is refused, or panics, leaves neither a message nor a row.
func TestUpdateIsAllOrNothing(t *testing.T) {
	r := startTasks(t, relay.Config{})
	alice := key(t)
	if _, err := beginTask(t, r, local, sign(t, alice, envelope.Draft{Payload: request, Thread: "t"}), "one",
		thread.Terms{}); err != nil {
		t.Fatal(err)
	}
	again := sign(t, alice, envelope.Draft{Payload: request, Thread: "u"})
	if _, err := beginTask(t, r, local, again, "one", thread.Terms{}); err == nil {
		t.Error("two tasks with the same name were stored")
	}
	func() {
		defer func() {
			if p := recover(); p != "oh" {
				t.Errorf("recovered %v", p)
			}
		}()
		_ = r.Update(t.Context(), local, func(tx relay.ExtTx) error {
			if _, err := tx.Exec("INSERT INTO tasks_task (name, message) VALUES ('two', '')"); err != nil {
				return err
			}
			panic("oh")
		})
	}()
	if all := taskNames(t, r); !slices.Equal(all, []string{"one"}) {
		t.Errorf("tasks: %q", all)
	}
	if _, err := r.Thread(t.Context(), local, thread.Key{Client: alice.DID(), ID: "u"}); err == nil {
		t.Error("the thread of a refused update exists")
	}
	post(t, r, again)
}

// TestUpdateAcceptsOnlyCheckedEnvelopes checks that an update can only append an envelope that Check has returned.
func TestUpdateAcceptsOnlyCheckedEnvelopes(t *testing.T) {
	r := startTasks(t, relay.Config{})
	e := sign(t, key(t), envelope.Draft{Payload: request})
	forged := []byte(string(e.Canonical()[:len(e.Canonical())-1]) + ` }`)
	forged[20]++
	if _, err := r.Check(local, forged); err == nil {
		t.Error("Check accepts a forged body")
	}
	for _, bad := range []struct {
		checked relay.Checked
		terms   thread.Terms
	}{{}, {mustCheck(t, r, e), thread.Terms{ActiveTimeout: -1}}} {
		err := r.Update(t.Context(), local, func(tx relay.ExtTx) error {
			_, err := tx.Append(bad.checked, bad.terms)
			return err
		})
		if err == nil {
			t.Errorf("%+v was appended", bad)
		}
	}
}

// TestUpdateAcceptsOnlyFreshEnvelopes checks that an envelope is refused if its ts became stale after Check. Otherwise
// its id could be used again after the store has forgotten it.
func TestUpdateAcceptsOnlyFreshEnvelopes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startTasks(t, relay.Config{})
		checked := mustCheck(t, r, sign(t, key(t), envelope.Draft{Payload: request}))
		update := func() error {
			return r.Update(t.Context(), local, func(tx relay.ExtTx) error {
				_, err := tx.Append(checked, thread.Terms{})
				return err
			})
		}
		time.Sleep(time.Minute)
		if err := update(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Minute)
		wantCode(t, update(), envelope.CodeStaleTimestamp)
	})
}

func mustCheck(t *testing.T, r *relay.Relay, e *envelope.Envelope) relay.Checked {
	t.Helper()
	c, err := r.Check(local, e.Canonical())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestUpdatesAreCharged checks that the time of the writer is charged to the address of an update, and the time of a
// read to the address of a view.
func TestUpdatesAreCharged(t *testing.T) {
	r := startTasks(t, relay.Config{Limits: relay.Limits{
		PostsPerAddress: relay.Rate{PerSecond: 0.001, Burst: 3}, ReadsPerAddress: relay.Rate{PerSecond: 0.001, Burst: 3},
	}})
	slow := from("203.0.113.7")
	if err := errors.Join(r.Gate().Admit(slow, admission.Posts), r.Gate().Admit(slow, admission.Reads)); err != nil {
		t.Fatal(err)
	}
	busy := func() { time.Sleep(50 * time.Millisecond) }
	update := func(p relay.Peer) error {
		return r.Update(t.Context(), p, func(relay.ExtTx) error { busy(); return nil })
	}
	if err := update(slow); err != nil {
		t.Fatal(err)
	}
	wantLimit(t, update(slow), envelope.LimitPostsPerAddress)
	view := func(p relay.Peer) error {
		return r.View(t.Context(), p, func(relay.Querier) error { busy(); return nil })
	}
	if err := view(slow); err != nil {
		t.Fatal(err)
	}
	wantLimit(t, view(slow), envelope.LimitReadsPerAddress)
	if err := errors.Join(update(from("198.51.100.1")), view(from("198.51.100.1"))); err != nil {
		t.Errorf("another address: %v", err)
	}
}

// TestUpdateIsRefused checks that a relay refuses updates if its store does not support extensions, or while it shuts
// down.
func TestUpdateIsRefused(t *testing.T) {
	plain, err := relay.New(t.Context(), relay.Config{Store: &serialStore{}, Key: key(t)})
	if err != nil {
		t.Fatal(err)
	}
	nothing := func(relay.ExtTx) error { t.Error("a refused update has run"); return nil }
	if err := plain.Update(t.Context(), local, nothing); err == nil {
		t.Error("a store without extensions accepts an update")
	}
	if err := plain.View(t.Context(), local, nil); err == nil {
		t.Error("a store without extensions accepts a view")
	}
	r := startTasks(t, relay.Config{})
	r.Drain()
	wantCode(t, r.Update(t.Context(), local, nothing), envelope.CodeUnavailable)
	_, err = r.Check(local, nil)
	wantCode(t, err, envelope.CodeUnavailable)
}

// TestWatchOfExtensions checks that Watch passes on both stored and new events.
func TestWatchOfExtensions(t *testing.T) {
	r := startTasks(t, relay.Config{})
	alice := key(t)
	before := post(t, r, sign(t, alice, envelope.Draft{Payload: request, Thread: "t"}))
	ctx, stop := context.WithCancel(t.Context())
	seen := make(chan didkey.DID, 2)
	ended := make(chan error, 1)
	go func() {
		ended <- r.Watch(ctx, relay.Cursor{}, func(posted []relay.Posted) {
			for _, p := range posted {
				seen <- p.Envelope.Sender.ID
			}
		})
	}()
	if <-seen != alice.DID() {
		t.Error("the first event is not alice's")
	}
	bob := key(t)
	if after := post(t, r, sign(t, bob, envelope.Draft{
		Payload: request, Thread: "u",
	})); after.Cursor.Seq <= before.Cursor.Seq {
		t.Error("the later event does not have the higher cursor")
	}
	if <-seen != bob.DID() {
		t.Error("the second event is not bob's")
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Watch ended with %v", err)
	}
}
