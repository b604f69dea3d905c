// Package engine opens the store of a test: SQLite, or PostgreSQL if the environment variable AGORA_TEST_STORE is
// postgres. So the tests of the relay run over both. ci/postgres sets AGORA_POSTGRES, the folder of the server's socket.
// Only tests import this package.
package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/postgres"
	"github.com/agora-relay/agora/store/sqlite"
)

// Store is what a test uses of a store.
type Store interface {
	relay.Extender
	Close() error
}

// Open opens the store at path. The same path gives the same data again. In a bubble of testing/synctest it is SQLite:
// the time there stands still while a goroutine waits for a server.
func Open(t testing.TB, path string, o sqlite.Options) (Store, error) {
	t.Helper()
	if os.Getenv("AGORA_TEST_STORE") != "postgres" || inBubble() {
		return sqlite.Open(t.Context(), path, o)
	}
	dsn, err := Schema(t.Context(), path)
	if err != nil {
		return nil, err
	}
	return postgres.Open(t.Context(), dsn, postgres.Options{Policy: o.Policy, Extensions: o.Extensions, Log: o.Log, Now: o.Now,
		Observer: o.Observer, AcceptAsync: true, Conns: 4})
}

// inBubble reports whether the time is synthetic. In a bubble it begins with the year 2000.
func inBubble() bool { return time.Now().Year() < 2020 }

// Schema returns the address of a schema for path in the server of ci/postgres. It creates the schema if it does not
// exist.
func Schema(ctx context.Context, path string) (dsn string, err error) {
	folder := os.Getenv("AGORA_POSTGRES")
	if folder == "" {
		return "", errors.New("AGORA_POSTGRES is not set; run the tests with ci/postgres")
	}
	hash := sha256.Sum256([]byte(path))
	name := "t" + hex.EncodeToString(hash[:8])
	server := "host=" + folder + " user=agora dbname=postgres"
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return "", err
	}
	_, err = conn.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+name)
	return server + " search_path=" + name, errors.Join(err, conn.Close(ctx))
}
