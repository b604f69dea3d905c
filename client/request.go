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

// RequestOptions describe the wanted service. Only Intent is required.
type RequestOptions struct {
	Intent      string
	Params      any // marshaled as JSON; a json.RawMessage is sent unchanged
	Title       string
	Description string
	Constraints *envelope.Constraints // Accept refuses offers that break them
	Recipient   didkey.DID            // the only agent who may offer; empty: any
	Seal        bool                  // only Recipient can read the REQUEST and what follows; intent is not encrypted
	AllowPlain  bool                  // with Seal: accept answers that are not sealed too
	TTL         time.Duration         // whole seconds for which the relay keeps the REQUEST; 0: 24 h

	// Thread is the id of the thread that Request opens, see NewThread; empty: a new id. Save the id before Request.
	// After a crash, Request with the same id and the same options continues with the thread that it had opened.
	Thread string
}

// NewThread returns a new id for RequestOptions.Thread: 1 to 128 letters, digits or ._:~- as every thread id.
func NewThread() string { return envelope.NewID("thread", time.Now()) }

// Request opens a thread with a REQUEST. With ErrUnknownOutcome it returns the Call as well: if the relay did store the
// REQUEST, offers will come.
//
// If this identity has already opened the thread opts.Thread, Request posts nothing and returns its Call as Resume
// does, whatever the thread's state is; see Call.State. That holds as long as the relay remembers the thread, by
// default for 24 h after its last message. Later the same id opens a new thread. If the thread was opened with another
// intent, recipient or Seal, Request returns the relay's refusal: CodeInvalidTransition.
//
// Other errors are Post's.
func (c *Client) Request(ctx context.Context, opts RequestOptions) (*Call, error) {
	// The thread's id is the request_id too, because some agents leave out the thread and answer by request_id alone.
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

// requested returns the Call of a thread that an earlier Request opened. refused is the relay's refusal of this
// Request.
func (c *Client) requested(
	ctx context.Context, opts RequestOptions, payload *envelope.Request, refused error,
) (*Call, error) {
	record, err := c.mine(ctx, opts.Thread)
	if err != nil {
		return nil, fmt.Errorf("%w; and continuing that thread failed: %w", refused, err)
	}
	known := Known{Thread: opts.Thread, RequestID: opts.Thread, Recipient: opts.Recipient}
	if e := record.Request(); e != nil { // another program may have chosen another request_id
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
	// RequestID and Recipient are those of the REQUEST. They are needed if the relay no longer shows the REQUEST: only
	// messages signed by this client's own identity prove whom it asked, and for what.
	RequestID string
	Recipient didkey.DID
}

// ErrUnproven is in the error of Resume if the relay shows neither the REQUEST nor the ACCEPT of this client. Then only
// the relay's unsigned record would say which request the thread is about. Use ResumeKnown instead.
var ErrUnproven = errors.New("client: the relay shows no message that this client has signed for the request")

// Resume returns the Call of a thread that this client's identity has opened, in its present state.
// Errors: *envelope.Error, most often CodeThreadNotFound; ErrUnproven.
func (c *Client) Resume(ctx context.Context, threadID string) (*Call, error) {
	return c.ResumeKnown(ctx, Known{Thread: threadID})
}

// ResumeKnown is Resume for a caller that knows more than the thread's id.
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

// resume returns the Call of record. It takes the agent and the request from known and from envelopes that this client
// signed, because the record itself is not signed. The record only selects one of our own requests.
func (c *Client) resume(record *Thread, known Known) (*Call, error) {
	record.RequestID = cmp.Or(known.RequestID, record.RequestID)
	call := &Call{Thread: record.ID, client: c, me: record.Client,
		requestID: record.RequestID, recipient: known.Recipient}
	request := record.Request()
	if request != nil {
		call.recipient = request.Recipient
		if !closed(request) { // if it is, the caller has to use Call.Limit
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

// learn finds in the events of record which offer this client has accepted. It reports whether there is an ACCEPT.
func (call *Call) learn(record *Thread) (accepted bool) {
	for _, e := range record.Events {
		if e.Type == envelope.TypeAccept && e.Sender.ID == call.me && e.RequestID == call.requestID {
			accepted = true
			if call.agent = e.Recipient; call.agent == "" { // valid if only one agent has offered
				call.agent = call.onlyOffer(record.Events)
			}
		}
	}
	return accepted
}

// onlyOffer returns the agent whose verified OFFER is open, if there is exactly one such agent.
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

// CallState is the present state of a Call.
type CallState struct {
	Thread   string       // the thread's id, as Resume needs it
	State    thread.State // PENDING, ACTIVE, COMPLETED or ERROR, as the relay claims
	Agent    didkey.DID   // the agent that this client's own signed ACCEPT names; empty: no ACCEPT is known
	Offers   int          // how many offers are open, as the relay claims
	Deadline time.Time    // when the relay will end the thread, by its clock; zero if the thread has ended
}

// State asks the relay for the state of the thread. After an Accept with ErrUnknownOutcome, State and Agent say whether
// the relay has the ACCEPT; if it has, Result can be called.
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

// maxCollected is how many offers Collect returns at most. Agora's relay allows 100 in a thread.
const maxCollected = 1000

// Collect waits for d and returns all offers, those already made included, in the order in which they arrived. To have
// none is not an error. It returns earlier after 1000 offers, and if Offers fails: then with the offers so far and the
// error.
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
