package bench

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// stats are what a phase measures. Counters and histograms are for all goroutines, the rest is its owner's.
type stats struct {
	from                                 int          // the number the phase begins with
	accepted, refused, failed, delivered atomic.Int64 // failed: broken off, or answered wrongly
	lastDelivery                         atomic.Int64 // nanoseconds since the run began

	ack, ackSent, delivery, deliverySent histogram // from when a post was due; from when it was sent

	posting, delivering time.Duration
	ownCPU, relayCPU    time.Duration
}

func newStats() *stats {
	s := &stats{}
	for _, h := range []*histogram{&s.ack, &s.ackSent, &s.delivery, &s.deliverySent} {
		h.values = hdrhistogram.New(1, (2 * time.Minute).Microseconds(), 3)
	}
	return s
}

// histogram counts durations in microseconds. It is shared, because one costs 200 KB and its lock 30 ns.
type histogram struct {
	mu     sync.Mutex
	values *hdrhistogram.Histogram
}

func (h *histogram) add(d time.Duration) {
	us := min(max(d.Microseconds(), 1), h.values.HighestTrackableValue())
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.values.RecordValue(us); err != nil {
		panic(err) // it is within the bounds
	}
}

// latency returns the percentiles; nil if nothing was counted.
func (h *histogram) latency() *Latency {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.values.TotalCount() == 0 {
		return nil
	}
	at := func(percentile float64) float64 { return float64(h.values.ValueAtQuantile(percentile)) / 1e3 }
	return &Latency{h.values.TotalCount(), at(50), at(90), at(99), at(99.9), float64(h.values.Max()) / 1e3}
}

// books are what a run found.
type books struct {
	std                     Std
	verifyCPU               [2]time.Duration // of one verification, before and after
	warm, measured, reading *stats
	rssBefore, rssAfter     int64
	idleGrowth              int64
	stored, delivered       int64 // of the accepted
	complete, interrupted   bool
}

// faults are what did not hold, by kind, in the order of their first appearance.
type faults struct {
	mu   sync.Mutex
	list []Mismatch
}

const maxExamples = 3

func (f *faults) add(what string, id []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.list, func(m Mismatch) bool { return m.What == what })
	if i < 0 {
		i = len(f.list)
		f.list = append(f.list, Mismatch{What: what})
	}
	m := &f.list[i]
	m.Count++
	if len(m.Examples) < maxExamples && len(id) > 0 {
		m.Examples = append(m.Examples, string(id))
	}
}

func (f *faults) all() []Mismatch {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.list)
}

// calibrate returns how many signatures crypto/ed25519 verifies a second on all cores, and the CPU time of one, which
// means the same on a machine that is busy with other things; 0: not known.
func (r *run) calibrate(ctx context.Context) (perSecond float64, cpu time.Duration) {
	verified := new(atomic.Int64)
	r.begin("calibrating", verified)
	own, began := OwnCPU(), time.Now()
	var working sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		working.Go(func() {
			public, private, err := ed25519.GenerateKey(nil)
			if err != nil {
				panic(err) // crypto/rand never fails
			}
			message := make([]byte, 640) // what the signature of an envelope of usual size covers
			_, _ = rand.Read(message)    // never fails
			sig := ed25519.Sign(private, message)
			for ctx.Err() == nil && time.Since(began) < r.calibration {
				if !ed25519.Verify(public, message, sig) {
					panic("bench: crypto/ed25519 refuses its own signature")
				}
				verified.Add(1)
			}
		})
	}
	working.Wait()
	n := max(verified.Load(), 1)
	return float64(n) / time.Since(began).Seconds(), (OwnCPU() - own) / time.Duration(n)
}
