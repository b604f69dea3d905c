package trade

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// asking is one run of agora ask.
type asking struct {
	AskCmd
	env    cli.Environment
	status *cli.StatusLine
	market market
	me     didkey.DID
	people cli.People
	params json.RawMessage
	thread string
	used   cli.ChosenProfile

	began       bool // the relay may have the REQUEST
	call        job
	limited     bool              // a limit for the price is known
	offersUntil time.Time         // when waiting for offers ends
	passed      map[[32]byte]bool // offers, by their hash, that no longer count: gone, or shown to the person
	offers      []client.Offer    // the offers so far, in the order of their arrival
	accepted    bool              // this run has posted an ACCEPT
	outlook     *client.Outlook   // what the directory says about the request; nil: it was not asked
	hinted      bool              // the person knows why there may be no offer
	pauses      int               // how many tries in a row had no answer
	log         *slog.Logger
	typed       *bufio.Reader // of env.Stdin; nil: nothing is read yet
}

// Run does what is missing until there is a result. Each turn begins with the state of the thread at the relay.
func (a *asking) run(ctx context.Context) (*client.Result, error) {
	if err := a.open(ctx); err != nil {
		return nil, err
	}
	a.offersUntil = time.Now().Add(a.Wait)
	for {
		if a.accepted && a.Many() { // the job may be elsewhere by now, and the call knows
			return a.result(ctx)
		}
		record, err := a.look(ctx)
		if err != nil {
			return nil, err
		}
		switch {
		case a.accepted && record.State != thread.Pending && !a.shownAccept(record):
			return nil, a.noAccept()
		case record.State != thread.Pending:
			return a.result(ctx)
		case a.accepted:
			return nil, askError{OutcomeRefused, errors.New("the relay has confirmed your ACCEPT, but " +
				"claims that no offer was accepted; do not trust this relay")}
		}
		if err := a.chooseOffer(ctx); err != nil {
			return nil, err
		}
	}
}

// open opens the thread, or finds the one that an earlier run has opened.
func (a *asking) open(ctx context.Context) error {
	if a.Thread != "" {
		record, err := a.market.Thread(ctx, a.thread, a.me)
		if err == nil {
			return a.resume(ctx, record)
		}
		if envelope.CodeOf(err) != envelope.CodeThreadNotFound {
			return a.fromRelay(err)
		}
		if a.Intent == "" {
			return askError{OutcomeRefused, fmt.Errorf("the relay %s has no request of yours with the thread %s: it "+
				"was never sent, or it ended long ago. To ask now, name the service: agora ask INTENT --thread %[2]s",
				a.Names(), a.thread)}
		}
	}
	a.note("asking for %s in the thread %s", a.Intent, a.thread)
	if !a.Quiet {
		a.env.Say("to continue after an interruption:")
		a.command(a.resumeCommand())
	}
	a.status.Set("asking")
	constraints := &envelope.Constraints{MaxCostUSD: a.MaxCost, Deadline: (*time.Time)(a.Deadline)}
	if a.MaxCost == nil && a.Deadline == nil {
		constraints = nil
	}
	opts := client.RequestOptions{Thread: a.thread, Intent: a.Intent, Description: a.Description,
		Params: paramsOf(a.params), Constraints: constraints, Recipient: didkey.DID(a.To), Seal: a.Seal,
		AllowPlain: a.AllowPlain}
	a.foresee(ctx, opts)
	if err := ctx.Err(); err != nil { // nothing was sent yet
		return err
	}
	posting, cancel := lingering(ctx)
	defer cancel()
	call, err := a.market.request(posting, opts)
	a.began = err == nil || errors.Is(err, client.ErrUnknownOutcome)
	if err != nil {
		return a.fromRelay(err)
	}
	a.use(call, constraints)
	return nil
}

// paramsOf returns params for client.RequestOptions, where nil means that there are none.
func paramsOf(params json.RawMessage) any {
	if params == nil {
		return nil
	}
	return params
}

// resume continues the thread of an earlier run, or of agora send request.
func (a *asking) resume(ctx context.Context, record *client.Thread) error {
	known := client.Known{Thread: a.thread, RequestID: a.thread, Recipient: didkey.DID(a.To), AllowPlain: a.AllowPlain}
	request := record.Request()
	var sent envelope.Request
	if request != nil {
		known.RequestID = request.RequestID
		if !request.Sealed() {
			if err := request.DecodePayload(&sent); err != nil {
				return askError{OutcomeUsage, fmt.Errorf("the REQUEST of the thread %s is malformed: %w", a.thread, err)}
			}
		}
		if err := a.compare(request, sent); err != nil {
			return askError{OutcomeUsage, err}
		}
	}
	call, err := a.market.resume(ctx, known)
	if err != nil {
		return a.fromRelay(err)
	}
	a.began = true
	if request != nil {
		a.Intent, a.To = request.PayloadString("intent"), cli.DIDText(request.Recipient)
	}
	a.note("continuing the request in the thread %s", a.thread)
	a.use(call, sent.Constraints)
	return nil
}

// compare returns an error if the flags ask for something else than the REQUEST that is at the relay. What a flag does
// not say is not compared.
func (a *asking) compare(request *envelope.Envelope, sent envelope.Request) error {
	differs := func(what string) error {
		return fmt.Errorf("the thread %s was opened with another %s; leave it out to continue that request, or leave "+
			"--thread out to make a new one", a.thread, what)
	}
	switch {
	case a.Intent != "" && a.Intent != request.PayloadString("intent"):
		return differs("intent")
	case a.To != "" && didkey.DID(a.To) != request.Recipient:
		return differs("recipient (--to)")
	case a.Seal && !request.Sealed():
		return fmt.Errorf("the request in the thread %s is not sealed; leave --seal out to continue it, or leave "+
			"--thread "+
			"out to make a new one", a.thread)
	case request.Sealed():
		if a.params != nil {
			a.note("the request is sealed, so it is not checked whether it has the same params")
		}
		return nil
	case a.params != nil && !sameJSON(a.params, sent.Params):
		return differs("input (--params)")
	case a.Description != "" && a.Description != sent.Description:
		return differs("description")
	case a.Deadline != nil && (sent.Constraints == nil || sent.Constraints.Deadline == nil ||
		!time.Time(*a.Deadline).Equal(*sent.Constraints.Deadline)):
		return differs("deadline")
	}
	return nil
}

// sameJSON reports whether two JSON texts have the same value.
func sameJSON(a, b json.RawMessage) bool {
	first, err := envelope.Canonicalize(a)
	if err != nil {
		return false
	}
	second, err := envelope.Canonicalize(b)
	return err == nil && bytes.Equal(first, second)
}

// use sets the call and its limits. The limit for the price is --max-cost, else that of the REQUEST, else 0.
func (a *asking) use(call job, sent *envelope.Constraints) {
	limits := envelope.Constraints{}
	if sent != nil {
		limits = *sent
	}
	if a.MaxCost != nil {
		limits.MaxCostUSD = a.MaxCost
	}
	if a.Deadline != nil {
		limits.Deadline = (*time.Time)(a.Deadline)
	}
	a.limited = limits.MaxCostUSD != nil
	if !a.limited && !a.Choose {
		limits.MaxCostUSD = new(float64)
	}
	call.Limit(&limits)
	a.call = call
}

// accept posts an ACCEPT for an offer. While the relay does not answer, it posts the same bytes again. If the relay
// refuses the ACCEPT because of the state of the thread, the next turn of run sees why.
func (a *asking) accept(ctx context.Context, offer client.Offer) error {
	if _, err := a.call.Acceptance(offer); err != nil {
		return askError{OutcomeNoneGood, err}
	}
	a.status.Set("accepting")
	posting, cancel := lingering(ctx)
	defer cancel()
	err := a.call.Accept(posting, offer)
	repeated := false
	for client.Unanswered(err) && a.pause(ctx, err) == nil {
		repeated = true
		err = a.call.Accept(posting, offer)
	}
	switch code := envelope.CodeOf(err); {
	case err == nil:
		a.accepted = true
		a.note("accepted the offer of %s for %s", a.who(offer.Agent), PriceOf(offer))
		return nil
	case errors.Is(err, client.ErrUnknownOutcome):
	case code == envelope.CodeInvalidTransition, errors.Is(err, client.ErrUnacceptable): // the job has moved meanwhile
		a.passed[offer.Envelope.Hash()] = true
		return nil
	case repeated && (code == envelope.CodeStaleTimestamp || code == envelope.CodeExpired):
		return nil // the relay was away for long: if it does not have the ACCEPT, sign a new one
	}
	return a.fromRelay(err)
}

// lingering returns a context that ends a little after ctx. So a post that is under way when the person presses Ctrl-C
// gets its answer, and the command can say in which state the thread is.
func lingering(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(DescribePatience, cancel)
		context.AfterFunc(longer, func() { timer.Stop() })
	})
	return longer, func() {
		stop()
		cancel()
	}
}

// result waits for the result of a request that is not pending any more.
func (a *asking) result(ctx context.Context) (*client.Result, error) {
	state, err := retry(ctx, a, func() (client.CallState, error) { return a.call.State(ctx) })
	if err != nil {
		return nil, err
	}
	if state.Agent == "" {
		// No offer was accepted, so there is nothing to wait for. The error says how the thread has ended.
		for offer, err := range a.call.Offers(ctx) {
			if err != nil {
				return nil, a.fromThread(ctx, err)
			}
			a.offers = append(a.offers, offer)
		}
		return nil, a.noAccept()
	}
	a.status.Set("reading the result")
	if state.State == thread.Active {
		a.note("%s is working", state.Agent)
		a.status.Set(a.who(state.Agent) + " is working")
	}
	result, err := a.call.Result(ctx)
	if err != nil {
		return nil, a.fromThread(ctx, err)
	}
	return result, nil
}

// noAccept is the error for a relay that hides the ACCEPT.
func (a *asking) noAccept() error {
	return askError{OutcomeFailed, fmt.Errorf("the relay claims that an offer in the thread %s was "+
		"accepted, but shows no ACCEPT with your signature", a.thread)}
}

// shownAccept reports whether the relay shows the ACCEPT that this run has posted.
func (a *asking) shownAccept(record *client.Thread) bool {
	return slices.ContainsFunc(record.Events, func(e *envelope.Envelope) bool {
		return e.Type == envelope.TypeAccept && e.Sender.ID == a.me
	})
}

// look reads the state of the thread.
func (a *asking) look(ctx context.Context) (*client.Thread, error) {
	return retry(ctx, a, func() (*client.Thread, error) { return a.call.Record(ctx) })
}

// retry calls read until the relay answers or ctx ends.
func retry[T any](ctx context.Context, a *asking, read func() (T, error)) (T, error) {
	a.pauses = 0
	for {
		answer, err := read()
		if err == nil || !unanswered(err) || a.pause(ctx, err) != nil {
			return answer, a.fromRelay(err)
		}
	}
}

// unanswered reports whether a later try may succeed, because the relay did not answer or is busy.
func unanswered(err error) bool {
	refusal, refused := errors.AsType[*envelope.Error](err)
	return err != nil && (!refused || refusal.Code.Retryable() || errors.Is(err, client.ErrUnknownOutcome))
}

// The pauses between two tries double, from the first to the last of these.
const (
	firstPause = 500 * time.Millisecond
	lastPause  = 8 * time.Second
)

// pause says why another try is needed, and waits. It returns an error if ctx ends.
func (a *asking) pause(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		a.log.Warn("the relay does not answer, will be retried", "error", err)
	}
	after := min(firstPause<<min(a.pauses, 10), lastPause)
	if refusal, ok := errors.AsType[*envelope.Error](err); ok {
		after = max(after, min(refusal.RetryAfter, time.Minute))
	}
	a.pauses++
	select {
	case <-time.After(after):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
