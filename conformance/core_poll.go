package conformance

import (
	"net/http"
	"net/url"
	"slices"
	"time"
)

const subscribe = "spec: Subscribe to Events"
const longPolling = "spec: Long Polling Behavior"

// pollChecks are about reading: what a filter selects, and how long a poll is held.
var pollChecks = []Check{
	{Number: "C-30", Title: "since is required", Cites: subscribe, run: func(p *probe) {
		p.refused(p.call("without since", "GET", "/events"+query("recipient", p.actor("a reader").did(), "timeout", "1"), nil, nil, second), anyhow)
	}},
	{Number: "C-31", Title: "If events exist, a poll is answered at once", Cites: longPolling + " 1", run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		sent := p.accept(client, p.request(client, agent))
		a := p.poll("since", p.hour(), "recipient", agent.did(), "timeout", "12")
		p.delivers(p.page(a), sent)
		p.atOnce(a.took)
	}},
	{Number: "C-32", Title: "If no event comes, a poll is held for its timeout and answered with an empty list", Cites: longPolling + " 2",
		wait: 3 * second, run: func(p *probe) {
			a := p.poll("since", p.hour(), "recipient", p.actor("a reader").did(), "timeout", "3")
			p.delivers(p.page(a))
			p.held(a.took, 3*second)
		}},
	{Number: "C-33", Title: "A held poll is answered as soon as an event comes", Cites: longPolling + " 2", wait: second,
		run: func(p *probe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			held := p.pollBehind("since", p.hour(), "recipient", agent.did(), "timeout", "9")
			p.waiting(held, "there is nothing for its recipient yet")
			sent := p.accept(client, p.request(client, agent))
			p.woken(held, time.Now(), sent)
		}},
	{Number: "C-34", Title: "A poll with recipient gets that recipient's events only", Cites: subscribe, run: filtered(func(t *talk) []string {
		return []string{"recipient", t.who["a"].did()}
	}, "c.REQUEST>a", "c.ACCEPT>a")},
	{Number: "C-35", Title: "A poll with sender gets that sender's events only", Cites: subscribe, run: filtered(func(t *talk) []string {
		return []string{"sender", t.who["a"].did()}
	}, "a.OFFER", "a.RESULT")},
	{Number: "C-36", Title: "A poll with type gets that type only", Cites: subscribe, run: filtered(func(t *talk) []string {
		return []string{"type", "OFFER", "recipient", t.who["c"].did()}
	}, "a.OFFER")},
	{Number: "C-37", Title: "A poll with thread gets that thread only", Cites: subscribe, run: filtered(func(t *talk) []string {
		return []string{"thread", t.thread}
	}, "c.REQUEST>a", "a.OFFER", "c.ACCEPT>a", "a.RESULT")},
	{Number: "C-38", Title: "Filters narrow each other", Cites: subscribe, wait: second, run: filtered(func(t *talk) []string {
		return []string{"sender", t.who["c"].did(), "recipient", t.who["a"].did(), "thread", t.thread, "type", "ACCEPT"}
	}, "c.ACCEPT>a")},
	{Number: "C-39", Title: "since means after: an event with exactly that ts is not delivered again", Cites: subscribe + "; Client Subscription Loop",
		wait: 2 * second, run: func(p *probe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			sent := p.accept(client, p.request(client, agent))
			a := p.poll("since", sent.ts, "recipient", agent.did(), "timeout", "2")
			p.delivers(p.page(a))
			p.held(a.took, 2*second)
		}},
	{Number: "C-40", Title: "since leaves out what is older", Cites: subscribe, wait: 3 * second, run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		p.accept(client, p.request(client, agent))
		p.sleep(2 * second)
		between := stamp(p.now())
		p.sleep(second)
		later := p.accept(client, p.request(client, agent))
		p.delivers(p.events("since", between, "recipient", agent.did(), "timeout", "1"), later)
	}},
	{Number: "C-41", Title: "since takes a time with an offset or a fraction, as ISO 8601 has it", Cites: subscribe + " (ISO 8601)", run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		sent := p.accept(client, p.request(client, agent))
		hourAgo := p.now().Add(-time.Hour)
		for _, since := range []string{hourAgo.UTC().Format(time.RFC3339), hourAgo.UTC().Format(time.RFC3339Nano),
			hourAgo.In(time.FixedZone("", 8*3600)).Format(time.RFC3339)} {
			p.delivers(p.events("since", since, "recipient", agent.did(), "timeout", "1"), sent)
		}
	}},
	{Number: "C-42", Title: "Without timeout a poll is held for 30 seconds", Cites: subscribe + " (default: 30)", wait: 30 * second,
		run: func(p *probe) {
			a := p.poll("since", p.hour(), "recipient", p.actor("a reader").did())
			p.delivers(p.page(a))
			p.held(a.took, 30*second)
		}},
	{Number: "C-43", Title: "A poll is held for 60 seconds at most", Cites: subscribe + " (max: 60)", wait: 60 * second,
		run: func(p *probe) {
			a := p.call("", http.MethodGet, "/events?since="+url.QueryEscape(p.hour())+"&recipient="+url.QueryEscape(p.actor("a reader").did())+"&timeout=75",
				nil, nil, 60*second)
			if a.status >= 400 {
				p.expect("timeout=75 is taken as 60, or refused")
				p.note("refused: %s", a)
				return
			}
			p.delivers(p.page(a))
			p.expect("the answer comes after 60 s at the latest")
			if a.took > 60*second+promptly {
				p.failf("it came after %v", a.took.Round(time.Millisecond))
			}
		}},
	{Number: "C-44", Title: "The specification's own subscription loop gets a conversation as it happens", Cites: "spec: Client Subscription Loop",
		wait: 2 * second, run: ownLoop},
}

// lifetimeChecks are about meta.ttl. Messages dated back expire while we watch.
var lifetimeChecks = []Check{
	{Number: "C-45", Title: "An event is delivered until ts + meta.ttl and then no more", Cites: "spec: Timeout Rules (relay drops expired messages)",
		wait: 7 * second, run: expires(dying, 5*second)},
	{Number: "C-46", Title: "A message without meta.ttl lives for 300 seconds", Cites: "spec: Timeout Rules (default 300 seconds)",
		wait: 12 * second, run: expires(func(m message) { also(aged(-290*second), without("meta.ttl"))(m) }, 10*second)},
}

// dying makes a message that expires in five seconds.
func dying(m message) { also(aged(-55*time.Second), set("meta.ttl", 60))(m) }

// expires returns a check of a message that is alive when it is posted and has expired soon after.
func expires(edit func(message), soon time.Duration) func(*probe) {
	return func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		m := p.request(client, agent)
		edit(m)
		posted := time.Now()
		sent := p.accept(client, m)
		if events := p.inbox(agent); time.Since(posted) < soon-second {
			p.delivers(events, sent)
		}
		p.sleep(soon + 2*second - time.Since(posted)) // the clocks may differ by a second and a half
		events := p.events("since", p.hour(), "recipient", agent.did(), "timeout", "1")
		p.expect("no events: the only one has expired")
		if len(events) > 0 {
			p.failf("it is delivered still: %s", excerpt(events[0].raw, 300))
		}
	}
}

// atOnce ends the check unless an answer came without being held.
func (p *probe) atOnce(took time.Duration) {
	p.expect("the answer comes at once")
	if took > promptly {
		p.failf("it came after %v: the poll was held though there were events", took.Round(time.Millisecond))
	}
}

// held ends the check unless an answer took about as long as it should.
func (p *probe) held(took, want time.Duration) {
	p.expect("the poll is held for %v", want)
	if took < want-want/10 || took > want+promptly {
		p.failf("it was answered after %v", took.Round(time.Millisecond))
	}
	p.note("held for %v", took.Round(time.Millisecond))
}

// woken ends the check unless a held poll was answered soon after an event came, with it.
func (p *probe) woken(held *poller, posted time.Time, letters ...letter) {
	a := held.wait()
	p.sending("GET /events, held, while %s was posted", letters[0].what)
	p.delivers(p.page(a), letters...)
	p.expect("the held poll is answered as soon as the event comes")
	if late := held.ended.Sub(posted); late > promptly {
		p.failf("it was answered %v after the event came", late.Round(time.Millisecond))
	}
}

// filtered returns a check that plays conversations and then polls with a filter that selects these moves of the first.
// The second has other people; if the filter names a thread, there is a third of the same people in another thread.
func filtered(filter func(*talk) []string, moves ...string) func(*probe) {
	return func(p *probe) {
		const all = "c.REQUEST>a a.OFFER c.ACCEPT>a a.RESULT"
		t, other := p.talk(), p.talk()
		letters := t.play(all)
		other.play(all)
		if slices.Contains(filter(t), "thread") {
			again := &talk{p, t.who, newID("thread"), newID("req")}
			again.play(all)
		}
		var want []letter
		for i, move := range []string{"c.REQUEST>a", "a.OFFER", "c.ACCEPT>a", "a.RESULT"} {
			for _, wanted := range moves {
				if wanted == move {
					want = append(want, letters[i])
				}
			}
		}
		p.delivers(p.events(append(filter(t), "since", p.hour(), "timeout", "1")...), want...)
	}
}

// ownLoop reads as the specification's example does, senders' clocks being right and no two messages of one instant.
func ownLoop(p *probe) {
	t := p.talk()
	agent, client := p.follow(t.who["a"], loop{timeout: "5"}), p.follow(t.who["c"], loop{timeout: "5"})
	p.sleep(second / 5)
	var forAgent, forClient []letter
	for i, move := range []string{"c.REQUEST>a", "a.OFFER", "c.ACCEPT>a", "a.RESULT"} {
		l := t.play(move)[0]
		if i%2 == 0 {
			forAgent = append(forAgent, l)
		} else {
			forClient = append(forClient, l)
		}
		p.sleep(second / 5)
	}
	p.sending("the specification's loop: GET /events?since=…&recipient=…, since being the last event's ts")
	p.receives(agent, forAgent)
	p.receives(client, forClient)
}
