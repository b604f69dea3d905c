package admin

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest/engine"
	"go.uber.org/goleak"
)

// TestMain plays a client of the socket if the environment names one.
func TestMain(m *testing.M) {
	if path := os.Getenv("ADMIN_TEST_DIAL"); path != "" {
		c, err := net.Dial("unix", path)
		if err != nil {
			os.Exit(3)
		}
		_, _ = c.Write([]byte("GET /bans HTTP/1.0\r\n\r\n"))
		if n, _ := c.Read(make([]byte, 10)); n > 0 {
			os.Exit(0)
		}
		os.Exit(4)
	}
	goleak.VerifyTestMain(m)
}

func folder(t *testing.T) string {
	t.Helper()
	path := t.TempDir()
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSocketModes checks who may open the socket, whatever the umask is, and what is left after Close.
func TestSocketModes(t *testing.T) {
	path := folder(t)
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(filepath.Join(path, Path))
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("a second listener: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(path); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestStaleSocket checks that the socket of a killed relay is replaced, that other files are not, and that a listener
// does not remove the socket of the next one.
func TestStaleSocket(t *testing.T) {
	path := folder(t)
	old, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	dead := old.(*listener)
	if err := dead.UnixListener.Close(); err != nil { // as if the process were killed
		t.Fatal(err)
	}
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = dead.Close() // it was closed before
	if _, err := os.Lstat(filepath.Join(path, Path)); err != nil {
		t.Errorf("an old listener has removed the new socket: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(path, Path)
	if err := os.WriteFile(file, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); err == nil {
		t.Error("a file was replaced")
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "keep" {
		t.Errorf("%q, %v", text, err)
	}
}

// run serves the API of a relay until the test ends.
func run(t *testing.T, path string, change func(*Options)) (*relay.Relay, *Client) {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(path, "agora.db"),
		sqlite.Options{Reserve: 1 << 20, Extensions: []relay.Extension{Extension}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	r, err := relay.New(t.Context(), relay.Config{Store: store, Key: key, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	bans, err := OpenBans(t.Context(), r, relay.Bans{}, Nodes{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Relay: r, Bans: bans, Log: log, Checkpoint: store.Checkpoint,
		Stats: func(context.Context) (any, error) { return nil, nil }, Policy: func() error { return nil },
		Remove:       func(_ context.Context, gateway, id string) error { return errNoGateway },
		RemoveSender: func(context.Context, string, time.Time, int) (map[string]int, error) { return map[string]int{}, nil }}
	if change != nil {
		change(&o)
	}
	t.Cleanup(engine.Run(t, r, store, bans.Run, func(ctx context.Context) {
		if err := Serve(ctx, l, Handler(o), log); err != nil {
			t.Error(err)
		}
	}))
	return r, NewClient(path)
}

var errNoGateway = envelope.Errorf(envelope.CodeInvalidRequest, "there is no such gateway")

// TestLongPath uses a data folder whose path does not fit into the address of a socket.
func TestLongPath(t *testing.T) {
	path := filepath.Join(folder(t), strings.Repeat("long", 30))
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	_, c := run(t, path, nil)
	if err := c.Call(t.Context(), "GET", "/bans", nil, new(any)); err != nil {
		t.Error(err)
	}
}

// TestSocketOfOthers connects as another user. That user gets no answer: the folder and the mode refuse it, and so does
// the relay if somebody has opened both.
func TestSocketOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root, to become another user")
		}
		t.Skip("needs root, to become another user")
	}
	path := folder(t)
	run(t, path, nil)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join("/tmp", "agora-admin-test-"+filepath.Base(path)+filepath.Base(filepath.Dir(path)))
	text, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(copied, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(copied)
	dial := func() int {
		cmd := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", copied)
		cmd.Env = append(os.Environ(), "ADMIN_TEST_DIAL="+filepath.Join(path, Path))
		err := cmd.Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return exit.ExitCode()
		}
		if err != nil {
			t.Fatal(err)
		}
		return 0
	}
	if code := dial(); code != 3 {
		t.Errorf("another user: exit code %d, want 3: it cannot connect", code)
	}
	for at := path; at != "/" && at != "/tmp"; at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(path, Path), 0o777); err != nil {
		t.Fatal(err)
	}
	if code := dial(); code != 4 {
		t.Errorf("another user, with open modes: exit code %d, want 4: the relay closes the connection", code)
	}
}

// TestAPI checks the refusals of the API.
func TestAPI(t *testing.T) {
	_, c := run(t, folder(t), nil)
	for _, q := range []struct {
		method, path string
		body         any
		code         string
	}{
		{"POST", "/bans", map[string]any{"subject": "nobody"}, "INVALID_REQUEST"},
		{"POST", "/bans", map[string]any{"subject": "192.0.2.1", "second": 1}, "INVALID_REQUEST"},
		{"POST", "/bans", map[string]any{"subject": "192.0.2.1", "seconds": -1}, "INVALID_REQUEST"},
		{"POST", "/bans", map[string]any{"subject": "192.0.2.1", "reason": strings.Repeat("x", 501)}, "INVALID_REQUEST"},
		{"POST", "/bans", strings.Repeat("x", maxBody), "INVALID_REQUEST"},
		{"POST", "/unban", map[string]any{"subject": "192.0.2.1"}, "NOT_FOUND"},
		{"POST", "/remove", map[string]any{}, "INVALID_REQUEST"},
		{"POST", "/remove", map[string]any{"seq": 1, "thread": "t"}, "INVALID_REQUEST"},
		{"POST", "/remove", map[string]any{"seq": 99}, "NOT_FOUND"},
		{"POST", "/remove", map[string]any{"gateway": "hub"}, "INVALID_REQUEST"},
		{"POST", "/remove", map[string]any{"gateway": "hub", "id": "1"}, "INVALID_REQUEST"},
		{"POST", "/remove", map[string]any{"gateway": "hub", "id": "1", "seq": 1}, "INVALID_REQUEST"},
		{"POST", "/remove", map[string]any{"sender": "did:key:x", "id": "m"}, "NOT_FOUND"},
		{"GET", "/top?by=all", nil, "INVALID_REQUEST"},
		{"GET", "/waiters?limit=0", nil, "INVALID_REQUEST"},
		{"GET", "/profile/cmdline", nil, "NOT_FOUND"},
		{"POST", "/backup", nil, "INVALID_REQUEST"},
	} {
		err := c.Call(t.Context(), q.method, q.path, q.body, new(any))
		if refused, ok := errors.AsType[Refusal](err); !ok || refused.Code != q.code || refused.Message == "" {
			t.Errorf("%s %s %v: %v, want %s", q.method, q.path, q.body, err, q.code)
		}
	}
	if err := NewClient(t.TempDir()).Call(t.Context(), "GET", "/bans", nil, new(any)); err == nil {
		t.Error("a call without a relay succeeds")
	} else if _, none := errors.AsType[*NotRunning](err); !none {
		t.Errorf("no relay: %v", err)
	}
	// The standard library registers its profiles at the default mux. That mux is not used.
	if _, pattern := http.DefaultServeMux.Handler(&http.Request{Method: "GET", URL: mustURL("/debug/pprof/")}); pattern != "" {
		t.Errorf("the default mux serves %s", pattern)
	}
}

// TestBansAreKept checks that bans are stored, that they end, and that they are put in force at a start.
func TestBansAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "agora.db")
		key, err := didkey.Generate()
		if err != nil {
			t.Fatal(err)
		}
		for start := range 2 {
			store, err := sqlite.Open(t.Context(), path, sqlite.Options{Reserve: 1 << 20, Extensions: []relay.Extension{Extension},
				Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			r, err := relay.New(t.Context(), relay.Config{Store: store, Key: key, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			b, err := OpenBans(t.Context(), r, relay.Bans{}, Nodes{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { b.Run(ctx) })
			refused := func(addr string) bool {
				return envelope.CodeOf(r.Gate().Admit(relay.Peer{Addr: mustAddr(addr)}, admission.Reads)) == envelope.CodeForbidden
			}
			if start == 0 {
				if _, err := b.Add(t.Context(), "192.0.2.1", "why", time.Now().Add(time.Hour)); err != nil {
					t.Fatal(err)
				}
				r.Pause() // a paused relay can be governed
				if _, err := b.Add(t.Context(), "2001:db8::/32", "", time.Time{}); err != nil {
					t.Fatal(err)
				}
				if _, err := b.Add(t.Context(), string(r.DID()), "", time.Time{}); err == nil {
					t.Error("the relay can ban itself")
				}
				time.Sleep(59 * time.Minute)
			}
			if !refused("192.0.2.1") || !refused("2001:db8::9") || refused("192.0.2.2") || len(b.List()) != 2 {
				t.Errorf("start %d: %+v", start, b.List())
			}
			if start == 1 {
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if refused("192.0.2.1") || !refused("2001:db8::9") || len(b.List()) != 1 || len(b.stored) != 1 {
					t.Errorf("after its end: %+v, %+v", b.List(), b.stored)
				}
			}
			cancel()
			running.Wait()
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestBansOfTwoNodes checks that nodes over one database share their bans, and that a ban which is set again just when it
// ends at another node stays. A node that hears an announcement has the change at once, another one after a minute.
func TestBansOfTwoNodes(t *testing.T) {
	t.Run("not announced", func(t *testing.T) { testBansOfTwoNodes(t, false, 61*time.Second) })
	t.Run("announced", func(t *testing.T) { testBansOfTwoNodes(t, true, 0) })
}

// testBansOfTwoNodes changes bans at a node. At the other one they must be in force after a delay.
func testBansOfTwoNodes(t *testing.T, announces bool, delay time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		var first, second Nodes
		if announces {
			announced := make(chan struct{}, 9)
			second.Announced = announced
			first.Announce = func(context.Context) error { announced <- struct{}{}; return nil }
		}
		log := slog.New(slog.DiscardHandler)
		store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "agora.db"), sqlite.Options{Reserve: 1 << 20,
			Extensions: []relay.Extension{Extension}, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		key, err := didkey.Generate()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		node := func(nodes Nodes) *Bans {
			r, err := relay.New(t.Context(), relay.Config{Store: store, Key: key, Log: log})
			if err != nil {
				t.Fatal(err)
			}
			b, err := OpenBans(t.Context(), r, relay.Bans{}, nodes)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		one, two := node(first), node(second)
		running.Go(func() { two.Run(ctx) })
		wantInForce := func(what, subjects string) {
			t.Helper()
			time.Sleep(delay)
			synctest.Wait()
			var found []string
			for _, b := range two.List() {
				if envelope.CodeOf(two.relay.Gate().Admit(relay.Peer{Addr: netip.MustParsePrefix(b.Subject).Addr()}, admission.Reads)) == envelope.CodeForbidden {
					found = append(found, b.Subject)
				}
			}
			slices.Sort(found)
			if got := strings.Join(found, " "); got != subjects {
				t.Errorf("%s: the other node has %q, want %q", what, got, subjects)
			}
		}
		add := func(subject string, d time.Duration) {
			t.Helper()
			if _, err := one.Add(t.Context(), subject, "", time.Now().Add(d)); err != nil {
				t.Fatal(err)
			}
		}
		add("192.0.2.1", time.Hour)
		add("192.0.2.2", 2*time.Hour)
		add("192.0.2.3", 30*time.Minute)
		wantInForce("after the bans", "192.0.2.1/32 192.0.2.2/32 192.0.2.3/32")
		time.Sleep(30 * time.Minute)
		wantInForce("after the end of the third one", "192.0.2.1/32 192.0.2.2/32")
		time.Sleep(30*time.Minute - 2*time.Minute - 3*time.Second)
		add("192.0.2.1", 3*time.Hour) // the other node still has the first ban, which ends now
		wantInForce("after the first one was renewed", "192.0.2.1/32 192.0.2.2/32")
		if err := two.Remove(t.Context(), "192.0.2.1"); err != nil {
			t.Error(err)
		}
		if err := one.Remove(t.Context(), "192.0.2.2"); err != nil {
			t.Error(err)
		}
		wantInForce("after both were ended", "")
		if err := one.Remove(t.Context(), "192.0.2.1"); envelope.CodeOf(err) != envelope.CodeNotFound {
			t.Errorf("a ban that the other node has ended: %v", err)
		}
		cancel()
		running.Wait()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestSchedule checks when backups are made, that a failure is tried again, that the oldest ones go, and that two are
// never made at the same time.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "backups")
		var failing atomic.Pointer[error] // nil: backups succeed
		began := time.Now()
		var at []time.Duration
		entered := make(chan struct{}, 100)
		make1 := func(ctx context.Context, to string) error {
			at = append(at, time.Since(began))
			entered <- struct{}{}
			time.Sleep(time.Second)
			if err := failing.Load(); err != nil {
				return *err
			}
			return os.MkdirAll(to, 0o700)
		}
		if err := os.MkdirAll(filepath.Join(path, "mine"), 0o700); err != nil { // not a backup
			t.Fatal(err)
		}
		open := func() (*Backups, func()) {
			b, err := NewBackups(BackupOptions{Folder: path, Make: make1, Every: 24 * time.Hour, Keep: 2, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				b.Run(ctx)
			}()
			return b, func() { cancel(); <-done }
		}
		b, stop := open()
		<-entered // the first one is made at once
		if _, err := b.Now(); envelope.CodeOf(err) != envelope.CodeUnavailable {
			t.Errorf("a second backup at the same time: %v", err)
		}
		time.Sleep(23 * time.Hour)
		stop()
		b, stop = open() // a restart does not change when the next one is due
		time.Sleep(90 * time.Minute)
		noSpace := errors.New("no space")
		failing.Store(&noSpace)
		time.Sleep(24 * time.Hour)
		if info := b.Info(); info.Failed != "no space" {
			t.Errorf("%+v", info)
		}
		failing.Store(nil)
		time.Sleep(11 * time.Minute)
		if info := b.Info(); info.Failed != "" || time.Since(*info.Last) > 12*time.Minute {
			t.Errorf("%+v", info)
		}
		stop()
		if _, err := b.Now(); envelope.CodeOf(err) != envelope.CodeUnavailable {
			t.Errorf("a backup of a relay that has stopped: %v", err)
		}
		if len(at) < 4 || at[0] > time.Second || (at[1]-24*time.Hour).Abs() > 2*time.Minute || (at[2]-48*time.Hour).Abs() > 3*time.Minute {
			t.Errorf("backups were begun at %v", at)
		}
		names, err := listBackups(path)
		if err != nil || len(names) != 2 || !slices.IsSorted(names) {
			t.Errorf("%v, %v", names, err)
		}
		if _, err := os.Stat(filepath.Join(path, "mine")); err != nil {
			t.Error(err)
		}
	})
}

// TestPruneBackups checks that the backup which was just made stays, also if the clock was set back, and that nothing but
// backups is removed.
func TestPruneBackups(t *testing.T) {
	folder := t.TempDir()
	other := t.TempDir()
	for _, name := range []string{"agora-20260101T000000Z", "agora-20260103T000000Z", "agora-20260104T000000Z", "agora-2026", "mine"} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(other, filepath.Join(folder, "agora-20250101T000000Z")); err != nil {
		t.Fatal(err)
	}
	removed, err := PruneBackups(folder, "agora-20260101T000000Z", 2)
	if err != nil || !slices.Equal(removed, []string{"agora-20260103T000000Z"}) {
		t.Errorf("removed %q, %v", removed, err)
	}
	left, err := os.ReadDir(folder)
	if err != nil || len(left) != 5 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}

func mustURL(path string) *url.URL { return &url.URL{Path: path} }

func mustAddr(text string) netip.Addr { return netip.MustParseAddr(text) }

// TestActionsAreLogged checks that the log has a line for each change that somebody has made or tried over the socket, and
// for each profile, with the user.
func TestActionsAreLogged(t *testing.T) {
	var text logText
	_, c := run(t, folder(t), func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&text, nil)) })
	uid := "unknown"
	if runtime.GOOS == "linux" {
		uid = strconv.Itoa(os.Geteuid())
	}
	for path, body := range map[string]any{"bans": BanRequest{Subject: "192.0.2.1", Reason: "spam"}, "unban": BanRequest{Subject: "192.0.2.2"},
		"remove": RemoveRequest{Seq: 99}, "remove-sender": RemoveSenderRequest{Sender: "eve@h"}, "drain": nil, "resume": nil,
		"checkpoint": nil, "backup": nil} {
		_ = c.Call(t.Context(), "POST", "/"+path, body, new(any)) // the refused ones are logged too
		if line := "action=" + path + " uid=" + uid; !strings.Contains(text.String(), line) {
			t.Errorf("the log has no %q:\n%s", line, text.String())
		}
	}
	if err := c.Copy(t.Context(), "/profile/heap", io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"action=profile/heap uid=" + uid, "subject=192.0.2.1 reason=spam", "sender=eve@h"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the log has no %q:\n%s", want, text.String())
		}
	}
	if strings.Contains(text.String(), "action=bans uid="+uid+" err") {
		t.Error(text.String())
	}
}

// logText collects the lines of a log.
type logText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
