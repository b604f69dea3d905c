package conformance

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
)

const aliases = overHTTP + " (aliases for existing clients)"

// clientChecks are about clients that were written before the relay.
var clientChecks = []Check{
	{Number: "X-30", Title: "POST and GET /v1/messages are POST and GET /events", Cites: aliases, run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		l := p.request(client, agent).sign(client)
		p.accepted(p.call(l.what, "POST", "/v1/messages", nil, l.body, 0), l)
		a := p.call("", "GET", "/v1/messages"+query("since", p.hour(), "recipient", agent.did(), "timeout", "0"), nil, nil, 0)
		p.delivers(p.page(a), l)
		p.arrives(agent, l)
	}},
	{Number: "X-31", Title: "GET /v1/agents and /v1/agents/{did} are GET /agents and /agents/{did}", Cites: aliases, run: func(p *probe) {
		agent, intent := p.actor("an agent"), newID("intent")
		p.accept(agent, p.manifest(agent, "cap", intent))
		p.lists(p.call("", "GET", "/v1/agents"+query("intent", intent), nil, nil, 0), agent)
		a := p.call("", "GET", "/v1/agents/"+agent.did(), nil, nil, 0)
		p.expect("status 200 with agent.id")
		if a.status != 200 || a.object("agent").text("id") != agent.did() {
			p.failf("%s", a)
		}
	}},
	{Number: "X-32", Title: "The ecosystem's SDK holds a whole conversation: wrapped envelopes, no recipient and thread after the REQUEST, since = lastTs",
		Cites: aliases + "; §1 body, thread.id; §4 (recipient.id, if given)", wait: 4 * second, run: sdkTalk},
}

func checkDID(text string) error {
	_, err := didkey.Parse(text)
	return err
}

// sdk is a client as the ecosystem's TypeScript SDK behaves: it posts {"envelope":…} to /v1/messages, names thread and
// recipient in a REQUEST only (and no thread at all here, where request_id is all the others have), polls everything
// with since = the last ts and timeout 1, falls back to lastTs on an empty answer, ignores the HTTP status, reads ok.
type sdk struct {
	p     *probe
	actor actor
	since string
}

// say posts a message as the SDK does and reads nothing but ok.
func (s *sdk) say(typ, request string) {
	m := s.p.message(typ, s.actor, actor{}, "", request)
	delete(m, "thread")
	delete(m, "meta")
	l := m.sign(s.actor)
	body, err := json.Marshal(map[string]json.RawMessage{"envelope": l.body})
	if err != nil {
		panic(err) // canonical text is JSON
	}
	a := s.p.call(l.what+", without recipient, thread and meta, wrapped in {\"envelope\":…}", "POST", "/v1/messages", nil, body, 0)
	s.p.expect("ok true")
	if ok, _ := a.ok(); !ok {
		s.p.failf("%s", a)
	}
}

// poll asks once, as the SDK's loop does, and returns what came.
func (s *sdk) poll(request string) []event {
	p := s.p
	// Others' broadcasts are none of our business: the thread narrows what an SDK's reader would sort out itself.
	a := p.call("", "GET", "/v1/messages"+query("since", s.since, "thread", request, "timeout", "1"), nil, nil, second)
	p.expect("ok true, events, and on an empty answer lastTs")
	ok, _ := a.ok()
	events, isList := eventsOf(a)
	if !ok || !isList {
		p.failf("%s", a)
	}
	if len(events) > 0 {
		s.since = events[len(events)-1].text("ts")
	} else if s.since = a.text("lastTs"); s.since == "" {
		p.failf("no lastTs to go on with: %s", a)
	}
	return events
}

// hear polls until a message of this type in this thread comes.
func (s *sdk) hear(typ, request string) {
	for started := time.Now(); time.Since(started) < 10*time.Second; {
		if slices.ContainsFunc(s.poll(request), func(e event) bool { return e.text("type") == typ }) {
			return
		}
	}
	s.p.expect("the %s reaches %s within 10 seconds", typ, s.actor.name)
	s.p.failf("it does not; the last poll was since %s", s.since)
}

func sdkTalk(p *probe) {
	client, agent := &sdk{p, p.actor("the client"), stamp(p.now().Add(-second))}, &sdk{p, p.actor("the agent"), stamp(p.now().Add(-second))}
	request := newID("req")
	agent.poll(request) // nothing yet: it goes on from lastTs
	client.say("REQUEST", request)
	agent.hear("REQUEST", request)
	agent.say("OFFER", request)
	client.hear("OFFER", request)
	client.say("ACCEPT", request)
	agent.hear("ACCEPT", request)
	agent.say("RESULT", request)
	client.hear("RESULT", request)
}
