//go:build postgres

package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/relay"
)

// TestSingle runs a store that is alone, in a bubble. There, the time stands still while a goroutine listens to a server. The
// store keeps the lease, and passes on its own events at once.
func TestSingle(t *testing.T) {
	dsn, err := dsnOf(t.Context(), t.TempDir())
	must(t, err)
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(t.Context(), dsn, Options{Single: true, AcceptAsync: true, Log: slog.New(slog.DiscardHandler)})
		must(t, err)
		ctx, stop := context.WithCancel(t.Context())
		passed, ended := 0, make(chan error, 1)
		go func() {
			ended <- s.Watch(ctx, relay.Cursor{}, nil, func(posted []relay.Posted) { passed += len(posted) })
		}()
		for want := range 3 {
			_, err := s.Append(t.Context(), request(t, key(1), fmt.Sprint("t", want)))
			must(t, err)
			synctest.Wait()
			if passed != want+1 {
				t.Errorf("%d events are passed on, want %d", passed, want+1)
			}
			time.Sleep(time.Minute)
			if !s.Leads() {
				t.Error("the store does not have the lease")
			}
		}
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		must(t, s.Close())
	})
}
