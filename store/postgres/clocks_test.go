//go:build postgres

package postgres

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// TestClocksDiffer runs three relays whose clocks differ by up to eight minutes. No message may be accepted twice, also
// not when its id is forgotten by the node whose clock is ahead and the copy is posted to the node whose clock is
// behind. One ACCEPT must win.
func TestClocksDiffer(t *testing.T) {
	place := t.TempDir()
	began := time.Now()
	var passed atomic.Int64                                             // since began, in nanoseconds
	offsets := [...]time.Duration{4 * time.Minute, 0, -4 * time.Minute} // the first one sweeps
	var stores []*Store
	var nodes []*relay.Relay
	for _, offset := range offsets {
		now := func() time.Time { return began.Add(time.Duration(passed.Load()) + offset) }
		s := open(t, place, Options{Now: now})
		r, err := relay.New(t.Context(), relay.Config{Store: s, Key: key(99), Now: now, Origin: "https://relay.example",
			Nonces: s.Nonces(), Log: slog.New(slog.DiscardHandler)})
		must(t, err)
		stores, nodes = append(stores, s), append(nodes, r)
	}
	if !stores[0].Leads() {
		t.Fatal("the first node does not have the lease")
	}
	sweep := func() {
		must(t, stores[0].Expire(t.Context(), nodes[0].Now(), func(thread.Thread, time.Time) []*envelope.Envelope { return nil }))
	}
	alice, bob := key(1), key(2)
	draft := func(by didkey.Key, d envelope.Draft) []byte {
		m, err := d.Sign(by, began.Add(time.Duration(passed.Load())))
		must(t, err)
		return m.Canonical()
	}
	post := func(i int, body []byte) (relay.Receipt, error) {
		return nodes[i].Post(t.Context(), relay.Peer{Local: true}, body)
	}

	message := draft(alice, envelope.Draft{ID: "m", TTL: 10 * time.Minute, Payload: envelope.Manifest{ID: "a"}})
	first, err := post(2, message)
	must(t, err)
	for i := range nodes {
		again, err := post(i, message)
		if err != nil || again.Cursor != first.Cursor {
			t.Errorf("node %d stores a copy at %+v, want %+v: %v", i, again.Cursor, first.Cursor, err)
		}
	}
	for passed.Load() < int64(40*time.Minute) {
		passed.Add(int64(30 * time.Second))
		sweep()
		for i := range nodes {
			if r, err := post(i, message); err == nil && r.Cursor != first.Cursor {
				t.Fatalf("after %v node %d accepts the message again", time.Duration(passed.Load()), i)
			}
		}
	}
	if seq, err := stores[1].Known(t.Context(), alice.DID(), "m"); err != nil || seq != 0 {
		t.Errorf("the id is still remembered as %d: %v", seq, err)
	}

	_, err = post(1, draft(alice, envelope.Draft{Thread: "u", Payload: envelope.Request{RequestID: "r", Intent: "x"}}))
	must(t, err)
	_, err = post(2, draft(bob, envelope.Draft{Recipient: alice.DID(), Thread: "u", Payload: envelope.Offer{RequestID: "r"}}))
	must(t, err)
	won := 0
	for i := range nodes {
		accept := envelope.Draft{Recipient: bob.DID(), Thread: "u", Payload: envelope.Accept{RequestID: "r"}}
		if _, err := post(i, draft(alice, accept)); err == nil {
			won++
		}
	}
	if won != 1 {
		t.Errorf("%d ACCEPTs have won, want 1", won)
	}
}
