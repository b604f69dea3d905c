//go:build postgres

package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) } // exits; no goroutine may outlive the tests

// creator is the connection with which dsnOf creates schemas. It stays open until the process ends.
var creator struct {
	mu   sync.Mutex
	conn *pgx.Conn
}

// dsnOf returns the address of a separate schema for each place, in the server of make postgres. It creates the
// schema if it does not exist. AGORA_POSTGRES is the folder of the server's socket, or a host with "port=N" behind it.
func dsnOf(ctx context.Context, place string) (string, error) {
	host := os.Getenv("AGORA_POSTGRES")
	if host == "" {
		return "", fmt.Errorf("AGORA_POSTGRES is not set; use make postgres")
	}
	hash := sha256.Sum256([]byte(place))
	name := "t" + hex.EncodeToString(hash[:8])
	server := fmt.Sprintf("host=%s user=agora dbname=postgres", host)
	creator.mu.Lock()
	defer creator.mu.Unlock()
	if creator.conn == nil {
		var err error
		if creator.conn, err = pgx.Connect(context.WithoutCancel(ctx), server); err != nil {
			return "", err
		}
	}
	if _, err := creator.conn.Exec(context.WithoutCancel(ctx), "CREATE SCHEMA IF NOT EXISTS "+name); err != nil {
		return "", err
	}
	return server + " search_path=" + name, nil
}

func openAt(ctx context.Context, place string, o Options) (*Store, error) {
	dsn, err := dsnOf(ctx, place)
	if err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.AcceptAsync = true // the server of make postgres has no standby
	return Open(ctx, dsn, o)
}

func TestStore(t *testing.T) {
	storetest.Test(t, func(ctx context.Context, place string, policy relay.Policy) (relay.Store, error) {
		return openAt(ctx, place, Options{Policy: policy, Partition: 200})
	})
}

func TestRemover(t *testing.T) {
	storetest.TestRemover(t, func(ctx context.Context, place string, policy relay.Policy) (relay.Store, error) {
		return openAt(ctx, place, Options{Policy: policy, Partition: 200})
	})
}

func TestLogStore(t *testing.T) {
	storetest.TestLog(t, func(ctx context.Context, place string, policy relay.Policy) (relay.Store, error) {
		return openAt(ctx, place, Options{Policy: policy, Partition: 200})
	})
}
