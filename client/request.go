package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/agora-relay/agora/client/internal/chain"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// RequestOptions describe the wanted service. Only Intent is required.
type RequestOptions struct {
	Intent      string
	Params      any // encoded as JSON; a json.RawMessage is sent unchanged
	Title       string
	Description string
	Constraints *envelope.Constraints // Accept rejects offers that break them
	Recipient   didkey.DID            // the only agent that may make an offer; empty: every agent
	Seal        bool                  // encrypt the REQUEST (except its intent) and all later messages of the thread
	AllowPlain  bool                  // with Seal: accept answers in plaintext too
	TTL         time.Duration         // how long the relay keeps the REQUEST, in whole seconds; 0: 24 h

	// Thread is the id of the thread that Request opens, see NewThread; empty: a new id. Save the id before you call
	// Request. After a crash, call Request with the same id and the same options to continue the thread.
	Thread string
}

// NewThread returns a new id for RequestOptions.Thread. Every thread id has 1 to 128 characters: letters, digits and
// ._:~- with a letter or a digit at the start.
func NewThread() string { return envelope.NewID("thread", time.Now()) }

// Request opens a thread: it posts a REQUEST. With ErrUnknownOutcome it also returns the Call, because the relay may
// have stored the REQUEST, and then there will be offers.
//
// If this identity has already opened the thread opts.Thread, the relay refuses a second REQUEST. Request then returns
// the Call of the existing thread as Resume does, in any state of the thread; see Call.State. This works as long as the
// relay remembers the thread, by default for 24 h after the thread's last message. Later the same id opens a new
// thread. If the thread was opened with another intent, recipient or Seal, Request returns the relay's error,
// CodeInvalidTransition.
//
// Other errors: those of Post.
func (c *Client) Request(ctx context.Context, opts RequestOptions) (*Call, error) {
	call, err := c.request(ctx, opts, c.conn.Home(ctx), envelope.Hash{})
	if err != nil && !errors.Is(err, ErrUnknownOutcome) {
		return nil, err
	}
	return call, err
}

// request does the same as Request, with two more parameters. home is the home of the thread; nil: it has none.
// continues is the root of the job that the REQUEST continues; zero: it is a new job. It also returns the Call with
// each error after the REQUEST was signed.
func (c *Client) request(
	ctx context.Context, opts RequestOptions, home *envelope.Home, continues envelope.Hash,
) (*Call, error) {
	// The request_id is the id of the thread, because some agents omit the thread in their answers.
	payload := envelope.Request{RequestID: opts.Thread, Intent: opts.Intent, Title: opts.Title,
		Description: opts.Description, Constraints: opts.Constraints}
	if opts.Params != nil {
		params, err := json.Marshal(opts.Params)
		if err != nil {
			return nil, fmt.Errorf("client: params: %w", err)
		}
		payload.Params = params
	}
	e, receipt, err := c.Post(ctx, envelope.Draft{Payload: payload, Recipient: opts.Recipient, Thread: opts.Thread,
		TTL: opts.TTL, Seal: opts.Seal, Home: home, Continues: continues})
	refusal, ok := errors.AsType[*envelope.Error](err)
	if ok && refusal.Code == envelope.CodeInvalidTransition && opts.Thread != "" {
		return c.continueRequest(ctx, opts, &payload, err)
	}
	if e == nil {
		return nil, err
	}
	call := &Call{Thread: e.Thread, Seal: opts.Seal, AllowPlain: opts.AllowPlain, Proved: receipt.Proved != nil,
		client: c, me: e.Sender.ID, requestID: e.RequestID, recipient: opts.Recipient, request: &payload,
		links: chain.Links{Request: e}}
	return call, err
}

// continueRequest returns the Call of a thread that an earlier Request opened. refused is the relay's error for the
// present Request. It is returned if the thread was opened with other options.
func (c *Client) continueRequest(
	ctx context.Context, opts RequestOptions, payload *envelope.Request, refused error,
) (*Call, error) {
	record, err := c.ownThread(ctx, opts.Thread)
	if err != nil {
		return nil, fmt.Errorf("%w; continuing the thread failed: %w", refused, err)
	}
	known := Known{Thread: opts.Thread, RequestID: opts.Thread, Recipient: opts.Recipient}
	if e := record.Request(); e != nil { // another program may have opened the thread with another request_id
		known.RequestID = e.RequestID
	}
	call, err := c.resume(record, known)
	if err != nil {
		return nil, err
	}
	if call.recipient != opts.Recipient {
		return nil, refused
	}
	if e := record.Request(); e != nil && (e.PayloadString("intent") != opts.Intent || call.Seal != opts.Seal) {
		return nil, refused
	}
	if call.request == nil { // the REQUEST is sealed or has expired
		call.request, call.Seal = payload, call.Seal || opts.Seal
	}
	call.AllowPlain = opts.AllowPlain
	return call, nil
}

// Known is what a program has saved about a thread that it opened. Only Thread is required.
type Known struct {
	Thread string
	// RequestID and Recipient are the request_id and the recipient of the REQUEST. Set them if the relay no longer
	// shows the REQUEST. The client does not take them from the relay's record, because the record is not signed.
	RequestID string
	Recipient didkey.DID
	// AllowPlain is Call.AllowPlain.
	AllowPlain bool
}

// ErrUnproven is in the error of Resume if the relay shows neither the REQUEST nor the ACCEPT of this client. Then only
// the relay's record would say which request the thread is about, and the record is not signed. Use ResumeKnown
// instead.
var ErrUnproven = errors.New("client: the relay shows no message of this client that proves its request; " +
	"use ResumeKnown with the request_id")

// Resume returns the Call of a thread that this client's identity has opened. The thread may be in any state.
// Errors: *envelope.Error, most often CodeThreadNotFound; ErrUnproven.
func (c *Client) Resume(ctx context.Context, threadID string) (*Call, error) {
	return c.ResumeKnown(ctx, Known{Thread: threadID})
}

// ResumeKnown does the same as Resume, for a caller that has saved more than the thread's id. It needs no message of
// this client in the relay if known.RequestID is set.
func (c *Client) ResumeKnown(ctx context.Context, known Known) (*Call, error) {
	record, err := c.ownThread(ctx, known.Thread)
	if err != nil {
		return nil, err
	}
	return c.resume(record, known)
}

// ownThread reads a thread that this client's identity has opened.
func (c *Client) ownThread(ctx context.Context, threadID string) (*Thread, error) {
	me, err := c.conn.Me()
	if err != nil {
		return nil, err
	}
	return c.Thread(ctx, threadID, me)
}

// resume returns the Call of record. It takes the agent and the request from known and from envelopes that this client
// has signed, because the record itself is not signed. The record only selects one of this client's own requests.
func (c *Client) resume(record *Thread, known Known) (*Call, error) {
	record.RequestID = cmp.Or(known.RequestID, record.RequestID)
	call := &Call{Thread: record.ID, client: c, me: record.Client,
		requestID: record.RequestID, recipient: known.Recipient, AllowPlain: known.AllowPlain}
	request := record.Request()
	call.links.Request = request
	if request != nil {
		call.recipient = request.Recipient
		if !closed(request) { // else the caller has to set the constraints with Call.Limit
			call.request = new(envelope.Request)
			if err := request.DecodePayload(call.request); err != nil {
				return nil, fmt.Errorf("client: the REQUEST of thread %s is malformed: %w", record.ID, err)
			}
		}
	}
	if accepted := call.findAccepted(record); !accepted && request == nil && known.RequestID == "" {
		return nil, fmt.Errorf("%w: thread %s", ErrUnproven, record.ID)
	}
	call.resumeSeal(record)
	return call, nil
}

// findAccepted sets call.agent to the agent whose offer this client has accepted, according to the events of record. It
// reports whether there is an ACCEPT of this client.
func (call *Call) findAccepted(record *Thread) (accepted bool) {
	for _, e := range record.Events {
		if e.Type == envelope.TypeAccept && e.Sender.ID == call.me && e.RequestID == call.requestID {
			accepted, call.links.Accept = true, e
			call.links.Offer = offerOf(record, e)
			if call.agent = e.Recipient; call.agent == "" { // allowed if only one agent has an open offer
				call.agent = call.onlyOffer(record.Events)
			}
		}
	}
	return accepted
}

// offerOf returns the OFFER that an ACCEPT names; nil: it names none that the record has.
func offerOf(record *Thread, accept *envelope.Envelope) *envelope.Envelope {
	i := slices.IndexFunc(record.Events, func(e *envelope.Envelope) bool {
		return e.Type == envelope.TypeOffer && e.Hash() == accept.Re
	})
	if i < 0 {
		return nil
	}
	return record.Events[i]
}

// acceptedPrice returns the price of the accepted OFFER; 0: there is none, or the price is not known.
func (call *Call) acceptedPrice() float64 {
	var offer Offer
	if e := call.links.Offer; e == nil || closed(e) || e.DecodePayload(&offer.Offer) != nil {
		return 0
	}
	amount, _ := offer.Amount()
	return amount
}

// onlyOffer returns the only agent with an open OFFER among the verified events, or "" if there is none or more than
// one. An offer is open unless the agent has sent an ERROR after it.
func (call *Call) onlyOffer(events []*envelope.Envelope) didkey.DID {
	var open []didkey.DID
	for _, e := range events {
		sender := e.Sender.ID
		switch {
		case e.Type == envelope.TypeOffer && call.forMe(e) && (call.recipient == "" || sender == call.recipient):
			if !slices.Contains(open, sender) {
				open = append(open, sender)
			}
		case e.Type == envelope.TypeError:
			open = slices.DeleteFunc(open, func(agent didkey.DID) bool { return agent == sender })
		}
	}
	if len(open) != 1 {
		return ""
	}
	return open[0]
}

// CallState is the state of a Call at the time of Call.State.
type CallState struct {
	Thread   string       // the thread's id, for Resume
	State    thread.State // PENDING, ACTIVE, COMPLETED or ERROR, as the relay claims
	Agent    didkey.DID   // the agent in this client's own signed ACCEPT; empty: no ACCEPT is known
	Offers   int          // the number of open offers, as the relay claims
	Deadline time.Time    // when the relay will end the thread, by the relay's clock; zero if the thread has ended
}

// State reads the state of the thread from the relay. After an Accept with ErrUnknownOutcome, the fields State and
// Agent of the CallState show whether the relay has the ACCEPT. If it has, Result can be called. Errors:
// *envelope.Error, such as CodeThreadNotFound if the relay does not have the thread, or no longer has it.
func (call *Call) State(ctx context.Context) (CallState, error) {
	record, err := call.Record(ctx)
	if err != nil {
		return CallState{}, err
	}
	return stateOf(record, call.agent), nil
}

func stateOf(record *Thread, agent didkey.DID) CallState {
	return CallState{Thread: record.ID, State: record.State, Agent: agent, Offers: len(record.Offers),
		Deadline: record.Deadline}
}

// maxCollected is the largest number of offers that Collect returns. The relay of this module allows 100 in a thread.
const maxCollected = 1000

// Collect waits for the time d and returns all offers in the order in which they arrived, including the offers that
// were made before. It is not an error if there are none. Collect returns before d is over if it has 1000 offers, if an
// offer has been accepted, or if Offers fails. In the last case it returns the offers so far and the error.
func (call *Call) Collect(ctx context.Context, d time.Duration) ([]Offer, error) {
	return collect(ctx, d, call.Offers)
}

func collect(
	ctx context.Context, d time.Duration, offers func(context.Context) iter.Seq2[Offer, error],
) (all []Offer, err error) {
	within, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for offer, err := range offers(within) {
		if err != nil && within.Err() != nil && ctx.Err() == nil { // d is over
			return all, nil
		}
		if err != nil {
			return all, err
		}
		if all = append(all, offer); len(all) == maxCollected {
			break
		}
	}
	return all, nil
}
