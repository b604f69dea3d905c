package relay_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// settableClock is a wall clock that a test can set.
type settableClock struct{ offset atomic.Int64 }

func (c *settableClock) now() time.Time {
	return time.Now().Add(time.Duration(c.offset.Load())).Round(0)
}
func (c *settableClock) set(by time.Duration) { c.offset.Store(int64(by)) }

// sign signs a message dated by the relay's clock.
func (c *settableClock) sign(t *testing.T, d envelope.Draft) *envelope.Envelope {
	d.TS = c.now()
	return sign(t, key(t), d)
}

// TestTemporaryClockStepLosesNothing sets the clock to a wrong time for a while. Once it is right again, accepted
// messages are delivered, no thread has ended, and no message is accepted twice.
func TestTemporaryClockStepLosesNothing(t *testing.T) {
	racing.Skip(t, "one thing after another")
	for _, step := range []time.Duration{15 * time.Minute, time.Hour, 40 * 24 * time.Hour, -15 * time.Minute} {
		t.Run(step.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var clock settableClock
				r := start(t, relay.Config{Now: clock.now})
				me := key(t).DID()
				message := clock.sign(t, envelope.Draft{ID: "m1", Payload: request, Thread: "t1", Recipient: me,
					TTL: 10 * time.Minute})
				post(t, r, message)
				time.Sleep(30 * time.Second)
				clock.set(step)
				time.Sleep(4 * time.Minute)
				clock.set(0)
				time.Sleep(20 * time.Second) // the thread has ten seconds left
				page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: me}, Limit: 10})
				if ids(page) != "m1" {
					t.Errorf("delivered %q", ids(page))
				}
				if v, err := r.Thread(t.Context(), local, thread.Key{ID: "t1"}); err != nil || v.State != thread.Pending {
					t.Errorf("the thread is %s, %v", v.State, err)
				}
				if receipt := post(t, r, message); !receipt.Duplicate {
					t.Error("a copy was accepted as a new message")
				}
			})
		})
	}
}

// TestLastingClockStepIsAccepted checks that the relay follows a step of its clock after five minutes.
func TestLastingClockStepIsAccepted(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		var clock settableClock
		r := startWith(t, relay.Policy{Rules: thread.Rules{PendingTimeout: 30 * time.Minute}}, relay.Config{Now: clock.now})
		client := key(t)
		post(t, r, sign(t, client, envelope.Draft{Payload: request, Thread: "t1"}))
		synctest.Wait() // the first sweep has seen the clock before its step
		clock.set(time.Hour)
		began := time.Now()
		page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: client.DID()}, Wait: 10 * time.Minute, Limit: 1})
		if len(page.Events) != 1 {
			t.Fatal("there is no notice of the timeout")
		}
		// The sweep sees the step after a second at most, and follows it five minutes later.
		if took := time.Since(began); took < 5*time.Minute || took > 5*time.Minute+2*time.Second {
			t.Errorf("the notice came after %v", took)
		}
	})
}

// TestSlewedClockIsFollowed checks that the relay always follows a clock that runs faster than the monotonic clock.
func TestSlewedClockIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		fast := func() time.Time { return time.Now().Add(time.Since(began) / 2).Round(0) }
		r := start(t, relay.Config{Now: fast})
		client := key(t)
		post(t, r, sign(t, client, envelope.Draft{Payload: request, Thread: "t1"}))
		page := poll(t, r, relay.Poll{Filter: relay.Filter{Recipient: client.DID()}, Wait: 10 * time.Minute, Limit: 1})
		if took := time.Since(began); len(page.Events) != 1 || took > 3*time.Minute+22*time.Second {
			t.Errorf("%d notices after %v, want one at 3m20s, when the relay's clock shows five minutes", len(page.Events), took)
		}
	})
}
