package sqlite

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite/internal/dbfile"
)

// childVariable selects a function of children. If it is set, the test binary runs that function instead of tests.
const childVariable = "AGORA_SQLITE_TEST_CHILD"

var children = map[string]func(path string) error{"open": openOnly, "append": appendForever, "rebuild": rebuildOnly,
	"converse": converseForever, "limited": appendLimited, "no-descriptors": withoutDescriptors, "update": updateForever}

func TestMain(m *testing.M) {
	child, ok := children[os.Getenv(childVariable)]
	if !ok {
		if racing.Detector {
			// Data races show in few runs of a model. Runs without the race detector make the full number of checks.
			if err := flag.Set("rapid.checks", "10"); err != nil {
				panic(err) // rapid has renamed the flag
			}
		}
		goleak.VerifyTestMain(m) // exits; no goroutine may outlive the tests
	}
	if err := child(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// openOnly is a child that opens and closes a database, and returns the error.
func openOnly(path string) error {
	s, err := Open(context.Background(), path, Options{})
	if err != nil {
		return err
	}
	return s.Close()
}

// process is a running child. It ends with its test at the latest.
type process struct {
	*exec.Cmd
	lines  *bufio.Reader // standard output
	errors bytes.Buffer
}

func start(t *testing.T, child, path string) *process {
	t.Helper()
	binary, err := os.Executable()
	must(t, err)
	p := &process{Cmd: exec.CommandContext(t.Context(), binary, path)}
	p.Env = append(os.Environ(), childVariable+"="+child)
	p.Stderr = &p.errors
	out, err := p.StdoutPipe()
	must(t, err)
	p.lines = bufio.NewReader(out)
	must(t, p.Start())
	return p
}

// key returns the same identity for the same n every time.
func key(n int) didkey.Key {
	k, err := didkey.FromSeed(bytes.Repeat([]byte{byte(n), byte(n >> 8)}, 16))
	if err != nil {
		panic(err) // 32 bytes are always a valid seed
	}
	return k
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openAt(t testing.TB, path string) *Store {
	t.Helper()
	return openWith(t, path, Options{})
}

// never is a tick interval longer than any test. Tests call tick themselves.
const never = 1000 * time.Hour

func openWith(t testing.TB, path string, o Options) *Store {
	t.Helper()
	o.tickInterval = cmp.Or(o.tickInterval, never)
	s, err := Open(t.Context(), path, o)
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func openNew(t testing.TB) *Store {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "agora.db"))
}

// request returns a REQUEST that opens a new thread.
func request(t testing.TB, by didkey.Key, to didkey.DID) relay.Entry {
	t.Helper()
	return signed(t, by, envelope.Draft{Recipient: to, Payload: envelope.Request{Intent: "translate"}})
}

func signed(t testing.TB, by didkey.Key, d envelope.Draft) relay.Entry {
	t.Helper()
	now := time.Now()
	m, err := d.Sign(by, now)
	must(t, err)
	return relay.Entry{Envelope: m, Received: now}
}

// tick runs one tick of care as if Expire had been called at now. It returns the error that Expire would report.
func tick(s *Store, now time.Time) error {
	s.care.due.Store(nanos(now))
	s.care.tick()
	return s.care.currentError()
}

func events(t testing.TB, s *Store) []relay.Event {
	t.Helper()
	page, err := s.Read(t.Context(), relay.Query{Expired: true, Limit: 1 << 20})
	must(t, err)
	return page.Events
}

// write runs f in the writer's goroutine, within a transaction.
func write(t testing.TB, s *Store, f func(*writer) error) {
	t.Helper()
	must(t, s.task(t.Context(), func(w *writer) error { return w.transact(func() error { return f(w) }) }))
}

func execute(t testing.TB, s *Store, text string) {
	t.Helper()
	write(t, s, func(w *writer) error {
		_, err := w.conn.ExecContext(context.Background(), text)
		return err
	})
}

// appendTogether appends entries as one group. It keeps the writer busy until all of them wait.
func appendTogether(t testing.TB, s *Store, entries []relay.Entry) []error {
	t.Helper()
	if len(entries) > cap(s.queue.Appends) {
		t.Fatalf("%d entries do not fit into the queue of %d", len(entries), cap(s.queue.Appends))
	}
	busy, release := make(chan struct{}), make(chan struct{})
	errs := make([]error, len(entries))
	var callers sync.WaitGroup
	callers.Go(func() {
		must(t, s.task(t.Context(), func(*writer) error {
			close(busy)
			<-release
			return nil
		}))
	})
	<-busy
	for i, e := range entries {
		callers.Go(func() { _, errs[i] = s.Append(t.Context(), e) })
	}
	for len(s.queue.Appends) < len(entries) {
		runtime.Gosched()
	}
	close(release)
	callers.Wait()
	return errs
}

func isCode(err error, code envelope.Code) bool {
	return envelope.CodeOf(err) == code
}

// rest reads the rest of a child's output and waits for its end.
func (p *process) rest() (out string, err error) {
	text, err := io.ReadAll(p.lines)
	return string(text), errors.Join(err, p.Wait())
}

// spoil runs SQL on a database that no store has open. The SQL may write what a store never would.
func spoil(t testing.TB, path, text string) {
	t.Helper()
	db, err := dbfile.Open(path, "immediate", []string{"writable_schema(ON)"}, "rw")
	must(t, err)
	_, err = db.ExecContext(context.Background(), text)
	must(t, errors.Join(err, db.Close()))
}
