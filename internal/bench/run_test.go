package bench

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestForeignTarget(t *testing.T) {
	for _, url := range []string{"http://relay.example", "http://192.0.2.1:8789", "http://[2001:db8::1]:80",
		"https://localhost.example"} {
		if err := (Options{}).Check(url); err == nil || !strings.Contains(err.Error(), "--yes") {
			t.Errorf("%s: %v", url, err)
		}
		if err := (Options{Foreign: true}).Check(url); err != nil {
			t.Errorf("%s with --yes: %v", url, err)
		}
		if _, err := Run(t.Context(), url, Options{}); err == nil || !strings.Contains(err.Error(), "--yes") {
			t.Errorf("Run at %s: %v", url, err)
		}
	}
	for _, url := range []string{"http://127.0.0.1:8789", "http://localhost:8789/", "http://[::1]:1",
		"http://127.1.2.3"} {
		if err := (Options{}).Check(url); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestInvalidOptions(t *testing.T) {
	const url = "http://127.0.0.1:8789"
	for _, bad := range []string{"", "127.0.0.1:8789", "ftp://127.0.0.1", "http://127.0.0.1/?a=b", "http://"} {
		if (Options{Foreign: true}).Check(bad) == nil {
			t.Errorf("%q was accepted as an address", bad)
		}
	}
	nan := 0.0
	for i, o := range []Options{{Mode: "fast"}, {Pollers: 3}, {Mode: Mixed, Rate: 5}, {Connections: -1}, {Senders: -1},
		{Idle: -1}, {Body: MinBody - 1}, {Rate: -1}, {Rate: nan / nan}, {Duration: -1}, {Duration: 2 * time.Hour},
		{Count: -1}, {WarmUp: -1}, {WarmUp: time.Hour}, {PID: -1},
		{Nodes: []string{"127.0.0.1"}}, {Nodes: []string{"192.0.2.1:8789"}},
		{Nodes: []string{"127.0.0.1:8789"}, Floor: []string{"agora"}}} {
		if o.Check(url) == nil {
			t.Errorf("case %d was accepted: %+v", i, o)
		}
	}
	for _, o := range []Options{{}, {Body: MinBody}, {Mode: Deliver}, {Mode: CatchUp}, {Rate: 0.5}} {
		if err := o.Check(url); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestNodes posts to two addresses of a relay. The host of the URL is not one of them.
func TestNodes(t *testing.T) {
	t.Parallel()
	var requests [2]atomic.Int64
	front := func(i int, relay string) string {
		to, err := url.Parse(relay)
		if err != nil {
			t.Fatal(err)
		}
		proxy := httputil.NewSingleHostReverseProxy(to)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests[i].Add(1)
			proxy.ServeHTTP(w, r)
		}))
		t.Cleanup(server.Close)
		return server.Listener.Addr().String()
	}
	relay := start(t, nil)
	o := small(Post)
	o.Nodes = []string{front(0, relay), front(1, relay)}
	report, err := Run(t.Context(), "http://127.0.0.1:1", o)
	if err != nil || !report.Holds() || requests[0].Load() == 0 || requests[1].Load() == 0 {
		t.Errorf("%v, %d and %d requests: %+v", err, requests[0].Load(), requests[1].Load(), report)
	}
}

func TestNoRelay(t *testing.T) {
	t.Parallel()
	if _, err := Run(t.Context(), "http://127.0.0.1:1", small(Post)); err == nil ||
		!strings.Contains(err.Error(), "no relay answers") {
		t.Error(err)
	}
	other := start(t, func(http.Handler) http.Handler { return http.NotFoundHandler() })
	if _, err := Run(t.Context(), other, small(Post)); err == nil || !strings.Contains(err.Error(), "404") {
		t.Error(err)
	}
}

// TestRefusals checks that a refused post is counted, that the connection waits before the next post, and that a
// refusal is not a mismatch.
func TestRefusals(t *testing.T) {
	t.Parallel()
	var posts atomic.Int64
	url := start(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if isPost(r) && posts.Add(1) > 5 {
				w.Header().Set("Retry-After", "1")
				http.Error(w, `{"ok":false}`, http.StatusTooManyRequests)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	o := small(Post)
	o.Duration = 1500 * time.Millisecond
	r := bench(t, url, o)
	var printed strings.Builder
	if err := r.WriteText(&printed); err != nil || !strings.Contains(printed.String(), "use a loopback address") {
		t.Error(printed.String())
	}
	if !r.Holds() || r.Accepted != 4 || r.Refused < 4 || r.Refused > 12 {
		t.Errorf("%+v", r)
	}
}

// TestInterrupted checks that an interrupted run ends soon, and that it verifies and reports what it has posted. A run
// that is interrupted before the measurement returns an error.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	for _, mode := range Modes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			ctx, interrupt := context.WithCancel(t.Context())
			var posts atomic.Int64
			url := start(t, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					next.ServeHTTP(w, r)
					if isPost(r) && posts.Add(1) == 50 {
						interrupt()
					}
				})
			})
			o := small(mode)
			o.Count, o.Duration = 100_000, time.Minute
			r, err := Run(ctx, url, o)
			if err != nil || !r.Interrupted || !r.Holds() || r.Accepted < 40 || r.Accepted > 80 {
				t.Errorf("%v %+v", err, r)
			}
		})
	}
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	if _, err := Run(ctx, start(t, nil), small(Post)); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Error(err)
	}
}

// TestDuration checks that a run ends after its duration, even if signed envelopes are left.
func TestDuration(t *testing.T) {
	t.Parallel()
	url := start(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if isPost(r) {
				<-time.After(20 * time.Millisecond) // a slow relay, so that not all signed envelopes are posted
			}
			next.ServeHTTP(w, r)
		})
	})
	r := bench(t, url, Options{Connections: 2, Senders: 2, Duration: 500 * time.Millisecond,
		calibration: 20 * time.Millisecond})
	if !r.Holds() || r.Accepted > 100 || r.Seconds < 0.4 || r.Seconds > 5 {
		t.Errorf("%+v", r)
	}
}

// TestRelayStopsAnswering checks that a run ends if the relay stops answering posts, and that it reports them as
// failed.
func TestRelayStopsAnswering(t *testing.T) {
	t.Parallel()
	var posts atomic.Int64
	url := start(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if isPost(r) && posts.Add(1) > 10 {
				_, _ = io.Copy(io.Discard, r.Body) // the server notices a closed connection only after reading the body
				<-r.Context().Done()
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	o := small(Post)
	o.Count = 9 + 4 // nine posts that are answered, and one on each of the four connections that is not
	r := bench(t, url, o)
	if r.Holds() || r.Accepted != 9 || r.Failed != 4 || r.Broken != 4 || r.Seconds > 30 || !r.Complete {
		t.Errorf("%+v", r)
	}
}

// TestStallDelaysAllPosts checks that in a run with a rate a stall counts in the latency of every post that it delays,
// and not only in the latency of the first.
func TestStallDelaysAllPosts(t *testing.T) {
	t.Parallel()
	const stall = 600 * time.Millisecond
	var posts atomic.Int64
	url := start(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if isPost(r) && posts.Add(1) == 5 {
				<-time.After(stall) // only this post to the relay waits, not the test
			}
			next.ServeHTTP(w, r)
		})
	})
	o := small(Deliver)
	o.Connections, o.Rate = 1, 100
	r := bench(t, url, o)
	if !r.Holds() || r.Ack.P50 < 150 || r.Ack.P50 < 2*r.AckFromSending.P50 ||
		r.Delivery.P50 < 2*r.DeliveryFromSending.P50 {
		t.Errorf("ack %+v, from sending %+v; delivery %+v, from sending %+v",
			r.Ack, r.AckFromSending, r.Delivery, r.DeliveryFromSending)
	}
}

func TestPercentiles(t *testing.T) {
	h := &newStats().ack
	if h.latency() != nil {
		t.Error("an empty histogram has percentiles")
	}
	for ms := range 1000 {
		h.add(time.Duration(ms+1) * time.Millisecond)
	}
	h.add(time.Hour) // more than the largest value of a histogram, which is two minutes
	got := h.latency()
	near := func(have, want float64) bool { return have > want*0.998 && have < want*1.002 }
	if got.Count != 1001 || !near(got.P50, 501) || !near(got.P90, 901) || !near(got.P99, 991) ||
		!near(got.P999, 1000) || !near(got.Max, 120_000) {
		t.Errorf("%+v", got)
	}
}

func TestIDs(t *testing.T) {
	a, b := newIDs(), newIDs()
	var last []byte
	for _, n := range []int{0, 1, 2, 77, 65535, 65536, maxPosts, 1<<40 - 1} {
		id := a.append(nil, n, int64(1e12)+int64(n))
		if got, ok := a.number(id); !ok || got != n || len(id) != 26 {
			t.Errorf("number %d became the id %s, which became the number %d", n, id, got)
		}
		if got, ok := b.number(id); ok {
			t.Errorf("ids of another run accept %s, as number %d", id, got)
		}
		if slices.Compare(last, id) >= 0 {
			t.Errorf("%s does not sort after %s", id, last)
		}
		last = id
	}
	for _, id := range []string{"", "x", strings.Repeat("u", 26), strings.Repeat("0", 26)} {
		if n, ok := a.number([]byte(id)); ok {
			t.Errorf("the invalid id %q was accepted, as number %d", id, n)
		}
	}
}
