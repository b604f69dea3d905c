//go:build unix

package policycmd

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/bench/stage"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
)

// BenchmarkPost measures what a decision costs a post: it posts each message to a relay without a policy program and to
// one with it, in turn, so that other work of the machine affects both. It reports the medians, and their ratio. The
// program answers at once. The database is in the folder of temporary files; set TMPDIR for another disk.
func BenchmarkPost(b *testing.B) {
	b.Run("one client", func(b *testing.B) { benchmarkPosts(b, 1) })
	b.Run("32 clients", func(b *testing.B) { benchmarkPosts(b, 32) })
}

func benchmarkPosts(b *testing.B, clients int) {
	b.Setenv("POLICY_TEST_MODE", "accept")
	program, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	c := New(Options{Argv: []string{program}, Log: slog.New(slog.DiscardHandler), Timeout: time.Minute})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	defer running.Wait()
	defer cancel()
	relays := []*relay.Relay{openRelay(b, nil), openRelay(b, c)}
	bodies, _ := stage.Requests(b, b.N)
	times := [2][]time.Duration{make([]time.Duration, b.N), make([]time.Duration, b.N)}
	local := relay.Peer{Local: true}
	b.ResetTimer()
	var posting sync.WaitGroup
	for first := range clients {
		posting.Go(func() {
			for i := first; i < b.N; i += clients {
				for turn := range relays {
					which := (turn + i) % 2 // each relay is first half of the time
					began := time.Now()
					if _, err := relays[which].Post(ctx, local, bodies[i]); err != nil {
						b.Error(err)
						return
					}
					times[which][i] = time.Since(began)
				}
			}
		})
	}
	posting.Wait()
	b.StopTimer()
	var medians [2]float64
	for i := range times {
		slices.Sort(times[i])
		medians[i] = float64(times[i][len(times[i])/2].Nanoseconds()) / 1000
	}
	b.ReportMetric(medians[0], "µs/plain")
	b.ReportMetric(medians[1], "µs/policy")
	b.ReportMetric(medians[1]/medians[0], "ratio")
}

// openRelay returns a relay over its own database. screen may be nil.
func openRelay(b *testing.B, screen relay.Screen) *relay.Relay {
	b.Helper()
	log := slog.New(slog.DiscardHandler)
	store, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "agora.db"), sqlite.Options{Reserve: 1 << 20, Log: log})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := store.Close(); err != nil {
			b.Error(err)
		}
	})
	key, err := didkey.Generate()
	if err != nil {
		b.Fatal(err)
	}
	r, err := relay.New(b.Context(), relay.Config{Store: store, Key: key, Log: log, Screen: screen})
	if err != nil {
		b.Fatal(err)
	}
	return r
}
