package relay

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/didkey"
)

const aliases = overHTTP + " (aliases for existing clients)"

// clientChecks test what existing clients use that the specification does not define.
var clientChecks = []relayCheck{
	{Number: "X-30", Title: "POST and GET /v1/messages work like POST and GET /events",
		Cites: aliases, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			signed := p.Request(client, agent).Sign(client)
			p.CheckAccepted(p.Call(signed.What, "POST", "/v1/messages", nil, signed.Body, 0), signed)
			a := p.Call("", "GET", "/v1/messages"+kit.Query("since", p.HourAgo(), "recipient", agent.DID(), "timeout", "0"),
				nil, nil, 0)
			p.CheckEvents(p.CheckPage(a), signed)
			p.CheckInbox(agent, signed)
		}},
	{Number: "X-31", Title: "GET /v1/agents and /v1/agents/{did} work like GET /agents and /agents/{did}",
		Cites: aliases, run: func(p *relayProbe) {
			agent, intent := p.Actor("an agent"), kit.NewID("intent")
			p.PostAccepted(agent, p.manifest(agent, "cap", intent))
			p.checkAgents(p.Call("", "GET", "/v1/agents"+kit.Query("intent", intent), nil, nil, 0), agent)
			a := p.Call("", "GET", "/v1/agents/"+agent.DID(), nil, nil, 0)
			p.Expect("status 200 with agent.id")
			if a.Status != 200 || a.Object("agent").Text("id") != agent.DID() {
				p.Failf("%s", a)
			}
		}},
	{Number: "X-32",
		Title: "A conversation with the existing SDK works: wrapped envelopes, no recipient and thread, since = lastTs",
		Cites: aliases + "; §1 body, thread.id; §4 (recipient.id, if given)", wait: 4 * time.Second, run: sdkConversation},
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
	actor kit.Actor
	since string
}

// post posts a message as the SDK does. It checks only ok.
func (s *sdk) post(typ, request string) {
	m := s.p.Message(typ, s.actor, kit.Actor{}, "", request)
	delete(m, "thread")
	delete(m, "meta")
	signed := m.Sign(s.actor)
	body, err := json.Marshal(map[string]json.RawMessage{"envelope": signed.Body})
	if err != nil {
		panic(err) // cannot happen: the RFC 8785 form is JSON
	}
	a := s.p.Call(signed.What+", without recipient, thread and meta, inside {\"envelope\":…}", "POST", "/v1/messages",
		nil, body, 0)
	s.p.Expect("ok true")
	if ok, _ := a.OK(); !ok {
		s.p.Failf("%s", a)
	}
}

// poll polls once, as the SDK's loop does, and returns the events.
func (s *sdk) poll(request string) []kit.Event {
	p := s.p
	// The real SDK polls for all events and ignores those of other threads. This poll selects the thread, because a
	// relay may have other traffic.
	a := p.Call("", "GET", "/v1/messages"+kit.Query("since", s.since, "thread", request, "timeout", "1"), nil, nil,
		time.Second)
	p.Expect("ok true, events, and lastTs if events is empty")
	ok, _ := a.OK()
	events, isList := kit.EventsOf(a)
	if !ok || !isList {
		p.Failf("%s", a)
	}
	if len(events) > 0 {
		s.since = events[len(events)-1].Text("ts")
	} else if s.since = a.Text("lastTs"); s.since == "" {
		p.Failf("the answer has no events and no lastTs for the next poll: %s", a)
	}
	return events
}

// waitFor polls until a message of this type arrives in the thread.
func (s *sdk) waitFor(typ, request string) {
	for started := time.Now(); time.Since(started) < 10*time.Second; {
		if slices.ContainsFunc(s.poll(request), func(e kit.Event) bool { return e.Text("type") == typ }) {
			return
		}
	}
	s.p.Expect("the %s reaches %s within 10 seconds", typ, s.actor.Name)
	s.p.Failf("it was not received; the next since would be %s", s.since)
}

func sdkConversation(p *relayProbe) {
	client, agent := &sdk{
		p,
		p.Actor("the client"),
		kit.FormatTime(p.Now().Add(-time.Second)),
	}, &sdk{
		p,
		p.Actor("the agent"),
		kit.FormatTime(p.Now().Add(-time.Second)),
	}
	request := kit.NewID("req")
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
