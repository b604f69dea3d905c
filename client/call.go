package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// Call is a thread seen from its client. It belongs to one goroutine at a time. All that is needed to go on with it in
// another process is its Thread, see Client.Resume.
type Call struct {
	Thread string // the thread's id
	// Seal has what is sent sealed, and answers refused that are not. Request sets it as RequestOptions has it, Resume
	// where the REQUEST is sealed or, if the relay does not show it, any other message of the two parties. Where
	// nothing tells, ACCEPT and CANCEL go sealed, and plain answers are taken.
	Seal       bool
	AllowPlain bool // take plain answers to a sealed request

	client    *Client
	me        didkey.DID
	requestID string
	recipient didkey.DID        // as RequestOptions has it
	request   *envelope.Request // nil if the relay no longer had it when the call was resumed
	agent     didkey.DID        // whose offer was accepted
	private   bool              // what is sent to one agent is sealed, whatever Seal says
}

// Offer is an agent's verified OFFER to a Call.
type Offer struct {
	envelope.Offer
	Agent    didkey.DID
	Envelope *envelope.Envelope
}

// Result is the verified RESULT of a Call.
type Result struct {
	envelope.Result
	Agent    didkey.DID
	Envelope *envelope.Envelope
}

// AgentError is an ERROR payload as an error: what an agent, or a relay that ended a thread, told the client; and what
// a Handler returns to choose what its client is told. Code.Retryable says whether another try makes sense.
type AgentError struct {
	Code    envelope.AgentCode
	Message string
	Details json.RawMessage // nil: none
	From    didkey.DID      // who sent it; a Handler leaves it empty
}

func (e *AgentError) Error() string { return string(e.Code) + ": " + e.Message }

var (
	// ErrCancelled is how a Call ends that its own client has taken back.
	ErrCancelled = errors.New("client: the call was cancelled")
	// ErrUnacceptable is in the error of Accept if the offer is not what the REQUEST asked for, or no longer stands.
	ErrUnacceptable = errors.New("client: the offer is not acceptable")

	errDone = errors.New("client: done") // ends a watch; never leaves the package
	errGone = errors.New("client: the thread has ended with a message that the relay no longer has")
)

// Offers yields each offer once, those already made first, then others as they arrive. It ends without an error when
// the caller breaks off or an offer has been accepted; else with one error: ctx's; *AgentError if the named recipient
// refused, or the relay ended the thread (TIMEOUT); ErrCancelled; ErrPlain, ErrClosed; or what Follow returns.
func (call *Call) Offers(ctx context.Context) iter.Seq2[Offer, error] {
	return func(yield func(Offer, error) bool) {
		err := call.watch(ctx, func(e *envelope.Envelope) error {
			if e.Type == envelope.TypeAccept && e.Sender.ID == call.me && e.RequestID == call.requestID {
				return errDone
			}
			offer, ok, err := call.offer(e)
			if ok && !yield(offer, nil) {
				return errDone
			}
			return err
		}, func(state thread.State) error {
			if state == thread.Active || state == thread.Completed {
				return errDone
			}
			return nil
		})
		if !errors.Is(err, errDone) {
			yield(Offer{}, err)
		}
	}
}

// forMe reports whether an envelope belongs to the call: another thread may carry the same id. Some agents leave the
// recipient out.
func (call *Call) forMe(e *envelope.Envelope) bool {
	return e.Sender.ID != call.me && e.RequestID == call.requestID && (e.Recipient == "" || e.Recipient == call.me)
}

// offer reads an OFFER to the call. One that cannot be read is left out, as anybody may send it; the only agent asked
// by a sealed REQUEST will send no other, so err tells of his.
func (call *Call) offer(e *envelope.Envelope) (offer Offer, ok bool, err error) {
	if e.Type != envelope.TypeOffer || !call.forMe(e) || call.recipient != "" && e.Sender.ID != call.recipient {
		return Offer{}, false, nil
	}
	if err := call.checkSeal(e); err != nil && call.Seal && call.recipient != "" {
		return Offer{}, false, err
	} else if err != nil {
		call.client.log.Warn("an offer was left out", "agent", e.Sender.ID, "error", err)
		return Offer{}, false, nil
	}
	offer = Offer{Agent: e.Sender.ID, Envelope: e}
	if err := e.DecodePayload(&offer.Offer); err != nil {
		call.client.log.Warn("an offer was left out: its payload is malformed", "agent", e.Sender.ID, "error", err)
		return Offer{}, false, nil
	}
	return offer, true, nil
}

// Accept takes an offer, if it still stands, costs no more than max_cost_usd and can meet the deadline; it fixes the
// agent whom Result waits for. A thread has one ACCEPT ever.
//
// Errors: ErrUnacceptable with the reason; those of Post. After ErrUnknownOutcome, Resume tells what has happened.
func (call *Call) Accept(ctx context.Context, offer Offer) error {
	draft, err := call.Acceptance(offer)
	if err != nil {
		return err
	}
	call.private = draft.Seal
	if _, _, err = call.client.Post(ctx, draft); err == nil {
		call.agent = offer.Agent
	}
	return err
}

// Acceptance checks an offer as Accept does and returns the ACCEPT without posting it. A sealed offer is accepted
// sealed. Errors: ErrUnacceptable.
func (call *Call) Acceptance(offer Offer) (envelope.Draft, error) {
	now := call.client.now()
	if err := call.check(offer, now); err != nil {
		return envelope.Draft{}, fmt.Errorf("%w: %w", ErrUnacceptable, err)
	}
	accept := envelope.Accept{RequestID: call.requestID, AcceptedAt: &now, Terms: &envelope.Terms{}}
	if price := offer.Price; price != nil && inUSD(*price) {
		accept.Terms.PriceUSD = &price.Amount
	}
	if limits := call.request.Constraints; limits != nil {
		accept.Terms.Deadline = limits.Deadline
	}
	seal := call.Seal || call.private || offer.Envelope != nil && offer.Envelope.Sealed()
	return envelope.Draft{Payload: accept, Recipient: offer.Agent, Thread: call.Thread, Seal: seal}, nil
}

// check says why an offer cannot be accepted at now.
func (call *Call) check(offer Offer, now time.Time) error {
	switch {
	case offer.RequestID != call.requestID || offer.Agent == "":
		return errors.New("it belongs to another request")
	case call.request == nil && call.Seal:
		return errors.New("the REQUEST is sealed, so its constraints are unknown to a call that was resumed; give them to Limit")
	case call.request == nil:
		return errors.New("the relay no longer has the REQUEST, so its constraints are unknown; give them to Limit")
	case offer.ValidUntil != nil && !now.Before(*offer.ValidUntil):
		return fmt.Errorf("it was valid until %s", envelope.FormatTime(*offer.ValidUntil))
	}
	limits := call.request.Constraints
	if limits == nil {
		return nil
	}
	if limits.MaxCostUSD != nil && offer.Price != nil {
		if !inUSD(*offer.Price) {
			return fmt.Errorf("its price is in %q, which cannot be held against max_cost_usd", offer.Price.Currency)
		}
		if offer.Price.Amount > *limits.MaxCostUSD {
			return fmt.Errorf("it costs %v USD, and max_cost_usd is %v", offer.Price.Amount, *limits.MaxCostUSD)
		}
	}
	if limits.Deadline != nil && limits.Deadline.Sub(now).Seconds() <= max(offer.ETASeconds, 0) {
		return fmt.Errorf("with an ETA of %v s it misses the deadline, %s", offer.ETASeconds, envelope.FormatTime(*limits.Deadline))
	}
	return nil
}

// inUSD reports whether a price can be compared with max_cost_usd; nothing costs nothing in any currency.
func inUSD(p envelope.Price) bool { return strings.EqualFold(p.Currency, "USD") || p.Amount == 0 }

// Result waits for what the accepted agent delivers. Errors: *AgentError if the agent reports failure, or the relay
// has ended the thread (TIMEOUT), with ErrPlain if a sealed request failed in plain words; ErrPlain or ErrClosed for a
// RESULT that is not taken; ErrCancelled; ctx's; or what Follow returns.
func (call *Call) Result(ctx context.Context) (*Result, error) {
	if call.agent == "" {
		return nil, errors.New("client: no offer has been accepted, so there is no result to wait for")
	}
	var result *Result
	err := call.watch(ctx, func(e *envelope.Envelope) error {
		if e.Type != envelope.TypeResult || e.Sender.ID != call.agent || !call.forMe(e) {
			return nil
		}
		if err := call.checkSeal(e); err != nil {
			return err
		}
		result = &Result{Agent: e.Sender.ID, Envelope: e}
		if err := e.DecodePayload(&result.Result); err != nil {
			return fmt.Errorf("client: the agent's RESULT is malformed: %w", err)
		}
		return errDone
	}, func(state thread.State) error {
		if state == thread.Completed {
			return errGone
		}
		return nil
	})
	if errors.Is(err, errDone) {
		return result, nil
	}
	return nil, err
}

// Cancel takes the request back; reason is for the agent's eyes and may be empty. It is left out where the CANCEL goes
// to everybody and the REQUEST, which the relay does not show, may have been sealed. Errors are Post's:
// CodeInvalidTransition if the thread has already ended.
func (call *Call) Cancel(ctx context.Context, reason string) error {
	recipient := call.agent
	if recipient == "" {
		recipient = call.recipient // empty: whoever has offered hears a broadcast
	}
	seal := call.Seal || call.private && recipient != ""
	if call.private && !seal && reason != "" {
		call.client.log.Warn("a CANCEL goes to everybody without its reason, as the thread may be sealed", "thread", call.Thread)
		reason = ""
	}
	_, _, err := call.client.Post(ctx, envelope.Draft{
		Payload: envelope.Cancel{RequestID: call.requestID, Reason: reason}, Recipient: recipient, Thread: call.Thread, Seal: seal,
	})
	return err
}

// watch reads the thread from its beginning and gives each event to f, until f or the thread's end gives an error.
// settled is asked what the thread's state, once nothing new comes, means for the caller.
//
// The filter is the thread alone, as agents may leave the recipient out. What ends a thread without a RESULT is not
// read off the events: an ERROR may also withdraw an offer, or belong to a stranger's thread with the same id. The
// relay's record tells which; it is also asked when a poll brings nothing, because what we wait for may have expired
// while we were away.
func (call *Call) watch(ctx context.Context, f func(*envelope.Envelope) error, settled func(thread.State) error) error {
	w := follower{client: call.client, opts: FollowOptions{Filter: Filter{Thread: call.Thread}, FromOldest: true}}
	check := func(ctx context.Context) error {
		record, err := call.client.Thread(ctx, call.Thread, call.me)
		if definite(err) { // the relay has forgotten the thread, or never had it
			return err
		}
		if err != nil {
			call.client.log.Warn("asking for the thread failed, will be retried", "thread", call.Thread, "error", err)
			return nil
		}
		for _, e := range record.Events {
			if w.isNew(e) {
				if err := f(e); err != nil {
					return err
				}
			}
		}
		if err := settled(record.State); err != nil {
			return err
		}
		return call.ending(ctx, record)
	}
	w.page = func(ctx context.Context, events []*envelope.Envelope, _ string) error {
		ask := false
		for _, e := range events {
			if err := f(e); err != nil {
				return err
			}
			ask = ask || e.Type == envelope.TypeError || e.Type == envelope.TypeCancel
		}
		if ask {
			return check(ctx)
		}
		return nil
	}
	w.idle = check
	return w.run(ctx)
}

// ending returns the error that a thread has ended with by the relay's record, nil if it has not.
func (call *Call) ending(ctx context.Context, record *Thread) error {
	if record.State != thread.Failed || len(record.Transitions) == 0 {
		return nil
	}
	if record.TimedOut() {
		relay, err := call.client.relayDID(ctx)
		if err != nil {
			call.client.log.Warn("the relay does not say who it is", "error", err)
		}
		return &AgentError{Code: envelope.AgentTimeout, From: relay, Message: "the relay ended the thread: nothing came in time"}
	}
	last := record.Transitions[len(record.Transitions)-1]
	if last.By == call.me {
		return ErrCancelled
	}
	for _, e := range record.Events {
		if e.ID != last.ID || e.Sender.ID != last.By || e.Type != envelope.TypeError || e.Recipient != "" && e.Recipient != call.me {
			continue
		}
		if closed(e) {
			return call.checkSeal(e)
		}
		var failure envelope.Failure
		if err := e.DecodePayload(&failure); err != nil {
			return fmt.Errorf("client: the agent's ERROR is malformed: %w", err)
		}
		failed := &AgentError{Code: failure.Code, Message: failure.Message, Details: failure.Details, From: e.Sender.ID}
		if refused := call.checkSeal(e); refused != nil {
			return fmt.Errorf("%w: %w", refused, failed)
		}
		return failed
	}
	return errGone
}
