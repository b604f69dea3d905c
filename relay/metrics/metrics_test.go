package metrics_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/relay/metrics"
	"github.com/agora-relay/agora/thread"
)

var quiet = slog.New(slog.DiscardHandler)

// healthy is a relay that is ready.
func healthy() error { return nil }

// get returns the answer of the server of m.
func get(m *metrics.Metrics, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	m.Server(healthy, quiet).Handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

// A page is what /metrics answers.
type page struct {
	values map[string]float64         // by series, such as agora_posts_total{code="stored"}; labels are sorted by name
	labels map[string]map[string]bool // names of the labels, by name of the metric
	types  map[string]string          // counter, gauge or histogram, by name of the family
}

var (
	sample = regexp.MustCompile(`^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)$`)
	label  = regexp.MustCompile(`(\w+)="(?:[^"\\]|\\.)*"`)
)

// scrape reads the metrics of m.
func scrape(t testing.TB, m *metrics.Metrics) page {
	t.Helper()
	w := get(m, "/metrics")
	if w.Code != http.StatusOK {
		t.Fatalf("/metrics answers %d: %s", w.Code, w.Body)
	}
	p := page{map[string]float64{}, map[string]map[string]bool{}, map[string]string{}}
	for line := range strings.Lines(w.Body.String()) {
		line = strings.TrimSuffix(line, "\n")
		if family, found := strings.CutPrefix(line, "# TYPE "); found {
			name, kind, _ := strings.Cut(family, " ")
			p.types[name] = kind
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		parts := sample.FindStringSubmatch(line)
		if parts == nil {
			t.Fatalf("this is not a sample: %s", line)
		}
		value, err := strconv.ParseFloat(parts[3], 64)
		if err != nil {
			t.Fatal(err)
		}
		p.values[parts[1]+parts[2]] = value
		if p.labels[parts[1]] == nil {
			p.labels[parts[1]] = map[string]bool{}
		}
		for _, l := range label.FindAllStringSubmatch(parts[2], -1) {
			p.labels[parts[1]][l[1]] = true
		}
	}
	return p
}

// own returns the series that the relay itself exports. It leaves out the series of Go and of the process, and the
// buckets of histograms.
func (p page) own() map[string]float64 {
	found := map[string]float64{}
	for series, value := range p.values {
		if strings.HasPrefix(series, "agora_") && !strings.Contains(series, "_bucket{") {
			found[series] = value
		}
	}
	return found
}

// changes returns by how much do changes each series.
func changes(t *testing.T, m *metrics.Metrics, do func()) map[string]float64 {
	t.Helper()
	before := scrape(t, m).own()
	do()
	changed := map[string]float64{}
	for series, value := range scrape(t, m).own() {
		if d := value - before[series]; d != 0 {
			changed[series] = d
		}
	}
	return changed
}

// full returns metrics that have every metric and every label.
func full(t testing.TB) *metrics.Metrics {
	t.Helper()
	m := metrics.New("v1.2.3")
	m.AddStore(func(context.Context) (metrics.StoreStats, error) {
		at, two, one := time.Unix(1e9, 0), 2, 1
		return metrics.StoreStats{Threads: map[thread.State]int64{thread.Pending: 3, thread.Active: 4},
			DatabaseBytes: 1 << 20, LogBytes: 1 << 10, LastBackup: &at, Standbys: &two, StandbysRequired: &one}, nil
	}, quiet)
	m.AddCertificates(func() map[string]time.Time {
		return map[string]time.Time{"": time.Unix(2e9, 0), "relay.example": time.Unix(1e9, 5e8)}
	})
	m.AddReady(func() error { return nil })
	m.AddLimits(func() int { return 10_000 }, 64<<30)
	m.AddBackups(func() bool { return false })
	m.AddNode([]string{"leader", "follower"}, []string{"ok", "waiting"}, func() metrics.NodeReport {
		return metrics.NodeReport{Role: "leader", State: "waiting", Lag: 12, LeaseChanges: 3}
	})
	m.Served("/hub", admission.Posts)
	m.Refused(http.StatusTooManyRequests, envelope.CodeRateLimited, envelope.LimitPolls)
	return m
}

// The durations are powers of two, so that their sums are exact.
const (
	half    = time.Second / 2
	quarter = time.Second / 4
)

// TestReportsAreCounted checks which series each report changes, and that it changes no other.
func TestReportsAreCounted(t *testing.T) {
	m := full(t)
	for name, c := range map[string]struct {
		do   func()
		want map[string]float64
	}{
		"a stored post": {func() { m.Posted(relay.PostReport{Bytes: 700, Check: quarter, Store: half}) },
			map[string]float64{`agora_posts_total{code="stored"}`: 1, "agora_post_bytes_total": 700,
				"agora_post_check_seconds_sum": 0.25, "agora_post_check_seconds_count": 1,
				"agora_post_store_seconds_sum": 0.5, "agora_post_store_seconds_count": 1}},
		"a duplicate": {func() { m.Posted(relay.PostReport{Bytes: 10, Check: quarter, Store: half, Duplicate: true}) },
			map[string]float64{`agora_posts_total{code="duplicate"}`: 1, "agora_post_bytes_total": 10,
				"agora_post_check_seconds_sum": 0.25, "agora_post_check_seconds_count": 1,
				"agora_post_store_seconds_sum": 0.5, "agora_post_store_seconds_count": 1}},
		"a post that was refused before the store": {
			func() { m.Posted(relay.PostReport{Code: envelope.CodeExpired, Bytes: 10, Check: quarter}) },
			map[string]float64{`agora_posts_total{code="EXPIRED"}`: 1, "agora_post_bytes_total": 10,
				"agora_post_check_seconds_sum": 0.25, "agora_post_check_seconds_count": 1}},
		"a request that reads": {func() { m.Served("", admission.Reads) },
			map[string]float64{`agora_http_requests_total{kind="read",mount="relay"}`: 1}},
		"a request that may change something": {func() { m.Served("/channel/inbox", admission.Posts) },
			map[string]float64{`agora_http_requests_total{kind="post",mount="channel/inbox"}`: 1}},
		"a refusal": {func() { m.Refused(http.StatusNotFound, envelope.CodeNotFound, "") },
			map[string]float64{`agora_http_refusals_total{code="NOT_FOUND",limit="",status="404"}`: 1}},
		"a refusal by a limit": {
			func() { m.Refused(http.StatusTooManyRequests, envelope.CodeRateLimited, envelope.LimitInbox) },
			map[string]float64{`agora_http_refusals_total{code="RATE_LIMITED",limit="inbox",status="429"}`: 1}},
		"a refusal with the code of a gateway": {func() { m.Refused(http.StatusGone, "", "") },
			map[string]float64{`agora_http_refusals_total{code="",limit="",status="410"}`: 1}},
		"a refused connection": {func() { m.Refused(0, envelope.CodeRateLimited, envelope.LimitConnectionsPerAddress) },
			map[string]float64{`agora_http_refusals_total{code="RATE_LIMITED",limit="connectionsPerAddress",status="0"}`: 1}},
		"a status that HTTP does not have": {func() { m.Refused(1000, "", ""); m.Refused(-1, "", "") },
			map[string]float64{`agora_http_refusals_total{code="",limit="",status="1000"}`: 1,
				`agora_http_refusals_total{code="",limit="",status="-1"}`: 1}},
		"a commit": {func() { m.Committed(relay.CommitReport{Events: 3, Work: half, Commit: quarter}) },
			map[string]float64{"agora_commit_sync_seconds_sum": 0.25, "agora_commit_sync_seconds_count": 1,
				"agora_commit_work_seconds_sum": 0.5, "agora_commit_work_seconds_count": 1,
				"agora_commit_events_sum": 3, "agora_commit_events_count": 1}},
		"polls": {func() { m.Waiting(1); m.Waiting(1); m.Waiting(1); m.Waiting(-1) },
			map[string]float64{"agora_polls_waiting": 2}},
		"an answer": {func() { m.Delivered(relay.DeliveryReport{Events: 2, Bytes: 900}) },
			map[string]float64{"agora_poll_answers_total": 1, "agora_events_delivered_total": 2,
				"agora_delivered_bytes_total": 900}},
		"an answer to a poll that waited": {
			func() { m.Delivered(relay.DeliveryReport{Events: 1, Bytes: 9, Waited: true, Wake: half}) },
			map[string]float64{"agora_poll_answers_total": 1, "agora_events_delivered_total": 1,
				"agora_delivered_bytes_total": 9, "agora_wake_seconds_sum": 0.5, "agora_wake_seconds_count": 1}},
		"an empty answer": {func() { m.Delivered(relay.DeliveryReport{}) },
			map[string]float64{"agora_poll_answers_total": 1}},
		"an accepted message": {func() { m.Screened(quarter, "") },
			map[string]float64{`agora_policy_decisions_total{result="accepted"}`: 1, "agora_policy_seconds_sum": 0.25, "agora_policy_seconds_count": 1}},
		"a copied message": {func() { m.Mirrored("", false) }, map[string]float64{`agora_mirror_messages_total{code="stored"}`: 1}},
		"a copy of a copy": {func() { m.Mirrored("", true) }, map[string]float64{`agora_mirror_messages_total{code="duplicate"}`: 1}},
		"a refused copy": {func() { m.Mirrored(envelope.CodeForbidden, false) },
			map[string]float64{`agora_mirror_messages_total{code="FORBIDDEN"}`: 1}},
		"a mirror that fails": {func() { m.MirrorFailed() }, map[string]float64{"agora_mirror_failures_total": 1}},
		"a refused message": {func() { m.Screened(quarter, envelope.CodeForbidden) },
			map[string]float64{`agora_policy_decisions_total{result="refused"}`: 1, "agora_policy_seconds_sum": 0.25, "agora_policy_seconds_count": 1}},
		"no decision": {func() { m.Screened(quarter, envelope.CodeUnavailable) },
			map[string]float64{`agora_policy_decisions_total{result="failed"}`: 1, "agora_policy_seconds_sum": 0.25, "agora_policy_seconds_count": 1}},
		"a sweep": {func() { m.Swept(quarter, nil) },
			map[string]float64{"agora_sweep_seconds_sum": 0.25, "agora_sweep_seconds_count": 1}},
		"a failed sweep": {func() { m.Swept(quarter, errors.New("the disk is full")) },
			map[string]float64{"agora_sweep_seconds_sum": 0.25, "agora_sweep_seconds_count": 1,
				"agora_sweep_failures_total": 1}},
		"a reload": {func() { m.Reloaded(nil) }, map[string]float64{`agora_config_reloads_total{result="ok"}`: 1}},
		"a failed reload": {func() { m.Reloaded(errors.New("no such file")) },
			map[string]float64{`agora_config_reloads_total{result="failed"}`: 1}},
	} {
		if got := changes(t, m, c.do); !maps.Equal(got, c.want) {
			t.Errorf("%s: changed %v\nwant %v", name, got, c.want)
		}
	}
}

// TestEveryCodeIsCounted checks that a post with any code changes the counter of this code, and that the counters exist
// before the first post. Otherwise an alert would not see the first failure.
func TestEveryCodeIsCounted(t *testing.T) {
	m := metrics.New("")
	for _, row := range envelope.Codes() {
		code := row.Code
		series := `agora_posts_total{code="` + string(code) + `"}`
		if _, exists := scrape(t, m).values[series]; !exists {
			t.Errorf("%s does not exist before the first post", series)
		}
		got := changes(t, m, func() { m.Posted(relay.PostReport{Code: code}) })
		if got[series] != 1 {
			t.Errorf("a post with %s changes %v", code, got)
		}
	}
}

// TestNewMetrics checks what exists before the first report.
func TestNewMetrics(t *testing.T) {
	got := scrape(t, metrics.New("v1.2.3")).values
	for _, series := range []string{
		`agora_posts_total{code="stored"}`, `agora_posts_total{code="duplicate"}`,
		`agora_config_reloads_total{result="ok"}`, `agora_config_reloads_total{result="failed"}`,
		`agora_http_refusals_total{code="INTERNAL_ERROR",limit="",status="500"}`, "agora_sweep_failures_total",
	} {
		if value, exists := got[series]; !exists || value != 0 {
			t.Errorf("%s is %v, exists: %v", series, value, exists)
		}
	}
	built := slices.DeleteFunc(slices.Collect(maps.Keys(got)), func(s string) bool {
		return !strings.HasPrefix(s, "agora_build_info{goversion=\"go") || !strings.HasSuffix(s, `version="v1.2.3"}`)
	})
	if len(built) != 1 || got[built[0]] != 1 {
		t.Errorf("agora_build_info: %v", built)
	}
	for _, series := range []string{"go_goroutines", "go_memstats_heap_inuse_bytes"} {
		if got[series] <= 0 {
			t.Errorf("%s is %v", series, got[series])
		}
	}
}

// TestHistogramsReachFarEnough checks that the buckets tell the times apart that the alerts need: the threshold is
// between the ends of two buckets.
func TestHistogramsReachFarEnough(t *testing.T) {
	ends := map[string][]float64{}
	bucket := regexp.MustCompile(`^(agora_\w+)_bucket\{le="([^"]+)"\}$`)
	for series := range scrape(t, full(t)).values {
		if m := bucket.FindStringSubmatch(series); m != nil && m[2] != "+Inf" {
			end, err := strconv.ParseFloat(m[2], 64)
			if err != nil {
				t.Fatal(err)
			}
			ends[m[1]] = append(ends[m[1]], end)
		}
	}
	for name, reach := range map[string][2]float64{
		"agora_post_check_seconds": {100e-6, 0.5}, "agora_post_store_seconds": {500e-6, 1}, "agora_sweep_seconds": {1e-3, 1},
		"agora_commit_sync_seconds": {100e-6, 0.5}, "agora_commit_work_seconds": {100e-6, 0.5},
		"agora_wake_seconds": {20e-6, 0.25}, "agora_commit_events": {1, 200},
		"agora_policy_seconds": {100e-6, 5},
	} {
		if len(ends[name]) == 0 || slices.Min(ends[name]) > reach[0] || slices.Max(ends[name]) <= reach[1] {
			t.Errorf("%s has the buckets %v, want from %v to more than %v", name, ends[name], reach[0], reach[1])
		}
	}
	if len(ends) != 8 {
		t.Errorf("%d histograms, want 8", len(ends))
	}
}

// TestReportsAllocateNothing checks the promise of relay.Observer.
func TestReportsAllocateNothing(t *testing.T) {
	m := full(t)
	for name, report := range reports(m) {
		report() // the first report of a kind may create its series
		if n := testing.AllocsPerRun(100, report); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// reports returns a call of each method of relay.Observer.
func reports(m *metrics.Metrics) map[string]func() {
	return map[string]func(){
		"Posted": func() { m.Posted(relay.PostReport{Bytes: 700, Check: 80e3, Store: 3e6}) },
		"Posted, refused": func() {
			m.Posted(relay.PostReport{Code: envelope.CodeInvalidSignature, Bytes: 700, Check: 80e3})
		},
		"Served":          func() { m.Served("", admission.Posts) },
		"Served, gateway": func() { m.Served("/hub", admission.Reads) },
		"Refused":         func() { m.Refused(http.StatusTooManyRequests, envelope.CodeRateLimited, envelope.LimitPolls) },
		"Queued":          func() { m.Queued(3e6) },
		"Committed":       func() { m.Committed(relay.CommitReport{Events: 3, Work: 1e6, Commit: 2e6}) },
		"Waiting":         func() { m.Waiting(1) },
		"Delivered":       func() { m.Delivered(relay.DeliveryReport{Events: 1, Bytes: 700, Waited: true, Wake: 30e3}) },
		"Screened":        func() { m.Screened(1e6, "") },
		"Mirrored":        func() { m.Mirrored("", true) },
		"MirrorFailed":    func() { m.MirrorFailed() },
		"Swept":           func() { m.Swept(1e6, nil) },
	}
}

// BenchmarkReports measures each method of relay.Observer, on all processors at once.
func BenchmarkReports(b *testing.B) {
	m := full(b)
	all := reports(m)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					all[name]()
				}
			})
		})
	}
}

// BenchmarkScrape measures an answer of /metrics, without the time for counting the threads.
func BenchmarkScrape(b *testing.B) {
	m := full(b)
	b.ReportAllocs()
	for b.Loop() {
		if w := get(m, "/metrics"); w.Code != http.StatusOK {
			b.Fatal(w.Code)
		}
	}
}
