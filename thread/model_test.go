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

// model is a second implementation of the thread rules of PROTOCOL §4. It shares no code with package thread. It has
// the current state of a thread but no history.
type model struct {
	state        thread.State
	named, agent didkey.DID
	hasOffer     map[didkey.DID]bool // the agents with an open offer
	offersMade   int
	deadline     time.Time
}

// parties are the senders and recipients in runs of the model.
var parties = []didkey.DID{client, named, "a", "b", stranger}

const modelOffers = 6 // the limit of offers in runs of the model

// step applies m to the model. It returns the status of the error that m gets, or 0.
func (s *model) step(m *envelope.Envelope, now time.Time) int {
	if (s.state == thread.Pending || s.state == thread.Active) && !now.Before(s.deadline) {
		s.state = thread.Failed
	}
	by, pending, active := m.Sender.ID, s.state == thread.Pending, s.state == thread.Active
	byClient := by == client
	isParty := byClient || by == s.agent || by == s.named
	mayBeAccepted := s.agent == "" && (by == s.named || s.named == "" && s.hasOffer[by])

	rightRole := map[envelope.Type]bool{
		request: byClient, accept: byClient, cancel: byClient,
		offer:   !byClient && (s.named == "" || by == s.named),
		result:  !byClient && (by == s.agent || mayBeAccepted),
		failure: isParty || s.hasOffer[by],
	}[m.Type]
	toCounterpart := m.Recipient == client
	if byClient {
		toCounterpart = m.Recipient == s.agent
		if s.agent == "" {
			toCounterpart = m.Recipient == s.named || s.hasOffer[m.Recipient]
		}
	}
	rightState := map[envelope.Type]bool{
		offer: pending, accept: pending, cancel: pending || active, result: active, failure: s.state != thread.Failed,
	}[m.Type]
	switch carries := m.Type == offer || m.Type == accept || m.Type == result; {
	case !rightRole:
		return 403
	case m.Recipient != "" && m.Type != request && !toCounterpart && m.Type == accept:
		return 409
	case m.Recipient != "" && m.Type != request && !toCounterpart:
		return 403
	case m.Type != request && m.RequestID != "req" && (carries || m.RequestID != ""):
		return 400
	case !rightState:
		return 409
	}

	switch m.Type {
	case offer:
		if s.offersMade == modelOffers {
			return 429
		}
		s.offersMade++
		s.hasOffer[by] = true
		s.deadline = now.Add(5 * time.Minute)
	case accept:
		chosen := m.Recipient
		if chosen == "" && len(s.hasOffer) == 1 {
			for only := range s.hasOffer {
				chosen = only
			}
		}
		if !s.hasOffer[chosen] {
			return 409
		}
		s.state, s.agent, s.deadline = thread.Active, chosen, now.Add(time.Hour)
	case result:
		s.state = thread.Completed
	case cancel:
		s.state = thread.Failed
	case failure:
		if isParty {
			s.state = thread.Failed
		} else {
			delete(s.hasOffer, by)
		}
	}
	return 0
}

// TestAgainstModel sends random messages between a client and four agents at random times. The code and the model must
// always agree, and the history that the code records must be consistent.
func TestAgainstModel(t *testing.T) {
	senders := rapid.SampledFrom(parties)
	recipients := rapid.SampledFrom(append([]didkey.DID{"", "", "", "", client, client}, parties...))
	types := rapid.SampledFrom([]envelope.Type{
		offer, offer, offer, accept, accept, result, result, failure, cancel, request,
	})
	requestIDs := rapid.SampledFrom([]string{"req", "req", "req", "req", "req", "req", "other", ""})
	pauses := rapid.SampledFrom([]time.Duration{
		0, 0, time.Second, time.Minute, 5*time.Minute - 1, 5 * time.Minute, time.Hour - 1, time.Hour,
	})
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
			sent := message(senders.Draw(t, "by"), types.Draw(t, "type"))
			sent = to(recipients.Draw(t, "to"), withRequestID(requestIDs.Draw(t, "request_id"), sent))
			th = stepBoth(t, rules, th, &m, sent, now)
		}
	})
}

// stepBoth applies a message to the code and to the model, and checks that they agree. It returns the thread after the
// message.
func stepBoth(
	t testingT, rules thread.Rules, th thread.Thread, m *model, sent *envelope.Envelope, now time.Time,
) thread.Thread {
	t.Helper()
	want := m.step(sent, now)
	next, err := rules.Next(th, sent, now)
	if got := status(t, err); got != want {
		t.Fatalf("%s from %s to %q: error %v; the model has status %d", sent.Type, sent.Sender.ID, sent.Recipient, err, want)
	}
	if err == nil {
		th = next
	}
	at := rules.At(th, now)
	if at.State != m.state || at.Agent != m.agent || at.OffersMade != m.offersMade {
		t.Fatalf("state %s, agent %q, %d offers; the model has %s, %q, %d",
			at.State, at.Agent, at.OffersMade, m.state, m.agent, m.offersMade)
	}
	for _, did := range parties {
		if at.Offered(did) != m.hasOffer[did] {
			t.Fatalf("Offered(%s) = %v, but the model has %v", did, at.Offered(did), m.hasOffer[did])
		}
	}
	checkHistory(t, at)
	return th
}

// checkHistory checks that the transitions of th follow each other and lead to its state.
func checkHistory(t testingT, th thread.Thread) {
	state, accepts := thread.Open, 0
	offers := map[didkey.DID]bool{}
	var last time.Time
	for i, step := range th.Transitions {
		if step.From != state || step.At.Before(last) {
			t.Fatalf("step %d starts in the state %s at %v; the step before ended in %s at %v",
				i, step.From, step.At, state, last)
		}
		moved := step.From != step.To
		party := step.By == client || step.By == th.Agent || step.By == th.Recipient
		switch {
		case state == thread.Failed:
			t.Fatalf("step %d comes after the thread has ended", i)
		case state == thread.Completed && step.To != thread.Completed && !(step.To == thread.Failed && step.Type == failure):
			t.Fatalf("step %d leads from COMPLETED to %s with the type %s", i, step.To, step.Type)
		case moved && step.Type != thread.TypeTimeout && !party:
			t.Fatalf("step %d: %s is no party but moved the thread to %s", i, step.By, step.To)
		case step.Type == offer:
			offers[step.By] = true
		case step.Type == accept:
			accepts++
		case step.Type == result && step.By != th.Agent:
			t.Fatalf("step %d: the RESULT is from %s, but the accepted agent is %s", i, step.By, th.Agent)
		}
		state, last = step.To, step.At
	}
	if state != th.State || accepts > 1 || (th.Agent != "") != (accepts == 1) || th.Agent != "" && !offers[th.Agent] {
		t.Fatalf("the thread has the state %s and the agent %q; its transitions have the state %s and %d ACCEPTs",
			th.State, th.Agent, state, accepts)
	}
}

// TestCopiesChangeNothing checks messages that name a recipient. If Mallory has a thread with the same id in any state,
// such a message must change the client's thread in the same way as without Mallory's thread.
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
		original, other := run(t, client), run(t, mallory)
		m := draw(t, client)
		alone, _, refusal := (thread.Rules{}).Apply([]thread.Thread{original}, m, noon)
		for _, candidates := range [][]thread.Thread{{original, other}, {other, original}} {
			next, chosen, err := (thread.Rules{}).Apply(candidates, m, noon)
			if (err == nil) != (refusal == nil) || text(t, next) != text(t, alone) {
				t.Fatalf("%s from %s: state %s, error %v; without the copy: state %s, error %v",
					m.Type, m.Sender.ID, next.State, err, alone.State, refusal)
			}
			if err == nil && chosen != slices.IndexFunc(candidates, func(c thread.Thread) bool { return c.Client == client }) {
				t.Fatalf("%s from %s: thread %d was changed, want the client's", m.Type, m.Sender.ID, chosen)
			}
		}
	})
}
