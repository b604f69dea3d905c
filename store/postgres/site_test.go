//go:build postgres

package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/internal/postgrestest"
	"github.com/agora-relay/agora/relay"
)

// site is a PostgreSQL server that only one test uses, so that the test may crash it, and one schema in it.
type site struct{ server, dsn string }

// startSite starts a server that writes nothing to its disk by itself, except what a durable commit needs. args are
// further arguments of the server.
func startSite(t *testing.T, args ...string) site {
	t.Helper()
	folder := postgrestest.Folder(t)
	data := filepath.Join(folder, "data")
	postgrestest.Init(t, folder, data)
	process := postgrestest.Command(folder, "postgres", append([]string{"-D", data, "-k", folder, "-c", "listen_addresses=",
		"-c", "bgwriter_lru_maxpages=0", "-c", "autovacuum=off", "-c", "commit_siblings=0"}, args...)...)
	must(t, process.Start())
	t.Cleanup(func() {
		_ = process.Process.Signal(syscall.SIGQUIT) // ends all its processes at once; it may have ended
		_ = process.Wait()                          // says how it ended
	})
	x := site{server: "host=" + folder + " user=agora dbname=postgres"}
	x.accepts(t)
	return x
}

// accepts waits until the server accepts connections.
func (x site) accepts(t *testing.T) {
	t.Helper()
	x.await(t, "the server accepts connections", func() bool {
		conn, err := pgx.Connect(t.Context(), x.server)
		return err == nil && conn.Close(t.Context()) == nil
	})
}

// schema returns the site with a new schema.
func (x site) schema(t *testing.T, name string) site {
	t.Helper()
	x.exec(t, "CREATE SCHEMA "+name)
	x.dsn = x.server + " search_path=" + name
	return x
}

func (x site) open(t *testing.T, o Options) *Store {
	t.Helper()
	o.AcceptAsync, o.Log = true, slog.New(slog.DiscardHandler)
	s, err := Open(t.Context(), x.dsn, o)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// query runs a statement and returns the number in the first column of its first row; 0 if there is none.
func (x site) query(t *testing.T, text string, args ...any) (n int64) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), x.dsn)
	must(t, err)
	defer conn.Close(context.Background())
	err = conn.QueryRow(t.Context(), text, args...).Scan(&n)
	if !errors.Is(err, pgx.ErrNoRows) {
		must(t, err)
	}
	return n
}

// exec runs statements, each in its transaction.
func (x site) exec(t *testing.T, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), x.server)
	must(t, err)
	defer conn.Close(context.Background())
	for _, text := range statements {
		_, err := conn.Exec(t.Context(), text)
		must(t, err)
	}
}

// await waits until done returns true. It asks again and again, because the server does not tell a test what it does.
func (x site) await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited a minute: %s", what)
		}
	}
}

// visible waits until the number of the last event that a reader can see is n.
func (x site) visible(t *testing.T, n relay.Seq) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), x.dsn)
	must(t, err)
	defer conn.Close(context.Background())
	x.await(t, fmt.Sprintf("event %d is visible", n), func() bool {
		var last relay.Seq
		must(t, conn.QueryRow(t.Context(), "SELECT last FROM head").Scan(&last))
		return last == n
	})
}

// standby sets the name of the standby for which commits wait. There is none with any name, so they wait for ever. With
// an empty name, they do not wait.
func (x site) standby(t *testing.T, name string) {
	t.Helper()
	x.exec(t, fmt.Sprintf("ALTER SYSTEM SET synchronous_standby_names = '%s'", name), "SELECT pg_reload_conf()")
	conn, err := pgx.Connect(t.Context(), x.server)
	must(t, err)
	defer conn.Close(context.Background())
	x.await(t, "the server has noticed", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := conn.Exec(ctx, "SELECT pg_logical_emit_message(true, 'test', '')")
		waits := errors.Is(err, context.DeadlineExceeded)
		if waits {
			if conn, err = pgx.Connect(t.Context(), x.server); err != nil {
				t.Fatal(err)
			}
		}
		return waits == (name != "")
	})
}

// waits waits until the barrier of a store waits for a standby, in a transaction that is not the one that began at this
// time. It returns when its transaction began.
func (x site) waits(t *testing.T, pid uint32, not int64) (began int64) {
	t.Helper()
	x.await(t, "the barrier waits for a standby", func() bool {
		began = x.query(t, "SELECT (extract(epoch FROM xact_start) * 1000000)::bigint FROM pg_stat_activity "+
			"WHERE pid = $1 AND wait_event = 'SyncRep'", pid)
		return began != 0 && began != not
	})
	return began
}

// pidOf returns the process of the server that serves the committer of a store.
func pidOf(t *testing.T, s *Store) (pid uint32) {
	t.Helper()
	must(t, s.task(t.Context(), func(w *writer) error {
		pid = w.conn.PgConn().PID()
		return nil
	}))
	return pid
}

func sendSignal(t *testing.T, pid uint32, signal syscall.Signal) {
	t.Helper()
	must(t, syscall.Kill(int(pid), signal))
}

// appending appends an entry in a goroutine.
func appending(t *testing.T, s *Store, e relay.Entry) <-chan relay.Outcome {
	done := make(chan relay.Outcome, 1)
	go func() {
		r, err := s.Append(t.Context(), e)
		done <- relay.Outcome{Receipt: r, Err: err}
	}()
	return done
}

func unanswered(t *testing.T, what string, done <-chan relay.Outcome) {
	t.Helper()
	select {
	case o := <-done:
		t.Errorf("%s: answered with %+v", what, o)
	default:
	}
}

// ids returns the ids of all events that a store shows, in order.
func ids(t *testing.T, s *Store) (all []string) {
	t.Helper()
	page, err := s.Read(t.Context(), relay.Query{Expired: true, Limit: 99})
	must(t, err)
	for _, e := range page.Events {
		all = append(all, e.ID)
	}
	return all
}
