package conformance

import (
	"net/http"
	"strings"
	"time"
)

// channelDeliveryChecks test what agents get.
var channelDeliveryChecks = []channelCheck{
	{number: "N-54", title: "A delivery has channel, message, callback and mcp, which is one object",
		cites: `CHANNEL "Deliveries"; C-1`, needs: needsAgent, run: deliveryBody("object", nil)},
	{number: "N-55", title: "With array, mcp is a list of one server with the name agora",
		cites: `CHANNEL "Deliveries"; C-1`, needs: needsAgent, run: deliveryBody("array", "array")},
	{number: "N-56", title: "With none, a delivery has no mcp",
		cites: `CHANNEL "The service"; CHANNEL "Deliveries"; C-1`, needs: needsAgent, run: deliveryBody("none", "none")},
	{number: "N-57",
		title: "A delivery is a POST to the connection string, with Content-Type and an Idempotency-Key, and no other key",
		cites: `CHANNEL "Deliveries"; GATEWAYS "Requests to other servers"`, needs: needsAgent, run: func(h *channelProbe) {
			_, _, d := h.exchange()
			h.expect("POST with Content-Type: application/json, an Idempotency-Key, no Authorization and no Cookie")
			if d.method != http.MethodPost || !strings.HasPrefix(d.header.Get("Content-Type"), "application/json") ||
				d.header.Get("Idempotency-Key") == "" || d.header.Get("Authorization") != "" ||
				d.header.Get("Cookie") != "" || d.header.Get("Content-Encoding") != "" {
				h.failf("%s with the header %v", d.method, d.header)
			}
		}},
	{number: "N-58", title: "A delivery goes to the whole connection string, with its query",
		cites: `CHANNEL "Deliveries"`, needs: needsAgent, run: func(h *channelProbe) {
			alice := h.talk()
			k := h.inbox(func(int) hookReply { return replyOK })
			h.wantOK(h.connectTo(alice.channel, "bot", k.url+"?key=a%20b&key=c"), http.StatusCreated)
			h.say(alice, "hello")
			call := h.wantCalls(k, 1, promptLimit)[0]
			h.expect("the query key=a%%20b&key=c")
			if call.query != "key=a%20b&key=c" {
				h.failf("the query %q", call.query)
			}
		}},
	{number: "N-59", title: "A message goes to every active connection of its channel, and of no other",
		cites: `CHANNEL "Deliveries"`, needs: needsAgent, run: func(h *channelProbe) {
			alice, other := h.talk(), h.talk()
			first, second := h.agent(alice.channel, "first", replyOK), h.agent(alice.channel, "second", replyOK)
			foreign := h.agent(other.channel, "first", replyOK)
			event := h.sayTo(2, alice, "hello")
			h.wantIDs(h.received(first, 1, promptLimit), event)
			h.wantIDs(h.received(second, 1, promptLimit), event)
			h.sayTo(1, other, "hello")
			h.received(foreign, 1, promptLimit)
			for _, a := range []*agent{first, second, foreign} {
				h.wantNoMoreCalls(a.hook, 1)
			}
			h.sayTo(0, h.talk(), "to nobody")
		}},
	{number: "N-60", title: "What an agent says goes to all other agents of the channel, and not to itself",
		cites: `CHANNEL "Deliveries"; CHANNEL "Callback"`, needs: needsAgent, run: func(h *channelProbe) {
			alice := h.talk()
			first, second := h.agent(alice.channel, "first", replyOK), h.agent(alice.channel, "second", replyOK)
			asked := h.sayTo(2, alice, "hello")
			event := h.reported(alice.channel, h.received(first, 1, promptLimit)[0], messageEvent("hello too"))
			got := h.received(second, 2, promptLimit)
			h.wantIDs(got, asked, event)
			said := got[1].body.object("message")
			h.want(said.text("sender") == "first" && said.text("content") == "hello too", got[1].body,
				`"sender":"first","content":"hello too"`)
			h.wantNoMoreCalls(first.hook, 1)
			h.wantNoMoreCalls(second.hook, 2)
		}},
	{number: "N-61", title: "Only events of the type message are delivered",
		cites: `CHANNEL "Deliveries"; CHANNEL "Callback"`, needs: needsAgent, run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			other := h.agent(alice.channel, "other", replyOK)
			for _, event := range goodEvents() {
				if event["type"] != "message" {
					h.wantSeq(h.report(d, event))
				}
			}
			h.wantNoMoreCalls(other.hook, 0)
		}},
	{number: "N-62",
		title: "Each attempt has the same message.id and Idempotency-Key, and another tok_ and mt_; all of them work",
		cites: `CHANNEL "Deliveries"; GATEWAYS "Requests to other servers"; C-4, C-5`, needs: needsAgent, wait: 3 * time.Second,
		run: deliveryAttempts},
}

// deliveryBody returns a check of the body of a delivery, for a connection with this form of mcp.
func deliveryBody(form string, mcp any) func(*channelProbe) {
	return func(h *channelProbe) {
		alice := h.talk()
		bot := h.agentWith(alice.channel, "bot", mcp, func(int) hookReply { return replyOK })
		const content = "<你好> & " + astral + " \"\\\n\x01"
		event := h.sayTo(1, alice, content)
		d := h.received(bot, 1, promptLimit)[0]
		want := map[string]any{
			"channel": map[string]any{"id": alice.id, "name": alice.channel.name, "context": alice.context,
				"service": d.body.object("channel").text("service")},
			"message":  map[string]any{"id": event.text("id"), "sender": "alice", "content": content},
			"callback": anything,
		}
		base := strings.TrimSuffix(d.body.text("callback"), d.callback)
		server := map[string]any{"url": base + "/mcp/" + alice.id,
			"headers": map[string]any{"Authorization": "Bearer " + d.token}}
		switch form {
		case "object":
			want["mcp"] = server
		case "array":
			server["name"] = "agora"
			want["mcp"] = []any{server}
		}
		h.wantMembers(d.body, want)
		h.want(d.body.object("channel").text("service") != "", d.body, "channel.service is a text")
		h.want(strings.HasPrefix(d.callback, alice.path("/inbox/")), d.body, "a callback of the channel")
		h.wantSeq(h.report(d, statusEvent("reading")))
		if form != "none" {
			h.initialize(d)
		}
	}
}

func deliveryAttempts(h *channelProbe) {
	alice := h.talk()
	bot := h.agentWith(alice.channel, "bot", nil, replyFirst(replyWith(http.StatusServiceUnavailable)))
	event := h.say(alice, "hello")
	got := h.received(bot, 2, 2*promptLimit)
	h.wantIDs(got, event, event)
	h.expect("the same Idempotency-Key, another callback and another key for the MCP server in each attempt")
	if got[0].header.Get("Idempotency-Key") != got[1].header.Get("Idempotency-Key") ||
		got[0].callback == got[1].callback || got[0].token == got[1].token {
		h.failf("the headers %v and the body %s, and then the headers %v and the body %s", got[0].header,
			excerpt(got[0].body.body, 400), got[1].header, excerpt(got[1].body.body, 400))
	}
	for _, d := range got {
		h.wantSeq(h.report(d, statusEvent("reading")))
		h.initialize(d)
		h.call(d, "get_roster", message{})
	}
	h.wantNoMoreCalls(bot.hook, 2)
}
