package conformance

import (
	"time"
)

// replayChecks test messages with old timestamps and messages that are posted again.
var replayChecks = []relayCheck{
	{Number: "C-14", Title: "A message with a ts 4m50s in the past is accepted",
		Cites: "spec: Replay Attack Prevention 1", run: accepts(
			variant{what: "ts 4m50s in the past", edit: shiftTS(-290 * time.Second)})},
	{Number: "C-15", Title: "A message with a ts 4m50s in the future is accepted",
		Cites: "spec: Replay Attack Prevention 1", run: accepts(
			variant{what: "ts 4m50s in the future", edit: shiftTS(290 * time.Second)})},
	{Number: "C-16", Title: "A message with a ts more than 5 minutes in the past is refused",
		Cites: "spec: Replay Attack Prevention 1", wait: second,
		run: refuses(anyRefusal,
			variant{what: "ts 5m10s in the past", edit: shiftTS(-310 * time.Second)},
			variant{what: "ts an hour in the past", edit: shiftTS(-time.Hour)},
			variant{what: "ts in 1970", edit: set("ts", "1970-01-01T00:00:00Z")},
		)},
	{Number: "C-17", Title: "A message with a ts more than 5 minutes in the future is refused",
		Cites: "spec: Replay Attack Prevention 1", wait: second,
		run: refuses(anyRefusal,
			variant{what: "ts 5m10s in the future", edit: shiftTS(310 * time.Second)},
			variant{what: "ts an hour in the future", edit: shiftTS(time.Hour)},
			variant{what: "ts in the year 9999", edit: set("ts", "9999-12-31T23:59:59Z")},
		)},
	{Number: "C-18", Vectors: "conversations.json", Title: "A message that is posted again is not delivered again",
		Cites: "spec: Replay Attack Prevention 2", wait: second,
		run: func(p *relayProbe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			sent := p.postAccepted(client, p.request(client, agent))
			for range 2 {
				p.post("the same bytes again", sent.body) // the relay may accept or refuse it
			}
			p.checkInbox(agent, sent)
		}},
	{Number: "C-19",
		Vectors: "conversations.json",
		Title:   "A different message with an id that its sender has already used is refused",
		Cites:   "spec: Replay Attack Prevention 3 (the id is the nonce)",
		wait:    second, run: func(p *relayProbe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			first := p.postAccepted(client, p.request(client, agent))
			second := p.request(client, agent)
			second["id"] = first.id
			p.postRefused(anyRefusal, "a different REQUEST with the id of the first one", second.sign(client).body)
			p.checkInbox(agent, first)
		}},
}

// shiftTS returns a change that moves ts by offset. It also sets a ttl of two hours, so that the message has not
// expired on arrival.
func shiftTS(offset time.Duration) func(message) {
	return func(m message) {
		ts, err := time.Parse(time.RFC3339, m["ts"].(string))
		if err != nil {
			panic(err) // cannot happen: probe.message has written ts
		}
		combine(set("ts", formatTime(ts.Add(offset))), set("meta.ttl", 7200))(m)
	}
}
