package conformance

import (
	"time"

	"github.com/agora-relay/agora/envelope"
)

// receiptChecks are about the answer to POST /events.
var receiptChecks = []Check{
	{Number: "X-1", Title: "A receipt has cursor, duplicate, expiresAt = ts + ttl, and thread with id, client and state", Cites: overHTTP + " (POST /events)", run: receipt},
	{Number: "X-2", Title: "Receipts follow the thread's state", Cites: overHTTP + " (POST /events); §4", run: receiptStates},
	{Number: "X-3", Title: "A duplicate's receipt has the first one's cursor and expiresAt", Cites: overHTTP + "; §3", run: func(p *probe) {
		client := p.actor("a client")
		l := p.request(client, actor{}).sign(client)
		first := p.post("a REQUEST", l.body)
		p.accepted(first, l)
		again := p.post("the same REQUEST again", l.body)
		p.accepted(again, l)
		p.expect("cursor %s and expiresAt %s, as the first time", first.text("cursor"), first.text("expiresAt"))
		if first.text("cursor") == "" || again.text("cursor") != first.text("cursor") || again.text("expiresAt") != first.text("expiresAt") {
			p.failf("%s", again)
		}
	}},
	{Number: "X-4", Title: "A lifetime longer than the relay's longest is cut, and the receipt says so", Cites: "PROTOCOL §1 meta.ttl", run: longestLife},
	{Number: "X-5", Title: "A message bound to this relay, among others, is accepted", Cites: "PROTOCOL §1 meta.relay", run: func(p *probe) {
		own := p.call("", "GET", "/.well-known/agora.json", nil, nil, 0).text("url")
		if own == "" {
			p.end(Skipped, "/.well-known/agora.json does not name the relay's url")
		}
		accepts(variant{what: "this relay's url in meta.relay", edit: set("meta.relay", own)},
			variant{what: "a list in meta.relay, this relay's url in it", edit: set("meta.relay", []string{"https://relay.invalid", own})})(p)
	}},
}

func receipt(p *probe) {
	client := p.actor("a client")
	m := p.request(client, actor{})
	l := m.sign(client)
	a := p.post("a REQUEST with ttl 180", l.body)
	p.accepted(a, l)
	ts, _ := envelope.ParseTime(l.ts)
	want := ts.Add(lifetime * time.Second)
	p.expect("expiresAt %s", stamp(want))
	if expires, ok := envelope.ParseTime(a.text("expiresAt")); !ok || !expires.Equal(want) {
		p.failf("%s", a)
	}
	p.expect("a cursor, duplicate false, and thread with the id, the client's did and PENDING")
	thread := a.object("thread")
	if again, said := a.flag("duplicate"); a.text("cursor") == "" || again || !said || thread.text("id") != m["thread"].(map[string]any)["id"] ||
		thread.text("client") != client.did() || thread.text("state") != "PENDING" {
		p.failf("%s", a)
	}
}

func receiptStates(p *probe) {
	t := p.talk()
	for _, turn := range [][2]string{{"c.REQUEST>a", "PENDING"}, {"a.OFFER", "PENDING"}, {"c.ACCEPT>a", "ACTIVE"}, {"a.RESULT", "COMPLETED"}, {"a.ERROR", "ERROR"}} {
		l := t.letter(turn[0])
		a := p.post(l.what, l.body)
		p.accepted(a, l)
		p.expect("thread.state %s and thread.client the REQUEST's sender", turn[1])
		if thread := a.object("thread"); thread.text("state") != turn[1] || thread.text("client") != t.who["c"].did() {
			p.failf("%s", a)
		}
	}
}

func longestLife(p *probe) {
	client := p.actor("a client")
	m := p.request(client, actor{})
	set("meta.ttl", 2_000_000_000)(m) // 63 years
	l := m.sign(client)
	a := p.post("a REQUEST with a ttl of 63 years", l.body)
	p.accepted(a, l)
	longest := p.call("", "GET", "/.well-known/agora.json", nil, nil, 0).object("seconds").number("maxTtl")
	if longest == 0 {
		longest = (30 * 24 * time.Hour).Seconds()
	}
	ts, _ := envelope.ParseTime(l.ts)
	want := ts.Add(time.Duration(longest) * time.Second)
	p.expect("expiresAt %s, the relay's longest", stamp(want))
	if expires, ok := envelope.ParseTime(a.text("expiresAt")); !ok || !expires.Equal(want) {
		p.failf("%s", a)
	}
}

const cursorRule = delivery + "cursor"

// cursorChecks are about reading on exactly where one was.
var cursorChecks = []Check{
	{Number: "X-6", Title: "From cursor 0, in small pages, each event comes exactly once and in order", Cites: cursorRule, run: cursorPages},
	{Number: "X-7", Title: "A poll from the cursor of an empty answer is held, and wakes with what comes", Cites: cursorRule, wait: second, run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		empty := p.poll("cursor", "0", "recipient", agent.did(), "timeout", "0")
		p.delivers(p.page(empty))
		held := p.pollBehind("cursor", empty.text("cursor"), "recipient", agent.did(), "timeout", "9")
		p.waiting(held, "nothing has come since that cursor")
		sent := p.accept(client, p.request(client, agent))
		p.woken(held, time.Now(), sent)
		p.delivers(p.events("cursor", held.answer.text("cursor"), "recipient", agent.did(), "timeout", "0"))
	}},
	{Number: "X-8", Title: "With the cursor each event comes exactly once while senders with skewed clocks go on posting", Cites: cursorRule, wait: 6 * second,
		run: cursorSoak},
	{Number: "X-9", Title: "The cursor of an answer to a poll with since can be followed", Cites: cursorRule, run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		first := p.accept(client, p.dated(client, agent, 0))
		a := p.poll("since", p.hour(), "recipient", agent.did(), "timeout", "0")
		p.delivers(p.page(a), first)
		second := p.accept(client, p.dated(client, agent, -time.Minute))
		p.delivers(p.events("cursor", a.text("cursor"), "recipient", agent.did(), "timeout", "0"), second)
	}},
	{Number: "X-10", Title: "A cursor the relay did not make is refused", Cites: cursorRule + "; §5 (malformed)", run: refusesCursors},
	{Number: "X-11", Title: "broadcast=true adds broadcasts to a recipient's events, also to a held poll", Cites: overHTTP + " (broadcast=true adds them)", wait: second, run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		broadcast := p.accept(client, p.request(client, actor{}))
		direct := p.accept(client, p.request(client, agent))
		both := []string{"recipient", agent.did(), "sender", client.did(), "broadcast", "true"}
		a := p.poll(append(both, "since", p.hour(), "timeout", "0")...)
		p.delivers(p.page(a), broadcast, direct)
		p.delivers(p.events("recipient", agent.did(), "sender", client.did(), "broadcast", "false", "since", p.hour(), "timeout", "0"), direct)
		held := p.pollBehind(append(both, "cursor", a.text("cursor"), "timeout", "9")...)
		another := p.accept(client, p.request(client, actor{}))
		p.woken(held, time.Now(), another)
	}},
	{Number: "X-12", Title: "broadcast is true or false", Cites: overHTTP + " (malformed)", run: refusesPolls("broadcast", "yes", "1", "")},
	{Number: "X-13", Title: "An answer has lastTs: the last event's ts, or the since that was asked for", Cites: overHTTP + " (GET /events)", run: lastTS},
}

func cursorPages(p *probe) {
	client, agent := p.actor("a client"), p.actor("an agent")
	var sent []letter
	for i := range 7 {
		sent = append(sent, p.accept(client, p.dated(client, agent, time.Duration(i%3)*-10*time.Second)))
	}
	cursor, got := "0", 0
	for got < len(sent) {
		a := p.poll("cursor", cursor, "recipient", agent.did(), "timeout", "0", "limit", "2")
		events := p.page(a)
		p.expect("the events after the first %d, two at a time, in the order they came", got)
		more, _ := a.flag("hasMore")
		if len(events) != min(2, len(sent)-got) || more != (got+len(events) < len(sent)) || a.text("cursor") == "" || a.text("cursor") == cursor {
			p.failf("%d events (%s), hasMore %v, cursor %q", len(events), ids(events), more, a.text("cursor"))
		}
		for _, e := range events {
			if e.id() != sent[got].id {
				p.failf("%s where %s was due", e.id(), sent[got].id)
			}
			got++
		}
		cursor = a.text("cursor")
	}
	p.delivers(p.events("cursor", cursor, "recipient", agent.did(), "timeout", "0"))
}

func cursorSoak(p *probe) {
	agent := p.actor("an agent")
	f := p.follow(agent, loop{timeout: "3", limit: "4", cursor: true})
	var sent []letter
	for i := range soakEvents {
		client := p.actor("a client")
		m := p.dated(client, agent, time.Duration(i%5-2)*time.Minute)
		dated("2006-01-02T15:04:05Z07:00", 0)(m)
		sent = append(sent, p.accept(client, m))
		p.sleep(soakTime / soakEvents)
	}
	p.sending("GET /events from cursor to cursor while %d events come", soakEvents)
	p.receives(f, sent)
	p.expect("each event comes exactly once")
	for _, l := range sent {
		if n := f.times[l.id]; n != 1 {
			p.failf("%s came %d times", l.id, n)
		}
	}
}

func refusesCursors(p *probe) {
	for _, cursor := range []string{"abc", "", "-1", "1e3", "0 "} {
		p.refused(p.poll("cursor", cursor, "recipient", p.actor("a reader").did(), "timeout", "0"), invalid)
	}
}

func lastTS(p *probe) {
	client, agent := p.actor("a client"), p.actor("an agent")
	since := p.hour()
	empty := p.poll("since", since, "recipient", agent.did(), "timeout", "0")
	sent := p.accept(client, p.request(client, agent))
	full := p.poll("since", since, "recipient", agent.did(), "timeout", "0")
	for want, a := range map[string]answer{since: empty, sent.ts: full} {
		p.expect("lastTs is the instant %s", want)
		got, ok := envelope.ParseTime(a.text("lastTs"))
		instant, _ := envelope.ParseTime(want)
		if !ok || !got.Equal(instant) {
			p.failf("lastTs %q in %s", a.text("lastTs"), a)
		}
	}
}

const threadPath = overHTTP + " (GET /threads/{id})"

// recordChecks are about what a relay remembers of a thread.
var recordChecks = []Check{
	{Number: "X-14", Title: "GET /threads/{id} shows state, parties, transitions and the envelopes", Cites: threadPath, run: record},
	{Number: "X-15", Title: "client chooses among threads with one id; without it the oldest is meant", Cites: threadPath, run: func(p *probe) {
		t := p.talk()
		t.play("c.REQUEST>a s.REQUEST>b a.OFFER")
		p.ofClient(p.thread(t, ""), t.who["c"])
		p.ofClient(p.thread(t, t.who["c"].did()), t.who["c"])
		p.ofClient(p.thread(t, t.who["s"].did()), t.who["s"])
		p.refused(p.thread(t, t.who["b"].did()), noThread)
	}},
	{Number: "X-16", Title: "A thread that does not exist is 404 THREAD_NOT_FOUND", Cites: threadPath, run: func(p *probe) {
		p.refused(p.call("", "GET", "/threads/"+newID("thread"), nil, nil, 0), noThread)
	}},
	{Number: "X-17", Title: "The record outlives its envelopes and counts those that have expired", Cites: threadPath + "; §4", wait: 7 * second, run: func(p *probe) {
		t := p.talk()
		m, client := t.message("c.REQUEST>a")
		dying(m)
		p.accept(client, m)
		t.play("a.OFFER")
		p.sleep(7 * second)
		a := p.thread(t, "")
		p.expect("thread.state PENDING, one event and expired 1")
		if events, _ := eventsOf(a); a.object("thread").text("state") != "PENDING" || len(events) != 1 || a.number("expired") != 1 {
			p.failf("%s", a)
		}
		t.play("c.ACCEPT>a")
	}},
}

func (p *probe) thread(t *talk, client string) answer {
	target := "/threads/" + t.thread
	if client != "" {
		target += query("client", client)
	}
	return p.call("", "GET", target, nil, nil, 0)
}

func (p *probe) ofClient(a answer, client actor) {
	p.expect("the thread of %s", client.name)
	if got := a.object("thread").text("client"); a.status != 200 || got != client.did() {
		p.failf("%s", a)
	}
}

func record(p *probe) {
	t := p.talk()
	letters := t.play("c.REQUEST a.OFFER b.OFFER c.ACCEPT>a a.RESULT")
	a := p.thread(t, "")
	p.expect("status 200 with ok, thread.state COMPLETED, thread.client, thread.agent, five thread.transitions and expired 0")
	thread := a.object("thread")
	steps, _ := thread.list("transitions")
	if ok, _ := a.ok(); a.status != 200 || !ok || thread.text("state") != "COMPLETED" || thread.text("id") != t.thread ||
		thread.text("client") != t.who["c"].did() || thread.text("agent") != t.who["a"].did() || len(steps) != len(letters) ||
		string(a.members["expired"]) != "0" {
		p.failf("%s", a)
	}
	events, _ := eventsOf(a)
	p.delivers(events, letters...)
	for i, e := range events {
		p.genuine(e, letters[i])
	}
}
