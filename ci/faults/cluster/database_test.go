//go:build cluster && linux

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/internal/postgrestest"
)

// database is a primary with two standbys.
type database struct {
	t       *testing.T
	folder  string
	servers [3]*pgServer
	primary int
}

// pgServer is a PostgreSQL server.
type pgServer struct {
	name, data string
	port       int
	process    *exec.Cmd // nil: it does not run
}

func (d *database) run(program string, args ...string) {
	d.t.Helper()
	if out, err := postgrestest.Command(d.folder, program, args...).CombinedOutput(); err != nil {
		d.t.Fatalf("%s: %v\n%s", program, err, out)
	}
}

// startDatabase starts the servers. They end with the test.
func startDatabase(t *testing.T) *database {
	t.Helper()
	d := &database{t: t, folder: postgrestest.Folder(t)}
	t.Cleanup(func() {
		for _, s := range d.servers {
			s.kill()
		}
	})
	for i := range d.servers {
		d.servers[i] = &pgServer{name: fmt.Sprintf("s%d", i+1), port: freePort(t)}
		d.servers[i].data = filepath.Join(d.folder, d.servers[i].name)
	}
	postgrestest.Init(t, d.folder, d.servers[0].data)
	// pg_rewind starts the server by itself, so it must find these in the file.
	settings, err := os.OpenFile(filepath.Join(d.servers[0].data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = settings.WriteString("wal_log_hints = on\nwal_keep_size = 256MB\n")
	must(t, errors.Join(err, settings.Close()))
	d.start(d.servers[0])
	for _, s := range d.servers[1:] {
		d.clone(s)
		d.start(s)
	}
	// Only now: until there is a standby, a commit would wait for one.
	d.query(d.servers[0], "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (s1, s2, s3)'")
	d.query(d.servers[0], "SELECT pg_reload_conf()")
	for _, s := range d.servers[1:] {
		d.query(s, "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (s1, s2, s3)'")
		d.query(s, "SELECT pg_reload_conf()")
	}
	return d
}

// clone makes s a new standby of the primary.
func (d *database) clone(s *pgServer) {
	d.t.Helper()
	must(d.t, os.RemoveAll(s.data))
	d.run("pg_basebackup", "-D", s.data, "-h", "127.0.0.1", "-p", fmt.Sprint(d.servers[d.primary].port), "-U", "agora",
		"-X", "stream", "-R", "-c", "fast")
}

// start starts a server and waits until it accepts connections.
func (d *database) start(s *pgServer) {
	d.t.Helper()
	log, err := os.OpenFile(filepath.Join(d.folder, s.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	must(d.t, err)
	defer log.Close()
	s.process = postgrestest.Command(d.folder, "postgres", "-D", s.data, "-k", "", "-p", fmt.Sprint(s.port), "-c",
		"listen_addresses=127.0.0.1",
		"-c", "cluster_name="+s.name, "-c", "max_connections=100", "-c", "shared_buffers=64MB",
		"-c", "max_wal_senders=10", "-c", "hot_standby=on", "-c", "wal_retrieve_retry_interval=200ms")
	s.process.Stdout, s.process.Stderr = log, log
	must(d.t, s.process.Start())
	waitUntil(d.t, "PostgreSQL "+s.name+" starts", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, s.url())
		if err != nil {
			return false
		}
		return conn.Close(ctx) == nil
	})
}

// kill kills a server with SIGKILL.
func (s *pgServer) kill() {
	if s != nil && s.process != nil {
		_ = s.process.Process.Kill() // it may have ended
		_ = s.process.Wait()         // says that it was killed
		s.process = nil
	}
}

func (s *pgServer) url() string { return fmt.Sprintf("postgres://agora@127.0.0.1:%d/postgres", s.port) }

// query runs a statement and returns the first column of its first row as text; empty: there is none.
func (d *database) query(s *pgServer, text string) (value string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.url())
	must(d.t, err)
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, text, pgx.QueryExecModeSimpleProtocol)
	must(d.t, err)
	if rows.Next() {
		values, err := rows.Values()
		must(d.t, err)
		value = fmt.Sprint(values[0])
	}
	rows.Close()
	must(d.t, rows.Err())
	return value
}

// failOver kills the primary and promotes the standby that has received most. The other one follows it, and the old
// primary comes back as a standby.
func (d *database) failOver() {
	d.t.Helper()
	old := d.servers[d.primary]
	old.kill()
	next, most := -1, ""
	for i, s := range d.servers {
		if s == old {
			continue
		}
		if s.process == nil {
			d.start(s)
		}
		received := d.query(s, "SELECT lpad(split_part(l, '/', 1), 8, '0') || lpad(split_part(l, '/', 2), 8, '0') "+
			"FROM (SELECT greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())::text AS l) x")
		if received >= most {
			next, most = i, received
		}
	}
	d.query(d.servers[next], "SELECT pg_promote(true, 30)")
	d.primary = next
	for _, s := range d.servers {
		if s != old && s != d.servers[next] {
			d.query(s, fmt.Sprintf("ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=%d user=agora'",
				d.servers[next].port))
			d.query(s, "SELECT pg_reload_conf()")
		}
	}
	d.clone(old)
	d.start(old)
}

// synced waits until a standby is connected to the primary, so that commits succeed.
func (d *database) synced() {
	d.t.Helper()
	waitUntil(d.t, "a standby follows the primary", func() bool {
		return d.query(d.servers[d.primary], "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum' "+
			"AND state = 'streaming'") != "0"
	})
}

// logs returns the ends of the servers' logs.
func (d *database) logs() string {
	var b strings.Builder
	for _, s := range d.servers {
		text, _ := os.ReadFile(filepath.Join(d.folder, s.name+".log")) // a missing log is empty
		fmt.Fprintf(&b, "--- %s\n%s\n", s.name, text[max(0, len(text)-2000):])
	}
	return b.String()
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// waitUntil waits until done returns true.
func waitUntil(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited a minute: %s", what)
		}
	}
}
