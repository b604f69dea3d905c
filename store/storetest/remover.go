package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/thread"
)

// TestRemover runs the suite for stores that implement relay.Remover. Each part opens its own stores.
func TestRemover(t *testing.T, open Opener) {
	for name, run := range map[string]func(*testing.T, Opener){
		"Known": testKnown, "Remove": testRemove, "Manifests": testRemoveManifest, "Inbox": testRemoveFromInbox,
		"Threads": testEndThread, "Watch": testRemoveWhileWatched, "Races": testRemoveRaces,
	} {
		t.Run(name, func(t *testing.T) { run(t, open) })
	}
}

// remover returns the store as a relay.Remover.
func (f *fixture) remover() relay.Remover {
	f.Helper()
	r, ok := f.Store.(relay.Remover)
	if !ok {
		f.Fatal("the store is not a relay.Remover")
	}
	return r
}

// remove removes events and checks which of them the store has removed.
func (f *fixture) remove(want []relay.Seq, events ...relay.Seq) {
	f.Helper()
	got, err := f.remover().Remove(f.Context(), events, f.now)
	f.must(err)
	if !slices.Equal(got, want) {
		f.Errorf("Remove(%v) has removed %v, want %v", events, got, want)
	}
}

// known checks the number that the store remembers for a message.
func (f *fixture) known(by didkey.Key, id string, want relay.Seq) {
	f.Helper()
	got, err := f.remover().Known(f.Context(), by.DID(), id)
	f.must(err)
	if got != want {
		f.Errorf("Known(%s) is %d, want %d", id, got, want)
	}
}

func testKnown(t *testing.T, open Opener) {
	f := newFixture(t, open, relay.Policy{})
	f.known(alice, "one", 0)
	seq := f.post(alice, withTTL(time.Second, withID("one", manifest("m")))).Cursor.Seq
	f.known(alice, "one", seq)
	f.known(bob, "one", 0)
	f.advance(time.Minute)
	f.expire()
	f.known(alice, "one", seq)
	f.advance(replay.DefaultMemory)
	f.expire()
	f.known(alice, "one", 0)
}

func testRemove(t *testing.T, open Opener) {
	f := newFixture(t, open, relay.Policy{})
	first := f.entry(alice, withTTL(2*time.Hour, withID("one", in("t", request))))
	one := f.append(first).Cursor.Seq
	two := f.post(bob, in("t", offer)).Cursor.Seq
	before := f.thread("t")
	f.advance(time.Second)
	f.remove([]relay.Seq{one}, one, one+1000)
	f.remove(nil, one)
	f.equal("the thread", f.thread("t"), before)
	check := func() {
		t.Helper()
		all := f.read(relay.Query{Filter: relay.Filter{Thread: "t"}, Now: f.now, Limit: 9})
		if len(all.Events) != 1 || all.Events[0].Seq != two {
			t.Errorf("after the removal of event %d a reader gets %+v, want event %d", one, all.Events, two)
		}
		tombs := f.read(relay.Query{Filter: relay.Filter{Thread: "t"}, Now: f.now, Limit: 9, Removed: true}).Events
		if len(tombs) != 2 || tombs[0].Seq != one || len(tombs[0].Body) > 0 || tombs[0].Removed.IsZero() ||
			!tombs[1].Removed.IsZero() {
			t.Errorf("a reader of removed events gets %+v", tombs)
		}
		// Neither the same message again nor another one with its id is stored.
		again := first
		again.Received = f.now
		f.refused(again, envelope.CodeForbidden)
		f.refused(f.entry(alice, withID("one", in("u", request))), envelope.CodeForbidden)
		f.known(alice, "one", one)
	}
	check()
	f.reopen()
	check()
	f.expire()
	check()
	f.advance(2*time.Hour + replay.DefaultMemory)
	f.must(f.Expire(f.Context(), f.now, nil))
	f.known(alice, "one", 0)
}

func testRemoveManifest(t *testing.T, open Opener) {
	f := newFixture(t, open, relay.Policy{})
	f.list(alice, manifest("m"), "")
	old := f.end().Seq
	f.advance(time.Second)
	f.list(alice, manifest("m"), "")
	seq := f.end().Seq
	f.list(bob, manifest("m"), "")
	f.remove([]relay.Seq{seq}, seq)
	page, err := f.Agents(f.Context(), relay.AgentQuery{Now: f.now, Limit: 9})
	f.must(err)
	if len(page.Agents) != 1 || page.Agents[0].DID != bob.DID() {
		t.Errorf("the directory has %d manifests after one of two was removed: %+v", len(page.Agents), page.Agents)
	}
	f.remove([]relay.Seq{old}, old) // it is not listed; that must be no error
	f.list(alice, manifest("m"), "")
}

func testRemoveFromInbox(t *testing.T, open Opener) {
	f := newFixture(t, open, relay.Policy{Inbox: relay.Quota{Events: 2}})
	one := f.post(alice, to(carol, in("a", request))).Cursor.Seq
	two := f.post(alice, to(carol, in("b", request))).Cursor.Seq
	f.refused(f.entry(alice, to(carol, in("c", request))), envelope.CodeRateLimited)
	f.remove([]relay.Seq{one, two}, one, two)
	f.post(alice, to(carol, in("d", request)))
}

func testEndThread(t *testing.T, open Opener) {
	f := newFixture(t, open, relay.Policy{})
	key := thread.Key{Client: alice.DID(), ID: "t"}
	if err := f.remover().EndThread(f.Context(), key, f.now); codeOf(err) != envelope.CodeThreadNotFound {
		t.Errorf("ending an unknown thread: %v", err)
	}
	f.post(alice, in("t", request))
	f.post(bob, in("t", offer))
	f.advance(time.Second)
	for range 2 {
		f.must(f.remover().EndThread(f.Context(), key, f.now))
		got := f.thread("t")
		last := got.Transitions[len(got.Transitions)-1]
		if got.State != thread.Failed || len(got.Transitions) != 3 || last.Type != thread.TypeRemoved || last.By != "" {
			t.Errorf("the ended thread: %+v", got)
		}
		f.refused(f.entry(carol, in("t", offer)), envelope.CodeInvalidTransition)
		f.refused(f.entry(alice, in("t", cancel)), envelope.CodeInvalidTransition)
		f.reopen()
	}
	f.expire() // it does not time out
}

// testRemoveWhileWatched removes events while a Watch gets them. No call of the function of the Watch may have an event
// after the Remove of this event has returned.
func testRemoveWhileWatched(t *testing.T, open Opener) {
	f := newFixture(t, open, relay.Policy{})
	ctx, cancel := context.WithCancel(t.Context())
	var gone sync.Map // the numbers of the removed events
	var watching sync.WaitGroup
	watching.Go(func() {
		_ = f.Watch(ctx, relay.Cursor{}, nil, func(events []relay.Posted) { // its error is ctx's error
			for range 3 { // the function takes some time, as one that writes to many clients
				for _, e := range events {
					if _, removed := gone.Load(e.Seq); removed {
						t.Errorf("the watch has event %d after it was removed", e.Seq)
					}
				}
				time.Sleep(time.Millisecond)
			}
		})
	})
	for i := range 50 {
		var last relay.Seq
		for j := range 3 {
			last = f.post(alice, in(fmt.Sprintf("t%d-%d", i, j), request)).Cursor.Seq
		}
		f.remove([]relay.Seq{last}, last)
		gone.Store(last, true)
	}
	cancel()
	watching.Wait()
}

// testRemoveRaces removes messages while copies of them are posted and read. After the removal no copy is stored.
func testRemoveRaces(t *testing.T, open Opener) {
	f := newFixture(t, open, relay.Policy{})
	for i := range 30 {
		e := f.entry(alice, in(fmt.Sprintf("t%d", i), request))
		seq := f.append(e).Cursor.Seq
		var racing sync.WaitGroup
		start := make(chan struct{})
		for range 4 {
			racing.Go(func() {
				<-start
				for range 5 {
					r, err := f.Append(f.Context(), e)
					if code := codeOf(err); code != envelope.CodeForbidden && (err != nil || !r.Duplicate || r.Cursor.Seq != seq) {
						t.Errorf("a copy during a removal: %+v, %v", r, err)
					}
				}
			})
		}
		racing.Go(func() {
			<-start
			f.remove([]relay.Seq{seq}, seq)
			if page := f.read(relay.Query{Now: f.now, Limit: 99}); len(page.Events) != 0 {
				t.Errorf("a read after Remove has returned got %d events", len(page.Events))
			}
		})
		close(start)
		racing.Wait()
		f.refused(e, envelope.CodeForbidden)
	}
}
