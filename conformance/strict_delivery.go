package conformance

import (
	"math/rand/v2"
	"strconv"
	"time"
)

const delivery = "PROTOCOL §7 "

// deliveryChecks are about since = the last event's ts: nothing is lost, whatever the senders' clocks say, and nobody
// is answered without end.
var deliveryChecks = []Check{
	{Number: "S-109", Title: "Events are delivered in the order they came, not in the order of ts", Cites: delivery + "(delivery order is the sequence)", run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		var sent []letter
		for _, ahead := range []time.Duration{20, -40, 60, 0, -80} {
			sent = append(sent, p.accept(client, p.dated(client, agent, ahead*time.Second)))
		}
		events := p.events("since", p.hour(), "recipient", agent.did(), "timeout", "0")
		p.delivers(events, sent...)
		p.expect("the order of arrival, which was %s", names(sent))
		for i, e := range events {
			if e.id() != sent[i].id {
				p.failf("they come in the order %s", ids(events))
			}
		}
	}},
	{Number: "S-110", Title: "An event whose ts is older than the reader's since is delivered all the same, at once", Cites: delivery + "since 1 (news)", run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		first := p.accept(client, p.dated(client, agent, 0))
		late := p.accept(client, p.dated(client, agent, -2*time.Minute))
		a := p.poll("since", first.ts, "recipient", agent.did(), "timeout", "9")
		p.delivers(p.page(a), late)
		p.atOnce(a.took)
	}},
	{Number: "S-111", Title: "Such an event wakes a held poll", Cites: delivery + "since 1 (hold until news)", wait: 3 * second, run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		first := p.accept(client, p.dated(client, agent, 0))
		p.sleep(2 * second) // beyond the second in which equal timestamps are waited for
		held := p.pollBehind("since", first.ts, "recipient", agent.did(), "timeout", "9")
		p.waiting(held, "the reader has got all there is")
		late := p.accept(client, p.dated(client, agent, -2*time.Minute))
		p.woken(held, time.Now(), late)
	}},
	{Number: "S-112", Title: "An event with exactly the reader's since is delivered within about a second, if it came later", Cites: delivery + "since 1 (equal timestamps)",
		wait: 2 * second, run: func(p *probe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			first := p.dated(client, agent, 0)
			sent := p.accept(client, first)
			second := p.request(client, agent)
			second["ts"] = first["ts"]
			twin := p.accept(client, second)
			a := p.poll("since", sent.ts, "recipient", agent.did(), "timeout", "9")
			p.delivers(p.page(a), twin)
			p.expect("the answer comes when the event is a second old")
			if a.took > promptly+time.Second {
				p.failf("it came after %v", a.took)
			}
		}},
	{Number: "S-113", Title: "A reader that has met equal timestamps is not answered in a hot loop", Cites: delivery + "(no client is ever answered in a hot loop)",
		wait: 7 * second, run: idles("timestamps that are equal", time.Second)},
	{Number: "S-114", Title: "A reader whose last event is not the one with the largest ts is not answered in a hot loop", Cites: delivery + "(no client is ever answered in a hot loop)",
		wait: 7 * second, run: idles("timestamps that go down", -time.Minute)},
	{Number: "S-115", Title: "A page does not end between events with one ts: limit gives way", Cites: delivery + "since 3", run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		var sent []letter
		ts := stamp(p.now())
		for range 4 {
			m := p.request(client, agent)
			m["ts"] = ts
			sent = append(sent, p.accept(client, m))
		}
		p.delivers(p.events("since", p.hour(), "recipient", agent.did(), "timeout", "0", "limit", "2"), sent...)
	}},
	{Number: "S-116", Title: "Nothing is lost with millisecond timestamps and clocks a few seconds off", Cites: delivery + "since", wait: 6 * second,
		run: soak(soaking{skew: 5 * time.Second})},
	{Number: "S-117", Title: "Nothing is lost with whole-second timestamps", Cites: delivery + "since", wait: 6 * second,
		run: soak(soaking{whole: true})},
	{Number: "S-118", Title: "Nothing is lost with whole-second timestamps and clocks up to 4 minutes off", Cites: delivery + "since", wait: 6 * second,
		run: soak(soaking{whole: true, skew: 4 * time.Minute})},
	{Number: "S-119", Title: "Nothing is lost with small pages, whole-second timestamps and skewed clocks", Cites: delivery + "since 3", wait: 6 * second,
		run: soak(soaking{whole: true, skew: 5 * time.Second, limit: 1})},
	{Number: "S-120", Title: "Nothing is lost by a reader that pauses between its polls", Cites: delivery + "since", wait: 8 * second,
		run: soak(soaking{whole: true, skew: 2 * time.Second, limit: 3, pause: 1500 * time.Millisecond})},
	{Number: "S-121", Title: "A held poll is not answered for somebody else's event", Cites: delivery + "Long poll (wake only the waiters whose filter matches)",
		wait: 2 * second, run: func(p *probe) {
			client, agent, other := p.actor("a client"), p.actor("an agent"), p.actor("another agent")
			held := p.pollBehind("since", p.hour(), "recipient", agent.did(), "timeout", "9")
			p.accept(client, p.request(client, other))
			p.sleep(second / 2)
			p.waiting(held, "what came was for somebody else")
			sent := p.accept(client, p.request(client, agent))
			p.woken(held, time.Now(), sent)
		}},
	{Number: "S-122", Title: "Every poll that waits for an event is answered with it", Cites: delivery + "Long poll", wait: second, run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		m := p.request(client, agent)
		var held []*poller
		for _, filter := range [][2]string{{"recipient", agent.did()}, {"recipient", agent.did()}, {"sender", client.did()}, {"thread", m["thread"].(map[string]any)["id"].(string)}} {
			held = append(held, p.pollBehind("since", p.hour(), filter[0], filter[1], "timeout", "15"))
		}
		sent := p.accept(client, m)
		posted := time.Now()
		for _, l := range held {
			p.woken(l, posted, sent)
		}
	}},
	{Number: "S-123", Title: "A poll that is held holds up nobody else's", Cites: delivery + "Long poll", wait: second, run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		held := p.pollBehind("since", p.hour(), "recipient", p.actor("a reader").did(), "timeout", "9")
		sent := p.accept(client, p.request(client, agent))
		a := p.poll("since", p.hour(), "recipient", agent.did(), "timeout", "9")
		p.delivers(p.page(a), sent)
		p.atOnce(a.took)
		p.waiting(held, "nothing has come for its recipient")
	}},
}

// dated returns a REQUEST whose sender's clock is so far ahead.
func (p *probe) dated(from, to actor, ahead time.Duration) message {
	m := p.request(from, to)
	also(set("ts", stamp(p.now().Add(ahead))), set("meta.ttl", 600))(m)
	return m
}

func names(letters []letter) string {
	var text string
	for i, l := range letters {
		if i > 0 {
			text += ", "
		}
		text += l.id
	}
	return text
}

// idles returns a check of a reader that has got everything and goes on asking, as the specification tells it.
func idles(what string, step time.Duration) func(*probe) {
	return func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		now := p.now()
		var sent []letter
		for i := range 4 {
			m := p.request(client, agent)
			m["ts"] = stamp(now)
			if step < 0 {
				also(set("ts", stamp(now.Add(time.Duration(i)*step))), set("meta.ttl", 600))(m)
			}
			sent = append(sent, p.accept(client, m))
		}
		f := p.follow(agent, loop{timeout: "2"})
		p.sending("the specification's loop with timeout=2 after %d events with %s, for 7 seconds", len(sent), what)
		p.sleep(7 * second)
		missing, polls, trip := f.state(sent)
		f.stop()
		p.expect("all %d events, and no more than 10 answers in 7 seconds, because idle polls are held", len(sent))
		if len(missing) > 0 || polls > 10 || trip != "" {
			p.failf("%d events missing, %d polls answered %s", len(missing), polls-1, trip)
		}
		p.note("%d polls", polls)
	}
}

// soaking says how unkind the world is to a reader.
type soaking struct {
	whole  bool          // timestamps in whole seconds, as the specification writes them
	skew   time.Duration // of each sender's clock, either way
	limit  int           // of the reader's pages; 0: none asked for
	pause  time.Duration // between the reader's polls
	cursor bool          // the reader follows the cursor
}

const (
	soakSenders = 5
	soakEvents  = 60
	soakTime    = 5 * time.Second
)

// soak returns a check in which several senders write to one reader that follows the specification's loop.
func soak(s soaking) func(*probe) {
	return func(p *probe) {
		agent := p.actor("an agent")
		l := loop{timeout: "3", pause: s.pause, cursor: s.cursor}
		if s.limit > 0 {
			l.limit = strconv.Itoa(s.limit)
		}
		f := p.follow(agent, l)
		var senders [soakSenders]struct {
			actor
			ahead time.Duration
		}
		for i := range senders {
			senders[i].actor = p.actor("sender " + strconv.Itoa(i+1))
			// The clocks are spread evenly, so that every run meets both ends.
			senders[i].ahead = s.skew * time.Duration(2*i-(soakSenders-1)) / (soakSenders - 1)
		}
		var sent []letter
		for range soakEvents {
			from := senders[rand.IntN(soakSenders)]
			m := p.dated(from.actor, agent, from.ahead)
			if s.whole {
				dated("2006-01-02T15:04:05Z07:00", 0)(m)
			}
			sent = append(sent, p.accept(from.actor, m))
			p.sleep(time.Duration(rand.Int64N(int64(2 * soakTime / soakEvents))))
		}
		p.sending("the specification's loop (since = the last event's ts), limit %q, pausing %v, while %d senders whose clocks are up to %v off post %d events",
			l.limit, s.pause, soakSenders, s.skew, soakEvents)
		p.receives(f, sent)
	}
}
