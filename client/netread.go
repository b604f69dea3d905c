package client

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/client/internal/mark"
	"github.com/agora-relay/agora/client/internal/pacing"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// At returns the client of the given relay that has the thread of this client, or of the oldest one if it is empty.
// Errors: those of Client.Thread. If a relay does not answer and no other has the thread, it is the error of that
// relay: it may have the thread.
func (n *Network) At(ctx context.Context, threadID string, opener didkey.DID) (*Client, error) {
	_, errs := askAll(n.given, func(p *Client) (*Thread, error) { return p.Thread(ctx, threadID, opener) })
	var missing error
	for i, err := range errs {
		switch {
		case err == nil:
			return n.given[i], nil
		case missing == nil || envelope.CodeOf(missing) == envelope.CodeThreadNotFound:
			missing = err
		}
	}
	return nil, missing
}

// Thread does the same as Client.Thread, at the relay that has the thread; see At.
func (n *Network) Thread(ctx context.Context, threadID string, opener didkey.DID) (*Thread, error) {
	c, err := n.At(ctx, threadID, opener)
	if err != nil {
		return nil, err
	}
	return c.Thread(ctx, threadID, opener)
}

// Outlook returns the outlook at the given relay whose directory knows most agents for the request. Errors: the error
// of the last relay, if none answers.
func (n *Network) Outlook(ctx context.Context, opts RequestOptions) (Outlook, error) {
	all, errs := askAll(n.given, func(p *Client) (Outlook, error) { return p.Outlook(ctx, opts) })
	best := -1
	for i, err := range errs {
		if err == nil && (best < 0 || all[i].Agents > all[best].Agents) {
			best = i
		}
	}
	if best < 0 {
		return Outlook{}, errs[len(errs)-1]
	}
	return all[best], nil
}

// Stored returns the events at all given relays, each once; see Client.Stored. all is false if one relay has more, or
// does not answer. Errors: the error of the last relay, if none answers.
func (n *Network) Stored(ctx context.Context, filter Filter) (found []*envelope.Envelope, all bool, err error) {
	whole := make([]bool, len(n.given))
	events, errs := askAll(n.given, func(p *Client) (events []*envelope.Envelope, err error) {
		events, whole[slices.Index(n.given, p)], err = p.Stored(ctx, filter)
		return events, err
	})
	seen, answered := map[mark.Mark]bool{}, false
	all = true
	for i, some := range events {
		all, answered = all && whole[i] && errs[i] == nil, answered || errs[i] == nil
		for _, e := range some {
			if m := mark.Of(e); !seen[m] {
				seen[m] = true
				found = append(found, e)
			}
		}
	}
	if !answered {
		return nil, false, errs[len(errs)-1]
	}
	return found, all, nil
}

// ChannelDelivery does the same as Client.ChannelDelivery, for the gateway of any given relay. Errors: the error of the
// last relay.
func (n *Network) ChannelDelivery(ctx context.Context, request *envelope.Envelope) (ChannelDelivery, error) {
	return ofAny(n, func(c *Client) (ChannelDelivery, error) { return c.ChannelDelivery(ctx, request) })
}

// ofAny calls read for one given relay after the other, until it succeeds. It returns the last error.
func ofAny[T any](n *Network, read func(*Client) (T, error)) (found T, err error) {
	for _, p := range n.given {
		if found, err = read(p); err == nil {
			return found, nil
		}
	}
	return found, err
}

// first returns the first given relay that answers, or else the first.
func (n *Network) first(ctx context.Context) *Client {
	for p := range n.usable(ctx) {
		return p
	}
	return n.given[0]
}

// Record reads the relay's record of the thread.
func (call *Call) Record(ctx context.Context) (*Thread, error) {
	record, err := call.client.Thread(ctx, call.Thread, call.me)
	if err == nil {
		call.findAccepted(record)
	}
	return record, err
}

// Record reads the record of the newest thread. While it waits for a home that is silent, the job continues elsewhere
// as in Offers.
func (j *NetworkCall) Record(ctx context.Context) (*Thread, error) {
	var mu sync.Mutex
	var record *Thread
	err := j.run(ctx, func(ctx context.Context, l *leg) error {
		found, err := j.record(ctx, l)
		if err != nil {
			return j.fatal(ctx, l, err)
		}
		if l != j.newest() {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		record = found
		return errDone
	})
	if errors.Is(err, errDone) {
		return record, nil
	}
	return nil, err
}

// record reads the record of a thread. It tries until the relay answers or ctx ends.
func (j *NetworkCall) record(ctx context.Context, l *leg) (*Thread, error) {
	var pause pacing.Backoff
	for {
		within, cancel := context.WithTimeout(ctx, l.call.wait)
		due := time.Now().Add(l.call.wait)
		record, err := l.call.Record(within)
		if err != nil && within.Err() != nil {
			err = ErrUnknownOutcome
		}
		cancel()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		l.call.polled(due, err)
		if !Unanswered(err) {
			return record, err
		}
		if err := pause.Wait(ctx, 0, pacing.MaxPause); err != nil {
			return nil, err
		}
	}
}

// Limit does the same as Call.Limit, for all threads of the job. The limits are not sent to anybody.
func (j *NetworkCall) Limit(limits *envelope.Constraints) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.limits = limits
	for _, l := range j.legs {
		l.call.Limit(limits)
	}
}

// Acceptance does the same as Call.Acceptance, for an offer of any thread of the job.
func (j *NetworkCall) Acceptance(offer Offer) (envelope.Draft, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, l := range j.legs {
		if l.call.requestID == offer.RequestID {
			return l.call.Acceptance(offer)
		}
	}
	return j.legs[0].call.Acceptance(offer) // which says that the offer belongs to another request
}

// Agent returns the agent for which an ACCEPT was signed; empty: none was.
func (j *NetworkCall) Agent() didkey.DID {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.order.Agent
}

// Proved reports whether the home of the newest thread has proved the last message that was posted there.
func (j *NetworkCall) Proved() bool { return j.newest().call.Proved }

// State reads the state of the newest thread, as Call.State does. It waits as Record does.
func (j *NetworkCall) State(ctx context.Context) (CallState, error) {
	record, err := j.Record(ctx)
	if err != nil {
		return CallState{}, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return stateOf(record, j.order.Agent), nil
}
