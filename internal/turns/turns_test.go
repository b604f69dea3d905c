package turns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// limited returns a queue that lets n jobs run at a time. The source "local" may have any number of them, and each
// other source perSource.
func limited(n, perSource int) *Queue[string] {
	return New(n, func(source string) int {
		if source == "local" {
			return n
		}
		return perSource
	})
}

// TestSourcesTakeTurns checks that a source with many jobs delays the job of another source by one job.
func TestSourcesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		order := run(t, limited(1, 1), "a a a local local b b c c")
		if want := "a0 local1 b2 c3 a4 local5 b6 c7 a8"; order != want {
			t.Errorf("the jobs began at\n%s, want\n%s", order, want)
		}
	})
}

// TestLimitOfEachSource checks how many jobs of one source run at a time, and that its other jobs take no slot while
// they wait.
func TestLimitOfEachSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			perSource  int
			jobs, want string
		}{
			{1, "a a b local local", "a0 b0 local0 local0 a1"},
			{1, "local local local c", "c0 local0 local0 local0"},
			{1, "c c a a a", "a0 c0 a1 c1 a2"},
			{2, "a a a a b", "a0 a0 b0 a1 a1"},
			{2, "a a a b b b c", "a0 a0 b0 b0 a1 b1 c1"},
			{2, "local local local local a", "local0 local0 local0 local0 a1"},
		} {
			if order := run(t, limited(4, c.perSource), c.jobs); order != c.want {
				t.Errorf("%s: they began at %s, want %s", c.jobs, order, c.want)
			}
		}
	})
}

// run starts jobs one after the other, and does not wait until they end. The names of the jobs are their sources. Each
// job takes a second. run returns the second in which each of them began.
func run(t *testing.T, queue *Queue[string], jobs string) string {
	t.Helper()
	began := time.Now()
	free := queue.free
	var mu sync.Mutex
	var order []string
	var all sync.WaitGroup
	for _, source := range strings.Fields(jobs) {
		all.Go(func() {
			if err := queue.Acquire(t.Context(), source); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, fmt.Sprintf("%s%.0f", source, time.Since(began).Seconds()))
			mu.Unlock()
			time.Sleep(time.Second)
			queue.Release(source)
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

// TestWaitIsCancelled checks that a job that gives up leaves the queue, and that a slot it gets at that moment goes to
// the next job.
func TestWaitIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := limited(1, 1)
		const a, b = "a", "b"
		ctx, cancel := context.WithCancel(t.Context())
		if err := queue.Acquire(ctx, a); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for _, s := range []string{a, a, b} {
			all.Go(func() {
				if err := queue.Acquire(ctx, s); !errors.Is(err, context.Canceled) {
					t.Errorf("a cancelled wait ended with %v", err)
				}
			})
			synctest.Wait()
		}
		got := false
		all.Go(func() {
			if err := queue.Acquire(t.Context(), b); err != nil {
				t.Error(err)
			}
			got = true
		})
		synctest.Wait()
		cancel()
		queue.abandon(a, make(chan struct{})) // as if its slot had become free just then
		all.Wait()
		if !got {
			t.Error("the last job got no slot")
		}
		queue.Release(b)
		if queue.free != 1 || len(queue.queues) != 0 || len(queue.ready) != 0 {
			t.Errorf("not cleaned up: %+v", queue)
		}
		if err := queue.Acquire(ctx, a); err != nil {
			t.Errorf("a free slot: %v", err)
		}
	})
}
