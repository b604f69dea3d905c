package a2a_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
)

const (
	stall = 500 * time.Millisecond // how long one step of a stalling database takes; a View of a remote client may take longer
	late  = 10 * stall             // of an answer: the relay itself makes pauses of milliseconds, but none that are longer
)

// a blocking call and a stream end when the agent is done, also if the agent is done while one step of the call
// stalls: a read, whose rows are old then, or a write, after which the call begins to wait late.
func TestStalls(t *testing.T) {
	var left atomic.Int64
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		a.serve(echo)
		c := caller{agent: a}
		for _, path := range []string{"/message:send", "/message:stream"} {
			n := int64(0)
			for left.Store(0); left.Load() <= 0; { // until the call has fewer steps
				n++
				synctest.Wait()
				left.Store(n)
				began := time.Now()
				answer := c.post(path, object{"message": message("hello")})
				if took := time.Since(began); took > late || !strings.Contains(answer.String(), "echo: hello") {
					t.Errorf("%s: with a stall of step %d, there is after %v the answer %v", path, n, took, answer)
				}
			}
			if n < 8 {
				t.Errorf("%s: the call has only %d steps", path, n-1)
			}
		}
	}, func(f *fixture) {
		f.Wrap = func(s relay.Extender) relay.Extender { return stalling{s, &left} }
	})
}

// stalling is a database in which one step of requests stalls, when left becomes 0.
type stalling struct {
	relay.Extender
	left *atomic.Int64
}

// step ends a step. The gateway also makes others in the background.
func (s stalling) step(ctx context.Context) {
	if ctx.Value(http.ServerContextKey) != nil && s.left.Add(-1) == 0 {
		time.Sleep(stall)
	}
}

func (s stalling) Update(ctx context.Context, f func(relay.StoreTx) error) (time.Duration, error) {
	defer s.step(ctx)
	return s.Extender.Update(ctx, f)
}

func (s stalling) View(ctx context.Context, f func(relay.Querier) error) (time.Duration, error) {
	return s.Extender.View(ctx, func(q relay.Querier) error {
		return f(stallingReads{q, func() { s.step(ctx) }})
	})
}

// stallingReads are the reads of a View.
type stallingReads struct {
	relay.Querier
	step func()
}

func (s stallingReads) Query(row func(func(...any) error) error, text string, args ...any) error {
	defer s.step()
	return s.Querier.Query(row, text, args...)
}
