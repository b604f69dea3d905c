package sqlite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

func statsOf(t testing.TB, s *Store) Stats {
	t.Helper()
	stats, err := s.Stats(t.Context())
	must(t, err)
	return stats
}

// counted checks how many threads Stats counts. States that are missing in want have no threads.
func counted(t testing.TB, s *Store, when string, want map[thread.State]int64) {
	t.Helper()
	all := map[thread.State]int64{"OPEN": 0, "PENDING": 0, "ACTIVE": 0, "COMPLETED": 0, "ERROR": 0}
	maps.Copy(all, want)
	if got := statsOf(t, s).Threads; !maps.Equal(got, all) {
		t.Errorf("%s: counted %v, want %v", when, got, all)
	}
}

// TestStatsCountsThreads checks the counts after each step of four threads, after a timeout, and after the removal.
func TestStatsCountsThreads(t *testing.T) {
	s := openNew(t)
	client, agent := key(1), key(2)
	counted(t, s, "empty", nil)
	states := map[string]thread.State{}
	tally := func() map[thread.State]int64 {
		n := map[thread.State]int64{}
		for _, state := range states {
			n[state]++
		}
		return n
	}
	steps := []struct {
		payload envelope.Payload
		to      thread.State
	}{
		{envelope.Request{RequestID: "r", Intent: "translate"}, thread.Pending},
		{envelope.Offer{RequestID: "r"}, thread.Pending},
		{envelope.Accept{RequestID: "r"}, thread.Active},
		{envelope.Result{RequestID: "r", Status: "success"}, thread.Completed},
	}
	for id, n := range map[string]int{"pending": 1, "offered": 2, "active": 3, "completed": 4} {
		for i, step := range steps[:n] {
			by, to := client, agent
			if i%2 == 1 {
				by, to = agent, client
			}
			e := signed(t, by, envelope.Draft{Thread: id, Recipient: to.DID(), Payload: step.payload})
			_, err := s.Append(t.Context(), e)
			must(t, err)
			states[id] = step.to
			counted(t, s, fmt.Sprintf("%s, step %d", id, i+1), tally())
		}
	}
	appendAll(t, s, []relay.Entry{
		signed(t, client, envelope.Draft{Thread: "cancelled", Payload: steps[0].payload}),
		signed(t, client, envelope.Draft{Thread: "cancelled", Payload: envelope.Cancel{RequestID: "r"}})})
	states["cancelled"] = thread.Failed
	counted(t, s, "cancelled", tally())

	must(t, s.Expire(t.Context(), time.Now().Add(thread.DefaultPendingTimeout+time.Second), nil))
	states["pending"], states["offered"] = thread.Failed, thread.Failed
	counted(t, s, "the pending threads timed out", tally())
	must(t, s.Expire(t.Context(), time.Now().Add(thread.DefaultActiveTimeout+time.Second), nil))
	states["active"] = thread.Failed
	counted(t, s, "the active thread timed out", tally())
	must(t, s.Expire(t.Context(), time.Now().AddDate(1, 0, 0), nil))
	counted(t, s, "removed", nil)
}

// TestStatsOfEveryState checks that each number in the column state is counted as its own state.
func TestStatsOfEveryState(t *testing.T) {
	s := openNew(t)
	appendAll(t, s, requests(t, 3))
	for number, state := range ledger.States() {
		execute(t, s, fmt.Sprintf("UPDATE thread SET state = %d WHERE n > 1", number))
		want := map[thread.State]int64{thread.Pending: 1}
		want[state] += 2
		counted(t, s, fmt.Sprint("number ", number), want)
	}
}

// TestStatsSizes checks the sizes of the files, and that a log that does not exist has the size 0.
func TestStatsSizes(t *testing.T) {
	s := openNew(t)
	appendAll(t, s, requests(t, 3))
	size := func(path string) int64 {
		t.Helper()
		info, err := os.Stat(path)
		must(t, err)
		return info.Size()
	}
	check := func(when string, database, log int64) {
		t.Helper()
		if got := statsOf(t, s); got.DatabaseBytes != database || got.LogBytes != log {
			t.Errorf("%s: %d and %d bytes, want %d and %d", when, got.DatabaseBytes, got.LogBytes, database, log)
		}
	}
	database, log := size(s.path), size(s.path+logSuffix)
	if database <= 0 || log <= 0 || database == log {
		t.Fatalf("the files have %d and %d bytes; the test needs two different sizes above 0", database, log)
	}
	check("after appends", database, log)
	must(t, os.Rename(s.path+logSuffix, s.path+".moved"))
	check("without a log", database, 0)
	must(t, os.Rename(s.path+".moved", s.path+logSuffix))
	must(t, s.task(t.Context(), func(w *writer) error { _, err := w.truncateLog(); return err }))
	check("after the log was truncated", size(s.path), 0)
}

// TestStatsIgnoresTheWriter checks that Stats returns while a transaction is open, and counts what is committed.
func TestStatsIgnoresTheWriter(t *testing.T) {
	s := openNew(t)
	appendAll(t, s, requests(t, 2))
	write(t, s, func(w *writer) error {
		_, err := w.conn.ExecContext(context.Background(), "UPDATE thread SET state = 2")
		counted(t, s, "during the transaction", map[thread.State]int64{thread.Pending: 2})
		return err
	})
	counted(t, s, "after the transaction", map[thread.State]int64{thread.Active: 2})
}

// TestStatsEndsWithItsContext checks that Stats returns when its context ends, also while all readers are busy.
func TestStatsEndsWithItsContext(t *testing.T) {
	s := openNew(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Stats(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if _, err := s.countThreads(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the query with an ended context: %v", err)
	}
	release := make(chan struct{})
	for range readers {
		s.reads <- func() { <-release }
	}
	defer close(release)
	ctx, cancel = context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := s.Stats(ctx)
		ended <- err
	}()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("while all readers are busy: %v", err)
	}
}

// TestLoadedThreadsHaveTheirState checks the state of threads that are loaded by their key and by a message.
func TestLoadedThreadsHaveTheirState(t *testing.T) {
	s := openNew(t)
	m := request(t, key(1), "").Envelope
	appendAll(t, s, []relay.Entry{{Envelope: m, Received: m.TS}})
	execute(t, s, "UPDATE thread SET state = 3")
	write(t, s, func(w *writer) error {
		found, err := w.Load(ledger.Wanted{Threads: []thread.Key{{Client: m.Sender.ID, ID: m.Thread}},
			Messages: []ledger.MessageKey{{Sender: m.Sender.ID, ID: m.ID}}})
		must(t, err)
		if got := found.Threads[0].State; got != thread.Completed {
			t.Errorf("by its key: %q", got)
		}
		if got := found.Messages[0].Thread.State; got != thread.Completed {
			t.Errorf("by its message: %q", got)
		}
		return nil
	})
}
