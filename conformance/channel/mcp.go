package channel

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// mcpVersion is the version of MCP that the run speaks.
const mcpVersion = "2025-06-18"

// post sends a JSON-RPC message to the MCP server of a delivery, with this Authorization.
func (h *channelProbe) post(target, authorization string, header http.Header, body kit.Message) kit.Answer {
	all := http.Header{"Accept": {"application/json, text/event-stream"}}
	if authorization != "" {
		all.Set("Authorization", authorization)
	}
	if body["method"] != "initialize" {
		all.Set("Mcp-Protocol-Version", mcpVersion)
	}
	for name, values := range header {
		all[name] = values
	}
	return h.Ask("", http.MethodPost, target, "", all, body)
}

// rpc sends a JSON-RPC request with the headers of the delivery.
func (h *channelProbe) rpc(d channelDelivery, method string, params any) kit.Answer {
	return h.post(d.mcp, "Bearer "+d.token, nil, rpcRequest(method, params))
}

func rpcRequest(method string, params any) kit.Message {
	body := kit.Message{"jsonrpc": "2.0", "id": 7, "method": method}
	if params != nil {
		body["params"] = params
	}
	return body
}

var initializeParams = map[string]any{"protocolVersion": mcpVersion, "capabilities": map[string]any{},
	"clientInfo": map[string]any{"name": "agora-conformance", "version": "1"}}

// wantResult ends the check unless a is a JSON-RPC response with a result. It returns the result.
func (h *channelProbe) wantResult(a kit.Answer) kit.Answer {
	h.Want(a.Status == http.StatusOK && strings.HasPrefix(a.Header.Get("Content-Type"), "application/json") &&
		a.Text("jsonrpc") == "2.0" && kit.SameJSON(a.Members["id"], 7) && a.Members["result"] != nil &&
		a.Members["error"] == nil, a, `status 200 with {"jsonrpc":"2.0","id":7,"result":…}, as application/json`)
	return kit.ParseRow(a.Members["result"])
}

// initialize begins to talk with the MCP server of a delivery, as every client does.
func (h *channelProbe) initialize(d channelDelivery) {
	h.wantInitialized(h.rpc(d, "initialize", initializeParams))
	a := h.post(d.mcp, "Bearer "+d.token, nil, kit.Message{"jsonrpc": "2.0", "method": "notifications/initialized"})
	h.Want(a.Status >= 200 && a.Status < 300, a, "a status 2xx for the notification initialized")
}

// wantInitialized ends the check unless a is an answer to initialize.
func (h *channelProbe) wantInitialized(a kit.Answer) {
	result := h.wantResult(a)
	h.Want(result.Text("protocolVersion") != "" && result.Object("serverInfo").Text("name") != "" &&
		result.Object("capabilities").Members["tools"] != nil, a,
		"a result with protocolVersion, serverInfo and capabilities.tools")
}

// callTool calls a tool and returns the result.
func (h *channelProbe) callTool(d channelDelivery, tool string, args kit.Message) kit.Answer {
	return h.wantResult(h.rpc(d, "tools/call", kit.Message{"name": tool, "arguments": args}))
}

// call calls a tool, which must not refuse. It returns what the tool answers, which is JSON.
func (h *channelProbe) call(d channelDelivery, tool string, args kit.Message) kit.Answer {
	result := h.callTool(d, tool, args)
	refused, _ := result.Flag("isError")
	h.Want(!refused, result, "no tool error")
	if result.Members["structuredContent"] != nil {
		return kit.ParseRow(result.Members["structuredContent"])
	}
	list, _ := result.List("content")
	h.Want(len(list) > 0, result, "structuredContent, or a text of JSON in content")
	return kit.ParseRow(json.RawMessage(kit.ParseRow(list[0]).Text("text")))
}

// channelMCPChecks test the MCP server of a channel.
var channelMCPChecks = []channelCheck{
	{Number: "N-86", Title: "The MCP server answers initialize with JSON, and needs no session",
		Cites: `CHANNEL "Tools"; C-15`, Needs: needsAgent, Run: func(h *channelProbe) {
			_, _, d := h.exchange()
			h.initialize(d)
			h.initialize(d)
			h.wantResult(h.rpc(d, "ping", nil))
		}},
	{Number: "N-87", Title: "It has the tools send_message, get_messages, get_roster and set_status",
		Cites: `CHANNEL "Tools"; C-15`, Needs: needsAgent, Run: func(h *channelProbe) {
			_, _, d := h.exchange()
			h.initialize(d)
			a := h.rpc(d, "tools/list", nil)
			list, _ := h.wantResult(a).List("tools")
			var names []string
			for _, raw := range list {
				tool := kit.ParseRow(raw)
				names = append(names, tool.Text("name"))
				h.Want(tool.Object("inputSchema").Text("type") == "object", tool, "an inputSchema of an object")
			}
			slices.Sort(names)
			h.Want(slices.Equal(names, []string{"get_messages", "get_roster", "send_message", "set_status"}), a,
				"the four tools, instead of %v", names)
		}},
	{Number: "N-88", Title: "send_message says something in the channel, as the callback does",
		Cites: `CHANNEL "Tools"; C-15`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice, bot, d := h.exchange()
			other := h.agent(alice.channel, "other", kit.ReplyOK)
			h.initialize(d)
			for _, content := range []string{"hello from a tool " + kit.Astral, "x", strings.Repeat("x", 32_768)} {
				sent := h.call(d, "send_message", kit.Message{"content": content})
				row := h.eventAt(alice.channel, sent.Number("seq"))
				h.Want(row.Text("id") == sent.Text("id") && row.Text("type") == "message" &&
					row.Text("content") == content, row, "the message with the id %q", sent.Text("id"))
				h.wantGenuine(row, "bot", "agent", "mcp", 1)
			}
			h.wantIDs(h.received(other, 3, kit.PromptLimit), h.wantEvents(alice.channel, 4)[1:]...)
			h.WantNoMoreCalls(bot.Hook, 1)
		}},
	{Number: "N-89", Title: "get_messages returns messages in order, the newest ones without after",
		Cites: `CHANNEL "Tools"; C-15`, Needs: needsAgent, Run: mcpMessages},
	{Number: "N-90", Title: "get_messages returns 50 messages if limit is not given",
		Cites: `CHANNEL "Tools"`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice := h.talk()
			h.sayMany(alice, 51)
			d := h.deliver(alice, h.agent(alice.channel, "bot", kit.ReplyOK))
			h.initialize(d)
			h.wantMessages(h.call(d, "get_messages", kit.Message{}), 3, 52, true)
			h.wantMessages(h.call(d, "get_messages", kit.Message{"limit": 200}), 1, 52, false)
			h.wantMessages(h.call(d, "get_messages", kit.Message{"limit": 1}), 52, 52, true)
		}},
	{Number: "N-91", Title: "get_roster has all members and agents; it shows their status and lifecycle",
		Cites: `CHANNEL "Tools"; C-15`, Needs: needsAgent, Run: mcpRoster},
	{Number: "N-92", Title: "A tool that refuses returns a tool error",
		Cites: `CHANNEL "Tools"`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			h.initialize(d)
			for _, c := range []struct {
				tool string
				args kit.Message
			}{
				{"send_message", kit.Message{"content": ""}}, {"send_message", kit.Message{"content": strings.Repeat("x", 32_769)}},
				{"get_messages", kit.Message{"limit": 0}}, {"get_messages", kit.Message{"limit": 201}},
				{"set_status", kit.Message{"status": ""}}, {"set_status", kit.Message{"status": strings.Repeat("x", 501)}},
			} {
				result := h.callTool(d, c.tool, c.args)
				refused, _ := result.Flag("isError")
				h.Want(refused, result, `"isError":true for %s`, c.tool)
			}
			h.wantEvents(alice.channel, 1)
			h.call(d, "set_status", kit.Message{"status": strings.Repeat("x", 500)})
		}},
	{Number: "N-93", Title: "A missing or unknown token, and every other key, is refused with 401",
		Cites: `CHANNEL "Tools"; GATEWAYS "Keys of callers"; C-16`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			_, _, other := h.exchange()
			token := d.callback[strings.LastIndexByte(d.callback, '/')+1:]
			for _, authorization := range []string{"", "Bearer", "Bearer mt_" + strings.Repeat("A", 43), "Basic " + d.token,
				"Bearer " + d.token + "A", "Bearer " + other.token, "Bearer " + alice.key, "Bearer " + alice.channel.key,
				"Bearer " + token, "Bearer " + h.service.OperatorKey} {
				for _, r := range []kit.Message{rpcRequest("initialize", initializeParams), rpcRequest("tools/call",
					kit.Message{"name": "send_message", "arguments": kit.Message{"content": "hello"}})} {
					a := h.post(d.mcp, authorization, nil, r)
					h.Want(a.Status == http.StatusUnauthorized, a, "refused: status 401")
				}
			}
			a := h.post("/mcp/"+unknownChannel.id, "Bearer "+d.token, nil, rpcRequest("initialize", initializeParams))
			h.Want(a.Status == http.StatusUnauthorized, a, "refused: status 401")
			h.wantEvents(alice.channel, 1)
			h.initialize(d)
		}},
	{Number: "N-94", Title: "After DELETE of its connection a token of the MCP server is 401",
		Cites: `CHANNEL "The service"; CHANNEL "Tools"`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			kept := h.deliver(alice, h.agent(alice.channel, "other", kit.ReplyOK))
			h.initialize(d)
			h.wantOK(h.Remove(alice.channel.key, alice.path("/connections/bot")), http.StatusOK)
			a := h.rpc(d, "initialize", initializeParams)
			h.Want(a.Status == http.StatusUnauthorized, a, "refused: status 401")
			h.initialize(kept)
		}},
	{Number: "N-95", Title: "The MCP server works with any Host header, as behind a proxy",
		Cites: `CHANNEL "Tools"; C-15`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			header := http.Header{"Host": {"proxy.example:8443"}}
			first := h.Ask("with another Host header", http.MethodGet, alice.path(""), alice.channel.key, header, nil)
			if first.Status != http.StatusOK {
				h.End(kit.NotTested, "this needs a service that takes another Host header; one that only its own machine "+
					"reaches may refuse it")
			}
			h.wantInitialized(h.post(d.mcp, "Bearer "+d.token, header, rpcRequest("initialize", initializeParams)))
			h.wantResult(h.post(d.mcp, "Bearer "+d.token, header, rpcRequest("tools/list", nil)))
		}},
	{Number: "N-96", Title: "A token shows its own channel only", Cites: `CHANNEL "Tools"; C-16`, Needs: needsAgent,
		Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			mallory := h.member(h.newChannel(), "mallory")
			h.say(mallory, "53cr3t")
			h.agent(mallory.channel, "stranger", kit.ReplyOK)
			h.initialize(d)
			for _, tool := range []string{"get_messages", "get_roster"} {
				got := h.call(d, tool, kit.Message{})
				h.WantNoText(got, "nothing of another channel", "53cr3t", "mallory", "stranger")
			}
			h.wantEvents(mallory.channel, 1)
			h.wantEvents(alice.channel, 1)
		}},
}
