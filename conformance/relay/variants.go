package relay

import (
	"encoding/json"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/envelope"
)

// ifFeature returns a check that runs only if the well-known document lists a feature. run gets the document.
func ifFeature(name string, run func(p *relayProbe, document kit.Answer)) func(*relayProbe) {
	return func(p *relayProbe) {
		a := p.Document()
		if !kit.HasFeature(a, name) {
			p.End(kit.NotTested, "the well-known document does not list the feature %q", name)
		}
		run(p, a)
	}
}

// variant is one change to a good message, which makes it wrong or keeps it right.
type variant struct {
	what string
	edit func(kit.Message)                              // changes the message before it is signed; may be nil
	text func(string) string                            // changes the signed text; may be nil
	sign func(kit.Message, kit.Actor) kit.SignedMessage // signs instead of message.sign; may be nil
}

// signed returns a REQUEST with the change.
func (v variant) signed(p *relayProbe, from, to kit.Actor) kit.SignedMessage {
	m := p.Request(from, to)
	if v.edit != nil {
		v.edit(m)
	}
	sign := kit.Message.Sign
	if v.sign != nil {
		sign = v.sign
	}
	signed := sign(m, from)
	if v.text != nil {
		signed.Body = []byte(v.text(string(signed.Body)))
	}
	signed.What = "a REQUEST that is correct except for: " + v.what
	return signed
}

// refuses returns a check that posts a good REQUEST, which the relay must accept, and then each variant of it. The
// relay must refuse the variants and must not deliver them.
func refuses(want kit.Refusal, variants ...variant) func(*relayProbe) {
	return func(p *relayProbe) {
		from, to := p.Actor("a client"), p.Actor("an agent")
		good := p.PostAccepted(from, p.Request(from, to))
		for _, v := range variants {
			signed := v.signed(p, from, to)
			p.PostRefused(want, signed.What, signed.Body)
		}
		p.Describe("GET /events for the recipient of the refused messages")
		p.CheckInbox(to, good)
		p.Note("%d messages refused, none delivered", len(variants))
	}
}

// accepts returns a check that posts each variant of a good REQUEST. The relay must accept each and deliver it as
// signed.
func accepts(variants ...variant) func(*relayProbe) {
	return func(p *relayProbe) {
		from, to := p.Actor("a client"), p.Actor("an agent")
		sent := map[string]kit.SignedMessage{}
		for _, v := range variants {
			signed := v.signed(p, from, to)
			p.CheckAccepted(p.Post("a REQUEST with "+v.what, signed.Body), signed)
			sent[signed.ID] = signed
		}
		events := p.Inbox(to)
		p.Expect("%d events, one for each accepted message", len(variants))
		if len(events) != len(variants) {
			p.Failf("%d events: %s", len(events), kit.IDs(events))
		}
		for _, e := range events {
			signed, ok := sent[e.ID()]
			if !ok {
				p.Failf("the answer contains an event that was not posted: %s", kit.Excerpt(e.Raw, 300))
			}
			form, err := envelope.Canonicalize(signed.Body)
			if err != nil {
				panic(err) // cannot happen: an accepted variant is JSON
			}
			if inner, wrapped := unwrap(form); wrapped {
				form = inner
			}
			signed.Body = form
			p.CheckUnchanged(e, signed)
		}
		p.Note("%d messages accepted and delivered", len(variants))
	}
}

// unwrap returns the envelope in {"envelope":…}. It reports false if form is something else.
func unwrap(form []byte) ([]byte, bool) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(form, &members); err != nil || len(members) != 1 {
		return nil, false
	}
	inner, ok := members["envelope"]
	return inner, ok
}

// checkInOrder ends the check unless events are exactly these messages, in this order.
func (p *relayProbe) checkInOrder(events []kit.Event, messages ...kit.SignedMessage) {
	p.CheckEvents(events, messages...)
	p.Expect("the events in the order %s", names(messages))
	for i, e := range events {
		if e.ID() != messages[i].ID {
			p.Failf("the events are in the order %s", kit.IDs(events))
		}
	}
}
