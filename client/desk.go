package client

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/agora-relay/agora/client/internal/journal"
	"github.com/agora-relay/agora/client/internal/pacing"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/deal"
)

// desk has the jobs of one identity, and the slots for its work. It has one agent for each relay. A job is worked on
// once, also if its client has moved it from relay to relay (RELAYS R-18).
type desk struct {
	me        didkey.DID
	opts      ServeOptions
	handler   Handler
	log       *slog.Logger
	state     *journal.Journal
	ctx       context.Context // of the work
	stop      context.CancelCauseFunc
	tasks     sync.WaitGroup
	workSlots pacing.Slots // one slot for each call of Handler.Work

	network   *Network // nil: one relay
	following sync.Mutex
	followed  []*agent // at relays that were discovered

	mu       sync.Mutex
	agents   []*agent
	accepted int // the number of accepted jobs, see ServeOptions.MaxAccepted
	working  map[deal.Key]*task
}

// newDesk returns the desk of one call of Serve. It sets the defaults of opts and handler.
func newDesk(ctx context.Context, me didkey.DID, log *slog.Logger, opts ServeOptions, handler Handler) (*desk, error) {
	if len(opts.Intents) == 0 || handler.Work == nil {
		return nil, errors.New("client: Serve needs at least one intent, and Handler.Work")
	}
	if opts.Concurrency <= 0 {
		opts.Concurrency = defaultConcurrency
	}
	if opts.QuoteTimeout <= 0 {
		opts.QuoteTimeout = defaultQuoteTimeout
	}
	if opts.Attempts <= 0 {
		opts.Attempts = defaultBegins
	}
	if opts.State == nil {
		opts.State = NewState()
		opts.Attempts = 1 << 30 // without a file, work is done at least once
	}
	if handler.Quote == nil {
		handler.Quote = free
	}
	d := &desk{me: me, opts: opts, handler: handler, log: log, state: opts.State.journal,
		workSlots: pacing.Slots{Free: opts.Concurrency}, working: map[deal.Key]*task{}}
	d.ctx, d.stop = context.WithCancelCause(ctx)
	return d, nil
}

// free is the default of Handler.Quote.
func free(context.Context, Job) (envelope.Offer, error) {
	return envelope.Offer{Price: &envelope.Price{Currency: "USD"}}, nil
}

// task is a job that the agent works on, or has worked on and not answered yet. desk.mu guards owner and deadline.
type task struct {
	key      deal.Key
	job      Job
	ctx      context.Context
	cancel   context.CancelCauseFunc
	late     context.Context // of the work; ends after the thread's deadline, too
	expire   context.CancelCauseFunc
	done     chan struct{}    // closed when the work has ended, with the two fields below
	outcome  envelope.Payload // the answer; nil: there is none, because ctx has ended
	worked   bool             // Handler.Work was called
	owner    *run             // the run in the newest thread with an ACCEPT, which posts the answer
	deadline *time.Timer      // ends late; nil: the thread has no deadline
}

// errMoved ends a run whose job has an ACCEPT in a newer thread.
var errMoved = errors.New("client: the client has continued the job in another thread")

// take makes r the owner of its job, and returns the job's task. The task is nil if there is nothing to do for r,
// because a newer thread of the job has an ACCEPT. expires is when the thread ends; zero: it does not end.
func (d *desk) take(r *run, request, accept *envelope.Envelope, expires time.Time) *task {
	job, failed := jobOf(request)
	if failed != nil {
		return finished(failed.payload(""))
	}
	key, err := deal.KeyOf(request)
	if err != nil {
		return finished(internalError.payload(""))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r.jobKey, r.place = key, deal.Place{Thread: r.key.ID, Accept: accept.Hash(),
		First: request.Continues == (envelope.Hash{})}
	if request.Home != nil {
		r.place.Relay = request.Home.DID
	}
	action, newest, outcome := d.state.Accept(key, r.place, r.key, r.agent.client.conn.Now())
	t := d.working[key]
	if t != nil && newest {
		d.own(t, r, expires)
	}
	switch action {
	case deal.Ignore:
		return nil
	case deal.Refuse:
		return finished(cancelledError.payload(""))
	case deal.Answer:
		return finished(outcome)
	}
	if t == nil {
		t = &task{key: key, job: job, done: make(chan struct{})}
		t.job.Deadline = expires
		t.ctx, t.cancel = context.WithCancelCause(d.ctx)
		t.late, t.expire = context.WithCancelCause(t.ctx)
		d.working[key] = t
		d.own(t, r, expires)
		d.tasks.Go(func() { d.perform(t) })
	}
	return t
}

// own makes r the owner of a task, in place of another run. The run in the thread of the first REQUEST ends then.
// Another one still posts the outcome, see deal.Book.Accept. The caller holds d.mu.
func (d *desk) own(t *task, r *run, expires time.Time) {
	if t.owner == r {
		return
	}
	if t.owner != nil && t.owner.place.First {
		t.owner.cancel(errMoved)
	}
	t.owner = r
	d.until(t, expires)
}

// admit counts the job of r as accepted, until dismiss.
func (d *desk) admit(r *run) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !r.accepted {
		r.accepted = true
		d.accepted++
	}
}

// dismiss ends what admit began.
func (d *desk) dismiss(r *run) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !r.accepted {
		return
	}
	r.accepted = false
	d.accepted--
	for _, a := range d.agents {
		select {
		case a.room <- struct{}{}:
		default:
		}
	}
}

// full reports whether the agents have as many accepted jobs as ServeOptions.MaxAccepted allows.
func (d *desk) full() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opts.MaxAccepted > 0 && d.accepted >= d.opts.MaxAccepted
}

// finished returns the task of a job that needs no work.
func finished(outcome envelope.Payload) *task {
	t := &task{done: make(chan struct{}), outcome: outcome}
	close(t.done)
	return t
}

// until ends the work some time after the thread's deadline. The caller holds d.mu.
func (d *desk) until(t *task, expires time.Time) {
	if t.deadline != nil {
		t.deadline.Stop()
		t.deadline = nil
	}
	if !expires.IsZero() {
		left := expires.Sub(t.owner.agent.client.conn.Now()) + clockSkew
		t.deadline = time.AfterFunc(left, func() { t.expire(context.DeadlineExceeded) })
	}
}

// leave is called when r does nothing more for its job. cause says why; nil: the job is answered. If r owns the job,
// the work ends too, and leave returns true.
func (d *desk) leave(r *run, cause error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.working[r.jobKey]
	if t == nil || t.owner != r {
		return false
	}
	delete(d.working, r.jobKey)
	if t.deadline != nil {
		t.deadline.Stop()
	}
	t.cancel(cause)
	if d.ctx.Err() == nil && cause != nil {
		d.state.Ended(r.jobKey, r.place, r.agent.client.conn.Now())
	}
	return true
}

// perform does the work of a task, unless it was begun too often.
func (d *desk) perform(t *task) {
	defer close(t.done)
	client := t.key.Client
	if d.workSlots.Acquire(t.ctx, client) != nil {
		return
	}
	defer d.workSlots.Release(client)
	attempt, may, err := d.state.Begin(t.key, d.opts.Attempts)
	switch {
	case err != nil: // without its state, the agent could work twice
		d.stop(err)
		return
	case !may:
		t.outcome = interrupted.payload("")
	default:
		t.job.Attempt, t.worked = attempt, true
		result, failed, err := call(t.ctx, t.late, d.log, d.handler.Work, t.job)
		switch {
		case err != nil:
			if d.ctx.Err() != nil {
				d.state.Undo(t.key)
			}
			return
		case failed != nil:
			t.outcome = failed.payload("")
		default:
			if result.Status == "" {
				result.Status = "success"
			}
			t.outcome = result
		}
	}
	text, err := json.Marshal(t.outcome)
	if err != nil { // a raw member is not valid JSON
		d.log.Error("the outcome of the work cannot be posted, so the client gets an ERROR",
			"thread", t.job.Envelope.Thread, "client", client, "error", err)
		t.outcome = internalError.payload("")
		text, err = json.Marshal(t.outcome)
	}
	o := deal.Outcome{Type: envelope.TypeOf(t.outcome), Payload: text}
	if err = errors.Join(err, d.state.Finish(t.key, o, time.Now())); err != nil {
		d.stop(err)
	}
}

// interrupted is the ERROR for the client if the agent has ended too often while it worked (RELAYS R-18).
var interrupted = AgentError{Code: envelope.AgentInternal,
	Message: "interrupted: the agent has ended each time while it worked on this job; send a new REQUEST"}

// cancelledError is the ERROR for a client that continues a job that it has cancelled.
var cancelledError = AgentError{Code: envelope.AgentUnavailable,
	Message: "the job was cancelled after the work had begun; send a new REQUEST"}

// defaultBegins is ServeOptions.Attempts if it is not set.
const defaultBegins = 3
