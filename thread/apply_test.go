package thread_test

import (
	"slices"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// mallory opens threads with ids copied from the threads of other clients.
const mallory didkey.DID = "mallory"

// copied returns Mallory's thread with the copied id after these messages.
func copied(t *testing.T, messages ...*envelope.Envelope) thread.Thread {
	t.Helper()
	return play(t, append([]*envelope.Envelope{message(mallory, request)}, messages...)...)
}

// TestApplyChooses checks which of several threads with one id a message belongs to.
func TestApplyChooses(t *testing.T) {
	pending := play(t, message(client, request), message(offered, offer))
	active := play(t, message(client, request), message(offered, offer), message(client, accept))
	lure := play(t, to(offered, message(mallory, request))) // a copy whose REQUEST names the agent of the original
	otherID := play(t, withRequestID("other", message(mallory, request)))
	type threads = []thread.Thread
	for _, c := range []struct {
		name       string
		candidates threads
		m          *envelope.Envelope
		chosen     int
		state      thread.State
	}{
		{"an OFFER belongs to the oldest", threads{pending, copied(t)}, message(stranger, offer), 0, thread.Pending},
		{"an OFFER belongs to the oldest, even if it is a copy", threads{copied(t), pending},
			message(stranger, offer), 0, thread.Pending},
		{"recipient.id selects a younger thread", threads{copied(t), pending},
			to(client, message(stranger, offer)), 1, thread.Pending},
		{"recipient.id selects a younger copy", threads{pending, copied(t)},
			to(mallory, message(stranger, offer)), 1, thread.Pending},
		{"request_id selects a younger thread", threads{otherID, pending}, message(stranger, offer), 1, thread.Pending},
		{"request_id selects a younger copy", threads{pending, otherID},
			withRequestID("other", message(stranger, offer)), 1, thread.Pending},
		{"an ACCEPT belongs to its client's thread", threads{copied(t), pending}, message(client, accept), 1, thread.Active},
		{"an ACCEPT from Mallory belongs to the copy", threads{pending, copied(t, message(stranger, offer))},
			message(mallory, accept), 1, thread.Active},
		{"a RESULT does not go to an older copy", threads{lure, active}, message(offered, result), 1, thread.Completed},
		{"a RESULT does not go to a younger copy", threads{active, lure}, message(offered, result), 0, thread.Completed},
		{"an ERROR does not go to a copy", threads{active, copied(t)}, message(offered, failure), 0, thread.Failed},
		{"a CANCEL belongs to its client's thread", threads{copied(t), active}, message(client, cancel), 1, thread.Failed},
		{"a REQUEST with a copied id opens a thread", threads{pending, active},
			message(mallory, request), -1, thread.Pending},
	} {
		next, chosen, err := (thread.Rules{}).Apply(c.candidates, c.m, noon)
		if err != nil || chosen != c.chosen || next.State != c.state {
			t.Errorf("%s: thread %d becomes %s, error %v; want thread %d to become %s",
				c.name, chosen, next.State, err, c.chosen, c.state)
			continue
		}
		if c.chosen < 0 {
			if next.Client != c.m.Sender.ID {
				t.Errorf("%s: the new thread belongs to %s", c.name, next.Client)
			}
		} else if next.Client != c.candidates[c.chosen].Client {
			t.Errorf("%s: the client of thread %d has changed to %s", c.name, c.chosen, next.Client)
		}
	}
}

// TestApplyRefuses checks which error a message gets if no thread allows it. The order of the threads does not matter,
// except between errors of equal rank.
func TestApplyRefuses(t *testing.T) {
	pending := play(t, message(client, request), message(offered, offer))
	active := play(t, message(client, request), message(offered, offer), message(client, accept))
	done := play(t, message(client, request), message(offered, offer), message(client, accept), message(offered, result))
	direct := play(t, to(named, message(mallory, request)))
	otherID := play(t, withRequestID("other", message(mallory, request)))
	type threads = []thread.Thread
	for _, c := range []struct {
		name       string
		candidates threads
		m          *envelope.Envelope
		status     int
	}{
		{"no thread", nil, message(offered, offer), 404},
		{"REQUEST without an intent", nil, withPayload(`{}`, message(client, request)), 400},
		{"a stranger's RESULT", threads{active, direct}, message(stranger, result), 403},
		{"Mallory's CANCEL of the original", threads{pending}, message(mallory, cancel), 403},
		{"Mallory accepts an offer to the original", threads{pending, copied(t)},
			to(offered, message(mallory, accept)), 409},
		{"wrong state beats wrong party", threads{active, direct}, message(stranger, offer), 409},
		{"wrong request_id beats wrong party", threads{direct, otherID}, message(stranger, offer), 400},
		{"wrong state beats wrong request_id", threads{active, otherID}, message(stranger, offer), 409},
		{"a client's second REQUEST", threads{pending, copied(t)}, message(client, request), 409},
		{"a second REQUEST after the end", threads{done, copied(t)}, message(client, request), 409},
		{"Mallory's second REQUEST", threads{pending, copied(t)}, message(mallory, request), 409},
		{"RESULT twice", threads{done, direct}, message(offered, result), 409},
	} {
		backwards := slices.Clone(c.candidates)
		slices.Reverse(backwards)
		for _, candidates := range []threads{c.candidates, backwards} {
			next, chosen, err := (thread.Rules{}).Apply(candidates, c.m, noon)
			if status(t, err) != c.status || chosen != -1 || next.State != "" {
				t.Errorf("%s: thread %d, state %s, error %v; want status %d", c.name, chosen, next.State, err, c.status)
			}
		}
	}
	for _, candidates := range []threads{{active, done}, {done, active}} { // equal rank: the error of the oldest thread
		_, _, err := (thread.Rules{}).Apply(candidates, message(stranger, offer), noon)
		if status(t, err) != 409 || err.(*envelope.Error).Details["state"] != candidates[0].State {
			t.Errorf("%s before %s: error %v, want one with the first state",
				candidates[0].State, candidates[1].State, err)
		}
	}
	full := thread.Rules{MaxOffers: 1}
	if _, _, err := full.Apply(threads{direct, pending}, message(stranger, offer), noon); status(t, err) != 429 {
		t.Errorf("a thread with all its offers and a thread that names another agent: error %v, want 429", err)
	}
}

// TestRequestBecomesTheThread checks the thread that a REQUEST opens.
func TestRequestBecomesTheThread(t *testing.T) {
	m := to(named, message(client, request))
	th, chosen, err := (thread.Rules{}).Apply(nil, m, noon)
	if err != nil || chosen != -1 {
		t.Fatalf("thread %d, error %v; want a new thread", chosen, err)
	}
	if th.ID != "t" || th.Client != client || th.Recipient != named || th.RequestID != "req" ||
		th.State != thread.Pending {
		t.Errorf("got %+v", th)
	}
	if th.Key() != (thread.Key{Client: client, ID: "t"}) {
		t.Errorf("Key = %v", th.Key())
	}
}

// TestParties checks Agents and IsParty.
func TestParties(t *testing.T) {
	bids := []*envelope.Envelope{
		message(client, request), message(offered, offer), message(accepted, offer), message(offered, offer),
	}
	for _, c := range []struct {
		name   string
		th     thread.Thread
		agents []didkey.DID
	}{
		{"broadcast, no offer", play(t, bids[0]), nil},
		{"broadcast, two offered", play(t, bids...), []didkey.DID{offered, accepted}},
		{"broadcast, one accepted", play(t, append(bids, to(accepted, message(client, accept)))...), []didkey.DID{accepted}},
		{"REQUEST to a named agent", play(t, to(named, message(client, request))), []didkey.DID{named}},
	} {
		if got := c.th.Agents(); !slices.Equal(got, c.agents) {
			t.Errorf("%s: Agents = %v, want %v", c.name, got, c.agents)
		}
		for _, did := range []didkey.DID{client, named, accepted, offered, stranger} {
			if want := did == client || slices.Contains(c.agents, did); c.th.IsParty(did) != want {
				t.Errorf("%s: IsParty(%s) = %v, want %v", c.name, did, !want, want)
			}
		}
	}
}
