package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// testAppendAll checks that AppendAll answers and stores as one Append after the other does (RELAYS R-24).
func testAppendAll(t *testing.T, open Opener) {
	t.Run("like one after the other", func(t *testing.T) {
		for seed := range uint64(4) {
			single, together := newFixture(t, open, relay.Policy{}), newFixture(t, open, relay.Policy{})
			random := rand.New(rand.NewPCG(seed, 1))
			entries := mixedEntries(single, random, 150)
			for len(entries) > 0 {
				n := 1 + random.IntN(len(entries))
				outcomes := together.AppendAll(t.Context(), entries[:n])
				if len(outcomes) != n {
					t.Fatalf("%d outcomes of %d entries", len(outcomes), n)
				}
				for i, e := range entries[:n] {
					receipt, err := single.Append(t.Context(), e)
					if got, want := outcomeText(outcomes[i]), outcomeText(relay.Outcome{Receipt: receipt, Err: err}); got != want {
						t.Fatalf("seed %d: %s %s: %s; Append: %s", seed, e.Envelope.Type, e.Envelope.ID, got, want)
					}
				}
				entries = entries[n:]
			}
			one, all := single.stored(relay.Filter{}), together.stored(relay.Filter{})
			for i := range max(len(one), len(all)) {
				if i >= len(one) || i >= len(all) || one[i].ID != all[i].ID {
					t.Fatalf("seed %d: stored %d and %d events, different from number %d on", seed, len(one), len(all), i)
				}
			}
		}
	})

	t.Run("many entries", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		entries := make([]relay.Entry, 700)
		for i := range entries {
			entries[i] = f.entry(alice, in(fmt.Sprint("t", i), request))
		}
		last := relay.Seq(0)
		for i, o := range f.AppendAll(t.Context(), entries) {
			if o.Err != nil || o.Receipt.ID != entries[i].Envelope.ID || o.Receipt.Cursor.Seq <= last {
				t.Fatalf("entry %d after %d: %+v", i, last, o)
			}
			last = o.Receipt.Cursor.Seq
		}
		if n := len(f.stored(relay.Filter{})); n != len(entries) {
			t.Errorf("%d events are stored", n)
		}
		if got := f.AppendAll(t.Context(), nil); len(got) != 0 {
			t.Errorf("outcomes of no entries: %v", got)
		}
	})

	t.Run("a canceled context", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		ctx, stop := canceled(f)
		defer stop()
		entries := []relay.Entry{f.entry(alice, in("t", request)), f.entry(alice, in("t", cancel))}
		for i, o := range f.AppendAll(ctx, entries) {
			if o.Err != nil && !errors.Is(o.Err, ctx.Err()) || o.Err != nil && o.Decided() {
				t.Errorf("entry %d: %+v; want a receipt or the context's error", i, o)
			}
		}
		for i, o := range f.AppendAll(t.Context(), entries) {
			if o.Err != nil {
				t.Errorf("entry %d is posted again: %v", i, o.Err)
			}
		}
	})
}

// mixedEntries returns messages of three parties in a few threads. Many are refused, and some come twice.
func mixedEntries(f *fixture, random *rand.Rand, n int) (entries []relay.Entry) {
	parties := []didkey.Key{alice, bob, carol}
	payloads := []envelope.Payload{request, request, offer, offer, accept, accept, result, cancel}
	for i := range n {
		if i > 0 && random.IntN(8) == 0 {
			entries = append(entries, entries[random.IntN(i)])
			continue
		}
		d := in(fmt.Sprint("t", random.IntN(6)), payloads[random.IntN(len(payloads))])
		if random.IntN(10) == 0 {
			d = manifest("m")
		} else if random.IntN(2) == 0 {
			d = to(parties[random.IntN(3)], d)
		}
		e := f.entry(parties[random.IntN(3)], d)
		e.Received = e.Received.Add(time.Duration(i) * time.Millisecond)
		entries = append(entries, e)
	}
	return entries
}

// outcomeText returns what must be equal in the outcomes of two stores.
func outcomeText(o relay.Outcome) string {
	o.Receipt.Took, o.Receipt.Cursor.Epoch = 0, 0
	return fmt.Sprintf("%+v %v", o.Receipt, o.Err)
}
