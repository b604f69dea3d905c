package main

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

// The recipient and the request_id of a message within a thread come only from verified envelopes and from flags. A
// relay's record of a thread is not signed, and several threads may have the same id. So neither may decide who can
// read an answer.

// origin identifies a thread by its REQUEST: who signed it, and its request_id.
type origin struct {
	client    didkey.DID
	requestID string
}

// part is this agent's role in one thread.
type part struct {
	origin
	me        didkey.DID
	recipient didkey.DID           // of the message to send; "": everybody
	events    []*envelope.Envelope // verified messages of me and of the other side
}

// request returns the thread's REQUEST, nil if the relay does not show it.
func (p part) request() *envelope.Envelope { return p.record().Request() }

// record returns the verified envelopes as a client.Thread.
func (p part) record() *client.Thread {
	return &client.Thread{Thread: thread.Thread{Client: p.client, RequestID: p.requestID}, Events: p.events}
}

// mine returns the newest message of this type that I have sent about the request, nil if the relay shows none.
func (p part) mine(typ envelope.Type) (found *envelope.Envelope) {
	for _, e := range p.events {
		if e.Type == typ && e.Sender.ID == p.me && e.RequestID == p.requestID {
			found = e
		}
	}
	return found
}

// finder finds my part in a thread.
type finder struct {
	threaded
	ctx   context.Context
	relay *client.Client
	me    didkey.DID
	own   []*envelope.Envelope // my messages in threads with this id
}

// stored returns all events that match, of threads with this id.
func (f finder) stored(filter client.Filter) ([]*envelope.Envelope, error) {
	filter.Thread = string(f.Thread)
	events, all, err := f.relay.Stored(f.ctx, filter)
	if err == nil && !all {
		err = fmt.Errorf("too many messages have the thread id %s to read them all; name the client of the thread with "+
			"--client DID, and the agent with --agent or --to", f.Thread)
	}
	return events, err
}

// find returns my part in the thread, for sending a message of this type. agent is the agent that a flag names, or "".
func (t threaded) find(
	ctx context.Context, relay *client.Client, me didkey.DID, typ envelope.Type, agent didkey.DID,
) (p part, err error) {
	f := finder{threaded: t, ctx: ctx, relay: relay, me: me}
	if f.own, err = f.stored(client.Filter{Sender: me}); err != nil {
		return part{}, err
	}
	origins, err := f.origins(typ)
	if err != nil {
		return part{}, err
	}
	p = part{me: me, events: f.own}
	if p.origin, err = f.choose(typ, origins, agent); err != nil {
		return part{}, err
	}
	if p.client != me {
		p.recipient = p.client
	} else if p.recipient = agent; agent == "" && typ != envelope.TypeAccept {
		if p.recipient, err = f.counterpart(p); err != nil {
			return part{}, err
		}
	}
	if p.recipient != "" && p.recipient != me {
		theirs, err := f.stored(client.Filter{Sender: p.recipient})
		if err != nil {
			return part{}, err
		}
		p.events = append(slices.Clone(p.events), theirs...)
	}
	return p, nil
}

// origins returns the threads in which I can send a message of this type, according to verified envelopes.
func (f finder) origins(typ envelope.Type) (found []origin, err error) {
	switch typ {
	case envelope.TypeOffer:
		return f.invitations(false)
	case envelope.TypeAccept:
		return f.asked(), nil
	case envelope.TypeResult:
		return f.accepted()
	case envelope.TypeCancel:
		if found = f.asked(); len(found) > 0 {
			return found, nil
		}
	default:
		found = f.asked()
	}
	invited, err := f.invitations(true)
	return append(append(found, f.offered()...), invited...), err
}

// asked returns the threads that I have opened.
func (f finder) asked() (found []origin) {
	for _, e := range f.own {
		if e.Type == envelope.TypeRequest {
			found = append(found, origin{f.me, e.RequestID})
		}
	}
	return found
}

// offered returns the threads in which I have made an offer to a named client.
func (f finder) offered() (found []origin) {
	for _, e := range f.own {
		if e.Type == envelope.TypeOffer && e.Recipient != "" {
			found = append(found, origin{e.Recipient, e.RequestID})
		}
	}
	return found
}

// invitations returns the threads whose REQUEST names me or, unless byName, has no recipient.
func (f finder) invitations(byName bool) (found []origin, err error) {
	filter := client.Filter{Type: envelope.TypeRequest, Sender: didkey.DID(f.Client), Recipient: f.me, Broadcast: !byName}
	requests, err := f.stored(filter)
	for _, e := range requests {
		if e.Sender.ID != f.me {
			found = append(found, origin{e.Sender.ID, e.RequestID})
		}
	}
	return found, err
}

// accepted returns the threads whose client has accepted my offer.
func (f finder) accepted() (found []origin, err error) {
	for _, o := range f.offered() {
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

// choose returns the only thread that matches the flags.
func (f finder) choose(typ envelope.Type, found []origin, agent didkey.DID) (origin, error) {
	meant := origin{didkey.DID(f.Client), string(f.RequestID)}
	if meant.client == "" && (typ == envelope.TypeAccept || agent != "") {
		meant.client = f.me
	}
	var left []origin
	for _, o := range found {
		if (meant.client == "" || o.client == meant.client) && (meant.requestID == "" || o.requestID == meant.requestID) &&
			!slices.Contains(left, o) {
			left = append(left, o)
		}
	}
	switch {
	case len(left) == 1:
		return left[0], nil
	case len(left) > 1:
		return origin{}, f.ambiguous(left)
	case meant.client != "" && meant.requestID != "":
		return meant, nil
	}
	return origin{}, f.missing(typ)
}

// ambiguous returns the error for several matching threads. It lists them.
func (f finder) ambiguous(left []origin) error {
	var clients []string
	for _, o := range left {
		if !slices.Contains(clients, string(o.client)) {
			clients = append(clients, string(o.client))
		}
	}
	if len(clients) == 1 {
		var ids []string
		for _, o := range left {
			ids = append(ids, o.requestID)
		}
		return fmt.Errorf("%s has %d requests with the thread id %s; choose one with --request-id: %s",
			clients[0], len(ids), f.Thread, strings.Join(ids, ", "))
	}
	more := ""
	const shown = 10
	if len(clients) > shown {
		clients, more = clients[:shown], fmt.Sprintf(" and %d others", len(clients)-shown)
	}
	return fmt.Errorf("%d threads have the id %s; choose one by its client with --client DID: %s%s "+
		"(agora thread %s --client DID shows each)", len(left), f.Thread, strings.Join(clients, ", "), more, f.Thread)
}

// missing returns the error for missing envelopes. It says which flags can replace them.
func (f finder) missing(typ envelope.Type) error {
	const agents = "name the client and the request with --client DID --request-id ID"
	what, flags := "", agents
	switch typ {
	case envelope.TypeOffer:
		what = "shows no REQUEST that you can answer"
	case envelope.TypeResult:
		if offered := f.offered(); len(offered) > 0 {
			what = fmt.Sprintf("shows no ACCEPT of your offer by %s", offered[len(offered)-1].client)
		} else {
			what = "shows no OFFER of yours"
		}
	case envelope.TypeAccept:
		what = "shows no REQUEST of yours"
		flags = "only the sender of a REQUEST accepts offers; if you sent it, name it and the agent with --request-id ID --agent DID"
	default:
		what = "shows no REQUEST of yours or to you, and no OFFER of yours"
		flags += ", or in your own thread the request and the agent with --request-id ID --to DID"
	}
	return fmt.Errorf("the relay %s with the thread id %s; it may have expired, or the relay hides it; %s", what, f.Thread, flags)
}

// counterpart returns the agent to whom the client sends a CANCEL or an ERROR: the accepted agent, else the recipient
// of the REQUEST, else the only agent that has offered, else "" for everybody.
func (f finder) counterpart(p part) (didkey.DID, error) {
	accept, request := p.mine(envelope.TypeAccept), p.request()
	switch {
	case accept != nil && accept.Recipient != "":
		return accept.Recipient, nil
	case request != nil && request.Recipient != "":
		return request.Recipient, nil
	}
	// The unsigned record is used only to notice a hidden ACCEPT, never to choose the recipient.
	record, err := f.relay.Thread(f.ctx, string(f.Thread), f.me)
	if err == nil && record.Agent != "" && accept == nil {
		return "", fmt.Errorf("an offer was accepted in thread %s, but the relay does not show your ACCEPT; "+
			"name the agent with --to DID", f.Thread)
	}
	offers, err := f.offers(p, "")
	if err != nil || len(offers) != 1 {
		return "", err
	}
	return offers[0].Sender.ID, nil
}

// offers returns the newest verified OFFER to my request of each agent, unless the agent has taken it back. If agent is
// not empty, only the OFFER of that agent.
func (f finder) offers(p part, agent didkey.DID) (open []*envelope.Envelope, err error) {
	events, err := f.stored(client.Filter{Sender: agent, Recipient: f.me, Broadcast: true})
	if err != nil {
		return nil, err
	}
	request := p.request()
	for _, e := range events {
		by := func(other *envelope.Envelope) bool { return other.Sender.ID == e.Sender.ID }
		switch {
		case e.Sender.ID == f.me, request != nil && request.Recipient != "" && e.Sender.ID != request.Recipient:
		case e.Type == envelope.TypeOffer && e.RequestID == p.requestID:
			open = append(slices.DeleteFunc(open, by), e)
		case e.Type == envelope.TypeError && (e.RequestID == p.requestID || e.RequestID == ""):
			open = slices.DeleteFunc(open, by)
		}
	}
	return open, nil
}
