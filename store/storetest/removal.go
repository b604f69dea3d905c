package storetest

import (
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/thread"
)

// testRemoval checks what Expire removes and when.
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
				f.post(alice, lasting(c.ttl, to(bob, manifest("m"))))
				for _, step := range c.steps {
					f.now = noon.Add(step.at)
					f.expire()
					page := f.read(relay.Query{Filter: relay.Filter{Recipient: bob.DID()}, Now: f.now, Limit: 9})
					if got := len(page.Events) == 1; got != step.delivered {
						t.Errorf("after %v: delivered %v", step.at, got)
					}
					if got := len(f.stored(relay.Filter{})) == 1; got != step.stored {
						t.Errorf("after %v: stored %v", step.at, got)
					}
				}
			})
		}
	})

	t.Run("a number is not used again", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		var last relay.Cursor
		for range 5 {
			last = f.post(alice, lasting(time.Second, manifest("m"))).Cursor
		}
		f.pass(replay.DefaultMemory)
		f.expire()
		if left := f.stored(relay.Filter{}); len(left) != 0 || f.end() != last {
			t.Fatalf("%d events left, the end is %v; want none, %v", len(left), f.end(), last)
		}
		f.reopen()
		if f.end() != last {
			t.Errorf("after reopening the end is %v, want %v", f.end(), last)
		}
		next := f.post(alice, manifest("m")).Cursor
		if page := f.read(relay.Query{After: last, Limit: 9}); next.Seq <= last.Seq || len(page.Events) != 1 {
			t.Errorf("the next is %v, and a reader at %v gets %d events", next, last, len(page.Events))
		}
	})

	t.Run("threads", func(t *testing.T) {
		const retention = 3 * time.Hour
		for name, ttls := range map[string][2]time.Duration{
			"the last envelope stays longest": {time.Minute, 2 * time.Hour},
			"the first does":                  {2 * time.Hour, time.Minute},
		} {
			t.Run(name, func(t *testing.T) {
				f := newFixture(t, open, relay.Policy{ThreadRetention: retention})
				f.post(alice, lasting(ttls[0], in("t", request)))
				f.post(alice, lasting(ttls[1], in("t", cancel)))
				f.now = noon.Add(2*time.Hour + retention - 1)
				f.expire()
				f.state("t", thread.Failed)
				f.refused(f.entry(alice, in("t", request)), envelope.CodeInvalidTransition)
				f.pass(1)
				f.expire()
				f.noThread("t")
				f.post(alice, in("t", request))
				f.state("t", thread.Pending)
			})
		}
	})

	t.Run("not threads that live", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{ThreadRetention: time.Second, Rules: thread.Rules{PendingTimeout: 24 * time.Hour}})
		f.post(alice, lasting(time.Second, in("t", request)))
		f.pass(24*time.Hour - 1)
		f.expire()
		if left := f.stored(relay.Filter{}); len(left) != 0 {
			t.Errorf("%d events left", len(left))
		}
		f.state("t", thread.Pending)
		f.post(bob, in("t", offer))
	})

	t.Run("manifests", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		f.list(alice, lasting(time.Minute, manifest("m")), "")
		f.pass(time.Minute)
		f.expire()
		f.now = noon // whose clock is behind does not see it either
		f.directory(relay.AgentQuery{})
	})
}
