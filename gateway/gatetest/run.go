// Package gatetest helps to test gateways. It runs a relay over a new database, see package engine. Only tests import
// this package.
package gatetest

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// Relay runs a relay with these extensions over a new database until the test ends.
func Relay(t testing.TB, extensions ...relay.Extension) *relay.Relay {
	t.Helper()
	r, _ := Run(t, filepath.Join(t.TempDir(), "agora.db"), sqlite.Options{Extensions: extensions}, relay.Config{})
	return r
}

// Run runs a relay over the database at path until stop is called, or the test ends. After stop, the test may run
// another relay over the same database. Run sets c.Store. It has defaults for the size of the reserve, for the key, and
// for both logs, which are discarded. The store has the clock of c, unless o has another one.
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
	stop = engine.Run(t, r, store)
	t.Cleanup(stop)
	return r, stop
}

// Open opens the database at path. The test must close the store. Run does this for most tests.
func Open(t testing.TB, path string, o sqlite.Options) engine.Store {
	t.Helper()
	if o.Reserve == 0 {
		o.Reserve = 1 << 22
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	store, err := engine.Open(t, path, o)
	if err != nil {
		t.Fatal(err)
	}
	return store
}
