package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func sourceOf(address string) source { return Peer{Addr: netip.MustParseAddr(address)}.source() }

// TestFairQueueOrder checks that a source with many reads delays the read of another source by one read.
func TestFairQueueOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		order := runReaders(t, newFairQueue(1, 1), "a a a local local b b c neighbour")
		if want := "a0 local1 b2 c3 a4 local5 b6 neighbour7 a8"; order != want {
			t.Errorf("read at\n%s, want\n%s", order, want)
		}
	})
}

// TestFairQueueLimitsEachSource checks how many reads of one source run at a time. Local reads may use all slots.
func TestFairQueueLimitsEachSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			perSource     int
			readers, want string
		}{
			{1, "a a b local local", "a0 b0 local0 local0 a1"},
			{1, "local local local c", "c0 local0 local0 local0"},
			{1, "c neighbour a a a", "a0 c0 a1 neighbour1 a2"},
			{2, "a a a a b", "a0 a0 b0 a1 a1"},
			{2, "a a a b b b c", "a0 a0 b0 b0 a1 b1 c1"},
			{2, "local local local local a", "local0 local0 local0 local0 a1"},
		} {
			if order := runReaders(t, newFairQueue(4, c.perSource), c.readers); order != c.want {
				t.Errorf("%s: read at %s, want %s", c.readers, order, c.want)
			}
		}
	})
}

// runReaders starts readers one after the other at the same time. They are named after their sources, and each reads
// for a second. It returns when each of them began.
func runReaders(t *testing.T, queue *fairQueue, readers string) string {
	t.Helper()
	sources := map[string]source{"a": sourceOf("192.0.2.1"), "b": sourceOf("192.0.2.2"), "c": sourceOf("2001:db8::1"),
		"neighbour": sourceOf("2001:db8:0:ffff::2"), "local": Peer{Local: true}.source()}
	began := time.Now()
	free := queue.free
	var mu sync.Mutex
	var order []string
	var all sync.WaitGroup
	for _, name := range strings.Fields(readers) {
		all.Go(func() {
			if err := queue.acquire(t.Context(), sources[name]); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, fmt.Sprintf("%s%.0f", name, time.Since(began).Seconds()))
			mu.Unlock()
			time.Sleep(time.Second)
			queue.release(sources[name])
		})
		synctest.Wait()
	}
	all.Wait()
	if queue.free != free || len(queue.queues) != 0 || len(queue.ready) != 0 {
		t.Errorf("not cleaned up: %+v", queue)
	}
	slices.SortStableFunc(order, func(a, b string) int {
		return cmp.Or(cmp.Compare(a[len(a)-1], b[len(b)-1]), cmp.Compare(a, b))
	})
	return strings.Join(order, " ")
}

// TestFairQueueWaitIsCancelled checks that a reader that gives up leaves the queue, and that a slot it gets at that
// moment goes to the next reader.
func TestFairQueueWaitIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newFairQueue(1, 1)
		a, b := sourceOf("192.0.2.1"), sourceOf("192.0.2.2")
		ctx, cancel := context.WithCancel(t.Context())
		if err := queue.acquire(ctx, a); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for _, s := range []source{a, a, b} {
			all.Go(func() {
				if err := queue.acquire(ctx, s); !errors.Is(err, context.Canceled) {
					t.Errorf("a cancelled wait ended with %v", err)
				}
			})
			synctest.Wait()
		}
		got := false
		all.Go(func() {
			if err := queue.acquire(t.Context(), b); err != nil {
				t.Error(err)
			}
			got = true
		})
		synctest.Wait()
		cancel()
		queue.abandon(a, make(chan struct{})) // as if its slot had become free just then
		all.Wait()
		if !got {
			t.Error("the last reader got no slot")
		}
		queue.release(b)
		if queue.free != 1 || len(queue.queues) != 0 || len(queue.ready) != 0 {
			t.Errorf("not cleaned up: %+v", queue)
		}
		if err := queue.acquire(ctx, a); err != nil {
			t.Errorf("a free slot: %v", err)
		}
	})
}
