package relay_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// ids lists what a page holds.
func ids(page relay.Page) string {
	var all []string
	for _, e := range page.Events {
		all = append(all, e.ID)
	}
	return strings.Join(all, " ")
}

// mail posts a REQUEST to somebody.
func mail(t *testing.T, r *relay.Relay, to didkey.DID, id string, ts time.Time, ttl time.Duration) {
	t.Helper()
	post(t, r, sign(t, key(t), envelope.Draft{ID: id, Payload: request, Thread: id, Recipient: to, TS: ts, TTL: ttl}))
}

func TestSinceThatIsAnExpiredEventIsABookmarkStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		me := key(t).DID()
		ahead := time.Now().Add(2 * time.Minute)
		mail(t, r, me, "short", ahead, time.Second)
		mail(t, r, me, "long", time.Now(), time.Hour) // dated before the bookmark, and arrived before it too
		time.Sleep(3 * time.Minute)
		page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: me}, Since: ahead, Limit: 10})
		if ids(page) != "long" {
			t.Errorf("got %q", ids(page))
		}
	})
}

// A reader's clock reading is a bookmark too if somebody's ts is the same (PROTOCOL §9); begun a second early, it is none.
func TestFirstSinceThatIsSomebodysTS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		me, began := key(t).DID(), time.Now()
		time.Sleep(10 * time.Millisecond)
		mail(t, r, me, "first", time.Now(), time.Hour)
		mail(t, r, me, "slow", began, time.Hour)
		time.Sleep(10 * time.Millisecond)
		mail(t, r, me, "last", time.Now(), time.Hour)
		for since, want := range map[time.Time]string{began: "last", began.Add(-time.Second): "first slow last"} {
			if page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: me}, Since: since, Limit: 10}); ids(page) != want {
				t.Errorf("since %v: got %q, want %q", since.Sub(began), ids(page), want)
			}
		}
	})
}

func TestSiblingsOfABookmarkSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		me := key(t).DID()
		ts := time.Now()
		began := time.Now()
		mail(t, r, me, "a", ts, time.Hour)
		go func() {
			time.Sleep(300 * time.Millisecond)
			mail(t, r, me, "b", ts, time.Hour)
			time.Sleep(500 * time.Millisecond)
			mail(t, r, me, "c", ts, time.Hour)
		}()
		// b is one second old at 1.3 s, but by then c has come; its second is over at 1.8 s.
		page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: me}, Since: ts, Wait: time.Minute, Limit: 1})
		if took := time.Since(began); ids(page) != "b c" || took != 1800*time.Millisecond {
			t.Errorf("got %q after %v", ids(page), took)
		}
		// Nothing new: they come again when the wait is over, all at once, and not sooner.
		began = time.Now()
		page = poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: me}, Since: ts, Wait: time.Minute, Limit: 1})
		if took := time.Since(began); ids(page) != "b c" || took != time.Minute {
			t.Errorf("then got %q after %v", ids(page), took)
		}
	})
}

func TestBroadcastsWakeThoseWhoWantThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		me := key(t).DID()
		for _, bySince := range []bool{false, true} {
			p := relay.Poll{Filter: relay.Filter{Recipient: me, Broadcast: true}, Wait: time.Minute, Limit: 10}
			if bySince {
				p.Since = time.Now()
			}
			id := fmt.Sprint("news-", bySince)
			go func() {
				time.Sleep(3 * time.Second)
				post(t, r, sign(t, key(t), envelope.Draft{ID: id, Payload: request, Thread: id}))
			}()
			began := time.Now()
			page := poll(t, r, p)
			if took := time.Since(began); ids(page) != id || took != 3*time.Second {
				t.Errorf("by since %v: got %q after %v", bySince, ids(page), took)
			}
			synctest.Wait() // the poll can be answered before the post is
		}
	})
}

func TestHostileThreadsStopNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		_, err := r.Post(t.Context(), local, sign(t, key(t), envelope.Draft{Thread: "big", Payload: envelope.Request{RequestID: strings.Repeat("x", 128), Intent: "e"}}).Canonical())
		if err != nil {
			t.Errorf("a request_id of 128 bytes: %v", err)
		}
		// Sixty-five strangers were there before with the same id; Alice's own messages find her thread all the same.
		alice := key(t)
		for range 65 {
			post(t, r, sign(t, key(t), envelope.Draft{Thread: "req-1", Payload: envelope.Request{RequestID: "req-1", Intent: "e"}}))
		}
		post(t, r, sign(t, alice, envelope.Draft{Thread: "req-1", Payload: envelope.Request{RequestID: "req-1", Intent: "e"}}))
		receipt := post(t, r, sign(t, alice, envelope.Draft{Thread: "req-1", Payload: envelope.Cancel{}}))
		if receipt.Thread.Client != alice.DID() || receipt.State != thread.Failed {
			t.Errorf("her CANCEL moved %+v to %s", receipt.Thread, receipt.State)
		}
	})
}

// counting is a store that counts what is read from it.
type counting struct {
	relay.Store
	reads atomic.Int64
	ofAll atomic.Int64 // of them: of what has expired too, whatever its ts

	took time.Duration // that it says it worked on each

	refused func() // called once, after a message was refused
}

func (s *counting) Append(ctx context.Context, e relay.Entry) (relay.Receipt, error) {
	receipt, err := s.Store.Append(ctx, e)
	if f := s.refused; err != nil && f != nil {
		s.refused = nil
		f()
	}
	return receipt, err
}

func (s *counting) Agents(ctx context.Context, q relay.AgentQuery) (relay.AgentPage, error) {
	page, err := s.Store.Agents(ctx, q)
	page.Took = s.took
	return page, err
}

func (s *counting) ThreadsOf(ctx context.Context, k thread.Key, party didkey.DID, now time.Time) ([]thread.Thread, error) {
	time.Sleep(s.took) // by the test's clock: this one is timed by its caller
	return s.Store.ThreadsOf(ctx, k, party, now)
}

func (s *counting) Read(ctx context.Context, q relay.Query) (relay.Page, error) {
	s.reads.Add(1)
	if q.Expired && q.TS.IsZero() {
		s.ofAll.Add(1)
	}
	page, err := s.Store.Read(ctx, q)
	page.Took = s.took
	return page, err
}

// A flood of messages with the bookmark's own timestamp holds a poll up until its time is over, but does not make it
// search the store for each.
func TestEqualTimestampsAreNotSearchedEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store counting
		r := start(t, relay.Config{Store: &store})
		me, ts := key(t).DID(), time.Now()
		mail(t, r, me, "first", ts, time.Hour)
		var flood sync.WaitGroup
		flood.Go(func() {
			for n := range 100 {
				time.Sleep(100 * time.Millisecond)
				mail(t, r, me, fmt.Sprint("copy-", n), ts, time.Hour)
			}
		})
		store.reads.Store(0)
		page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: me}, Since: ts, Wait: 30 * time.Second, Limit: 1000})
		if took := time.Since(ts); len(page.Events) != 100 || took != 11*time.Second {
			t.Errorf("%d events after %v, want 100 when the last is a second old", len(page.Events), took)
		}
		if n := store.reads.Load(); n > 8 {
			t.Errorf("the store was asked %d times", n)
		}
		flood.Wait()
	})
}

// TestTimeoutIsTold holds how late a notice may be: one round of the sweeper.
func TestTimeoutIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		time.Sleep(300 * time.Millisecond) // not when the sweeper comes
		client := key(t)
		began := time.Now()
		posted := post(t, r, sign(t, client, envelope.Draft{Payload: request, Thread: "t1"}))
		time.Sleep(thread.DefaultPendingTimeout - time.Minute/2)
		page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: client.DID()}, Cursor: posted.Cursor, Wait: time.Minute, Limit: 1})
		late := time.Since(began) - thread.DefaultPendingTimeout
		if len(page.Events) != 1 || late < 0 || late > time.Second {
			t.Errorf("%d notices came %v after the thread's end, want one within a second", len(page.Events), late)
		}
	})
}

// Mail that expires at once fills no inbox and is remembered for half an hour. However much of it lies behind a
// bookmark, it hides nothing: a look that counted it would end before the mail that is to be delivered.
func TestExpiredMailHidesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store counting
		r := start(t, relay.Config{Store: &store})
		me, ts := key(t).DID(), time.Now()
		mail(t, r, me, "first", ts, time.Hour)
		time.Sleep(time.Millisecond)
		for n := range 50 {
			mail(t, r, me, fmt.Sprint("short-", n), time.Now(), time.Second)
		}
		time.Sleep(2 * time.Second)
		mail(t, r, me, "friend", time.Now(), time.Hour)
		for name, since := range map[string]time.Time{"a bookmark": ts, "another instant": ts.Add(-time.Minute)} {
			page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: me}, Since: since, Wait: time.Second, Limit: 100})
			if got := ids(page); !strings.HasSuffix(got, "friend") || strings.Contains(got, "short") {
				t.Errorf("since %s: got %q", name, got)
			}
		}
		if n := store.ofAll.Load(); n > 0 {
			t.Errorf("%d looks counted what has expired", n)
		}
	})
}

// Strangers who copied the id of a thread before it began, forty of them naming the agent too, keep nobody from saying
// what belongs to it, whether he names his counterpart or not.
func TestCopiesOfAnIDShadowNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		alice, bob := key(t), key(t)
		for n := range 40 {
			d := envelope.Draft{Thread: "job-1", Payload: request}
			if n%2 == 0 {
				d.Recipient = bob.DID()
			} else {
				d.Recipient = key(t).DID()
			}
			post(t, r, sign(t, key(t), d))
		}
		for _, step := range []struct {
			by didkey.Key
			d  envelope.Draft
		}{
			{alice, envelope.Draft{Payload: request}},
			{bob, envelope.Draft{Payload: envelope.Offer{RequestID: "r1"}, Recipient: alice.DID()}},
			{alice, envelope.Draft{Payload: envelope.Accept{RequestID: "r1"}, Recipient: bob.DID()}},
			{bob, envelope.Draft{Payload: envelope.Result{RequestID: "r1", Status: "success"}}},
		} {
			step.d.Thread = "job-1"
			receipt := post(t, r, sign(t, step.by, step.d))
			if receipt.Thread.Client != alice.DID() {
				t.Errorf("%T moved the thread of %s", step.d.Payload, receipt.Thread.Client)
			}
		}
	})
}
