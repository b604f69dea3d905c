package trade

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// The recipient and the request_id of a message within a thread come only from verified envelopes and from flags. They
// do not come from the relay's record of the thread, which is not signed, or from the thread id alone, which several
// threads may have. A wrong recipient could read a sealed answer.

// requestRef identifies a thread by the signer of its REQUEST and the REQUEST's request_id.
type requestRef struct {
	client    didkey.DID
	requestID string
}

// Role is the role of this agent (the owner of the key) in one thread.
type role struct {
	requestRef
	me        didkey.DID
	recipient didkey.DID           // the recipient of the message to send; "": everybody
	events    []*envelope.Envelope // verified messages of me and of the other side
}

// Request returns the thread's REQUEST, nil if the relay does not show it.
func (r role) request() *envelope.Envelope { return r.record().Request() }

// record returns the verified envelopes as a client.Thread.
func (r role) record() *client.Thread {
	return &client.Thread{Thread: thread.Thread{Client: r.client, RequestID: r.requestID}, Events: r.events}
}

// newestOwn returns my newest message of this type about the request, nil if the relay shows none.
func (r role) newestOwn(typ envelope.Type) (found *envelope.Envelope) {
	for _, e := range r.events {
		if e.Type == typ && e.Sender.ID == r.me && e.RequestID == r.requestID {
			found = e
		}
	}
	return found
}

// finder finds my role in a thread.
type finder struct {
	threaded
	ctx       context.Context
	relay     *client.Client
	me        didkey.DID
	ownEvents []*envelope.Envelope // my messages in threads with this id
}

// stored returns all events that match the filter and belong to a thread with the id of --thread.
func (f finder) stored(filter client.Filter) ([]*envelope.Envelope, error) {
	filter.Thread = string(f.Thread)
	events, all, err := f.relay.Stored(f.ctx, filter)
	if err == nil && !all {
		err = fmt.Errorf("too many messages have the thread id %s, so they cannot all be read; name the client of the "+
			"thread with --client DID, and the agent with --agent or --to", f.Thread)
	}
	return events, err
}

// find returns my role in the thread, for sending a message of this type. agent is the agent that a flag names, "" if
// none does.
func (t threaded) find(
	ctx context.Context, relay *client.Client, me didkey.DID, typ envelope.Type, agent didkey.DID,
) (r role, err error) {
	f := finder{threaded: t, ctx: ctx, relay: relay, me: me}
	if f.ownEvents, err = f.stored(client.Filter{Sender: me}); err != nil {
		return role{}, err
	}
	candidates, err := f.candidates(typ)
	if err != nil {
		return role{}, err
	}
	r = role{me: me, events: f.ownEvents}
	if r.requestRef, err = f.choose(typ, candidates, agent); err != nil {
		return role{}, err
	}
	if r.client != me {
		r.recipient = r.client
	} else if r.recipient = agent; agent == "" && typ != envelope.TypeAccept {
		if r.recipient, err = f.counterpart(r); err != nil {
			return role{}, err
		}
	}
	if r.recipient != "" && r.recipient != me {
		theirs, err := f.stored(client.Filter{Sender: r.recipient})
		if err != nil {
			return role{}, err
		}
		r.events = append(slices.Clone(r.events), theirs...)
	}
	return r, nil
}

// candidates returns the threads in which, according to verified envelopes, I can send a message of this type.
func (f finder) candidates(typ envelope.Type) (found []requestRef, err error) {
	switch typ {
	case envelope.TypeOffer:
		return f.invitations(false)
	case envelope.TypeAccept:
		return f.ownRequests(), nil
	case envelope.TypeResult:
		return f.acceptedOffers()
	case envelope.TypeCancel:
		if found = f.ownRequests(); len(found) > 0 {
			return found, nil
		}
	default:
		found = f.ownRequests()
	}
	invited, err := f.invitations(true)
	return append(append(found, f.ownOffers()...), invited...), err
}

// ownRequests returns the threads that I have opened.
func (f finder) ownRequests() (found []requestRef) {
	for _, e := range f.ownEvents {
		if e.Type == envelope.TypeRequest {
			found = append(found, requestRef{f.me, e.RequestID})
		}
	}
	return found
}

// ownOffers returns the threads in which I have made an offer to a named client.
func (f finder) ownOffers() (found []requestRef) {
	for _, e := range f.ownEvents {
		if e.Type == envelope.TypeOffer && e.Recipient != "" {
			found = append(found, requestRef{e.Recipient, e.RequestID})
		}
	}
	return found
}

// invitations returns the threads whose REQUEST names me or, unless ByName, has no recipient.
func (f finder) invitations(byName bool) (found []requestRef, err error) {
	filter := client.Filter{Type: envelope.TypeRequest, Sender: didkey.DID(f.Client), Recipient: f.me, Broadcast: !byName}
	requests, err := f.stored(filter)
	for _, e := range requests {
		if e.Sender.ID != f.me {
			found = append(found, requestRef{e.Sender.ID, e.RequestID})
		}
	}
	return found, err
}

// acceptedOffers returns the threads whose client has accepted my offer.
func (f finder) acceptedOffers() (found []requestRef, err error) {
	for _, o := range f.ownOffers() {
		if slices.Contains(found, o) {
			continue
		}
		accepts, err := f.stored(client.Filter{Type: envelope.TypeAccept, Sender: o.client, Recipient: f.me, Broadcast: true})
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(accepts, func(e *envelope.Envelope) bool { return e.RequestID == o.requestID }) {
			found = append(found, o)
		}
	}
	return found, nil
}

// Choose returns the thread that matches the flags. If several match, it returns an error that lists them. If none
// matches, the flags must name both the client and the request_id.
func (f finder) choose(typ envelope.Type, found []requestRef, agent didkey.DID) (requestRef, error) {
	wanted := requestRef{didkey.DID(f.Client), string(f.RequestID)}
	if wanted.client == "" && (typ == envelope.TypeAccept || agent != "") {
		wanted.client = f.me
	}
	var matches []requestRef
	for _, o := range found {
		if (wanted.client == "" || o.client == wanted.client) &&
			(wanted.requestID == "" || o.requestID == wanted.requestID) && !slices.Contains(matches, o) {
			matches = append(matches, o)
		}
	}
	switch {
	case len(matches) == 1:
		return matches[0], nil
	case len(matches) > 1:
		return requestRef{}, f.ambiguous(matches)
	case wanted.client != "" && wanted.requestID != "":
		return wanted, nil
	}
	return requestRef{}, f.missing(typ)
}

// ambiguous returns the error for several matching threads. The error lists them.
func (f finder) ambiguous(matches []requestRef) error {
	var clients []string
	for _, o := range matches {
		if !slices.Contains(clients, string(o.client)) {
			clients = append(clients, string(o.client))
		}
	}
	if len(clients) == 1 {
		var ids []string
		for _, o := range matches {
			ids = append(ids, o.requestID)
		}
		return fmt.Errorf("%s has sent %d REQUESTs with the thread id %s; choose one with --request-id: %s",
			clients[0], len(ids), f.Thread, strings.Join(ids, ", "))
	}
	more := ""
	const shown = 10
	if len(clients) > shown {
		clients, more = clients[:shown], fmt.Sprintf(" and %d others", len(clients)-shown)
	}
	return fmt.Errorf("%d threads have the id %s; choose one by its client with --client DID: %s%s "+
		"(agora thread %s --client DID shows each)", len(matches), f.Thread, strings.Join(clients, ", "), more, f.Thread)
}

// missing returns the error for missing envelopes. The error says which flags can replace them.
func (f finder) missing(typ envelope.Type) error {
	const agents = "name the client and the request with --client DID --request-id ID"
	what, flags := "", agents
	switch typ {
	case envelope.TypeOffer:
		what = "shows no REQUEST that you can answer"
	case envelope.TypeResult:
		if offered := f.ownOffers(); len(offered) > 0 {
			what = fmt.Sprintf("shows no ACCEPT of your offer by %s", offered[len(offered)-1].client)
		} else {
			what = "shows no OFFER of yours"
		}
	case envelope.TypeAccept:
		what = "shows no REQUEST of yours"
		flags = "only the sender of a REQUEST accepts offers; if you sent it, name it and the agent with " +
			"--request-id ID --agent DID"
	default:
		what = "shows no REQUEST from you or to you, and no OFFER of yours"
		flags += "; in a thread that you opened, name the request and the agent with --request-id ID --to DID"
	}
	return fmt.Errorf("the relay %s with the thread id %s; it may have expired, or the relay hides it; %s",
		what, f.Thread, flags)
}

// counterpart returns the agent to which the client sends a CANCEL or an ERROR. That is the accepted agent, otherwise
// the recipient of the REQUEST, otherwise the only agent that has offered. If there is none, it returns "" for
// everybody.
func (f finder) counterpart(r role) (didkey.DID, error) {
	accept, request := r.newestOwn(envelope.TypeAccept), r.request()
	switch {
	case accept != nil && accept.Recipient != "":
		return accept.Recipient, nil
	case request != nil && request.Recipient != "":
		return request.Recipient, nil
	}
	// The record is not signed. It is used only to notice a hidden ACCEPT, never to choose the recipient.
	record, err := f.relay.Thread(f.ctx, string(f.Thread), f.me)
	if err == nil && record.Agent != "" && accept == nil {
		return "", fmt.Errorf("an offer was accepted in thread %s, but the relay does not show your ACCEPT; "+
			"name the agent with --to DID", f.Thread)
	}
	offers, err := f.offers(r, "")
	if err != nil || len(offers) != 1 {
		return "", err
	}
	return offers[0].Sender.ID, nil
}

// Offers returns, for each agent, its newest verified OFFER to my request, unless the agent has taken it back. If agent
// is not empty, it returns only the OFFER of that agent.
func (f finder) offers(r role, agent didkey.DID) (open []*envelope.Envelope, err error) {
	events, err := f.stored(client.Filter{Sender: agent, Recipient: f.me, Broadcast: true})
	if err != nil {
		return nil, err
	}
	request := r.request()
	for _, e := range events {
		by := func(other *envelope.Envelope) bool { return other.Sender.ID == e.Sender.ID }
		switch {
		case e.Sender.ID == f.me, request != nil && request.Recipient != "" && e.Sender.ID != request.Recipient:
		case e.Type == envelope.TypeOffer && e.RequestID == r.requestID:
			open = append(slices.DeleteFunc(open, by), e)
		case e.Type == envelope.TypeError && (e.RequestID == r.requestID || e.RequestID == ""):
			open = slices.DeleteFunc(open, by)
		}
	}
	return open, nil
}
