package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// testThreads checks which threads Thread and ThreadsOf find, and that a thread times out without a call of Expire.
func testThreads(t *testing.T, open Opener) {
	f := newFixture(t, open, relay.Policy{})
	f.post(alice, in("t", request))
	f.post(bob, to(carol, in("t", request)))
	f.advance(time.Minute)
	f.post(carol, to(bob, in("t", offer)))

	for _, c := range []struct {
		name   string
		key    thread.Key
		after  time.Duration
		client didkey.Key
		state  thread.State
	}{
		{"by key", thread.Key{Client: bob.DID(), ID: "t"}, 0, bob, thread.Pending},
		{"the oldest by id", thread.Key{ID: "t"}, 0, alice, thread.Pending},
		{"just before its deadline", thread.Key{ID: "t"},
			thread.DefaultPendingTimeout - time.Minute - 1, alice, thread.Pending},
		{"at its deadline", thread.Key{ID: "t"},
			thread.DefaultPendingTimeout - time.Minute, alice, thread.Failed},
		{"just before the deadline that an offer extended", thread.Key{Client: bob.DID(), ID: "t"},
			thread.DefaultPendingTimeout - 1, bob, thread.Pending},
		{"at the deadline that an offer extended", thread.Key{Client: bob.DID(), ID: "t"},
			thread.DefaultPendingTimeout, bob, thread.Failed},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := f.Thread(t.Context(), c.key, f.now.Add(c.after))
			if err != nil || got.Client != c.client.DID() || got.State != c.state {
				t.Errorf("thread %+v, error %v; want the thread of %s with the state %s", got, err, c.client.DID(), c.state)
			}
		})
	}
	for _, key := range []thread.Key{{ID: "else"}, {Client: carol.DID(), ID: "t"}, {Client: dave.DID(), ID: "t"}, {}} {
		if got, err := f.Thread(t.Context(), key, f.now); codeOf(err) != envelope.CodeThreadNotFound {
			t.Errorf("%v: thread %+v, error %v; want the error %s", key, got, err, envelope.CodeThreadNotFound)
		}
	}
	t.Run("the threads of a party", func(t *testing.T) {
		f.post(dave, to(carol, in("t", request)))
		for _, c := range []struct {
			key    thread.Key
			party  didkey.DID
			after  time.Duration
			owners []didkey.DID
		}{
			{thread.Key{ID: "t"}, alice.DID(), 0, []didkey.DID{alice.DID()}},
			{thread.Key{ID: "t"}, carol.DID(), 0, []didkey.DID{bob.DID(), dave.DID()}},
			{thread.Key{ID: "t", Client: dave.DID()}, carol.DID(), 0, []didkey.DID{dave.DID()}},
			{thread.Key{ID: "t", Client: alice.DID()}, carol.DID(), 0, nil},
			{thread.Key{ID: "t"}, node.DID(), 0, nil},
			{thread.Key{ID: "t"}, "", 0, nil},
			{thread.Key{ID: "else"}, carol.DID(), 0, nil},
			{thread.Key{ID: "t"}, bob.DID(), time.Hour, []didkey.DID{bob.DID()}},
		} {
			got, err := f.ThreadsOf(t.Context(), c.key, c.party, f.now.Add(c.after))
			f.must(err)
			var owners []didkey.DID
			for _, one := range got {
				owners = append(owners, one.Client)
				if ended := one.State == thread.Failed; ended != (c.after > 0) {
					t.Errorf("%v after %v: the state is %s", c.key, c.after, one.State)
				}
			}
			f.equal(fmt.Sprint(c.key, " of ", c.party), owners, c.owners)
		}
	})
	t.Run("the threads of a party among 70 copies of the id", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		for range 70 {
			stranger, err := didkey.Generate()
			f.must(err)
			f.post(stranger, to(dave, in("t", request)))
		}
		f.post(alice, to(bob, in("t", request)))
		for key, party := range map[thread.Key]didkey.DID{
			{ID: "t"}: alice.DID(), {ID: "t", Client: alice.DID()}: bob.DID(),
		} {
			got, err := f.ThreadsOf(t.Context(), key, party, f.now)
			f.must(err)
			if len(got) != 1 || got[0].Client != alice.DID() {
				t.Errorf("%v, party %s: %d threads, want only alice's", key, party, len(got))
			}
		}
	})
	t.Run("all fields of a thread", func(t *testing.T) {
		want := thread.Thread{ID: "t", Client: bob.DID(), State: thread.Pending, RequestID: "req",
			Recipient: carol.DID(), OffersMade: 1}
		asked := f.stored(relay.Filter{Sender: bob.DID()})[0]
		offered := f.stored(relay.Filter{Sender: carol.DID()})[0]
		want.Offers = []thread.Offer{{Agent: carol.DID(), ID: offered.ID, At: offered.Received}}
		want.Transitions = []thread.Transition{
			{From: thread.Open, To: thread.Pending, Type: envelope.TypeRequest,
				By: bob.DID(), ID: asked.ID, At: asked.Received},
			{From: thread.Pending, To: thread.Pending, Type: envelope.TypeOffer,
				By: carol.DID(), ID: offered.ID, At: offered.Received},
		}
		got, err := f.Thread(t.Context(), thread.Key{Client: bob.DID(), ID: "t"}, f.now)
		f.must(err)
		f.equal("thread", got, want)
	})
}
