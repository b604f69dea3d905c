package relay_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// sweepStore is a store whose sweeps end with the error that the test sets. A sweep runs every second, so the test
// waits a second after each change.
type sweepStore struct {
	stubStore
	err atomic.Pointer[error]
}

func (*sweepStore) Read(context.Context, relay.Query) (relay.Page, error) { return relay.Page{}, nil }
func (s *sweepStore) Expire(context.Context, time.Time, relay.Notices) error {
	return *s.err.Load()
}
func (*sweepStore) Watch(ctx context.Context, _ relay.Cursor, _ func() relay.Wanted, _ func([]relay.Posted)) error {
	<-ctx.Done()
	return ctx.Err()
}

// lineCounter counts the lines that are written to it.
type lineCounter struct{ atomic.Int64 }

func (l *lineCounter) Write(p []byte) (int, error) {
	l.Add(int64(bytes.Count(p, []byte("\n"))))
	return len(p), nil
}

func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store sweepStore
		store.err.Store(new(error))
		var log lineCounter
		r, err := relay.New(t.Context(), relay.Config{Store: &store, Key: key(t),
			Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		full := envelope.Errorf(envelope.CodeUnavailable, "the disk is full")
		for _, c := range []struct {
			err   error
			want  string
			lines int // of the log, so far
		}{
			{nil, "", 0},
			{full, "the disk is full", 1},
			{full, "the disk is full", 1},
			{errors.New("secret /path"), "the reason is in the relay's log", 2},
			{nil, "", 3},
			{full, "the disk is full", 4},
		} {
			synctest.Wait()
			store.err.Store(&c.err)
			time.Sleep(time.Second)
			synctest.Wait()
			switch err := r.Health(); {
			case c.want == "" && err != nil:
				t.Errorf("unhealthy: %v", err)
			case c.want != "" && !strings.Contains(wantCode(t, err, envelope.CodeUnavailable).Message, c.want):
				t.Errorf("%v, want %q", err, c.want)
			}
			if n := int(log.Load()); n != c.lines {
				t.Errorf("after %v the log has %d lines, want %d", c.err, n, c.lines)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
