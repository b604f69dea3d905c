package relay

import (
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

const delivery = "PROTOCOL §7 "

// deliveryChecks test readers that poll with since = the ts of the last event. No event may be lost, whatever the
// clocks of the senders show. No reader may be answered in a hot loop.
var deliveryChecks = []relayCheck{
	{Number: "S-109", Title: "Events are delivered in the order of their arrival, not of their ts",
		Cites: delivery + "(delivery order is the sequence)", run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			var sent []kit.SignedMessage
			for _, ahead := range []time.Duration{20, -40, 60, 0, -80} {
				sent = append(sent, p.PostAccepted(client, p.requestAhead(client, agent, ahead*time.Second)))
			}
			p.checkInOrder(p.Events("since", p.HourAgo(), "recipient", agent.DID(), "timeout", "0"), sent...)
		}},
	{Number: "S-110", Title: "A new event with a ts before the reader's since is delivered at once",
		Cites: delivery + "since 1 (news)", run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			first := p.PostAccepted(client, p.requestAhead(client, agent, 0))
			late := p.PostAccepted(client, p.requestAhead(client, agent, -2*time.Minute))
			a := p.Poll("since", first.TS, "recipient", agent.DID(), "timeout", "9")
			p.CheckEvents(p.CheckPage(a), late)
			p.checkAtOnce(a.Took)
		}},
	{Number: "S-111", Title: "A new event with a ts before the reader's since wakes a held poll",
		Cites: delivery + "since 1 (hold until news)", wait: 3 * time.Second, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			first := p.PostAccepted(client, p.requestAhead(client, agent, 0))
			p.Sleep(2 * time.Second) // longer than the second for which the relay waits for events with an equal ts
			held := p.pollInBackground("since", first.TS, "recipient", agent.DID(), "timeout", "9")
			p.checkStillWaiting(held, "the reader has received all events")
			late := p.PostAccepted(client, p.requestAhead(client, agent, -2*time.Minute))
			p.checkWoken(held, time.Now(), late)
		}},
	{Number: "S-112", Title: "A new event whose ts equals the reader's since is delivered within about a second",
		Cites: delivery + "since 1 (equal timestamps)",
		wait:  2 * time.Second, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			first := p.requestAhead(client, agent, 0)
			sent := p.PostAccepted(client, first)
			second := p.Request(client, agent)
			second["ts"] = first["ts"]
			twin := p.PostAccepted(client, second)
			a := p.Poll("since", sent.TS, "recipient", agent.DID(), "timeout", "9")
			p.CheckEvents(p.CheckPage(a), twin)
			p.Expect("the answer comes about a second after the event")
			if a.Took > kit.PromptLimit+time.Second {
				p.Failf("the answer came after %v", a.Took)
			}
		}},
	{Number: "S-113", Title: "A reader that has received events with equal timestamps is not answered in a hot loop",
		Cites: delivery + "(no client is ever answered in a hot loop)",
		wait:  7 * time.Second, run: idleReader("equal timestamps", time.Second)},
	{Number: "S-114", Title: "A reader whose last event does not have the largest ts is not answered in a hot loop",
		Cites: delivery + "(no client is ever answered in a hot loop)",
		wait:  7 * time.Second, run: idleReader("decreasing timestamps", -time.Minute)},
	{Number: "S-115",
		Title: "A page does not end between events with the same ts; it may have more events than limit instead",
		Cites: delivery + "since 3", run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			var sent []kit.SignedMessage
			ts := kit.FormatTime(p.Now())
			for range 4 {
				m := p.Request(client, agent)
				m["ts"] = ts
				sent = append(sent, p.PostAccepted(client, m))
			}
			p.CheckEvents(
				p.Events("since", p.HourAgo(), "recipient", agent.DID(), "timeout", "0", "limit", "2"),
				sent...)
		}},
	{Number: "S-116", Title: "No event is lost with millisecond timestamps and clocks that are wrong by a few seconds",
		Cites: delivery + "since", wait: 6 * time.Second,
		run: soak(soakOptions{skew: 5 * time.Second})},
	{Number: "S-117", Title: "No event is lost with whole-second timestamps",
		Cites: delivery + "since", wait: 6 * time.Second,
		run: soak(soakOptions{wholeSeconds: true})},
	{Number: "S-118",
		Title: "No event is lost with whole-second timestamps and clocks that are wrong by up to 4 minutes",
		Cites: delivery + "since", wait: 6 * time.Second,
		run: soak(soakOptions{wholeSeconds: true, skew: 4 * time.Minute})},
	{Number: "S-119", Title: "No event is lost with small pages, whole-second timestamps and wrong clocks",
		Cites: delivery + "since 3", wait: 6 * time.Second,
		run: soak(soakOptions{wholeSeconds: true, skew: 5 * time.Second, limit: 1})},
	{Number: "S-120", Title: "No event is lost if the reader pauses between its polls",
		Cites: delivery + "since", wait: 8 * time.Second,
		run: soak(soakOptions{wholeSeconds: true, skew: 2 * time.Second, limit: 3, pause: 1500 * time.Millisecond})},
	{Number: "S-121", Title: "A held poll is not answered because of an event for another recipient",
		Cites: delivery + "Long poll (wake only the waiters whose filter matches)",
		wait:  2 * time.Second, run: func(p *relayProbe) {
			client, agent, other := p.Actor("a client"), p.Actor("an agent"), p.Actor("another agent")
			held := p.pollInBackground("since", p.HourAgo(), "recipient", agent.DID(), "timeout", "9")
			p.PostAccepted(client, p.Request(client, other))
			p.Sleep(time.Second / 2)
			p.checkStillWaiting(held, "the new event is for another recipient")
			sent := p.PostAccepted(client, p.Request(client, agent))
			p.checkWoken(held, time.Now(), sent)
		}},
	{Number: "S-122", Title: "All polls that wait for an event are answered with it",
		Cites: delivery + "Long poll", wait: time.Second, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			m := p.Request(client, agent)
			var held []*poller
			for _, filter := range [][2]string{{"recipient", agent.DID()}, {"recipient", agent.DID()},
				{"sender", client.DID()}, {"thread", m["thread"].(map[string]any)["id"].(string)}} {
				held = append(held, p.pollInBackground("since", p.HourAgo(), filter[0], filter[1], "timeout", "15"))
			}
			sent := p.PostAccepted(client, m)
			posted := time.Now()
			for _, poll := range held {
				p.checkWoken(poll, posted, sent)
			}
		}},
	{Number: "S-123", Title: "A held poll does not delay other polls",
		Cites: delivery + "Long poll", wait: time.Second, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			held := p.pollInBackground("since", p.HourAgo(), "recipient", p.Actor("a reader").DID(), "timeout", "9")
			sent := p.PostAccepted(client, p.Request(client, agent))
			a := p.Poll("since", p.HourAgo(), "recipient", agent.DID(), "timeout", "9")
			p.CheckEvents(p.CheckPage(a), sent)
			p.checkAtOnce(a.Took)
			p.checkStillWaiting(held, "there is no event for its recipient")
		}},
}

// requestAhead returns a REQUEST, not signed yet, from a sender whose clock is ahead by this duration.
func (p *relayProbe) requestAhead(from, to kit.Actor, ahead time.Duration) kit.Message {
	m := p.Request(from, to)
	kit.Combine(kit.Set("ts", kit.FormatTime(p.Now().Add(ahead))), kit.Set("meta.ttl", 600))(m)
	return m
}

func names(messages []kit.SignedMessage) string {
	var text string
	for i, signed := range messages {
		if i > 0 {
			text += ", "
		}
		text += signed.ID
	}
	return text
}

// idleReader returns a check of a reader that has received all events and keeps polling as the specification
// describes. A negative step is the difference between the timestamps of the events. Otherwise all timestamps are
// equal.
func idleReader(what string, step time.Duration) func(*relayProbe) {
	return func(p *relayProbe) {
		client, agent := p.Actor("a client"), p.Actor("an agent")
		now := p.Now()
		var sent []kit.SignedMessage
		for i := range 4 {
			m := p.Request(client, agent)
			m["ts"] = kit.FormatTime(now)
			if step < 0 {
				kit.Combine(kit.Set("ts", kit.FormatTime(now.Add(time.Duration(i)*step))), kit.Set("meta.ttl", 600))(m)
			}
			sent = append(sent, p.PostAccepted(client, m))
		}
		f := p.follow(agent, readLoop{timeout: "2"})
		p.Describe("the specification's loop with timeout=2 after %d events with %s, for 7 seconds", len(sent), what)
		p.Sleep(7 * time.Second)
		missing, polls, stopReason := f.state(sent)
		f.stop()
		p.Expect("all %d events, and no more than 10 answers in 7 seconds, because idle polls are held", len(sent))
		if len(missing) > 0 || polls > 10 || stopReason != "" {
			p.Failf("%d events are missing, %d polls answered %s", len(missing), polls-1, stopReason)
		}
		p.Note("%d polls", polls)
	}
}

// soakOptions are the conditions of a soak check.
type soakOptions struct {
	wholeSeconds bool          // timestamps have whole seconds, as in the examples of the specification
	skew         time.Duration // largest error of a sender's clock, in both directions
	limit        int           // limit of the reader's polls; 0: the parameter is not sent
	pause        time.Duration // between the reader's polls
}

const (
	soakSenders = 5
	soakEvents  = 60
	soakTime    = 5 * time.Second
)

// soak returns a check in which several senders post to one reader, which uses the specification's loop.
func soak(s soakOptions) func(*relayProbe) {
	return func(p *relayProbe) {
		agent := p.Actor("an agent")
		loop := readLoop{timeout: "3", pause: s.pause}
		if s.limit > 0 {
			loop.limit = strconv.Itoa(s.limit)
		}
		f := p.follow(agent, loop)
		var senders [soakSenders]struct {
			kit.Actor
			ahead time.Duration
		}
		for i := range senders {
			senders[i].Actor = p.Actor("sender " + strconv.Itoa(i+1))
			// The clock errors are evenly spaced, so that every run includes both extremes.
			senders[i].ahead = s.skew * time.Duration(2*i-(soakSenders-1)) / (soakSenders - 1)
		}
		var sent []kit.SignedMessage
		for range soakEvents {
			from := senders[rand.IntN(soakSenders)]
			m := p.requestAhead(from.Actor, agent, from.ahead)
			if s.wholeSeconds {
				formatTS("2006-01-02T15:04:05Z07:00", 0)(m)
			}
			sent = append(sent, p.PostAccepted(from.Actor, m))
			p.Sleep(time.Duration(rand.Int64N(int64(2 * soakTime / soakEvents))))
		}
		p.Describe("the specification's loop (since is the ts of the last event) with limit %q and a pause of %v, "+
			"while %d senders with clock errors of up to %v post %d events",
			loop.limit, s.pause, soakSenders, s.skew, soakEvents)
		p.checkReceived(f, sent)
	}
}
