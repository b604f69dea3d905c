package conformance

import (
	"time"
)

// replayChecks are about old messages coming again.
var replayChecks = []Check{
	{Number: "C-14", Title: "A message dated 4m50s ago is accepted", Cites: "spec: Replay Attack Prevention 1", run: accepts(
		variant{what: "ts 4m50s in the past", edit: aged(-290 * time.Second)})},
	{Number: "C-15", Title: "A message dated 4m50s ahead is accepted", Cites: "spec: Replay Attack Prevention 1", run: accepts(
		variant{what: "ts 4m50s in the future", edit: aged(290 * time.Second)})},
	{Number: "C-16", Title: "A message dated more than 5 minutes ago is refused", Cites: "spec: Replay Attack Prevention 1", wait: second,
		run: refuses(anyhow,
			variant{what: "ts 5m10s in the past", edit: aged(-310 * time.Second)},
			variant{what: "ts an hour in the past", edit: aged(-time.Hour)},
			variant{what: "ts in 1970", edit: set("ts", "1970-01-01T00:00:00Z")},
		)},
	{Number: "C-17", Title: "A message dated more than 5 minutes ahead is refused", Cites: "spec: Replay Attack Prevention 1", wait: second,
		run: refuses(anyhow,
			variant{what: "ts 5m10s in the future", edit: aged(310 * time.Second)},
			variant{what: "ts an hour in the future", edit: aged(time.Hour)},
			variant{what: "ts in the year 9999", edit: set("ts", "9999-12-31T23:59:59Z")},
		)},
	{Number: "C-18", Vectors: "conversations.json", Title: "The same message posted again is not delivered again", Cites: "spec: Replay Attack Prevention 2", wait: second,
		run: func(p *probe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			sent := p.accept(client, p.request(client, agent))
			for range 2 {
				p.post("the same bytes again", sent.body) // acknowledged or refused, both keep the rule
			}
			p.arrives(agent, sent)
		}},
	{Number: "C-19", Vectors: "conversations.json", Title: "An id its sender has used is refused for another message", Cites: "spec: Replay Attack Prevention 3 (the id is the nonce)",
		wait: second, run: func(p *probe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			first := p.accept(client, p.request(client, agent))
			second := p.request(client, agent)
			second["id"] = first.id
			p.refuse(anyhow, "another REQUEST under the id of the first", second.sign(client).body)
			p.arrives(agent, first)
		}},
}

// aged moves ts. The message lives long enough not to have expired before it arrives.
func aged(by time.Duration) func(message) {
	return func(m message) {
		ts, err := time.Parse(time.RFC3339, m["ts"].(string))
		if err != nil {
			panic(err) // ours
		}
		also(set("ts", stamp(ts.Add(by))), set("meta.ttl", 7200))(m)
	}
}
