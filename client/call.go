package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/agora-relay/agora/client/internal/chain"
	"github.com/agora-relay/agora/client/internal/follow"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// Call is the client's side of a thread. Only one goroutine may use it at a time. Another process can continue the call
// if it knows Thread, see Client.Resume.
type Call struct {
	Thread string // the thread's id
	// Seal encrypts the messages that the client sends to the agent, and rejects plaintext answers (see AllowPlain).
	// Request sets Seal to RequestOptions.Seal. Resume sets it if the REQUEST is sealed. If the relay does not show the
	// REQUEST, Resume sets it if any other message between the two parties is sealed. If there is no such message
	// either, Seal is false: the client accepts plaintext answers, but encrypts an ACCEPT, and a CANCEL to one agent.
	Seal       bool
	AllowPlain bool // accept plaintext answers although Seal is true
	Proved     bool // the relay has proved the last message that this Call has posted, see Options.Proofs

	client       *Client
	me           didkey.DID
	requestID    string
	recipient    didkey.DID        // RequestOptions.Recipient
	request      *envelope.Request // nil if the call was resumed and the REQUEST has expired, is hidden or is sealed
	agent        didkey.DID        // the agent whose offer was accepted
	sealDirected bool              // encrypt messages to one agent even if Seal is false
	wait         time.Duration     // how long polls of the thread wait; 0: as usual
	polled       func(due time.Time, err error)
	stored       bool        // the relay has stored the ACCEPT, and the caller wants to know if it loses it
	unsure       bool        // the relay may have links.Accept
	links        chain.Links // the messages of the thread that the next ones answer
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

// AgentError is the payload of an ERROR message as a Go error. Offers and Result return it if an agent sent an ERROR,
// or if the relay ended the thread. A Handler returns it to choose the ERROR for its client. Code.Retryable reports
// whether a new try may succeed.
type AgentError struct {
	Code    envelope.AgentCode
	Message string
	Details json.RawMessage // nil: none
	From    didkey.DID      // the sender of the ERROR; a Handler leaves it empty
}

// Error returns the code and the message.
func (e *AgentError) Error() string { return string(e.Code) + ": " + e.Message }

var (
	// ErrCancelled is the error of a Call after its own client has cancelled it.
	ErrCancelled = errors.New("client: the call was cancelled")
	// ErrUnacceptable is in the error of Accept if the offer breaks the constraints of the REQUEST, belongs to another
	// request or is no longer valid.
	ErrUnacceptable = errors.New("client: the offer is not acceptable")

	errNoAccept = errors.New("client: there is no result to wait for; accept an offer first")

	errLost = errors.New("client: the relay has lost the ACCEPT, which it had stored")

	errDone = errors.New("client: done") // ends Call.watch; never returned to the package's user
	errGone = errors.New("client: the thread has ended, but the relay does not show the message that ended it")
)

// Offers yields each offer once: first the offers that were already made, then new ones as they arrive. It ends without
// an error when the caller breaks out of the loop or an offer has been accepted. Else it ends with one error: ctx's
// error; an *AgentError if the named recipient refused the request or the relay ended the thread (TIMEOUT);
// ErrCancelled; ErrPlain or ErrClosed; or an error of Follow.
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

// forMe reports whether an envelope is an answer to this call. A thread of another client may have the same id, so the
// request_id must match too. The recipient may be absent, because some agents leave it out. An envelope with a wrong
// place in the thread is logged.
func (call *Call) forMe(e *envelope.Envelope) bool {
	if e.Sender.ID == call.me || e.RequestID != call.requestID || e.Recipient != "" && e.Recipient != call.me {
		return false
	}
	if e.Home == nil && e.Re == (envelope.Hash{}) && !call.client.inNetwork() {
		return true // its sender knows no homes, so the thread is as without one; a Network could not continue the job
	}
	err := call.links.Check(e)
	if err != nil {
		call.client.conn.Log.Warn("a message was ignored", "type", e.Type, "id", e.ID, "sender", e.Sender.ID, "reason", err)
	}
	return err == nil
}

// offer reads an OFFER to the call; ok is false if e is not one. An OFFER that cannot be accepted is skipped, because
// anybody may send one. But a sealed REQUEST asks one agent only, and that agent will make no second OFFER. So err
// reports that its OFFER is in plaintext or cannot be decrypted.
func (call *Call) offer(e *envelope.Envelope) (offer Offer, ok bool, err error) {
	if e.Type != envelope.TypeOffer || !call.forMe(e) || call.recipient != "" && e.Sender.ID != call.recipient {
		return Offer{}, false, nil
	}
	if err := call.checkSeal(e); err != nil && call.Seal && call.recipient != "" {
		return Offer{}, false, err
	} else if err != nil {
		call.client.conn.Log.Warn("an offer was skipped", "agent", e.Sender.ID, "error", err)
		return Offer{}, false, nil
	}
	offer = Offer{Agent: e.Sender.ID, Envelope: e}
	if err := e.DecodePayload(&offer.Offer); err != nil {
		call.client.conn.Log.Warn("an offer was skipped because its payload is malformed",
			"agent", e.Sender.ID, "error", err)
		return Offer{}, false, nil
	}
	return offer, true, nil
}

// Accept accepts an offer. It first checks that the offer is still valid, costs no more than max_cost_usd and can meet
// the deadline. Result then waits for the agent of this offer. A thread can have only one ACCEPT.
//
// Errors: ErrUnacceptable with the reason; the errors of Post. After ErrUnknownOutcome, State or Resume find out
// whether the relay has the ACCEPT. After an error for which Unanswered is true, Accept of the same offer posts the
// same bytes once more.
func (call *Call) Accept(ctx context.Context, offer Offer) error {
	if call.unsure && call.links.Offer == offer.Envelope {
		receipt, err := call.client.PostEnvelope(ctx, call.links.Accept)
		return call.answered(offer, receipt, err)
	}
	draft, err := call.Acceptance(offer)
	if err != nil {
		return err
	}
	call.sealDirected = draft.Seal
	accept, receipt, err := call.client.Post(ctx, draft)
	if accept != nil {
		call.links.Offer, call.links.Accept = offer.Envelope, accept
	}
	return call.answered(offer, receipt, err)
}

// answered records the relay's answer to an ACCEPT, and returns err.
func (call *Call) answered(offer Offer, receipt Receipt, err error) error {
	call.Proved, call.unsure = receipt.Proved != nil, Unanswered(err)
	if err == nil {
		call.agent = offer.Agent
	}
	return err
}

// Acceptance checks an offer as Accept does and returns the ACCEPT without posting it. The ACCEPT of a sealed offer is
// sealed too. Errors: ErrUnacceptable.
func (call *Call) Acceptance(offer Offer) (envelope.Draft, error) {
	now := call.client.conn.Now()
	if err := call.check(offer, now); err != nil {
		return envelope.Draft{}, fmt.Errorf("%w: %w", ErrUnacceptable, err)
	}
	accept := envelope.Accept{RequestID: call.requestID, AcceptedAt: &now, Terms: &envelope.Terms{}}
	if amount, _ := offer.Amount(); offer.Price == nil || inUSD(*offer.Price) {
		accept.Terms.PriceUSD = &amount // also 0: so the agent cannot claim later that a price was accepted
	}
	if limits := call.request.Constraints; limits != nil {
		accept.Terms.Deadline = limits.Deadline
	}
	seal := call.Seal || call.sealDirected || offer.Envelope != nil && offer.Envelope.Sealed()
	l := call.links
	l.Offer = offer.Envelope
	return l.Join(envelope.Draft{Payload: accept, Recipient: offer.Agent, Thread: call.Thread, Seal: seal}), nil
}

// check returns an error with the reason if an offer cannot be accepted at the time now.
func (call *Call) check(offer Offer, now time.Time) error {
	switch {
	case offer.RequestID != call.requestID || offer.Agent == "":
		return errors.New("the offer belongs to another request")
	case call.request == nil && call.Seal:
		return errors.New("the REQUEST is sealed, so a resumed call does not know its constraints; set them with Limit")
	case call.request == nil:
		return errors.New("the relay no longer has the REQUEST, so its constraints are unknown; set them with Limit")
	case offer.ValidUntil != nil && !now.Before(*offer.ValidUntil):
		return fmt.Errorf("the offer was valid until %s only", envelope.FormatTime(*offer.ValidUntil))
	}
	if amount, ok := offer.Amount(); !ok {
		return errors.New("its price has no number as amount")
	} else if amount < 0 {
		return errors.New("its price is negative")
	}
	limits := call.request.Constraints
	if limits == nil {
		return nil
	}
	if limits.MaxCostUSD != nil && offer.Price != nil {
		if !inUSD(*offer.Price) {
			return fmt.Errorf("the price is in %q, which cannot be compared with max_cost_usd", offer.Price.Currency)
		}
		if offer.Price.Amount > *limits.MaxCostUSD {
			return fmt.Errorf("it costs %v USD, and max_cost_usd is %v", offer.Price.Amount, *limits.MaxCostUSD)
		}
	}
	if limits.Deadline != nil && limits.Deadline.Sub(now).Seconds() <= max(offer.ETASeconds, 0) {
		return fmt.Errorf("with an ETA of %v s the result would come too late for the deadline, %s",
			offer.ETASeconds, envelope.FormatTime(*limits.Deadline))
	}
	return nil
}

// inUSD reports whether a price can be compared with max_cost_usd: it is in USD, or it is zero, in any currency.
func inUSD(p envelope.Price) bool { return strings.EqualFold(p.Currency, "USD") || p.Amount == 0 }

// Result waits for the RESULT of the agent whose offer was accepted.
//
// Errors: an *AgentError if the agent sent an ERROR or the relay ended the thread (TIMEOUT), together with ErrPlain if
// the request is sealed and the ERROR is in plaintext; ErrPlain or ErrClosed if the RESULT is rejected; ErrCancelled;
// ctx's error; or an error of Follow.
func (call *Call) Result(ctx context.Context) (*Result, error) {
	if call.agent == "" {
		return nil, errNoAccept
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
		switch {
		case state == thread.Completed:
			return errGone
		case state == thread.Pending && call.stored:
			return errLost
		}
		return nil
	})
	if errors.Is(err, errDone) {
		return result, nil
	}
	return nil, err
}

// Cancel cancels the request. reason is a text for the agent and may be empty. Cancel omits the reason if the CANCEL
// has no recipient and the relay does not show the REQUEST, because the REQUEST may have been sealed. Errors: the
// errors of Post, such as CodeInvalidTransition if the thread has already ended.
func (call *Call) Cancel(ctx context.Context, reason string) error {
	recipient := call.agent
	if recipient == "" {
		recipient = call.recipient // empty: a broadcast, which every agent with an offer receives
	}
	seal := call.Seal || call.sealDirected && recipient != ""
	if call.sealDirected && !seal && reason != "" {
		call.client.conn.Log.Warn("a broadcast CANCEL is sent without its reason, because the thread may be sealed",
			"thread", call.Thread)
		reason = ""
	}
	_, _, err := call.client.Post(ctx, call.links.Join(envelope.Draft{
		Payload:   envelope.Cancel{RequestID: call.requestID, Reason: reason},
		Recipient: recipient, Thread: call.Thread, Seal: seal,
	}))
	return err
}

// watch reads the events of the thread from the oldest and passes each one to f. It ends when f or checkState returns
// an error, or when the thread has ended without a RESULT, and returns that error. checkState says what the state in
// the relay's record means for the caller. It is called when a poll brings no new event, and after an ERROR or a
// CANCEL.
//
// The filter of the poll has the thread but not the recipient, because agents may leave the recipient out. The events
// do not show whether a thread has ended without a RESULT: an ERROR may also withdraw an offer, or belong to another
// client's thread with the same id. So watch reads the relay's record of the thread. It also does so when a poll brings
// nothing, because the awaited message may have expired while this client was not connected.
func (call *Call) watch(
	ctx context.Context, f func(*envelope.Envelope) error, checkState func(thread.State) error,
) error {
	w := follow.Follower{Conn: call.client.conn, Wait: call.wait, Polled: call.polled,
		Filter: follow.Filter{Thread: call.Thread}, FromOldest: true}
	check := func(ctx context.Context) error {
		record, err := call.client.Thread(ctx, call.Thread, call.me)
		if permanent(err) { // for example: the relay does not have the thread, or no longer has it
			return err
		}
		if err != nil {
			call.client.conn.Log.Warn("reading the thread failed, will be retried", "thread", call.Thread, "error", err)
			return nil
		}
		for _, e := range record.Events {
			if w.IsNew(e) {
				if err := f(e); err != nil {
					return err
				}
			}
		}
		if err := checkState(record.State); err != nil {
			return err
		}
		return call.endError(ctx, record)
	}
	w.Handle = func(ctx context.Context, events []*envelope.Envelope, _ string) error {
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
	w.Idle = check
	return w.Run(ctx)
}

// endError returns the error for a thread that has ended without a RESULT, according to the relay's record. It returns
// nil for any other thread.
func (call *Call) endError(ctx context.Context, record *Thread) error {
	if record.State != thread.Failed || len(record.Transitions) == 0 {
		return nil
	}
	if record.TimedOut() {
		relay, err := call.client.conn.RelayDID(ctx)
		if err != nil {
			call.client.conn.Log.Warn("reading the relay's DID failed", "error", err)
		}
		return &AgentError{Code: envelope.AgentTimeout, From: relay,
			Message: "the relay ended the thread, because no message came before its deadline"}
	}
	last := record.Transitions[len(record.Transitions)-1]
	if last.By == call.me {
		return ErrCancelled
	}
	for _, e := range record.Events {
		if e.ID != last.ID || e.Sender.ID != last.By || e.Type != envelope.TypeError ||
			e.Recipient != "" && e.Recipient != call.me {
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
