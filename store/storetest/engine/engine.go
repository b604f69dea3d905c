// Package engine opens the store of a test, and runs a relay over it. The store is SQLite, or PostgreSQL if the
// environment variable AGORA_TEST_STORE is postgres. So the tests of the relay and of the gateways run over both.
// ci/postgres sets AGORA_POSTGRES, the folder of the server's socket. Only tests import this package.
package engine

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/postgres"
	"github.com/agora-relay/agora/store/sqlite"
)

// Store is what a test uses of a store.
type Store interface {
	relay.Extender
	Close() error
}

// Postgres reports whether the stores of tests are in PostgreSQL.
func Postgres() bool { return os.Getenv("AGORA_TEST_STORE") == "postgres" }

// OnlySQLite skips a test if the stores of tests are in PostgreSQL. why says what the test does with SQLite, or why both
// stores pass it alike. Only tests that use a store, or take long, need it.
func OnlySQLite(t testing.TB, why string) {
	t.Helper()
	if Postgres() {
		t.Skip("only with SQLite:", why)
	}
}

// Open opens the store at path. The same path gives the same data again.
func Open(t testing.TB, path string, o sqlite.Options) (Store, error) {
	t.Helper()
	if !Postgres() {
		return sqlite.Open(t.Context(), path, o)
	}
	p, err := placeOf(t, path, o.Extensions)
	if err != nil {
		return nil, err
	}
	// In a bubble of testing/synctest, the time stands still while a goroutine listens to a server.
	return postgres.Open(t.Context(), p.dsn, postgres.Options{Policy: o.Policy, Extensions: o.Extensions, Log: o.Log, Now: o.Now,
		Observer: o.Observer, AcceptAsync: true, Conns: 2, Single: InBubble()})
}

// Run runs a relay until stop is called, and loops that belong to it. stop ends them and closes the store, once.
// In a bubble of testing/synctest, all have done what they do at their start when Run returns.
func Run(t testing.TB, r *relay.Relay, store io.Closer, loops ...func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var failed error
	running.Go(func() { failed = r.Run(ctx) })
	for _, loop := range loops {
		running.Go(func() { loop(ctx) })
	}
	if InBubble() {
		synctest.Wait()
	}
	return sync.OnceFunc(func() {
		cancel()
		running.Wait()
		if err := errors.Join(failed, store.Close()); err != nil {
			t.Errorf("stopping the relay: %v", err)
		}
	})
}

// InBubble reports whether the time is synthetic. In a bubble of testing/synctest it begins with the year 2000.
func InBubble() bool { return time.Now().Year() < 2020 }

// Files returns the paths of the files of the store at path. With PostgreSQL, no test can read them, so there are none.
func Files(t testing.TB, path string) []string {
	t.Helper()
	files, err := filepath.Glob(path + "*")
	if !Postgres() && (err != nil || len(files) == 0) {
		t.Fatalf("the store at %s has no files: %v", path, err)
	}
	return files
}
