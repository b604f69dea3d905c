package relay

import (
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

const subscribe = "spec: Subscribe to Events"
const longPolling = "spec: Long Polling Behavior"

// pollChecks test which events a filter selects, and how long a poll is held.
var pollChecks = []relayCheck{
	{Number: "C-30", Title: "The parameter since is required", Cites: subscribe, run: func(p *relayProbe) {
		p.CheckRefused(
			p.Call("a poll without since", "GET",
				"/events"+kit.Query("recipient", p.Actor("a reader").DID(), "timeout", "1"), nil, nil, time.Second),
			kit.AnyRefusal,
		)
	}},
	{Number: "C-31", Title: "A poll is answered at once if there are matching events",
		Cites: longPolling + " 1", run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			sent := p.PostAccepted(client, p.Request(client, agent))
			a := p.Poll("since", p.HourAgo(), "recipient", agent.DID(), "timeout", "12")
			p.CheckEvents(p.CheckPage(a), sent)
			p.checkAtOnce(a.Took)
		}},
	{Number: "C-32",
		Title: "A poll without matching events is held for its timeout and then answered with an empty list",
		Cites: longPolling + " 2",
		wait:  3 * time.Second, run: func(p *relayProbe) {
			a := p.Poll("since", p.HourAgo(), "recipient", p.Actor("a reader").DID(), "timeout", "3")
			p.CheckEvents(p.CheckPage(a))
			p.checkHeld(a.Took, 3*time.Second)
		}},
	{Number: "C-33", Title: "A held poll is answered as soon as a matching event arrives",
		Cites: longPolling + " 2", wait: time.Second,
		run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			held := p.pollInBackground("since", p.HourAgo(), "recipient", agent.DID(), "timeout", "9")
			p.checkStillWaiting(held, "there is no event for its recipient yet")
			sent := p.PostAccepted(client, p.Request(client, agent))
			p.checkWoken(held, time.Now(), sent)
		}},
	{Number: "C-34", Title: "A poll with recipient returns only the events for that recipient",
		Cites: subscribe, run: selects(func(t *conversation) []string {
			return []string{"recipient", t.actors["a"].DID()}
		}, "c.REQUEST>a", "c.ACCEPT>a")},
	{Number: "C-35", Title: "A poll with sender returns only the events from that sender",
		Cites: subscribe, run: selects(func(t *conversation) []string {
			return []string{"sender", t.actors["a"].DID()}
		}, "a.OFFER", "a.RESULT")},
	{Number: "C-36", Title: "A poll with type returns only events of that type",
		Cites: subscribe, run: selects(func(t *conversation) []string {
			return []string{"type", "OFFER", "recipient", t.actors["c"].DID()}
		}, "a.OFFER")},
	{Number: "C-37", Title: "A poll with thread returns only the events of that thread",
		Cites: subscribe, run: selects(func(t *conversation) []string {
			return []string{"thread", t.thread}
		}, "c.REQUEST>a", "a.OFFER", "c.ACCEPT>a", "a.RESULT")},
	{Number: "C-38", Title: "A poll with several filters returns only events that match all of them",
		Cites: subscribe, wait: time.Second, run: selects(func(t *conversation) []string {
			return []string{
				"sender",
				t.actors["c"].DID(),
				"recipient",
				t.actors["a"].DID(),
				"thread",
				t.thread,
				"type",
				"ACCEPT",
			}
		}, "c.ACCEPT>a")},
	{Number: "C-39", Title: "since is exclusive: an event with exactly that ts is not delivered again",
		Cites: subscribe + "; Client Subscription Loop",
		wait:  2 * time.Second, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			sent := p.PostAccepted(client, p.Request(client, agent))
			a := p.Poll("since", sent.TS, "recipient", agent.DID(), "timeout", "2")
			p.CheckEvents(p.CheckPage(a))
			p.checkHeld(a.Took, 2*time.Second)
		}},
	{Number: "C-40", Title: "A poll does not return events that are older than since",
		Cites: subscribe, wait: 3 * time.Second, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			p.PostAccepted(client, p.Request(client, agent))
			p.Sleep(2 * time.Second)
			between := kit.FormatTime(p.Now())
			p.Sleep(time.Second)
			later := p.PostAccepted(client, p.Request(client, agent))
			p.CheckEvents(p.Events("since", between, "recipient", agent.DID(), "timeout", "1"), later)
		}},
	{Number: "C-41", Title: "since may have an offset or a fraction, as in ISO 8601",
		Cites: subscribe + " (ISO 8601)", run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			sent := p.PostAccepted(client, p.Request(client, agent))
			hourAgo := p.Now().Add(-time.Hour)
			for _, since := range []string{hourAgo.UTC().Format(time.RFC3339), hourAgo.UTC().Format(time.RFC3339Nano),
				hourAgo.In(time.FixedZone("", 8*3600)).Format(time.RFC3339)} {
				p.CheckEvents(p.Events("since", since, "recipient", agent.DID(), "timeout", "1"), sent)
			}
		}},
	{Number: "C-42", Title: "A poll without timeout is held for 30 seconds",
		Cites: subscribe + " (default: 30)", wait: 30 * time.Second,
		run: func(p *relayProbe) {
			a := p.Poll("since", p.HourAgo(), "recipient", p.Actor("a reader").DID())
			p.CheckEvents(p.CheckPage(a))
			p.checkHeld(a.Took, 30*time.Second)
		}},
	{Number: "C-43", Title: "A poll is held for at most 60 seconds", Cites: subscribe + " (max: 60)",
		wait: 60 * time.Second,
		run: func(p *relayProbe) {
			a := p.Call("", http.MethodGet, "/events?since="+url.QueryEscape(p.HourAgo())+
				"&recipient="+url.QueryEscape(p.Actor("a reader").DID())+"&timeout=75", nil, nil, 60*time.Second)
			if a.Status >= 400 {
				p.Expect("timeout=75 is treated as 60 or refused")
				p.Note("refused: %s", a)
				return
			}
			p.CheckEvents(p.CheckPage(a))
			p.Expect("the answer comes within 60 seconds")
			if a.Took > 60*time.Second+kit.PromptLimit {
				p.Failf("the answer came after %v", a.Took.Round(time.Millisecond))
			}
		}},
	{Number: "C-44",
		Title: "A reader that uses the specification's subscription loop receives a conversation while it happens",
		Cites: "spec: Client Subscription Loop",
		wait:  2 * time.Second, run: specificationLoop},
}

// lifetimeChecks test meta.ttl. The messages have a ts in the past, so they expire during the check.
var lifetimeChecks = []relayCheck{
	{Number: "C-45", Title: "An event is delivered until ts + meta.ttl, and not after that",
		Cites: "spec: Timeout Rules (relay drops expired messages)",
		wait:  7 * time.Second, run: expires(expiringSoon, 5*time.Second)},
	{Number: "C-46", Title: "A message without meta.ttl expires after 300 seconds",
		Cites: "spec: Timeout Rules (default 300 seconds)",
		wait:  12 * time.Second,
		run: expires(func(m kit.Message) { kit.Combine(shiftTS(-290*time.Second), kit.Without("meta.ttl"))(m) },
			10*time.Second)},
}

// expiringSoon changes m so that it expires in five seconds.
func expiringSoon(m kit.Message) { kit.Combine(shiftTS(-55*time.Second), kit.Set("meta.ttl", 60))(m) }

// expires returns a check that posts a message that expires after the duration left. The message must be delivered
// before that, and must not be delivered afterwards.
func expires(edit func(kit.Message), left time.Duration) func(*relayProbe) {
	return func(p *relayProbe) {
		client, agent := p.Actor("a client"), p.Actor("an agent")
		m := p.Request(client, agent)
		edit(m)
		posted := time.Now()
		sent := p.PostAccepted(client, m)
		if events := p.Inbox(agent); time.Since(posted) < left-time.Second {
			p.CheckEvents(events, sent)
		}
		p.Sleep(left + 2*time.Second - time.Since(posted)) // the known clock offset may be wrong by 1.5 seconds
		events := p.Events("since", p.HourAgo(), "recipient", agent.DID(), "timeout", "1")
		p.Expect("no events: the only event has expired")
		if len(events) > 0 {
			p.Failf("the event is still delivered: %s", kit.Excerpt(events[0].Raw, 300))
		}
	}
}

// checkAtOnce ends the check unless an answer came at once, in the time took.
func (p *relayProbe) checkAtOnce(took time.Duration) {
	p.Expect("the answer comes at once")
	if took > kit.PromptLimit {
		p.Failf("the answer came after %v: the poll was held although there were events", took.Round(time.Millisecond))
	}
}

// checkHeld ends the check unless the answer to a poll took about as long as want.
func (p *relayProbe) checkHeld(took, want time.Duration) {
	p.Expect("the poll is held for %v", want)
	if took < want-want/10 || took > want+kit.PromptLimit {
		p.Failf("the poll was answered after %v", took.Round(time.Millisecond))
	}
	p.Note("held for %v", took.Round(time.Millisecond))
}

// checkWoken ends the check unless a held poll was answered soon after the post, with exactly these messages.
func (p *relayProbe) checkWoken(held *poller, posted time.Time, messages ...kit.SignedMessage) {
	a := held.wait()
	p.Describe("GET /events, held while this was posted: %s", messages[0].What)
	p.CheckEvents(p.CheckPage(a), messages...)
	p.Expect("the held poll is answered as soon as the event arrives")
	if late := held.ended.Sub(posted); late > kit.PromptLimit {
		p.Failf("the poll was answered %v after the event was posted", late.Round(time.Millisecond))
	}
}

// selects returns a check that plays conversations and then polls with a filter. The filter must select exactly these
// moves of the first conversation. The second conversation has other participants. If the filter has a thread, there is
// a third conversation with the same participants in another thread.
func selects(filter func(*conversation) []string, moves ...string) func(*relayProbe) {
	return func(p *relayProbe) {
		const all = "c.REQUEST>a a.OFFER c.ACCEPT>a a.RESULT"
		t, other := p.conversation(), p.conversation()
		messages := t.play(all)
		other.play(all)
		if slices.Contains(filter(t), "thread") {
			again := &conversation{p, t.actors, kit.NewID("thread"), kit.NewID("req")}
			again.play(all)
		}
		var want []kit.SignedMessage
		for i, move := range []string{"c.REQUEST>a", "a.OFFER", "c.ACCEPT>a", "a.RESULT"} {
			for _, wanted := range moves {
				if wanted == move {
					want = append(want, messages[i])
				}
			}
		}
		p.CheckEvents(p.Events(append(filter(t), "since", p.HourAgo(), "timeout", "1")...), want...)
	}
}

// specificationLoop checks the specification's example of a reader, with right clocks and without equal timestamps.
func specificationLoop(p *relayProbe) {
	t := p.conversation()
	agent, client := p.follow(t.actors["a"], readLoop{timeout: "5"}), p.follow(t.actors["c"], readLoop{timeout: "5"})
	p.Sleep(time.Second / 5)
	var forAgent, forClient []kit.SignedMessage
	for i, move := range []string{"c.REQUEST>a", "a.OFFER", "c.ACCEPT>a", "a.RESULT"} {
		signed := t.play(move)[0]
		if i%2 == 0 {
			forAgent = append(forAgent, signed)
		} else {
			forClient = append(forClient, signed)
		}
		p.Sleep(time.Second / 5)
	}
	p.Describe("the specification's loop: GET /events?since=…&recipient=…, where since is the ts of the last event")
	p.checkReceived(agent, forAgent)
	p.checkReceived(client, forClient)
}
