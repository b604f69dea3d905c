package thread_test

import (
	"slices"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// Threads of one id that belong to different clients: Mallory has copied the id of somebody else's.
const mallory didkey.DID = "mallory"

// copied is Mallory's thread, moved as far as the messages say.
func copied(t *testing.T, messages ...*envelope.Envelope) thread.Thread {
	t.Helper()
	return play(t, append([]*envelope.Envelope{message(mallory, request)}, messages...)...)
}

func TestApplyChooses(t *testing.T) {
	pending := play(t, message(client, request), message(offered, offer))
	active := play(t, message(client, request), message(offered, offer), message(client, accept))
	lure := play(t, to(offered, message(mallory, request))) // a copy that names the agent it wants to confuse
	otherID := play(t, withRequestID("other", message(mallory, request)))
	type threads = []thread.Thread
	for _, c := range []struct {
		name       string
		candidates threads
		m          *envelope.Envelope
		chosen     int
		state      thread.State
	}{
		{"the oldest is meant", threads{pending, copied(t)}, message(stranger, offer), 0, thread.Pending},
		{"also if the copy is the oldest", threads{copied(t), pending}, message(stranger, offer), 0, thread.Pending},
		{"recipient decides against age", threads{copied(t), pending}, to(client, message(stranger, offer)), 1, thread.Pending},
		{"recipient finds the copy too", threads{pending, copied(t)}, to(mallory, message(stranger, offer)), 1, thread.Pending},
		{"request_id decides against age", threads{otherID, pending}, message(stranger, offer), 1, thread.Pending},
		{"request_id finds the copy too", threads{pending, otherID}, withRequestID("other", message(stranger, offer)), 1, thread.Pending},
		{"the client moves his own", threads{copied(t), pending}, message(client, accept), 1, thread.Active},
		{"so does the copier", threads{pending, copied(t, message(stranger, offer))}, message(mallory, accept), 1, thread.Active},
		{"an older copy does not catch the RESULT", threads{lure, active}, message(offered, result), 1, thread.Completed},
		{"nor a younger one", threads{active, lure}, message(offered, result), 0, thread.Completed},
		{"nor an ERROR", threads{active, copied(t)}, message(offered, failure), 0, thread.Failed},
		{"CANCEL reaches the canceller's", threads{copied(t), active}, message(client, cancel), 1, thread.Failed},
		{"REQUEST with an id in use elsewhere", threads{pending, active}, message(mallory, request), -1, thread.Pending},
	} {
		next, chosen, err := (thread.Rules{}).Apply(c.candidates, c.m, noon)
		if err != nil || chosen != c.chosen || next.State != c.state {
			t.Errorf("%s: thread %d becomes %s, %v; want %d, %s", c.name, chosen, next.State, err, c.chosen, c.state)
			continue
		}
		if c.chosen < 0 {
			if next.Client != c.m.Sender.ID {
				t.Errorf("%s: the new thread belongs to %s", c.name, next.Client)
			}
		} else if next.Client != c.candidates[c.chosen].Client {
			t.Errorf("%s: thread %d has passed to %s", c.name, c.chosen, next.Client)
		}
	}
}

// Where no thread admits the message, the refusal is the one that came closest, in whatever order the threads stand.
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
		{"a copier's CANCEL of the original", threads{pending}, message(mallory, cancel), 403},
		{"a copier accepts another's offers", threads{pending, copied(t)}, to(offered, message(mallory, accept)), 409},
		{"wrong state beats wrong party", threads{active, direct}, message(stranger, offer), 409},
		{"wrong request_id beats wrong party", threads{direct, otherID}, message(stranger, offer), 400},
		{"wrong state beats wrong request_id", threads{active, otherID}, message(stranger, offer), 409},
		{"a client's second REQUEST", threads{pending, copied(t)}, message(client, request), 409},
		{"a second REQUEST after the end", threads{done, copied(t)}, message(client, request), 409},
		{"a copier's second REQUEST", threads{pending, copied(t)}, message(mallory, request), 409},
		{"RESULT twice", threads{done, direct}, message(offered, result), 409},
	} {
		backwards := slices.Clone(c.candidates)
		slices.Reverse(backwards)
		for _, candidates := range []threads{c.candidates, backwards} {
			next, chosen, err := (thread.Rules{}).Apply(candidates, c.m, noon)
			if status(t, err) != c.status || chosen != -1 || next.State != "" {
				t.Errorf("%s: %d, %s, %v; want %d", c.name, chosen, next.State, err, c.status)
			}
		}
	}
	for _, candidates := range []threads{{active, done}, {done, active}} { // equally close: the oldest's
		_, _, err := (thread.Rules{}).Apply(candidates, message(stranger, offer), noon)
		if status(t, err) != 409 || err.(*envelope.Error).Details["state"] != candidates[0].State {
			t.Errorf("%s before %s: %v", candidates[0].State, candidates[1].State, err)
		}
	}
	full := thread.Rules{MaxOffers: 1}
	if _, _, err := full.Apply(threads{direct, pending}, message(stranger, offer), noon); status(t, err) != 429 {
		t.Errorf("a full thread and one of others: %v, want 429", err)
	}
}

func TestRequestBecomesTheThread(t *testing.T) {
	m := to(named, message(client, request))
	th, chosen, err := (thread.Rules{}).Apply(nil, m, noon)
	if err != nil || chosen != -1 {
		t.Fatalf("%d, %v", chosen, err)
	}
	if th.ID != "t" || th.Client != client || th.Recipient != named || th.RequestID != "req" || th.State != thread.Pending {
		t.Errorf("got %+v", th)
	}
	if th.Key() != (thread.Key{Client: client, ID: "t"}) {
		t.Errorf("Key = %v", th.Key())
	}
}

func TestParties(t *testing.T) {
	bids := []*envelope.Envelope{message(client, request), message(offered, offer), message(accepted, offer), message(offered, offer)}
	for _, c := range []struct {
		name   string
		th     thread.Thread
		agents []didkey.DID
	}{
		{"broadcast, silent", play(t, bids[0]), nil},
		{"broadcast, two offered", play(t, bids...), []didkey.DID{offered, accepted}},
		{"one accepted", play(t, append(bids, to(accepted, message(client, accept)))...), []didkey.DID{accepted}},
		{"named", play(t, to(named, message(client, request))), []didkey.DID{named}},
	} {
		if got := c.th.Agents(); !slices.Equal(got, c.agents) {
			t.Errorf("%s: Agents = %v, want %v", c.name, got, c.agents)
		}
		for _, did := range []didkey.DID{client, named, accepted, offered, stranger} {
			if want := did == client || slices.Contains(c.agents, did); c.th.IsParty(did) != want {
				t.Errorf("%s: IsParty(%s) = %v", c.name, did, !want)
			}
		}
	}
}
