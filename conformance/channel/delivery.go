package channel

import (
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// channelDeliveryChecks test what agents get.
var channelDeliveryChecks = []channelCheck{
	{Number: "N-54", Title: "A delivery has channel, message, callback and mcp, which is one object",
		Cites: `CHANNEL "Deliveries"; C-1`, Needs: needsAgent, Run: deliveryBody("object", nil)},
	{Number: "N-55", Title: "With array, mcp is a list of one server with the name agora",
		Cites: `CHANNEL "Deliveries"; C-1`, Needs: needsAgent, Run: deliveryBody("array", "array")},
	{Number: "N-56", Title: "With none, a delivery has no mcp",
		Cites: `CHANNEL "The service"; CHANNEL "Deliveries"; C-1`, Needs: needsAgent, Run: deliveryBody("none", "none")},
	{Number: "N-57",
		Title: "A delivery is a POST to the connection string, with Content-Type and an Idempotency-Key, and no other key",
		Cites: `CHANNEL "Deliveries"; GATEWAYS "Requests to other servers"`, Needs: needsAgent, Run: func(h *channelProbe) {
			_, _, d := h.exchange()
			h.Expect("POST with Content-Type: application/json, an Idempotency-Key, no Authorization and no Cookie")
			if d.Method != http.MethodPost || !strings.HasPrefix(d.Header.Get("Content-Type"), "application/json") ||
				d.Header.Get("Idempotency-Key") == "" || d.Header.Get("Authorization") != "" ||
				d.Header.Get("Cookie") != "" || d.Header.Get("Content-Encoding") != "" {
				h.Failf("%s with the header %v", d.Method, d.Header)
			}
		}},
	{Number: "N-58", Title: "A delivery goes to the whole connection string, with its query",
		Cites: `CHANNEL "Deliveries"`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice := h.talk()
			k := h.inbox(func(int) kit.HookReply { return kit.ReplyOK })
			h.wantOK(h.connectTo(alice.channel, "bot", k.URL+"?key=a%20b&key=c"), http.StatusCreated)
			h.say(alice, "hello")
			call := h.WantCalls(k, 1, kit.PromptLimit)[0]
			h.Expect("the query key=a%%20b&key=c")
			if call.Query != "key=a%20b&key=c" {
				h.Failf("the query %q", call.Query)
			}
		}},
	{Number: "N-59", Title: "A message goes to every active connection of its channel, and of no other",
		Cites: `CHANNEL "Deliveries"`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice, other := h.talk(), h.talk()
			first, second := h.agent(alice.channel, "first", kit.ReplyOK), h.agent(alice.channel, "second", kit.ReplyOK)
			foreign := h.agent(other.channel, "first", kit.ReplyOK)
			event := h.sayTo(2, alice, "hello")
			h.wantIDs(h.received(first, 1, kit.PromptLimit), event)
			h.wantIDs(h.received(second, 1, kit.PromptLimit), event)
			h.sayTo(1, other, "hello")
			h.received(foreign, 1, kit.PromptLimit)
			for _, a := range []*agent{first, second, foreign} {
				h.WantNoMoreCalls(a.Hook, 1)
			}
			h.sayTo(0, h.talk(), "to nobody")
		}},
	{Number: "N-60", Title: "What an agent says goes to all other agents of the channel, and not to itself",
		Cites: `CHANNEL "Deliveries"; CHANNEL "Callback"`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice := h.talk()
			first, second := h.agent(alice.channel, "first", kit.ReplyOK), h.agent(alice.channel, "second", kit.ReplyOK)
			asked := h.sayTo(2, alice, "hello")
			event := h.reported(alice.channel, h.received(first, 1, kit.PromptLimit)[0], messageEvent("hello too"))
			got := h.received(second, 2, kit.PromptLimit)
			h.wantIDs(got, asked, event)
			said := got[1].Body.Object("message")
			h.Want(said.Text("sender") == "first" && said.Text("content") == "hello too", got[1].Body,
				`"sender":"first","content":"hello too"`)
			h.WantNoMoreCalls(first.Hook, 1)
			h.WantNoMoreCalls(second.Hook, 2)
		}},
	{Number: "N-61", Title: "Only events of the type message are delivered",
		Cites: `CHANNEL "Deliveries"; CHANNEL "Callback"`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			other := h.agent(alice.channel, "other", kit.ReplyOK)
			for _, event := range goodEvents() {
				if event["type"] != "message" {
					h.wantSeq(h.report(d, event))
				}
			}
			h.WantNoMoreCalls(other.Hook, 0)
		}},
	{Number: "N-62",
		Title: "Each attempt has the same message.id and Idempotency-Key, and another tok_ and mt_; all of them work",
		Cites: `CHANNEL "Deliveries"; GATEWAYS "Requests to other servers"; C-4, C-5`, Needs: needsAgent,
		Wait: 3 * time.Second,
		Run:  deliveryAttempts},
}

// deliveryBody returns a check of the body of a delivery, for a connection with this form of mcp.
func deliveryBody(form string, mcp any) func(*channelProbe) {
	return func(h *channelProbe) {
		alice := h.talk()
		bot := h.agentWith(alice.channel, "bot", mcp, func(int) kit.HookReply { return kit.ReplyOK })
		const content = "<你好> & " + kit.Astral + " \"\\\n\x01"
		event := h.sayTo(1, alice, content)
		d := h.received(bot, 1, kit.PromptLimit)[0]
		want := map[string]any{
			"channel": map[string]any{"id": alice.id, "name": alice.channel.name, "context": alice.context,
				"service": d.Body.Object("channel").Text("service")},
			"message":  map[string]any{"id": event.Text("id"), "sender": "alice", "content": content},
			"callback": anything,
		}
		base := strings.TrimSuffix(d.Body.Text("callback"), d.callback)
		server := map[string]any{"url": base + "/mcp/" + alice.id,
			"headers": map[string]any{"Authorization": "Bearer " + d.token}}
		switch form {
		case "object":
			want["mcp"] = server
		case "array":
			server["name"] = "agora"
			want["mcp"] = []any{server}
		}
		h.wantMembers(d.Body, want)
		h.Want(d.Body.Object("channel").Text("service") != "", d.Body, "channel.service is a text")
		h.Want(strings.HasPrefix(d.callback, alice.path("/inbox/")), d.Body, "a callback of the channel")
		h.wantSeq(h.report(d, statusEvent("reading")))
		if form != "none" {
			h.initialize(d)
		}
	}
}

func deliveryAttempts(h *channelProbe) {
	alice := h.talk()
	bot := h.agentWith(alice.channel, "bot", nil, kit.ReplyFirst(kit.ReplyWith(http.StatusServiceUnavailable)))
	event := h.say(alice, "hello")
	got := h.received(bot, 2, 2*kit.PromptLimit)
	h.wantIDs(got, event, event)
	h.Expect("the same Idempotency-Key, another callback and another key for the MCP server in each attempt")
	if got[0].Header.Get("Idempotency-Key") != got[1].Header.Get("Idempotency-Key") ||
		got[0].callback == got[1].callback || got[0].token == got[1].token {
		h.Failf("the headers %v and the body %s, and then the headers %v and the body %s", got[0].Header,
			kit.Excerpt(got[0].Body.Body, 400), got[1].Header, kit.Excerpt(got[1].Body.Body, 400))
	}
	for _, d := range got {
		h.wantSeq(h.report(d, statusEvent("reading")))
		h.initialize(d)
		h.call(d, "get_roster", kit.Message{})
	}
	h.WantNoMoreCalls(bot.Hook, 2)
}
