package conformance

import (
	"encoding/json"

	"github.com/agora-relay/agora/envelope"
)

// ifFeature returns a check that runs only if the well-known document lists a feature. run gets the document.
func ifFeature(name string, run func(p *relayProbe, document answer)) func(*relayProbe) {
	return func(p *relayProbe) {
		a := p.document()
		if !hasFeature(a, name) {
			p.end(NotTested, "the well-known document does not list the feature %q", name)
		}
		run(p, a)
	}
}

// variant is one change to a good message, which makes it wrong or keeps it right.
type variant struct {
	what string
	edit func(message)                      // changes the message before it is signed; may be nil
	text func(string) string                // changes the signed text; may be nil
	sign func(message, actor) signedMessage // signs instead of message.sign; may be nil
}

// signed returns a REQUEST with the change.
func (v variant) signed(p *relayProbe, from, to actor) signedMessage {
	m := p.request(from, to)
	if v.edit != nil {
		v.edit(m)
	}
	sign := message.sign
	if v.sign != nil {
		sign = v.sign
	}
	signed := sign(m, from)
	if v.text != nil {
		signed.body = []byte(v.text(string(signed.body)))
	}
	signed.what = "a REQUEST that is correct except for: " + v.what
	return signed
}

// refuses returns a check that posts a good REQUEST, which the relay must accept, and then each variant of it. The
// relay must refuse the variants and must not deliver them.
func refuses(want refusal, variants ...variant) func(*relayProbe) {
	return func(p *relayProbe) {
		from, to := p.actor("a client"), p.actor("an agent")
		good := p.postAccepted(from, p.request(from, to))
		for _, v := range variants {
			signed := v.signed(p, from, to)
			p.postRefused(want, signed.what, signed.body)
		}
		p.describe("GET /events for the recipient of the refused messages")
		p.checkInbox(to, good)
		p.note("%d messages refused, none delivered", len(variants))
	}
}

// accepts returns a check that posts each variant of a good REQUEST. The relay must accept each and deliver it as
// signed.
func accepts(variants ...variant) func(*relayProbe) {
	return func(p *relayProbe) {
		from, to := p.actor("a client"), p.actor("an agent")
		sent := map[string]signedMessage{}
		for _, v := range variants {
			signed := v.signed(p, from, to)
			p.checkAccepted(p.post("a REQUEST with "+v.what, signed.body), signed)
			sent[signed.id] = signed
		}
		events := p.inbox(to)
		p.expect("%d events, one for each accepted message", len(variants))
		if len(events) != len(variants) {
			p.failf("%d events: %s", len(events), ids(events))
		}
		for _, e := range events {
			signed, ok := sent[e.id()]
			if !ok {
				p.failf("the answer contains an event that was not posted: %s", excerpt(e.raw, 300))
			}
			form, err := envelope.Canonicalize(signed.body)
			if err != nil {
				panic(err) // cannot happen: an accepted variant is JSON
			}
			if inner, wrapped := unwrap(form); wrapped {
				form = inner
			}
			signed.body = form
			p.checkUnchanged(e, signed)
		}
		p.note("%d messages accepted and delivered", len(variants))
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
func (p *relayProbe) checkInOrder(events []event, messages ...signedMessage) {
	p.checkEvents(events, messages...)
	p.expect("the events in the order %s", names(messages))
	for i, e := range events {
		if e.id() != messages[i].id {
			p.failf("the events are in the order %s", ids(events))
		}
	}
}
