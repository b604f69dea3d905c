package conformance

import (
	"net/http"
	"strings"
)

// connectTo asks for a connection with this URL.
func (h *channelProbe) connectTo(c *channel, name string, url any) answer {
	return h.write(c.key, c.path("/connections"), message{"name": name, "url": url})
}

// put changes a connection.
func (h *channelProbe) put(c *channel, name string, change message) answer {
	return h.ask("", http.MethodPut, c.path("/connections/"+name), c.key, nil, change)
}

// connectionOf returns the members that a new connection to exampleURL has.
func connectionOf(name, mcp string) map[string]any {
	return map[string]any{"name": name, "host": "agent.example", "status": "active", "queued": 0, "dead": 0, "mcp": mcp}
}

// channelConnectionChecks test the connections of a channel. Nothing is said in these channels, so the service calls no
// agent.
var channelConnectionChecks = []channelCheck{
	{number: "N-27",
		title: "POST connections returns 201 with name, host, status, queued, dead and mcp, and GET lists the same",
		cites: `CHANNEL "The service"`, needs: needsOperator, run: func(h *channelProbe) {
			c := h.newChannel()
			a := h.wantOK(h.connectTo(c, "bot", exampleURL), http.StatusCreated)
			h.wantMembers(parseRow(a.members["connection"]), connectionOf("bot", "object"))
			h.wantMembers(h.connection(c, "bot"), connectionOf("bot", "object"))
			a = h.wantOK(h.write(h.service.OperatorKey, c.path("/connections"), message{"name": "other",
				"url": exampleURL}), http.StatusCreated)
			h.wantMembers(parseRow(a.members["connection"]), connectionOf("other", "object"))
		}},
	{number: "N-28", title: "mcp is object, array or none, and object if it is not given",
		cites: `CHANNEL "The service"`, needs: needsOperator, run: func(h *channelProbe) {
			c := h.newChannel()
			for _, form := range []string{"object", "array", "none"} {
				body := message{"name": "bot-" + form, "url": exampleURL, "mcp": form}
				h.wantOK(h.write(c.key, c.path("/connections"), body), http.StatusCreated)
				h.wantMembers(h.connection(c, "bot-"+form), connectionOf("bot-"+form, form))
			}
			for _, form := range append([]any{"", "Object", "list", "objects"}, notTexts...) {
				body := message{"name": "bad", "url": exampleURL, "mcp": form}
				h.wantInvalid(h.write(c.key, c.path("/connections"), body))
				h.wantInvalid(h.put(c, "bot-array", message{"mcp": form}))
			}
			h.wantMembers(h.connection(c, "bot-array"), connectionOf("bot-array", "array"))
		}},
	{number: "N-29", title: "A connection string that the service must not call is refused with 400",
		cites: `CHANNEL "The service"; GATEWAYS "Requests to other servers"; G-14`, needs: needsOperator, run: connectionURLs},
	{number: "N-30", title: "A connection string with the relay's own origin is refused",
		cites: `GATEWAYS "Requests to other servers"`, needs: needsAgent, run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			callback := d.body.text("callback")
			own := origin(callback)
			for _, url := range []string{own + "/", own + "/events", callback, strings.ToUpper(own[:5]) + own[5:] + "/x"} {
				h.wantInvalid(h.connectTo(alice.channel, "mirror", url))
			}
		}},
	{number: "N-31", title: "PUT changes the connection string, mcp or both, and a refused PUT changes nothing",
		cites: `CHANNEL "The service"`, needs: needsOperator, run: func(h *channelProbe) {
			c := h.newChannel()
			h.wantOK(h.connectTo(c, "bot", "https://other.example/x"), http.StatusCreated)
			moved := connectionOf("bot", "object")
			for _, change := range []message{{"url": exampleURL}, {"mcp": "array"}, {"mcp": "none", "url": exampleURL},
				{"url": exampleURL}} {
				if form, ok := change["mcp"]; ok {
					moved["mcp"] = form
				}
				a := h.wantOK(h.put(c, "bot", change), http.StatusOK)
				h.wantMembers(parseRow(a.members["connection"]), moved)
				h.wantMembers(h.connection(c, "bot"), moved)
			}
			for _, change := range []message{{"url": "https://10.1.2.3/"}, {"url": ""}, {"url": 1}, {"mcp": "list"},
				{"url": "https://third.example/", "mcp": "list"}, {"url": "http://third.example/", "mcp": "array"}} {
				h.wantInvalid(h.put(c, "bot", change))
			}
			h.wantMembers(h.connection(c, "bot"), moved)
			h.wantUnknown(h.put(c, "nobody", message{"mcp": "array"}))
		}},
	{number: "N-32", title: "DELETE of a connection removes it and frees its name",
		cites: `CHANNEL "The service"`, needs: needsOperator, run: func(h *channelProbe) {
			c := h.newChannel()
			h.member(c, "alice")
			h.wantOK(h.connectTo(c, "bot", exampleURL), http.StatusCreated)
			h.wantOK(h.remove(c.key, c.path("/connections/bot")), http.StatusOK)
			a := h.wantOK(h.read(c.key, c.path("/connections")), http.StatusOK)
			list, ok := a.list("connections")
			h.want(ok && len(list) == 0, a, "no connections")
			for _, path := range []string{"/connections/bot", "/connections/alice", "/members/bot"} {
				h.wantUnknown(h.remove(c.key, c.path(path)))
			}
			h.wantUnknown(h.put(c, "bot", message{"mcp": "array"}))
			h.member(c, "bot")
			h.entry(h.read(c.key, c.path("/members")), "members", "alice")
		}},
}

func connectionURLs(h *channelProbe) {
	c := h.newChannel()
	for _, url := range blockedURLs() {
		h.wantInvalid(h.connectTo(c, "bot", url))
	}
	for _, url := range append(notURLs(), "", nil) {
		h.wantInvalid(h.connectTo(c, "bot", url))
	}
	h.wantInvalid(h.write(c.key, c.path("/connections"), message{"name": "bot"}))
	for name, url := range map[string]string{"long": longURL(2048), "port": "https://agent.example:8443/x",
		"query": "https://agent.example/?key=1"} {
		h.wantOK(h.connectTo(c, name, url), http.StatusCreated)
	}
}
