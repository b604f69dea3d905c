package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/client/internal/chain"
	"github.com/agora-relay/agora/client/internal/journal"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/deal"
	"github.com/agora-relay/agora/thread"
)

// run is what an agent does in one thread to handle one event: a REQUEST or an ACCEPT. Only the goroutine that handles
// the event uses a run. Other goroutines only call cancel and wait for ended.
type run struct {
	agent         *agent
	key           thread.Key
	event         *envelope.Envelope
	ctx           context.Context
	cancel        context.CancelCauseFunc
	ended         chan struct{}    // closed when the run has ended
	unpostedOffer *envelope.Offer  // the offer of Handler.Quote, until it is posted
	triedPost     bool             // whether the run has tried to post a message
	outcome       envelope.Payload // the RESULT or ERROR after the work; a retry posts it again
	seal          bool             // whether answers are sealed; true if the client has sealed a message to this agent
	links         chain.Links      // the messages of the thread that the next ones answer
	jobKey        deal.Key         // the job, once the run has taken it, see desk.take
	place         deal.Place       // the thread in the records of the job
	accepted      bool             // whether desk.accepted counts the job; guarded by the desk's mutex
	checking      bool             // agent.checkEnd is reading the thread; guarded by the agent's mutex
	job           *Job             // the job of Handler.Work; nil: it was not called
	failed        error            // why the outcome was not delivered; nil: it was
}

// step reads the state of the thread. If the thread waits for this agent, step posts the agent's next message. It
// returns nil if the event needs nothing more. After an error step can be called again.
func (r *run) step() error {
	isRequest := r.event.Type == envelope.TypeRequest
	if isRequest && r.event.Home != nil { // else it is a copy, which only its home takes answers to
		if failed := r.agent.client.conn.CheckHome(r.ctx, r.event.Home); failed != nil {
			return failed
		}
	}
	if !isRequest {
		if err := acquireSlot(r.ctx, r.agent.readSlots); err != nil {
			return err
		}
	}
	record, err := r.agent.client.Thread(r.ctx, r.key.ID, r.key.Client)
	if !isRequest {
		<-r.agent.readSlots
	}
	if refusal, ok := errors.AsType[*envelope.Error](err); ok &&
		refusal.Code == envelope.CodeThreadNotFound && r.mayBeHidden() {
		// A private relay shows the record of a thread only to its parties. If the REQUEST has no recipient, this agent
		// is not a party before it has made an offer.
		record, err = &Thread{Thread: thread.Thread{
			ID: r.key.ID, Client: r.key.Client, State: thread.Pending, RequestID: r.event.RequestID,
		}}, nil
	}
	if err != nil {
		return err
	}
	request := r.request(record)
	r.links = chain.Links{Request: request, Offer: r.ownOffer(record)}
	r.seal = r.sealed(record, request)
	r.failed = nil
	switch {
	case isRequest && record.State == thread.Pending && request != nil && !record.Offered(r.agent.me):
		return r.offer(request)
	case !isRequest && record.State == thread.Active && record.Agent == r.agent.me:
		switch accept := r.acceptance(record); {
		case accept == nil:
		case closed(accept):
			return r.post(notOpened.payload(record.RequestID))
		default:
			r.links.Accept = accept
			unproved, err := r.agent.client.poster.Unproved(r.ctx, accept, request)
			switch {
			case err != nil:
				return err
			case unproved:
				return r.post(unprovedError.payload(record.RequestID))
			}
			return r.work(request, accept, record)
		}
	case r.job != nil && !r.endedByAgent(record):
		r.failed = errThreadEnded
		r.agent.leave(r, errThreadEnded)
	}
	return nil
}

// errThreadEnded is the cause of the end of work in a thread that has ended.
var errThreadEnded = errors.New("client: the thread has ended")

// endedByAgent reports whether the thread has ended with the RESULT or the ERROR of this agent.
func (r *run) endedByAgent(record *Thread) bool {
	n := len(record.Transitions)
	return record.State != thread.Active && n > 0 && record.Transitions[n-1].By == r.agent.me
}

// reportFinished calls ServeOptions.Finished if Handler.Work was called.
func (r *run) reportFinished() {
	if r.job != nil && r.agent.opts.Finished != nil && !errors.Is(r.failed, errMoved) {
		r.agent.opts.Finished(*r.job, r.outcome, r.failed)
	}
}

// mayBeHidden reports whether the relay may hide the thread's record from this agent: the event is a REQUEST without a
// recipient, and the relay is private.
func (r *run) mayBeHidden() bool {
	return r.event.Type == envelope.TypeRequest && r.event.Recipient == "" && r.agent.client.conn.Private()
}

// request returns the client's REQUEST. The relay deletes the REQUEST when its ttl ends, which may be before the client
// accepts the offer. So the agent keeps the REQUESTs that it has seen. request returns nil if neither the relay nor
// the agent has the REQUEST, for example after a restart of the agent.
func (r *run) request(record *Thread) *envelope.Envelope {
	a := r.agent
	for _, e := range append(record.Events, r.event) {
		if e.Type == envelope.TypeRequest && r.byClient(e, record) {
			a.remember(r.key, e)
			return e
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	known, _ := a.requests.Get(r.key)
	return known
}

// remember keeps a client's REQUEST in memory, unless it is larger than maxRemembered.
func (a *agent) remember(key thread.Key, request *envelope.Envelope) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(request.Canonical()) <= maxRemembered {
		a.requests.Add(key, request)
	}
}

// maxRemembered is the size in bytes of the largest REQUEST that an agent keeps in memory. It keeps at most maxAccepts
// of them. An agent reads a larger REQUEST from the relay again, which works only until the REQUEST expires there.
const maxRemembered = 32 << 10

// acceptance returns the client's signed ACCEPT of this agent's offer, or nil if there is none. The relay's record is
// not signed, so it is not enough to start work.
func (r *run) acceptance(record *Thread) *envelope.Envelope {
	for _, e := range append(record.Events, r.event) {
		if e.Type != envelope.TypeAccept || !r.byClient(e, record) {
			continue
		}
		if err := r.links.Check(e); err != nil {
			r.agent.client.conn.Log.Warn("an ACCEPT was ignored", "thread", r.key.ID, "client", r.key.Client, "reason", err)
			continue
		}
		return e
	}
	return nil
}

// ownOffer returns the agent's last OFFER in the thread; nil: the relay does not show it.
func (r *run) ownOffer(record *Thread) (offer *envelope.Envelope) {
	for _, e := range record.Events {
		if e.Type == envelope.TypeOffer && e.Sender.ID == r.agent.me && e.RequestID == record.RequestID {
			offer = e
		}
	}
	return offer
}

// byClient reports whether e is a message of the thread's client about the thread's request, and either names this
// agent as its recipient or has no recipient.
func (r *run) byClient(e *envelope.Envelope, record *Thread) bool {
	return e.Sender.ID == r.key.Client && e.RequestID == record.RequestID &&
		(e.Recipient == "" || e.Recipient == r.agent.me)
}

// offer answers a REQUEST with an OFFER. If there is no offer, it answers a directed REQUEST with an ERROR. It does not
// answer a broadcast REQUEST then, because the relay would refuse an ERROR from an agent that has not offered.
func (r *run) offer(request *envelope.Envelope) error {
	offer, failed, err := r.quote(request)
	switch {
	case err != nil:
		return err
	case failed == nil:
		r.unpostedOffer = &offer
		offer.RequestID = request.RequestID
		if err := r.remember(request, offer); err != nil {
			return err
		}
		return r.post(offer)
	case request.Recipient == "":
		r.agent.client.conn.Log.Info("the agent makes no offer",
			"thread", r.key.ID, "client", r.key.Client, "reason", failed)
		return nil
	}
	return r.post(failed.payload(request.RequestID))
}

// quote returns the handler's offer, or in failed the ERROR for the client if there is no offer. err means that r.ctx
// has ended.
func (r *run) quote(request *envelope.Envelope) (offer envelope.Offer, failed *AgentError, err error) {
	if !r.agent.serves(request) {
		return offer, &AgentError{Code: envelope.AgentIntentNotSupported,
			Message: "this agent only serves these intents: " + strings.Join(r.agent.opts.Intents, ", ")}, nil
	}
	job, failed := jobOf(request)
	if failed == nil {
		failed = r.agent.checkGateway(r.ctx, request)
	}
	if failed != nil {
		return offer, failed, r.ctx.Err()
	}
	if r.unpostedOffer != nil &&
		(r.unpostedOffer.ValidUntil == nil || r.agent.client.conn.Now().Before(*r.unpostedOffer.ValidUntil)) {
		return *r.unpostedOffer, nil, nil
	}
	key, err := deal.KeyOf(request)
	if err != nil {
		return offer, &internalError, nil
	}
	offer, known, room := r.agent.state.Terms(key)
	switch {
	case !room:
		return offer, &AgentError{Code: envelope.AgentUnavailable,
			Message: "this agent has as many accepted jobs as it can remember; try again later"}, nil
	case known:
		if offer.ValidUntil != nil && !r.agent.client.conn.Now().Before(*offer.ValidUntil) {
			offer.ValidUntil = nil // the client has continued its job, and the terms stay the same
		}
	default:
		ctx, cancel := context.WithTimeout(r.ctx, r.agent.opts.QuoteTimeout)
		defer cancel()
		offer, failed, err = call(r.ctx, ctx, r.agent.client.conn.Log, r.agent.handler.Quote, job)
		if failed != nil || err != nil {
			return offer, failed, err
		}
	}
	limits, price := job.Request.Constraints, offer.Price
	if price != nil && (math.IsNaN(price.Amount) || math.IsInf(price.Amount, 0)) {
		r.agent.client.conn.Log.Error("the handler's price is not a number, so the client gets an ERROR",
			"thread", r.key.ID, "client", r.key.Client, "price", price.Amount)
		return offer, &internalError, nil
	}
	if limits == nil || limits.MaxCostUSD == nil || price == nil || !inUSD(*price) || price.Amount <= *limits.MaxCostUSD {
		return offer, nil, nil
	}
	details, err := json.Marshal(map[string]float64{"min_required": price.Amount, "provided": *limits.MaxCostUSD})
	return offer, &AgentError{Code: envelope.AgentInsufficientBudget, Details: details,
		Message: fmt.Sprintf("the agent's price is %v USD, but max_cost_usd of the REQUEST is %v",
			price.Amount, *limits.MaxCostUSD)}, err
}

// checkGateway refuses a REQUEST with an intent of a gateway that does not come from the relay's gateway. Anybody can
// post one, and its params say who the caller is (A2A §4).
func (a *agent) checkGateway(ctx context.Context, request *envelope.Envelope) *AgentError {
	intent := request.PayloadString("intent")
	if !envelope.IsGatewayIntent(intent) {
		return nil
	}
	err := a.client.FromGateway(ctx, request)
	if err == nil {
		return nil
	}
	if refusal, ok := errors.AsType[*AgentError](err); ok {
		return refusal
	}
	a.client.conn.Log.Warn("a REQUEST is refused, because it is not known who the relay's gateway is",
		"thread", request.Thread, "error", err)
	return &AgentError{Code: envelope.AgentUnavailable,
		Message: "the agent cannot read the relay's document now; try again later"}
}

// serves reports whether the REQUEST is for one of the agent's intents.
func (a *agent) serves(request *envelope.Envelope) bool {
	return slices.Contains(a.opts.Intents, request.PayloadString("intent"))
}

// jobOf returns the Job for a REQUEST, or the ERROR for the client if the payload cannot be read.
func jobOf(request *envelope.Envelope) (Job, *AgentError) {
	job := Job{Envelope: request}
	if closed(request) {
		return job, &notOpened
	}
	if err := request.DecodePayload(&job.Request); err != nil {
		return job, &AgentError{Code: envelope.AgentInvalidRequest,
			Message: "the payload of the REQUEST does not have the form that the protocol requires"}
	}
	return job, nil
}

// clockSkew is how far the relay's clock can differ from this machine's clock before the relay refuses this machine's
// messages (PROTOCOL §1). Work may continue for this long after the thread's deadline, because this machine's clock may
// be fast.
const clockSkew = 5 * time.Minute

// work does the job and posts the outcome, unless a newer thread of the job has an ACCEPT. If the post fails, a further
// call only repeats the post.
func (r *run) work(request, accept *envelope.Envelope, record *Thread) error {
	if r.outcome == nil && request == nil {
		r.outcome = r.agent.state.OutcomeAt(accept)
	}
	if r.outcome == nil && request == nil {
		r.outcome = (&AgentError{Code: envelope.AgentUnavailable,
			Message: "the REQUEST has expired, so the agent can no longer read it; send a new REQUEST"}).payload("")
	}
	if r.outcome == nil {
		a := r.agent
		a.queue.Earn(r.key.Client)
		a.admit(r)
		t := a.take(r, request, accept, record.Deadline)
		if t == nil {
			return errMoved
		}
		select {
		case <-t.done:
		case <-r.ctx.Done():
			if errors.Is(context.Cause(r.ctx), errMoved) {
				return errMoved
			}
			if !a.leave(r, context.Cause(r.ctx)) {
				return context.Cause(r.ctx)
			}
			<-t.done
		}
		if t.worked {
			r.job = &t.job
		}
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		if r.outcome = t.outcome; r.outcome == nil {
			return context.Cause(t.ctx)
		}
		r.outcome = deal.Answering(r.outcome, record.RequestID)
	}
	err := r.post(r.outcome)
	if permanent(err) && !threadMovedOn(err) { // for example: too large, or a raw member that is not valid JSON
		r.agent.client.conn.Log.Error("the outcome of the work cannot be posted, so the client gets an ERROR",
			"thread", r.key.ID, "client", r.key.Client, "error", err)
		r.outcome = internalError.payload("")
		return r.post(r.outcome)
	}
	return err
}

// remember records the OFFER before it is posted, so that the agent offers the same terms when its client continues the
// job elsewhere. If the file cannot be written, it ends Serve.
func (r *run) remember(request *envelope.Envelope, offer envelope.Offer) error {
	key, err := deal.KeyOf(request)
	if err != nil {
		return err
	}
	if err = r.agent.state.Offered(key, offer, request.ExpiresAt(), r.agent.client.conn.Now()); err != nil {
		r.agent.stop(err)
	}
	return err
}

// threadMovedOn reports whether the relay refused a post because the state of the thread has changed since it was read.
func threadMovedOn(err error) bool {
	refusal, ok := errors.AsType[*envelope.Error](err)
	return ok && refusal.Code.Info().MovedOn
}

// post sends a message to the client of the thread. If the relay refuses an answer to a REQUEST because of a limit
// (429), post does not retry it: the REQUEST goes back into the queue, where another REQUEST may be more urgent. post
// retries all other messages.
func (r *run) post(payload envelope.Payload) error {
	r.triedPost = true
	retryLimited := r.event.Type != envelope.TypeRequest
	if retryLimited {
		r.agent.pace.Spend(time.Now())
	}
	draft := r.links.Join(envelope.Draft{Payload: payload, Recipient: r.key.Client, Thread: r.key.ID, Seal: r.seal})
	_, _, err := r.agent.client.poster.Post(r.ctx, draft, retryLimited)
	return err
}

// call calls a function of the handler with ctx. failed is the ERROR for the client if the function failed or panicked.
// err is not nil if parent has ended; then the caller sends nothing.
func call[T any](
	parent, ctx context.Context, log *slog.Logger, f func(context.Context, Job) (T, error), job Job,
) (result T, failed *AgentError, err error) {
	about := slog.Group("job", "thread", job.Envelope.Thread, "client", job.Envelope.Sender.ID)
	defer func() {
		if p := recover(); p != nil {
			log.Error("the handler panicked", about, "panic", p, "stack", string(debug.Stack()))
			failed = &internalError
		}
	}()
	result, err = f(ctx, job)
	if parent.Err() != nil {
		return result, nil, context.Cause(parent)
	}
	if err == nil {
		return result, nil, nil
	}
	if failed, ok := errors.AsType[*AgentError](err); ok && failed.Code != "" {
		return result, failed, nil
	}
	log.Error("the handler failed", about, "error", err)
	return result, &internalError, nil
}

// acquireSlot waits until it can send to slots. The caller receives from slots to release the slot.
func acquireSlot(ctx context.Context, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// internalError is journal.Internal as an error.
var internalError = AgentError{Code: journal.Internal.Code, Message: journal.Internal.Message}

// payload returns e as the payload of an ERROR. An ERROR needs a message, so the code replaces an empty message.
func (e *AgentError) payload(requestID string) envelope.Failure {
	message := e.Message
	if message == "" {
		message = string(e.Code)
	}
	return envelope.Failure{RequestID: requestID, Code: e.Code, Message: message, Details: e.Details}
}
