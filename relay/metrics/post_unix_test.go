//go:build unix

package metrics_test

import (
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/metrics"
	"github.com/agora-relay/agora/store/sqlite"
)

// BenchmarkPost compares posts with and without metrics. It posts the same messages to two relays, in turns of a few
// hundred, so that both get the same share of the machine's noise. ratio is the median of the CPU times of the turns
// with metrics, divided by that of the turns without.
func BenchmarkPost(b *testing.B) {
	const turn, posters = 512, 8
	open := func(o relay.Observer) *relay.Relay {
		store, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "agora.db"), sqlite.Options{Reserve: 1 << 22, Observer: o, Log: quiet})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := store.Close(); err != nil {
				b.Error(err)
			}
		})
		none := relay.Rate{PerSecond: relay.Unlimited}
		key, err := didkey.Generate()
		if err != nil {
			b.Fatal(err)
		}
		r, err := relay.New(b.Context(), relay.Config{Store: store, Key: key, Observer: o, Log: quiet,
			Limits: relay.Limits{PostsPerAddress: none, PostsPerAgent: none, BroadcastsPerAddress: none}})
		if err != nil {
			b.Fatal(err)
		}
		return r
	}
	relays := []*relay.Relay{open(relay.NoObserver{}), open(metrics.New("bench"))}
	key, err := didkey.Generate()
	if err != nil {
		b.Fatal(err)
	}
	var took [2][]float64
	for b.Loop() {
		bodies := make([][]byte, turn)
		for i := range bodies {
			e, err := envelope.Draft{Payload: envelope.Request{Intent: "echo"}}.Sign(key, time.Now())
			if err != nil {
				b.Fatal(err)
			}
			bodies[i] = e.Canonical()
		}
		first := len(took[0]) % 2 // each relay begins every other time
		for _, i := range []int{first, 1 - first} {
			r, began := relays[i], cpuTime(b)
			var all sync.WaitGroup
			for p := range posters {
				all.Go(func() {
					from := relay.Peer{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(p)})}
					for j := p; j < turn; j += posters {
						if _, err := r.Post(b.Context(), from, bodies[j]); err != nil {
							b.Error(err)
						}
					}
				})
			}
			all.Wait()
			took[i] = append(took[i], float64((cpuTime(b)-began).Nanoseconds())/turn)
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	off, on := took[0][len(took[0])/2], took[1][len(took[1])/2]
	b.ReportMetric(on/off, "ratio")
	b.ReportMetric(off, "ns/post-off")
	b.ReportMetric(on, "ns/post-on")
}

// cpuTime returns the CPU time that this process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
