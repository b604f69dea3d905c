package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
)

// testRead checks the cursors, limits and pages of Read. testReadModel checks which events Read selects.
func testRead(t *testing.T, open Opener) {
	t.Run("the end", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		empty := f.end()
		if empty.Epoch == 0 || empty.Seq != 0 {
			t.Errorf("an empty store ends at %v", empty)
		}
		last := f.post(alice, manifest("m")).Cursor
		for name, q := range map[string]relay.Query{
			"a limit of 0":          {},
			"all events":            {Limit: 1},
			"events after the end":  {After: last, Limit: 1},
			"no event that matches": {Filter: relay.Filter{Sender: bob.DID()}, Limit: 1},
		} {
			if page := f.read(q); page.Cursor != last || page.More {
				t.Errorf("%s: cursor %v, More %v; want %v, false", name, page.Cursor, page.More, last)
			}
		}
		f.equal("from the beginning", f.read(relay.Query{After: empty, Limit: 9}), f.read(relay.Query{Limit: 9}))
	})

	t.Run("the beginning", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		empty := f.end()
		if page := f.read(relay.Query{Backward: true, After: empty, Limit: 1}); page.Cursor != empty || page.More {
			t.Errorf("an empty store begins at %v, More %v", page.Cursor, page.More)
		}
		first := f.post(alice, manifest("m")).Cursor
		last := f.post(alice, manifest("n")).Cursor
		for name, c := range map[string]struct {
			q    relay.Query
			want []relay.Seq
		}{
			"all events":             {relay.Query{After: last, Limit: 2}, []relay.Seq{last.Seq, first.Seq}},
			"the first event":        {relay.Query{After: first, Limit: 1}, []relay.Seq{first.Seq}},
			"no event that matches":  {relay.Query{After: last, Filter: relay.Filter{Sender: bob.DID()}, Limit: 1}, []relay.Seq{}},
			"before the first event": {relay.Query{After: empty, Limit: 1}, []relay.Seq{}},
			"before the zero cursor": {relay.Query{Limit: 1}, []relay.Seq{}},
			"until the first event":  {relay.Query{After: last, Until: first.Seq, Limit: 9}, []relay.Seq{last.Seq, first.Seq}},
			"until the last event":   {relay.Query{After: last, Until: last.Seq, Limit: 9}, []relay.Seq{last.Seq}},
			"until a later event":    {relay.Query{After: first, Until: last.Seq, Limit: 9}, []relay.Seq{}},
		} {
			c.q.Backward = true
			page := f.read(c.q)
			f.equal(name, numbers(page.Events), c.want)
			if page.Cursor != empty || page.More {
				t.Errorf("%s: cursor %v, More %v; want %v, false", name, page.Cursor, page.More, empty)
			}
		}
		page := f.read(relay.Query{Backward: true, After: last, Limit: 1})
		if page.Cursor != first || !page.More {
			t.Errorf("behind the last event, read backwards: %v, More %v; want %v, true", page.Cursor, page.More, first)
		}
		if page := f.read(relay.Query{Backward: true, After: first}); page.Cursor != last || page.More {
			t.Errorf("a limit of 0: cursor %v, More %v; want %v, false", page.Cursor, page.More, last)
		}
	})

	t.Run("unknown cursors", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		last := f.post(alice, manifest("m")).Cursor
		for name, after := range map[string]relay.Cursor{
			"after the end":              {Epoch: last.Epoch, Seq: last.Seq + 1},
			"another epoch":              {Epoch: last.Epoch + 1, Seq: last.Seq},
			"the start of another epoch": {Epoch: last.Epoch + 1},
			"no epoch":                   {Seq: last.Seq},
			"another store":              newFixture(t, open, relay.Policy{}).end(),
		} {
			for _, q := range []relay.Query{{}, {Limit: 1}, {Backward: true}, {Backward: true, Limit: 1}} {
				q.After = after
				if page, err := f.Read(t.Context(), q); !errors.Is(err, relay.ErrUnknownCursor) {
					t.Errorf("%s, %+v: page %+v, error %v; want ErrUnknownCursor", name, q, page, err)
				}
			}
		}
	})

	t.Run("pages limited in bytes", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		for _, id := range []string{"a", "b", "c"} {
			f.post(alice, withID(id, manifest("m")))
		}
		size := f.stored(relay.Filter{})[0].Size
		for _, c := range []struct{ maxBytes, want int }{
			{1, 1}, {size, 1}, {2*size - 1, 1}, {2 * size, 2}, {3*size - 1, 2}, {3 * size, 3}, {0, 3},
		} {
			for _, q := range []relay.Query{{}, {Backward: true, After: f.end()}} {
				q.Limit, q.MaxBytes = 9, c.maxBytes
				page := f.read(q)
				if len(page.Events) != c.want || page.More != (c.want < 3) {
					t.Errorf("MaxBytes %d, Backward %v: %d events of %d bytes each, More %v; want %d events",
						c.maxBytes, q.Backward, len(page.Events), size, page.More, c.want)
				}
			}
		}
	})

	t.Run("pages limited by MaxExamined", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		const others = 50
		for range others {
			f.post(dave, to(carol, manifest("m")))
		}
		f.post(alice, in("t", request))
		for n := range byte(others) {
			f.post(testKey(100+n), in("t", request))
		}
		f.post(alice, in("t", cancel))
		last := f.post(alice, to(bob, manifest("m"))).Cursor
		for name, c := range map[string]struct {
			q           relay.Query
			want        int // events on all pages
			least, most int // pages
		}{
			"one recipient": {relay.Query{Filter: relay.Filter{Recipient: bob.DID()}}, 1, 1, 12},
			"a recipient and broadcasts": {relay.Query{Filter: relay.Filter{Recipient: carol.DID(), Broadcast: true,
				Type: envelope.TypeCancel}}, 1, 8, 12},
			"one sender": {relay.Query{Filter: relay.Filter{Sender: alice.DID()}}, 3, 1, 12},
			"a sender of many messages": {
				relay.Query{Filter: relay.Filter{Sender: dave.DID(), Type: envelope.TypeCancel}}, 0, 3, 12},
			"one type": {relay.Query{Filter: relay.Filter{Type: envelope.TypeCancel}}, 1, 3, 12},
			"a thread id with many copies": {
				relay.Query{Filter: relay.Filter{Thread: "t", Sender: alice.DID()}}, 2, 3, 12},
			"a timestamp that many messages have": {
				relay.Query{Filter: relay.Filter{Type: envelope.TypeCancel}, TS: noon}, 1, 3, 12},
			"a reader that may see few messages": {relay.Query{Filter: relay.Filter{
				Viewer: relay.Viewer{Limited: true, DID: bob.DID()}, Type: envelope.TypeCancel}}, 1, 3, 12},
		} {
			c.q.MaxExamined, c.q.Limit, c.q.Now = 10, 100, f.now
			back := c.q
			back.Backward, back.After = true, last
			for end, q := range map[relay.Seq]relay.Query{last.Seq: c.q, 0: back} {
				got, pages := 0, 0
				for more := true; more; pages++ {
					page := f.read(q)
					if page.Partial && (!page.More || q.Backward != (page.Cursor.Seq < q.After.Seq) || page.Cursor == q.After) {
						t.Fatalf("%s: the partial page after %v has More false or does not go on: %+v", name, q.After, page)
					}
					got += len(page.Events)
					q.After, more = page.Cursor, page.More
				}
				if got != c.want || pages < c.least || pages > c.most || q.After.Seq != end {
					t.Errorf("%s, Backward %v: %d events on %d pages, up to %v; want %d events on %d to %d pages, up to %v",
						name, q.Backward, got, pages, q.After, c.want, c.least, c.most, end)
				}
			}
		}
	})

	t.Run("NewerThan after the relay's clock was set back", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		ahead, behind := manifest("m"), manifest("m")
		edge := replay.DefaultSkew - time.Millisecond
		ahead.TS = f.now.Add(edge)
		want := f.post(alice, ahead).ID
		f.advance(-replay.StepBack)
		behind.TS = f.now.Add(-edge)
		f.post(bob, behind)
		page := f.read(relay.Query{NewerThan: ahead.TS.Add(-time.Millisecond), Limit: 9})
		if len(page.Events) != 1 || page.Events[0].ID != want {
			t.Errorf("page %+v; want only the event %s", page, want)
		}
	})

	t.Run("NewerThan with a large Skew", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{Window: replay.Window{Skew: 3 * time.Hour, Memory: 7 * time.Hour}})
		ahead, behind := manifest("m"), manifest("m")
		ahead.TS, behind.TS = noon.Add(2*time.Hour), noon.Add(-2*time.Hour)
		want := f.post(alice, ahead).ID
		f.post(bob, behind)
		page := f.read(relay.Query{NewerThan: noon.Add(time.Hour), Limit: 9})
		if len(page.Events) != 1 || page.Events[0].ID != want {
			t.Errorf("page %+v; want only the event %s", page, want)
		}
	})

	t.Run("pages while others append", func(t *testing.T) {
		f := newFixture(t, open, relay.Policy{})
		const each, posters = 100, 2
		filters := map[string]relay.Filter{
			"everything": {},
			"one inbox":  {Recipient: carol.DID()},
			"broadcasts": {Recipient: carol.DID(), Broadcast: true},
			"one sender": {Sender: bob.DID()},
			"one type":   {Type: envelope.TypeManifest},
		}
		var posting, reading sync.WaitGroup
		var done atomic.Bool
		for _, by := range []didkey.Key{alice, bob} {
			posting.Go(func() {
				for i := range each {
					d := manifest(fmt.Sprint("m", i))
					if i%3 > 0 {
						d = to([]didkey.Key{carol, dave}[i%2], d)
					}
					if _, err := f.Append(f.Context(), f.entry(by, d)); err != nil {
						f.Errorf("append: %v", err)
					}
				}
			})
		}
		seen := map[string][]relay.Seq{}
		var mu sync.Mutex
		for name, filter := range filters {
			reading.Go(func() {
				mine := follow(f, relay.Query{Filter: filter, Limit: 3}, &done)
				mu.Lock()
				defer mu.Unlock()
				seen[name] = mine
			})
		}
		posting.Wait()
		done.Store(true)
		reading.Wait()
		for name, filter := range filters {
			f.equal(name, seen[name], numbers(f.stored(filter)))
		}
		if n := len(seen["everything"]); n != each*posters {
			t.Errorf("the reader of everything got %d events, want %d", n, each*posters)
		}
	})
}

// follow reads page after page, each from the cursor of the page before. It stops when done was set and no event is
// left. It returns the sequence numbers of the events.
func follow(f *fixture, q relay.Query, done *atomic.Bool) []relay.Seq {
	seen := []relay.Seq{}
	for {
		last := done.Load()
		page, err := f.Read(f.Context(), q)
		if err != nil {
			f.Errorf("read after %v: %v", q.After, err)
			return seen
		}
		seen = append(seen, numbers(page.Events)...)
		q.After = page.Cursor
		if last && !page.More {
			return seen
		}
	}
}

// numbers returns the sequence numbers of events.
func numbers(events []relay.Event) []relay.Seq {
	list := []relay.Seq{}
	for _, e := range events {
		list = append(list, e.Seq)
	}
	return list
}
