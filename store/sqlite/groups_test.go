package sqlite

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/bench"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// conversations returns the messages of threads that run side by side: REQUEST, OFFER, ACCEPT, RESULT. Each has one of
// 10,000 clients and one of 10,000 agents.
func conversations(b testing.TB, first, n int) []relay.Entry {
	const parties, side = 10_000, 500
	all := make([]relay.Entry, 0, n+4*side)
	for at := first; len(all) < n; at += side {
		for step := range 4 {
			for i := range side {
				client, agent := key((at+i)%parties), key(parties+(at+i)*7%parties)
				id := fmt.Sprintf("thread_%x_%d", (at+i)*2654435761%(1<<32), at+i)
				text := json.RawMessage(`"` + strings.Repeat("x", 200) + `"`)
				d := []envelope.Draft{
					{Recipient: agent.DID(), Payload: envelope.Request{RequestID: "r", Intent: "translate", Params: text}},
					{Recipient: client.DID(), Payload: envelope.Offer{RequestID: "r", Plan: string(text)}},
					{Recipient: agent.DID(), Payload: envelope.Accept{RequestID: "r"}},
					{Recipient: client.DID(), Payload: envelope.Result{RequestID: "r", Status: "success", Output: text}},
				}[step]
				d.Thread = id
				by := client
				if step%2 == 1 {
					by = agent
				}
				all = append(all, signed(b, by, d))
			}
		}
	}
	return all[:n]
}

// appendGroups appends entries in groups of one size. It returns the times of the groups, sorted, and how many pages
// they have written to the log.
func appendGroups(b testing.TB, s *Store, entries []relay.Entry, size int) (times []time.Duration, pages int) {
	err := s.task(b.Context(), func(w *writer) error {
		_, length, _, err := w.checkpoint(w.stmts.logStatus)
		if err != nil {
			return err
		}
		for len(entries) > 0 {
			n := min(size, len(entries))
			group := make([]ledger.Job, n)
			for i, e := range entries[:n] {
				group[i] = ledger.Job{Entry: e, Done: make(chan relay.Outcome, 1)}
			}
			began := time.Now()
			w.appendGroup(group)
			times = append(times, time.Since(began))
			for _, j := range group {
				if o := <-j.Done; o.Err != nil {
					return o.Err
				}
			}
			entries = entries[n:]
			before := length
			if _, length, _, err = w.checkpoint(w.stmts.logStatus); err != nil {
				return err
			}
			if before > length { // the log has begun again
				before = 0
			}
			pages += length - before
		}
		return nil
	})
	must(b, err)
	slices.Sort(times)
	return times, pages
}

// written returns how many bytes this process has written to files so far, 0 if it is unknown.
func written() (n int64) {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "wchar: %d", &n); err == nil {
			return n
		}
	}
	return 0
}

// TestLogBytes checks how much the write-ahead log takes for an event, with its share of a merge (STORE S-1, S-2): at
// most 6 KB in groups of 13.
func TestLogBytes(t *testing.T) {
	racing.Skip(t, "one thing after another")
	events := 60_000
	if testing.Short() {
		events = 20_000 // so one batch begins to be merged
	}
	s := openAt(t, filepath.Join(t.TempDir(), "agora.db"))
	_, pages := appendGroups(t, s, conversations(t, 0, events), 13)
	if size := float64(pages) * pageSize / 1024 / float64(events); size > 6 {
		t.Errorf("the log takes %.2f KB for an event", size)
	}
}

// BenchmarkGroups appends conversations in groups of one size. It measures the store alone. The times of groups show
// how long the slices of a merge and the restarts of the log hold up a group.
func BenchmarkGroups(b *testing.B) {
	for _, size := range []int{13, 64, 256} {
		b.Run(fmt.Sprintf("group=%d", size), func(b *testing.B) {
			s := openAt(b, filepath.Join(b.TempDir(), "agora.db"))
			for done := 0; done < *stored; done += 20_000 {
				appendGroups(b, s, conversations(b, done, min(20_000, *stored-done)), 256)
			}
			entries := conversations(b, *stored, b.N)
			cpu, before := bench.OwnCPU(), written()
			b.ResetTimer()
			times, pages := appendGroups(b, s, entries, size)
			b.StopTimer()
			b.ReportMetric(float64(bench.OwnCPU()-cpu)/1e3/float64(b.N), "cpu-µs/op")
			b.ReportMetric(float64(written()-before)/1024/float64(b.N), "KB/op")
			b.ReportMetric(float64(pages)*pageSize/1024/float64(b.N), "log-KB/op")
			last := len(times) - 1
			for name, at := range map[string]int{"p50": last / 2, "p99.9": last * 999 / 1000, "longest": last} {
				b.ReportMetric(float64(times[at].Microseconds())/1e3, name+"-ms")
			}
		})
	}
}
