package channel

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// channelChecks test channels themselves.
var channelChecks = []channelCheck{
	{Number: "N-15", Title: "POST /channels by the operator returns 201 with the channel and its key",
		Cites: `CHANNEL "The service"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			a := h.wantOK(h.Write(h.service.OperatorKey, "/channels", kit.Message{"name": "kit-create",
				"context": channelContext}), http.StatusCreated)
			c := h.keep(&channel{name: "kit-create", context: channelContext}, a)
			h.wantChannel(a, c)
			other := h.newChannel()
			h.Want(other.id != c.id && other.key != c.key, a, "another id and key for each channel")
			bare := h.wantOK(h.Write(h.service.OperatorKey, "/channels", kit.Message{"name": "kit-create"}), http.StatusCreated)
			h.keep(&channel{}, bare)
		}},
	{Number: "N-16", Title: "GET /channels/{ch} shows the channel to its key and to the operator",
		Cites: `CHANNEL "The service"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			c := h.newChannel()
			for _, key := range []string{c.key, h.service.OperatorKey} {
				h.wantChannel(h.wantOK(h.Read(key, c.path("")), http.StatusOK), c)
			}
		}},
	{Number: "N-17", Title: "name has 1 to 80 bytes and context 0 to 2,000, when a channel is created or changed",
		Cites: `CHANNEL "The service"`, Needs: kit.NeedsOperator, Run: channelBounds},
	{Number: "N-18", Title: "PATCH changes the name, the context or both, and a refused PATCH changes nothing",
		Cites: `CHANNEL "The service"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			c := h.newChannel()
			for _, change := range []kit.Message{{"name": "renamed"}, {"context": "moved"},
				{"name": "both", "context": "of them"}, {"context": ""}} {
				if name, ok := change["name"].(string); ok {
					c.name = name
				}
				if context, ok := change["context"].(string); ok {
					c.context = context
				}
				h.wantChannel(h.wantOK(h.patch(c, change), http.StatusOK), c)
				h.wantChannel(h.wantOK(h.Read(c.key, c.path("")), http.StatusOK), c)
			}
			h.wantInvalid(h.patch(c, kit.Message{"name": "good", "context": strings.Repeat("a", 2001)}))
			h.wantInvalid(h.patch(c, kit.Message{"name": "", "context": "good"}))
			h.wantChannel(h.wantOK(h.Read(c.key, c.path("")), http.StatusOK), c)
		}},
	{Number: "N-19", Title: "DELETE ends the channel and all its keys",
		Cites: `CHANNEL "The service"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice, other := h.talk(), h.newChannel()
			h.say(alice, "hello")
			h.wantOK(h.Remove(alice.channel.key, alice.path("")), http.StatusOK)
			h.wantNoKey(h.Read(alice.channel.key, alice.path("")))
			h.wantNoKey(h.Write(alice.channel.key, alice.path("/members"), kit.Message{"name": "carol"}))
			h.wantNoKey(h.Write(alice.key, alice.path("/messages"), kit.Message{"content": "hello"}))
			h.wantNoKey(h.Read(alice.key, alice.path("/events")))
			h.wantUnknown(h.Read(h.service.OperatorKey, alice.path("")))
			h.wantUnknown(h.Remove(h.service.OperatorKey, alice.path("")))
			h.wantChannel(h.wantOK(h.Read(other.key, other.path("")), http.StatusOK), other)
			h.wantOK(h.Remove(h.service.OperatorKey, other.path("")), http.StatusOK)
			h.wantNoKey(h.Read(other.key, other.path("")))
		}},
	{Number: "N-20", Title: "DELETE of a channel ends its callbacks and its MCP server",
		Cites: `CHANNEL "The service"`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			h.initialize(d)
			h.wantOK(h.Remove(alice.channel.key, alice.path("")), http.StatusOK)
			a := h.report(d, statusEvent("reading"))
			h.Want(a.Status == http.StatusGone || a.Status == http.StatusNotFound, a, "refused: status 410 or 404")
			a = h.rpc(d, "tools/list", nil)
			h.Want(a.Status == http.StatusUnauthorized, a, "refused: status 401")
		}},
	{Number: "N-21", Title: "An unknown channel is 403 for keys of other channels and 404 for the operator",
		Cites: `CHANNEL "The service"; GATEWAYS "Keys of callers"; G-11`, Needs: kit.NeedsOperator,
		Run: func(h *channelProbe) {
			alice, foreign := h.talk(), h.newChannel()
			for _, target := range []string{"", "/members", "/connections", "/events"} {
				for _, key := range []string{alice.channel.key, alice.key} {
					unknown := h.Read(key, unknownChannel.path(target))
					h.wantForbidden(unknown)
					other := h.Read(key, foreign.path(target))
					h.wantForbidden(other)
					h.Want(string(unknown.Body) == string(other.Body), unknown,
						"the same answer as for a channel of others: %s", other)
				}
				h.wantUnknown(h.Read(h.service.OperatorKey, unknownChannel.path(target)))
			}
			h.wantForbidden(h.Write(alice.key, unknownChannel.path("/messages"), kit.Message{"content": "hello"}))
		}},
	{Number: "N-22", Title: "No other answer contains a key or a connection string",
		Cites: `GATEWAYS "Keys of callers"; CHANNEL "The service"; G-9`, Needs: kit.NeedsOperator,
		Run: func(h *channelProbe) {
			alice := h.talk()
			c := alice.channel
			body := kit.Message{"name": "bot", "url": "https://agent.example/inbox/sk_53cr3t"}
			secrets := []string{c.key, alice.key, "sk_53cr3t", "agent.example/"}
			const what = "no key and no connection string"
			h.WantNoText(h.wantOK(h.Write(c.key, c.path("/connections"), body), http.StatusCreated), what, secrets...)
			h.WantNoText(h.wantOK(h.Ask("", http.MethodPut, c.path("/connections/bot"), c.key, nil, kit.Message{"mcp": "none"}),
				http.StatusOK), what, secrets...)
			for _, key := range []string{c.key, h.service.OperatorKey} {
				for _, rest := range []string{"", "/members", "/connections", "/events"} {
					h.WantNoText(h.wantOK(h.Read(key, c.path(rest)), http.StatusOK), what, secrets...)
				}
			}
			h.WantNoText(h.wantOK(h.patch(c, kit.Message{"name": "renamed"}), http.StatusOK), what, secrets...)
			h.WantNoText(h.wantOK(h.Read(alice.key, c.path("/events")), http.StatusOK), what, secrets...)
		}},
}

// patch changes a channel.
func (h *channelProbe) patch(c *channel, change kit.Message) kit.Answer {
	return h.Ask("", http.MethodPatch, c.path(""), c.key, nil, change)
}

// wantChannel ends the check unless the member channel of a is the channel c.
func (h *channelProbe) wantChannel(a kit.Answer, c *channel) {
	row := kit.ParseRow(a.Members["channel"])
	h.wantMembers(row, map[string]any{"id": c.id, "name": c.name, "context": c.context, "createdAt": anything})
	h.Want(channelTimeForm.MatchString(row.Text("createdAt")), a, "createdAt such as 2026-03-20T10:00:00.000Z")
}

func channelBounds(h *channelProbe) {
	create := func(body kit.Message) kit.Answer { return h.Write(h.service.OperatorKey, "/channels", body) }
	c := h.newChannel()
	for member, most := range map[string]int{"name": 80, "context": 2000} {
		for _, text := range append(kit.TextsOf(most), "a") {
			body := kit.Message{"name": "kit-bounds"}
			body[member] = text
			a := h.wantOK(create(body), http.StatusCreated)
			h.keep(&channel{}, a)
			h.Want(a.Object("channel").Text(member) == text, a, "the %s as it was given", member)
			a = h.wantOK(h.patch(c, kit.Message{member: text}), http.StatusOK)
			h.Want(a.Object("channel").Text(member) == text, a, "the %s as it was given", member)
		}
		bad := append([]any{}, kit.NotTexts...)
		for _, text := range kit.TextsOf(most + 1) {
			bad = append(bad, text)
		}
		for _, value := range bad {
			body := kit.Message{"name": "kit-bounds"}
			body[member] = value
			h.wantInvalid(create(body))
			h.wantInvalid(h.patch(c, kit.Message{member: value}))
		}
	}
	for _, body := range []kit.Message{{}, {"context": "no name"}, {"name": ""}, {"name": nil}} {
		h.wantInvalid(create(body))
	}
	h.wantInvalid(h.patch(c, kit.Message{"name": ""}))
}

// channelMemberChecks test the members of a channel, and names.
var channelMemberChecks = []channelCheck{
	{Number: "N-23", Title: "POST members returns 201 with the name and a key, and GET lists all members",
		Cites: `CHANNEL "The service"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.talk()
			carol := h.member(alice.channel, "carol")
			h.Expect("another key for each member")
			if alice.key == carol.key {
				h.Failf("the same key")
			}
			for _, key := range []string{alice.channel.key, h.service.OperatorKey} {
				a := h.Read(key, alice.path("/members"))
				h.entry(a, "members", "alice")
				h.entry(a, "members", "carol")
				list, _ := a.List("members")
				h.Want(len(list) == 2, a, "two members")
			}
			h.wantOK(h.Write(h.service.OperatorKey, alice.path("/members"), kit.Message{"name": "dave"}), http.StatusCreated)
		}},
	{Number: "N-24", Title: "A name has 1 to 64 letters, digits and ._-, and begins with a letter or a digit",
		Cites: `CHANNEL "The service"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			c := h.newChannel()
			for i, name := range []string{"a", "7", "A.b_c-D", strings.Repeat("x", 64), "0..", "z--"} {
				h.member(c, name)
				h.wantOK(h.Write(c.key, c.path("/connections"), kit.Message{"name": fmt.Sprint(i) + name[:len(name)/2],
					"url": "https://agent.example/"}), http.StatusCreated)
			}
			for _, name := range append([]any{"", " ", ".a", "-a", "_a", "a b", "a/b", "ä", "a\n", "a@b", nil,
				strings.Repeat("x", 65)}, kit.NotTexts...) {
				h.wantInvalid(h.Write(c.key, c.path("/members"), kit.Message{"name": name}))
				h.wantInvalid(h.Write(c.key, c.path("/connections"), kit.Message{"name": name, "url": "https://agent.example/"}))
			}
			h.wantInvalid(h.Write(c.key, c.path("/members"), kit.Message{}))
			h.wantInvalid(h.Write(c.key, c.path("/connections"), kit.Message{"url": "https://agent.example/"}))
		}},
	{Number: "N-25", Title: "Members and connections share one set of names, and a taken one is 409",
		Cites: `CHANNEL "The service"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice, other := h.talk(), h.newChannel()
			c := alice.channel
			bot := kit.Message{"name": "bot", "url": "https://agent.example/"}
			h.wantOK(h.Write(c.key, c.path("/connections"), bot), http.StatusCreated)
			for _, name := range []string{"alice", "bot"} {
				h.wantConflict(h.Write(c.key, c.path("/members"), kit.Message{"name": name}))
				h.wantConflict(h.Write(c.key, c.path("/connections"), kit.Message{"name": name, "url": "https://agent.example/"}))
			}
			h.member(other, "alice")
			h.wantOK(h.Write(other.key, other.path("/connections"), bot), http.StatusCreated)
			h.say(alice, "the key still works")
		}},
	{Number: "N-26", Title: "DELETE of a member ends its key and frees its name; its messages stay",
		Cites: `CHANNEL "The service"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.talk()
			carol := h.member(alice.channel, "carol")
			h.say(alice, "before the deletion")
			h.wantOK(h.Remove(alice.channel.key, alice.path("/members/alice")), http.StatusOK)
			h.wantNoKey(h.Write(alice.key, alice.path("/messages"), kit.Message{"content": "hello"}))
			h.wantNoKey(h.Read(alice.key, alice.path("/events")))
			h.wantUnknown(h.Remove(alice.channel.key, alice.path("/members/alice")))
			h.wantUnknown(h.Remove(alice.channel.key, alice.path("/members/nobody")))
			again := h.member(alice.channel, "alice")
			h.say(again, "with the new key")
			h.wantNoKey(h.Read(alice.key, alice.path("/events")))
			h.say(carol, "the others stay")
			h.wantEvents(alice.channel, 3)
		}},
}
