package conformance_test

import (
	"net/http"
	"slices"
	"strings"
)

// The MCP server of a double.

func (d *channelDouble) mcp(c *doubleCall) {
	token, err := d.tokenIn(c, "mt_", strings.TrimPrefix(c.Header.Get("Authorization"), "Bearer "))
	if err != nil && d.has("takes every token") && d.channels[c.channel] != nil && len(d.channels[c.channel].lanes) > 0 {
		token, err = &doubleToken{lane: d.channels[c.channel].lanes[0]}, nil
	}
	if err != nil || token.lane.gone {
		refuse(http.StatusUnauthorized)
	}
	if d.has("guards its MCP server by Host") && strings.HasPrefix(c.Host, "proxy.") {
		refuse(http.StatusForbidden)
	}
	d.read(c)
	if c.body["id"] == nil {
		c.w.WriteHeader(http.StatusAccepted)
		return
	}
	var result any = object{}
	params, _ := c.body["params"].(object)
	switch c.body["method"] {
	case "initialize":
		result = object{"protocolVersion": params["protocolVersion"], "capabilities": object{"tools": object{}},
			"serverInfo": object{"name": "double", "version": "1"}}
	case "tools/list":
		var tools []any
		for _, name := range []string{"send_message", "get_messages", "get_roster", "set_status"} {
			if name != "set_status" || !d.has("has three tools") {
				tools = append(tools, object{"name": name, "inputSchema": object{"type": "object"}})
			}
		}
		result = object{"tools": tools}
	case "tools/call":
		args, _ := params["arguments"].(object)
		result = d.callTool(token, params["name"], args)
	}
	if d.has("answers MCP as a stream") {
		c.w.Header().Set("Content-Type", "text/event-stream")
		_, _ = c.w.Write([]byte("event: message\ndata: {}\n\n")) // the client may be gone
		return
	}
	d.write(c, http.StatusOK, encode(object{"jsonrpc": "2.0", "id": c.body["id"], "result": result}))
}

// callTool returns the result of a tool.
func (d *channelDouble) callTool(token *doubleToken, name any, args object) (result object) {
	defer func() {
		if e := recover(); e != nil {
			if _, refused := e.(doubleError); !refused {
				panic(e)
			}
			result = object{"isError": !d.has("hides that a tool refuses"),
				"content": []any{object{"type": "text", "text": "refused"}}}
		}
	}()
	var got object
	lane := token.lane
	ch := lane.channel
	switch name {
	case "send_message":
		via := "mcp"
		if d.has("takes tools for callbacks") {
			via = "callback"
		}
		said := d.reported(token, object{"type": "message", "content": d.mustText(args, "content", 1, 32_768)}, via)
		got = object{"id": said["id"], "seq": said["seq"]}
	case "get_messages":
		got = d.messages(ch, args)
	case "get_roster":
		got = d.roster(ch)
	case "set_status":
		ch.shown[lane.name] = d.mustText(args, "status", 1, 500)
		got = object{"ok": true}
	}
	return object{"structuredContent": got, "content": []any{object{"type": "text", "text": string(encode(got))}}}
}

func (d *channelDouble) messages(ch *doubleChannel, args object) object {
	number := func(name string, otherwise int) int {
		if n, ok := args[name].(float64); ok {
			return int(n)
		}
		return otherwise
	}
	usual := 50
	if d.has("shows 20 messages") {
		usual = 20
	}
	limit, after, before := number("limit", usual), number("after", -1), number("before", 1<<40)
	if limit < 1 || limit > 200 {
		refuse(http.StatusBadRequest)
	}
	list := []any{}
	channels := []*doubleChannel{ch}
	if d.has("shows the messages of all channels") {
		for _, other := range d.channels {
			channels = append(channels, other)
		}
	}
	for _, from := range channels {
		for _, event := range from.events {
			seq := event["seq"].(int)
			if seq > after && seq < before && (event["type"] == "message" || d.has("shows all events as messages")) {
				list = append(list, event)
			}
		}
	}
	more := len(list) > limit
	if more && after >= 0 {
		list = list[:limit]
	} else if more {
		list = list[len(list)-limit:]
	}
	if d.has("shows the newest message first") {
		slices.Reverse(list)
	}
	return object{"messages": list, "hasMore": more}
}

func (d *channelDouble) roster(ch *doubleChannel) object {
	list := []any{}
	for _, name := range ch.members {
		list = append(list, object{"name": name, "kind": "member", "status": "", "lastSeen": ""})
	}
	for _, lane := range ch.lanes {
		shown := ch.shown[lane.name]
		if d.has("shows no status") {
			shown = ""
		}
		list = append(list, object{"name": lane.name, "kind": "agent", "status": shown, "lastSeen": ""})
	}
	return object{"members": list}
}
