package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// canceled returns a context that is canceled already.
func canceled(f *fixture) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(f.Context())
	cancel()
	return ctx, cancel
}

// appendResult is what Append returned to one of several concurrent callers.
type appendResult struct {
	relay.Receipt
	err error
}

// appendConcurrently appends all entries at the same time, each in its own goroutine.
func (f *fixture) appendConcurrently(entries []relay.Entry) []appendResult {
	answers := make([]appendResult, len(entries))
	start := make(chan struct{})
	var callers sync.WaitGroup
	for i, e := range entries {
		callers.Go(func() {
			<-start
			answers[i].Receipt, answers[i].err = f.Append(f.Context(), e)
		})
	}
	close(start)
	callers.Wait()
	return answers
}

// testRaces checks concurrent calls of Append. It is most useful with the race detector (go test -race).
func testRaces(t *testing.T, open Opener) {
	const callers = 16

	t.Run("one ACCEPT wins", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		agents := []didkey.Key{bob, carol, dave}
		for round := range 8 {
			id := fmt.Sprint("t", round)
			f.post(alice, in(id, request))
			for _, agent := range agents {
				f.post(agent, in(id, offer))
			}
			entries := make([]relay.Entry, callers)
			for i := range entries {
				entries[i] = f.entry(alice, to(agents[i%len(agents)], in(id, accept)))
			}
			var won []relay.Entry
			for i, a := range f.appendConcurrently(entries) {
				if a.err == nil {
					won = append(won, entries[i])
				} else if codeOf(a.err) != envelope.CodeInvalidTransition {
					t.Errorf("another ACCEPT got the error %v, want %s", a.err, envelope.CodeInvalidTransition)
				}
			}
			kept := f.stored(relay.Filter{Thread: id, Type: envelope.TypeAccept})
			if len(won) != 1 || len(kept) != 1 || kept[0].ID != won[0].Envelope.ID {
				t.Fatalf("%d ACCEPTs got a receipt and %d are stored; want the same one", len(won), len(kept))
			}
			if got := f.thread(id); got.State != thread.Active || got.Agent != won[0].Envelope.Recipient {
				t.Errorf("the thread is %s with the agent %s, want %s with %s",
					got.State, got.Agent, thread.Active, won[0].Envelope.Recipient)
			}
		}
	})

	t.Run("many callers append the same message", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		entries := make([]relay.Entry, callers)
		for i := range entries {
			entries[i] = f.entry(alice, withID("id", in("t", request)))
		}
		first := 0
		for _, a := range f.appendConcurrently(entries) {
			f.must(a.err)
			if !a.Duplicate {
				first++
			}
			if kept := f.stored(relay.Filter{}); len(kept) != 1 || kept[0].Seq != a.Cursor.Seq {
				t.Fatalf("receipt %+v, and %d messages are stored; want 1 with the Seq of the receipt", a.Receipt, len(kept))
			}
		}
		if first != 1 {
			t.Errorf("%d callers got a receipt that is not a duplicate, want 1", first)
		}
	})

	t.Run("sequence numbers", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		const each = 20
		senders := []didkey.Key{alice, bob, carol, dave}
		ids := make([]map[relay.Seq]string, len(senders))
		var posts sync.WaitGroup
		for s, by := range senders {
			ids[s] = map[relay.Seq]string{}
			posts.Go(func() {
				var last relay.Seq
				for i := range each {
					receipt, err := f.Append(f.Context(), f.entry(by, manifest(fmt.Sprint("m", i))))
					if err != nil || receipt.Cursor.Seq <= last {
						f.Errorf("append after event %d: receipt %+v, error %v; want a larger Seq", last, receipt, err)
						return
					}
					last = receipt.Cursor.Seq
					ids[s][last] = receipt.ID
				}
			})
		}
		posts.Wait()
		events := f.stored(relay.Filter{})
		var last relay.Seq
		for _, e := range events {
			acknowledged := 0
			for _, of := range ids {
				if of[e.Seq] == e.ID {
					acknowledged++
				}
			}
			if e.Seq <= last || acknowledged != 1 {
				t.Fatalf("event %d %s comes after event %d and has %d receipts; want a larger Seq and 1 receipt",
					e.Seq, e.ID, last, acknowledged)
			}
			last = e.Seq
		}
		if len(events) != each*len(senders) {
			t.Errorf("%d events are stored, want %d", len(events), each*len(senders))
		}
	})
}
