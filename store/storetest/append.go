package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/thread"
)

// testAppend checks the receipts that Append returns, and that appended messages can be read.
func testAppend(t *testing.T, open Opener) {
	t.Run("a conversation", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		key := thread.Key{Client: alice.DID(), ID: "t"}
		var last relay.Cursor
		for _, step := range []struct {
			by     didkey.Key
			draft  envelope.Draft
			thread thread.Key
			state  thread.State
		}{
			{alice, in("t", request), key, thread.Pending},
			{bob, in("t", offer), key, thread.Pending},
			{alice, to(bob, in("t", accept)), key, thread.Active},
			{bob, to(alice, in("t", result)), key, thread.Completed},
			{carol, manifest("m"), thread.Key{}, ""},
		} {
			f.advance(time.Second)
			e := f.entry(step.by, step.draft)
			got := f.append(e)
			if got.Cursor.Epoch == 0 || got.Cursor.Seq <= last.Seq || last.Epoch != 0 && got.Cursor.Epoch != last.Epoch {
				t.Errorf("%s: cursor %v after %v", e.Envelope.Type, got.Cursor, last)
			}
			last = got.Cursor
			f.equal("receipt", got, relay.Receipt{ID: e.Envelope.ID, Cursor: got.Cursor,
				ExpiresAt: f.now.Add(envelope.DraftTTL), Thread: step.thread, State: step.state})
			f.equal("the page read",
				f.read(relay.Query{After: relay.Cursor{Epoch: last.Epoch, Seq: last.Seq - 1}, Limit: 9}),
				relay.Page{
					Cursor: last,
					Events: []relay.Event{{Seq: last.Seq, ID: e.Envelope.ID, TS: e.Envelope.TS, Received: f.now,
						Expires: got.ExpiresAt, Size: len(e.Envelope.Canonical()), Body: e.Envelope.Canonical()}},
				})
		}
	})

	t.Run("a ttl above MaxTTL", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{Window: replay.Window{MaxTTL: time.Hour}})
		if got := f.post(alice, withTTL(365*24*time.Hour, manifest("m"))); !got.ExpiresAt.Equal(noon.Add(time.Hour)) {
			t.Errorf("expires at %v", got.ExpiresAt)
		}
	})

	t.Run("a canceled context", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		ctx, cancel := canceled(f)
		defer cancel()
		e := f.entry(alice, in("t", request))
		if _, err := f.Append(ctx, e); err != nil && !errors.Is(err, ctx.Err()) {
			t.Errorf("append with a canceled context: %v; want no error or the context's", err)
		}
		// The message may or may not be stored now. After a retry it must be stored once.
		if got := f.append(e); got.State != thread.Pending || len(f.stored(relay.Filter{})) != 1 {
			t.Errorf("the retry returned %+v, and %d messages are stored; want 1", got, len(f.stored(relay.Filter{})))
		}
	})
}

// testRefusals checks that a rejected message gets the right error code and changes nothing: no event, no thread, and
// the message's id is not remembered.
func testRefusals(t *testing.T, open Opener) {
	idle := in("t", envelope.Request{RequestID: "req"})
	for _, c := range []struct {
		name string
		by   didkey.Key
		bad  envelope.Draft
		code envelope.Code
		good envelope.Draft // a message that the same sender may then send with the same id
	}{
		{"an id used for another message", carol, manifest("other"), envelope.CodeDuplicateID, envelope.Draft{}},
		{"no such thread", dave, in("nowhere", offer), envelope.CodeThreadNotFound, in("pending", offer)},
		{"a thread of other parties", dave, in("active", cancel), envelope.CodeForbidden, in("of-dave", request)},
		{"an offer to oneself", alice, in("pending", offer), envelope.CodeForbidden, in("of-alice", request)},
		{"a result before the accept", bob, in("pending", result), envelope.CodeInvalidTransition, in("active", result)},
		{"a second request", alice, in("pending", request), envelope.CodeInvalidTransition, in("pending", cancel)},
		{"a request without intent", alice, idle, envelope.CodeInvalidRequest, in("t", request)},
		{"the request_id of another request", bob, in("pending", envelope.Offer{RequestID: "else"}),
			envelope.CodeInvalidRequest, in("active", result)},
		{"too many offers", dave, in("full", offer), envelope.CodeRateLimited, in("pending", offer)},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, open, relay.Policy{Rules: thread.Rules{MaxOffers: 2}})
			for _, id := range []string{"pending", "active", "full"} {
				f.post(alice, in(id, request))
				f.post(bob, in(id, offer))
			}
			f.post(alice, in("active", accept))
			f.post(carol, in("full", offer))
			f.post(carol, withID("used", manifest("m")))

			known := []string{"t", "pending", "active", "full", "nowhere", "of-dave", "of-alice"}
			before := f.snapshot(known...)
			bad := f.entry(c.by, withID("used", c.bad))
			for range 2 { // the second attempt must not be treated as a duplicate
				f.refused(bad, c.code)
			}
			if after := f.snapshot(known...); after != before {
				t.Errorf("the rejected message changed\n%s\nto\n%s", before, after)
			}
			if c.good.Payload != nil {
				if got := f.post(c.by, withID("used", c.good)); got.Duplicate {
					t.Errorf("the id of the rejected message is remembered: %+v", got)
				}
			}
		})
	}
}

// testDuplicates checks how Append treats a message whose sender and id are known already (PROTOCOL §3).
func testDuplicates(t *testing.T, open Opener) {
	t.Run("a retry gets the first receipt", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		f.post(alice, in("t", request))
		f.post(bob, in("t", offer))
		// The thread rules reject a second ACCEPT. The store must recognize the retry before it applies these rules.
		e := f.entry(alice, to(bob, in("t", accept)))
		first := f.append(e)
		before := f.snapshot("t")
		again := func(want thread.State) {
			t.Helper()
			first.Duplicate, first.State = true, want
			f.equal("receipt of the retry", f.append(e), first)
		}
		again(thread.Active)
		f.reopen()
		again(thread.Active)
		if after := f.snapshot("t"); after != before {
			t.Errorf("the retry changed\n%s\nto\n%s", before, after)
		}
		e.Received = f.now.Add(thread.DefaultActiveTimeout)
		again(thread.Failed) // the thread has timed out by the clock, without a call of Expire
		e.Received = f.now
		f.post(bob, in("t", result))
		again(thread.Completed)
	})

	t.Run("the same id again", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		f.post(alice, withID("id", manifest("m")))
		for name, draft := range map[string]envelope.Draft{
			"another payload": manifest("other"),
			"another ttl":     withTTL(time.Minute, manifest("m")),
			"another type":    in("t", request),
			"a thread step":   in("nowhere", result), // the id is checked before the thread
		} {
			t.Run(name, func(t *testing.T) { f.refused(f.entry(alice, withID("id", draft)), envelope.CodeDuplicateID) })
		}
		// The same id from another sender names another message.
		if got := f.post(bob, withID("id", manifest("m"))); got.Duplicate || len(f.stored(relay.Filter{})) != 2 {
			t.Errorf("the same id from another sender: %+v; want a new message", got)
		}
	})

	t.Run("how long an id is remembered", func(t *testing.T) {
		for _, c := range []struct {
			name      string
			ttl       time.Duration
			known     []time.Duration
			forgotten time.Duration
		}{
			{"longer than a short ttl", time.Minute,
				[]time.Duration{0, time.Minute, replay.DefaultMemory - 1}, replay.DefaultMemory},
			{"as long as a long ttl", 2 * time.Hour, []time.Duration{replay.DefaultMemory, 2*time.Hour - 1}, 2 * time.Hour},
		} {
			t.Run(c.name, func(t *testing.T) {
				f := newFixture(t, open, relay.Policy{})
				e := f.entry(alice, withTTL(c.ttl, manifest("m")))
				first := f.append(e)
				retry := func(at time.Duration) relay.Receipt {
					t.Helper()
					f.now = noon.Add(at)
					f.expire()
					e.Received = f.now
					return f.append(e)
				}
				for _, at := range c.known {
					if got := retry(at); !got.Duplicate || got.Cursor != first.Cursor {
						t.Errorf("retry after %v: %+v; want the first receipt as a duplicate", at, got)
					}
				}
				if got := retry(c.forgotten); got.Duplicate || got.Cursor.Seq <= first.Cursor.Seq {
					t.Errorf("retry after the id was forgotten: %+v; want a new message", got)
				}
			})
		}
	})
}
