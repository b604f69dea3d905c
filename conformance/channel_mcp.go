package conformance

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// mcpVersion is the version of MCP that the run speaks.
const mcpVersion = "2025-06-18"

// post sends a JSON-RPC message to the MCP server of a delivery, with this Authorization.
func (h *channelProbe) post(target, authorization string, header http.Header, body message) answer {
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
	return h.ask("", http.MethodPost, target, "", all, body)
}

// rpc sends a JSON-RPC request with the headers of the delivery.
func (h *channelProbe) rpc(d channelDelivery, method string, params any) answer {
	return h.post(d.mcp, "Bearer "+d.token, nil, rpcRequest(method, params))
}

func rpcRequest(method string, params any) message {
	body := message{"jsonrpc": "2.0", "id": 7, "method": method}
	if params != nil {
		body["params"] = params
	}
	return body
}

var initializeParams = map[string]any{"protocolVersion": mcpVersion, "capabilities": map[string]any{},
	"clientInfo": map[string]any{"name": "agora-conformance", "version": "1"}}

// wantResult ends the check unless a is a JSON-RPC response with a result. It returns the result.
func (h *channelProbe) wantResult(a answer) answer {
	h.want(a.status == http.StatusOK && strings.HasPrefix(a.header.Get("Content-Type"), "application/json") &&
		a.text("jsonrpc") == "2.0" && sameJSON(a.members["id"], 7) && a.members["result"] != nil &&
		a.members["error"] == nil, a, `status 200 with {"jsonrpc":"2.0","id":7,"result":…}, as application/json`)
	return parseRow(a.members["result"])
}

// initialize begins to talk with the MCP server of a delivery, as every client does.
func (h *channelProbe) initialize(d channelDelivery) {
	h.wantInitialized(h.rpc(d, "initialize", initializeParams))
	a := h.post(d.mcp, "Bearer "+d.token, nil, message{"jsonrpc": "2.0", "method": "notifications/initialized"})
	h.want(a.status >= 200 && a.status < 300, a, "a status 2xx for the notification initialized")
}

// wantInitialized ends the check unless a is an answer to initialize.
func (h *channelProbe) wantInitialized(a answer) {
	result := h.wantResult(a)
	h.want(result.text("protocolVersion") != "" && result.object("serverInfo").text("name") != "" &&
		result.object("capabilities").members["tools"] != nil, a,
		"a result with protocolVersion, serverInfo and capabilities.tools")
}

// callTool calls a tool and returns the result.
func (h *channelProbe) callTool(d channelDelivery, tool string, args message) answer {
	return h.wantResult(h.rpc(d, "tools/call", message{"name": tool, "arguments": args}))
}

// call calls a tool, which must not refuse. It returns what the tool answers, which is JSON.
func (h *channelProbe) call(d channelDelivery, tool string, args message) answer {
	result := h.callTool(d, tool, args)
	refused, _ := result.flag("isError")
	h.want(!refused, result, "no tool error")
	if result.members["structuredContent"] != nil {
		return parseRow(result.members["structuredContent"])
	}
	list, _ := result.list("content")
	h.want(len(list) > 0, result, "structuredContent, or a text of JSON in content")
	return parseRow(json.RawMessage(parseRow(list[0]).text("text")))
}

// channelMCPChecks test the MCP server of a channel.
var channelMCPChecks = []channelCheck{
	{number: "N-86", title: "The MCP server answers initialize with JSON, and needs no session",
		cites: `CHANNEL "Tools"; C-15`, needs: needsAgent, run: func(h *channelProbe) {
			_, _, d := h.exchange()
			h.initialize(d)
			h.initialize(d)
			h.wantResult(h.rpc(d, "ping", nil))
		}},
	{number: "N-87", title: "It has the tools send_message, get_messages, get_roster and set_status",
		cites: `CHANNEL "Tools"; C-15`, needs: needsAgent, run: func(h *channelProbe) {
			_, _, d := h.exchange()
			h.initialize(d)
			a := h.rpc(d, "tools/list", nil)
			list, _ := h.wantResult(a).list("tools")
			var names []string
			for _, raw := range list {
				tool := parseRow(raw)
				names = append(names, tool.text("name"))
				h.want(tool.object("inputSchema").text("type") == "object", tool, "an inputSchema of an object")
			}
			slices.Sort(names)
			h.want(slices.Equal(names, []string{"get_messages", "get_roster", "send_message", "set_status"}), a,
				"the four tools, instead of %v", names)
		}},
	{number: "N-88", title: "send_message says something in the channel, as the callback does",
		cites: `CHANNEL "Tools"; C-15`, needs: needsAgent, run: func(h *channelProbe) {
			alice, bot, d := h.exchange()
			other := h.agent(alice.channel, "other", replyOK)
			h.initialize(d)
			for _, content := range []string{"hello from a tool " + astral, "x", strings.Repeat("x", 32_768)} {
				sent := h.call(d, "send_message", message{"content": content})
				row := h.eventAt(alice.channel, sent.number("seq"))
				h.want(row.text("id") == sent.text("id") && row.text("type") == "message" &&
					row.text("content") == content, row, "the message with the id %q", sent.text("id"))
				h.wantGenuine(row, "bot", "agent", "mcp", 1)
			}
			h.wantIDs(h.received(other, 3, promptLimit), h.wantEvents(alice.channel, 4)[1:]...)
			h.wantNoMoreCalls(bot.hook, 1)
		}},
	{number: "N-89", title: "get_messages returns messages in order, the newest ones without after",
		cites: `CHANNEL "Tools"; C-15`, needs: needsAgent, run: mcpMessages},
	{number: "N-90", title: "get_messages returns 50 messages if limit is not given",
		cites: `CHANNEL "Tools"`, needs: needsAgent, run: func(h *channelProbe) {
			alice := h.talk()
			h.sayMany(alice, 51)
			d := h.deliver(alice, h.agent(alice.channel, "bot", replyOK))
			h.initialize(d)
			h.wantMessages(h.call(d, "get_messages", message{}), 3, 52, true)
			h.wantMessages(h.call(d, "get_messages", message{"limit": 200}), 1, 52, false)
			h.wantMessages(h.call(d, "get_messages", message{"limit": 1}), 52, 52, true)
		}},
	{number: "N-91", title: "get_roster has all members and agents; it shows their status and lifecycle",
		cites: `CHANNEL "Tools"; C-15`, needs: needsAgent, run: mcpRoster},
	{number: "N-92", title: "A tool that refuses returns a tool error",
		cites: `CHANNEL "Tools"`, needs: needsAgent, run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			h.initialize(d)
			for _, c := range []struct {
				tool string
				args message
			}{
				{"send_message", message{"content": ""}}, {"send_message", message{"content": strings.Repeat("x", 32_769)}},
				{"get_messages", message{"limit": 0}}, {"get_messages", message{"limit": 201}},
				{"set_status", message{"status": ""}}, {"set_status", message{"status": strings.Repeat("x", 501)}},
			} {
				result := h.callTool(d, c.tool, c.args)
				refused, _ := result.flag("isError")
				h.want(refused, result, `"isError":true for %s`, c.tool)
			}
			h.wantEvents(alice.channel, 1)
			h.call(d, "set_status", message{"status": strings.Repeat("x", 500)})
		}},
	{number: "N-93", title: "A missing, unknown or foreign token is refused with 401",
		cites: `CHANNEL "Tools"; GATEWAYS "Keys of callers"; C-16`, needs: needsAgent, run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			_, _, other := h.exchange()
			token := d.callback[strings.LastIndexByte(d.callback, '/')+1:]
			for _, authorization := range []string{"", "Bearer", "Bearer mt_" + strings.Repeat("A", 43), "Basic " + d.token,
				"Bearer " + d.token + "A", "Bearer " + other.token, "Bearer " + alice.key, "Bearer " + alice.channel.key,
				"Bearer " + token, "Bearer " + h.service.OperatorKey} {
				for _, r := range []message{rpcRequest("initialize", initializeParams), rpcRequest("tools/call",
					message{"name": "send_message", "arguments": message{"content": "hello"}})} {
					a := h.post(d.mcp, authorization, nil, r)
					h.want(a.status == http.StatusUnauthorized, a, "refused: status 401")
				}
			}
			a := h.post("/mcp/"+unknownChannel.id, "Bearer "+d.token, nil, rpcRequest("initialize", initializeParams))
			h.want(a.status == http.StatusUnauthorized, a, "refused: status 401")
			h.wantEvents(alice.channel, 1)
			h.initialize(d)
		}},
	{number: "N-94", title: "After DELETE of its connection a token of the MCP server is 401",
		cites: `CHANNEL "The service"; CHANNEL "Tools"`, needs: needsAgent, run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			kept := h.deliver(alice, h.agent(alice.channel, "other", replyOK))
			h.initialize(d)
			h.wantOK(h.remove(alice.channel.key, alice.path("/connections/bot")), http.StatusOK)
			a := h.rpc(d, "initialize", initializeParams)
			h.want(a.status == http.StatusUnauthorized, a, "refused: status 401")
			h.initialize(kept)
		}},
	{number: "N-95", title: "The MCP server works with a foreign Host header, as behind a proxy",
		cites: `CHANNEL "Tools"; C-15`, needs: needsAgent, run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			header := http.Header{"Host": {"proxy.example:8443"}}
			first := h.ask("with another Host header", http.MethodGet, alice.path(""), alice.channel.key, header, nil)
			if first.status != http.StatusOK {
				h.end(NotTested, "this needs a service that takes another Host header; one that only its own machine "+
					"reaches may refuse it")
			}
			h.wantInitialized(h.post(d.mcp, "Bearer "+d.token, header, rpcRequest("initialize", initializeParams)))
			h.wantResult(h.post(d.mcp, "Bearer "+d.token, header, rpcRequest("tools/list", nil)))
		}},
	{number: "N-96", title: "A token shows its own channel only", cites: `CHANNEL "Tools"; C-16`, needs: needsAgent,
		run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			mallory := h.member(h.newChannel(), "mallory")
			h.say(mallory, "53cr3t")
			h.agent(mallory.channel, "stranger", replyOK)
			h.initialize(d)
			for _, tool := range []string{"get_messages", "get_roster"} {
				got := h.call(d, tool, message{})
				h.wantNoText(got, "nothing of another channel", "53cr3t", "mallory", "stranger")
			}
			h.wantEvents(mallory.channel, 1)
			h.wantEvents(alice.channel, 1)
		}},
}
