package conformance

import (
	"time"

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
			client := p.actor("a client")
			signed := p.request(client, actor{}).sign(client)
			first := p.post("a REQUEST", signed.body)
			p.checkAccepted(first, signed)
			again := p.post("the same REQUEST again", signed.body)
			p.checkAccepted(again, signed)
			p.expect("cursor %s and expiresAt %s, as in the first receipt", first.text("cursor"),
				first.text("expiresAt"))
			if first.text("cursor") == "" || again.text("cursor") != first.text("cursor") ||
				again.text("expiresAt") != first.text("expiresAt") {
				p.failf("%s", again)
			}
		}},
	{Number: "X-4",
		Title: "A ttl above the relay's maximum is cut to the maximum, and expiresAt in the receipt shows it",
		Cites: "PROTOCOL §1 meta.ttl", run: longestLifetime},
	{Number: "X-5", Title: "A message whose meta.relay names this relay is accepted",
		Cites: "PROTOCOL §1 meta.relay", run: func(p *relayProbe) {
			own := p.document().text("url")
			if own == "" {
				p.end(Skipped, "/.well-known/agora.json does not name the relay's url")
			}
			accepts(variant{what: "this relay's url in meta.relay", edit: set("meta.relay", own)},
				variant{what: "a list in meta.relay that has this relay's url",
					edit: set("meta.relay", []string{"https://relay.invalid", own})})(p)
		}},
}

func receipt(p *relayProbe) {
	client := p.actor("a client")
	m := p.request(client, actor{})
	signed := m.sign(client)
	a := p.post("a REQUEST with ttl 180", signed.body)
	p.checkAccepted(a, signed)
	ts, _ := envelope.ParseTime(signed.ts)
	want := ts.Add(messageTTL * time.Second)
	p.expect("expiresAt %s, which is ts + ttl", formatTime(want))
	if expires, ok := envelope.ParseTime(a.text("expiresAt")); !ok || !expires.Equal(want) {
		p.failf("%s", a)
	}
	p.expect("a cursor, duplicate false, and a thread with its id, the client's did and the state PENDING")
	thread := a.object("thread")
	if again, present := a.flag("duplicate"); a.text("cursor") == "" || again || !present ||
		thread.text("id") != m["thread"].(map[string]any)["id"] ||
		thread.text("client") != client.did() ||
		thread.text("state") != "PENDING" {
		p.failf("%s", a)
	}
}

func receiptStates(p *relayProbe) {
	t := p.conversation()
	for _, turn := range [][2]string{{"c.REQUEST>a", "PENDING"}, {"a.OFFER", "PENDING"}, {"c.ACCEPT>a", "ACTIVE"},
		{"a.RESULT", "COMPLETED"}, {"a.ERROR", "ERROR"}} {
		signed := t.signed(turn[0])
		a := p.post(signed.what, signed.body)
		p.checkAccepted(a, signed)
		p.expect("thread.state %s, and the sender of the REQUEST as thread.client", turn[1])
		if thread := a.object("thread"); thread.text("state") != turn[1] ||
			thread.text("client") != t.actors["c"].did() {
			p.failf("%s", a)
		}
	}
}

func longestLifetime(p *relayProbe) {
	client := p.actor("a client")
	m := p.request(client, actor{})
	set("meta.ttl", 2_000_000_000)(m) // 63 years
	signed := m.sign(client)
	a := p.post("a REQUEST with a ttl of 63 years", signed.body)
	p.checkAccepted(a, signed)
	longest := p.document().object("seconds").number("maxTtl")
	if longest == 0 {
		longest = (30 * 24 * time.Hour).Seconds()
	}
	ts, _ := envelope.ParseTime(signed.ts)
	want := ts.Add(time.Duration(longest) * time.Second)
	p.expect("expiresAt %s, by the relay's maximum ttl", formatTime(want))
	if expires, ok := envelope.ParseTime(a.text("expiresAt")); !ok || !expires.Equal(want) {
		p.failf("%s", a)
	}
}

const cursorRule = delivery + "cursor"

// cursorChecks test readers that use the cursor.
var cursorChecks = []relayCheck{
	{Number: "X-6",
		Title: "A reader that follows the cursor from 0 in small pages receives each event exactly once and in order",
		Cites: cursorRule, run: cursorPages},
	{Number: "X-7", Title: "A poll with the cursor of an empty answer is held until a new event arrives",
		Cites: cursorRule, wait: second, run: func(p *relayProbe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			empty := p.poll("cursor", "0", "recipient", agent.did(), "timeout", "0")
			p.checkEvents(p.checkPage(empty))
			held := p.pollInBackground("cursor", empty.text("cursor"), "recipient", agent.did(), "timeout", "9")
			p.checkStillWaiting(held, "there is no event after that cursor")
			sent := p.postAccepted(client, p.request(client, agent))
			p.checkWoken(held, time.Now(), sent)
			p.checkEvents(p.events("cursor", held.answer.text("cursor"), "recipient", agent.did(), "timeout", "0"))
		}},
	{Number: "X-8",
		Title: "A reader with a cursor receives each event exactly once while senders with wrong clocks post",
		Cites: cursorRule, wait: 6 * second,
		run: cursorSoak},
	{Number: "X-9", Title: "The cursor in the answer to a poll with since can be used for the next poll",
		Cites: cursorRule, run: func(p *relayProbe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			first := p.postAccepted(client, p.requestAhead(client, agent, 0))
			a := p.poll("since", p.hourAgo(), "recipient", agent.did(), "timeout", "0")
			p.checkEvents(p.checkPage(a), first)
			second := p.postAccepted(client, p.requestAhead(client, agent, -time.Minute))
			p.checkEvents(p.events("cursor", a.text("cursor"), "recipient", agent.did(), "timeout", "0"), second)
		}},
	{Number: "X-10", Title: "A cursor that the relay has not made is refused",
		Cites: cursorRule + "; §5 (malformed)", run: refusesCursors},
	{Number: "X-11",
		Title: "broadcast=true adds broadcasts to the events of a recipient, and a broadcast wakes its held poll",
		Cites: overHTTP + " (broadcast=true adds them)", wait: second, run: func(p *relayProbe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			broadcast := p.postAccepted(client, p.request(client, actor{}))
			direct := p.postAccepted(client, p.request(client, agent))
			both := []string{"recipient", agent.did(), "sender", client.did(), "broadcast", "true"}
			a := p.poll(append(both, "since", p.hourAgo(), "timeout", "0")...)
			p.checkEvents(p.checkPage(a), broadcast, direct)
			p.checkEvents(
				p.events("recipient", agent.did(), "sender", client.did(), "broadcast", "false", "since", p.hourAgo(),
					"timeout", "0"),
				direct,
			)
			held := p.pollInBackground(append(both, "cursor", a.text("cursor"), "timeout", "9")...)
			another := p.postAccepted(client, p.request(client, actor{}))
			p.checkWoken(held, time.Now(), another)
		}},
	{Number: "X-12", Title: "broadcast must be true or false",
		Cites: overHTTP + " (malformed)", run: refusesPolls("broadcast", "yes", "1", "")},
	{Number: "X-13", Title: "lastTs in an answer is the ts of the last event, or since if the answer has no event",
		Cites: overHTTP + " (GET /events)", run: lastTS},
}

// sentTo posts n messages with different timestamps, which are not in the order of their arrival.
func (p *relayProbe) sentTo(agent actor, n int) (sent []signedMessage) {
	client := p.actor("a client")
	for i := range n {
		sent = append(sent, p.postAccepted(client, p.requestAhead(client, agent, time.Duration(i%3)*-10*time.Second)))
	}
	return sent
}

func cursorPages(p *relayProbe) {
	agent := p.actor("an agent")
	p.checkPages(p.sentTo(agent, 7), "cursor", "0", "recipient", agent.did(), "timeout", "0")
}

// checkPages reads all pages of at most two events, each with the cursor of the page before it as the value of the first
// parameter. It ends the check unless they have exactly these messages, in this order.
func (p *relayProbe) checkPages(want []signedMessage, start, cursor string, parameters ...string) {
	got := 0
	for got < len(want) {
		a := p.poll(append([]string{start, cursor, "limit", "2"}, parameters...)...)
		events := p.checkPage(a)
		p.expect("%d events on pages of two, in the order %s; here those after the first %d", len(want), names(want), got)
		more, _ := a.flag("hasMore")
		if len(events) != min(2, len(want)-got) || more != (got+len(events) < len(want)) || a.text("cursor") == "" ||
			a.text("cursor") == cursor {
			p.failf("%d events (%s), hasMore %v, cursor %q", len(events), ids(events), more, a.text("cursor"))
		}
		for _, e := range events {
			if e.id() != want[got].id {
				p.failf("event %s instead of %s", e.id(), want[got].id)
			}
			got++
		}
		cursor = a.text("cursor")
	}
	p.checkEvents(p.events(append([]string{start, cursor}, parameters...)...))
}

func cursorSoak(p *relayProbe) {
	agent := p.actor("an agent")
	f := p.follow(agent, readLoop{timeout: "3", limit: "4", cursor: true})
	var sent []signedMessage
	for i := range soakEvents {
		client := p.actor("a client")
		m := p.requestAhead(client, agent, time.Duration(i%5-2)*time.Minute)
		formatTS("2006-01-02T15:04:05Z07:00", 0)(m)
		sent = append(sent, p.postAccepted(client, m))
		p.sleep(soakTime / soakEvents)
	}
	p.describe("GET /events, each with the cursor of the previous answer, while %d events are posted", soakEvents)
	p.checkReceived(f, sent)
	p.expect("each event is delivered exactly once")
	for _, signed := range sent {
		if n := f.counts[signed.id]; n != 1 {
			p.failf("event %s was delivered %d times", signed.id, n)
		}
	}
}

func refusesCursors(p *relayProbe) {
	for _, cursor := range []string{"abc", "", "-1", "1e3", "0 "} {
		p.checkRefused(p.poll("cursor", cursor, "recipient", p.actor("a reader").did(), "timeout", "0"), invalid)
	}
}

func lastTS(p *relayProbe) {
	client, agent := p.actor("a client"), p.actor("an agent")
	since := p.hourAgo()
	empty := p.poll("since", since, "recipient", agent.did(), "timeout", "0")
	sent := p.postAccepted(client, p.request(client, agent))
	full := p.poll("since", since, "recipient", agent.did(), "timeout", "0")
	for want, a := range map[string]answer{since: empty, sent.ts: full} {
		p.expect("lastTs is the time %s", want)
		got, ok := envelope.ParseTime(a.text("lastTs"))
		instant, _ := envelope.ParseTime(want)
		if !ok || !got.Equal(instant) {
			p.failf("lastTs is %q in the answer %s", a.text("lastTs"), a)
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
			p.checkClient(p.thread(t, t.actors["c"].did()), t.actors["c"])
			p.checkClient(p.thread(t, t.actors["s"].did()), t.actors["s"])
			p.checkRefused(p.thread(t, t.actors["b"].did()), noThread)
		}},
	{Number: "X-16", Title: "GET /threads/{id} for a thread that does not exist is answered with 404 THREAD_NOT_FOUND",
		Cites: threadPath, run: func(p *relayProbe) {
			p.checkRefused(p.call("", "GET", "/threads/"+newID("thread"), nil, nil, 0), noThread)
		}},
	{Number: "X-17", Title: "The record of a thread outlives its envelopes and counts those that have expired",
		Cites: threadPath + "; §4", wait: 7 * second, run: func(p *relayProbe) {
			t := p.conversation()
			m, client := t.message("c.REQUEST>a")
			expiringSoon(m)
			p.postAccepted(client, m)
			t.play("a.OFFER")
			p.sleep(7 * second)
			a := p.thread(t, "")
			p.expect("thread.state PENDING, one event, and expired 1")
			if events, _ := eventsOf(a); a.object("thread").text("state") != "PENDING" || len(events) != 1 ||
				a.number("expired") != 1 {
				p.failf("%s", a)
			}
			t.play("c.ACCEPT>a")
		}},
}

func (p *relayProbe) thread(t *conversation, client string) answer {
	target := "/threads/" + t.thread
	if client != "" {
		target += query("client", client)
	}
	return p.call("", "GET", target, nil, nil, 0)
}

func (p *relayProbe) checkClient(a answer, client actor) {
	p.expect("the thread of %s", client.name)
	if got := a.object("thread").text("client"); a.status != 200 || got != client.did() {
		p.failf("%s", a)
	}
}

func threadRecord(p *relayProbe) {
	t := p.conversation()
	messages := t.play("c.REQUEST a.OFFER b.OFFER c.ACCEPT>a a.RESULT")
	a := p.thread(t, "")
	p.expect(
		"status 200 with ok true, thread.state COMPLETED, thread.client, thread.agent, " +
			"five elements in thread.transitions, and expired 0",
	)
	thread := a.object("thread")
	steps, _ := thread.list("transitions")
	if ok, _ := a.ok(); a.status != 200 || !ok ||
		thread.text("state") != "COMPLETED" || thread.text("id") != t.thread ||
		thread.text("client") != t.actors["c"].did() ||
		thread.text("agent") != t.actors["a"].did() ||
		len(steps) != len(messages) ||
		string(a.members["expired"]) != "0" {
		p.failf("%s", a)
	}
	events, _ := eventsOf(a)
	p.checkEvents(events, messages...)
	for i, e := range events {
		p.checkUnchanged(e, messages[i])
	}
}
