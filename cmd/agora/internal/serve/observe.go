package serve

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admin"
	"github.com/agora-relay/agora/relay/metrics"
	"github.com/agora-relay/agora/store/postgres"
)

// observeFlags are the flags of serve for logs and metrics.
type observeFlags struct {
	LogLevel    levelText         `reload:"" default:"info" placeholder:"LEVEL" help:"debug, info, warn or error (default: ${default})."`
	LogFormat   string            `default:"auto" enum:"auto,text,json" placeholder:"auto|text|json" help:"Format of the log: text, json, or auto, which is text on a terminal and json otherwise (default: ${default})."`
	AccessLog   bool              `help:"Log a line for each request, without query, tokens and payload."`
	MetricsAddr cli.ListenAddress `placeholder:"HOST:PORT" help:"Serve the pages for monitors on this address: /metrics for Prometheus, /livez and /readyz. Only you should be able to reach it."`
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

// newLog returns the log of serve.
func (f observeFlags) newLog(env cli.Environment, level slog.Leveler) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if f.LogFormat == "text" || f.LogFormat == "auto" && env.StderrIsTerminal {
		return slog.New(slog.NewTextHandler(env.Stderr, options))
	}
	return slog.New(slog.NewJSONHandler(env.Stderr, options))
}

// watched are the metrics of a relay, which may be nil.
type watched struct{ metrics *metrics.Metrics }

// open prepares the metrics, if they are on.
func (f observeFlags) open() *watched {
	if f.MetricsAddr == "" && !passesSocket(metricsSocket) {
		return &watched{}
	}
	return &watched{metrics.New(cli.Build())}
}

// observer returns the observer of the relay.
func (w *watched) observer() relay.Observer {
	if w.metrics == nil {
		return relay.NoObserver{}
	}
	return w.metrics
}

// addStore adds the metrics of the store and of its backups. b may be nil.
func (w *watched) addStore(store openedStore, b *admin.Backups, log *slog.Logger) {
	if w.metrics == nil {
		return
	}
	stats := store.stats
	if b != nil {
		stats = func(ctx context.Context) (metrics.StoreStats, error) {
			all, err := store.stats(ctx)
			all.LastBackup = cmp.Or(b.Info().Last, new(time.Time))
			return all, err
		}
		w.metrics.AddBackups(func() (failed bool) { return b.Info().Failed != "" })
	}
	w.metrics.AddStore(stats, log)
	if store.nodes != nil {
		w.metrics.AddNode(postgres.Roles, postgres.States, func() metrics.NodeReport { return nodeReport(store.nodes) })
	}
}

// addRelay adds the metrics of the relay itself and of its certificates. c may be nil. maxDisk is the maximum size of the
// database in bytes.
func (w *watched) addRelay(r *relay.Relay, maxDisk int64, c certificates, ready func() error) {
	if w.metrics == nil {
		return
	}
	w.metrics.AddReady(ready)
	w.metrics.AddLimits(func() int { return r.Gate().Limits().Polls }, maxDisk)
	if c != nil {
		w.metrics.AddCertificates(c.expiry)
	}
}
