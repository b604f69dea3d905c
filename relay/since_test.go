package relay_test

import (
	"context"
	"fmt"
	"slices"
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

// ids returns the ids of the events on a page, separated by spaces.
func ids(page relay.Page) string {
	var all []string
	for _, e := range page.Events {
		all = append(all, e.ID)
	}
	return strings.Join(all, " ")
}

// postTo posts a REQUEST with this recipient.
func postTo(t *testing.T, r *relay.Relay, to didkey.DID, id string, ts time.Time, ttl time.Duration) {
	t.Helper()
	post(t, r, sign(t, key(t), envelope.Draft{ID: id, Payload: request, Thread: id, Recipient: to, TS: ts, TTL: ttl}))
}

func TestSinceOfExpiredEventIsABookmark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		me := key(t).DID()
		ahead := time.Now().Add(2 * time.Minute)
		postTo(t, r, me, "short", ahead, time.Second)
		postTo(t, r, me, "long", time.Now(), time.Hour) // its ts and its arrival are both before the bookmark
		time.Sleep(3 * time.Minute)
		page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: me}, Since: ahead, Limit: 10})
		if ids(page) != "long" {
			t.Errorf("got %q", ids(page))
		}
	})
}

// TestFirstSinceEqualToAnEventTS checks PROTOCOL §9: the first since of a reader, taken from its clock, is a bookmark
// if an event has the same ts. A since that is a second earlier is not.
func TestFirstSinceEqualToAnEventTS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		me, began := key(t).DID(), time.Now()
		time.Sleep(10 * time.Millisecond)
		postTo(t, r, me, "first", time.Now(), time.Hour)
		postTo(t, r, me, "slow", began, time.Hour)
		time.Sleep(10 * time.Millisecond)
		postTo(t, r, me, "last", time.Now(), time.Hour)
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
		postTo(t, r, me, "a", ts, time.Hour)
		go func() {
			time.Sleep(300 * time.Millisecond)
			postTo(t, r, me, "b", ts, time.Hour)
			time.Sleep(500 * time.Millisecond)
			postTo(t, r, me, "c", ts, time.Hour)
		}()
		// At 1.3 s, b is one second old, but c has arrived in between. At 1.8 s, c is one second old.
		page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: me}, Since: ts, Wait: time.Minute, Limit: 1})
		if took := time.Since(began); ids(page) != "b c" || took != 1800*time.Millisecond {
			t.Errorf("got %q after %v", ids(page), took)
		}
		// No new events arrive, so both are delivered again: at the end of the wait, together, and not earlier.
		began = time.Now()
		page = poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: me}, Since: ts, Wait: time.Minute, Limit: 1})
		if took := time.Since(began); ids(page) != "b c" || took != time.Minute {
			t.Errorf("then got %q after %v", ids(page), took)
		}
	})
}

func TestBroadcastsWakeMatchingPolls(t *testing.T) {
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
			synctest.Wait() // the poll may be answered before the post is
		}
	})
}

func TestHostileThreadsDoNotBlockOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		_, err := r.Post(t.Context(), local, sign(t, key(t), envelope.Draft{Thread: "big",
			Payload: envelope.Request{RequestID: strings.Repeat("x", 128), Intent: "e"}}).Canonical())
		if err != nil {
			t.Errorf("a request_id of 128 bytes: %v", err)
		}
		// 65 strangers have used the same id before. Alice's messages must still find her own thread.
		alice := key(t)
		for range 65 {
			post(t, r, sign(t, key(t), envelope.Draft{Thread: "req-1",
				Payload: envelope.Request{RequestID: "req-1", Intent: "e"}}))
		}
		post(t, r, sign(t, alice, envelope.Draft{Thread: "req-1",
			Payload: envelope.Request{RequestID: "req-1", Intent: "e"}}))
		receipt := post(t, r, sign(t, alice, envelope.Draft{Thread: "req-1", Payload: envelope.Cancel{}}))
		if receipt.Thread.Client != alice.DID() || receipt.State != thread.Failed {
			t.Errorf("Alice's CANCEL moved %+v to %s", receipt.Thread, receipt.State)
		}
	})
}

// countingStore is a store that counts the reads from it.
type countingStore struct {
	relay.Store
	reads        atomic.Int64
	expiredReads atomic.Int64 // those that include expired events with any ts

	took     time.Duration // reported for each read
	examines func() int    // the most events that each read with a MaxExamined examines; nil: as the query says

	refused func() // called once, after a message was refused

	late time.Duration // reads show no event that is younger
}

func (s *countingStore) Append(ctx context.Context, e relay.Entry) (relay.Receipt, error) {
	receipt, err := s.Store.Append(ctx, e)
	if f := s.refused; err != nil && f != nil {
		s.refused = nil
		f()
	}
	return receipt, err
}

func (s *countingStore) Agents(ctx context.Context, q relay.AgentQuery) (relay.AgentPage, error) {
	page, err := s.Store.Agents(ctx, q)
	page.Took = s.took
	return page, err
}

func (s *countingStore) ThreadsOf(
	ctx context.Context, k thread.Key, party didkey.DID, now time.Time,
) ([]thread.Thread, error) {
	time.Sleep(s.took) // the caller measures this time, by the test's clock
	return s.Store.ThreadsOf(ctx, k, party, now)
}

func (s *countingStore) Read(ctx context.Context, q relay.Query) (relay.Page, error) {
	s.reads.Add(1)
	if q.Expired && q.TS.IsZero() {
		s.expiredReads.Add(1)
	}
	if s.examines != nil && q.MaxExamined > 0 {
		q.MaxExamined = s.examines()
	}
	page, err := s.Store.Read(ctx, q)
	page.Took = s.took
	if s.late > 0 {
		page.Events = slices.DeleteFunc(page.Events, func(e relay.Event) bool { return time.Since(e.Received) < s.late })
	}
	return page, err
}

// TestEqualTimestampsCauseFewReads posts many messages with the bookmark's own ts. They delay the poll until they have
// settled, but the poll does not read the store for each of them.
func TestEqualTimestampsCauseFewReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store countingStore
		r := start(t, relay.Config{Store: &store})
		me, ts := key(t).DID(), time.Now()
		postTo(t, r, me, "first", ts, time.Hour)
		var flood sync.WaitGroup
		flood.Go(func() {
			for n := range 100 {
				time.Sleep(100 * time.Millisecond)
				postTo(t, r, me, fmt.Sprint("copy-", n), ts, time.Hour)
			}
		})
		store.reads.Store(0)
		page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: me}, Since: ts, Wait: 30 * time.Second, Limit: 1000})
		if took := time.Since(ts); len(page.Events) != 100 || took != 11*time.Second {
			t.Errorf("%d events after %v, want 100 when the last is a second old", len(page.Events), took)
		}
		if n := store.reads.Load(); n > 8 {
			t.Errorf("the store was read %d times", n)
		}
		flood.Wait()
	})
}

// TestTimeoutNoticeIsPrompt checks that the notice of a timeout comes with the next sweep, a second later at most.
func TestTimeoutNoticeIsPrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		time.Sleep(300 * time.Millisecond) // so that the thread does not end just before a sweep
		client := key(t)
		began := time.Now()
		posted := post(t, r, sign(t, client, envelope.Draft{Payload: request, Thread: "t1"}))
		time.Sleep(thread.DefaultPendingTimeout - time.Minute/2)
		page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: client.DID()}, Cursor: posted.Cursor, Wait: time.Minute,
			Limit: 1})
		late := time.Since(began) - thread.DefaultPendingTimeout
		if len(page.Events) != 1 || late < 0 || late > time.Second {
			t.Errorf("%d notices came %v after the thread's end, want one within a second", len(page.Events), late)
		}
	})
}

// TestExpiredMailDoesNotHideLaterMail posts messages that expire at once. They do not fill the inbox, and are
// remembered for half an hour. However many of them there are after a bookmark, a poll must find the messages that come
// later.
func TestExpiredMailDoesNotHideLaterMail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store countingStore
		r := start(t, relay.Config{Store: &store})
		me, ts := key(t).DID(), time.Now()
		postTo(t, r, me, "first", ts, time.Hour)
		time.Sleep(time.Millisecond)
		for n := range 50 {
			postTo(t, r, me, fmt.Sprint("short-", n), time.Now(), time.Second)
		}
		time.Sleep(2 * time.Second)
		postTo(t, r, me, "friend", time.Now(), time.Hour)
		for name, since := range map[string]time.Time{"a bookmark": ts, "another instant": ts.Add(-time.Minute)} {
			page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: me}, Since: since, Wait: time.Second, Limit: 100})
			if got := ids(page); !strings.HasSuffix(got, "friend") || strings.Contains(got, "short") {
				t.Errorf("since %s: got %q", name, got)
			}
		}
		if n := store.expiredReads.Load(); n > 0 {
			t.Errorf("%d reads included expired events", n)
		}
	})
}

// TestCopiesOfAnIDBlockNobody uses a thread id that 40 strangers have copied before; half of them also name the agent.
// The parties can still post to their own thread, whether or not they name the recipient.
func TestCopiesOfAnIDBlockNobody(t *testing.T) {
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
