package relay

import (
	"slices"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

const backwards = overHTTP + " (reading backwards)"

// backwardChecks test reads with before.
var backwardChecks = []relayCheck{
	{Number: "X-45",
		Title: "A reader that follows before from end in small pages receives each event exactly once, the newest first",
		Cites: backwards, run: func(p *relayProbe) {
			agent := p.Actor("an agent")
			sent := p.sentTo(agent, 7)
			slices.Reverse(sent)
			p.checkPages(sent, "before", "end", "recipient", agent.DID())
		}},
	{Number: "X-46", Title: "A reader that follows after receives exactly the events that came after the page",
		Cites: backwards, wait: time.Second, run: followsAfter},
	{Number: "X-47", Title: "before returns what the reader of a cursor has passed, and cursor returns all the rest",
		Cites: backwards, run: bothWays},
	{Number: "X-48", Title: "A read with before is not held", Cites: backwards, wait: time.Second,
		run: func(p *relayProbe) {
			a := p.Poll("before", "end", "recipient", p.Actor("a reader").DID())
			p.CheckEvents(p.CheckPage(a))
			p.checkAtOnce(a.Took)
		}},
	{Number: "X-49", Title: "A read with before returns only events that match all filters",
		Cites: backwards, run: filtersBefore},
	{Number: "X-50", Title: "A read with before does not return expired events",
		Cites: backwards, wait: 7 * time.Second, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			m := p.Request(client, agent)
			expiringSoon(m)
			p.PostAccepted(client, m)
			lasting := p.PostAccepted(client, p.Request(client, agent))
			p.Sleep(7 * time.Second)
			p.CheckEvents(p.Events("before", "end", "recipient", agent.DID()), lasting)
		}},
	{Number: "X-51", Title: "A read with before takes neither since nor cursor nor timeout",
		Cites: backwards, run: func(p *relayProbe) {
			reader := p.Actor("a reader").DID()
			for _, other := range [][]string{{"since", p.HourAgo()}, {"cursor", "0"}, {"timeout", "0"}} {
				p.CheckRefused(p.Poll(append(other, "before", "end", "recipient", reader)...), invalid)
			}
		}},
	{Number: "X-52", Title: "A before that is neither end nor a cursor of this relay is refused",
		Cites: backwards, run: func(p *relayProbe) {
			reader := p.Actor("a reader").DID()
			for _, before := range []string{"", "END", "abc", "-1", "00000001-1", "0 "} {
				p.CheckRefused(p.Poll("before", before, "recipient", reader), invalid)
			}
		}},
	{Number: "X-53", Title: "The well-known document lists the feature before", Cites: backwards,
		run: func(p *relayProbe) { p.CheckFeature("before") }},
	{Number: "X-54", Title: "A private relay shows by before only what the reader may see, and with new cursors each time",
		Cites: backwards + "; §8", Vectors: "reads.json", run: ifPrivate(privateBefore)},
}

func followsAfter(p *relayProbe) {
	agent := p.Actor("an agent")
	empty := p.Poll("before", "end", "recipient", agent.DID())
	p.CheckEvents(p.CheckPage(empty))
	sent := p.sentTo(agent, 3)
	p.checkInOrder(p.Events("cursor", empty.Text("after"), "recipient", agent.DID(), "timeout", "0"), sent...)

	page := p.Poll("before", "end", "recipient", agent.DID(), "limit", "1")
	p.CheckEvents(p.CheckPage(page), sent[2])
	held := p.pollInBackground("cursor", page.Text("after"), "recipient", agent.DID(), "timeout", "9")
	p.checkStillWaiting(held, "there is no event after the page yet")
	client := p.Actor("a client")
	later := p.PostAccepted(client, p.Request(client, agent))
	p.CheckEvents(p.CheckPage(held.wait()), later)
	p.checkInOrder(p.Events("before", page.Text("cursor"), "recipient", agent.DID()), sent[1], sent[0])
}

func bothWays(p *relayProbe) {
	agent := p.Actor("an agent")
	sent := p.sentTo(agent, 4)
	cursor := "0"
	for passed := range len(sent) + 1 {
		older := slices.Clone(sent[:passed])
		slices.Reverse(older)
		a := p.Poll("before", cursor, "recipient", agent.DID())
		p.checkInOrder(p.CheckPage(a), older...)
		p.checkInOrder(p.Events("cursor", a.Text("after"), "recipient", agent.DID(), "timeout", "0"), sent[passed:]...)
		cursor = p.Poll("cursor", cursor, "recipient", agent.DID(), "timeout", "0", "limit", "1").Text("cursor")
	}
}

func filtersBefore(p *relayProbe) {
	t, other := p.conversation(), p.conversation()
	messages := t.play("c.REQUEST>a a.OFFER c.ACCEPT>a a.RESULT")
	other.play("c.REQUEST>a a.OFFER")
	again := &conversation{p, t.actors, kit.NewID("thread"), kit.NewID("req")}
	more := again.play("c.REQUEST>a c.CANCEL")
	client, agent := t.actors["c"].DID(), t.actors["a"].DID()
	for _, c := range []struct {
		filter []string
		want   []kit.SignedMessage
	}{
		{[]string{"recipient", agent}, []kit.SignedMessage{more[0], messages[2], messages[0]}},
		{[]string{"recipient", agent, "broadcast", "true", "sender", client},
			[]kit.SignedMessage{more[1], more[0], messages[2], messages[0]}},
		{[]string{"sender", agent}, []kit.SignedMessage{messages[3], messages[1]}},
		{[]string{"recipient", agent, "type", "ACCEPT"}, []kit.SignedMessage{messages[2]}},
		{[]string{"thread", t.thread}, []kit.SignedMessage{messages[3], messages[2], messages[1], messages[0]}},
	} {
		p.checkInOrder(p.Events(append(c.filter, "before", "end")...), c.want...)
	}
}

func privateBefore(p *relayProbe) {
	client, agent, stranger := p.Actor("a client"), p.Actor("an agent"), p.Actor("a stranger")
	open := p.PostAccepted(client, p.Request(client, kit.Actor{}))
	direct := p.PostAccepted(client, p.Request(client, agent))
	target := "/events" + kit.Query("before", "end", "sender", client.DID())
	for _, reader := range []kit.Actor{{}, stranger} {
		p.CheckEvents(p.CheckPage(p.read("", reader, target)), open)
	}
	first, second := p.read("", agent, target), p.read("", agent, target)
	for _, a := range []kit.Answer{first, second} {
		p.checkInOrder(p.CheckPage(a), direct, open)
	}
	p.Expect("other cursors than %s and %s for the same positions", first.Text("cursor"), first.Text("after"))
	if first.Text("cursor") == second.Text("cursor") || first.Text("after") == second.Text("after") {
		p.Failf("%s", second)
	}
	inbox := "/events" + kit.Query("before", "end", "recipient", agent.DID())
	p.checkUnauthorized(p.read("", stranger, inbox))
	p.checkUnauthorized(p.read("", kit.Actor{}, inbox))
}
