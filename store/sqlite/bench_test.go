package sqlite

import (
	"flag"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/internal/bench"
	"github.com/agora-relay/agora/relay"
)

// Numbers of senders in the benchmarks. Each sender has its own recipient.
const (
	benchSenders = 256
	benchInboxes = 64 // for BenchmarkRead; each inbox then has a page of its 10,000 events
)

// stored is the number of events in BenchmarkRead's database. A million takes one or two minutes to create.
var stored = flag.Int("stored", 10_000, "events in the database of BenchmarkRead")

// benchEntries returns n signed REQUESTs with the numbers from first on. The senders take turns, and each sender has a
// recipient of its own. Signing uses all cores.
func benchEntries(b *testing.B, first, n, senders int) []relay.Entry {
	entries := make([]relay.Entry, n)
	var next atomic.Int64
	var signing sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		signing.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				at := (first + i) % senders
				entries[i] = request(b, key(at), key(senders+at).DID())
			}
		})
	}
	signing.Wait()
	return entries
}

// appendBy appends entries from several callers. Each caller waits for its receipt before its next entry.
func appendBy(b *testing.B, s *Store, entries []relay.Entry, callers int) {
	var next atomic.Int64
	var appending sync.WaitGroup
	for range callers {
		appending.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(entries); i = int(next.Add(1)) - 1 {
				if _, err := s.Append(b.Context(), entries[i]); err != nil {
					b.Errorf("append: %v", err)
					return
				}
			}
		})
	}
	appending.Wait()
}

// BenchmarkAppend appends from several callers at once, each of which waits for its receipt. So a group has at most
// that many entries. Every event is a REQUEST and creates a thread. Signing is not measured.
func BenchmarkAppend(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s := openNew(b)
			// all keys are known, as in a relay that has run for a while
			appendBy(b, s, benchEntries(b, 0, 2*benchSenders, benchSenders), callers)
			entries := benchEntries(b, 0, b.N, benchSenders)
			runtime.GC()
			cpu := bench.OwnCPU()
			b.ResetTimer()
			appendBy(b, s, entries, callers)
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
			if cpu > 0 {
				b.ReportMetric(float64(bench.OwnCPU()-cpu)/float64(b.N), "cpu-ns/op")
			}
		})
	}
}

// BenchmarkRead reads the end of an inbox. The database has -stored events in benchInboxes inboxes.
func BenchmarkRead(b *testing.B) {
	const stretch = 1 << 14
	s := openWith(b, filepath.Join(b.TempDir(), "agora.db"),
		Options{Policy: relay.Policy{Inbox: relay.Quota{Events: -1, Bytes: -1}}})
	for n := 0; n < *stored; n += stretch {
		appendBy(b, s, benchEntries(b, n, min(stretch, *stored-n), benchInboxes), 256)
	}
	inbox := relay.Query{Filter: relay.Filter{Recipient: key(benchInboxes).DID()}, Now: time.Now(), Limit: 1 << 20,
		Headers: true}
	all, err := s.Read(b.Context(), inbox)
	must(b, err)
	inbox.Limit, inbox.Headers = relay.MaxPage, false
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprintf("rows=%d", n), func(b *testing.B) {
			if len(all.Events) <= n {
				b.Skipf("the inbox has %d events; ask for more by -stored", len(all.Events))
			}
			q := inbox
			q.After = relay.Cursor{Epoch: all.Cursor.Epoch, Seq: all.Events[len(all.Events)-1-n].Seq}
			b.ReportAllocs()
			cpu := bench.OwnCPU()
			for b.Loop() {
				page, err := s.Read(b.Context(), q)
				if err != nil || len(page.Events) != n {
					b.Fatalf("%d rows, %v", len(page.Events), err)
				}
			}
			if cpu > 0 {
				b.ReportMetric(float64(bench.OwnCPU()-cpu)/float64(b.N), "cpu-ns/op")
			}
		})
	}
}
