package storetest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// testQuota checks that a store enforces relay.Quota: an inbox takes unasked messages up to its quota, and messages
// that the recipient asked for are neither counted nor rejected. See thread.Thread.Unasked.
func testQuota(t *testing.T, open Opener) {
	three := relay.Policy{Inbox: relay.Quota{Events: 3}}
	// full returns a store in which bob's inbox is full: it has three REQUESTs, with ttls of one, two and three
	// minutes.
	full := func(t *testing.T) *fixture {
		f := newFixture(t, open, three)
		for n := range 3 {
			f.post(alice, to(bob, withTTL(time.Duration(n+1)*time.Minute, in(fmt.Sprint("t", n), request))))
		}
		return f
	}

	t.Run("a full inbox rejects unasked messages", func(t *testing.T) {
		f := full(t)
		before := f.snapshot("t3")
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
		f.refused(f.entry(carol, to(bob, manifest("m"))), envelope.CodeRateLimited)
		if after := f.snapshot("t3"); after != before {
			t.Errorf("the rejected messages changed the store:\n got %s\nwant %s", after, before)
		}
		f.reopen()
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
	})

	t.Run("the quota changes while the store is open", func(t *testing.T) {
		f := full(t)
		set := func(q relay.Quota) {
			t.Helper()
			if err := f.SetInbox(t.Context(), q); err != nil {
				t.Fatal(err)
			}
			if got := f.Policy().Inbox; got != q.WithDefaults() {
				t.Errorf("the quota is %+v, want %+v", got, q)
			}
		}
		set(relay.Quota{Events: 4})
		f.post(alice, to(bob, in("t3", request)))
		f.refused(f.entry(alice, to(bob, in("t4", request))), envelope.CodeRateLimited)
		set(relay.Quota{Events: -1, Bytes: -1})
		f.post(alice, to(bob, in("t4", request)))
		set(relay.Quota{Events: 6})
		f.post(alice, to(bob, in("t5", request)))
		f.refused(f.entry(alice, to(bob, in("t6", request))), envelope.CodeRateLimited)
		set(relay.Quota{Bytes: 1})
		f.refused(f.entry(carol, to(bob, in("t7", request))), envelope.CodeRateLimited)
	})

	t.Run("a full inbox takes the messages of the owner's thread", func(t *testing.T) {
		f := full(t)
		f.post(bob, in("mine", request))
		f.post(carol, to(bob, in("mine", offer)))
		f.post(bob, to(carol, in("mine", accept)))
		f.post(carol, to(bob, in("mine", result)))
	})

	t.Run("messages of the owner's thread do not count", func(t *testing.T) {
		f := newFixture(t, open, three)
		f.post(bob, in("mine", request))
		for n := range 5 {
			f.post(carol, to(bob, withID(fmt.Sprint("offer-", n), in("mine", offer))))
		}
		for n := range 3 {
			f.post(alice, to(bob, in(fmt.Sprint("t", n), request)))
		}
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
		f.reopen()
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
		f.post(carol, to(bob, withID("offer-5", in("mine", offer))))
	})

	t.Run("other recipients, broadcasts and local messages", func(t *testing.T) {
		f := full(t)
		f.post(alice, to(carol, in("t3", request)))
		f.post(alice, in("t4", request))
		e := f.entry(alice, to(bob, in("t5", request)))
		e.Local = true
		f.append(e)
	})

	t.Run("a full inbox still recognizes duplicates", func(t *testing.T) {
		f := newFixture(t, open, three)
		first := f.entry(alice, to(bob, in("t0", request)))
		f.append(first)
		f.post(alice, to(bob, in("t1", request)))
		f.post(alice, to(bob, in("t2", request)))
		if r := f.append(first); !r.Duplicate {
			t.Errorf("receipt %+v", r)
		}
	})

	t.Run("room after a message has expired", func(t *testing.T) {
		f := full(t)
		f.advance(10 * time.Second)
		_, err := f.Append(f.Context(), f.entry(alice, to(bob, in("t3", request))))
		refusal, ok := errors.AsType[*envelope.Error](err)
		if !ok || refusal.RetryAfter != 50*time.Second {
			t.Fatalf("error %#v, want a RetryAfter of 50s", err)
		}
		f.advance(50*time.Second - 1)
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
		f.advance(1)
		f.post(alice, to(bob, in("t3", request)))
		f.refused(f.entry(alice, to(bob, in("t4", request))), envelope.CodeRateLimited)
	})

	t.Run("RetryAfter after the clock was set back", func(t *testing.T) {
		f := newFixture(t, open, three)
		for n := range 3 {
			f.post(alice, to(bob, withTTL(time.Hour, in(fmt.Sprint("t", n), request))))
		}
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
		f.advance(-15 * time.Minute)
		_, err := f.Append(f.Context(), f.entry(alice, to(bob, in("t3", request))))
		refusal, ok := errors.AsType[*envelope.Error](err)
		if !ok || refusal.RetryAfter > time.Minute {
			t.Fatalf("error %#v, want a RetryAfter of at most a minute", err)
		}
	})

	t.Run("the limit in bytes", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		size := len(f.entry(alice, to(bob, in("t0", request))).Envelope.Canonical()) + relay.ClosingReserve
		f.policy.Inbox.Bytes = int64(3*size + size/2)
		f.reopen()
		for n := range 3 {
			f.post(alice, to(bob, in(fmt.Sprint("t", n), request)))
		}
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
	})

	// A CANCEL to an agent that has not offered is unasked, like the REQUEST before it.
	t.Run("a message that ends a thread counts", func(t *testing.T) {
		f := newFixture(t, open, three)
		for n := range 3 {
			id := fmt.Sprint("t", n)
			f.post(alice, to(bob, withTTL(time.Second, in(id, request))))
			f.post(alice, to(bob, withTTL(time.Hour, in(id, cancel))))
			f.advance(time.Second)
		}
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
		f.reopen()
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
		f.advance(time.Hour)
		f.post(alice, to(bob, in("t3", request)))
	})

	t.Run("a full inbox takes a short message that ends a thread", func(t *testing.T) {
		f := full(t)
		f.post(alice, to(bob, in("t0", cancel)))
		f.post(alice, to(bob, in("t1", failure)))
		long := cancel
		long.Reason = strings.Repeat("x", relay.ClosingReserve)
		f.refused(f.entry(alice, to(bob, in("t2", long))), envelope.CodeRateLimited)
		f.post(alice, to(bob, in("t2", cancel)))
	})

	t.Run("no reserved room after the REQUEST has expired", func(t *testing.T) {
		f := newFixture(t, open, three)
		f.post(alice, to(bob, withTTL(time.Second, in("t0", request))))
		f.advance(time.Second)
		for n := range 3 {
			f.post(alice, to(bob, in(fmt.Sprint("u", n), request)))
		}
		f.refused(f.entry(alice, to(bob, in("t0", cancel))), envelope.CodeRateLimited)
	})

	t.Run("an agent that has offered has asked for answers", func(t *testing.T) {
		f := newFixture(t, open, three)
		f.post(alice, in("mine", request))
		f.post(bob, to(alice, in("mine", offer)))
		for n := range 3 {
			f.post(alice, to(bob, in(fmt.Sprint("t", n), request)))
		}
		long := cancel
		long.Reason = strings.Repeat("x", relay.ClosingReserve)
		f.post(alice, to(bob, in("mine", long)))
	})

	t.Run("the quota applies to each network", func(t *testing.T) {
		f := newFixture(t, open, three)
		from := func(network int64, d envelope.Draft) relay.Entry {
			e := f.entry(alice, to(bob, d))
			e.Network = network
			return e
		}
		for network := range int64(2) {
			for n := range 3 {
				f.append(from(network+1, in(fmt.Sprint("t", network, "-", n), request)))
			}
			f.refused(from(network+1, in("more", request)), envelope.CodeRateLimited)
			f.reopen()
			f.refused(from(network+1, in("more", request)), envelope.CodeRateLimited)
		}
		// All networks together have their own bound, here between six and twelve messages. When it is reached, the
		// RetryAfter is always a minute, because it must not reveal when other senders' messages expire.
		taken := 6
		for ; taken <= 12; taken++ {
			if _, err := f.Append(f.Context(),
				from(int64(taken), withTTL(20*time.Second, in(fmt.Sprint("u", taken), request)))); err != nil {
				refusal, ok := errors.AsType[*envelope.Error](err)
				if !ok || refusal.RetryAfter != time.Minute {
					t.Errorf("error %#v, want a RetryAfter of a minute", err)
				}
				break
			}
		}
		if taken > 12 {
			t.Error("the inbox took 13 messages from many networks, want at most 12")
		}
	})

	t.Run("no quota", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{Inbox: relay.Quota{Events: -1, Bytes: -1}})
		for n := range 20 {
			f.post(alice, to(bob, in(fmt.Sprint("t", n), request)))
		}
	})

	t.Run("model", func(t *testing.T) { testQuotaModel(t, open) })
}

// testQuotaModel posts REQUESTs with random ttls to two inboxes, and compares each result with a list of the messages
// that wait. Every run uses new inboxes.
func testQuotaModel(t *testing.T, open Opener) {
	const quota = 3
	f, runs := newFixture(t, open, relay.Policy{Inbox: relay.Quota{Events: quota}}), 0
	rapid.Check(t, func(t *rapid.T) {
		f.tb = t
		runs++
		var owners [2]didkey.Key
		for i := range owners {
			var err error
			owners[i], err = didkey.Generate()
			f.must(err)
		}
		var waiting [2][]time.Time // when the messages in each inbox expire
		for n := range 60 {
			// A store may treat an inbox as full for a second too long, see relay.Quota. So the clock moves by at least
			// a second or not at all, and messages expire at whole seconds.
			f.advance(rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute}).Draw(t, "later"))
			if rapid.IntRange(0, 9).Draw(t, "sweep") == 0 {
				f.must(f.Expire(f.Context(), f.now, nil))
			}
			owner := rapid.IntRange(0, 1).Draw(t, "to")
			ttl := time.Duration(rapid.IntRange(1, 300).Draw(t, "ttl")) * time.Second
			e := f.entry(alice, to(owners[owner], withTTL(ttl, in(fmt.Sprint(runs, "-", n), request))))
			e.Local = rapid.IntRange(0, 9).Draw(t, "local") == 0
			count := 0
			for _, until := range waiting[owner] {
				if until.After(f.now) {
					count++
				}
			}
			if count >= quota && !e.Local {
				f.refused(e, envelope.CodeRateLimited)
			} else {
				waiting[owner] = append(waiting[owner], f.append(e).ExpiresAt)
			}
		}
	})
	f.tb = t
}
