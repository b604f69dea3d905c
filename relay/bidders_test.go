package relay_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// openThread posts a broadcast REQUEST, which opens the thread t. offer posts an OFFER to it.
func openThread(t *testing.T, r *relay.Relay) (client didkey.Key, request *envelope.Envelope, offer func(didkey.Key)) {
	t.Helper()
	client = key(t)
	request = sign(t, client, envelope.Draft{Payload: envelope.Request{RequestID: "r1", Intent: "echo"}, Thread: "t",
		TTL: time.Hour})
	post(t, r, request)
	return client, request, func(by didkey.Key) {
		t.Helper()
		post(t, r, sign(t, by, envelope.Draft{Payload: envelope.Offer{RequestID: "r1"}, Thread: "t",
			Recipient: client.DID()}))
	}
}

// TestReceiptStateIsForParties checks that a receipt has the state of the thread only for a party that has changed it.
// It has none for a copy, and none for an agent that withdraws an offer that was not accepted.
func TestReceiptStateIsForParties(t *testing.T) {
	for name, c := range map[string]struct {
		config relay.Config
		hidden thread.State // the state that others are told while the thread is ACTIVE
	}{"open": {relay.Config{Origin: ownOrigin}, thread.Active}, "parties": {privateConfig, ""}} {
		t.Run(name, func(t *testing.T) {
			r := start(t, c.config)
			agent, loser := key(t), key(t)
			client, request, offer := openThread(t, r)
			offer(agent)
			offer(loser)
			step := func(want thread.State, by didkey.Key, payload envelope.Payload) {
				t.Helper()
				to := client.DID()
				if by.DID() == client.DID() {
					to = agent.DID()
				}
				got := post(t, r, sign(t, by, envelope.Draft{Payload: payload, Thread: "t", Recipient: to}))
				if got.State != want || got.Thread != (thread.Key{Client: client.DID(), ID: "t"}) {
					t.Errorf("%T: %q of %v, want %q", payload, got.State, got.Thread, want)
				}
			}
			step(thread.Active, client, envelope.Accept{RequestID: "r1"})
			step(c.hidden, loser, envelope.Failure{RequestID: "r1", Code: "X", Message: "x"})
			if again := post(t, r, request); !again.Duplicate || again.State != c.hidden || again.Thread.ID != "t" {
				t.Errorf("a copy: %+v", again)
			}
			step(thread.Completed, agent, envelope.Result{RequestID: "r1", Status: "success"})
			step(thread.Failed, agent, envelope.Failure{RequestID: "r1", Code: "X", Message: "x"})
		})
	}
}

// TestBiddersHaveTheirOwnDeadline checks that an agent sees the end of a thread at the deadline of its own offer. It
// does not matter who offers later, and how the thread really ends.
func TestBiddersHaveTheirOwnDeadline(t *testing.T) {
	racing.Skip(t, "one thing after another")
	for name, end := range map[string]envelope.Payload{"the clock": nil, "its client": envelope.Cancel{RequestID: "r1"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, privateConfig)
				agent, other := key(t), key(t)
				client, _, offer := openThread(t, r)
				offer(agent)
				deadline := time.Now().Add(thread.DefaultPendingTimeout)
				time.Sleep(4 * time.Minute)
				offer(other)
				view := func() relay.ThreadView {
					t.Helper()
					v, err := r.Thread(t.Context(), signedPeer(agent), thread.Key{ID: "t"})
					if err != nil {
						t.Fatal(err)
					}
					return v
				}
				if v := view(); v.State != thread.Pending || !v.Deadline.Equal(deadline) {
					t.Errorf("before the deadline: %s until %v", v.State, v.Deadline)
				}
				ended := func(when string) {
					t.Helper()
					v := view()
					if last := v.Transitions[len(v.Transitions)-1]; v.State != thread.Failed || !v.Deadline.IsZero() ||
						!v.TimedOut() || len(v.Transitions) != 3 || !last.At.Equal(deadline) || last.From != thread.Pending {
						t.Errorf("%s: %+v, want the end at %v", when, v, deadline)
					}
					_, err := r.Post(t.Context(), local, sign(t, agent,
						envelope.Draft{Payload: envelope.Result{RequestID: "r1", Status: "success"}, Thread: "t"}).Canonical())
					if e := wantCode(t, err, envelope.CodeInvalidTransition); e.Details["state"] != thread.Failed {
						t.Errorf("%s: a RESULT is refused with %v", when, e.Details)
					}
				}
				time.Sleep(2 * time.Minute)
				ended("while the offer of another agent is open")
				if end != nil {
					post(t, r, sign(t, client, envelope.Draft{Payload: end, Thread: "t", Recipient: other.DID()}))
				}
				time.Sleep(4 * time.Minute)
				ended("after the real end")
			})
		})
	}
}

// TestExpiredCountsVisibleEventsOnly checks that a message from the client to another agent is not counted.
func TestExpiredCountsVisibleEventsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, privateConfig)
		agent, other := key(t), key(t)
		client, _, offer := openThread(t, r)
		offer(agent)
		offer(other)
		post(t, r, sign(t, client, envelope.Draft{Payload: envelope.Cancel{RequestID: "r1"}, Thread: "t",
			Recipient: other.DID(), TTL: time.Minute}))
		for _, sleep := range []time.Duration{0, 2 * time.Minute} {
			time.Sleep(sleep)
			v, err := r.Thread(t.Context(), signedPeer(agent), thread.Key{ID: "t"})
			if err != nil || v.State != thread.Failed || v.TimedOut() || v.Expired != 0 {
				t.Errorf("%+v, %v", v, err)
			}
		}
		if v, err := r.Thread(t.Context(), signedPeer(client), thread.Key{ID: "t"}); err != nil || v.Expired != 1 {
			t.Errorf("the client: %+v, %v", v, err)
		}
	})
}

// TestPartyIsToldTheStateOfItsThread checks that a party that posts too early is told so. The thread changes before the
// refusal is answered.
func TestPartyIsToldTheStateOfItsThread(t *testing.T) {
	inner := &countingStore{}
	c := privateConfig
	c.Store = inner
	r := start(t, c)
	agent := key(t)
	client, _, offer := openThread(t, r)
	offer(agent)
	inner.refused = func() {
		post(t, r, sign(t, client, envelope.Draft{Payload: envelope.Accept{RequestID: "r1"}, Thread: "t",
			Recipient: agent.DID()}))
	}
	_, err := r.Post(t.Context(), local, sign(t, agent,
		envelope.Draft{Payload: envelope.Result{RequestID: "r1", Status: "success"},
			Thread: "t", Recipient: client.DID()}).Canonical())
	wantCode(t, err, envelope.CodeInvalidTransition)
}
