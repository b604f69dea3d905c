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

// sweeper is the relay's part in Expire: it tells the client and the agents, and remembers whom.
type sweeper struct {
	*fixture
	mu     sync.Mutex
	asked  []thread.Thread
	silent bool // makes no notices
}

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

func (s *sweeper) sweep() {
	s.Helper()
	s.must(s.Expire(s.Context(), s.now, s.notices))
}

// told checks how often the notices of thread id were asked for and stored.
func (s *sweeper) told(id string, asked int, parties ...didkey.Key) {
	s.Helper()
	n := 0
	for _, t := range s.asked {
		if t.ID != id {
			continue
		}
		if n++; t.State != thread.Failed || !t.TimedOut() {
			s.Errorf("notices asked for with %s in %s", id, t.State)
		}
	}
	if n != asked {
		s.Errorf("notices of %s asked for %d times, want %d", id, n, asked)
	}
	if got := len(s.stored(relay.Filter{Thread: id, Sender: node.DID()})); got != len(parties) {
		s.Errorf("%s has %d notices, want %d", id, got, len(parties))
	}
	for _, party := range parties {
		if got := len(s.stored(relay.Filter{Thread: id, Client: alice.DID(), Sender: node.DID(), Recipient: party.DID()})); got != 1 {
			s.Errorf("a party of %s has %d notices", id, got)
		}
	}
}

// testTimeouts checks that the end of a thread's time is announced, once, together with its state.
func testTimeouts(t *testing.T, open Opener) {
	begin := func(t *testing.T, policy relay.Policy) *sweeper {
		return &sweeper{fixture: newFixture(t, open, policy)}
	}

	t.Run("once", func(t *testing.T) {
		s := begin(t, relay.Policy{})
		s.post(alice, in("pending", request))
		s.post(alice, in("active", request))
		s.post(bob, in("active", offer))
		s.post(carol, in("pending", offer))
		s.post(carol, in("active", offer))
		s.post(alice, to(bob, in("active", accept)))
		for _, step := range []struct {
			at              time.Duration
			pending, active int // how often each has been asked about
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
			s.told("pending", step.pending, []didkey.Key{alice, carol}[:2*step.pending]...)
			s.told("active", step.active, []didkey.Key{alice, bob}[:2*step.active]...)
		}
		for id, deadline := range map[string]time.Duration{"pending": thread.DefaultPendingTimeout, "active": thread.DefaultActiveTimeout} {
			got := s.thread(id)
			if end := got.Transitions[len(got.Transitions)-1]; got.State != thread.Failed || !got.TimedOut() || !end.At.Equal(noon.Add(deadline)) {
				t.Errorf("%s ended %+v", id, end)
			}
		}
	})

	t.Run("also without notices", func(t *testing.T) {
		s := begin(t, relay.Policy{})
		s.post(alice, in("t", request))
		s.pass(24 * time.Hour)
		s.silent = true
		s.sweep()
		s.told("t", 1)
		s.state("t", thread.Failed)
		s.silent = false
		s.sweep() // once
		s.told("t", 1)
	})

	t.Run("whoever sweeps", func(t *testing.T) {
		s := begin(t, relay.Policy{})
		s.post(alice, in("t", request))
		s.pass(time.Hour)
		var sweepers sync.WaitGroup
		for range 8 {
			sweepers.Go(func() {
				if err := s.Expire(s.Context(), s.now, s.notices); err != nil {
					s.Errorf("expire: %v", err)
				}
			})
		}
		sweepers.Wait()
		s.told("t", 1, alice)
	})

	t.Run("a thread with oneself", func(t *testing.T) {
		s := begin(t, relay.Policy{})
		s.post(alice, to(alice, in("self", request)))
		s.post(alice, in("t", request))
		s.pass(time.Hour)
		s.sweep() // its two notices are one
		s.told("self", 1, alice)
		s.told("t", 1, alice)
	})

	t.Run("many at a time", func(t *testing.T) {
		s := begin(t, relay.Policy{})
		const many = 1100
		entries := make([]relay.Entry, many)
		for i := range entries {
			entries[i] = s.entry(alice, lasting(time.Second, in(fmt.Sprint("t", i), request)))
		}
		for _, a := range s.atOnce(entries) {
			s.must(a.err)
		}
		s.pass(time.Hour)
		s.sweep()
		if got := s.stored(relay.Filter{}); len(s.asked) != many || len(got) != many {
			t.Errorf("%d threads were asked about, %d events are left; want the %d notices", len(s.asked), len(got), many)
		}
		s.pass(24 * time.Hour)
		s.expire()
		if got := s.stored(relay.Filter{}); len(got) != 0 {
			t.Errorf("%d events left", len(got))
		}
	})

	t.Run("longer timeouts after a restart", func(t *testing.T) {
		s := begin(t, relay.Policy{})
		s.post(alice, in("t", request))
		s.policy.Rules.PendingTimeout = 2 * time.Hour
		s.reopen()
		s.now = noon.Add(2*time.Hour - 1)
		s.sweep()
		s.told("t", 0)
		s.state("t", thread.Pending)
		s.pass(1)
		s.sweep()
		s.told("t", 1, alice)
	})
}
