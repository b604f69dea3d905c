package client_test

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/a2a"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/sqlite"
)

// realRelay is a complete relay on a loopback socket, with an A2A gateway. The examples use it, so they show code that works with a real
// relay. Most tests use fakeRelay, which can simulate failures.
type realRelay struct {
	*httptest.Server
	stop func() error
}

// startRelay starts a relay for an example.
func startRelay() *realRelay {
	r, err := newRealRelay(relay.ToAll)
	if err != nil {
		log.Fatal(err)
	}
	return r
}

// newRealRelay starts a relay. reads says to whom the relay shows directed messages. The functions change its
// configuration.
func newRealRelay(reads relay.Visibility, change ...func(*relay.Config)) (*realRelay, error) {
	folder, err := os.MkdirTemp("", "agora")
	if err != nil {
		return nil, err
	}
	store, err := sqlite.Open(context.Background(), filepath.Join(folder, "agora.db"), sqlite.Options{Reserve: 1 << 20,
		Extensions: []relay.Extension{gateway.Extension, a2a.Extension}})
	if err != nil {
		return nil, err
	}
	key, err := didkey.Generate()
	if err != nil {
		return nil, err
	}
	quiet := slog.New(slog.DiscardHandler)
	server := httptest.NewUnstartedServer(nil)
	config := relay.Config{Store: store, Key: key, Log: quiet, Reads: reads, Origin: "http://" + server.Listener.Addr().String()}
	for _, f := range change {
		f(&config)
	}
	r, err := relay.New(context.Background(), config)
	if err != nil {
		return nil, err
	}
	core, err := gateway.NewCore(context.Background(), gateway.CoreOptions{Relay: r, Key: key, Log: quiet,
		Operator: gateway.NewKey(gateway.Operator)})
	if err != nil {
		return nil, err
	}
	agents, err := a2a.New(context.Background(), core, a2a.Options{Endpoints: 10, Retention: time.Hour, Wait: time.Minute})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	var gateways sync.WaitGroup
	gateways.Go(func() { core.Run(ctx) })
	gateways.Go(func() { agents.Run(ctx) })
	go func() { ended <- r.Run(ctx) }()
	server.Config.Handler = httpapi.New(r, httpapi.Options{Log: quiet, Mounts: agents.Mounts("/a2a"), Gateways: map[string]any{
		"did": key.DID(), "a2a": map[string]string{"url": config.Origin + "/a2a"}}}).Handler(true)
	server.Start()
	return &realRelay{
		Server: server,
		stop: func() error {
			r.Drain()
			cancel()
			gateways.Wait()
			return errors.Join(<-ended, store.Close(), os.RemoveAll(folder))
		},
	}, nil
}

// Close ends the waiting polls, stops the relay and deletes its data.
func (r *realRelay) Close() {
	if err := r.stop(); err != nil {
		log.Fatal(err)
	}
	r.Server.Close()
}
