package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/client/internal/follow"
	"github.com/agora-relay/agora/client/internal/journal"
	"github.com/agora-relay/agora/client/internal/pacing"
	"github.com/agora-relay/agora/client/internal/pages"
	"github.com/agora-relay/agora/client/internal/recent"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// ServeOptions of an agent. Intents is required.
type ServeOptions struct {
	// Intents are the intents that the agent serves. Run only one Serve for each identity: a second one with other
	// intents would refuse the REQUESTs for the first one.
	Intents []string
	// Cursor stores the position in the relay's events across restarts; nil: State does, or if that is nil too, the agent
	// reads after a restart all events again that the relay still has.
	Cursor CursorStore
	// Manifest is posted at the start, and again before it expires. It is an envelope.Manifest, or an envelope.Raw of type
	// MANIFEST. nil: none is posted.
	Manifest envelope.Payload
	// Concurrency is the largest number of REQUESTs that are answered at the same time. It is also the largest number
	// of calls of Work that run at the same time. 0: 8.
	Concurrency int
	// MaxAccepted limits how many accepted jobs the agent has at a time, those that wait for their turn included. While it
	// has that many, REQUESTs wait without an answer, until their ttl ends. If several open offers are accepted at the
	// same time, the agent gets more jobs than that. 0: no limit.
	MaxAccepted int
	// QuoteTimeout is how long a call of Quote may take before its ctx ends; 0: one minute.
	QuoteTimeout time.Duration
	// Dropped is called for each REQUEST that Serve drops without an answer, because too many REQUESTs were waiting or
	// because the REQUEST waited for longer than its ttl. Dropped must return quickly. The number of dropped REQUESTs
	// is also logged. nil: not called.
	Dropped func(request *envelope.Envelope)
	// Finished is called for each job that Handler.Work has worked on, when nothing is left to do for it. outcome is the
	// Result or the Failure that the relay has stored for the client, and err is nil. Or err says why nothing was
	// stored, for example ErrCancelled, and outcome may be nil. Finished is not called for a job that ends with Serve.
	// It must return quickly. nil: not called.
	Finished func(job Job, outcome envelope.Payload, err error)
	// State remembers the jobs across restarts. So the agent does the work once, even if it restarts and the client
	// continues the job elsewhere (RELAYS R-18). nil: the jobs are in memory, and a restart repeats unfinished work.
	State *State
	// Attempts is how often the agent begins the work of a job at most, if its process ends each time. It needs a State
	// with a file. After the last attempt the client gets the ERROR INTERNAL_ERROR. 0: 3.
	Attempts int
}

const (
	defaultConcurrency  = 8
	defaultQuoteTimeout = time.Minute

	// maxAccepts is how many ACCEPTs are handled at once. With more, Serve stops reading events. Then it also sees a
	// CANCEL later.
	maxAccepts = 1024
)

// Job is the input of a Handler.
type Job struct {
	Request  envelope.Request   // the payload of the REQUEST
	Envelope *envelope.Envelope // the verified REQUEST; Sender.ID is the client, Thread is the id of the thread
	Deadline time.Time          // for Work: when the relay ends the thread, by its clock; zero if it did not say
	Attempt  int                // for Work: how often the work has begun, this time included
}

// Handler has the functions that an agent consists of. Work is required.
//
// If a function returns an *AgentError with a code, the client gets it as an ERROR. After any other error, or a panic,
// the client gets an ERROR with the code INTERNAL_ERROR and a general message, because the error may contain private
// details. The log gets the whole error.
type Handler struct {
	// Quote returns the offer for a job. Serve sets its request_id. nil: every job is free. If Quote returns an error
	// for a broadcast REQUEST, the agent makes no offer and sends no ERROR. Quote may be called again for the same
	// REQUEST if the offer cannot be posted at once.
	Quote func(ctx context.Context, job Job) (envelope.Offer, error)
	// Work does the job after the offer is accepted, and returns the result. Serve sets the request_id of the result,
	// and sets an empty status to "success". ctx ends when the client cancels the job, when the relay reports that the
	// thread has ended, at the latest five minutes after the deadline of the thread, or when Serve ends.
	Work func(ctx context.Context, job Job) (envelope.Result, error)
}

// Serve runs an agent until ctx ends. It answers REQUESTs for its intents with OFFERs. When a client accepts an offer,
// Serve does the work and posts the RESULT or an ERROR.
//
// Serve answers a directed REQUEST for another intent with the ERROR INTENT_NOT_SUPPORTED. If the budget of a directed
// REQUEST is below the price of the quote, it answers with INSUFFICIENT_BUDGET. In both cases it ignores a broadcast
// REQUEST. A client that seals its messages gets sealed answers. If a sealed message cannot be decrypted, the answer is
// INVALID_REQUEST, always with the same message.
//
// Order of the answers. If more REQUESTs arrive than the relay's rate allows the agent to answer, Serve answers them in
// three groups: first the REQUESTs of clients for which the agent has worked, then the other REQUESTs that name this
// agent, then the other broadcasts. Every fourth turn takes the groups in reverse order. Within a group the client with
// the fewest turns comes first. Turns are counted for a minute. If several clients have equally few turns, Serve picks
// one of their REQUESTs of the last second at random. If there are none, it picks their newest REQUEST.
//
// So a flood of REQUESTs from one key cannot keep other clients waiting. But new keys cost nothing. In a flood of
// broadcasts, each from a new key, the broadcast of an unknown client is one of many: some get an offer within a
// second, others get one late or never. A client that cannot wait should name the agent in its REQUEST.
//
// Accepted work never waits for REQUESTs. When a slot for work becomes free, the client with the least work in progress
// gets the slot.
//
// Restarts. Work is done at least once, and only one RESULT counts. The agent keeps no state except the cursor: for
// each event it reads the state of the thread from the relay, and then posts the next message. After a crash between
// ACCEPT and RESULT the saved cursor is before the ACCEPT. So the work is done again after the restart. If there are
// two RESULTs, the relay accepts only one. The saved cursor is never after an event that is not handled yet.
//
// Without a saved cursor Serve begins with the relay's oldest message. That takes time, but loses nothing: the record
// of each thread shows what was already handled.
//
// Serve returns after all its handlers have returned. Errors: ctx's error; errors of the CursorStore; an
// *envelope.Error if the relay refuses the agent's polls and a retry would not help.
func (c *Client) Serve(ctx context.Context, opts ServeOptions, handler Handler) error {
	me, err := c.conn.Me()
	if err != nil {
		return err
	}
	d, err := newDesk(ctx, me, c.conn.Log, opts, handler)
	if err != nil {
		return err
	}
	defer d.stop(nil)
	if c.poster.RequireProofs {
		if known, err := c.conn.Proves(ctx); err == nil && !known {
			return errors.New("client: this relay keeps no log, so it proves no ACCEPT; use another relay, or ProofsPrefer")
		}
	}
	store := opts.Cursor
	if store == nil && opts.State != nil {
		relay, err := c.identify(d.ctx)
		if err != nil {
			return context.Cause(d.ctx)
		}
		store = journal.Cursor{Journal: opts.State.journal, Relay: relay, URL: c.conn.Base}
	}
	d.stop(d.agent(c, store).run(d.ctx))
	d.tasks.Wait()
	return context.Cause(d.ctx)
}

// agent is the part of a desk at one relay. Its goroutine reads events. It puts REQUESTs into the queue, from which
// answerAll takes them. It starts a goroutine for each ACCEPT.
type agent struct {
	*desk
	client      *Client
	relay       didkey.DID // who the relay is; empty: not known, and there is only one
	cursor      CursorStore
	progress    pages.Tracker
	queue       *pacing.Queue[*pages.Page] // the REQUESTs that wait for an answer
	pace        pacing.Pace                // delays offers
	acceptSlots chan struct{}              // a semaphore: one element for each ACCEPT that is being handled
	readSlots   chan struct{}              // a semaphore: one element for each read of the state of a thread with an ACCEPT
	answerSlots chan struct{}              // a semaphore: one element for each REQUEST that is being answered
	movedSlots  chan struct{}              // a semaphore: one for each REQUEST that continues a job while the agent is full
	room        chan struct{}              // has one element after an accepted job has ended
	dropped     dropped

	mu       sync.Mutex
	running  map[thread.Key]*run                         // the threads that are being handled
	requests *recent.Map[thread.Key, *envelope.Envelope] // see run.request
}

// agent adds the part of the desk at the relay of c.
func (d *desk) agent(c *Client, cursor CursorStore) *agent {
	a := &agent{
		desk: d, client: c, cursor: cursor,
		queue:       pacing.NewQueue[*pages.Page](),
		acceptSlots: make(chan struct{}, maxAccepts),
		readSlots:   make(chan struct{}, d.opts.Concurrency),
		answerSlots: make(chan struct{}, d.opts.Concurrency),
		movedSlots:  make(chan struct{}, d.opts.Concurrency),
		room:        make(chan struct{}, 1),
		running:     map[thread.Key]*run{},
		requests:    recent.New[thread.Key, *envelope.Envelope](maxAccepts),
	}
	a.progress.Save = func(ctx context.Context, at string) error { return follow.SaveCursor(ctx, cursor, at) }
	d.mu.Lock()
	defer d.mu.Unlock()
	d.agents = append(d.agents, a)
	return a
}

// run reads events until ctx ends, or until an error that a retry cannot fix.
func (a *agent) run(ctx context.Context) error {
	a.tasks.Go(func() { a.answerAll(ctx) })
	if a.opts.Manifest != nil {
		a.tasks.Go(func() { a.announce(ctx) })
	}
	f := follow.Follower{Conn: a.client.conn, Handle: a.page,
		Filter: follow.Filter{Recipient: a.me, Broadcast: true}, Cursor: a.cursor, FromOldest: true}
	return f.Run(ctx)
}

// page starts to handle a page of events. It implements follow.Follower.Handle.
func (a *agent) page(ctx context.Context, events []*envelope.Envelope, cursor string) error {
	if a.network != nil {
		events = a.network.fresh(events, a.relay)
	}
	p := a.progress.Begin(events, cursor)
	for _, e := range events {
		if e.Sender.ID == a.me {
			continue
		}
		key := thread.Key{Client: e.Sender.ID, ID: e.Thread}
		switch e.Type {
		case envelope.TypeCancel, envelope.TypeError:
			a.cancel(ctx, key)
			a.checkEnd(ctx, e)
		case envelope.TypeRequest:
			if e.Recipient == "" && !a.serves(e) {
				continue
			}
			p.Hold()
			a.route(ctx, &queuedRequest{Key: key, Event: e, Page: p})
		case envelope.TypeAccept:
			if request := a.withdraw(ctx, key); request != nil {
				a.remember(key, request)
			}
			if err := acquireSlot(ctx, a.acceptSlots); err != nil {
				return err
			}
			p.Hold()
			a.tasks.Go(func() {
				defer func() { <-a.acceptSlots }()
				if r := a.handleAccept(ctx, key, e); r != nil {
					a.release(ctx, p)
					r.reportFinished()
				}
			})
		}
	}
	a.release(ctx, p)
	return nil
}

// release removes a hold from a page. It ends Serve if the cursor cannot be saved.
func (a *agent) release(ctx context.Context, p *pages.Page) {
	if err := p.Release(ctx); err != nil {
		a.stop(err)
	}
}

// cancel ends the agent's work on a thread after the client has ended the thread.
func (a *agent) cancel(ctx context.Context, key thread.Key) {
	a.withdraw(ctx, key)
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.running[key]; r != nil {
		r.cancel(ErrCancelled)
	}
}

// checkEnd is called for each ERROR of somebody else than the client. It may be the relay's notice that the thread has
// ended, which does not name the client. So for each thread with this id in which the agent works, checkEnd asks the
// relay whether the thread has ended, and then ends the work.
func (a *agent) checkEnd(ctx context.Context, e *envelope.Envelope) {
	if e.Type != envelope.TypeError {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, r := range a.running {
		if key.ID != e.Thread || key.Client == e.Sender.ID || r.event.Type != envelope.TypeAccept || r.checking {
			continue
		}
		r.checking = true
		a.tasks.Go(func() {
			if a.hasEnded(ctx, key) {
				r.cancel(errThreadEnded)
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			r.checking = false
		})
	}
}

// hasEnded reports whether the relay says that the agent has no work to do in a thread any more.
func (a *agent) hasEnded(ctx context.Context, key thread.Key) bool {
	if acquireSlot(ctx, a.readSlots) != nil {
		return false
	}
	defer func() { <-a.readSlots }()
	record, err := a.client.Thread(ctx, key.ID, key.Client)
	return err == nil && (record.State != thread.Active || record.Agent != a.me)
}

// handleAccept handles the ACCEPT e. It first waits for the end of any other run in the same thread. It retries after
// temporary failures. It returns the run, or nil if ctx ended before the ACCEPT was handled.
func (a *agent) handleAccept(ctx context.Context, key thread.Key, e *envelope.Envelope) *run {
	r := &run{agent: a, key: key, event: e, ended: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	defer r.cancel(nil)
	if !a.register(ctx, r) {
		return nil
	}
	defer a.unregister(r)
	defer func() { a.leave(r, r.failed) }()
	var pause pacing.Backoff
	for {
		err := r.step()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			return r
		case r.ctx.Err() != nil, errors.Is(err, errMoved), permanent(err):
			a.client.conn.Log.Info("the agent does nothing more in a thread",
				"thread", key.ID, "client", key.Client, "reason", err)
			r.failed = err
			return r
		}
		a.client.conn.Log.Warn("handling an ACCEPT failed, will be retried",
			"thread", key.ID, "client", key.Client, "error", err)
		// The thread may end during a longer pause.
		if pause.Wait(r.ctx, min(retryAfter(err), conn.PostPatience), pacing.MaxPause) != nil {
			if ctx.Err() != nil {
				return nil
			}
			r.failed = context.Cause(r.ctx)
			return r
		}
	}
}

// register waits until no other run works on the thread of r, and then registers r. It returns false if ctx ended
// first.
func (a *agent) register(ctx context.Context, r *run) bool {
	for {
		current := a.tryRegister(r)
		if current == nil {
			return true
		}
		select {
		case <-current.ended:
		case <-ctx.Done():
			return false
		}
	}
}

// tryRegister registers r as the run that works on its thread, and returns nil. If there is such a run already, it
// returns that run instead.
func (a *agent) tryRegister(r *run) (current *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if current = a.running[r.key]; current == nil {
		a.running[r.key] = r
	}
	return current
}

// unregister ends the registration of r. Runs that wait in register can continue.
func (a *agent) unregister(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.running, r.key)
	close(r.ended)
	a.dismiss(r)
}

// postManifest posts the manifest once. All agents of a network post the same bytes.
func (a *agent) postManifest(ctx context.Context) (Receipt, error) {
	if a.network == nil {
		_, receipt, err := a.client.Post(ctx, envelope.Draft{Payload: a.opts.Manifest})
		return receipt, err
	}
	e, err := a.network.manifest(ctx, a.opts.Manifest, a.client)
	if err != nil {
		return Receipt{}, err
	}
	return a.client.PostEnvelope(ctx, e)
}

// announce posts the manifest, and posts it again after half of its lifetime in the relay. It returns when ctx ends or
// the manifest is refused.
func (a *agent) announce(ctx context.Context) {
	var pause pacing.Backoff
	for {
		a.pace.Spend(time.Now())
		receipt, err := a.postManifest(ctx)
		next := min(retryAfter(err), conn.ReadPatience)
		switch {
		case ctx.Err() != nil:
			return
		case permanent(err):
			a.client.conn.Log.Error("the manifest was refused, and will not be posted again", "error", err)
			return
		case err != nil:
			a.client.conn.Log.Warn("posting the manifest failed, will be retried", "error", err)
		default:
			pause.Reset()
			next = max(receipt.ExpiresAt.Sub(a.client.conn.Now())/2, time.Minute)
		}
		if pause.Wait(ctx, next, pacing.MaxPause) != nil {
			return
		}
	}
}
