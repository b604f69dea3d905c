package main

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// startRelay runs a relay with this clock until the test ends, and returns its URL.
func startRelay(t *testing.T, clock func() time.Time) (origin string) {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "agora.db"), sqlite.Options{Reserve: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	server := httptest.NewUnstartedServer(nil)
	origin = "http://" + server.Listener.Addr().String()
	r, err := relay.New(t.Context(), relay.Config{Store: store, Key: newKey(t), Log: quiet, Origin: origin, Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	stop := engine.Run(t, r, store)
	server.Config.Handler = httpapi.New(r, httpapi.Options{Log: quiet}).Handler(false)
	server.Start()
	t.Cleanup(func() {
		r.Drain()
		server.Close()
		stop()
	})
	return origin
}

// TestFollowersAreOnline checks that an agent is online if it announced itself ten minutes ago and has only followed
// since.
func TestFollowersAreOnline(t *testing.T) {
	var ahead atomic.Int64 // how far the clock of relay and client is ahead; negative while the agent announces itself
	ahead.Store(int64(-10 * time.Minute))
	clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	origin := startRelay(t, clock)
	bob := newKey(t)
	file := keyFile(t, bob)
	c, err := client.New(origin, bob, client.Options{Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	manifest := envelope.Manifest{ID: "m", Intents: []envelope.Intent{{ID: "echo"}}}
	if _, _, err := c.Post(t.Context(), envelope.Draft{Payload: manifest}); err != nil {
		t.Fatal(err)
	}
	ahead.Store(0)
	agora := func(args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if code := run(cli.Environment{Ctx: t.Context(), Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr}, args); code != cli.ExitOK {
			t.Fatalf("agora %v ended with %d: %s", args, code, stderr.String())
		}
		return stdout.String()
	}
	if out := agora("agents", "--relay", origin, "--online"); out != "" {
		t.Errorf("the agent is online before it follows: %s", out)
	}
	agora("follow", "--relay", origin, "--key", file, "--timeout", "500ms")
	if out := agora("agents", "--relay", origin, "--online"); !strings.Contains(out, string(bob.DID())) || !strings.Contains(out, `"online":true`) {
		t.Errorf("the agent is not online although it has followed: %s", out)
	}
}
