package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// RequestOptions describe a service that is wanted. Only Intent is required.
type RequestOptions struct {
	Intent      string
	Params      any // written as JSON; a json.RawMessage goes as it is
	Title       string
	Description string
	Constraints *envelope.Constraints // Accept holds offers against them
	Recipient   didkey.DID            // the only agent who may offer; empty: any
	Seal        bool                  // only Recipient can read the REQUEST and what follows; intent stays clear
	AllowPlain  bool                  // with Seal: take plain answers too
	TTL         time.Duration         // whole seconds for which the relay keeps the REQUEST; 0: 24 h

	// Thread is the id of the thread that Request opens, see NewThread; empty: a new one. Save it before Request, and a
	// crash orphans nothing: Request with the same id and the same wish goes on with the thread that it has opened.
	Thread string
}

// NewThread returns a new id for RequestOptions.Thread: 1 to 128 letters, digits or ._:~- as every thread id.
func NewThread() string { return envelope.NewID("thread", time.Now()) }

// Request opens a thread with a REQUEST. With ErrUnknownOutcome it returns the Call as well: should the relay have
// taken the REQUEST, offers will come.
//
// If opts.Thread is given and this identity has opened that thread already, Request posts nothing and returns its Call
// as Resume does, whatever state it is in; see Call.State. That holds as long as the relay remembers the thread, by
// default for 24 h after its last message. Later the same id opens a new thread. If the thread was opened for another
// intent or recipient, or with another Seal, the relay's refusal is returned: CodeInvalidTransition.
//
// Other errors are Post's.
func (c *Client) Request(ctx context.Context, opts RequestOptions) (*Call, error) {
	// The id is the request_id too, because there are agents that leave the thread out and answer by request_id alone.
	payload := envelope.Request{RequestID: opts.Thread, Intent: opts.Intent, Title: opts.Title,
		Description: opts.Description, Constraints: opts.Constraints}
	if opts.Params != nil {
		params, err := json.Marshal(opts.Params)
		if err != nil {
			return nil, fmt.Errorf("client: params: %w", err)
		}
		payload.Params = params
	}
	e, _, err := c.Post(ctx, envelope.Draft{Payload: payload, Recipient: opts.Recipient, Thread: opts.Thread,
		TTL: opts.TTL, Seal: opts.Seal})
	refusal, ok := errors.AsType[*envelope.Error](err)
	if ok && refusal.Code == envelope.CodeInvalidTransition && opts.Thread != "" {
		return c.requested(ctx, opts, &payload, err)
	}
	if err != nil && !errors.Is(err, ErrUnknownOutcome) {
		return nil, err
	}
	call := &Call{Thread: e.Thread, Seal: opts.Seal, AllowPlain: opts.AllowPlain,
		client: c, me: e.Sender.ID, requestID: e.RequestID, recipient: opts.Recipient, request: &payload}
	return call, err
}

// requested returns the Call of a thread that an earlier Request has opened; refused is what the relay says to another.
func (c *Client) requested(
	ctx context.Context, opts RequestOptions, payload *envelope.Request, refused error,
) (*Call, error) {
	record, err := c.mine(ctx, opts.Thread)
	if err != nil {
		return nil, fmt.Errorf("%w; and going on with it failed: %w", refused, err)
	}
	known := Known{Thread: opts.Thread, RequestID: opts.Thread, Recipient: opts.Recipient}
	if e := record.Request(); e != nil { // opened by another program, perhaps
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
	if call.request == nil { // it is sealed, or has expired
		call.request, call.Seal = payload, call.Seal || opts.Seal
	}
	call.AllowPlain = opts.AllowPlain
	return call, nil
}

// Known is what a program has kept of a thread that it opened. Only Thread is required.
type Known struct {
	Thread string
	// RequestID and Recipient are the REQUEST's. They are needed where the relay no longer shows it: what is not signed
	// by this client's own identity is no proof of whom it has asked, and for what.
	RequestID string
	Recipient didkey.DID
}

// ErrUnproven is in the error of Resume where the relay shows neither the REQUEST nor the ACCEPT of this client, so that
// only the relay's own word would say which request the thread is about. ResumeKnown takes it from its caller.
var ErrUnproven = errors.New("client: the relay shows no message that this client has signed for the request")

// Resume returns the Call of a thread that this client's identity has opened, as far as it has come.
// Errors: *envelope.Error, CodeThreadNotFound above all; ErrUnproven.
func (c *Client) Resume(ctx context.Context, threadID string) (*Call, error) {
	return c.ResumeKnown(ctx, Known{Thread: threadID})
}

// ResumeKnown is Resume for a caller who knows more than the thread's id.
func (c *Client) ResumeKnown(ctx context.Context, known Known) (*Call, error) {
	record, err := c.mine(ctx, known.Thread)
	if err != nil {
		return nil, err
	}
	return c.resume(record, known)
}

// mine returns the record of a thread that this client's identity has opened.
func (c *Client) mine(ctx context.Context, threadID string) (*Thread, error) {
	me, err := c.me()
	if err != nil {
		return nil, err
	}
	return c.Thread(ctx, threadID, me)
}

// resume returns the Call of record. Whom it is with, and for which request, it takes from known and from envelopes that
// this client has signed: a record is not signed, so it may choose among our requests and name no other.
func (c *Client) resume(record *Thread, known Known) (*Call, error) {
	record.RequestID = cmp.Or(known.RequestID, record.RequestID)
	call := &Call{Thread: record.ID, client: c, me: record.Client,
		requestID: record.RequestID, recipient: known.Recipient}
	request := record.Request()
	if request != nil {
		call.recipient = request.Recipient
		if !closed(request) { // else see Limit
			call.request = new(envelope.Request)
			if err := request.DecodePayload(call.request); err != nil {
				return nil, fmt.Errorf("client: the REQUEST of thread %s: %w", record.ID, err)
			}
		}
	}
	if accepted := call.learn(record); !accepted && request == nil && known.RequestID == "" {
		return nil, fmt.Errorf("%w: thread %s", ErrUnproven, record.ID)
	}
	call.resumeSeal(record)
	return call, nil
}

// learn takes from the events of record whose offer this client has accepted, and reports whether it shows an ACCEPT.
func (call *Call) learn(record *Thread) (accepted bool) {
	for _, e := range record.Events {
		if e.Type == envelope.TypeAccept && e.Sender.ID == call.me && e.RequestID == call.requestID {
			accepted = true
			if call.agent = e.Recipient; call.agent == "" { // valid where one agent has offered
				call.agent = call.onlyOffer(record.Events)
			}
		}
	}
	return accepted
}

// onlyOffer returns the agent whose verified OFFER stands, if there is exactly one.
func (call *Call) onlyOffer(events []*envelope.Envelope) didkey.DID {
	var standing []didkey.DID
	for _, e := range events {
		sender := e.Sender.ID
		switch {
		case e.Type == envelope.TypeOffer && call.forMe(e) && (call.recipient == "" || sender == call.recipient):
			if !slices.Contains(standing, sender) {
				standing = append(standing, sender)
			}
		case e.Type == envelope.TypeError:
			standing = slices.DeleteFunc(standing, func(agent didkey.DID) bool { return agent == sender })
		}
	}
	if len(standing) != 1 {
		return ""
	}
	return standing[0]
}

// CallState is how far a Call has come.
type CallState struct {
	Thread   string       // the thread's id; all that Resume needs
	State    thread.State // PENDING, ACTIVE, COMPLETED or ERROR, by the relay's word
	Agent    didkey.DID   // whose offer this client has accepted, by its own signed word; empty: none that is known
	Offers   int          // how many offers stand, by the relay's word
	Deadline time.Time    // by the relay's clock, when it ends the thread; zero if the thread has ended
}

// State asks the relay how the thread stands. After an Accept whose outcome is unknown it tells, by State and Agent,
// whether the relay has it; then Result can be waited for.
// Errors: *envelope.Error, CodeThreadNotFound if the relay does not have the REQUEST, or has forgotten the thread.
func (call *Call) State(ctx context.Context) (CallState, error) {
	record, err := call.client.Thread(ctx, call.Thread, call.me)
	if err != nil {
		return CallState{}, err
	}
	call.learn(record)
	return CallState{Thread: call.Thread, State: record.State, Agent: call.agent, Offers: len(record.Offers),
		Deadline: record.Deadline}, nil
}

// maxCollected is how many offers Collect returns at most; a relay's own rules end at 100.
const maxCollected = 1000

// Collect gathers the offers of the next d, those already made among them, in the order in which they came. That none
// came is no error. It returns sooner if 1000 came, or with the error that ended Offers, and with what came until then.
func (call *Call) Collect(ctx context.Context, d time.Duration) ([]Offer, error) {
	within, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var all []Offer
	for offer, err := range call.Offers(within) {
		if err != nil && within.Err() != nil && ctx.Err() == nil { // the time is over
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
