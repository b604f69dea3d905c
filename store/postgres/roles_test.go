//go:build postgres

package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/relay"
)

// TestLeastPrivileges runs a node as a role that does not own the tables, with the rights that docs/CLUSTER.md gives
// it. It must be able to do everything but to update the schema.
func TestLeastPrivileges(t *testing.T) {
	place := t.TempDir()
	dsn, err := dsnOf(t.Context(), place)
	must(t, err)
	_, name, _ := strings.Cut(dsn, "search_path=")
	owner, runner := name+"_owner", name+"_run"
	direct(t, place, func(conn *pgx.Conn) error {
		_, err := conn.Exec(t.Context(), fmt.Sprintf(`CREATE ROLE %[2]s LOGIN; CREATE ROLE %[3]s LOGIN;
			ALTER SCHEMA %[1]s OWNER TO %[2]s; GRANT USAGE ON SCHEMA %[1]s TO %[3]s;
			ALTER DEFAULT PRIVILEGES FOR ROLE %[2]s IN SCHEMA %[1]s GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO %[3]s;
			ALTER DEFAULT PRIVILEGES FOR ROLE %[2]s IN SCHEMA %[1]s GRANT EXECUTE ON FUNCTIONS TO %[3]s`, name, owner, runner))
		return err
	})
	t.Cleanup(func() {
		server := strings.Replace(dsn, " search_path="+name, "", 1)
		conn, err := pgx.Connect(context.Background(), server)
		must(t, err)
		_, err = conn.Exec(context.Background(), fmt.Sprintf("DROP OWNED BY %[1]s CASCADE; DROP OWNED BY %[2]s CASCADE; "+
			"DROP ROLE %[1]s; DROP ROLE %[2]s", owner, runner))
		must(t, err)
		must(t, conn.Close(context.Background()))
	})
	as := func(role string, extensions ...relay.Extension) (*Store, error) {
		return Open(t.Context(), strings.Replace(dsn, "user=agora", "user="+role, 1),
			Options{Partition: 10, AcceptAsync: true, Extensions: extensions,
				Log: slog.New(slog.DiscardHandler)})
	}
	if _, err := as(runner); err == nil {
		t.Fatal("the role that runs nodes has created the tables")
	}
	s, err := as(owner, items)
	must(t, err)
	must(t, s.Close())
	s, err = as(runner, items)
	must(t, err)
	defer s.Close()
	for n := range 40 { // makes partitions
		_, err := s.Append(t.Context(), request(t, key(byte(n+1)), "t"))
		must(t, err)
	}
	_, err = s.Update(t.Context(), add(1, "a"))
	must(t, err)
	must(t, s.Nonces().Use(t.Context(), [16]byte{1}, time.Now(), time.Now())) // ts is a moment before now
	must(t, s.RecordBackup(t.Context(), time.Now()))
	if _, err := s.Checkpoint(t.Context()); err == nil || !strings.Contains(err.Error(), "pg_checkpoint") {
		t.Errorf("a checkpoint by a role that may not make one: %v", err)
	}
	must(t, s.Expire(t.Context(), time.Now().Add(48*time.Hour), nil))
	if found := partitions(t, place); found["event_p0"] != 0 || len(found) > 5 {
		t.Errorf("after the sweep the partitions have %v events", found)
	}
}

// TestMonitoringQueries runs the queries of docs/examples for operators.
func TestMonitoringQueries(t *testing.T) {
	place := t.TempDir()
	s := open(t, place, Options{})
	_, err := s.Append(t.Context(), request(t, key(1), "t"))
	must(t, err)
	text, err := os.ReadFile("../../docs/examples/nodes.sql")
	must(t, err)
	queries := strings.Split(strings.TrimSuffix(strings.TrimSpace(string(text)), ";"), ";")
	if len(queries) < 5 {
		t.Errorf("%d queries, want at least 5", len(queries))
	}
	for _, query := range queries {
		direct(t, place, func(conn *pgx.Conn) error {
			query = strings.NewReplacer("agora.event", s.schema+".event", "agora.head", s.schema+".head",
				"agora.party", s.schema+".party").Replace(query)
			rows, err := conn.Query(t.Context(), query)
			if err == nil {
				rows.Close()
				err = rows.Err()
			}
			if err != nil {
				t.Errorf("%s: %v", query, err)
			}
			return nil
		})
	}
}
