package channel

import (
	"net/http"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// connectTo asks for a connection with this URL.
func (h *channelProbe) connectTo(c *channel, name string, url any) kit.Answer {
	return h.Write(c.key, c.path("/connections"), kit.Message{"name": name, "url": url})
}

// put changes a connection.
func (h *channelProbe) put(c *channel, name string, change kit.Message) kit.Answer {
	return h.Ask("", http.MethodPut, c.path("/connections/"+name), c.key, nil, change)
}

// connectionOf returns the members that a new connection to kit.ExampleURL has.
func connectionOf(name, mcp string) map[string]any {
	return map[string]any{"name": name, "host": "agent.example", "status": "active", "queued": 0, "dead": 0, "mcp": mcp}
}

// channelConnectionChecks test the connections of a channel. Nothing is said in these channels, so the service calls no
// agent.
var channelConnectionChecks = []channelCheck{
	{Number: "N-27",
		Title: "POST connections returns 201 with name, host, status, queued, dead and mcp, and GET lists the same",
		Cites: `CHANNEL "The service"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			c := h.newChannel()
			a := h.wantOK(h.connectTo(c, "bot", kit.ExampleURL), http.StatusCreated)
			h.wantMembers(kit.ParseRow(a.Members["connection"]), connectionOf("bot", "object"))
			h.wantMembers(h.connection(c, "bot"), connectionOf("bot", "object"))
			a = h.wantOK(h.Write(h.service.OperatorKey, c.path("/connections"), kit.Message{"name": "other",
				"url": kit.ExampleURL}), http.StatusCreated)
			h.wantMembers(kit.ParseRow(a.Members["connection"]), connectionOf("other", "object"))
		}},
	{Number: "N-28", Title: "mcp is object, array or none, and object if it is not given",
		Cites: `CHANNEL "The service"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			c := h.newChannel()
			for _, form := range []string{"object", "array", "none"} {
				body := kit.Message{"name": "bot-" + form, "url": kit.ExampleURL, "mcp": form}
				h.wantOK(h.Write(c.key, c.path("/connections"), body), http.StatusCreated)
				h.wantMembers(h.connection(c, "bot-"+form), connectionOf("bot-"+form, form))
			}
			for _, form := range append([]any{"", "Object", "list", "objects"}, kit.NotTexts...) {
				body := kit.Message{"name": "bad", "url": kit.ExampleURL, "mcp": form}
				h.wantInvalid(h.Write(c.key, c.path("/connections"), body))
				h.wantInvalid(h.put(c, "bot-array", kit.Message{"mcp": form}))
			}
			h.wantMembers(h.connection(c, "bot-array"), connectionOf("bot-array", "array"))
		}},
	{Number: "N-29", Title: "A connection string that the service must not call is refused with 400",
		Cites: `CHANNEL "The service"; GATEWAYS "Requests to other servers"; G-14`, Needs: kit.NeedsOperator,
		Run: connectionURLs},
	{Number: "N-30", Title: "A connection string with the relay's own origin is refused",
		Cites: `GATEWAYS "Requests to other servers"`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			callback := d.Body.Text("callback")
			own := origin(callback)
			for _, url := range []string{own + "/", own + "/events", callback, strings.ToUpper(own[:5]) + own[5:] + "/x"} {
				h.wantInvalid(h.connectTo(alice.channel, "mirror", url))
			}
		}},
	{Number: "N-31", Title: "PUT changes the connection string, mcp or both, and a refused PUT changes nothing",
		Cites: `CHANNEL "The service"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			c := h.newChannel()
			h.wantOK(h.connectTo(c, "bot", "https://other.example/x"), http.StatusCreated)
			moved := connectionOf("bot", "object")
			for _, change := range []kit.Message{{"url": kit.ExampleURL}, {"mcp": "array"}, {"mcp": "none",
				"url": kit.ExampleURL},
				{"url": kit.ExampleURL}} {
				if form, ok := change["mcp"]; ok {
					moved["mcp"] = form
				}
				a := h.wantOK(h.put(c, "bot", change), http.StatusOK)
				h.wantMembers(kit.ParseRow(a.Members["connection"]), moved)
				h.wantMembers(h.connection(c, "bot"), moved)
			}
			for _, change := range []kit.Message{{"url": "https://10.1.2.3/"}, {"url": ""}, {"url": 1}, {"mcp": "list"},
				{"url": "https://third.example/", "mcp": "list"}, {"url": "http://third.example/", "mcp": "array"}} {
				h.wantInvalid(h.put(c, "bot", change))
			}
			h.wantMembers(h.connection(c, "bot"), moved)
			h.wantUnknown(h.put(c, "nobody", kit.Message{"mcp": "array"}))
		}},
	{Number: "N-32", Title: "DELETE of a connection removes it and frees its name",
		Cites: `CHANNEL "The service"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			c := h.newChannel()
			h.member(c, "alice")
			h.wantOK(h.connectTo(c, "bot", kit.ExampleURL), http.StatusCreated)
			h.wantOK(h.Remove(c.key, c.path("/connections/bot")), http.StatusOK)
			a := h.wantOK(h.Read(c.key, c.path("/connections")), http.StatusOK)
			list, ok := a.List("connections")
			h.Want(ok && len(list) == 0, a, "no connections")
			for _, path := range []string{"/connections/bot", "/connections/alice", "/members/bot"} {
				h.wantUnknown(h.Remove(c.key, c.path(path)))
			}
			h.wantUnknown(h.put(c, "bot", kit.Message{"mcp": "array"}))
			h.member(c, "bot")
			h.entry(h.Read(c.key, c.path("/members")), "members", "alice")
		}},
}

func connectionURLs(h *channelProbe) {
	c := h.newChannel()
	for _, url := range kit.BlockedURLs() {
		h.wantInvalid(h.connectTo(c, "bot", url))
	}
	for _, url := range append(kit.NotURLs(), "", nil) {
		h.wantInvalid(h.connectTo(c, "bot", url))
	}
	h.wantInvalid(h.Write(c.key, c.path("/connections"), kit.Message{"name": "bot"}))
	for name, url := range map[string]string{"long": kit.LongURL(2048), "port": "https://agent.example:8443/x",
		"query": "https://agent.example/?key=1"} {
		h.wantOK(h.connectTo(c, name, url), http.StatusCreated)
	}
}
