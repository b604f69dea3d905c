package relay

import (
	"time"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/envelope"
)

// receiptChecks test the answers to POST /events.
var receiptChecks = []relayCheck{
	{Number: "X-1",
		Title: "A receipt has cursor, duplicate, expiresAt = ts + ttl, and thread with id, client and state",
		Cites: overHTTP + " (POST /events)", run: receipt},
	{Number: "X-2", Title: "thread.state in the receipts follows the state of the thread",
		Cites: overHTTP + " (POST /events); §4", run: receiptStates},
	{Number: "X-3", Title: "The receipt of a duplicate has the cursor and the expiresAt of the first receipt",
		Cites: overHTTP + "; §3", run: func(p *relayProbe) {
			client := p.Actor("a client")
			signed := p.Request(client, kit.Actor{}).Sign(client)
			first := p.Post("a REQUEST", signed.Body)
			p.CheckAccepted(first, signed)
			again := p.Post("the same REQUEST again", signed.Body)
			p.CheckAccepted(again, signed)
			p.Expect("cursor %s and expiresAt %s, as in the first receipt", first.Text("cursor"),
				first.Text("expiresAt"))
			if first.Text("cursor") == "" || again.Text("cursor") != first.Text("cursor") ||
				again.Text("expiresAt") != first.Text("expiresAt") {
				p.Failf("%s", again)
			}
		}},
	{Number: "X-4",
		Title: "A ttl above the relay's maximum is cut to the maximum, and expiresAt in the receipt shows it",
		Cites: "PROTOCOL §1 meta.ttl", run: longestLifetime},
	{Number: "X-5", Title: "A message whose meta.relay names this relay is accepted",
		Cites: "PROTOCOL §1 meta.relay", run: func(p *relayProbe) {
			own := p.Document().Text("url")
			if own == "" {
				p.End(kit.Skipped, "/.well-known/agora.json does not name the relay's url")
			}
			accepts(variant{what: "this relay's url in meta.relay", edit: kit.Set("meta.relay", own)},
				variant{what: "a list in meta.relay that has this relay's url",
					edit: kit.Set("meta.relay", []string{"https://relay.invalid", own})})(p)
		}},
}

func receipt(p *relayProbe) {
	client := p.Actor("a client")
	m := p.Request(client, kit.Actor{})
	signed := m.Sign(client)
	a := p.Post("a REQUEST with ttl 180", signed.Body)
	p.CheckAccepted(a, signed)
	ts, _ := envelope.ParseTime(signed.TS)
	want := ts.Add(kit.MessageTTL * time.Second)
	p.Expect("expiresAt %s, which is ts + ttl", kit.FormatTime(want))
	if expires, ok := envelope.ParseTime(a.Text("expiresAt")); !ok || !expires.Equal(want) {
		p.Failf("%s", a)
	}
	p.Expect("a cursor, duplicate false, and a thread with its id, the client's did and the state PENDING")
	thread := a.Object("thread")
	if again, present := a.Flag("duplicate"); a.Text("cursor") == "" || again || !present ||
		thread.Text("id") != m["thread"].(map[string]any)["id"] ||
		thread.Text("client") != client.DID() ||
		thread.Text("state") != "PENDING" {
		p.Failf("%s", a)
	}
}

func receiptStates(p *relayProbe) {
	t := p.conversation()
	for _, turn := range [][2]string{{"c.REQUEST>a", "PENDING"}, {"a.OFFER", "PENDING"}, {"c.ACCEPT>a", "ACTIVE"},
		{"a.RESULT", "COMPLETED"}, {"a.ERROR", "ERROR"}} {
		signed := t.signed(turn[0])
		a := p.Post(signed.What, signed.Body)
		p.CheckAccepted(a, signed)
		p.Expect("thread.state %s, and the sender of the REQUEST as thread.client", turn[1])
		if thread := a.Object("thread"); thread.Text("state") != turn[1] ||
			thread.Text("client") != t.actors["c"].DID() {
			p.Failf("%s", a)
		}
	}
}

func longestLifetime(p *relayProbe) {
	client := p.Actor("a client")
	m := p.Request(client, kit.Actor{})
	kit.Set("meta.ttl", 2_000_000_000)(m) // 63 years
	signed := m.Sign(client)
	a := p.Post("a REQUEST with a ttl of 63 years", signed.Body)
	p.CheckAccepted(a, signed)
	longest := p.Document().Object("seconds").Number("maxTtl")
	if longest == 0 {
		longest = (30 * 24 * time.Hour).Seconds()
	}
	ts, _ := envelope.ParseTime(signed.TS)
	want := ts.Add(time.Duration(longest) * time.Second)
	p.Expect("expiresAt %s, by the relay's maximum ttl", kit.FormatTime(want))
	if expires, ok := envelope.ParseTime(a.Text("expiresAt")); !ok || !expires.Equal(want) {
		p.Failf("%s", a)
	}
}

const cursorRule = delivery + "cursor"

// cursorChecks test readers that use the cursor.
var cursorChecks = []relayCheck{
	{Number: "X-6",
		Title: "A reader that follows the cursor from 0 in small pages receives each event exactly once and in order",
		Cites: cursorRule, run: cursorPages},
	{Number: "X-7", Title: "A poll with the cursor of an empty answer is held until a new event arrives",
		Cites: cursorRule, wait: time.Second, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			empty := p.Poll("cursor", "0", "recipient", agent.DID(), "timeout", "0")
			p.CheckEvents(p.CheckPage(empty))
			held := p.pollInBackground("cursor", empty.Text("cursor"), "recipient", agent.DID(), "timeout", "9")
			p.checkStillWaiting(held, "there is no event after that cursor")
			sent := p.PostAccepted(client, p.Request(client, agent))
			p.checkWoken(held, time.Now(), sent)
			p.CheckEvents(p.Events("cursor", held.answer.Text("cursor"), "recipient", agent.DID(), "timeout", "0"))
		}},
	{Number: "X-8",
		Title: "A reader with a cursor receives each event exactly once while senders with wrong clocks post",
		Cites: cursorRule, wait: 6 * time.Second,
		run: cursorSoak},
	{Number: "X-9", Title: "The cursor in the answer to a poll with since can be used for the next poll",
		Cites: cursorRule, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			first := p.PostAccepted(client, p.requestAhead(client, agent, 0))
			a := p.Poll("since", p.HourAgo(), "recipient", agent.DID(), "timeout", "0")
			p.CheckEvents(p.CheckPage(a), first)
			second := p.PostAccepted(client, p.requestAhead(client, agent, -time.Minute))
			p.CheckEvents(p.Events("cursor", a.Text("cursor"), "recipient", agent.DID(), "timeout", "0"), second)
		}},
	{Number: "X-10", Title: "A cursor that the relay has not made is refused",
		Cites: cursorRule + "; §5 (malformed)", run: refusesCursors},
	{Number: "X-11",
		Title: "broadcast=true adds broadcasts to the events of a recipient, and a broadcast wakes its held poll",
		Cites: overHTTP + " (broadcast=true adds them)", wait: time.Second, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			broadcast := p.PostAccepted(client, p.Request(client, kit.Actor{}))
			direct := p.PostAccepted(client, p.Request(client, agent))
			both := []string{"recipient", agent.DID(), "sender", client.DID(), "broadcast", "true"}
			a := p.Poll(append(both, "since", p.HourAgo(), "timeout", "0")...)
			p.CheckEvents(p.CheckPage(a), broadcast, direct)
			p.CheckEvents(
				p.Events("recipient", agent.DID(), "sender", client.DID(), "broadcast", "false", "since", p.HourAgo(),
					"timeout", "0"),
				direct,
			)
			held := p.pollInBackground(append(both, "cursor", a.Text("cursor"), "timeout", "9")...)
			another := p.PostAccepted(client, p.Request(client, kit.Actor{}))
			p.checkWoken(held, time.Now(), another)
		}},
	{Number: "X-12", Title: "broadcast must be true or false",
		Cites: overHTTP + " (malformed)", run: refusesPolls("broadcast", "yes", "1", "")},
	{Number: "X-13", Title: "lastTs in an answer is the ts of the last event, or since if the answer has no event",
		Cites: overHTTP + " (GET /events)", run: lastTS},
}

// sentTo posts n messages with different timestamps, which are not in the order of their arrival.
func (p *relayProbe) sentTo(agent kit.Actor, n int) (sent []kit.SignedMessage) {
	client := p.Actor("a client")
	for i := range n {
		sent = append(sent, p.PostAccepted(client, p.requestAhead(client, agent, time.Duration(i%3)*-10*time.Second)))
	}
	return sent
}

func cursorPages(p *relayProbe) {
	agent := p.Actor("an agent")
	p.checkPages(p.sentTo(agent, 7), "cursor", "0", "recipient", agent.DID(), "timeout", "0")
}

// checkPages reads all pages of at most two events, each with the cursor of the page before it as the value of the first
// parameter. It ends the check unless they have exactly these messages, in this order.
func (p *relayProbe) checkPages(want []kit.SignedMessage, start, cursor string, parameters ...string) {
	got := 0
	for got < len(want) {
		a := p.Poll(append([]string{start, cursor, "limit", "2"}, parameters...)...)
		events := p.CheckPage(a)
		p.Expect("%d events on pages of two, in the order %s; here those after the first %d", len(want), names(want), got)
		more, _ := a.Flag("hasMore")
		if len(events) != min(2, len(want)-got) || more != (got+len(events) < len(want)) || a.Text("cursor") == "" ||
			a.Text("cursor") == cursor {
			p.Failf("%d events (%s), hasMore %v, cursor %q", len(events), kit.IDs(events), more, a.Text("cursor"))
		}
		for _, e := range events {
			if e.ID() != want[got].ID {
				p.Failf("event %s instead of %s", e.ID(), want[got].ID)
			}
			got++
		}
		cursor = a.Text("cursor")
	}
	p.CheckEvents(p.Events(append([]string{start, cursor}, parameters...)...))
}

func cursorSoak(p *relayProbe) {
	agent := p.Actor("an agent")
	f := p.follow(agent, readLoop{timeout: "3", limit: "4", cursor: true})
	var sent []kit.SignedMessage
	for i := range soakEvents {
		client := p.Actor("a client")
		m := p.requestAhead(client, agent, time.Duration(i%5-2)*time.Minute)
		formatTS("2006-01-02T15:04:05Z07:00", 0)(m)
		sent = append(sent, p.PostAccepted(client, m))
		p.Sleep(soakTime / soakEvents)
	}
	p.Describe("GET /events, each with the cursor of the previous answer, while %d events are posted", soakEvents)
	p.checkReceived(f, sent)
	p.Expect("each event is delivered exactly once")
	for _, signed := range sent {
		if n := f.counts[signed.ID]; n != 1 {
			p.Failf("event %s was delivered %d times", signed.ID, n)
		}
	}
}

func refusesCursors(p *relayProbe) {
	for _, cursor := range []string{"abc", "", "-1", "1e3", "0 "} {
		p.CheckRefused(p.Poll("cursor", cursor, "recipient", p.Actor("a reader").DID(), "timeout", "0"), invalid)
	}
}

func lastTS(p *relayProbe) {
	client, agent := p.Actor("a client"), p.Actor("an agent")
	since := p.HourAgo()
	empty := p.Poll("since", since, "recipient", agent.DID(), "timeout", "0")
	sent := p.PostAccepted(client, p.Request(client, agent))
	full := p.Poll("since", since, "recipient", agent.DID(), "timeout", "0")
	for want, a := range map[string]kit.Answer{since: empty, sent.TS: full} {
		p.Expect("lastTs is the time %s", want)
		got, ok := envelope.ParseTime(a.Text("lastTs"))
		instant, _ := envelope.ParseTime(want)
		if !ok || !got.Equal(instant) {
			p.Failf("lastTs is %q in the answer %s", a.Text("lastTs"), a)
		}
	}
}

const threadPath = overHTTP + " (GET /threads/{id})"

// recordChecks test the records of threads.
var recordChecks = []relayCheck{
	{Number: "X-14", Title: "GET /threads/{id} returns the thread's state, parties, transitions and envelopes",
		Cites: threadPath, run: threadRecord},
	{Number: "X-15",
		Title: "client selects one of several threads with the same id, and without client it is the oldest",
		Cites: threadPath, run: func(p *relayProbe) {
			t := p.conversation()
			t.play("c.REQUEST>a s.REQUEST>b a.OFFER")
			p.checkClient(p.thread(t, ""), t.actors["c"])
			p.checkClient(p.thread(t, t.actors["c"].DID()), t.actors["c"])
			p.checkClient(p.thread(t, t.actors["s"].DID()), t.actors["s"])
			p.CheckRefused(p.thread(t, t.actors["b"].DID()), noThread)
		}},
	{Number: "X-16", Title: "GET /threads/{id} for a thread that does not exist is answered with 404 THREAD_NOT_FOUND",
		Cites: threadPath, run: func(p *relayProbe) {
			p.CheckRefused(p.Call("", "GET", "/threads/"+kit.NewID("thread"), nil, nil, 0), noThread)
		}},
	{Number: "X-17", Title: "The record of a thread outlives its envelopes and counts those that have expired",
		Cites: threadPath + "; §4", wait: 7 * time.Second, run: func(p *relayProbe) {
			t := p.conversation()
			m, client := t.message("c.REQUEST>a")
			expiringSoon(m)
			p.PostAccepted(client, m)
			t.play("a.OFFER")
			p.Sleep(7 * time.Second)
			a := p.thread(t, "")
			p.Expect("thread.state PENDING, one event, and expired 1")
			if events, _ := kit.EventsOf(a); a.Object("thread").Text("state") != "PENDING" || len(events) != 1 ||
				a.Number("expired") != 1 {
				p.Failf("%s", a)
			}
			t.play("c.ACCEPT>a")
		}},
}

func (p *relayProbe) thread(t *conversation, client string) kit.Answer {
	target := "/threads/" + t.thread
	if client != "" {
		target += kit.Query("client", client)
	}
	return p.Call("", "GET", target, nil, nil, 0)
}

func (p *relayProbe) checkClient(a kit.Answer, client kit.Actor) {
	p.Expect("the thread of %s", client.Name)
	if got := a.Object("thread").Text("client"); a.Status != 200 || got != client.DID() {
		p.Failf("%s", a)
	}
}

func threadRecord(p *relayProbe) {
	t := p.conversation()
	messages := t.play("c.REQUEST a.OFFER b.OFFER c.ACCEPT>a a.RESULT")
	a := p.thread(t, "")
	p.Expect(
		"status 200 with ok true, thread.state COMPLETED, thread.client, thread.agent, " +
			"five elements in thread.transitions, and expired 0",
	)
	thread := a.Object("thread")
	steps, _ := thread.List("transitions")
	if ok, _ := a.OK(); a.Status != 200 || !ok ||
		thread.Text("state") != "COMPLETED" || thread.Text("id") != t.thread ||
		thread.Text("client") != t.actors["c"].DID() ||
		thread.Text("agent") != t.actors["a"].DID() ||
		len(steps) != len(messages) ||
		string(a.Members["expired"]) != "0" {
		p.Failf("%s", a)
	}
	events, _ := kit.EventsOf(a)
	p.CheckEvents(events, messages...)
	for i, e := range events {
		p.CheckUnchanged(e, messages[i])
	}
}
