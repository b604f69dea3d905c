package jobsclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/agora-relay/agora/internal/exchange"
)

// Handler does a job. It returns the result; Work fills in JobID and AgentID. If there is an error, the result is a
// FAILURE with the text of the error, which the hirer sees. Otherwise an empty Status means SUCCESS. A job may be
// handed out again after a restart of the agent, so what a handler does must not do harm if it is done twice.
type Handler func(ctx context.Context, j Job) (Result, error)

// WorkOptions say how Work works.
type WorkOptions struct {
	AgentID  string
	Handle   Handler
	Parallel int // how many jobs are done at a time; 0: one
}

const (
	heartbeatPause = 30 * time.Second // a third of the time for which the gateway takes an agent as online
	pullWait       = 50 * time.Second
	remembered     = 1000 // how many reported jobs Work remembers
	lastReport     = 5 * time.Second
)

// Work does the jobs of an agent without an endpoint, until ctx ends. It sends heartbeats, pulls jobs, lets the handler
// do each of them once, and reports the results. While the gateway does not answer, it keeps trying. Errors: that of
// ctx; *Error if the gateway refuses to hand out jobs for good. Work returns when all handlers have returned.
func (c *Client) Work(ctx context.Context, o WorkOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{Client: c, o: o, known: map[string]*Result{}, slots: make(chan struct{}, max(o.Parallel, 1))}
	w.running.Go(func() { w.heartbeats(ctx) })
	err := w.pull(ctx)
	cancel()
	w.running.Wait()
	return err
}

type worker struct {
	*Client
	o       WorkOptions
	running sync.WaitGroup
	slots   chan struct{} // has an element for each handler that runs

	mu       sync.Mutex
	known    map[string]*Result // by job; nil: it is not reported yet
	reported []string           // the jobs in known that are reported, the oldest first
}

// heartbeats sends heartbeats until ctx ends.
func (w *worker) heartbeats(ctx context.Context) {
	for {
		if err := w.Heartbeat(ctx, w.o.AgentID); err != nil && ctx.Err() == nil {
			w.Log.Warn("the heartbeat failed", "agent", w.o.AgentID, "err", err)
		}
		if exchange.Sleep(ctx, heartbeatPause) != nil {
			return
		}
	}
}

// pull pulls jobs and starts them, until ctx ends or the gateway refuses.
func (w *worker) pull(ctx context.Context) error {
	var pause exchange.Backoff
	for {
		began := time.Now()
		jobs, err := w.Pull(ctx, w.o.AgentID, pullWait)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			if _, again := exchange.Repeatable(err, true); !again {
				return err
			}
			w.Log.Warn("pulling jobs failed, will be retried", "err", err)
		}
		fresh := 0
		for _, j := range jobs {
			if w.take(ctx, j) {
				fresh++
			}
		}
		switch {
		case err == nil && (fresh > 0 || time.Since(began) >= pullWait/2):
			pause = exchange.Backoff{}
		default: // it failed, or the gateway neither waits nor has a new job: do not ask it in a hot loop
			if err := pause.Wait(ctx, 0); err != nil {
				return err
			}
		}
	}
}

// take starts a job unless it is known. If the job is reported already, take reports it again: the gateway has lost the
// report, for example because a backup was restored. It returns false if the job is known.
func (w *worker) take(ctx context.Context, j Job) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	result, known := w.known[j.ID]
	switch {
	case !known:
		w.known[j.ID] = nil
		w.running.Go(func() { w.do(ctx, j) })
	case result != nil:
		w.running.Go(func() { w.report(ctx, *result) })
	}
	return !known
}

// do does a job when there is a free slot, and reports its result.
func (w *worker) do(ctx context.Context, j Job) {
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	began := time.Now()
	r, err := w.o.Handle(ctx, j)
	took := time.Since(began).Milliseconds()
	<-w.slots
	if err != nil && ctx.Err() != nil {
		return // the gateway hands out the job again later
	}
	r.JobID, r.AgentID = j.ID, w.o.AgentID
	if r.TimeMS == nil {
		r.TimeMS = &took
	}
	switch {
	case err != nil:
		r = r.failed(err)
	case r.Status == "":
		r.Status = Success
	}
	if r.Status == Success && len(r.Output) == 0 {
		r.Output = json.RawMessage("{}")
	}
	w.remember(w.report(ctx, r))
}

// failed returns the report that an agent could not do a job. The gateway takes it in any case.
func (r Result) failed(err error) Result {
	return Result{JobID: r.JobID, AgentID: r.AgentID, Status: Failure, TimeMS: r.TimeMS,
		ErrorMessage: exchange.Shorten(err.Error()), ErrorCode: ExecutionError}
}

// report sends a result until the gateway has answered. When ctx ends, it tries once more, for lastReport. If the
// gateway refuses what the result says, for example because it is too large, report reports a FAILURE, so that the
// hirer does not wait in vain. It returns what it has reported last.
func (w *worker) report(ctx context.Context, r Result) Result {
	var pause exchange.Backoff
	replaced := false
	for {
		err := w.Report(ctx, w.o.AgentID, r)
		if err == nil {
			return r
		}
		if ctx.Err() != nil {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastReport)
			defer cancel()
			if err := w.Report(last, w.o.AgentID, r); err != nil {
				w.Log.Warn("the result of a job could not be reported before the end", "job", r.JobID, "err", err)
			}
			return r
		}
		after, again := exchange.Repeatable(err, true)
		switch {
		case again:
			w.Log.Warn("reporting a result failed, will be retried", "job", r.JobID, "err", err)
			_ = pause.Wait(ctx, after) // if ctx has ended, the next attempt is the last one
		case !replaced && !settled(err):
			w.Log.Warn("the gateway refuses the result of a job, so a failure is reported", "job", r.JobID, "err", err)
			r, replaced = r.failed(fmt.Errorf("the agent's result was refused: %w", err)), true
		default:
			w.Log.Warn("the gateway does not take the result of a job", "job", r.JobID, "err", err)
			return r
		}
	}
}

// settled reports whether err means that no other report about the job would be taken either.
func settled(err error) bool {
	refused, ok := errors.AsType[*Error](err)
	return ok && refused.Status != http.StatusUnprocessableEntity && refused.Status != http.StatusRequestEntityTooLarge
}

// remember keeps a result that was reported, and forgets the oldest one if there are too many.
func (w *worker) remember(r Result) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known[r.JobID] = &r
	w.reported = append(w.reported, r.JobID)
	if len(w.reported) > remembered {
		delete(w.known, w.reported[0])
		w.reported = w.reported[1:]
	}
}
