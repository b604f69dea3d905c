package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// sweeper calls Expire as the relay does. Its notices method makes one notice for the client and one for each agent,
// and records the threads for which it was called.
type sweeper struct {
	*fixture
	mu     sync.Mutex // guards asked
	asked  []thread.Thread
	silent bool // makes no notices
}

// notices is the relay.Notices of this sweeper.
func (s *sweeper) notices(t thread.Thread, _ time.Time) (messages []*envelope.Envelope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, t)
	if s.silent {
		return nil
	}
	for _, party := range append([]didkey.DID{t.Client}, t.Agents()...) {
		d := in(t.ID, envelope.Failure{RequestID: t.RequestID, Code: envelope.AgentTimeout, Message: "time was up"})
		d.ID, d.Recipient = "timeout_"+t.ID+"_"+party.Multibase(), party
		messages = append(messages, s.entry(node, d).Envelope)
	}
	return messages
}

// sweep calls Expire with the current time.
func (s *sweeper) sweep() {
	s.Helper()
	s.must(s.Expire(s.Context(), s.now, s.notices))
}

// checkNotices checks how often Expire asked for the notices of a thread, and that exactly one notice is stored for
// each of the parties.
func (s *sweeper) checkNotices(id string, asked int, parties ...didkey.Key) {
	s.Helper()
	n := 0
	for _, t := range s.asked {
		if t.ID != id {
			continue
		}
		if n++; t.State != thread.Failed || !t.TimedOut() {
			s.Errorf("Expire asked for notices of %s in the state %s; want a thread that has timed out", id, t.State)
		}
	}
	if n != asked {
		s.Errorf("Expire asked %d times for notices of %s, want %d times", n, id, asked)
	}
	if got := len(s.stored(relay.Filter{Thread: id, Sender: node.DID()})); got != len(parties) {
		s.Errorf("%s has %d notices, want %d", id, got, len(parties))
	}
	for _, party := range parties {
		if got := len(s.stored(relay.Filter{
			Thread: id, Client: alice.DID(), Sender: node.DID(), Recipient: party.DID(),
		})); got != 1 {
			s.Errorf("party %s of %s has %d notices, want 1", party.DID(), id, got)
		}
	}
}

// testTimeouts checks that Expire ends a thread whose deadline has passed, and stores each notice of it once.
func testTimeouts(t *testing.T, open Opener) {
	begin := func(t *testing.T, policy relay.Policy) *sweeper {
		return &sweeper{fixture: newFixture(t, open, policy)}
	}

	t.Run("notices are stored once", func(t *testing.T) {
		s := begin(t, relay.Policy{})
		s.post(alice, in("pending", request))
		s.post(alice, in("active", request))
		s.post(bob, in("active", offer))
		s.post(carol, in("pending", offer))
		s.post(carol, in("active", offer))
		s.post(alice, to(bob, in("active", accept)))
		for _, step := range []struct {
			at              time.Duration
			pending, active int // how often Expire has asked for notices of each thread
		}{
			{thread.DefaultPendingTimeout - 1, 0, 0},
			{thread.DefaultPendingTimeout, 1, 0},
			{thread.DefaultActiveTimeout - 1, 1, 0},
			{thread.DefaultActiveTimeout, 1, 1},
			{thread.DefaultActiveTimeout + time.Hour, 1, 1},
		} {
			s.now = noon.Add(step.at)
			s.sweep()
			s.sweep()
			s.reopen()
			s.sweep()
			s.checkNotices("pending", step.pending, []didkey.Key{alice, carol}[:2*step.pending]...)
			s.checkNotices("active", step.active, []didkey.Key{alice, bob}[:2*step.active]...)
		}
		for id, deadline := range map[string]time.Duration{
			"pending": thread.DefaultPendingTimeout, "active": thread.DefaultActiveTimeout,
		} {
			got := s.thread(id)
			if end := got.Transitions[len(got.Transitions)-1]; got.State != thread.Failed || !got.TimedOut() ||
				!end.At.Equal(noon.Add(deadline)) {
				t.Errorf("thread %s: the last transition is %+v; want a timeout %v after noon", id, end, deadline)
			}
		}
	})

	t.Run("without notices", func(t *testing.T) {
		s := begin(t, relay.Policy{})
		s.post(alice, in("t", request))
		s.advance(24 * time.Hour)
		s.silent = true
		s.sweep()
		s.checkNotices("t", 1)
		s.state("t", thread.Failed)
		s.silent = false
		s.sweep() // the thread has ended already, so Expire must not ask again
		s.checkNotices("t", 1)
	})

	t.Run("concurrent calls of Expire", func(t *testing.T) {
		s := begin(t, relay.Policy{})
		s.post(alice, in("t", request))
		s.advance(time.Hour)
		var sweepers sync.WaitGroup
		for range 8 {
			sweepers.Go(func() {
				if err := s.Expire(s.Context(), s.now, s.notices); err != nil {
					s.Errorf("expire: %v", err)
				}
			})
		}
		sweepers.Wait()
		s.checkNotices("t", 1, alice)
	})

	t.Run("a thread whose client is its own agent", func(t *testing.T) {
		s := begin(t, relay.Policy{})
		s.post(alice, to(alice, in("self", request)))
		s.post(alice, in("t", request))
		s.advance(time.Hour)
		s.sweep() // both notices have the same id, so one is stored
		s.checkNotices("self", 1, alice)
		s.checkNotices("t", 1, alice)
	})

	t.Run("many threads at a time", func(t *testing.T) {
		s := begin(t, relay.Policy{})
		const many = 1100
		entries := make([]relay.Entry, many)
		for i := range entries {
			entries[i] = s.entry(alice, withTTL(time.Second, in(fmt.Sprint("t", i), request)))
		}
		for _, a := range s.appendConcurrently(entries) {
			s.must(a.err)
		}
		s.advance(time.Hour)
		s.sweep()
		if got := s.stored(relay.Filter{}); len(s.asked) != many || len(got) != many {
			t.Errorf("Expire asked for notices of %d threads and left %d events; want %d and only the notices",
				len(s.asked), len(got), many)
		}
		s.advance(24 * time.Hour)
		s.expire()
		if got := s.stored(relay.Filter{}); len(got) != 0 {
			t.Errorf("%d events are left, want none", len(got))
		}
	})

	t.Run("a longer timeout after a restart", func(t *testing.T) {
		s := begin(t, relay.Policy{})
		s.post(alice, in("t", request))
		s.policy.Rules.PendingTimeout = 2 * time.Hour
		s.reopen()
		s.now = noon.Add(2*time.Hour - 1)
		s.sweep()
		s.checkNotices("t", 0)
		s.state("t", thread.Pending)
		s.advance(1)
		s.sweep()
		s.checkNotices("t", 1, alice)
	})
}
