package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// run is the work of an agent on one thread because of one event. It belongs to the goroutine that handles the event;
// other goroutines only call cancel and wait for ended.
type run struct {
	agent   *agent
	key     thread.Key
	event   *envelope.Envelope
	ctx     context.Context
	cancel  context.CancelCauseFunc
	ended   chan struct{}
	quoted  *envelope.Offer  // an offer of Handler.Quote that is not posted yet
	posting bool             // a post was tried
	outcome envelope.Payload // the outcome of Handler.Work, kept so that a failing post does not repeat the work
	seal    bool             // seal the answers, because the client seals
}

// step reads the state of the thread and makes the next move, if it is the agent's turn. nil: there is nothing more to
// do.
func (r *run) step() error {
	asked := r.event.Type == envelope.TypeRequest
	if !asked {
		if err := take(r.ctx, r.agent.reads); err != nil {
			return err
		}
	}
	record, err := r.agent.client.Thread(r.ctx, r.key.ID, r.key.Client)
	if !asked {
		<-r.agent.reads
	}
	if refusal, ok := errors.AsType[*envelope.Error](err); ok && refusal.Code == envelope.CodeThreadNotFound && r.invited() {
		// A relay with signed reads shows the record to the thread's parties only. The agent is not one until it
		// offers.
		record, err = &Thread{Thread: thread.Thread{
			ID: r.key.ID, Client: r.key.Client, State: thread.Pending, RequestID: r.event.RequestID,
		}}, nil
	}
	if err != nil {
		return err
	}
	request := r.request(record)
	r.seal = r.sealed(record, request)
	switch {
	case asked && record.State == thread.Pending && request != nil && !record.Offered(r.agent.me):
		return r.offer(request)
	case !asked && record.State == thread.Active && record.Agent == r.agent.me:
		switch accept := r.acceptance(record); {
		case accept == nil:
		case closed(accept):
			return r.post(notOpened.payload(record.RequestID))
		default:
			return r.work(request, record.Deadline)
		}
	}
	return nil
}

// invited reports whether the event is a REQUEST to everybody, whose record the relay may not show us yet.
func (r *run) invited() bool {
	return r.event.Type == envelope.TypeRequest && r.event.Recipient == "" && r.agent.client.reading.signed()
}

// request returns the client's REQUEST. The relay forgets it when its ttl is over, which may be before the offer is
// accepted; so the agent remembers those it has seen. nil: lost, after a restart.
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
	known, _ := a.requests.get(r.key)
	return known
}

// remember keeps a client's REQUEST.
func (a *agent) remember(key thread.Key, request *envelope.Envelope) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(request.Canonical()) <= maxRemembered {
		a.requests.add(key, request)
	}
}

// maxRemembered bounds the size of a remembered REQUEST; maxWaiting bounds their number. A larger REQUEST is read from
// the relay again, which works only until it expires there.
const maxRemembered = 32 << 10

// acceptance returns the client's signed ACCEPT of our offer; nil: there is none. The relay's unsigned record is not
// enough to start work.
func (r *run) acceptance(record *Thread) *envelope.Envelope {
	for _, e := range append(record.Events, r.event) {
		if e.Type == envelope.TypeAccept && r.byClient(e, record) {
			return e
		}
	}
	return nil
}

// byClient reports whether e, of this thread, is from its client and meant for this agent among others.
func (r *run) byClient(e *envelope.Envelope, record *Thread) bool {
	return e.Sender.ID == r.key.Client && e.RequestID == record.RequestID &&
		(e.Recipient == "" || e.Recipient == r.agent.me)
}

// offer answers a REQUEST with an OFFER or, if it is directed, with an ERROR; a stranger's ERROR to a broadcast one
// would be refused.
func (r *run) offer(request *envelope.Envelope) error {
	offer, failed, err := r.quote(request)
	switch {
	case err != nil:
		return err
	case failed == nil:
		r.quoted = &offer
		offer.RequestID = request.RequestID
		return r.post(offer)
	case request.Recipient == "":
		r.agent.client.log.Info("no offer is made", "thread", r.key.ID, "client", r.key.Client, "reason", failed)
		return nil
	}
	return r.post(failed.payload(request.RequestID))
}

// quote returns the handler's offer, or what to tell the client instead.
func (r *run) quote(request *envelope.Envelope) (offer envelope.Offer, failed *AgentError, err error) {
	if !r.agent.serves(request) {
		return offer, &AgentError{Code: envelope.AgentIntentNotSupported,
			Message: "this agent does " + strings.Join(r.agent.opts.Intents, ", ")}, nil
	}
	job, failed := jobOf(request)
	if failed != nil {
		return offer, failed, nil
	}
	if r.quoted != nil && (r.quoted.ValidUntil == nil || r.agent.client.now().Before(*r.quoted.ValidUntil)) {
		return *r.quoted, nil, nil
	}
	ctx, cancel := context.WithTimeout(r.ctx, r.agent.opts.QuoteTimeout)
	defer cancel()
	if offer, failed, err = call(r, ctx, r.agent.handler.Quote, job); failed != nil || err != nil {
		return offer, failed, err
	}
	limits, price := job.Request.Constraints, offer.Price
	if limits == nil || limits.MaxCostUSD == nil || price == nil || !inUSD(*price) || price.Amount <= *limits.MaxCostUSD {
		return offer, nil, nil
	}
	details, err := json.Marshal(map[string]float64{"min_required": price.Amount, "provided": *limits.MaxCostUSD})
	return offer, &AgentError{Code: envelope.AgentInsufficientBudget, Details: details,
		Message: fmt.Sprintf("this costs %v USD, and max_cost_usd is %v", price.Amount, *limits.MaxCostUSD)}, err
}

func (a *agent) serves(request *envelope.Envelope) bool {
	return slices.Contains(a.opts.Intents, request.PayloadString("intent"))
}

func jobOf(request *envelope.Envelope) (Job, *AgentError) {
	job := Job{Envelope: request}
	if closed(request) {
		return job, &notOpened
	}
	if err := request.DecodePayload(&job.Request); err != nil {
		return job, &AgentError{Code: envelope.AgentInvalidRequest, Message: "the REQUEST's payload is not as the protocol has it"}
	}
	return job, nil
}

// clockSkew is how far the relay's clock may be from ours before it refuses our messages (PROTOCOL §1); work goes on
// that long after a thread's deadline, in case our clock is fast.
const clockSkew = 5 * time.Minute

// work does the job, once, and posts what came of it.
func (r *run) work(request *envelope.Envelope, deadline time.Time) error {
	if r.outcome == nil {
		if request == nil {
			r.outcome = (&AgentError{Code: envelope.AgentUnavailable,
				Message: "the REQUEST has expired, so the agent can no longer read it; ask again"}).payload("")
		} else if err := r.perform(request, deadline); err != nil {
			return err
		}
	}
	err := r.post(r.outcome)
	if definite(err) && !raced(err) { // too large, say, or raw members that are no JSON
		r.agent.client.log.Error("the outcome cannot be posted", "thread", r.key.ID, "client", r.key.Client, "error", err)
		r.outcome = internalError.payload("")
		return r.post(r.outcome)
	}
	return err
}

// perform calls Handler.Work and sets the outcome.
func (r *run) perform(request *envelope.Envelope, deadline time.Time) error {
	job, failed := jobOf(request)
	if failed == nil {
		a := r.agent
		a.queue.earn(r.key.Client)
		if err := a.works.take(r.ctx, r.key.Client); err != nil {
			return err
		}
		defer a.works.give(r.key.Client)
		ctx, cancel := r.ctx, context.CancelFunc(func() {})
		if !deadline.IsZero() {
			ctx, cancel = context.WithTimeout(ctx, deadline.Sub(a.client.now())+clockSkew)
		}
		defer cancel()
		var result envelope.Result
		var err error
		if result, failed, err = call(r, ctx, a.handler.Work, job); err != nil {
			return err
		}
		result.RequestID = request.RequestID
		if result.Status == "" {
			result.Status = "success"
		}
		r.outcome = result
	}
	if failed != nil {
		r.outcome = failed.payload(request.RequestID)
	}
	return nil
}

// raced reports whether a post was refused because the thread had moved on meanwhile.
func raced(err error) bool {
	refusal, ok := errors.AsType[*envelope.Error](err)
	return ok && slices.Contains([]envelope.Code{envelope.CodeInvalidTransition, envelope.CodeForbidden,
		envelope.CodeThreadNotFound, envelope.CodeDuplicateID}, refusal.Code)
}

// post sends a message to the client of the thread. If the relay limits the agent, an answer to a REQUEST is not
// retried at once: it goes back into the queue, where another REQUEST may be more urgent. All other messages are
// retried.
func (r *run) post(payload envelope.Payload) error {
	r.posting = true
	retryLimited := r.event.Type != envelope.TypeRequest
	if retryLimited {
		r.agent.pace.spend(time.Now())
	}
	draft := envelope.Draft{Payload: payload, Recipient: r.key.Client, Thread: r.key.ID, Seal: r.seal}
	_, _, err := r.agent.client.post(r.ctx, draft, retryLimited)
	return err
}

// call calls a function of the handler. failed is the ERROR to send if it went wrong. err means that the run's ctx has
// ended, and that nothing is to be sent.
func call[T any](
	r *run, ctx context.Context, f func(context.Context, Job) (T, error), job Job,
) (result T, failed *AgentError, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.agent.client.log.Error("the handler panicked", "thread", r.key.ID, "panic", p, "stack", string(debug.Stack()))
			failed = &internalError
		}
	}()
	result, err = f(ctx, job)
	if r.ctx.Err() != nil {
		return result, nil, context.Cause(r.ctx)
	}
	if err == nil {
		return result, nil, nil
	}
	if failed, ok := errors.AsType[*AgentError](err); ok && failed.Code != "" {
		return result, failed, nil
	}
	r.agent.client.log.Error("the handler failed", "thread", r.key.ID, "client", r.key.Client, "error", err)
	return result, &internalError, nil
}

// take waits for a slot; receiving from slots gives it back.
func take(ctx context.Context, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// internalError says nothing of what went wrong; the log does.
var internalError = AgentError{Code: envelope.AgentInternal, Message: "the agent failed; its operator can see why"}

// payload returns e as an ERROR for the wire, where code and message must not be empty.
func (e *AgentError) payload(requestID string) envelope.Failure {
	message := e.Message
	if message == "" {
		message = string(e.Code)
	}
	return envelope.Failure{RequestID: requestID, Code: e.Code, Message: message, Details: e.Details}
}
