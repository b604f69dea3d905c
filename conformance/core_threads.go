package conformance

const transitions = "spec: State Transitions"

// coreThreadChecks are the rows of the specification's table, and what it excludes.
func coreThreadChecks() []Check {
	return append([]Check{
		{Number: "C-20", Title: "REQUEST, OFFER, ACCEPT and RESULT are accepted in this order and each reaches its recipient",
			Cites: "spec: Message Lifecycle", run: wholeTalk},
	}, turns([]turn{
		{number: "C-21", title: "A request gets several OFFERs", cites: transitions + " (multiple OFFERs allowed)",
			after: "c.REQUEST a.OFFER b.OFFER a.OFFER"},
		{number: "C-22", title: "A thread has one ACCEPT", cites: transitions + " (one ACCEPT per thread)",
			after: "c.REQUEST a.OFFER b.OFFER c.ACCEPT>a", refused: "c.ACCEPT>a c.ACCEPT>b", how: anyhow, then: "a.RESULT"},
		{number: "C-23", title: "A RESULT is refused while nothing was accepted", cites: transitions,
			after: "c.REQUEST a.OFFER", refused: "a.RESULT", how: anyhow, then: "c.ACCEPT>a a.RESULT"},
		{number: "C-24", title: "A completed thread takes no further RESULT, OFFER or ACCEPT", cites: transitions,
			after: "c.REQUEST a.OFFER c.ACCEPT>a a.RESULT", refused: "a.RESULT a.OFFER c.ACCEPT>a", how: anyhow},
		{number: "C-25", title: "The client cancels an active thread, which ends it", cites: transitions,
			after: "c.REQUEST a.OFFER c.ACCEPT>a c.CANCEL>a", refused: "a.RESULT", how: anyhow},
		{number: "C-26", title: "An ERROR by a party ends a pending thread", cites: transitions + " (ERROR is terminal)",
			after: "c.REQUEST>a a.OFFER a.ERROR", refused: "c.ACCEPT>a a.OFFER", how: anyhow},
		{number: "C-27", title: "An ERROR by a party ends an active thread", cites: transitions + " (ERROR is terminal)",
			after: "c.REQUEST a.OFFER c.ACCEPT>a a.ERROR", refused: "a.RESULT c.CANCEL>a", how: anyhow},
		{number: "C-28", title: "A thread begins with a REQUEST: nothing else is accepted before it", cites: transitions,
			refused: "a.OFFER c.ACCEPT>a a.RESULT c.CANCEL>a", how: anyhow, then: "c.REQUEST a.OFFER"},
		{number: "C-29", title: "An OFFER is refused once one was accepted", cites: transitions,
			after: "c.REQUEST a.OFFER c.ACCEPT>a", refused: "b.OFFER a.OFFER", how: anyhow, then: "a.RESULT"},
	})...)
}

func wholeTalk(p *probe) {
	t := p.talk()
	letters := t.play("c.REQUEST>a a.OFFER>c c.ACCEPT>a a.RESULT>c")
	p.sending("GET /events for the agent, after a whole conversation")
	p.arrives(t.who["a"], letters[0], letters[2])
	p.sending("GET /events for the client, after a whole conversation")
	p.arrives(t.who["c"], letters[1], letters[3])
}
