package storetest

import (
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// testDurability checks that a store has all its data again after it was closed and reopened.
func testDurability(t *testing.T, open Opener) {
	t.Run("all data is kept", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		f.post(alice, in("t", request))
		f.post(bob, to(alice, in("t", offer)))
		last := f.post(alice, to(bob, in("t", accept))).Cursor
		f.list(carol, manifest("m"), "a name", "intent")
		before := f.snapshot("t")
		f.reopen()
		if after := f.snapshot("t"); after != before {
			t.Errorf("after reopening:\n got %s\nwant %s", after, before)
		}
		f.advance(time.Second)
		f.post(bob, to(alice, in("t", result)))
		if page := f.read(relay.Query{After: last, Limit: 9}); len(page.Events) != 2 {
			t.Errorf("a reader with the cursor %v gets %d events, want 2", last, len(page.Events))
		}
	})

	t.Run("closing", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		closer, ok := f.Store.(io.Closer)
		if !ok {
			return // there is nothing to close
		}
		// While the store is being closed, each Append must either store the message or return CodeUnavailable.
		acknowledged := map[string]relay.Seq{}
		var mu sync.Mutex
		var posts sync.WaitGroup
		half := make(chan struct{}, 1)
		for _, by := range []didkey.Key{alice, bob, carol, dave} {
			posts.Go(func() {
				for i := 0; ; i++ {
					receipt, err := f.Append(f.Context(), f.entry(by, manifest(fmt.Sprint("m", i))))
					if err != nil {
						if codeOf(err) != envelope.CodeUnavailable {
							f.Errorf("append to a closed store: %v; want the error %s", err, envelope.CodeUnavailable)
						}
						return
					}
					mu.Lock()
					acknowledged[receipt.ID] = receipt.Cursor.Seq
					mu.Unlock()
					if i == 10 {
						select {
						case half <- struct{}{}:
						default:
						}
					}
				}
			})
		}
		<-half
		f.must(closer.Close())
		posts.Wait()
		f.refused(f.entry(alice, manifest("m")), envelope.CodeUnavailable)
		if err := f.Expire(t.Context(), f.now, nil); codeOf(err) != envelope.CodeUnavailable {
			t.Errorf("expire in a closed store: %v; want the error %s", err, envelope.CodeUnavailable)
		}
		f.must(closer.Close()) // a second Close does nothing

		f.reopen()
		stored := map[string]relay.Seq{}
		for _, e := range f.stored(relay.Filter{}) {
			stored[e.ID] = e.Seq
		}
		f.equal("messages with a receipt, and stored messages", acknowledged, stored)
	})
}
