package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/sqlite"
)

// TestFollowersAreOnline: an agent that announced itself ten minutes ago and has only followed since is online.
func TestFollowersAreOnline(t *testing.T) {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "agora.db"), sqlite.Options{Reserve: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	var ahead atomic.Int64 // of the clock of relay and client, so that the announcement grows old at once
	ahead.Store(int64(-10 * time.Minute))
	clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	quiet := slog.New(slog.DiscardHandler)
	server := httptest.NewUnstartedServer(nil)
	origin := "http://" + server.Listener.Addr().String()
	r, err := relay.New(t.Context(), relay.Config{Store: store, Key: key, Log: quiet, Origin: origin, Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	server.Config.Handler = httpapi.New(r, httpapi.Options{Log: quiet})
	server.Start()
	t.Cleanup(func() {
		r.Drain()
		server.Close()
		cancel()
		if err := errors.Join(<-ended, store.Close()); err != nil {
			t.Error(err)
		}
	})

	file := filepath.Join(t.TempDir(), "bob.key")
	bob, err := didkey.Generate()
	if err == nil {
		err = didkey.Save(file, bob)
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(origin, bob, client.Options{HTTPClient: server.Client(), Now: clock})
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
		if code := run(environment{ctx: t.Context(), stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr}, args); code != exitOK {
			t.Fatalf("agora %v ended with %d: %s", args, code, stderr.String())
		}
		return stdout.String()
	}
	if out := agora("agents", "--relay", origin, "--online"); out != "" {
		t.Errorf("online before it follows: %s", out)
	}
	agora("follow", "--relay", origin, "--key", file, "--timeout", "500ms")
	if out := agora("agents", "--relay", origin, "--online"); !strings.Contains(out, string(bob.DID())) || !strings.Contains(out, `"online":true`) {
		t.Errorf("not online though it follows: %s", out)
	}
}
