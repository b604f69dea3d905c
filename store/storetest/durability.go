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

// testDurability checks that closing and opening is nothing a reader could notice.
func testDurability(t *testing.T, open Opener) {
	t.Run("all is there again", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		f.post(alice, in("t", request))
		f.post(bob, to(alice, in("t", offer)))
		place := f.post(alice, to(bob, in("t", accept))).Cursor
		f.list(carol, manifest("m"), "a name", "intent")
		before := f.snapshot("t")
		f.reopen()
		if after := f.snapshot("t"); after != before {
			t.Errorf("reopened:\n got %s\nwant %s", after, before)
		}
		f.pass(time.Second)
		f.post(bob, to(alice, in("t", result)))
		if page := f.read(relay.Query{After: place, Limit: 9}); len(page.Events) != 2 {
			t.Errorf("a reader who had come to %v gets %d events", place, len(page.Events))
		}
	})

	t.Run("closing", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		closer, ok := f.Store.(io.Closer)
		if !ok {
			return // there is nothing to close
		}
		// Whoever appends while the store is closed is told that it is, or keeps what he was promised.
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
							f.Errorf("append to a store that is closed: %v", err)
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
			t.Errorf("expire: %v", err)
		}
		f.must(closer.Close()) // again

		f.reopen()
		there := map[string]relay.Seq{}
		for _, e := range f.stored(relay.Filter{}) {
			there[e.ID] = e.Seq
		}
		f.equal("acknowledged", acknowledged, there)
	})
}
