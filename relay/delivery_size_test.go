package relay_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// maxBytesInMemory is how much memory a reader may use by not reading: the memory of one piece of its page.
const maxBytesInMemory = 256 << 10

// measure returns the ids of a delivery, their total size in bytes, and the most bytes that were in memory at once.
func measure(t *testing.T, d relay.Delivery) (ids []string, size, most int) {
	t.Helper()
	for events, err := range d.Pieces() {
		if err != nil {
			t.Fatal(err)
		}
		piece := 0
		for _, e := range events {
			ids = append(ids, e.ID)
			piece += len(e.Body)
		}
		size += piece
		most = max(most, piece)
	}
	return ids, size, most
}

// TestLargePagesAreReadInPieces checks that only a small part of a large page is in memory at once. It also checks that
// consecutive pages have every event once, in order, forwards and backwards.
func TestLargePagesAreReadInPieces(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		me, began := key(t).DID(), time.Now()
		var posted []string
		for n := range 90 {
			e := sign(t, key(t), envelope.Draft{Thread: "t", Recipient: me, TTL: time.Hour,
				Payload: envelope.Request{Intent: "echo", Title: strings.Repeat("x", n%3*50_000)}})
			post(t, r, e)
			posted = append(posted, e.ID)
		}
		backward := slices.Clone(posted)
		slices.Reverse(backward)
		for name, limit := range map[string]int{"a full page": 1000, "a few": 7, "one": 1} {
			for _, c := range []struct {
				read  func(context.Context, *relay.Poll) (relay.Delivery, error)
				start relay.Cursor
				want  []string
			}{{r.Events, relay.Cursor{}, posted}, {r.EventsBefore, endOf(t, r), backward}} {
				var got []string
				p := relay.Poll{Filter: relay.Filter{Recipient: me}, Cursor: c.start, Limit: limit}
				for more := true; more; {
					d, err := c.read(t.Context(), &p)
					if err != nil {
						t.Fatal(err)
					}
					ids, size, most := measure(t, d)
					if len(ids) > limit || size > relay.PageBytes || most > maxBytesInMemory || len(ids) == 0 {
						t.Fatalf("%s: a page of %d events, %d bytes; %d bytes in memory at once", name, len(ids), size, most)
					}
					got = append(got, ids...)
					p.Cursor, more = d.Cursor, d.More
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("%s: %d events in all, want the %d posted, in their order", name, len(got), len(posted))
				}
			}
		}
		d, err := r.Events(t.Context(), &relay.Poll{Filter: relay.Filter{Recipient: me}, Since: began.Add(-time.Second),
			Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, most := measure(t, d); most > maxBytesInMemory {
			t.Errorf("since: %d bytes in memory at once", most)
		}
	})
}

func TestLargeThreadIsReadInPieces(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		client := key(t)
		post(t, r, sign(t, client, envelope.Draft{Thread: "t", Payload: request}))
		for range 20 {
			post(t, r, sign(t, key(t), envelope.Draft{Thread: "t", Recipient: client.DID(),
				Payload: envelope.Offer{RequestID: "r1", Plan: strings.Repeat("x", 100_000)}}))
		}
		view, err := r.Thread(t.Context(), local, thread.Key{ID: "t"})
		if err != nil {
			t.Fatal(err)
		}
		ids, size, most := measure(t, view.Delivery)
		if len(ids) != 21 || size < 2_000_000 || most > maxBytesInMemory {
			t.Errorf("%d events, %d bytes; %d bytes in memory at once", len(ids), size, most)
		}
	})
}

// TestThreadViewHasAllEvents checks that a view has every envelope of a thread with as many offers as the rules allow.
func TestThreadViewHasAllEvents(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		r := startWith(t, relay.Policy{Rules: thread.Rules{MaxOffers: 20}}, relay.Config{})
		client, agents := key(t), [20]didkey.Key{}
		post(t, r, sign(t, client, envelope.Draft{Thread: "t", Payload: request}))
		for i := range agents {
			agents[i] = key(t)
			post(t, r, sign(t, agents[i], envelope.Draft{Thread: "t", Recipient: client.DID(),
				Payload: envelope.Offer{RequestID: "r1"}}))
		}
		for _, agent := range agents[1:] {
			post(t, r, sign(t, agent, envelope.Draft{Thread: "t", Recipient: client.DID(),
				Payload: envelope.Failure{RequestID: "r1", Code: envelope.AgentTimeout, Message: "withdrawn"}}))
		}
		time.Sleep(thread.DefaultPendingTimeout + 5*time.Second)
		view, err := r.Thread(t.Context(), local, thread.Key{ID: "t"})
		if err != nil {
			t.Fatal(err)
		}
		notices := 2 // for the client and for the only agent with an offer
		if ids, _, _ := measure(t, view.Delivery); len(ids) != 1+20+19+notices || view.State != thread.Failed {
			t.Errorf("the view has %d envelopes, and the state %s", len(ids), view.State)
		}
	})
}
