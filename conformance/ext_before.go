package conformance

import "slices"

const backwards = overHTTP + " (reading backwards)"

// backwardChecks test reads with before.
var backwardChecks = []relayCheck{
	{Number: "X-45",
		Title: "A reader that follows before from end in small pages receives each event exactly once, the newest first",
		Cites: backwards, run: func(p *relayProbe) {
			agent := p.actor("an agent")
			sent := p.sentTo(agent, 7)
			slices.Reverse(sent)
			p.checkPages(sent, "before", "end", "recipient", agent.did())
		}},
	{Number: "X-46", Title: "A reader that follows after receives exactly the events that came after the page",
		Cites: backwards, wait: second, run: followsAfter},
	{Number: "X-47", Title: "before returns what the reader of a cursor has passed, and cursor returns all the rest",
		Cites: backwards, run: bothWays},
	{Number: "X-48", Title: "A read with before is not held", Cites: backwards, wait: second, run: func(p *relayProbe) {
		a := p.poll("before", "end", "recipient", p.actor("a reader").did())
		p.checkEvents(p.checkPage(a))
		p.checkAtOnce(a.took)
	}},
	{Number: "X-49", Title: "A read with before returns only events that match all filters",
		Cites: backwards, run: filtersBefore},
	{Number: "X-50", Title: "A read with before does not return expired events",
		Cites: backwards, wait: 7 * second, run: func(p *relayProbe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			m := p.request(client, agent)
			expiringSoon(m)
			p.postAccepted(client, m)
			lasting := p.postAccepted(client, p.request(client, agent))
			p.sleep(7 * second)
			p.checkEvents(p.events("before", "end", "recipient", agent.did()), lasting)
		}},
	{Number: "X-51", Title: "A read with before takes neither since nor cursor nor timeout",
		Cites: backwards, run: func(p *relayProbe) {
			reader := p.actor("a reader").did()
			for _, other := range [][]string{{"since", p.hourAgo()}, {"cursor", "0"}, {"timeout", "0"}} {
				p.checkRefused(p.poll(append(other, "before", "end", "recipient", reader)...), invalid)
			}
		}},
	{Number: "X-52", Title: "A before that is neither end nor a cursor of this relay is refused",
		Cites: backwards, run: func(p *relayProbe) {
			reader := p.actor("a reader").did()
			for _, before := range []string{"", "END", "abc", "-1", "00000001-1", "0 "} {
				p.checkRefused(p.poll("before", before, "recipient", reader), invalid)
			}
		}},
	{Number: "X-53", Title: "The well-known document lists the feature before", Cites: backwards,
		run: func(p *relayProbe) { p.checkFeature("before") }},
	{Number: "X-54", Title: "A private relay shows by before only what the reader may see, and with new cursors each time",
		Cites: backwards + "; §8", Vectors: "reads.json", run: ifPrivate(privateBefore)},
}

func followsAfter(p *relayProbe) {
	agent := p.actor("an agent")
	empty := p.poll("before", "end", "recipient", agent.did())
	p.checkEvents(p.checkPage(empty))
	sent := p.sentTo(agent, 3)
	p.checkInOrder(p.events("cursor", empty.text("after"), "recipient", agent.did(), "timeout", "0"), sent...)

	page := p.poll("before", "end", "recipient", agent.did(), "limit", "1")
	p.checkEvents(p.checkPage(page), sent[2])
	held := p.pollInBackground("cursor", page.text("after"), "recipient", agent.did(), "timeout", "9")
	p.checkStillWaiting(held, "there is no event after the page yet")
	client := p.actor("a client")
	later := p.postAccepted(client, p.request(client, agent))
	p.checkEvents(p.checkPage(held.wait()), later)
	p.checkInOrder(p.events("before", page.text("cursor"), "recipient", agent.did()), sent[1], sent[0])
}

func bothWays(p *relayProbe) {
	agent := p.actor("an agent")
	sent := p.sentTo(agent, 4)
	cursor := "0"
	for passed := range len(sent) + 1 {
		older := slices.Clone(sent[:passed])
		slices.Reverse(older)
		a := p.poll("before", cursor, "recipient", agent.did())
		p.checkInOrder(p.checkPage(a), older...)
		p.checkInOrder(p.events("cursor", a.text("after"), "recipient", agent.did(), "timeout", "0"), sent[passed:]...)
		cursor = p.poll("cursor", cursor, "recipient", agent.did(), "timeout", "0", "limit", "1").text("cursor")
	}
}

func filtersBefore(p *relayProbe) {
	t, other := p.conversation(), p.conversation()
	messages := t.play("c.REQUEST>a a.OFFER c.ACCEPT>a a.RESULT")
	other.play("c.REQUEST>a a.OFFER")
	again := &conversation{p, t.actors, newID("thread"), newID("req")}
	more := again.play("c.REQUEST>a c.CANCEL")
	client, agent := t.actors["c"].did(), t.actors["a"].did()
	for _, c := range []struct {
		filter []string
		want   []signedMessage
	}{
		{[]string{"recipient", agent}, []signedMessage{more[0], messages[2], messages[0]}},
		{[]string{"recipient", agent, "broadcast", "true", "sender", client},
			[]signedMessage{more[1], more[0], messages[2], messages[0]}},
		{[]string{"sender", agent}, []signedMessage{messages[3], messages[1]}},
		{[]string{"recipient", agent, "type", "ACCEPT"}, []signedMessage{messages[2]}},
		{[]string{"thread", t.thread}, []signedMessage{messages[3], messages[2], messages[1], messages[0]}},
	} {
		p.checkInOrder(p.events(append(c.filter, "before", "end")...), c.want...)
	}
}

func privateBefore(p *relayProbe) {
	client, agent, stranger := p.actor("a client"), p.actor("an agent"), p.actor("a stranger")
	open := p.postAccepted(client, p.request(client, actor{}))
	direct := p.postAccepted(client, p.request(client, agent))
	target := "/events" + query("before", "end", "sender", client.did())
	for _, reader := range []actor{{}, stranger} {
		p.checkEvents(p.checkPage(p.read("", reader, target)), open)
	}
	first, second := p.read("", agent, target), p.read("", agent, target)
	for _, a := range []answer{first, second} {
		p.checkInOrder(p.checkPage(a), direct, open)
	}
	p.expect("other cursors than %s and %s for the same positions", first.text("cursor"), first.text("after"))
	if first.text("cursor") == second.text("cursor") || first.text("after") == second.text("after") {
		p.failf("%s", second)
	}
	inbox := "/events" + query("before", "end", "recipient", agent.did())
	p.checkUnauthorized(p.read("", stranger, inbox))
	p.checkUnauthorized(p.read("", actor{}, inbox))
}
