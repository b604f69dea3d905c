package relay

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// TestIndexWakesPermittedReadersOnly examines the waiters themselves. A waiter whose reader may not see an event is not
// woken and does not get the event, whatever its filter is.
func TestIndexWakesPermittedReadersOnly(t *testing.T) {
	var people [3]didkey.Key
	for i := range people {
		var err error
		if people[i], err = didkey.Generate(); err != nil {
			t.Fatal(err)
		}
	}
	alice, bob, eve := people[0], people[1], people[2]
	e, err := envelope.Draft{Payload: envelope.Request{RequestID: "r", Intent: "echo"}, Thread: "t",
		Recipient: bob.DID()}.Sign(alice, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	h := newHub("")
	for _, f := range []Filter{{}, {Thread: "t"}, {Sender: alice.DID()}, {Type: envelope.TypeRequest},
		{Recipient: bob.DID()},
		{Recipient: bob.DID(), Broadcast: true}} {
		for reader, sees := range map[didkey.DID]bool{"": false, eve.DID(): false, alice.DID(): true, bob.DID(): true} {
			f.Viewer = Viewer{Limited: true, DID: reader}
			w := h.add(f, Peer{})
			h.publish([]Posted{{Envelope: e}})
			if woken := len(w.woken) > 0; woken != sees || len(w.events) > 0 != sees {
				t.Errorf("%+v: woken %v with %d events", f, woken, len(w.events))
			}
			h.remove(w)
		}
	}
}

// TestWanted checks which events a node must read for its polls: only those for the recipients that they name, unless
// one poll waits for something else, or they name too many.
func TestWanted(t *testing.T) {
	h := newHub("")
	if got := h.wanted(); got.All || len(got.Recipients) > 0 {
		t.Errorf("without polls: %v", got)
	}
	h.add(Filter{Recipient: "alice", Broadcast: true}, Peer{})
	h.add(Filter{Recipient: "alice", Thread: "t"}, Peer{})
	w := h.add(Filter{Recipient: "bob"}, Peer{})
	got := h.wanted()
	slices.Sort(got.Recipients)
	if got.All || !slices.Equal(got.Recipients, []didkey.DID{"", "alice", "bob"}) {
		t.Errorf("two inboxes and broadcasts: %v", got)
	}
	h.remove(w)
	if got := h.wanted(); len(got.Recipients) != 2 {
		t.Errorf("after bob has left: %v", got)
	}
	for _, f := range []Filter{{}, {Thread: "t"}, {Sender: "alice"}, {Type: envelope.TypeResult}} {
		w := h.add(f, Peer{})
		if !h.wanted().All {
			t.Errorf("%+v: not all events are wanted", f)
		}
		h.remove(w)
	}
	for i := range maxWanted {
		h.add(Filter{Recipient: didkey.DID(strconv.Itoa(i))}, Peer{})
	}
	if !h.wanted().All {
		t.Error("more recipients than one query takes")
	}
}

// removing is a store that removes whatever it is asked to remove.
type removing struct{ Remover }

func (removing) Remove(_ context.Context, events []Seq, _ time.Time) ([]Seq, error) {
	return events, nil
}

// TestRemovalReachesWaiters examines the waiters themselves. If an event is removed before a waiting poll has taken it,
// the poll does not get it.
func TestRemovalReachesWaiters(t *testing.T) {
	sender, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	e, err := envelope.Draft{Payload: envelope.Request{RequestID: "r", Intent: "echo"}}.Sign(sender, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{store: removing{}, hub: newHub(""), now: time.Now}
	w := r.hub.add(Filter{}, Peer{})
	r.hub.publish([]Posted{{Event{Seq: 1}, e}, {Event{Seq: 2}, e}})
	if _, err := r.Remove(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if events := r.hub.take(w); len(events) != 1 || events[0].Seq != 2 {
		t.Errorf("the waiter has %v, want event 2", events)
	}
}
