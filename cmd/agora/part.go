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

// Whom a message within a thread goes to, and which request it is about, is read from envelopes that verify, and from
// flags. A relay's record of a thread is not signed, and several threads may have one id, so neither may decide who
// gets to read an answer.

// origin names a thread by what its client has signed: who asked, and for which request.
type origin struct {
	client    didkey.DID
	requestID string
}

// part is my part in one thread.
type part struct {
	origin
	me        didkey.DID
	recipient didkey.DID           // "": everybody
	events    []*envelope.Envelope // verified: mine, and those of the other side
}

// request returns the thread's REQUEST, nil if the relay does not show it.
func (p part) request() *envelope.Envelope { return p.record().Request() }

// record is what the verified envelopes say, in the form in which package client looks at threads.
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

// finder looks for my part in a thread.
type finder struct {
	threaded
	ctx   context.Context
	relay *client.Client
	me    didkey.DID
	own   []*envelope.Envelope // what I have sent in threads with this id
}

// stored returns all events of threads with this id that match.
func (f finder) stored(filter client.Filter) ([]*envelope.Envelope, error) {
	filter.Thread = string(f.Thread)
	events, all, err := f.relay.Stored(f.ctx, filter)
	if err == nil && !all {
		err = fmt.Errorf("too many messages have the thread id %s to look at them all; say whose thread you mean with "+
			"--client DID, and which agent with --agent or --to", f.Thread)
	}
	return events, err
}

// find returns my part in the thread for a message of this type; agent is the one that a flag names, or "".
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

// origins returns the threads that my message of this type can be meant for, by what their envelopes say.
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

// invitations returns the threads whose REQUEST invites me: by name, or with everybody else too.
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

// accepted returns the threads in which the client that I have made an offer to has accepted it.
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

// choose returns the one thread that is left once the flags are obeyed.
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

// ambiguous says which threads with this id there are.
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
		return fmt.Errorf("%s has %d requests with the thread id %s; say which you mean with --request-id, one of %s",
			clients[0], len(ids), f.Thread, strings.Join(ids, ", "))
	}
	more := ""
	const shown = 10
	if len(clients) > shown {
		clients, more = clients[:shown], fmt.Sprintf(" and %d others", len(clients)-shown)
	}
	return fmt.Errorf("%d threads have the id %s; say whose you mean with --client DID, one of %s%s "+
		"(agora thread %s --client DID shows each)", len(left), f.Thread, strings.Join(clients, ", "), more, f.Thread)
}

// missing says which envelopes the relay does not show, and which flags stand in for them.
func (f finder) missing(typ envelope.Type) error {
	const gone = "if it has expired, or the relay withholds it, "
	const agents = "say yourself whom you answer, and which request: --client DID --request-id ID"
	what, flags := "", agents
	switch typ {
	case envelope.TypeOffer:
		what = "shows no REQUEST that you could answer"
	case envelope.TypeResult:
		if offered := f.offered(); len(offered) > 0 {
			what = fmt.Sprintf("shows no ACCEPT of your offer by %s", offered[len(offered)-1].client)
		} else {
			what = "shows no OFFER of yours"
		}
	case envelope.TypeAccept:
		what = "shows no REQUEST of yours, and only the agent who asked accepts offers"
		flags = "say yourself which request you mean, and whose offer: --request-id ID --agent DID"
	default:
		what = "shows no REQUEST of yours or to you, and no OFFER of yours"
		flags += ", or in a thread of your own --request-id ID --to DID"
	}
	return fmt.Errorf("the relay %s with the thread id %s; %s%s", what, f.Thread, gone, flags)
}

// counterpart returns the agent that the client tells of an end: the one that was accepted, else the one that was
// asked, else the only one who has offered, else nobody in particular.
func (f finder) counterpart(p part) (didkey.DID, error) {
	accept, request := p.mine(envelope.TypeAccept), p.request()
	switch {
	case accept != nil && accept.Recipient != "":
		return accept.Recipient, nil
	case request != nil && request.Recipient != "":
		return request.Recipient, nil
	}
	// The record only says that something is kept from us here; it does not say whom to write to.
	record, err := f.relay.Thread(f.ctx, string(f.Thread), f.me)
	if err == nil && record.Agent != "" && accept == nil {
		return "", fmt.Errorf("an offer was accepted in thread %s, and the relay does not show your ACCEPT; "+
			"say yourself which agent you mean with --to DID", f.Thread)
	}
	offers, err := f.offers(p, "")
	if err != nil || len(offers) != 1 {
		return "", err
	}
	return offers[0].Sender.ID, nil
}

// offers returns each agent's newest verified OFFER to my request that it has not taken back, those of one agent only
// if it is named.
func (f finder) offers(p part, agent didkey.DID) (standing []*envelope.Envelope, err error) {
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
			standing = append(slices.DeleteFunc(standing, by), e)
		case e.Type == envelope.TypeError && (e.RequestID == p.requestID || e.RequestID == ""):
			standing = slices.DeleteFunc(standing, by)
		}
	}
	return standing, nil
}
