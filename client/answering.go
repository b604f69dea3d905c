package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// answerAll answers the REQUESTs of the queue, opts.Concurrency at a time, until ctx ends.
func (a *agent) answerAll(ctx context.Context) {
	for {
		if take(ctx, a.answers) != nil {
			return
		}
		w := a.next(ctx)
		if w == nil {
			return
		}
		a.tasks.Go(func() {
			defer func() { <-a.answers }()
			a.answer(ctx, w)
		})
	}
}

// next waits for the next REQUEST to answer; nil if ctx ended first.
func (a *agent) next(ctx context.Context) *waiting {
	for {
		w, late, wait := a.queue.next(time.Now(), &a.pace)
		a.drop(ctx, late)
		if w != nil {
			return w
		}
		timer := time.NewTimer(wait)
		if wait == 0 {
			timer.Stop()
		}
		select {
		case <-a.queue.woken:
		case <-timer.C:
		case <-ctx.Done():
		}
		if timer.Stop(); ctx.Err() != nil {
			return nil
		}
	}
}

// enqueue puts a REQUEST into the queue. What does not fit is dropped.
func (a *agent) enqueue(ctx context.Context, w *waiting) {
	a.drop(ctx, a.queue.put(w, time.Now()))
}

// withdraw removes the REQUEST of a thread from the queue and returns it; nil: the queue does not have it.
func (a *agent) withdraw(ctx context.Context, key thread.Key) *envelope.Envelope {
	w := a.queue.withdraw(key)
	if w == nil {
		return nil
	}
	a.release(ctx, w.page)
	return w.event
}

// answer reads the state of a REQUEST's thread and makes an offer if one is expected. After a temporary failure the
// REQUEST goes back into the queue.
func (a *agent) answer(ctx context.Context, w *waiting) {
	r := &run{agent: a, key: w.key, event: w.event, quoted: w.quoted, ended: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	defer r.cancel(nil)
	var err error
	if a.tryRegister(r) == nil { // otherwise the thread has gone on to a later message
		err = r.step()
		a.unregister(r)
	}
	if !r.posting {
		a.pace.refund(time.Now())
	}
	switch {
	case ctx.Err() != nil: // the cursor stays before this REQUEST, so it is read again after a restart
		return
	case err == nil:
	case r.ctx.Err() != nil, definite(err):
		a.client.log.Info("a thread is left as it is", "thread", w.key.ID, "client", w.key.Client, "reason", err)
	default:
		a.client.log.Warn("a REQUEST could not be answered, will be retried",
			"thread", w.key.ID, "client", w.key.Client, "error", err)
		w.quoted = r.quoted
		a.postpone(w, err, time.Now())
		a.drop(ctx, a.queue.putBack(w))
		return
	}
	a.release(ctx, w.page)
}

// postpone decides when to retry a REQUEST. If the relay limits this agent, the other REQUESTs wait too. If it limits
// only the inbox of one client, they do not.
func (a *agent) postpone(w *waiting, err error, now time.Time) {
	asked := min(retryAfter(err), postPatience) // after a longer pause the thread may have ended
	w.notBefore = now.Add(w.pause.next(asked, maxPause))
	refusal, ok := errors.AsType[*envelope.Error](err)
	if !ok || refusal.Code != envelope.CodeRateLimited {
		return
	}
	switch refusal.Limit() {
	case envelope.LimitPostsPerAgent:
		a.pace.limited(a.client.postRate(), asked, now)
	case envelope.LimitPostsPerAddress, envelope.LimitReadsPerAddress:
		a.pace.close(asked, now)
	case envelope.LimitInbox:
		return
	default: // a limit that this client does not know
		a.pace.close(min(asked, time.Second), now)
		return
	}
	w.notBefore = time.Time{} // the pace decides when
}

// drop gives up REQUESTs without answering them, and reports them.
func (a *agent) drop(ctx context.Context, all []*waiting) {
	for _, w := range all {
		if total, tell := a.dropped.count(time.Now()); tell {
			a.client.log.Warn("REQUESTs were dropped without an answer: more come than can be answered", "dropped", total)
		}
		if a.opts.Dropped != nil {
			a.opts.Dropped(w.event)
		}
		a.release(ctx, w.page)
	}
}

// dropped counts the REQUESTs that were dropped.
type dropped struct {
	mu    sync.Mutex
	total int
	told  time.Time // when the log was last told
}

// logEvery is the shortest time between two log lines about dropped REQUESTs.
const logEvery = 10 * time.Second

// count adds one dropped REQUEST. tell reports whether a log line is due.
func (d *dropped) count(now time.Time) (total int, tell bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.total++
	if tell = now.Sub(d.told) >= logEvery; tell {
		d.told = now
	}
	return d.total, tell
}
