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

	"github.com/agora-relay/agora/bench"
	"github.com/agora-relay/agora/relay"
)

// How many senders take turns in the benchmarks, and as many recipients.
const (
	benchSenders = 256
	benchInboxes = 64 // of BenchmarkRead, so that each has a page of its 10 000 events
)

// stored is the size of BenchmarkRead's database; a million takes a minute or two to make.
var stored = flag.Int("stored", 10_000, "events in the database of BenchmarkRead")

// benchEntries returns n signed REQUESTs, made on all cores: those with the numbers from first on, of so many senders by turns,
// each to a recipient of its own.
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

// appendBy has so many callers append the entries, each waiting for his receipt before the next.
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

// BenchmarkAppend has so many callers append at a time, each waiting for his receipt: that is how large groups get.
// Every event is a REQUEST, so each makes a thread too. Signing is outside of the time.
func BenchmarkAppend(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s := openNew(b)
			appendBy(b, s, benchEntries(b, 0, 2*benchSenders, benchSenders), callers) // all keys are known, as in a relay that runs
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

// BenchmarkRead reads the end of an inbox, in a database of -stored events in benchInboxes of them.
func BenchmarkRead(b *testing.B) {
	const stretch = 1 << 14
	s := openWith(b, filepath.Join(b.TempDir(), "agora.db"), Options{Policy: relay.Policy{Inbox: relay.Quota{Events: -1, Bytes: -1}}})
	for n := 0; n < *stored; n += stretch {
		appendBy(b, s, benchEntries(b, n, min(stretch, *stored-n), benchInboxes), 256)
	}
	inbox := relay.Query{Filter: relay.Filter{Recipient: key(benchInboxes).DID()}, Now: time.Now(), Limit: 1 << 20, Headers: true}
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
