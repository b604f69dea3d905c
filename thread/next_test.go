package thread_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// TestAcceptChoosesTheAgent checks which agent an ACCEPT accepts.
func TestAcceptChoosesTheAgent(t *testing.T) {
	type messages = []*envelope.Envelope
	for name, c := range map[string]struct {
		before messages
		accept didkey.DID // the recipient of the ACCEPT
		status int
		agent  didkey.DID
	}{
		"no agent offered":                 {nil, "", 409, ""},
		"no agent offered, one is named":   {nil, offered, 409, ""},
		"one offered":                      {messages{message(offered, offer)}, "", 0, offered},
		"one offered and is named":         {messages{message(offered, offer)}, offered, 0, offered},
		"one offered twice":                {messages{message(offered, offer), message(offered, offer)}, "", 0, offered},
		"one offered, another is named":    {messages{message(offered, offer)}, stranger, 409, ""},
		"one offered, the client is named": {messages{message(offered, offer)}, client, 409, ""},
		"two offered":                      {messages{message(offered, offer), message(accepted, offer)}, "", 409, ""},
		"two offered, the second is named": {
			messages{message(offered, offer), message(accepted, offer)}, accepted, 0, accepted},
		"one of two withdrew": {
			messages{message(withdrew, offer), message(offered, offer), message(withdrew, failure)}, "", 0, offered},
		"an agent that withdrew is named": {
			messages{message(withdrew, offer), message(withdrew, failure)}, withdrew, 409, ""},
		"one withdrew and offered again": {
			messages{message(withdrew, offer), message(withdrew, failure), message(withdrew, offer)}, "", 0, withdrew},
	} {
		before := play(t, slices.Concat(messages{message(client, request)}, c.before)...)
		next, err := (thread.Rules{}).Next(before, to(c.accept, message(client, accept)), noon)
		if got := status(t, err); got != c.status || next.Agent != c.agent {
			t.Errorf("%s: agent %q, error %v; want agent %q, status %d", name, next.Agent, err, c.agent, c.status)
		}
	}
	silent := play(t, to(named, message(client, request))) // the REQUEST names an agent that has not offered
	if _, err := (thread.Rules{}).Next(silent, to(named, message(client, accept)), noon); status(t, err) != 409 {
		t.Errorf("ACCEPT of the named agent before it offers: error %v, want 409", err)
	}
}

// TestRecipientIsTheCounterpart checks that recipient.id, if given, must be the sender's counterpart in the thread.
func TestRecipientIsTheCounterpart(t *testing.T) {
	type messages = []*envelope.Envelope
	open := messages{message(client, request), message(offered, offer), message(accepted, offer)}
	active := slices.Concat(open, messages{to(accepted, message(client, accept))})
	direct := messages{to(named, message(client, request))}
	for _, c := range []struct {
		name   string
		before messages
		m      *envelope.Envelope
		status int
	}{
		{"OFFER to the client", open, to(client, message(stranger, offer)), 0},
		{"OFFER to another agent", open, to(offered, message(stranger, offer)), 403},
		{"OFFER to oneself", open, to(stranger, message(stranger, offer)), 403},
		{"withdrawal to the client", open, to(client, message(offered, failure)), 0},
		{"withdrawal to another agent", open, to(accepted, message(offered, failure)), 403},
		{"CANCEL to an agent that offered", open, to(offered, message(client, cancel)), 0},
		{"CANCEL to an agent that did not", open, to(stranger, message(client, cancel)), 403},
		{"CANCEL to the named agent before it offers", direct, to(named, message(client, cancel)), 0},
		{"CANCEL to another than the named agent", direct, to(stranger, message(client, cancel)), 403},
		{"ERROR from the named agent to the client", direct, to(client, message(named, failure)), 0},
		{"CANCEL to the accepted agent", active, to(accepted, message(client, cancel)), 0},
		{"CANCEL to another agent that offered", active, to(offered, message(client, cancel)), 403},
		{"ERROR to another agent that offered", active, to(offered, message(client, failure)), 403},
		{"RESULT to the client", active, to(client, message(accepted, result)), 0},
		{"RESULT to another agent", active, to(offered, message(accepted, result)), 403},
	} {
		if _, err := (thread.Rules{}).Next(play(t, c.before...), c.m, noon); status(t, err) != c.status {
			t.Errorf("%s: error %v, want status %d", c.name, err, c.status)
		}
	}
}

// TestPayloads checks which payload members are required.
func TestPayloads(t *testing.T) {
	type messages = []*envelope.Envelope
	open := messages{message(client, request), message(offered, offer)}
	active := slices.Concat(open, messages{message(client, accept)})
	for _, c := range []struct {
		before  messages // nil: m opens a thread
		m       *envelope.Envelope
		payload string
		status  int
	}{
		{nil, message(client, request), `{"intent":"i"}`, 0},
		{nil, message(client, request), `{}`, 400},
		{nil, message(client, request), `{"intent":""}`, 400},
		{nil, message(client, request), `{"intent":["i"]}`, 400},
		{nil, message(client, request), `{"intent":null}`, 400},
		{nil, message(client, request), `{"params":{"intent":"i"}}`, 400},
		{nil, message(client, request), `{"Intent":"i"}`, 400},
		{open, message(offered, offer), `{}`, 0},
		{open, message(client, accept), `{}`, 0},
		{open, message(client, cancel), `{}`, 0},
		{active, message(offered, result), `{"status":"success"}`, 0},
		{active, message(offered, result), `{}`, 400},
		{active, message(offered, result), `{"status":true}`, 400},
		{active, message(offered, failure), `{"code":"C","message":"m"}`, 0},
		{active, message(offered, failure), `{"message":"m"}`, 400},
		{active, message(offered, failure), `{"code":"C"}`, 400},
		{active, message(offered, failure), `{"code":"","message":"m"}`, 400},
		{active, message(offered, failure), `{"code":"C","message":""}`, 400},
		{active, message(offered, failure), `{"code":500,"message":"m"}`, 400},
	} {
		var candidates []thread.Thread
		if c.before != nil {
			candidates = append(candidates, play(t, c.before...))
		}
		if _, _, err := (thread.Rules{}).Apply(candidates, withPayload(c.payload, c.m), noon); status(t, err) != c.status {
			t.Errorf("%s with payload %s: error %v, want status %d", c.m.Type, c.payload, err, c.status)
		}
	}
}

// TestRequestID checks that a message must have the request_id of the REQUEST, and which messages may omit it.
func TestRequestID(t *testing.T) {
	pending := play(t, message(client, request), message(offered, offer))
	active := play(t, message(client, request), message(offered, offer), message(client, accept))
	for _, c := range []struct {
		in     thread.Thread
		by     didkey.DID
		typ    envelope.Type
		absent int // the status without a request_id
	}{
		{pending, offered, offer, 400}, {pending, client, accept, 400}, {active, offered, result, 400},
		{pending, client, cancel, 0}, {active, client, failure, 0}, {active, offered, failure, 0},
	} {
		for id, want := range map[string]int{"req": 0, "other": 400, "": c.absent} {
			_, err := (thread.Rules{}).Next(c.in, withRequestID(id, message(c.by, c.typ)), noon)
			if status(t, err) != want {
				t.Errorf("%s from %s with request_id %q: error %v, want status %d", c.typ, c.by, id, err, want)
			}
		}
	}
	// A REQUEST without a request_id opens a thread without one.
	bare := play(t, withRequestID("", message(client, request)))
	for id, want := range map[string]int{"": 0, "req": 400} {
		if _, err := (thread.Rules{}).Next(bare, withRequestID(id, message(offered, offer)), noon); status(t, err) != want {
			t.Errorf("request_id %q in a thread without one: error %v, want status %d", id, err, want)
		}
	}
}

// TestOrderOfRefusals checks the order of the errors of Next: party, content, state, limit.
func TestOrderOfRefusals(t *testing.T) {
	active := play(t, message(client, request), message(offered, offer), message(client, accept))
	one := thread.Rules{MaxOffers: 1}
	for _, c := range []struct {
		name   string
		m      *envelope.Envelope
		status int
	}{
		{"stranger, bad payload, wrong request_id", withPayload(`{}`, withRequestID("x", message(stranger, result))), 403},
		{"client, bad payload", withPayload(`{}`, message(client, request)), 400},
		{"wrong request_id in the wrong state", withRequestID("x", message(stranger, offer)), 400},
		{"wrong state, all offers made", message(stranger, offer), 409},
	} {
		if _, err := one.Next(active, c.m, noon); status(t, err) != c.status {
			t.Errorf("%s: error %v, want status %d", c.name, err, c.status)
		}
	}
}

// TestOfferLimit checks the default limit of 100 offers in a thread.
func TestOfferLimit(t *testing.T) {
	th := play(t, message(client, request))
	var rules thread.Rules
	for i := range 100 {
		agent := didkey.DID(fmt.Sprint("agent", i%7))
		var err error
		if th, err = rules.Next(th, message(agent, offer), noon); err != nil {
			t.Fatalf("offer %d: %v", i+1, err)
		}
		if i%10 == 0 { // withdrawn offers count too
			if th, err = rules.Next(th, message(agent, failure), noon); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err := rules.Next(th, message(stranger, offer), noon)
	if status(t, err) != 429 || err.(*envelope.Error).Details["maxOffers"] != 100 {
		t.Errorf("offer 101: error %v, want 429 with maxOffers 100", err)
	}
	if _, err := rules.Next(th, to(th.Offers[0].Agent, message(client, accept)), noon); err != nil {
		t.Errorf("ACCEPT after all offers: %v", err)
	}
}

// TestNextSharesNothing checks that the threads that Next returns share no slices with the old thread or with each
// other, even if the slices of the old thread have spare capacity.
func TestNextSharesNothing(t *testing.T) {
	th := play(t, message(client, request), message(offered, offer), message(accepted, offer))
	th.Offers = slices.Grow(th.Offers, 10)
	th.Transitions = slices.Grow(th.Transitions, 10)
	before := text(t, th)
	moves := []*envelope.Envelope{
		message(stranger, offer), message(named, offer), message(offered, failure), message(accepted, failure),
		to(offered, message(client, accept)), to(accepted, message(client, accept)), message(client, cancel),
	}
	var successors []thread.Thread
	var texts []string
	for _, m := range moves {
		next, err := (thread.Rules{}).Next(th, m, noon)
		if err != nil {
			t.Fatal(err)
		}
		successors, texts = append(successors, next), append(texts, text(t, next))
	}
	for i, next := range successors {
		if text(t, next) != texts[i] {
			t.Errorf("the thread after %s changed when Next was called again", moves[i].ID)
		}
	}
	for _, next := range successors { // overwrite the new threads
		clear(next.Offers[:cap(next.Offers)])
		clear(next.Transitions[:cap(next.Transitions)])
	}
	if text(t, th) != before {
		t.Errorf("the old thread changed from\n%s\nto\n%s", before, text(t, th))
	}
}
