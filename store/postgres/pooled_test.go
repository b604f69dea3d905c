//go:build postgres

package postgres

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/internal/postgrestest"
)

// TestPgBouncer opens a store behind PgBouncer. In transaction mode it must refuse and say what to do, in whatever order
// the pool is used. In session mode it works.
func TestPgBouncer(t *testing.T) {
	host := newDatabase(t, "pooled")
	for i, c := range []struct {
		mode, settings string
		refused        bool
	}{
		{"transaction", "", true},
		{"transaction", "server_round_robin = 1\nmin_pool_size = 5\n", true},
		{"session", "", false},
	} {
		dsn := startBouncer(t, host, 6430+i, c.mode, c.settings)
		s, err := Open(t.Context(), dsn, Options{AcceptAsync: true, Log: slog.New(slog.DiscardHandler)})
		switch {
		case c.refused:
			if err == nil || !strings.Contains(err.Error(), "pool_mode = session") {
				t.Errorf("%s mode: %v", c.mode, err)
			}
		default:
			must(t, err)
			_, err = s.Append(t.Context(), request(t, key(1), "t"))
			must(t, errors.Join(err, s.Close()))
		}
	}
}

// startBouncer starts a PgBouncer in front of the server at host, until the test ends. It returns its address.
func startBouncer(t *testing.T, host string, port int, mode, settings string) (dsn string) {
	t.Helper()
	folder := postgrestest.Folder(t)
	text := fmt.Sprintf("[databases]\npooled = host=%s user=agora\n[pgbouncer]\nlisten_port = %d\nunix_socket_dir = %s\n"+
		"auth_type = any\npool_mode = %s\n%s", host, port, folder, mode, settings)
	file := filepath.Join(folder, "bouncer.ini")
	must(t, os.WriteFile(file, []byte(text), 0o644))
	process := postgrestest.Command(folder, "/usr/sbin/pgbouncer", "-q", file)
	must(t, process.Start())
	t.Cleanup(func() {
		_ = process.Process.Kill() // it may have ended
		_ = process.Wait()         // says how it ended
	})
	dsn = fmt.Sprintf("host=%s port=%d user=agora dbname=pooled", folder, port)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		conn, err := pgx.Connect(t.Context(), dsn)
		if err == nil {
			must(t, conn.Close(t.Context()))
			return dsn
		}
		if time.Now().After(deadline) {
			t.Fatalf("PgBouncer does not accept connections: %v", err)
		}
	}
}
