package relay

import (
	"time"

	"github.com/agora-relay/agora/conformance/kit"
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
		Cites: "spec: Replay Attack Prevention 1", wait: time.Second,
		run: refuses(kit.AnyRefusal,
			variant{what: "ts 5m10s in the past", edit: shiftTS(-310 * time.Second)},
			variant{what: "ts an hour in the past", edit: shiftTS(-time.Hour)},
			variant{what: "ts in 1970", edit: kit.Set("ts", "1970-01-01T00:00:00Z")},
		)},
	{Number: "C-17", Title: "A message with a ts more than 5 minutes in the future is refused",
		Cites: "spec: Replay Attack Prevention 1", wait: time.Second,
		run: refuses(kit.AnyRefusal,
			variant{what: "ts 5m10s in the future", edit: shiftTS(310 * time.Second)},
			variant{what: "ts an hour in the future", edit: shiftTS(time.Hour)},
			variant{what: "ts in the year 9999", edit: kit.Set("ts", "9999-12-31T23:59:59Z")},
		)},
	{Number: "C-18", Vectors: "conversations.json", Title: "A message that is posted again is not delivered again",
		Cites: "spec: Replay Attack Prevention 2", wait: time.Second,
		run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			sent := p.PostAccepted(client, p.Request(client, agent))
			for range 2 {
				p.Post("the same bytes again", sent.Body) // the relay may accept or refuse it
			}
			p.CheckInbox(agent, sent)
		}},
	{Number: "C-19",
		Vectors: "conversations.json",
		Title:   "A different message with an id that its sender has already used is refused",
		Cites:   "spec: Replay Attack Prevention 3 (the id is the nonce)",
		wait:    time.Second, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			first := p.PostAccepted(client, p.Request(client, agent))
			second := p.Request(client, agent)
			second["id"] = first.ID
			p.PostRefused(kit.AnyRefusal, "a different REQUEST with the id of the first one", second.Sign(client).Body)
			p.CheckInbox(agent, first)
		}},
}

// shiftTS returns a change that moves ts by offset. It also sets a ttl of two hours, so that the message has not
// expired on arrival.
func shiftTS(offset time.Duration) func(kit.Message) {
	return func(m kit.Message) {
		ts, err := time.Parse(time.RFC3339, m["ts"].(string))
		if err != nil {
			panic(err) // cannot happen: probe.message has written ts
		}
		kit.Combine(kit.Set("ts", kit.FormatTime(ts.Add(offset))), kit.Set("meta.ttl", 7200))(m)
	}
}
