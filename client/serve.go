package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// ServeOptions of an agent. Intents is required.
type ServeOptions struct {
	// Intents are what the agent does. One identity runs one Serve: a second one with other intents would refuse the
	// first one's requests.
	Intents []string
	// Cursor remembers the place across restarts; nil: a restart reads again all that the relay still has.
	Cursor CursorStore
	// Manifest is announced at the start and again before it expires; nil: nothing is.
	Manifest *envelope.Manifest
	// Concurrency is how many REQUESTs are answered at once, and how many calls of Work run at once; 0: 8.
	Concurrency int
	// QuoteTimeout is how long a call of Quote may take before its ctx ends; 0: one minute.
	QuoteTimeout time.Duration
	// Dropped is called for each REQUEST that Serve gives up without an answer: too many REQUESTs were waiting, or it
	// waited for longer than its ttl. Dropped must return quickly. The log counts the REQUESTs as well.
	Dropped func(request *envelope.Envelope)
}

const (
	defaultConcurrency  = 8
	defaultQuoteTimeout = time.Minute
	maxWaiting          = 1024 // ACCEPTs being handled; with more, Serve stops reading and sees a CANCEL later
)

// Job is what a Handler is asked for.
type Job struct {
	Request  envelope.Request   // the payload
	Envelope *envelope.Envelope // the client's verified REQUEST: Sender.ID is the client, Thread the thread
}

// Handler is what an agent does. Work is required.
//
// An error becomes an ERROR to the client: an *AgentError as it is; any other as INTERNAL_ERROR in general words, for
// it may tell what is not the client's business, while the log gets it in full. A panic counts as an error.
type Handler struct {
	// Quote makes the offer; request_id is filled in. nil: every job is free. For a broadcast REQUEST an error means
	// only that no offer is made. It may be called again if the offer cannot be posted at once.
	Quote func(ctx context.Context, job Job) (envelope.Offer, error)
	// Work does the job once the offer is accepted; request_id and, where empty, the status "success" are filled in.
	// ctx ends when the client takes the job back, when the relay will long have ended the thread, and when Serve ends.
	Work func(ctx context.Context, job Job) (envelope.Result, error)
}

// Serve runs an agent until ctx ends: it offers on REQUESTs for its intents, works when an offer is accepted, and
// posts the RESULT or an ERROR. A directed REQUEST for anything else is answered INTENT_NOT_SUPPORTED, one whose
// budget is below the quote INSUFFICIENT_BUDGET; a broadcast one is ignored in both cases. A client that seals gets
// sealed answers, and INVALID_REQUEST, always in the same words, if what it has sealed does not open.
//
// If more REQUESTs arrive than the relay lets the agent answer, Serve answers them in this order. First come the
// REQUESTs of clients for whom the agent has worked, then those that name this agent, then broadcasts. Every fourth
// turn takes these groups in reverse order. Within a group the client with the fewest turns in the last minute comes
// first; among its equals, one of the REQUESTs of the last second, at random; then the newest. So a flood from one key
// cannot keep others waiting. New keys cost nothing, however. In a flood of broadcasts from ever new keys, a stranger's
// broadcast is one of many: some get an offer within a second, others late or never. A client that cannot wait should
// name the agent in its REQUEST.
//
// Accepted work never waits for REQUESTs. When a slot for work becomes free, the client with the least work in progress
// gets it.
//
// Work is done at least once, and its RESULT counts once. The agent keeps no state but the cursor: for every event it
// asks the relay for the state of the thread, and makes the next move. A crash between ACCEPT and RESULT leaves the
// cursor before the ACCEPT, so the work is done again after the restart; the relay's thread rules accept one of two
// RESULTs. The cursor is saved up to the oldest event that is not handled.
//
// Without a saved cursor Serve begins with the relay's oldest message. That takes time but loses nothing, and a
// thread's record shows what was already handled. Serve returns when all its handlers have returned. Errors: ctx's; the
// CursorStore's; an *envelope.Error if the relay refuses the agent's polls for good.
func (c *Client) Serve(ctx context.Context, opts ServeOptions, handler Handler) error {
	me, err := c.me()
	if err != nil {
		return err
	}
	if len(opts.Intents) == 0 || handler.Work == nil {
		return errors.New("client: Serve needs at least one intent, and Handler.Work")
	}
	if opts.Concurrency <= 0 {
		opts.Concurrency = defaultConcurrency
	}
	if handler.Quote == nil {
		handler.Quote = free
	}
	if opts.QuoteTimeout <= 0 {
		opts.QuoteTimeout = defaultQuoteTimeout
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	a := &agent{
		client: c, me: me, opts: opts, handler: handler, stop: stop,
		progress: progress{store: opts.Cursor},
		queue:    newQueue(),
		waiting:  make(chan struct{}, maxWaiting),
		reads:    make(chan struct{}, opts.Concurrency),
		answers:  make(chan struct{}, opts.Concurrency),
		works:    turns{free: opts.Concurrency},
		running:  map[thread.Key]*run{},
		requests: newRecent[thread.Key, *envelope.Envelope](maxWaiting),
	}
	a.tasks.Go(func() { a.answerAll(ctx) })
	if opts.Manifest != nil {
		a.tasks.Go(func() { a.announce(ctx) })
	}
	f := follower{client: c, page: a.page, opts: FollowOptions{
		Filter: Filter{Recipient: me, Broadcast: true}, Cursor: opts.Cursor, FromOldest: true,
	}}
	stop(f.run(ctx))
	a.tasks.Wait()
	return context.Cause(ctx)
}

func free(context.Context, Job) (envelope.Offer, error) {
	return envelope.Offer{Price: &envelope.Price{Currency: "USD"}}, nil
}

// agent is one call of Serve. The goroutine of Serve reads events. It puts REQUESTs into the queue, from which
// answerAll takes them, and gives each ACCEPT a goroutine of its own.
type agent struct {
	client   *Client
	me       didkey.DID
	opts     ServeOptions
	handler  Handler
	stop     context.CancelCauseFunc
	tasks    sync.WaitGroup
	progress progress
	queue    *queue        // the REQUESTs that wait
	pace     pace          // delays offers
	waiting  chan struct{} // holds a token for each ACCEPT that is being handled
	reads    chan struct{} // holds a token for each read of an accepted thread's state
	answers  chan struct{} // holds a token for each REQUEST that is being answered
	works    turns         // has a slot for each call of Handler.Work
	dropped  dropped

	mu       sync.Mutex
	running  map[thread.Key]*run // the threads that are being handled
	requests *recent[thread.Key, *envelope.Envelope]
}

// page starts to handle a page of events.
func (a *agent) page(ctx context.Context, events []*envelope.Envelope, cursor string) error {
	p := a.progress.begin(cursor)
	for _, e := range events {
		if e.Sender.ID == a.me {
			continue
		}
		key := thread.Key{Client: e.Sender.ID, ID: e.Thread}
		switch e.Type {
		case envelope.TypeCancel, envelope.TypeError:
			a.cancel(ctx, key)
		case envelope.TypeRequest:
			if e.Recipient != "" || a.serves(e) {
				a.progress.hold(p)
				a.enqueue(ctx, &waiting{key: key, event: e, page: p})
			}
		case envelope.TypeAccept:
			if request := a.withdraw(ctx, key); request != nil {
				a.remember(key, request)
			}
			if err := take(ctx, a.waiting); err != nil {
				return err
			}
			a.progress.hold(p)
			a.tasks.Go(func() {
				defer func() { <-a.waiting }()
				if a.handleAccept(ctx, key, e) {
					a.release(ctx, p)
				}
			})
		}
	}
	a.release(ctx, p)
	return nil
}

// release takes back a hold on a page, and ends Serve if the cursor cannot be saved.
func (a *agent) release(ctx context.Context, p *heldPage) {
	if err := a.progress.release(ctx, p); err != nil {
		a.stop(err)
	}
}

// cancel ends the work on a thread whose client has ended it.
func (a *agent) cancel(ctx context.Context, key thread.Key) {
	a.withdraw(ctx, key)
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.running[key]; r != nil {
		r.cancel(ErrCancelled)
	}
}

// handleAccept does what the ACCEPT e asks for in its thread, and retries until it is done; false if ctx ended first.
// It first waits for another run in the same thread, which may have done everything already.
func (a *agent) handleAccept(ctx context.Context, key thread.Key, e *envelope.Envelope) bool {
	r := &run{agent: a, key: key, event: e, ended: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	defer r.cancel(nil)
	if !a.register(ctx, r) {
		return false
	}
	defer a.unregister(r)
	var pause backoff
	for {
		err := r.step()
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil:
			return true
		case r.ctx.Err() != nil, definite(err):
			a.client.log.Info("a thread is left as it is", "thread", key.ID, "client", key.Client, "reason", err)
			return true
		}
		a.client.log.Warn("a thread could not be handled, will be retried",
			"thread", key.ID, "client", key.Client, "error", err)
		// After a longer pause the thread may have ended.
		if pause.wait(r.ctx, min(retryAfter(err), postPatience), maxPause) != nil {
			return ctx.Err() == nil
		}
	}
}

// register waits until no other run works on the thread of r; false if ctx ended first.
func (a *agent) register(ctx context.Context, r *run) bool {
	for {
		other := a.tryRegister(r)
		if other == nil {
			return true
		}
		select {
		case <-other.ended:
		case <-ctx.Done():
			return false
		}
	}
}

// tryRegister registers r as the run that works on its thread, and returns nil; or it returns the run that does
// already.
func (a *agent) tryRegister(r *run) (other *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if other = a.running[r.key]; other == nil {
		a.running[r.key] = r
	}
	return other
}

func (a *agent) unregister(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.running, r.key)
	close(r.ended)
}

// announce posts the manifest, and again when half its life in the relay is over.
func (a *agent) announce(ctx context.Context) {
	var pause backoff
	for {
		a.pace.spend(time.Now())
		_, receipt, err := a.client.Post(ctx, envelope.Draft{Payload: *a.opts.Manifest})
		next := min(retryAfter(err), readPatience)
		switch {
		case ctx.Err() != nil:
			return
		case definite(err):
			a.client.log.Error("the relay refused the manifest", "error", err)
			return
		case err != nil:
			a.client.log.Warn("announcing the manifest failed, will be retried", "error", err)
		default:
			pause.reset()
			next = max(receipt.ExpiresAt.Sub(a.client.now())/2, time.Minute)
		}
		if pause.wait(ctx, next, maxPause) != nil {
			return
		}
	}
}
