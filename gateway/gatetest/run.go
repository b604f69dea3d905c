// Package gatetest helps to test gateways. It runs a relay over a new SQLite database.
//
// make postgres sets the environment variable AGORA_POSTGRES to the folder of the socket of a PostgreSQL server. Then
// the package also records what the relay's extensions do with the database. When the store is closed, it repeats the
// recording on PostgreSQL: the migrations, and all statements with their arguments. The test fails if PostgreSQL
// refuses a statement, or if it returns, changes or keeps other rows than SQLite. So an engine for PostgreSQL can run
// the same statements. Only tests import this package.
package gatetest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
)

// Env is the name of the environment variable with the folder of PostgreSQL's socket.
const Env = "AGORA_POSTGRES"

// Relay runs a relay with these extensions over a new database until the test ends.
func Relay(t testing.TB, extensions ...relay.Extension) *relay.Relay {
	t.Helper()
	r, _ := Run(t, filepath.Join(t.TempDir(), "agora.db"), sqlite.Options{Extensions: extensions}, relay.Config{})
	return r
}

// Run runs a relay over the database at path until stop is called, or the test ends. After stop, the test may run
// another relay over the same database. Run sets c.Store. It has defaults for the size of the reserve, for the key, and
// for both logs, which are discarded. The store has the relay's clock, unless it has one of its own.
func Run(t testing.TB, path string, o sqlite.Options, c relay.Config) (r *relay.Relay, stop func()) {
	t.Helper()
	if o.Now == nil {
		o.Now = c.Now
	}
	store := Open(t, path, o)
	c.Store = store
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Key.DID() == "" {
		key, err := didkey.Generate()
		if err != nil {
			t.Fatal(err)
		}
		c.Key = key
	}
	r, err := relay.New(t.Context(), c)
	if err != nil {
		t.Fatal(errors.Join(err, store.Close()))
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stopped := false
	stop = func() {
		t.Helper()
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := errors.Join(<-ended, store.Close()); err != nil {
			t.Errorf("stopping the relay: %v", err)
		}
	}
	t.Cleanup(stop)
	return r, stop
}

// Store is a store with extensions.
type Store interface {
	relay.Extender
	Close() error // compares with PostgreSQL, if make postgres runs the test
}

// Open opens the database at path. The test must close the store. Run does this for most tests.
func Open(t testing.TB, path string, o sqlite.Options) Store {
	t.Helper()
	if o.Reserve == 0 {
		o.Reserve = 1 << 22
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	opened, err := sqlite.Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	var store Store = opened
	if os.Getenv(Env) != "" {
		if store, err = record(opened, o.Extensions); err != nil {
			t.Fatal(errors.Join(err, opened.Close()))
		}
	}
	return store
}
