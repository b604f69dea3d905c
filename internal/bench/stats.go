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

// stats are the measurements of one phase. The counters and histograms are shared between goroutines. The goroutine
// that runs the phase owns the other fields.
type stats struct {
	from                                 int          // the first envelope number of the phase
	accepted, refused, failed, delivered atomic.Int64 // failed: posts without an answer, or with a wrong one
	queued, queuedTime                   atomic.Int64 // accepted posts that waited for their turn; nanoseconds
	lastDelivery                         atomic.Int64 // nanoseconds since the run began

	ack, delivery         histogram // time since the post was due
	ackSent, deliverySent histogram // time since the post was sent

	posting, delivering time.Duration // time spent posting; time until the last delivery
	ownCPU, relayCPU    time.Duration
	relayWritten        int64 // bytes
}

func newStats() *stats {
	s := &stats{}
	for _, h := range []*histogram{&s.ack, &s.ackSent, &s.delivery, &s.deliverySent} {
		h.values = hdrhistogram.New(1, (2 * time.Minute).Microseconds(), 3)
	}
	return s
}

// histogram counts durations in microseconds. Goroutines share a histogram, because a histogram takes 200 KB and its
// lock only 30 ns.
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

// latency returns the percentiles, or nil if nothing was counted.
func (h *histogram) latency() *Latency {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.values.TotalCount() == 0 {
		return nil
	}
	ms := func(percentile float64) float64 { return float64(h.values.ValueAtQuantile(percentile)) / 1e3 }
	return &Latency{h.values.TotalCount(), ms(50), ms(90), ms(99), ms(99.9), float64(h.values.Max()) / 1e3}
}

// measurements are the findings of a run, from which its report is made.
type measurements struct {
	std                     Std
	verifyCPU               [2]time.Duration // CPU time of one verification, before and after the run
	warm, measured, reading *stats           // of the warm-up, the measurement and the reading back
	rssBefore, rssAfter     int64            // the relay's memory in bytes
	idleGrowth              int64            // bytes of memory that the idle polls added
	stored, delivered       int64            // accepted envelopes that were read back, and delivered
	complete, interrupted   bool             // complete: everything could be read back
}

// mismatchList collects the mismatches of a run by kind, in the order of their first appearance.
type mismatchList struct {
	mu   sync.Mutex
	list []Mismatch
}

const maxExamples = 3

func (f *mismatchList) add(what string, id []byte) {
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

func (f *mismatchList) all() []Mismatch {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.list)
}

// calibrate returns how many signatures crypto/ed25519 verifies per second on all cores, and the CPU time of one
// verification. The CPU time does not depend on what else the machine is doing. It is 0 if it is not known.
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
			message := make([]byte, 640) // as many bytes as the signature of an envelope of usual size covers
			_, _ = rand.Read(message)    // crypto/rand never fails
			sig := ed25519.Sign(private, message)
			for ctx.Err() == nil && time.Since(began) < r.calibration {
				if !ed25519.Verify(public, message, sig) {
					panic("bench: crypto/ed25519 rejects its own signature")
				}
				verified.Add(1)
			}
		})
	}
	working.Wait()
	n := max(verified.Load(), 1)
	return float64(n) / time.Since(began).Seconds(), (OwnCPU() - own) / time.Duration(n)
}
