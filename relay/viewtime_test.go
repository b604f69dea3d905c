package relay_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// endless is a statement that takes hours.
const endless = "WITH RECURSIVE n (x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM n WHERE x < 100000000000) SELECT max(x) FROM n"

func runEndless(q relay.Querier) error {
	return q.Query(func(func(...any) error) error { return nil }, endless)
}

// TestViewIsInterrupted checks that the statement of a View ends when the time of the View is over, that the View is then
// refused, that all its time is charged, and that its connection still works (G-34).
func TestViewIsInterrupted(t *testing.T) {
	r := startTasks(t, relay.Config{Limits: relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: 1, Burst: 2}}})
	slow := from("203.0.113.7")
	wantCode(t, r.View(t.Context(), slow, runEndless), envelope.CodeUnavailable)
	if wait := wantLimit(t, r.View(t.Context(), slow, runEndless), envelope.LimitReadsPerAddress); wait < 100*time.Second {
		t.Errorf("after a View of a second, which is worth 200 reads, the address waits %v at 1 read a second", wait)
	}
	var others sync.WaitGroup
	for i := range 8 {
		others.Go(func() {
			err := r.View(t.Context(), from(fmt.Sprintf("198.51.100.%d", i)), runEndless)
			if envelope.CodeOf(err) != envelope.CodeUnavailable {
				t.Errorf("an endless View: %v", err)
			}
		})
	}
	others.Wait()
	if names := taskNames(t, r); len(names) != 0 {
		t.Errorf("afterwards: %q", names)
	}
}

// TestReadsKeepASlot checks that Views, also those of the relay's own machine, leave a read slot to the relay's own reads
// (G-34).
func TestReadsKeepASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startTasks(t, relay.Config{})
		running, end := atomic.Int32{}, make(chan struct{})
		var views sync.WaitGroup
		for i := range 16 {
			p := from(fmt.Sprintf("203.0.113.%d", i))
			if i%2 == 1 {
				p = local
			}
			views.Go(func() {
				if err := r.View(t.Context(), p, func(relay.Querier) error { running.Add(1); <-end; return nil }); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if n := running.Load(); n != 3 {
			t.Errorf("%d Views run at a time, want 3", n)
		}
		for i := range 10 {
			p := &relay.Poll{Peer: from(fmt.Sprintf("198.51.100.%d", i)), Limit: 1}
			if _, err := r.Events(t.Context(), p); err != nil {
				t.Error(err)
			}
		}
		close(end)
		views.Wait()
	})
}
