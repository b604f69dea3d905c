package metrics_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay/metrics"
	"github.com/agora-relay/agora/thread"
)

// TestPages checks what the server answers while the relay is ready and while it is not.
func TestPages(t *testing.T) {
	var failure error
	server := full(t).Server(func() error { return failure }, quiet)
	const ok = "ok\n"
	reason := envelope.Errorf(envelope.CodeUnavailable, "the disk is full")
	for _, c := range []struct {
		failure      error
		method, path string
		status       int
		body         string // empty: not checked
	}{
		{nil, "GET", "/livez", 200, ok},
		{nil, "GET", "/readyz", 200, ok},
		{nil, "HEAD", "/readyz", 200, ""},
		{nil, "GET", "/readyz?verbose", 200, ok},
		{reason, "GET", "/readyz", 503, "UNAVAILABLE: the disk is full\n"},
		{reason, "GET", "/livez", 200, ok},
		{reason, "GET", "/metrics", 200, ""},
		{nil, "GET", "/readyz", 200, ok},
		{nil, "POST", "/metrics", 405, ""},
		{nil, "POST", "/livez", 405, ""},
		{nil, "DELETE", "/readyz", 405, ""},
		{nil, "GET", "/", 404, ""},
		{nil, "GET", "/health", 404, ""},
		{nil, "GET", "/metrics/", 404, ""},
		{nil, "GET", "/debug/pprof/", 404, ""},
		{nil, "GET", "/debug/pprof/profile?seconds=1", 404, ""},
		{nil, "GET", "/debug/vars", 404, ""},
		{nil, "POST", "/events", 404, ""},
	} {
		failure = c.failure
		w := httptest.NewRecorder()
		server.Handler.ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
		if w.Code != c.status || c.body != "" && w.Body.String() != c.body {
			t.Errorf("%s %s while the relay fails with %v: %d %q, want %d %q", c.method, c.path, c.failure, w.Code, w.Body,
				c.status, c.body)
		}
		if c.body != "" && (w.Header().Get("Cache-Control") != "no-store" ||
			w.Header().Get("Content-Type") != "text/plain; charset=utf-8") {
			t.Errorf("%s %s: header %v", c.method, c.path, w.Header())
		}
	}
}

// TestServerIsBounded checks that a slow client cannot keep a connection for ever.
func TestServerIsBounded(t *testing.T) {
	s := full(t).Server(healthy, quiet)
	if s.ReadHeaderTimeout <= 0 || s.ReadTimeout <= 0 || s.WriteTimeout <= 10*time.Second || s.IdleTimeout <= 0 ||
		s.MaxHeaderBytes <= 0 || s.MaxHeaderBytes > 64<<10 {
		t.Errorf("%+v", s)
	}
}

// TestMetricsInOpenMetrics checks that Prometheus also gets the format that it asks for.
func TestMetricsInOpenMetrics(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
	w := httptest.NewRecorder()
	full(t).Server(healthy, quiet).Handler.ServeHTTP(w, r)
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "application/openmetrics-text") ||
		!strings.HasSuffix(w.Body.String(), "# EOF\n") || !strings.Contains(w.Body.String(), "agora_posts_total{") {
		t.Errorf("%v\n%s", w.Header(), w.Body)
	}
}

// TestCertificates checks that the end of each certificate is given in seconds.
func TestCertificates(t *testing.T) {
	got := scrape(t, full(t)).values
	const name = "agora_tls_certificate_expiry_timestamp_seconds"
	if got[name+`{host=""}`] != 2e9 || got[name+`{host="relay.example"}`] != 1e9 {
		t.Errorf("%v and %v", got[name+`{host=""}`], got[name+`{host="relay.example"}`])
	}
}

// TestNode checks the series of one of several nodes. A relay that knows nothing of backups and standbys does not have
// their series.
func TestNode(t *testing.T) {
	got := scrape(t, full(t)).values
	for series, want := range map[string]float64{
		`agora_node_role{role="leader"}`: 1, `agora_node_role{role="follower"}`: 0,
		`agora_node_state{state="ok"}`: 0, `agora_node_state{state="waiting"}`: 1,
		"agora_node_lag_events": 12, "agora_node_lease_changes_total": 3,
		"agora_node_standbys": 2, "agora_node_standbys_required": 1, "agora_backup_last_timestamp_seconds": 1e9,
	} {
		if value, exists := got[series]; !exists || value != want {
			t.Errorf("%s is %v, exists: %v; want %v", series, value, exists, want)
		}
	}
	m := metrics.New("")
	m.AddStore(func(context.Context) (s metrics.StoreStats, err error) { s.LastBackup = &time.Time{}; return s, nil }, quiet)
	got = scrape(t, m).values
	for _, series := range []string{"agora_node_standbys", "agora_node_standbys_required"} {
		if _, exists := got[series]; exists {
			t.Errorf("%s exists without a value", series)
		}
	}
	if at, exists := got["agora_backup_last_timestamp_seconds"]; !exists || at != 0 {
		t.Errorf("the time of no backup is %v, exists: %v; want 0", at, exists)
	}
}

// storeSeries are the series of the store, with the values that they have at n threads.
func storeSeries(n float64) map[string]float64 {
	return map[string]float64{`agora_threads{state="ACTIVE"}`: n, "agora_database_bytes": 10 * n,
		"agora_database_log_bytes": 100 * n}
}

// TestStoreIsAskedEveryTenSeconds checks how long StoreStats are used again, also after a failure. A failure leaves out
// the metrics of the store and no others.
func TestStoreIsAskedEveryTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, log := metrics.New(""), new(bytes.Buffer)
		calls, failure := int64(0), error(nil)
		m.AddStore(func(context.Context) (metrics.StoreStats, error) {
			calls++
			return metrics.StoreStats{Threads: map[thread.State]int64{thread.Active: calls}, DatabaseBytes: 10 * calls,
				LogBytes: 100 * calls}, failure
		}, slog.New(slog.NewTextHandler(log, nil)))
		expect := func(want int64, present bool) {
			t.Helper()
			got := scrape(t, m).values
			if calls != want {
				t.Errorf("at %v the store was asked %d times, want %d", time.Now(), calls, want)
			}
			for series, value := range storeSeries(float64(want)) {
				if v, exists := got[series]; exists != present || present && v != value {
					t.Errorf("%s is %v, exists: %v; want %v, %v", series, v, exists, value, present)
				}
			}
			if _, exists := got[`agora_posts_total{code="stored"}`]; !exists {
				t.Error("the other metrics are missing")
			}
		}
		expect(1, true)
		expect(1, true)
		time.Sleep(10*time.Second - time.Nanosecond)
		expect(1, true)
		time.Sleep(time.Nanosecond)
		expect(2, true)
		if log.Len() > 0 {
			t.Errorf("logged without a failure: %s", log)
		}
		failure = errors.New("the disk does not answer")
		time.Sleep(10 * time.Second)
		expect(3, false)
		expect(3, false)
		if n := strings.Count(log.String(), "the disk does not answer"); n != 1 {
			t.Errorf("the failure was logged %d times: %s", n, log)
		}
		failure = nil
		time.Sleep(10 * time.Second)
		expect(4, true)
	})
}

// TestSlowStore checks that a store that does not answer delays a scrape by five seconds, and that the scrape then has
// all other metrics.
func TestSlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New("")
		m.AddStore(func(ctx context.Context) (metrics.StoreStats, error) {
			<-ctx.Done()
			return metrics.StoreStats{}, ctx.Err()
		}, quiet)
		began := time.Now()
		got := scrape(t, m).values
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("the scrape took %v", took)
		}
		for series := range storeSeries(0) {
			if _, exists := got[series]; exists {
				t.Errorf("%s exists", series)
			}
		}
		if _, exists := got["agora_polls_waiting"]; !exists {
			t.Error("the other metrics are missing")
		}
	})
}

// TestScrapesAreLimited checks that a fifth scrape at the same time is refused, and that /livez still answers.
func TestScrapesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, goOn := metrics.New(""), make(chan struct{})
		m.AddCertificates(func() map[string]time.Time { <-goOn; return nil })
		pages := m.Server(healthy, quiet).Handler
		ask := func(path string) int {
			w := httptest.NewRecorder()
			pages.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			return w.Code
		}
		var answered atomic.Int64
		for range 4 {
			go func() {
				if status := ask("/metrics"); status != http.StatusOK {
					t.Errorf("a scrape gets %d", status)
				}
				answered.Add(1)
			}()
		}
		synctest.Wait()
		if status := ask("/metrics"); status != http.StatusServiceUnavailable {
			t.Errorf("the fifth scrape gets %d", status)
		}
		if status := ask("/livez"); status != http.StatusOK {
			t.Errorf("/livez answers %d", status)
		}
		close(goOn)
		synctest.Wait()
		if n := answered.Load(); n != 4 {
			t.Errorf("%d scrapes were answered", n)
		}
	})
}
