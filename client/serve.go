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
	// Concurrency bounds how many REQUESTs are answered at once, and how many calls of Work run at once; 0: 8.
	Concurrency int
	// QuoteTimeout is when the ctx of a call of Quote ends; 0: one minute.
	QuoteTimeout time.Duration
	// Dropped is told of each REQUEST that Serve gives up without having looked at its thread: too many waited, or it
	// waited for longer than its ttl. The log counts them too. Dropped must return quickly; nil: only the log.
	Dropped func(request *envelope.Envelope)
}

const (
	defaultConcurrency  = 8
	defaultQuoteTimeout = time.Minute
	maxWaiting          = 1024 // ACCEPTs in hand; beyond it Serve stops reading, and so learns of a CANCEL later
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
// When more REQUESTs come than the relay lets the agent answer, Serve chooses. A client for whom the agent has worked
// comes first, then a REQUEST to this agent alone, then a broadcast; every fourth turn goes the other way round. Within
// each group the client with the fewest turns in the last minute comes first, then one of the REQUESTs of the last
// second, then the newest. So one key cannot keep others waiting. Keys cost nothing: of a flood of broadcasts from ever
// new keys, and of strangers' broadcasts among them, as many are answered as the relay admits, within a second, and the
// others late or never. A client that must not wait names the agent in its REQUEST. Work, once accepted, never waits for REQUESTs, and of the clients that
// wait for work to begin the one with the least work under way is next.
//
// Work is done at least once, and its RESULT counts once. The agent keeps no state but the cursor: for every event it
// asks the relay how the thread stands, and does what is due. A crash between ACCEPT and RESULT leaves the cursor
// before the ACCEPT, so the work is done again after the restart; and of two RESULTs the relay's thread rules take
// one. The cursor is saved up to the oldest event that is not dealt with.
//
// Without a saved cursor it begins with the oldest message the relay has, which costs time and loses nothing: what was
// dealt with is seen in its thread's record. Serve returns when all its handlers have. Errors: ctx's; the
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
	pace     pace          // of what is posted
	waiting  chan struct{} // holds a token for each ACCEPT in hand
	reads    chan struct{} // for each question how an accepted thread stands: a backlog does not ask all at once
	answers  chan struct{} // for each REQUEST that is being answered
	works    turns         // for each call of Handler.Work
	dropped  dropped

	mu       sync.Mutex
	running  map[thread.Key]*run // the threads being dealt with
	requests *recent[thread.Key, *envelope.Envelope]
}

// page takes a page of events and gets the ones that matter going.
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
				if a.deal(ctx, key, e) {
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

// deal does what the ACCEPT e makes due in its thread, insisting until it is done; false if ctx ended first. It waits
// for what is under way in the thread already, and may then find nothing left to do.
func (a *agent) deal(ctx context.Context, key thread.Key, e *envelope.Envelope) bool {
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
		a.client.log.Warn("a thread could not be dealt with, will be repeated", "thread", key.ID, "client", key.Client, "error", err)
		if pause.wait(r.ctx, min(retryAfter(err), postPatience), maxPause) != nil { // longer, and the thread may be over
			return ctx.Err() == nil
		}
	}
}

// register waits until nothing else is under way in the thread of r; false if ctx ended first.
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

// tryRegister returns the run that is under way in the thread of r; nil: none was, and now r is.
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
			a.client.log.Warn("announcing the manifest failed, will be repeated", "error", err)
		default:
			pause.reset()
			next = max(receipt.ExpiresAt.Sub(a.client.now())/2, time.Minute)
		}
		if pause.wait(ctx, next, maxPause) != nil {
			return
		}
	}
}
