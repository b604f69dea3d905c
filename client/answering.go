package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/client/internal/pacing"
	"github.com/agora-relay/agora/client/internal/pages"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// queuedRequest is a REQUEST that waits for an answer, with its page of events. The page is released when the REQUEST is
// handled.
type queuedRequest = pacing.Request[*pages.Page]

// answerAll answers the REQUESTs of the queue until ctx ends, opts.Concurrency REQUESTs at a time.
func (a *agent) answerAll(ctx context.Context) {
	for {
		if acquireSlot(ctx, a.answerSlots) != nil {
			return
		}
		w := a.next(ctx)
		if w == nil {
			return
		}
		a.tasks.Go(func() {
			defer func() { <-a.answerSlots }()
			a.answer(ctx, w)
		})
	}
}

// next waits for the next REQUEST to answer and returns it, or nil if ctx ended first.
func (a *agent) next(ctx context.Context) *queuedRequest {
	for {
		var wait time.Duration
		if !a.full() {
			w, late, pause := a.queue.Next(time.Now(), &a.pace)
			a.drop(ctx, late)
			if w != nil {
				return w
			}
			wait = pause
		}
		timer := time.NewTimer(wait)
		if wait == 0 {
			timer.Stop()
		}
		select {
		case <-a.queue.Wake:
		case <-a.room:
		case <-timer.C:
		case <-ctx.Done():
		}
		if timer.Stop(); ctx.Err() != nil {
			return nil
		}
	}
}

// enqueue adds a REQUEST to the queue and drops the REQUESTs that no longer fit. A REQUEST that continues an accepted
// job does not wait while the agent has as many jobs as it may have, because that job is one of them (RELAYS R-18).
func (a *agent) enqueue(ctx context.Context, w *queuedRequest) {
	if a.full() && a.state.Continues(w.Event) {
		select {
		case a.movedSlots <- struct{}{}:
			a.tasks.Go(func() {
				defer func() { <-a.movedSlots }()
				a.answer(ctx, w)
			})
			return
		default:
		}
	}
	a.drop(ctx, a.queue.Put(w, time.Now()))
}

// withdraw removes the REQUEST of a thread from the queue and returns it, or nil if the queue does not have it.
func (a *agent) withdraw(ctx context.Context, key thread.Key) *envelope.Envelope {
	w := a.queue.Withdraw(key)
	if w == nil {
		return nil
	}
	a.release(ctx, w.Page)
	return w.Event
}

// answer reads the state of the REQUEST's thread, and answers the REQUEST if it still needs an answer. After a
// temporary failure it puts the REQUEST back into the queue.
func (a *agent) answer(ctx context.Context, w *queuedRequest) {
	r := &run{agent: a, key: w.Key, event: w.Event, unpostedOffer: w.Unposted, ended: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	defer r.cancel(nil)
	var err error
	if a.tryRegister(r) == nil { // else another run handles a later message of the thread
		err = r.step()
		a.unregister(r)
	}
	if !r.triedPost {
		a.pace.Refund(time.Now())
	}
	switch {
	case ctx.Err() != nil:
		// The page is not released, so the saved cursor stays before this REQUEST. It is read again after a restart.
		return
	case err == nil:
	case r.ctx.Err() != nil, permanent(err):
		a.client.conn.Log.Info("a REQUEST is not answered", "thread", w.Key.ID, "client", w.Key.Client, "reason", err)
	default:
		a.client.conn.Log.Warn("answering a REQUEST failed, will be retried",
			"thread", w.Key.ID, "client", w.Key.Client, "error", err)
		w.Unposted = r.unpostedOffer
		a.postpone(w, err, time.Now())
		a.drop(ctx, a.queue.PutBack(w))
		return
	}
	a.release(ctx, w.Page)
}

// postpone decides when to retry a REQUEST after err. If the relay limits the rate of this agent or of its address, all
// other REQUESTs wait as well. If the inbox of the client is full, only this REQUEST waits.
func (a *agent) postpone(w *queuedRequest, err error, now time.Time) {
	delay := min(retryAfter(err), conn.PostPatience) // the thread may end during a longer pause
	w.NotBefore = now.Add(w.Pause.Next(delay, pacing.MaxPause))
	refusal, ok := errors.AsType[*envelope.Error](err)
	if !ok || refusal.Code != envelope.CodeRateLimited {
		return
	}
	switch refusal.Limit() {
	case envelope.LimitPostsPerAgent:
		a.pace.Limited(a.client.conn.PostRate(), delay, now)
	case envelope.LimitPostsPerAddress, envelope.LimitReadsPerAddress:
		a.pace.Close(delay, now)
	case envelope.LimitInbox:
		return
	default: // a limit that this client does not know
		a.pace.Close(min(delay, time.Second), now)
		return
	}
	w.NotBefore = time.Time{} // a.pace delays this REQUEST
}

// drop reports REQUESTs that get no answer, and releases their pages.
func (a *agent) drop(ctx context.Context, all []*queuedRequest) {
	for _, w := range all {
		if total, logDue := a.dropped.count(time.Now()); logDue {
			a.client.conn.Log.Warn("REQUESTs were dropped without an answer: too many were waiting, or their ttl ended",
				"dropped", total)
		}
		if a.opts.Dropped != nil {
			a.opts.Dropped(w.Event)
		}
		a.release(ctx, w.Page)
	}
}

// dropped counts the REQUESTs that were dropped.
type dropped struct {
	mu         sync.Mutex
	total      int
	lastLogged time.Time // when count last reported that a log line is due
}

// logEvery is the shortest time between two log lines about dropped REQUESTs.
const logEvery = 10 * time.Second

// count adds one dropped REQUEST and returns how many there are in total. logDue reports whether a log line is due.
func (d *dropped) count(now time.Time) (total int, logDue bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.total++
	if logDue = now.Sub(d.lastLogged) >= logEvery; logDue {
		d.lastLogged = now
	}
	return d.total, logDue
}
