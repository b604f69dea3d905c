package conformance

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
)

const aliases = overHTTP + " (aliases for existing clients)"

// clientChecks test what existing clients use that the specification does not define.
var clientChecks = []relayCheck{
	{Number: "X-30", Title: "POST and GET /v1/messages work like POST and GET /events",
		Cites: aliases, run: func(p *relayProbe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			signed := p.request(client, agent).sign(client)
			p.checkAccepted(p.call(signed.what, "POST", "/v1/messages", nil, signed.body, 0), signed)
			a := p.call("", "GET", "/v1/messages"+query("since", p.hourAgo(), "recipient", agent.did(), "timeout", "0"),
				nil, nil, 0)
			p.checkEvents(p.checkPage(a), signed)
			p.checkInbox(agent, signed)
		}},
	{Number: "X-31", Title: "GET /v1/agents and /v1/agents/{did} work like GET /agents and /agents/{did}",
		Cites: aliases, run: func(p *relayProbe) {
			agent, intent := p.actor("an agent"), newID("intent")
			p.postAccepted(agent, p.manifest(agent, "cap", intent))
			p.checkAgents(p.call("", "GET", "/v1/agents"+query("intent", intent), nil, nil, 0), agent)
			a := p.call("", "GET", "/v1/agents/"+agent.did(), nil, nil, 0)
			p.expect("status 200 with agent.id")
			if a.status != 200 || a.object("agent").text("id") != agent.did() {
				p.failf("%s", a)
			}
		}},
	{Number: "X-32",
		Title: "A conversation with the existing SDK works: wrapped envelopes, no recipient and thread, since = lastTs",
		Cites: aliases + "; §1 body, thread.id; §4 (recipient.id, if given)", wait: 4 * second, run: sdkConversation},
}

func checkDID(text string) error {
	_, err := didkey.Parse(text)
	return err
}

// sdk behaves like the existing TypeScript SDK. It posts {"envelope":…} to /v1/messages and ignores the HTTP status: it
// reads only ok. It polls with timeout 1 and with since = the ts of the last event, or lastTs if the answer is empty.
// The real SDK names thread and recipient in a REQUEST and in no other message. Here the REQUEST has neither, so that
// the thread is identified only by request_id.
type sdk struct {
	p     *relayProbe
	actor actor
	since string
}

// post posts a message as the SDK does. It checks only ok.
func (s *sdk) post(typ, request string) {
	m := s.p.message(typ, s.actor, actor{}, "", request)
	delete(m, "thread")
	delete(m, "meta")
	signed := m.sign(s.actor)
	body, err := json.Marshal(map[string]json.RawMessage{"envelope": signed.body})
	if err != nil {
		panic(err) // cannot happen: the RFC 8785 form is JSON
	}
	a := s.p.call(signed.what+", without recipient, thread and meta, inside {\"envelope\":…}", "POST", "/v1/messages",
		nil, body, 0)
	s.p.expect("ok true")
	if ok, _ := a.ok(); !ok {
		s.p.failf("%s", a)
	}
}

// poll polls once, as the SDK's loop does, and returns the events.
func (s *sdk) poll(request string) []event {
	p := s.p
	// The real SDK polls for all events and ignores those of other threads. This poll selects the thread, because a
	// relay may have other traffic.
	a := p.call("", "GET", "/v1/messages"+query("since", s.since, "thread", request, "timeout", "1"), nil, nil, second)
	p.expect("ok true, events, and lastTs if events is empty")
	ok, _ := a.ok()
	events, isList := eventsOf(a)
	if !ok || !isList {
		p.failf("%s", a)
	}
	if len(events) > 0 {
		s.since = events[len(events)-1].text("ts")
	} else if s.since = a.text("lastTs"); s.since == "" {
		p.failf("the answer has no events and no lastTs for the next poll: %s", a)
	}
	return events
}

// waitFor polls until a message of this type arrives in the thread.
func (s *sdk) waitFor(typ, request string) {
	for started := time.Now(); time.Since(started) < 10*time.Second; {
		if slices.ContainsFunc(s.poll(request), func(e event) bool { return e.text("type") == typ }) {
			return
		}
	}
	s.p.expect("the %s reaches %s within 10 seconds", typ, s.actor.name)
	s.p.failf("it was not received; the next since would be %s", s.since)
}

func sdkConversation(p *relayProbe) {
	client, agent := &sdk{
		p,
		p.actor("the client"),
		formatTime(p.now().Add(-second)),
	}, &sdk{
		p,
		p.actor("the agent"),
		formatTime(p.now().Add(-second)),
	}
	request := newID("req")
	agent.poll(request) // there is no event yet, so the agent continues from lastTs
	client.post("REQUEST", request)
	agent.waitFor("REQUEST", request)
	agent.post("OFFER", request)
	client.waitFor("OFFER", request)
	client.post("ACCEPT", request)
	agent.waitFor("ACCEPT", request)
	agent.post("RESULT", request)
	client.waitFor("RESULT", request)
}
