package relay

import "github.com/agora-relay/agora/conformance/kit"

const transitions = "spec: State Transitions"

// coreThreadChecks returns checks of the specification's table of state transitions.

func coreThreadChecks() []relayCheck {
	return append([]relayCheck{
		{Number: "C-20",
			Title: "REQUEST, OFFER, ACCEPT and RESULT are accepted in this order and reach their recipients",
			Cites: "spec: Message Lifecycle", run: wholeConversation},
	}, threadChecks([]threadRule{
		{number: "C-21", title: "A thread accepts several OFFERs", cites: transitions + " (multiple OFFERs allowed)",
			setup: "c.REQUEST a.OFFER b.OFFER a.OFFER"},
		{number: "C-22", title: "A thread accepts only one ACCEPT", cites: transitions + " (one ACCEPT per thread)",
			setup: "c.REQUEST a.OFFER b.OFFER c.ACCEPT>a", refused: "c.ACCEPT>a c.ACCEPT>b",
			want: kit.AnyRefusal, then: "a.RESULT"},
		{number: "C-23", title: "A RESULT before the ACCEPT is refused", cites: transitions,
			setup: "c.REQUEST a.OFFER", refused: "a.RESULT", want: kit.AnyRefusal, then: "c.ACCEPT>a a.RESULT"},
		{number: "C-24", title: "A completed thread refuses another RESULT, OFFER or ACCEPT", cites: transitions,
			setup: "c.REQUEST a.OFFER c.ACCEPT>a a.RESULT", refused: "a.RESULT a.OFFER c.ACCEPT>a", want: kit.AnyRefusal},
		{number: "C-25", title: "A CANCEL from the client ends an active thread", cites: transitions,
			setup: "c.REQUEST a.OFFER c.ACCEPT>a c.CANCEL>a", refused: "a.RESULT", want: kit.AnyRefusal},
		{number: "C-26", title: "An ERROR from a party ends a pending thread",
			cites: transitions + " (ERROR is terminal)",
			setup: "c.REQUEST>a a.OFFER a.ERROR", refused: "c.ACCEPT>a a.OFFER", want: kit.AnyRefusal},
		{number: "C-27", title: "An ERROR from a party ends an active thread",
			cites: transitions + " (ERROR is terminal)",
			setup: "c.REQUEST a.OFFER c.ACCEPT>a a.ERROR", refused: "a.RESULT c.CANCEL>a", want: kit.AnyRefusal},
		{number: "C-28", title: "The first message of a thread must be a REQUEST", cites: transitions,
			refused: "a.OFFER c.ACCEPT>a a.RESULT c.CANCEL>a", want: kit.AnyRefusal, then: "c.REQUEST a.OFFER"},
		{number: "C-29", title: "An OFFER after the ACCEPT is refused", cites: transitions,
			setup: "c.REQUEST a.OFFER c.ACCEPT>a", refused: "b.OFFER a.OFFER", want: kit.AnyRefusal, then: "a.RESULT"},
	})...)
}

func wholeConversation(p *relayProbe) {
	t := p.conversation()
	messages := t.play("c.REQUEST>a a.OFFER>c c.ACCEPT>a a.RESULT>c")
	p.Describe("GET /events for the agent, after a whole conversation")
	p.CheckInbox(t.actors["a"], messages[0], messages[2])
	p.Describe("GET /events for the client, after a whole conversation")
	p.CheckInbox(t.actors["c"], messages[1], messages[3])
}
