package conformance

import "github.com/agora-relay/agora/envelope"

const threadTable = "PROTOCOL §4 "

// strictThreadChecks are the cells of PROTOCOL §4's table: who may do what, when, and what they hear otherwise.
func strictThreadChecks() []Check {
	return append(turns([]turn{
		{number: "S-60", title: "A message to no thread is 404 THREAD_NOT_FOUND", cites: threadTable + "(no thread with this id → 404)",
			refused: "a.OFFER c.ACCEPT>a a.RESULT c.CANCEL a.ERROR", how: noThread},
		{number: "S-61", title: "A stranger moves nothing: 403 FORBIDDEN", cites: threadTable + "(wrong party → 403)",
			after: "c.REQUEST>a a.OFFER", refused: "s.OFFER s.ACCEPT s.RESULT s.CANCEL s.ERROR", how: forbidden, then: "c.ACCEPT>a"},
		{number: "S-62", title: "A stranger's RESULT, ERROR or CANCEL in an active thread is 403 FORBIDDEN", cites: threadTable + "(ACTIVE)",
			after: "c.REQUEST a.OFFER c.ACCEPT>a", refused: "s.RESULT s.ERROR s.CANCEL", how: forbidden, then: "a.RESULT"},
		{number: "S-63", title: "The RESULT is the accepted agent's, not another's who offered", cites: threadTable + "(ACTIVE, RESULT)",
			after: "c.REQUEST a.OFFER b.OFFER c.ACCEPT>a", refused: "b.RESULT c.RESULT>-", how: forbidden, then: "a.RESULT"},
		{number: "S-64", title: "Only the named recipient may offer", cites: threadTable + "(PENDING, OFFER)",
			after: "c.REQUEST>a", refused: "b.OFFER", how: forbidden, then: "a.OFFER"},
		{number: "S-65", title: "The client does not offer in its own thread", cites: threadTable + "(PENDING, OFFER)",
			after: "c.REQUEST", refused: "c.OFFER>-", how: forbidden, then: "a.OFFER"},
		{number: "S-66", title: "ACCEPT and CANCEL are the client's", cites: threadTable + "(PENDING, ACCEPT; CANCEL)",
			after: "c.REQUEST a.OFFER", refused: "a.ACCEPT a.CANCEL b.ACCEPT", how: forbidden, then: "c.ACCEPT>a"},
		{number: "S-67", title: "An ACCEPT needs an offer by the agent it names", cites: threadTable + "(PENDING, ACCEPT)",
			after: "c.REQUEST a.OFFER", refused: "c.ACCEPT>b", how: wrongState, then: "c.ACCEPT>a"},
		{number: "S-68", title: "An ACCEPT that names nobody needs exactly one agent who offered", cites: threadTable + "(PENDING, ACCEPT)",
			after: "c.REQUEST a.OFFER b.OFFER", refused: "c.ACCEPT", how: wrongState, then: "c.ACCEPT>b b.RESULT"},
		{number: "S-69", title: "An ACCEPT that names nobody takes the only agent's offer", cites: threadTable + "(PENDING, ACCEPT)",
			after: "c.REQUEST a.OFFER a.OFFER c.ACCEPT a.RESULT"},
		{number: "S-70", title: "An ACCEPT without any offer is 409", cites: threadTable + "(PENDING, ACCEPT)",
			after: "c.REQUEST", refused: "c.ACCEPT", how: wrongState, then: "a.OFFER c.ACCEPT"},
		{number: "S-71", title: "One ACCEPT ever: a second is 409 INVALID_TRANSITION", cites: threadTable + "(PENDING, ACCEPT)",
			after: "c.REQUEST a.OFFER b.OFFER c.ACCEPT>a", refused: "c.ACCEPT>a", how: wrongState, then: "a.RESULT"},
		{number: "S-72", title: "An OFFER in an active thread is 409", cites: threadTable + "(wrong state → 409)",
			after: "c.REQUEST a.OFFER c.ACCEPT>a", refused: "a.OFFER b.OFFER", how: wrongState},
		{number: "S-73", title: "A RESULT while pending is 409 for an agent who offered", cites: threadTable + "(wrong state → 409)",
			after: "c.REQUEST a.OFFER", refused: "a.RESULT", how: wrongState},
		{number: "S-74", title: "The client cancels a pending thread, which ends it", cites: threadTable + "(PENDING, ACTIVE, CANCEL)",
			after: "c.REQUEST a.OFFER c.CANCEL", refused: "c.ACCEPT>a a.OFFER c.CANCEL", how: wrongState},
		{number: "S-75", title: "The client cancels an active thread, which ends it", cites: threadTable + "(PENDING, ACTIVE, CANCEL)",
			after: "c.REQUEST a.OFFER c.ACCEPT>a c.CANCEL", refused: "a.RESULT c.CANCEL", how: wrongState},
		{number: "S-76", title: "A completed thread is over: 409", cites: threadTable + "(COMPLETED)",
			after: "c.REQUEST a.OFFER c.ACCEPT>a a.RESULT", refused: "a.RESULT c.CANCEL a.OFFER c.ACCEPT>a c.REQUEST", how: wrongState},
		{number: "S-77", title: "An ERROR by a party ends a completed thread too", cites: threadTable + "(any but ERROR, ERROR)",
			after: "c.REQUEST a.OFFER c.ACCEPT>a a.RESULT c.ERROR>a", refused: "a.ERROR c.ERROR", how: wrongState},
		{number: "S-78", title: "The client's ERROR ends a pending thread", cites: threadTable + "(any but ERROR, ERROR)",
			after: "c.REQUEST c.ERROR", refused: "a.OFFER c.ERROR c.CANCEL", how: wrongState},
		{number: "S-79", title: "The named recipient's ERROR ends a thread before it has offered", cites: threadTable + "(any but ERROR, ERROR)",
			after: "c.REQUEST>a a.ERROR", refused: "a.OFFER", how: wrongState},
		{number: "S-80", title: "An ERROR by another agent who offered withdraws its offer and changes no state", cites: threadTable + "(any but ERROR, ERROR)",
			after: "c.REQUEST a.OFFER b.OFFER b.ERROR", refused: "c.ACCEPT>b", how: wrongState, then: "c.ACCEPT a.RESULT"},
		{number: "S-81", title: "An ERROR by an agent who was not accepted leaves an active thread active", cites: threadTable + "(any but ERROR, ERROR)",
			after: "c.REQUEST a.OFFER b.OFFER c.ACCEPT>a b.ERROR a.RESULT"},
		{number: "S-82", title: "A thread's id is not used again by its client: 409", cites: threadTable + "(OPEN, REQUEST; the id cannot be used again)",
			after: "c.REQUEST", refused: "c.REQUEST", how: wrongState, then: "a.OFFER"},
		{number: "S-83", title: "A recipient who is not the sender's counterpart is 403", cites: threadTable + "(recipient.id, if given, is its counterpart)",
			after: "c.REQUEST a.OFFER", refused: "a.OFFER>s b.OFFER>s", how: forbidden, then: "b.OFFER>c"},
		{number: "S-84", title: "Moves without a recipient are accepted from the parties", cites: threadTable + "(recipient.id, if given)",
			after: "c.REQUEST>a a.OFFER>- c.ACCEPT a.RESULT>-"},
	}), Check{Number: "S-85", Title: "A copied thread id neither moves, blocks nor shadows the thread it was copied from",
		Cites: threadTable + "(a thread is client DID and thread id)", run: hijack},
		Check{Number: "S-86", Title: "OFFER, ACCEPT and RESULT carry the REQUEST's request_id", Cites: threadTable + "(another one → 400)", run: requestIDs},
		Check{Number: "S-87", Title: "REQUEST needs intent, ERROR code and message, RESULT status", Cites: threadTable + "(REQUEST needs a non-empty intent)", run: payloads},
		Check{Number: "S-88", Title: "The refusal of a wrong state names the state in details.state", Cites: threadTable + "(409 with details.state)", run: namesState},
		Check{Number: "S-89", Title: "A refused message is not delivered", Cites: threadTable + "(a refused message is not stored, not delivered)", run: func(p *probe) {
			t := p.talk()
			letters := t.play("c.REQUEST>a a.OFFER")
			t.refuse(wrongState, "c.REQUEST>a a.OFFER", "a.RESULT")
			t.refuse(forbidden, "c.REQUEST>a a.OFFER", "b.OFFER")
			p.sending("GET /events for the client, after a refused RESULT and a refused OFFER")
			p.arrives(t.who["c"], letters[1])
		}},
	)
}

func hijack(p *probe) {
	t := p.talk()
	t.play("c.REQUEST>a")
	const copied = "c.REQUEST>a"
	for _, move := range []string{"s.REQUEST>a", "s.REQUEST>b"} {
		l := t.letter(move)
		if move == "s.REQUEST>b" {
			p.refuse(wrongState, "the stranger's second REQUEST in the thread that copies the id", l.body)
			continue
		}
		l.what = "a stranger's REQUEST with the thread id of another client, which opens a thread of its own"
		p.acceptLetter(l)
	}
	t.play("a.OFFER")
	t.refuse(forbidden, copied+" s.REQUEST a.OFFER", "s.RESULT b.OFFER")
	t.play("c.ACCEPT>a a.RESULT")
}

func requestIDs(p *probe) {
	t := p.talk()
	t.play("c.REQUEST>a")
	wrong := func(move string) {
		for what, edit := range map[string]func(message){"another request_id": set("payload.request_id", "req_other"), "no request_id": without("payload.request_id")} {
			m, from := t.message(move)
			edit(m)
			p.refuse(invalid, m.sign(from).what+" with "+what, m.sign(from).body)
		}
	}
	wrong("a.OFFER")
	t.play("a.OFFER")
	wrong("c.ACCEPT>a")
	t.play("c.ACCEPT>a")
	wrong("a.RESULT")
	t.play("a.RESULT")
}

func payloads(p *probe) {
	t := p.talk()
	bad := func(move string, edits map[string]func(message)) {
		for what, edit := range edits {
			m, from := t.message(move)
			edit(m)
			p.refuse(invalid, m.sign(from).what+" with "+what, m.sign(from).body)
		}
	}
	bad("c.REQUEST>a", map[string]func(message){"no intent": without("payload.intent"), "an empty intent": set("payload.intent", ""), "a number as intent": set("payload.intent", 1)})
	t.play("c.REQUEST>a a.OFFER c.ACCEPT>a")
	bad("a.RESULT", map[string]func(message){"no status": without("payload.status")})
	bad("a.ERROR", map[string]func(message){"no code": without("payload.code"), "no message": without("payload.message")})
	t.play("a.RESULT")
}

func namesState(p *probe) {
	for after, state := range map[string]string{"c.REQUEST a.OFFER": "PENDING", "c.REQUEST a.OFFER c.ACCEPT>a a.RESULT": "COMPLETED", "c.REQUEST a.OFFER a.OFFER c.ERROR": "ERROR"} {
		t := p.talk()
		t.play(after)
		a := p.refuse(refused(409, envelope.CodeInvalidTransition), "a RESULT that comes at the wrong time, after "+after, t.letter("a.RESULT").body)
		p.expect("details.state is %s", state)
		if got := a.object("details").text("state"); got != state {
			p.failf("%s", a)
		}
	}
}
