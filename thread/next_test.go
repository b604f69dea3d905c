package thread_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

func TestAcceptChoosesTheAgent(t *testing.T) {
	type messages = []*envelope.Envelope
	for name, c := range map[string]struct {
		before messages
		accept didkey.DID // its recipient
		status int
		agent  didkey.DID
	}{
		"nobody offered":                   {nil, "", 409, ""},
		"nobody offered, one is named":     {nil, offered, 409, ""},
		"one offered":                      {messages{message(offered, offer)}, "", 0, offered},
		"one offered and is named":         {messages{message(offered, offer)}, offered, 0, offered},
		"one offered twice":                {messages{message(offered, offer), message(offered, offer)}, "", 0, offered},
		"one offered, another is named":    {messages{message(offered, offer)}, stranger, 409, ""},
		"one offered, the client is named": {messages{message(offered, offer)}, client, 409, ""},
		"two offered":                      {messages{message(offered, offer), message(accepted, offer)}, "", 409, ""},
		"two offered, the second is named": {messages{message(offered, offer), message(accepted, offer)}, accepted, 0, accepted},
		"one of two withdrew":              {messages{message(withdrew, offer), message(offered, offer), message(withdrew, failure)}, "", 0, offered},
		"who withdrew is named":            {messages{message(withdrew, offer), message(withdrew, failure)}, withdrew, 409, ""},
		"withdrew and came back":           {messages{message(withdrew, offer), message(withdrew, failure), message(withdrew, offer)}, "", 0, withdrew},
	} {
		before := play(t, slices.Concat(messages{message(client, request)}, c.before)...)
		next, err := (thread.Rules{}).Next(before, to(c.accept, message(client, accept)), noon)
		if got := status(t, err); got != c.status || next.Agent != c.agent {
			t.Errorf("%s: agent %q, %v; want %q and %d", name, next.Agent, err, c.agent, c.status)
		}
	}
	silent := play(t, to(named, message(client, request))) // the REQUEST names an agent, who has not offered
	if _, err := (thread.Rules{}).Next(silent, to(named, message(client, accept)), noon); status(t, err) != 409 {
		t.Errorf("the named agent is accepted before it offers: %v", err)
	}
}

// recipient.id, if given, is the sender's counterpart in the thread.
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
		{"CANCEL to one who offered", open, to(offered, message(client, cancel)), 0},
		{"CANCEL to one who did not", open, to(stranger, message(client, cancel)), 403},
		{"CANCEL to the named agent, who is silent", direct, to(named, message(client, cancel)), 0},
		{"CANCEL past the named agent", direct, to(stranger, message(client, cancel)), 403},
		{"ERROR of the named agent to the client", direct, to(client, message(named, failure)), 0},
		{"CANCEL to the accepted agent", active, to(accepted, message(client, cancel)), 0},
		{"CANCEL to another who offered", active, to(offered, message(client, cancel)), 403},
		{"ERROR to another who offered", active, to(offered, message(client, failure)), 403},
		{"RESULT to the client", active, to(client, message(accepted, result)), 0},
		{"RESULT to somebody else", active, to(offered, message(accepted, result)), 403},
	} {
		if _, err := (thread.Rules{}).Next(play(t, c.before...), c.m, noon); status(t, err) != c.status {
			t.Errorf("%s: %v, want %d", c.name, err, c.status)
		}
	}
}

func TestPayloads(t *testing.T) {
	type messages = []*envelope.Envelope
	open := messages{message(client, request), message(offered, offer)}
	active := slices.Concat(open, messages{message(client, accept)})
	for _, c := range []struct {
		before  messages // none: m begins a thread
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
			t.Errorf("%s with %s: %v, want %d", c.m.Type, c.payload, err, c.status)
		}
	}
}

func TestRequestID(t *testing.T) {
	pending := play(t, message(client, request), message(offered, offer))
	active := play(t, message(client, request), message(offered, offer), message(client, accept))
	for _, c := range []struct {
		in     thread.Thread
		by     didkey.DID
		typ    envelope.Type
		absent int
	}{
		{pending, offered, offer, 400}, {pending, client, accept, 400}, {active, offered, result, 400},
		{pending, client, cancel, 0}, {active, client, failure, 0}, {active, offered, failure, 0},
	} {
		for id, want := range map[string]int{"req": 0, "other": 400, "": c.absent} {
			_, err := (thread.Rules{}).Next(c.in, withRequestID(id, message(c.by, c.typ)), noon)
			if status(t, err) != want {
				t.Errorf("%s by %s with request_id %q: %v, want %d", c.typ, c.by, id, err, want)
			}
		}
	}
	// A REQUEST may have none; then its thread has none.
	bare := play(t, withRequestID("", message(client, request)))
	for id, want := range map[string]int{"": 0, "req": 400} {
		if _, err := (thread.Rules{}).Next(bare, withRequestID(id, message(offered, offer)), noon); status(t, err) != want {
			t.Errorf("request_id %q in a thread that has none: %v, want %d", id, err, want)
		}
	}
}

// The first that applies: party, content, state, limit.
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
		{"wrong state, no offer left", message(stranger, offer), 409},
	} {
		if _, err := one.Next(active, c.m, noon); status(t, err) != c.status {
			t.Errorf("%s: %v, want %d", c.name, err, c.status)
		}
	}
}

func TestOfferLimit(t *testing.T) {
	th := play(t, message(client, request))
	var rules thread.Rules
	for i := range 100 {
		agent := didkey.DID(fmt.Sprint("agent", i%7))
		var err error
		if th, err = rules.Next(th, message(agent, offer), noon); err != nil {
			t.Fatalf("offer %d: %v", i+1, err)
		}
		if i%10 == 0 { // a withdrawn offer has been made all the same
			if th, err = rules.Next(th, message(agent, failure), noon); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err := rules.Next(th, message(stranger, offer), noon)
	if status(t, err) != 429 || err.(*envelope.Error).Details["maxOffers"] != 100 {
		t.Errorf("offer 101: %v", err)
	}
	if _, err := rules.Next(th, to(th.Offers[0].Agent, message(client, accept)), noon); err != nil {
		t.Errorf("ACCEPT after all offers: %v", err)
	}
}

// Two successors of one thread share nothing with it nor with each other, even where its slices have room to grow.
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
			t.Errorf("the thread after %s changed when the next one was made", moves[i].ID)
		}
	}
	for _, next := range successors { // now write all over them
		clear(next.Offers[:cap(next.Offers)])
		clear(next.Transitions[:cap(next.Transitions)])
	}
	if text(t, th) != before {
		t.Errorf("the thread changed:\n%s\n%s", before, text(t, th))
	}
}
