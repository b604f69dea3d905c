package storetest

import (
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/thread"
)

// testRemoval checks what Expire removes, and when.
func testRemoval(t *testing.T, open Opener) {
	t.Run("events", func(t *testing.T) {
		type step struct {
			at                time.Duration
			delivered, stored bool
		}
		for _, c := range []struct {
			ttl   time.Duration
			steps []step
		}{
			{time.Second, []step{
				{time.Second - 1, true, true}, {time.Second, false, true},
				{replay.DefaultMemory - 1, false, true}, {replay.DefaultMemory, false, false},
			}},
			{replay.DefaultMemory, []step{{replay.DefaultMemory - 1, true, true}, {replay.DefaultMemory, false, false}}},
			{2 * time.Hour, []step{{2*time.Hour - 1, true, true}, {2 * time.Hour, false, false}}},
		} {
			t.Run(c.ttl.String(), func(t *testing.T) {
				f := newFixture(t, open, relay.Policy{})
				f.post(alice, withTTL(c.ttl, to(bob, manifest("m"))))
				for _, step := range c.steps {
					f.now = noon.Add(step.at)
					f.expire()
					page := f.read(relay.Query{Filter: relay.Filter{Recipient: bob.DID()}, Now: f.now, Limit: 9})
					if got := len(page.Events) == 1; got != step.delivered {
						t.Errorf("after %v: delivered is %v, want %v", step.at, got, step.delivered)
					}
					if got := len(f.stored(relay.Filter{})) == 1; got != step.stored {
						t.Errorf("after %v: stored is %v, want %v", step.at, got, step.stored)
					}
				}
			})
		}
	})

	t.Run("sequence numbers are not reused", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		var last relay.Cursor
		for range 5 {
			last = f.post(alice, withTTL(time.Second, manifest("m"))).Cursor
		}
		f.advance(replay.DefaultMemory)
		f.expire()
		if left := f.stored(relay.Filter{}); len(left) != 0 || f.end() != last {
			t.Fatalf("%d events are left and the end is %v; want no events and the end %v", len(left), f.end(), last)
		}
		f.reopen()
		if f.end() != last {
			t.Errorf("after reopening the end is %v, want %v", f.end(), last)
		}
		next := f.post(alice, manifest("m")).Cursor
		if page := f.read(relay.Query{After: last, Limit: 9}); next.Seq <= last.Seq || len(page.Events) != 1 {
			t.Errorf("the next event is %v, and a reader with the cursor %v gets %d events; want a larger Seq and 1 event",
				next, last, len(page.Events))
		}
	})

	t.Run("threads", func(t *testing.T) {
		const retention = 3 * time.Hour
		for name, ttls := range map[string][2]time.Duration{
			"the last envelope expires last":  {time.Minute, 2 * time.Hour},
			"the first envelope expires last": {2 * time.Hour, time.Minute},
		} {
			t.Run(name, func(t *testing.T) {
				f := newFixture(t, open, relay.Policy{ThreadRetention: retention})
				f.post(alice, withTTL(ttls[0], in("t", request)))
				f.post(alice, withTTL(ttls[1], in("t", cancel)))
				f.now = noon.Add(2*time.Hour + retention - 1)
				f.expire()
				f.state("t", thread.Failed)
				f.refused(f.entry(alice, in("t", request)), envelope.CodeInvalidTransition)
				f.advance(1)
				f.expire()
				f.noThread("t")
				f.post(alice, in("t", request))
				f.state("t", thread.Pending)
			})
		}
	})

	t.Run("threads that have not ended stay", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{ThreadRetention: time.Second,
			Rules: thread.Rules{PendingTimeout: 24 * time.Hour}})
		f.post(alice, withTTL(time.Second, in("t", request)))
		f.advance(24*time.Hour - 1)
		f.expire()
		if left := f.stored(relay.Filter{}); len(left) != 0 {
			t.Errorf("%d events are left, want none", len(left))
		}
		f.state("t", thread.Pending)
		f.post(bob, in("t", offer))
	})

	t.Run("manifests", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		f.list(alice, withTTL(time.Minute, manifest("m")), "")
		f.advance(time.Minute)
		f.expire()
		f.now = noon // a reader whose clock is behind must not see the removed manifest either
		f.checkDirectory(relay.AgentQuery{})
	})
}
