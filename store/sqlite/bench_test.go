package sqlite

import (
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/relay"
)

// BenchmarkAppend has so many callers append at a time, each waiting for his receipt: that is how large groups get.
// Every event is a REQUEST, so each makes a thread too.
func BenchmarkAppend(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s := openNew(b)
			entries := make([]relay.Entry, b.N)
			for i := range entries {
				entries[i] = request(b, key(i%100), key(100+i%100).DID())
			}
			var next atomic.Int64
			b.ResetTimer()
			var all sync.WaitGroup
			for range callers {
				all.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						if _, err := s.Append(b.Context(), entries[i-1]); err != nil {
							b.Errorf("append: %v", err)
							return
						}
					}
				})
			}
			all.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkRead reads the end of an inbox, in a database of 100 000 events in 100 inboxes.
func BenchmarkRead(b *testing.B) {
	const rows, inboxes = 100_000, 100
	path := filepath.Join(b.TempDir(), "agora.db")
	s := openAt(b, path)
	for i := range inboxes {
		if _, err := s.Append(b.Context(), request(b, key(1000), key(i).DID())); err != nil {
			b.Fatal(err)
		}
	}
	// The rest are copies of these, made by the database itself.
	execute(b, s, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < "+strconv.Itoa(rows/inboxes-1)+") "+
		"INSERT INTO event (sender, id, recipient, type, thread, ts, received, expires, forget, body) "+
		"SELECT sender, id || '_' || i, recipient, type, thread, ts, received, expires, forget, body FROM n, event WHERE seq <= "+strconv.Itoa(inboxes))
	must(b, s.Close())
	s = openAt(b, path)
	end, err := s.Read(b.Context(), relay.Query{})
	must(b, err)
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprintf("rows=%d", n), func(b *testing.B) {
			q := relay.Query{Filter: relay.Filter{Recipient: key(7).DID()}, Now: time.Now(), Limit: relay.MaxPage,
				After: relay.Cursor{Epoch: end.Cursor.Epoch, Seq: end.Cursor.Seq - relay.Seq(n*inboxes)}}
			for b.Loop() {
				page, err := s.Read(b.Context(), q)
				if err != nil || len(page.Events) != n {
					b.Fatalf("%d rows, %v", len(page.Events), err)
				}
			}
		})
	}
}
