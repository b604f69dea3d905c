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

// testQuota holds a store to relay.Quota: an inbox takes so much and no more, and only what nobody asked for is
// refused.
func testQuota(t *testing.T, open Opener) {
	three := relay.Policy{Inbox: relay.Quota{Events: 3}}
	// full is a store in which three REQUESTs wait for bob, one minute, two and three.
	full := func(t *testing.T) *fixture {
		f := newFixture(t, open, three)
		for n := range 3 {
			f.post(alice, to(bob, lasting(time.Duration(n+1)*time.Minute, in(fmt.Sprint("t", n), request))))
		}
		return f
	}

	t.Run("what nobody asked for is refused", func(t *testing.T) {
		f := full(t)
		before := f.snapshot("t3")
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
		f.refused(f.entry(carol, to(bob, manifest("m"))), envelope.CodeRateLimited)
		if after := f.snapshot("t3"); after != before {
			t.Errorf("refused, and yet:\n got %s\nwant %s", after, before)
		}
		f.reopen()
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
	})

	t.Run("a thread goes on", func(t *testing.T) {
		f := full(t)
		f.post(bob, in("mine", request))
		f.post(carol, to(bob, in("mine", offer)))
		f.post(bob, to(carol, in("mine", accept)))
		f.post(carol, to(bob, in("mine", result)))
	})

	t.Run("and counts for nothing", func(t *testing.T) {
		f := newFixture(t, open, three)
		f.post(bob, in("mine", request))
		for n := range 5 {
			f.post(carol, to(bob, named(fmt.Sprint("offer-", n), in("mine", offer))))
		}
		for n := range 3 {
			f.post(alice, to(bob, in(fmt.Sprint("t", n), request)))
		}
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
		f.reopen()
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
		f.post(carol, to(bob, named("offer-5", in("mine", offer))))
	})

	t.Run("others are not concerned", func(t *testing.T) {
		f := full(t)
		f.post(alice, to(carol, in("t3", request)))
		f.post(alice, in("t4", request))
		e := f.entry(alice, to(bob, in("t5", request)))
		e.Local = true
		f.append(e)
	})

	t.Run("what was here is a duplicate still", func(t *testing.T) {
		f := newFixture(t, open, three)
		first := f.entry(alice, to(bob, in("t0", request)))
		f.append(first)
		f.post(alice, to(bob, in("t1", request)))
		f.post(alice, to(bob, in("t2", request)))
		if r := f.append(first); !r.Duplicate {
			t.Errorf("receipt %+v", r)
		}
	})

	t.Run("until something has expired", func(t *testing.T) {
		f := full(t)
		f.pass(10 * time.Second)
		_, err := f.Append(f.Context(), f.entry(alice, to(bob, in("t3", request))))
		refusal, ok := errors.AsType[*envelope.Error](err)
		if !ok || refusal.RetryAfter != 50*time.Second {
			t.Fatalf("error %#v, want to be told to come again in 50s", err)
		}
		f.pass(50*time.Second - 1)
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
		f.pass(1)
		f.post(alice, to(bob, in("t3", request)))
		f.refused(f.entry(alice, to(bob, in("t4", request))), envelope.CodeRateLimited)
	})

	t.Run("a clock set back keeps nobody waiting", func(t *testing.T) {
		f := newFixture(t, open, three)
		for n := range 3 {
			f.post(alice, to(bob, lasting(time.Hour, in(fmt.Sprint("t", n), request))))
		}
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
		f.pass(-15 * time.Minute)
		_, err := f.Append(f.Context(), f.entry(alice, to(bob, in("t3", request))))
		refusal, ok := errors.AsType[*envelope.Error](err)
		if !ok || refusal.RetryAfter > time.Minute {
			t.Fatalf("error %#v, want to be told to come again within a minute", err)
		}
	})

	t.Run("bytes", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		size := len(f.entry(alice, to(bob, in("t0", request))).Envelope.Canonical()) + relay.ClosingReserve
		f.policy.Inbox.Bytes = int64(3*size + size/2)
		f.reopen()
		for n := range 3 {
			f.post(alice, to(bob, in(fmt.Sprint("t", n), request)))
		}
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
	})

	// A CANCEL to somebody who has not offered is as unasked as the REQUEST was.
	t.Run("what closes a thread counts", func(t *testing.T) {
		f := newFixture(t, open, three)
		for n := range 3 {
			id := fmt.Sprint("t", n)
			f.post(alice, to(bob, lasting(time.Second, in(id, request))))
			f.post(alice, to(bob, lasting(time.Hour, in(id, cancel))))
			f.pass(time.Second)
		}
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
		f.reopen()
		f.refused(f.entry(alice, to(bob, in("t3", request))), envelope.CodeRateLimited)
		f.pass(time.Hour)
		f.post(alice, to(bob, in("t3", request)))
	})

	t.Run("a short message that closes a thread is taken", func(t *testing.T) {
		f := full(t)
		f.post(alice, to(bob, in("t0", cancel)))
		f.post(alice, to(bob, in("t1", failure)))
		long := cancel
		long.Reason = strings.Repeat("x", relay.ClosingReserve)
		f.refused(f.entry(alice, to(bob, in("t2", long))), envelope.CodeRateLimited)
		f.post(alice, to(bob, in("t2", cancel)))
	})

	t.Run("but not when its REQUEST has gone", func(t *testing.T) {
		f := newFixture(t, open, three)
		f.post(alice, to(bob, lasting(time.Second, in("t0", request))))
		f.pass(time.Second)
		for n := range 3 {
			f.post(alice, to(bob, in(fmt.Sprint("u", n), request)))
		}
		f.refused(f.entry(alice, to(bob, in("t0", cancel))), envelope.CodeRateLimited)
	})

	t.Run("who has offered has asked", func(t *testing.T) {
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

	t.Run("a network meets its own mail only", func(t *testing.T) {
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
		// All networks together meet a bound of their own: from six to twelve. When the mail of others expires is not told.
		taken := 6
		for ; taken <= 12; taken++ {
			if _, err := f.Append(f.Context(), from(int64(taken), lasting(20*time.Second, in(fmt.Sprint("u", taken), request)))); err != nil {
				refusal, ok := errors.AsType[*envelope.Error](err)
				if !ok || refusal.RetryAfter != time.Minute {
					t.Errorf("error %#v, want to be told to come again in a minute", err)
				}
				break
			}
		}
		if taken > 12 {
			t.Error("an inbox takes any number from many networks")
		}
	})

	t.Run("none", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{Inbox: relay.Quota{Events: -1, Bytes: -1}})
		for n := range 20 {
			f.post(alice, to(bob, in(fmt.Sprint("t", n), request)))
		}
	})

	t.Run("model", func(t *testing.T) { testQuotaModel(t, open) })
}

// testQuotaModel lets REQUESTs of random lives come to two inboxes, new ones in each run, and compares with a list of
// what waits.
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
		var waiting [2][]time.Time // until when
		for n := range 60 {
			// A store may take an inbox for full a second longer than it is, so all that expires does so at whole ones.
			f.pass(rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute}).Draw(t, "later"))
			if rapid.IntRange(0, 9).Draw(t, "sweep") == 0 {
				f.must(f.Expire(f.Context(), f.now, nil))
			}
			whom := rapid.IntRange(0, 1).Draw(t, "to")
			ttl := time.Duration(rapid.IntRange(1, 300).Draw(t, "ttl")) * time.Second
			e := f.entry(alice, to(owners[whom], lasting(ttl, in(fmt.Sprint(runs, "-", n), request))))
			e.Local = rapid.IntRange(0, 9).Draw(t, "local") == 0
			count := 0
			for _, until := range waiting[whom] {
				if until.After(f.now) {
					count++
				}
			}
			if count >= quota && !e.Local {
				f.refused(e, envelope.CodeRateLimited)
			} else {
				waiting[whom] = append(waiting[whom], f.append(e).ExpiresAt)
			}
		}
	})
	f.tb = t
}
