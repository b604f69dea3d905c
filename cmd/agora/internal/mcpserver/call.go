package mcpserver

import (
	"context"
	"errors"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/untrusted"
)

// page is the answer of one call of a tool, and what is the same in all tries of this call.
type page struct {
	*untrusted.Page
	began  time.Time // when the first try began
	thread string    // the id of the thread that the call may open
	last   bool      // there is no further try, whatever this one gives
}

// firstPause is the pause before the second try of a call. The pauses grow up to maxPause.
const (
	firstPause = 200 * time.Millisecond
	maxPause   = 2 * time.Second
)

// again calls a tool. While the relay does not answer, it tries again, until s.Patience is over: a relay that restarts
// needs some seconds. So a tool must do nothing twice if it is called again with the same page.thread.
func again[T any](ctx context.Context, s *Server, tool func(p *page) (T, error)) (T, *page, error) {
	p := page{began: time.Now(), thread: client.NewThread()}
	var failed time.Time // when the relay did not answer for the first time
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		p.Page, p.last = untrusted.NewPage(), !failed.IsZero() && time.Since(failed) >= s.Patience
		out, err := tool(&p)
		if saved := s.threads.save(ctx); err == nil {
			err = saved
		}
		if err == nil || p.last || ctx.Err() != nil || !client.Unanswered(err) {
			return out, &p, err
		}
		if failed.IsZero() {
			failed = time.Now()
		}
		left := s.Patience - time.Since(failed)
		refusal, _ := errors.AsType[*envelope.Error](err)
		if refusal != nil && refusal.RetryAfter > left { // no try in this time can succeed
			return out, &p, err
		}
		s.Log.Debug("the relay does not answer, will be tried again", "error", err)
		timer := time.NewTimer(max(min(pause, left), 0))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return out, &p, err
		}
	}
}
