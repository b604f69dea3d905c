package metrics

import (
	"context"
	"io"
	"log/slog"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/agora-relay/agora/thread"
)

// StoreStats describes what is stored.
type StoreStats struct {
	Threads                 map[thread.State]int64 // how many threads have each state
	DatabaseBytes, LogBytes int64                  // sizes of the database file and of its write-ahead log
	// LastBackup is when the newest backup was begun; zero: there is no backup yet; nil: this relay does not record
	// backups.
	LastBackup *time.Time
	// Standbys are the database servers that may confirm a commit besides the primary, and StandbysRequired is for how many
	// of them a commit waits. nil: the relay is a single node, or the node may not see it.
	Standbys, StandbysRequired *int
}

// statsLifetime is how old StoreStats may be. They are not taken for each scrape, because counting the threads takes
// some time.
const statsLifetime = 10 * time.Second

// statsTimeout limits the time for getting StoreStats.
const statsTimeout = 5 * time.Second

// AddStore adds the metrics of the store. A scrape calls stats, at most once in ten seconds. If stats fails, these
// metrics are absent, and the failure is logged.
func (m *Metrics) AddStore(stats func(context.Context) (StoreStats, error), log *slog.Logger) {
	m.registry.MustRegister(&storeCollector{
		stats: stats, log: log,
		threads:  prometheus.NewDesc("agora_threads", "Stored threads, by state.", []string{"state"}, nil),
		database: prometheus.NewDesc("agora_database_bytes", "Size of the database file.", nil, nil),
		wal:      prometheus.NewDesc("agora_database_log_bytes", "Size of the database's write-ahead log.", nil, nil),
		backup: prometheus.NewDesc("agora_backup_last_timestamp_seconds",
			"When the newest backup was begun, or recorded by agora admin backup --made; 0: there is none.", nil, nil),
		standbys: prometheus.NewDesc("agora_node_standbys",
			"Standbys of PostgreSQL that stream and may confirm a commit. The role of the node needs pg_monitor.", nil, nil),
		required: prometheus.NewDesc("agora_node_standbys_required",
			"For how many standbys of PostgreSQL a commit waits; 0: a message may be on the primary alone.", nil, nil),
	})
}

// AddReady adds the metric agora_ready, which says whether the relay accepts messages. ready returns nil if it does.
func (m *Metrics) AddReady(ready func() error) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "agora_ready",
		Help: "1 while the relay accepts messages, otherwise 0. /readyz has the reason."}, func() float64 {
		return oneIf(ready() == nil)
	}))
}

// AddBackups adds whether the last attempt to make a backup has failed.
func (m *Metrics) AddBackups(failed func() bool) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "agora_backup_failed",
		Help: "1 if the last attempt to make a backup has failed, otherwise 0."}, func() float64 { return oneIf(failed()) }))
}

// NodeReport describes one of several nodes of a relay.
type NodeReport struct {
	Role, State  string
	Lag          int64 // events of other nodes that this node has still to read
	LeaseChanges int64 // how often this node has begun or ceased to lead
}

// AddNode adds the metrics of one of several nodes of a relay. roles and states are the values that the report may have.
func (m *Metrics) AddNode(roles, states []string, report func() NodeReport) {
	each := func(name, help, label string, values []string, now func() string) {
		for _, value := range values {
			m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help,
				ConstLabels: prometheus.Labels{label: value}}, func() float64 { return oneIf(now() == value) }))
		}
	}
	each("agora_node_role", "1 for the role of this node: the leader removes what has expired and serves the gateways.",
		"role", roles, func() string { return report().Role })
	each("agora_node_state", "1 for the state of this node, as /health has it.", "state", states,
		func() string { return report().State })
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "agora_node_lag_events",
			Help: "Events of other nodes that this node has still to read."}, func() float64 { return float64(report().Lag) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "agora_node_lease_changes_total",
			Help: "How often this node has begun or ceased to lead."}, func() float64 { return float64(report().LeaseChanges) }))
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// AddLimits adds the limits that the relay can reach as a whole: how many polls may wait, and the size of the database
// in bytes. A negative number means that there is no limit.
func (m *Metrics) AddLimits(polls func() int, databaseBytes int64) {
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "agora_polls_limit",
			Help: "How many polls may wait at the same time."}, func() float64 { return limit(int64(polls())) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "agora_database_limit_bytes",
			Help: "Maximum size of the database."}, func() float64 { return limit(databaseBytes) }))
}

// limit returns a limit as a number. Without a limit it is infinite.
func limit(n int64) float64 {
	if n < 0 {
		return math.Inf(1)
	}
	return float64(n)
}

// AddCertificates adds the times at which the TLS certificates end, by host.
func (m *Metrics) AddCertificates(expiry func() map[string]time.Time) {
	m.registry.MustRegister(&certificateCollector{expiry: expiry, end: prometheus.NewDesc(
		"agora_tls_certificate_expiry_timestamp_seconds", "When a TLS certificate ends. An empty host is the certificate "+
			"of --tls-cert.", []string{"host"}, nil)})
}

// storeCollector is a prometheus.Collector of StoreStats.
type storeCollector struct {
	stats                  func(context.Context) (StoreStats, error)
	log                    *slog.Logger
	threads, database, wal *prometheus.Desc
	// These have a value only if StoreStats has one.
	backup, standbys, required *prometheus.Desc

	mu   sync.Mutex
	last StoreStats
	err  error
	at   time.Time // of last; zero: there is none
}

// Describe implements prometheus.Collector.
func (c *storeCollector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.threads, c.database, c.wal, c.backup, c.standbys, c.required} {
		descriptions <- d
	}
}

// Collect implements prometheus.Collector.
func (c *storeCollector) Collect(out chan<- prometheus.Metric) {
	stats, err := c.current()
	if err != nil {
		return
	}
	for state, n := range stats.Threads {
		out <- prometheus.MustNewConstMetric(c.threads, prometheus.GaugeValue, float64(n), string(state))
	}
	gauge := func(d *prometheus.Desc, n int64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n))
	}
	gauge(c.database, stats.DatabaseBytes)
	gauge(c.wal, stats.LogBytes)
	if at := stats.LastBackup; at != nil {
		gauge(c.backup, max(0, at.Unix())) // the zero time is before 1970
	}
	if stats.Standbys != nil {
		gauge(c.standbys, int64(*stats.Standbys))
	}
	if stats.StandbysRequired != nil {
		gauge(c.required, int64(*stats.StandbysRequired))
	}
}

// current returns the newest StoreStats, or those of the last seconds.
func (c *storeCollector) current() (StoreStats, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.IsZero() && time.Since(c.at) < statsLifetime {
		return c.last, c.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	c.last, c.err = c.stats(ctx)
	c.at = time.Now()
	if c.err != nil {
		c.log.Warn("the metrics of the store are missing", "err", c.err)
	}
	return c.last, c.err
}

// certificateCollector is a prometheus.Collector of the ends of certificates.
type certificateCollector struct {
	expiry func() map[string]time.Time
	end    *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *certificateCollector) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- c.end }

// Collect implements prometheus.Collector.
func (c *certificateCollector) Collect(out chan<- prometheus.Metric) {
	for host, end := range c.expiry() {
		out <- prometheus.MustNewConstMetric(c.end, prometheus.GaugeValue, float64(end.Unix()), host)
	}
}

// maxScrapes is how many scrapes are answered at the same time.
const maxScrapes = 4

// Server returns the server of the pages for monitors. /livez answers 200 as long as the process runs. /readyz answers
// 200 while ready returns nil, and otherwise 503 with the reason. The pages are for the operator only: serve them on an
// address that others cannot reach.
func (m *Metrics) Server(ready func() error, log *slog.Logger) *http.Server {
	logger := slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	pages := http.NewServeMux()
	pages.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog: logger, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes,
		Timeout: 2 * statsTimeout, EnableOpenMetrics: true,
	}))
	pages.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	pages.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, ready()) })
	return &http.Server{
		Handler: pages, ErrorLog: logger,
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 75 * time.Second, MaxHeaderBytes: 16 << 10,
	}
}

// answer answers 200 if err is nil, and otherwise 503 with the text of err.
func answer(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	text := "ok\n"
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		text = err.Error() + "\n"
	}
	_, _ = io.WriteString(w, text) // if it fails, the monitor has left
}
