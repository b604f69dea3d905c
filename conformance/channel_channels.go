package conformance

import (
	"fmt"
	"net/http"
	"strings"
)

// channelChecks test channels themselves.
var channelChecks = []channelCheck{
	{number: "N-15", title: "POST /channels by the operator returns 201 with the channel and its key",
		cites: `CHANNEL "The service"`, needs: needsOperator, run: func(h *channelProbe) {
			a := h.wantOK(h.write(h.service.OperatorKey, "/channels", message{"name": "kit-create",
				"context": channelContext}), http.StatusCreated)
			c := h.keep(&channel{name: "kit-create", context: channelContext}, a)
			h.wantChannel(a, c)
			other := h.newChannel()
			h.want(other.id != c.id && other.key != c.key, a, "another id and key for each channel")
			bare := h.wantOK(h.write(h.service.OperatorKey, "/channels", message{"name": "kit-create"}), http.StatusCreated)
			h.keep(&channel{}, bare)
		}},
	{number: "N-16", title: "GET /channels/{ch} shows the channel to its key and to the operator",
		cites: `CHANNEL "The service"`, needs: needsOperator, run: func(h *channelProbe) {
			c := h.newChannel()
			for _, key := range []string{c.key, h.service.OperatorKey} {
				h.wantChannel(h.wantOK(h.read(key, c.path("")), http.StatusOK), c)
			}
		}},
	{number: "N-17", title: "name has 1 to 80 bytes and context 0 to 2,000, when a channel is created or changed",
		cites: `CHANNEL "The service"`, needs: needsOperator, run: channelBounds},
	{number: "N-18", title: "PATCH changes the name, the context or both, and a refused PATCH changes nothing",
		cites: `CHANNEL "The service"`, needs: needsOperator, run: func(h *channelProbe) {
			c := h.newChannel()
			for _, change := range []message{{"name": "renamed"}, {"context": "moved"},
				{"name": "both", "context": "of them"}, {"context": ""}} {
				if name, ok := change["name"].(string); ok {
					c.name = name
				}
				if context, ok := change["context"].(string); ok {
					c.context = context
				}
				h.wantChannel(h.wantOK(h.patch(c, change), http.StatusOK), c)
				h.wantChannel(h.wantOK(h.read(c.key, c.path("")), http.StatusOK), c)
			}
			h.wantInvalid(h.patch(c, message{"name": "good", "context": strings.Repeat("a", 2001)}))
			h.wantInvalid(h.patch(c, message{"name": "", "context": "good"}))
			h.wantChannel(h.wantOK(h.read(c.key, c.path("")), http.StatusOK), c)
		}},
	{number: "N-19", title: "DELETE ends the channel and all its keys",
		cites: `CHANNEL "The service"`, needs: needsOperator, run: func(h *channelProbe) {
			alice, other := h.talk(), h.newChannel()
			h.say(alice, "hello")
			h.wantOK(h.remove(alice.channel.key, alice.path("")), http.StatusOK)
			h.wantNoKey(h.read(alice.channel.key, alice.path("")))
			h.wantNoKey(h.write(alice.channel.key, alice.path("/members"), message{"name": "carol"}))
			h.wantNoKey(h.write(alice.key, alice.path("/messages"), message{"content": "hello"}))
			h.wantNoKey(h.read(alice.key, alice.path("/events")))
			h.wantUnknown(h.read(h.service.OperatorKey, alice.path("")))
			h.wantUnknown(h.remove(h.service.OperatorKey, alice.path("")))
			h.wantChannel(h.wantOK(h.read(other.key, other.path("")), http.StatusOK), other)
			h.wantOK(h.remove(h.service.OperatorKey, other.path("")), http.StatusOK)
			h.wantNoKey(h.read(other.key, other.path("")))
		}},
	{number: "N-20", title: "DELETE of a channel ends its callbacks and its MCP server",
		cites: `CHANNEL "The service"`, needs: needsAgent, run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			h.initialize(d)
			h.wantOK(h.remove(alice.channel.key, alice.path("")), http.StatusOK)
			a := h.report(d, statusEvent("reading"))
			h.want(a.status == http.StatusGone || a.status == http.StatusNotFound, a, "refused: status 410 or 404")
			a = h.rpc(d, "tools/list", nil)
			h.want(a.status == http.StatusUnauthorized, a, "refused: status 401")
		}},
	{number: "N-21", title: "An unknown channel is 403 for keys of other channels and 404 for the operator",
		cites: `CHANNEL "The service"; GATEWAYS "Keys of callers"; G-11`, needs: needsOperator, run: func(h *channelProbe) {
			alice, foreign := h.talk(), h.newChannel()
			for _, target := range []string{"", "/members", "/connections", "/events"} {
				for _, key := range []string{alice.channel.key, alice.key} {
					unknown := h.read(key, unknownChannel.path(target))
					h.wantForbidden(unknown)
					other := h.read(key, foreign.path(target))
					h.wantForbidden(other)
					h.want(string(unknown.body) == string(other.body), unknown,
						"the same answer as for a channel of others: %s", other)
				}
				h.wantUnknown(h.read(h.service.OperatorKey, unknownChannel.path(target)))
			}
			h.wantForbidden(h.write(alice.key, unknownChannel.path("/messages"), message{"content": "hello"}))
		}},
	{number: "N-22", title: "No other answer contains a key or a connection string",
		cites: `GATEWAYS "Keys of callers"; CHANNEL "The service"; G-9`, needs: needsOperator, run: func(h *channelProbe) {
			alice := h.talk()
			c := alice.channel
			body := message{"name": "bot", "url": "https://agent.example/inbox/sk_53cr3t"}
			secrets := []string{c.key, alice.key, "sk_53cr3t", "agent.example/"}
			const what = "no key and no connection string"
			h.wantNoText(h.wantOK(h.write(c.key, c.path("/connections"), body), http.StatusCreated), what, secrets...)
			h.wantNoText(h.wantOK(h.ask("", http.MethodPut, c.path("/connections/bot"), c.key, nil, message{"mcp": "none"}),
				http.StatusOK), what, secrets...)
			for _, key := range []string{c.key, h.service.OperatorKey} {
				for _, rest := range []string{"", "/members", "/connections", "/events"} {
					h.wantNoText(h.wantOK(h.read(key, c.path(rest)), http.StatusOK), what, secrets...)
				}
			}
			h.wantNoText(h.wantOK(h.patch(c, message{"name": "renamed"}), http.StatusOK), what, secrets...)
			h.wantNoText(h.wantOK(h.read(alice.key, c.path("/events")), http.StatusOK), what, secrets...)
		}},
}

// patch changes a channel.
func (h *channelProbe) patch(c *channel, change message) answer {
	return h.ask("", http.MethodPatch, c.path(""), c.key, nil, change)
}

// wantChannel ends the check unless the member channel of a is the channel c.
func (h *channelProbe) wantChannel(a answer, c *channel) {
	row := parseRow(a.members["channel"])
	h.wantMembers(row, map[string]any{"id": c.id, "name": c.name, "context": c.context, "createdAt": anything})
	h.want(channelTimeForm.MatchString(row.text("createdAt")), a, "createdAt such as 2026-03-20T10:00:00.000Z")
}

func channelBounds(h *channelProbe) {
	create := func(body message) answer { return h.write(h.service.OperatorKey, "/channels", body) }
	c := h.newChannel()
	for member, most := range map[string]int{"name": 80, "context": 2000} {
		for _, text := range append(textsOf(most), "a") {
			body := message{"name": "kit-bounds"}
			body[member] = text
			a := h.wantOK(create(body), http.StatusCreated)
			h.keep(&channel{}, a)
			h.want(a.object("channel").text(member) == text, a, "the %s as it was given", member)
			a = h.wantOK(h.patch(c, message{member: text}), http.StatusOK)
			h.want(a.object("channel").text(member) == text, a, "the %s as it was given", member)
		}
		bad := append([]any{}, notTexts...)
		for _, text := range textsOf(most + 1) {
			bad = append(bad, text)
		}
		for _, value := range bad {
			body := message{"name": "kit-bounds"}
			body[member] = value
			h.wantInvalid(create(body))
			h.wantInvalid(h.patch(c, message{member: value}))
		}
	}
	for _, body := range []message{{}, {"context": "no name"}, {"name": ""}, {"name": nil}} {
		h.wantInvalid(create(body))
	}
	h.wantInvalid(h.patch(c, message{"name": ""}))
}

// channelMemberChecks test the members of a channel, and names.
var channelMemberChecks = []channelCheck{
	{number: "N-23", title: "POST members returns 201 with the name and a key, and GET lists all members",
		cites: `CHANNEL "The service"`, needs: needsOperator, run: func(h *channelProbe) {
			alice := h.talk()
			carol := h.member(alice.channel, "carol")
			h.expect("another key for each member")
			if alice.key == carol.key {
				h.failf("the same key")
			}
			for _, key := range []string{alice.channel.key, h.service.OperatorKey} {
				a := h.read(key, alice.path("/members"))
				h.entry(a, "members", "alice")
				h.entry(a, "members", "carol")
				list, _ := a.list("members")
				h.want(len(list) == 2, a, "two members")
			}
			h.wantOK(h.write(h.service.OperatorKey, alice.path("/members"), message{"name": "dave"}), http.StatusCreated)
		}},
	{number: "N-24", title: "A name has 1 to 64 letters, digits and ._-, and begins with a letter or a digit",
		cites: `CHANNEL "The service"`, needs: needsOperator, run: func(h *channelProbe) {
			c := h.newChannel()
			for i, name := range []string{"a", "7", "A.b_c-D", strings.Repeat("x", 64), "0..", "z--"} {
				h.member(c, name)
				h.wantOK(h.write(c.key, c.path("/connections"), message{"name": fmt.Sprint(i) + name[:len(name)/2],
					"url": "https://agent.example/"}), http.StatusCreated)
			}
			for _, name := range append([]any{"", " ", ".a", "-a", "_a", "a b", "a/b", "ä", "a\n", "a@b", nil,
				strings.Repeat("x", 65)}, notTexts...) {
				h.wantInvalid(h.write(c.key, c.path("/members"), message{"name": name}))
				h.wantInvalid(h.write(c.key, c.path("/connections"), message{"name": name, "url": "https://agent.example/"}))
			}
			h.wantInvalid(h.write(c.key, c.path("/members"), message{}))
			h.wantInvalid(h.write(c.key, c.path("/connections"), message{"url": "https://agent.example/"}))
		}},
	{number: "N-25", title: "Members and connections share one set of names, and a taken one is 409",
		cites: `CHANNEL "The service"`, needs: needsOperator, run: func(h *channelProbe) {
			alice, other := h.talk(), h.newChannel()
			c := alice.channel
			bot := message{"name": "bot", "url": "https://agent.example/"}
			h.wantOK(h.write(c.key, c.path("/connections"), bot), http.StatusCreated)
			for _, name := range []string{"alice", "bot"} {
				h.wantConflict(h.write(c.key, c.path("/members"), message{"name": name}))
				h.wantConflict(h.write(c.key, c.path("/connections"), message{"name": name, "url": "https://agent.example/"}))
			}
			h.member(other, "alice")
			h.wantOK(h.write(other.key, other.path("/connections"), bot), http.StatusCreated)
			h.say(alice, "the key still works")
		}},
	{number: "N-26", title: "DELETE of a member ends its key and frees its name; its messages stay",
		cites: `CHANNEL "The service"`, needs: needsOperator, run: func(h *channelProbe) {
			alice := h.talk()
			carol := h.member(alice.channel, "carol")
			h.say(alice, "before the deletion")
			h.wantOK(h.remove(alice.channel.key, alice.path("/members/alice")), http.StatusOK)
			h.wantNoKey(h.write(alice.key, alice.path("/messages"), message{"content": "hello"}))
			h.wantNoKey(h.read(alice.key, alice.path("/events")))
			h.wantUnknown(h.remove(alice.channel.key, alice.path("/members/alice")))
			h.wantUnknown(h.remove(alice.channel.key, alice.path("/members/nobody")))
			again := h.member(alice.channel, "alice")
			h.say(again, "with the new key")
			h.wantNoKey(h.read(alice.key, alice.path("/events")))
			h.say(carol, "the others stay")
			h.wantEvents(alice.channel, 3)
		}},
}
