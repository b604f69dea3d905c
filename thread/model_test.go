package thread_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// model is a thread as PROTOCOL §4 tells it, kept apart from the code under test: it knows who stands where and when
// the clock strikes, and no history.
type model struct {
	state        thread.State
	named, agent didkey.DID
	standing     map[didkey.DID]bool // whose offer stands
	made         int
	deadline     time.Time
}

// people are those who speak in the model's runs.
var people = []didkey.DID{client, named, "a", "b", stranger}

const modelOffers = 6 // offers a thread may get in the model's runs

// step moves the model, or says with which status m is refused.
func (s *model) step(m *envelope.Envelope, now time.Time) int {
	if (s.state == thread.Pending || s.state == thread.Active) && !now.Before(s.deadline) {
		s.state = thread.Failed
	}
	by, pending, active := m.Sender.ID, s.state == thread.Pending, s.state == thread.Active
	ours := by == client
	principal := ours || by == s.agent || by == s.named
	prospect := s.agent == "" && (by == s.named || s.named == "" && s.standing[by])

	rightRole := map[envelope.Type]bool{
		request: ours, accept: ours, cancel: ours,
		offer:   !ours && (s.named == "" || by == s.named),
		result:  !ours && (by == s.agent || prospect),
		failure: principal || s.standing[by],
	}[m.Type]
	facing := m.Recipient == client
	if ours {
		facing = m.Recipient == s.agent
		if s.agent == "" {
			facing = m.Recipient == s.named || s.standing[m.Recipient]
		}
	}
	rightState := map[envelope.Type]bool{
		offer: pending, accept: pending, cancel: pending || active, result: active, failure: s.state != thread.Failed,
	}[m.Type]
	switch carries := m.Type == offer || m.Type == accept || m.Type == result; {
	case !rightRole:
		return 403
	case m.Recipient != "" && m.Type != request && !facing && m.Type == accept:
		return 409
	case m.Recipient != "" && m.Type != request && !facing:
		return 403
	case m.Type != request && m.RequestID != "req" && (carries || m.RequestID != ""):
		return 400
	case !rightState:
		return 409
	}

	switch m.Type {
	case offer:
		if s.made == modelOffers {
			return 429
		}
		s.made++
		s.standing[by] = true
		s.deadline = now.Add(5 * time.Minute)
	case accept:
		chosen := m.Recipient
		if chosen == "" && len(s.standing) == 1 {
			for only := range s.standing {
				chosen = only
			}
		}
		if !s.standing[chosen] {
			return 409
		}
		s.state, s.agent, s.deadline = thread.Active, chosen, now.Add(time.Hour)
	case result:
		s.state = thread.Completed
	case cancel:
		s.state = thread.Failed
	case failure:
		if principal {
			s.state = thread.Failed
		} else {
			delete(s.standing, by)
		}
	}
	return 0
}

// Four agents and the client say anything to anybody at any time; the code and the model must always agree, and the
// history the code writes must make sense by itself.
func TestAgainstModel(t *testing.T) {
	anybody := rapid.SampledFrom(people)
	maybe := rapid.SampledFrom(append([]didkey.DID{"", "", "", "", client, client}, people...))
	types := rapid.SampledFrom([]envelope.Type{offer, offer, offer, accept, accept, result, result, failure, cancel, request})
	requestIDs := rapid.SampledFrom([]string{"req", "req", "req", "req", "req", "req", "other", ""})
	pauses := rapid.SampledFrom([]time.Duration{0, 0, time.Second, time.Minute, 5*time.Minute - 1, 5 * time.Minute, time.Hour - 1, time.Hour})
	rules := thread.Rules{MaxOffers: modelOffers}

	rapid.Check(t, func(t *rapid.T) {
		now := noon
		begin := to(rapid.SampledFrom([]didkey.DID{"", "", named}).Draw(t, "named"), message(client, request))
		th, _, err := rules.Apply(nil, begin, now)
		if err != nil {
			t.Fatal(err)
		}
		m := model{thread.Pending, begin.Recipient, "", map[didkey.DID]bool{}, 0, now.Add(5 * time.Minute)}
		for range rapid.IntRange(1, 25).Draw(t, "messages") {
			now = now.Add(pauses.Draw(t, "pause"))
			said := message(anybody.Draw(t, "by"), types.Draw(t, "type"))
			said = to(maybe.Draw(t, "to"), withRequestID(requestIDs.Draw(t, "request_id"), said))
			th = agree(t, rules, th, &m, said, now)
		}
	})
}

// agree says a message to the code and to the model, and returns the thread as both then have it.
func agree(t fataler, rules thread.Rules, th thread.Thread, m *model, said *envelope.Envelope, now time.Time) thread.Thread {
	t.Helper()
	want := m.step(said, now)
	next, err := rules.Next(th, said, now)
	if got := status(t, err); got != want {
		t.Fatalf("%s by %s to %q: %v; the model says %d", said.Type, said.Sender.ID, said.Recipient, err, want)
	}
	if err == nil {
		th = next
	}
	at := rules.At(th, now)
	if at.State != m.state || at.Agent != m.agent || at.OffersMade != m.made {
		t.Fatalf("%s, agent %q, %d offers; the model says %s, %q, %d", at.State, at.Agent, at.OffersMade, m.state, m.agent, m.made)
	}
	for _, did := range people {
		if at.Offered(did) != m.standing[did] {
			t.Fatalf("Offered(%s) = %v", did, at.Offered(did))
		}
	}
	checkHistory(t, at)
	return th
}

// checkHistory asks of a record what must hold of every record, whatever was said.
func checkHistory(t fataler, th thread.Thread) {
	state, accepts := thread.Open, 0
	offers := map[didkey.DID]bool{}
	var last time.Time
	for i, step := range th.Transitions {
		if step.From != state || step.At.Before(last) {
			t.Fatalf("step %d starts at %s, %v; it was %s, %v", i, step.From, step.At, state, last)
		}
		moved := step.From != step.To
		party := step.By == client || step.By == th.Agent || step.By == th.Recipient
		switch {
		case state == thread.Failed:
			t.Fatalf("step %d comes after the end", i)
		case state == thread.Completed && step.To != thread.Completed && !(step.To == thread.Failed && step.Type == failure):
			t.Fatalf("step %d leads from COMPLETED to %s by %s", i, step.To, step.Type)
		case moved && step.Type != thread.TypeTimeout && !party:
			t.Fatalf("step %d: %s moved it to %s, and is no party", i, step.By, step.To)
		case step.Type == offer:
			offers[step.By] = true
		case step.Type == accept:
			accepts++
		case step.Type == result && step.By != th.Agent:
			t.Fatalf("step %d: %s delivered, %s was accepted", i, step.By, th.Agent)
		}
		state, last = step.To, step.At
	}
	if state != th.State || accepts > 1 || (th.Agent != "") != (accepts == 1) || th.Agent != "" && !offers[th.Agent] {
		t.Fatalf("%s after %s, %d ACCEPTs, agent %q", th.State, state, accepts, th.Agent)
	}
}

// Whatever Mallory does in threads of the same id, a message that moves the client's thread moves it as if they were
// not there, if it names whom it is for.
func TestCopiesChangeNothing(t *testing.T) {
	agents := rapid.SampledFrom([]didkey.DID{"a", "b"})
	types := rapid.SampledFrom([]envelope.Type{offer, offer, accept, result, failure, cancel})
	draw := func(t *rapid.T, owner didkey.DID) *envelope.Envelope {
		typ := types.Draw(t, "type")
		if typ == accept || typ == cancel {
			return to(agents.Draw(t, "to"), message(owner, typ))
		}
		return to(owner, message(agents.Draw(t, "by"), typ))
	}
	run := func(t *rapid.T, owner didkey.DID) thread.Thread {
		th, _, _ := (thread.Rules{}).Apply(nil, message(owner, request), noon)
		for range rapid.IntRange(0, 6).Draw(t, "messages") {
			if next, err := (thread.Rules{}).Next(th, draw(t, owner), noon); err == nil {
				th = next
			}
		}
		return th
	}
	rapid.Check(t, func(t *rapid.T) {
		ours, theirs := run(t, client), run(t, mallory)
		m := draw(t, client)
		alone, _, refusal := (thread.Rules{}).Apply([]thread.Thread{ours}, m, noon)
		for _, candidates := range [][]thread.Thread{{ours, theirs}, {theirs, ours}} {
			next, chosen, err := (thread.Rules{}).Apply(candidates, m, noon)
			if (err == nil) != (refusal == nil) || text(t, next) != text(t, alone) {
				t.Fatalf("%s by %s: %s, %v; alone it is %s, %v", m.Type, m.Sender.ID, next.State, err, alone.State, refusal)
			}
			if err == nil && chosen != slices.IndexFunc(candidates, func(c thread.Thread) bool { return c.Client == client }) {
				t.Fatalf("%s by %s: thread %d was moved", m.Type, m.Sender.ID, chosen)
			}
		}
	})
}
