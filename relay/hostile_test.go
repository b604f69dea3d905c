package relay_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
)

// costlyBodies returns JSON texts of this size that are most expensive to parse: by their depth, by their number of
// values, or by what they grow to.
func costlyBodies(size int) map[string]string {
	list := func(open, element, end string) string {
		n := (size - len(open) - len(end)) / (len(element) + 1)
		return open + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + end
	}
	names := func(format string) string {
		var b strings.Builder
		for i := 0; b.Len() < size-40; i++ {
			fmt.Fprintf(&b, format, i)
		}
		return "{" + strings.TrimSuffix(b.String(), ",") + "}"
	}
	nest := func(open, end string, depth int) string {
		return strings.Repeat(open, depth) + strings.Repeat(end, depth)
	}
	return map[string]string{
		"brackets without end":     strings.Repeat("[", size),
		"objects without end":      strings.Repeat(`{"":`, size/4),
		"closed brackets":          nest("[", "]", size/2),
		"deepest allowed, often":   list("[", nest("[", "]", envelope.MaxDepth-1), "]"),
		"empty objects":            list("[", "{}", "]"),
		"empty arrays":             list(`{"a":[`, "[]", "]}"),
		"empty strings":            list("[", `""`, "]"),
		"names ascending":          names(`"a%06d":0,`),
		"names descending":         "{" + strings.TrimPrefix(names(`"%06d":[],`), "{"),
		"names of surrogates":      names(`"\ud83d\ude00%d":0,`),
		"one name, long":           `{"` + strings.Repeat("a", size-10) + `":0}`,
		"one string":               `{"a":"` + strings.Repeat("x", size-10) + `"}`,
		"one string of escapes":    `{"a":"` + strings.Repeat(`\u0001`, size/6-4) + `"}`,
		"numbers that grow":        list("[", "1e20", "]"),
		"numbers of all digits":    list("[", "1.7976931348623157e308", "]"),
		"numbers that are refused": list("[", "1e400", "]"),
		"one number":               "[" + strings.Repeat("9", size-2) + "]",
		"one fraction":             "[0." + strings.Repeat("1", size-4) + "]",
		"one exponent":             "[1e" + strings.Repeat("0", size-6) + "1]",
		"name twice, at the end":   strings.TrimSuffix(names(`"b%06d":0,`), "}") + `,"b000000":1}`,
		"quotes":                   strings.Repeat(`"`, size),
		"backslashes":              `"` + strings.Repeat(`\`, size-1),
		"spaces":                   strings.Repeat(" ", size-2) + "{}",
		"not UTF-8":                strings.Repeat("\xff", size),
	}
}

// TestHostileBodiesAreCheap checks that a hostile body takes less than 100 ms and 50 MB, is refused, and leaves nothing
// in the store. It tries each text as the body, as the envelope, and as the payload.
func TestHostileBodiesAreCheap(t *testing.T) {
	racing.Skip(t, "one thing after another")
	r := start(t, relay.Config{})
	const size = envelope.DefaultMaxBytes
	within := costlyBodies(size - len(`{"envelope":}`))
	for name, text := range costlyBodies(size) {
		t.Run(name, func(t *testing.T) {
			for _, body := range []string{text, `{"envelope":` + within[name] + "}", `{"payload":` + within[name] + "}"} {
				limit := 100 * time.Millisecond
				if racing.Detector {
					limit *= 20
				}
				var best time.Duration
				var before, after runtime.MemStats
				for i := range 20 { // the fastest of many counts, as the machine may be busy
					runtime.ReadMemStats(&before)
					began := time.Now()
					_, err := r.Post(t.Context(), local, []byte(body))
					if took := time.Since(began); i == 0 || took < best {
						best = took
					}
					runtime.ReadMemStats(&after)
					if code := codeOf(err); code != envelope.CodeInvalidRequest && code != envelope.CodePayloadTooLarge &&
						code != envelope.CodeUnsupportedVersion {
						t.Fatalf("%.60s…: %v", body, err)
					}
					if best <= limit {
						break
					}
				}
				if bytes := after.TotalAlloc - before.TotalAlloc; best > limit || bytes > 50<<20 {
					t.Errorf("%.60s…: %v, %d bytes", body, best, bytes)
				}
			}
		})
	}
	if page := poll(t, r, relay.Poll{Limit: 1}); len(page.Events) != 0 || page.Cursor.Seq != 0 {
		t.Errorf("something was stored: %v", page.Cursor)
	}
}

// TestBodiesParsedAtOnce checks that only some of many bodies are parsed at the same time, because parsing needs a
// hundred times their size in memory. One remote address gets half of the slots. All bodies are parsed in the end.
func TestBodiesParsedAtOnce(t *testing.T) {
	slots := max(2, runtime.GOMAXPROCS(0))
	t.Run("local", func(t *testing.T) { parseMany(t, local, slots) })
	t.Run("one address", func(t *testing.T) { parseMany(t, from("192.0.2.1"), (slots+1)/2) })
}

// parseMany posts many bodies at once and checks how many of them are parsed at the same time.
func parseMany(t *testing.T, peer relay.Peer, most int) {
	synctest.Test(t, func(t *testing.T) {
		var inside atomic.Int32
		var counting atomic.Bool
		gate := make(chan struct{})
		now := func() time.Time { // the relay calls it between parsing and verifying
			if counting.Load() {
				inside.Add(1)
				<-gate
				inside.Add(-1)
			}
			return time.Now()
		}
		r := start(t, relay.Config{Now: now, Limits: relay.Limits{PostsPerAddress: noLimit, BroadcastsPerAddress: noLimit}})
		synctest.Wait() // the relay has swept and waits for the next sweep
		counting.Store(true)
		defer counting.Store(false)
		const count = 100
		var posts sync.WaitGroup
		var stored atomic.Int32
		for range count {
			body := sign(t, key(t), envelope.Draft{Payload: request}).Canonical()
			posts.Go(func() {
				if _, err := r.Post(context.Background(), peer, body); err == nil {
					stored.Add(1)
				}
			})
		}
		synctest.Wait()
		if n := inside.Load(); n != int32(most) {
			t.Errorf("%d bodies are being parsed, want %d", n, most)
		}
		close(gate)
		posts.Wait()
		if n := stored.Load(); n != count {
			t.Errorf("%d of %d posts were stored", n, count)
		}
	})
}
