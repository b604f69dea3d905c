//go:build postgres

package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// lines passes each line of a log to a channel.
type lines chan string

func (l lines) Write(text []byte) (int, error) {
	select {
	case l <- string(text):
	default: // nobody waits for it
	}
	return len(text), nil
}

// newDatabase makes a database in the server of make postgres, with the given settings. It returns the host of the
// server.
func newDatabase(t *testing.T, name string, settings ...string) (host string) {
	t.Helper()
	direct(t, t.TempDir(), func(conn *pgx.Conn) error {
		_, err := conn.Exec(t.Context(), "CREATE DATABASE "+name)
		for _, setting := range settings {
			_, failed := conn.Exec(t.Context(), "ALTER DATABASE "+name+" SET "+setting)
			err = errors.Join(err, failed)
		}
		return err
	})
	return os.Getenv("AGORA_POSTGRES")
}

// TestOpenAwaitsAPrimary opens a store while the server refuses writes, as a standby does. The store says in the log that
// it waits, and opens when the server has become a primary. What no waiting mends fails at once.
func TestOpenAwaitsAPrimary(t *testing.T) {
	log := make(lines, 1)
	dsn := fmt.Sprintf("host=%s user=agora dbname=awaited", newDatabase(t, "awaited", "default_transaction_read_only = on"))
	o := Options{Await: true, AcceptAsync: true, Mark: filepath.Join(t.TempDir(), "mark"), Log: slog.New(slog.NewTextHandler(log, nil))}
	opened := make(chan error, 1)
	go func() {
		s, err := Open(t.Context(), dsn, o)
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	if line := <-log; !strings.Contains(line, "no PostgreSQL primary") || !strings.Contains(line, "read only connection") {
		t.Errorf("the log says %s", line)
	}
	if _, err := Open(t.Context(), dsn, Options{AcceptAsync: true}); err == nil || !strings.Contains(err.Error(), "read only") {
		t.Errorf("without Await, a server that refuses writes: %v", err)
	}
	wrong := strings.Replace(dsn, "dbname=awaited", "dbname=missing", 1)
	if _, err := Open(t.Context(), wrong, o); err == nil || !strings.Contains(err.Error(), `"missing" does not exist`) {
		t.Errorf("a database that does not exist: %v", err)
	}
	select {
	case err := <-opened:
		t.Fatalf("opened without a primary: %v", err)
	default:
	}
	direct(t, t.TempDir(), func(conn *pgx.Conn) error {
		_, err := conn.Exec(t.Context(), "ALTER DATABASE awaited SET default_transaction_read_only = off")
		return err
	})
	must(t, <-opened)
}

// TestAwaitEnds checks that a store which waits for a primary stops doing so when its context ends.
func TestAwaitEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	log := make(lines, 1)
	go func() { <-log; cancel() }()
	_, err := Open(ctx, "host="+t.TempDir(), Options{Await: true, Log: slog.New(slog.NewTextHandler(log, nil))})
	if !errors.Is(ctx.Err(), context.Canceled) || err == nil {
		t.Errorf("open: %v", err)
	}
}
