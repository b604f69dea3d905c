package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admin"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/relay/metrics"
	"github.com/agora-relay/agora/relay/tracing"
)

// observeFlags are the flags of serve for logs, metrics and traces.
type observeFlags struct {
	LogLevel    levelText     `reload:"" default:"info" placeholder:"LEVEL" help:"debug, info, warn or error (default: ${default})."`
	LogFormat   string        `default:"auto" enum:"auto,text,json" placeholder:"auto|text|json" help:"Format of the log: text, json, or auto, which is text on a terminal and json otherwise (default: ${default})."`
	AccessLog   bool          `help:"Log a line for each request, without query, tokens and payload."`
	MetricsAddr listenAddress `placeholder:"HOST:PORT" help:"Serve the pages for monitors on this address: /metrics for Prometheus, /livez and /readyz. Only you should be able to reach it."`
	OTLPURL     webURL        `name:"otlp-url" placeholder:"URL" help:"Send a trace span for each post and poll to this OpenTelemetry collector, with OTLP over HTTP, such as http://localhost:4318."`
	OTLPHeader  []headerText  `name:"otlp-header" secret:"" placeholder:"NAME=VALUE" sep:"none" help:"Send this header to the collector. May be repeated."`
	TraceRatio  float64       `default:"1" placeholder:"RATIO" help:"Share of the spans that are sent, chosen at random, from 0 to 1 (default: ${default})."`
}

func (f observeFlags) Validate() error {
	switch {
	case f.TraceRatio < 0 || f.TraceRatio > 1:
		return errors.New("--trace-ratio must be from 0 to 1")
	case len(f.OTLPHeader) > 0 && f.OTLPURL == "":
		return errors.New("--otlp-header has no effect without --otlp-url; give both, or none")
	}
	return nil
}

// levelText is a slog.Level.
type levelText slog.Level

func (l *levelText) UnmarshalText(text []byte) error {
	if err := (*slog.Level)(l).UnmarshalText(text); err != nil {
		return fmt.Errorf("%q is not a level; want debug, info, warn or error", text)
	}
	return nil
}

// String returns the level as the flag takes it.
func (l levelText) String() string { return strings.ToLower(slog.Level(l).String()) }

// headerText is a header, as NAME=VALUE.
type headerText string

func (h *headerText) UnmarshalText(text []byte) error {
	name, value, found := strings.Cut(string(text), "=")
	if !found || name == "" || strings.ContainsAny(name, " :\r\n\t") || strings.ContainsAny(value, "\r\n") {
		return errors.New("want NAME=VALUE, such as Authorization=Bearer abc") // the text itself is secret
	}
	*h = headerText(text)
	return nil
}

// newLog returns the log of serve.
func (f observeFlags) newLog(env environment, level slog.Leveler) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if f.LogFormat == "text" || f.LogFormat == "auto" && env.stderrIsTerminal {
		return slog.New(slog.NewTextHandler(env.stderr, options))
	}
	return slog.New(slog.NewJSONHandler(env.stderr, options))
}

// watched are the metrics and the traces of a relay. Both may be nil.
type watched struct {
	metrics *metrics.Metrics
	tracing *tracing.Tracing
}

// open prepares the metrics and the traces that are on.
func (f observeFlags) open(ctx context.Context, log *slog.Logger) (*watched, error) {
	w := &watched{}
	if f.MetricsAddr != "" || passesSocket(metricsSocket) {
		w.metrics = metrics.New(build())
	}
	if f.OTLPURL == "" {
		return w, nil
	}
	headers := map[string]string{}
	for _, h := range f.OTLPHeader {
		name, value, _ := strings.Cut(string(h), "=")
		headers[name] = value
	}
	var err error
	w.tracing, err = tracing.New(ctx, tracing.Options{URL: string(f.OTLPURL), Headers: headers, Ratio: f.TraceRatio,
		Build: build(), Log: log})
	return w, err
}

// observer returns the observer of the relay.
func (w *watched) observer() relay.Observer {
	var all relay.Observers
	if w.metrics != nil {
		all = append(all, w.metrics)
	}
	if w.tracing != nil {
		all = append(all, w.tracing)
	}
	switch len(all) {
	case 0:
		return relay.NoObserver{}
	case 1:
		return all[0]
	}
	return all
}

// tracer returns the tracer of the front; nil: there are no traces.
func (w *watched) tracer() httpapi.Tracer {
	if w.tracing == nil {
		return nil
	}
	return w.tracing
}

// addStore adds the metrics of the store.
func (w *watched) addStore(store openedStore, log *slog.Logger) {
	if w.metrics == nil {
		return
	}
	w.metrics.AddStore(store.stats, log)
}

// addRelay adds the metrics of the relay itself and of its certificates. c may be nil. maxDisk is the maximum size of the
// database in bytes.
func (w *watched) addRelay(r *relay.Relay, maxDisk int64, c certificates, ready func() error) {
	if w.metrics == nil {
		return
	}
	w.metrics.AddReady(ready)
	w.metrics.AddLimits(func() int { return r.Limits().Polls }, maxDisk)
	if c != nil {
		w.metrics.AddCertificates(c.expiry)
	}
}

// addBackups adds the metrics of the backups. b may be nil.
func (w *watched) addBackups(b *admin.Backups) {
	if w.metrics == nil || b == nil {
		return
	}
	w.metrics.AddBackups(func() (at time.Time, failed bool) {
		info := b.Info()
		if info.Last != nil {
			at = *info.Last
		}
		return at, info.Failed != ""
	})
}

// closeTime is how long sending the last spans may take.
const closeTime = 2 * time.Second

// close sends the spans that were not sent yet.
func (w *watched) close(log *slog.Logger) {
	if w.tracing == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	if err := w.tracing.Close(ctx); err != nil {
		log.Warn("the last traces were not sent", "err", err)
	}
}
