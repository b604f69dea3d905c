package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/metrics"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/postgres"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/transfer"
)

// storeFlags are the flags of serve for a relay of several nodes over one PostgreSQL database.
type storeFlags struct {
	Store       StoreAddress `secret:"" placeholder:"URL" help:"Keep the messages in PostgreSQL, at a URL such as postgres://agora@db1,db2/agora, so that several nodes can serve one relay. By default they are in the data folder. See docs/CLUSTER.md."`
	StoreConns  int          `default:"8" placeholder:"N" help:"Connections of this node to PostgreSQL for reads; it uses three more (default: ${default})."`
	KeySecret   string       `placeholder:"FILE" help:"Share the keys of the data folder with the other nodes, encrypted with the secret in this file, which agora key secret creates. Without it, copy the keys to each node yourself."`
	AcceptAsync bool         `help:"Start although PostgreSQL does not wait for a standby. If its machine is lost, acknowledged messages are lost too."`
}

func (f storeFlags) Validate() error {
	switch {
	case f.Store == "" && f.KeySecret != "":
		return errors.New("--key-secret has no effect without --store; give both, or none")
	case f.Store == "" && f.AcceptAsync:
		return errors.New("--accept-async has no effect without --store; give both, or none")
	case f.StoreConns < 1 || f.StoreConns > 1000:
		return errors.New("--store-conns must be from 1 to 1000")
	}
	return nil
}

// StoreAddress is the address of a PostgreSQL database. Its String has no password.
type StoreAddress string

func (a *StoreAddress) UnmarshalText(text []byte) error {
	*a = StoreAddress(text)
	return postgres.CheckAddress(string(text))
}

// String returns the address without its password.
func (a StoreAddress) String() string { return postgres.Masked(string(a)) }

// openedStore is the store of a relay, and what else the commands need.
type openedStore struct {
	relay.Extender
	transfer.Engine
	close func() error
	stats func(context.Context) (metrics.StoreStats, error)
	nodes *postgres.Store // nil: the relay is a single node
	// checkpoint writes all changes into the files of the tables, see sqlite.Store.Checkpoint.
	checkpoint func(context.Context) (done bool, err error)
	measures
}

// openStore opens the store that the flags name.
func (c *Cmd) openStore(ctx context.Context, observer relay.Observer, log *slog.Logger) (openedStore, error) {
	if c.Nodes.Store == "" {
		path := filepath.Join(c.Data, datafolder.Database)
		store, err := sqlite.Open(ctx, path, sqlite.Options{
			Policy: c.policy(), MaxBytes: c.MaxDisk, AcceptLoss: c.AcceptLoss, NewEpoch: c.NewEpoch, Log: log, Extensions: Extensions(),
			Observer: observer,
		})
		if err != nil {
			return openedStore{}, err
		}
		return openedStore{Extender: store, Engine: store, close: store.Close, checkpoint: store.Checkpoint,
			stats: func(ctx context.Context) (metrics.StoreStats, error) {
				stats, err := store.Stats(ctx)
				return metrics.StoreStats{Threads: stats.Threads, DatabaseBytes: stats.DatabaseBytes, LogBytes: stats.LogBytes}, err
			}, measures: measures{
				measure: func(ctx context.Context, now time.Time) (ledger.Usage, error) { return sqlite.Measure(ctx, path, now) },
				top: func(
					ctx context.Context, by ledger.Ranking, bytes bool, limit int, now time.Time,
				) ([]ledger.Ranked, error) {
					return sqlite.Top(ctx, path, by, bytes, limit, now)
				},
			}}, nil
	}
	store, err := postgres.Open(ctx, string(c.Nodes.Store), postgres.Options{
		Settings: c.sharedSettings(),
		Policy:   c.policy(), AcceptLoss: c.AcceptLoss, NewEpoch: c.NewEpoch, Await: true, AcceptAsync: c.Nodes.AcceptAsync, Log: log, Extensions: Extensions(),
		Observer: observer, Conns: c.Nodes.StoreConns, Mark: filepath.Join(c.Data, datafolder.Mark),
	})
	if err != nil {
		return openedStore{}, fmt.Errorf("--store: %w", err)
	}
	return openedStore{Extender: store, Engine: store, close: store.Close, nodes: store, checkpoint: store.Checkpoint,
		stats: func(ctx context.Context) (metrics.StoreStats, error) {
			stats, err := store.Stats(ctx)
			return metrics.StoreStats{Threads: stats.Threads, DatabaseBytes: stats.DatabaseBytes,
				Standbys: stats.Standbys, StandbysRequired: &stats.Required, LastBackup: cmp.Or(stats.Backup, new(time.Time))}, err
		}, measures: measures{measure: store.Measure, top: store.Top}}, nil
}

// sharedSettings are the settings that all nodes of a relay must have in common. The policy of the store is made of some
// of them; they are here so that an error can name the flags.
func (c *Cmd) sharedSettings() map[string]string {
	return map[string]string{
		"--reads": string(c.Reads), "--public-url": c.PublicURL, "--max-ttl": c.MaxTTL.String(),
		"--pending-timeout": c.PendingTimeout.String(), "--active-timeout": c.ActiveTimeout.String(),
		"--thread-retention": c.ThreadRetention.String(),
	}
}

// config adds to the configuration of a relay what its nodes share.
func (s openedStore) config(c relay.Config) relay.Config {
	c.Store = s.Extender
	if s.nodes != nil {
		c.Nonces, c.Siblings = s.nodes.Nonces(), s.nodes.Siblings()
	}
	return c
}
