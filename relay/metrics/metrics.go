// Package metrics counts what a relay does, for Prometheus. A Metrics is a relay.Observer. It also serves the pages that
// a monitor reads: /metrics, /livez and /readyz.
//
// No label has a value that a client chose. So the number of series does not depend on how many agents, threads or
// addresses there are. dashboard.json and alerts.yml in this folder use these metrics.
package metrics

import (
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
)

// Values of the label code for posts that were not refused.
const (
	stored    = "stored"
	duplicate = "duplicate"
)

// Values of the label result for decisions of the policy command.
const (
	accepted = "accepted"
	refused  = "refused"
	failed   = "failed"
)

// Metrics receives the reports of a relay and of its store. New creates one.
type Metrics struct {
	relay.NoObserver
	registry *prometheus.Registry

	posts      map[string]prometheus.Counter // by code
	postBytes  prometheus.Counter
	check      prometheus.Observer
	store      prometheus.Observer
	requests   *prometheus.CounterVec
	refusals   *prometheus.CounterVec
	queued     prometheus.Counter
	queuedTime prometheus.Counter
	commitSync prometheus.Observer
	commitWork prometheus.Observer
	commitSize prometheus.Observer
	decisions  map[string]prometheus.Counter // by result
	decide     prometheus.Observer
	mirrored   map[string]prometheus.Counter // by code
	mirrorFail prometheus.Counter
	waiting    prometheus.Gauge
	answers    prometheus.Counter
	delivered  prometheus.Counter
	readBytes  prometheus.Counter
	wake       prometheus.Observer
	sweep      prometheus.Observer
	sweepFails prometheus.Counter
	reloads    *prometheus.CounterVec

	statuses [600]string // the texts of HTTP statuses, so that Refused allocates nothing
}

var _ relay.Observer = (*Metrics)(nil)

// New returns the metrics of a relay. build is the program's version.
func New(build string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), posts: map[string]prometheus.Counter{}}
	m.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.gauge("agora_build_info", "Always 1. The labels say which program runs.",
		prometheus.Labels{"version": build, "goversion": runtime.Version()}).Set(1)
	posts := m.counters("agora_posts_total", "Posted messages, by outcome: stored, duplicate, or the code of the refusal.", "code")
	for _, code := range append([]string{stored, duplicate}, codeNames()...) {
		m.posts[code] = posts.WithLabelValues(code)
	}
	m.postBytes = m.counter("agora_post_bytes_total", "Bytes of the posted bodies.")
	m.check = m.histogram("agora_post_check_seconds",
		"Time for parsing and verifying a post, including the wait for its turn.", 25e-6, 2, 16)
	m.store = m.histogram("agora_post_store_seconds", "Time for storing a post, until it is durable.", 100e-6, 2, 16)
	m.requests = m.counters("agora_http_requests_total",
		"Answered HTTP requests, by the part of the API and by whether they may change something.", "mount", "kind")
	m.refusals = m.counters("agora_http_refusals_total", "HTTP requests that were answered with an error. Status 0 is a "+
		"connection that was closed at once. limit is the limit that was reached, if one was.", "status", "code", "limit")
	for status := range m.statuses {
		m.statuses[status] = strconv.Itoa(status)
	}
	// An alert does not notice the first error if the series begins with it. So the series of internal errors begins at 0.
	m.refusals.WithLabelValues(m.statusText(http.StatusInternalServerError), string(envelope.CodeInternal), "")
	m.queued = m.counter("agora_writes_queued_total", "Messages and changes at gateways that waited because as many of their "+
		"address were being stored as writesPerAddress allows.")
	m.queuedTime = m.counter("agora_writes_queued_seconds_total", "How long those in agora_writes_queued_total have waited.")
	m.commitSync = m.histogram("agora_commit_sync_seconds", "Time for the commit of a group, with its "+
		"fsync. With PostgreSQL, with the wait for the standbys.", 50e-6, 2, 16)
	m.commitWork = m.histogram("agora_commit_work_seconds", "Time for the reads and writes of a group, before its commit.",
		50e-6, 2, 16)
	m.commitSize = m.histogram("agora_commit_events", "Events that became durable together.", 1, 2, 9)
	decisions := m.counters("agora_policy_decisions_total",
		"Messages that the policy command was asked about, by result: accepted, refused, or failed if it did not answer.", "result")
	m.decisions = map[string]prometheus.Counter{}
	for _, result := range []string{accepted, refused, failed} {
		m.decisions[result] = decisions.WithLabelValues(result)
	}
	m.decide = m.histogram("agora_policy_seconds", "Time until the policy command has decided about a message.", 50e-6, 2, 18)
	mirrored := m.counters("agora_mirror_messages_total",
		"Messages copied from other relays, by outcome: stored, duplicate, or the code of the refusal.", "code")
	m.mirrored = map[string]prometheus.Counter{}
	for _, code := range append([]string{stored, duplicate}, codeNames()...) {
		m.mirrored[code] = mirrored.WithLabelValues(code)
	}
	m.mirrorFail = m.counter("agora_mirror_failures_total", "How often messages of another relay could not be "+
		"copied, for example "+
		"because it did not answer.")
	m.waiting = m.gauge("agora_polls_waiting", "Polls in progress, waiting ones included, and open streams.", nil)
	m.answers = m.counter("agora_poll_answers_total", "Answers to polls.")
	m.delivered = m.counter("agora_events_delivered_total", "Events in answers to polls, up to the first 64 KiB of each answer.")
	m.readBytes = m.counter("agora_delivered_bytes_total", "Bytes of the events in agora_events_delivered_total.")
	m.wake = m.histogram("agora_wake_seconds", "Time from waking a poll until its answer is ready.", 5e-6, 2, 18)
	m.sweep = m.histogram("agora_sweep_seconds", "Time for removing what has expired and for ending threads.", 100e-6, 2, 16)
	m.sweepFails = m.counter("agora_sweep_failures_total", "Sweeps that failed.")
	m.reloads = m.counters("agora_config_reloads_total", "Reloads of the configuration, by result: ok or failed.", "result")
	for _, result := range []string{"ok", "failed"} {
		m.reloads.WithLabelValues(result)
	}
	return m
}

// codeNames returns all codes of refusals.
func codeNames() (names []string) {
	for _, row := range envelope.Codes() {
		names = append(names, string(row.Code))
	}
	return names
}

func (m *Metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) gauge(name, help string, labels prometheus.Labels) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels})
	m.registry.MustRegister(g)
	return g
}

// histogram returns a histogram with count buckets. The first ends at start, and each ends at factor times the end of
// the one before.
func (m *Metrics) histogram(name, help string, start, factor float64, count int) prometheus.Observer {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help,
		Buckets: prometheus.ExponentialBuckets(start, factor, count)})
	m.registry.MustRegister(h)
	return h
}

// Posted implements relay.Observer.
func (m *Metrics) Posted(p relay.PostReport) {
	count(m.posts, p.Code, p.Duplicate)
	m.postBytes.Add(float64(p.Bytes))
	m.check.Observe(p.Check.Seconds())
	if p.Store > 0 {
		m.store.Observe(p.Store.Seconds())
	}
}

// count counts a message by its outcome.
func count(counters map[string]prometheus.Counter, refusal envelope.Code, again bool) {
	code := string(refusal)
	switch {
	case again:
		code = duplicate
	case code == "":
		code = stored
	}
	if counter := counters[code]; counter != nil {
		counter.Inc()
	}
}

// Mirrored implements relay.Observer.
func (m *Metrics) Mirrored(code envelope.Code, duplicate bool) { count(m.mirrored, code, duplicate) }

// MirrorFailed implements relay.Observer.
func (m *Metrics) MirrorFailed() { m.mirrorFail.Inc() }

// Screened implements relay.Observer.
func (m *Metrics) Screened(took time.Duration, code envelope.Code) {
	result := failed
	switch code {
	case "":
		result = accepted
	case envelope.CodeForbidden:
		result = refused
	}
	m.decisions[result].Inc()
	m.decide.Observe(took.Seconds())
}

// Served implements relay.Observer.
func (m *Metrics) Served(mount string, k admission.Kind) {
	name, kind := strings.Trim(mount, "/"), "read"
	if name == "" {
		name = "relay"
	}
	if k == admission.Posts {
		kind = "post"
	}
	m.requests.WithLabelValues(name, kind).Inc()
}

// Refused implements relay.Observer.
func (m *Metrics) Refused(status int, code envelope.Code, limit string) {
	m.refusals.WithLabelValues(m.statusText(status), string(code), limit).Inc()
}

// statusText returns an HTTP status as text.
func (m *Metrics) statusText(status int) string {
	if status < 0 || status >= len(m.statuses) {
		return strconv.Itoa(status)
	}
	return m.statuses[status]
}

// Queued implements relay.Observer.
func (m *Metrics) Queued(waited time.Duration) {
	m.queued.Inc()
	m.queuedTime.Add(waited.Seconds())
}

// Committed implements relay.Observer.
func (m *Metrics) Committed(c relay.CommitReport) {
	m.commitSync.Observe(c.Commit.Seconds())
	m.commitWork.Observe(c.Work.Seconds())
	m.commitSize.Observe(float64(c.Events))
}

// Waiting implements relay.Observer.
func (m *Metrics) Waiting(change int) { m.waiting.Add(float64(change)) }

// Delivered implements relay.Observer.
func (m *Metrics) Delivered(d relay.DeliveryReport) {
	m.answers.Inc()
	m.delivered.Add(float64(d.Events))
	m.readBytes.Add(float64(d.Bytes))
	if d.Waited {
		m.wake.Observe(d.Wake.Seconds())
	}
}

// Swept implements relay.Observer.
func (m *Metrics) Swept(took time.Duration, err error) {
	m.sweep.Observe(took.Seconds())
	if err != nil {
		m.sweepFails.Inc()
	}
}

// Reloaded counts a reload of the configuration.
func (m *Metrics) Reloaded(err error) {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	m.reloads.WithLabelValues(result).Inc()
}
