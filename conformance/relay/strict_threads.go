package relay

import (
	"github.com/agora-relay/agora/envelope"

	"github.com/agora-relay/agora/conformance/kit"
)

const threadTable = "PROTOCOL §4 "

// strictThreadChecks returns checks of the table in PROTOCOL §4: who may send which message in which state, and how the
// relay refuses other messages.
func strictThreadChecks() []relayCheck {
	return append(threadChecks([]threadRule{
		{number: "S-60", title: "A message to a thread that does not exist is refused with 404 THREAD_NOT_FOUND",
			cites:   threadTable + "(no thread with this id → 404)",
			refused: "a.OFFER c.ACCEPT>a a.RESULT c.CANCEL a.ERROR", want: noThread},
		{number: "S-61",
			title: "A stranger's message to a pending thread with a named recipient is refused with 403 FORBIDDEN",
			cites: threadTable + "(wrong party → 403)",
			setup: "c.REQUEST>a a.OFFER", refused: "s.OFFER s.ACCEPT s.RESULT s.CANCEL s.ERROR",
			want: forbidden, then: "c.ACCEPT>a"},
		{number: "S-62",
			title: "A stranger's RESULT, ERROR or CANCEL in an active thread is refused with 403 FORBIDDEN",
			cites: threadTable + "(ACTIVE)",
			setup: "c.REQUEST a.OFFER c.ACCEPT>a", refused: "s.RESULT s.ERROR s.CANCEL",
			want: forbidden, then: "a.RESULT"},
		{number: "S-63", title: "Only the accepted agent may send the RESULT", cites: threadTable + "(ACTIVE, RESULT)",
			setup: "c.REQUEST a.OFFER b.OFFER c.ACCEPT>a", refused: "b.RESULT c.RESULT>-",
			want: forbidden, then: "a.RESULT"},
		{number: "S-64", title: "Only the recipient that the REQUEST names may send an OFFER",
			cites: threadTable + "(PENDING, OFFER)",
			setup: "c.REQUEST>a", refused: "b.OFFER", want: forbidden, then: "a.OFFER"},
		{number: "S-65", title: "The client may not send an OFFER in its own thread",
			cites: threadTable + "(PENDING, OFFER)",
			setup: "c.REQUEST", refused: "c.OFFER>-", want: forbidden, then: "a.OFFER"},
		{number: "S-66", title: "Only the client may send ACCEPT and CANCEL",
			cites: threadTable + "(PENDING, ACCEPT; CANCEL)",
			setup: "c.REQUEST a.OFFER", refused: "a.ACCEPT a.CANCEL b.ACCEPT", want: forbidden, then: "c.ACCEPT>a"},
		{number: "S-67", title: "An ACCEPT that names an agent without an OFFER is refused with 409",
			cites: threadTable + "(PENDING, ACCEPT)",
			setup: "c.REQUEST a.OFFER", refused: "c.ACCEPT>b", want: wrongState, then: "c.ACCEPT>a"},
		{number: "S-68", title: "An ACCEPT without a recipient is refused with 409 if several agents have sent OFFERs",
			cites: threadTable + "(PENDING, ACCEPT)",
			setup: "c.REQUEST a.OFFER b.OFFER", refused: "c.ACCEPT", want: wrongState, then: "c.ACCEPT>b b.RESULT"},
		{number: "S-69", title: "An ACCEPT without a recipient accepts the OFFER of the only agent that has sent any",
			cites: threadTable + "(PENDING, ACCEPT)",
			setup: "c.REQUEST a.OFFER a.OFFER c.ACCEPT a.RESULT"},
		{number: "S-70", title: "An ACCEPT before any OFFER is refused with 409",
			cites: threadTable + "(PENDING, ACCEPT)",
			setup: "c.REQUEST", refused: "c.ACCEPT", want: wrongState, then: "a.OFFER c.ACCEPT"},
		{number: "S-71", title: "A second ACCEPT is refused with 409 INVALID_TRANSITION",
			cites: threadTable + "(PENDING, ACCEPT)",
			setup: "c.REQUEST a.OFFER b.OFFER c.ACCEPT>a", refused: "c.ACCEPT>a", want: wrongState, then: "a.RESULT"},
		{number: "S-72", title: "An OFFER in an active thread is refused with 409",
			cites: threadTable + "(wrong state → 409)",
			setup: "c.REQUEST a.OFFER c.ACCEPT>a", refused: "a.OFFER b.OFFER", want: wrongState},
		{number: "S-73",
			title: "A RESULT in a pending thread, from an agent that has sent an OFFER, is refused with 409",
			cites: threadTable + "(wrong state → 409)",
			setup: "c.REQUEST a.OFFER", refused: "a.RESULT", want: wrongState},
		{number: "S-74", title: "A CANCEL from the client ends a pending thread",
			cites: threadTable + "(PENDING, ACTIVE, CANCEL)",
			setup: "c.REQUEST a.OFFER c.CANCEL", refused: "c.ACCEPT>a a.OFFER c.CANCEL", want: wrongState},
		{number: "S-75", title: "A CANCEL from the client ends an active thread",
			cites: threadTable + "(PENDING, ACTIVE, CANCEL)",
			setup: "c.REQUEST a.OFFER c.ACCEPT>a c.CANCEL", refused: "a.RESULT c.CANCEL", want: wrongState},
		{number: "S-76", title: "A completed thread refuses REQUEST, OFFER, ACCEPT, RESULT and CANCEL with 409",
			cites: threadTable + "(COMPLETED)",
			setup: "c.REQUEST a.OFFER c.ACCEPT>a a.RESULT", refused: "a.RESULT c.CANCEL a.OFFER c.ACCEPT>a c.REQUEST",
			want: wrongState},
		{number: "S-77", title: "An ERROR from a party is accepted in a completed thread, and ends it",
			cites: threadTable + "(any but ERROR, ERROR)",
			setup: "c.REQUEST a.OFFER c.ACCEPT>a a.RESULT c.ERROR>a", refused: "a.ERROR c.ERROR", want: wrongState},
		{number: "S-78", title: "An ERROR from the client ends a pending thread",
			cites: threadTable + "(any but ERROR, ERROR)",
			setup: "c.REQUEST c.ERROR", refused: "a.OFFER c.ERROR c.CANCEL", want: wrongState},
		{number: "S-79", title: "An ERROR from the named recipient ends a pending thread, even before an OFFER",
			cites: threadTable + "(any but ERROR, ERROR)",
			setup: "c.REQUEST>a a.ERROR", refused: "a.OFFER", want: wrongState},
		{number: "S-80",
			title: "An ERROR from one of several agents with OFFERs withdraws its OFFER and does not change the state",
			cites: threadTable + "(any but ERROR, ERROR)",
			setup: "c.REQUEST a.OFFER b.OFFER b.ERROR", refused: "c.ACCEPT>b",
			want: wrongState, then: "c.ACCEPT a.RESULT"},
		{number: "S-81", title: "An ERROR from an agent that was not accepted does not change an active thread",
			cites: threadTable + "(any but ERROR, ERROR)",
			setup: "c.REQUEST a.OFFER b.OFFER c.ACCEPT>a b.ERROR a.RESULT"},
		{number: "S-82", title: "A second REQUEST from the same client with the same thread id is refused with 409",
			cites: threadTable + "(OPEN, REQUEST; the id cannot be used again)",
			setup: "c.REQUEST", refused: "c.REQUEST", want: wrongState, then: "a.OFFER"},
		{number: "S-83", title: "A message whose recipient is not the sender's counterpart is refused with 403",
			cites: threadTable + "(recipient.id, if given, is its counterpart)",
			setup: "c.REQUEST a.OFFER", refused: "a.OFFER>s b.OFFER>s", want: forbidden, then: "b.OFFER>c"},
		{number: "S-84", title: "The parties may send their messages without a recipient",
			cites: threadTable + "(recipient.id, if given)",
			setup: "c.REQUEST>a a.OFFER>- c.ACCEPT a.RESULT>-"},
	}), relayCheck{Number: "S-85",
		Title: "A stranger's REQUEST with a copied thread id does not change, block or hide the original thread",
		Cites: threadTable + "(a thread is client DID and thread id)", run: copiedThreadID},
		relayCheck{Number: "S-86", Title: "OFFER, ACCEPT and RESULT must have the request_id of the REQUEST",
			Cites: threadTable + "(another one → 400)", run: requestIDs},
		relayCheck{Number: "S-87",
			Title: "A REQUEST needs an intent, an ERROR needs a code and a message, and a RESULT needs a status",
			Cites: threadTable + "(REQUEST needs a non-empty intent)", run: payloads},
		relayCheck{Number: "S-88",
			Title: "The refusal of a message in the wrong state has the thread's state in details.state",
			Cites: threadTable + "(409 with details.state)", run: stateInDetails},
		relayCheck{Number: "S-89", Title: "A refused message is not delivered",
			Cites: threadTable + "(a refused message is not stored, not delivered)", run: func(p *relayProbe) {
				t := p.conversation()
				messages := t.play("c.REQUEST>a a.OFFER")
				t.refuse(wrongState, "c.REQUEST>a a.OFFER", "a.RESULT")
				t.refuse(forbidden, "c.REQUEST>a a.OFFER", "b.OFFER")
				p.Describe("GET /events for the client, after a refused RESULT and a refused OFFER")
				p.CheckInbox(t.actors["c"], messages[1])
			}},
	)
}

func copiedThreadID(p *relayProbe) {
	t := p.conversation()
	t.play("c.REQUEST>a")
	const copied = "c.REQUEST>a"
	for _, move := range []string{"s.REQUEST>a", "s.REQUEST>b"} {
		signed := t.signed(move)
		if move == "s.REQUEST>b" {
			p.PostRefused(wrongState, "the stranger's second REQUEST in its own thread with the copied id", signed.Body)
			continue
		}
		signed.What = "a stranger's REQUEST with the thread id of another client, which opens the stranger's own thread"
		p.PostSigned(signed)
	}
	t.play("a.OFFER")
	t.refuse(forbidden, copied+" s.REQUEST a.OFFER", "s.RESULT b.OFFER")
	t.play("c.ACCEPT>a a.RESULT")
}

func requestIDs(p *relayProbe) {
	t := p.conversation()
	t.play("c.REQUEST>a")
	wrong := func(move string) {
		for what, edit := range map[string]func(kit.Message){"another request_id": kit.Set("payload.request_id", "req_other"),
			"no request_id": kit.Without("payload.request_id")} {
			m, from := t.message(move)
			edit(m)
			p.PostRefused(invalid, m.Sign(from).What+" with "+what, m.Sign(from).Body)
		}
	}
	wrong("a.OFFER")
	t.play("a.OFFER")
	wrong("c.ACCEPT>a")
	t.play("c.ACCEPT>a")
	wrong("a.RESULT")
	t.play("a.RESULT")
}

func payloads(p *relayProbe) {
	t := p.conversation()
	bad := func(move string, edits map[string]func(kit.Message)) {
		for what, edit := range edits {
			m, from := t.message(move)
			edit(m)
			p.PostRefused(invalid, m.Sign(from).What+" with "+what, m.Sign(from).Body)
		}
	}
	bad(
		"c.REQUEST>a",
		map[string]func(kit.Message){
			"no intent":          kit.Without("payload.intent"),
			"an empty intent":    kit.Set("payload.intent", ""),
			"a number as intent": kit.Set("payload.intent", 1),
		},
	)
	t.play("c.REQUEST>a a.OFFER c.ACCEPT>a")
	bad("a.RESULT", map[string]func(kit.Message){"no status": kit.Without("payload.status")})
	bad("a.ERROR",
		map[string]func(kit.Message){"no code": kit.Without("payload.code"), "no message": kit.Without("payload.message")})
	t.play("a.RESULT")
}

func stateInDetails(p *relayProbe) {
	for after, state := range map[string]string{"c.REQUEST a.OFFER": "PENDING",
		"c.REQUEST a.OFFER c.ACCEPT>a a.RESULT": "COMPLETED", "c.REQUEST a.OFFER a.OFFER c.ERROR": "ERROR"} {
		t := p.conversation()
		t.play(after)
		a := p.PostRefused(kit.Refused(409, envelope.CodeInvalidTransition),
			"a RESULT in the wrong state"+afterMoves(after), t.signed("a.RESULT").Body)
		p.Expect("details.state is %s", state)
		if got := a.Object("details").Text("state"); got != state {
			p.Failf("%s", a)
		}
	}
}
