package channel

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// channelLaneChecks test the order of deliveries, and what failures do. A service waits about 2 seconds before it
// repeats a delivery, so most of these checks count as waiting ones.
var channelLaneChecks = []channelCheck{
	{Number: "N-63", Title: "A connection gets the messages of its channel one after the other, in order",
		Cites: `CHANNEL "Deliveries"; GATEWAYS "Outbox"; C-2, G-17`, Needs: needsAgent, Wait: 3 * time.Second,
		Run: laneOrder},
	{Number: "N-64", Title: "A slow connection delays no other one", Cites: `CHANNEL "Deliveries"; C-3, G-19`,
		Needs: needsAgent, Wait: 5 * time.Second, Run: func(h *channelProbe) {
			h.beSlow()
			alice := h.talk()
			slow := h.agent(alice.channel, "slow", kit.HookReply{After: 2 * kit.PromptLimit})
			quick := h.agent(alice.channel, "quick", kit.ReplyOK)
			events := []kit.Answer{h.sayTo(2, alice, "first")}
			h.WaitForCalls(slow.Hook, 1, kit.PromptLimit, func(kit.HookCall) bool { return true })
			for i := range 2 {
				events = append(events, h.sayTo(2, alice, fmt.Sprint(i)))
			}
			h.wantIDs(h.received(quick, 3, kit.PromptLimit), events...)
			h.Expect("one delivery in progress at the slow connection")
			if calls := slow.Seen(); len(calls) != 1 || !calls[0].Ended.IsZero() {
				h.Failf("%d deliveries", len(calls))
			}
		}},
	{Number: "N-65", Title: "After 408, 425, 429 and 5xx a delivery is repeated about 2 seconds later",
		Cites: `CHANNEL "Deliveries"; GATEWAYS "Outbox"; C-6`, Needs: needsAgent, Wait: 3 * time.Second, Run: laneRetried},
	{Number: "N-66", Title: "A delivery is not repeated before its Retry-After",
		Cites: `GATEWAYS "Outbox"; G-20`, Needs: needsAgent, Wait: 6 * time.Second, Run: func(h *channelProbe) {
			alice := h.talk()
			bot := h.agentWith(alice.channel, "bot", nil, kit.ReplyFirst(kit.HookReply{Status: http.StatusTooManyRequests,
				Header: http.Header{"Retry-After": {"5"}}}))
			h.say(alice, "to a busy agent")
			calls := h.WantCalls(bot.Hook, 2, 5*time.Second+2*kit.PromptLimit)
			h.Expect("the second attempt 5 s after the first one")
			if pause := calls[1].Began.Sub(calls[0].Ended); pause < 4900*time.Millisecond {
				h.Failf("after %v", pause.Round(time.Millisecond))
			}
		}},
	{Number: "N-67", Title: "A delivery without an answer within 10 seconds is repeated",
		Cites: `GATEWAYS "Requests to other servers"; GATEWAYS "Outbox"; C-6, G-15`, Needs: needsAgent,
		Wait: 16 * time.Second, Run: func(h *channelProbe) {
			h.beSlow()
			alice := h.talk()
			bot := h.agentWith(alice.channel, "bot", nil, kit.ReplyFirst(kit.HookReply{After: 30 * time.Second}))
			event := h.say(alice, "to an agent that sleeps")
			calls := h.WaitForCalls(bot.Hook, 2, 14*time.Second+kit.PromptLimit, func(kit.HookCall) bool { return true })
			h.Expect("a second attempt 11 to 15 seconds after the first one, with the same message")
			if pause := calls[1].Began.Sub(calls[0].Began); pause < 10*time.Second || pause > 14*time.Second+kit.PromptLimit {
				h.Failf("after %v", pause.Round(time.Second/10))
			}
			h.wantIDs([]channelDelivery{h.delivery(calls[0]), h.delivery(calls[1])}, event, event)
		}},
	{Number: "N-68", Title: "After another 4xx, or 3xx, the delivery is dead and the next one follows; none is followed",
		Cites: `CHANNEL "Deliveries"; GATEWAYS "Outbox"; C-6, G-18`, Needs: needsAgent, Run: laneDead},
	{Number: "N-69", Title: "After 404 or 410 the connection is revoked and its deliveries are dead, until PUT",
		Cites: `CHANNEL "Deliveries"; C-6`, Needs: needsAgent, Wait: 3 * time.Second, Run: laneRevoked},
	{Number: "N-70", Title: "queued counts what waits and what is being tried, and dead what has failed",
		Cites: `CHANNEL "The service"; CHANNEL "Agent inboxes"`, Needs: needsAgent, Wait: time.Second,
		Run: func(h *channelProbe) {
			h.beSlow()
			alice := h.talk()
			bot := h.agentWith(alice.channel, "bot", nil, func(call int) kit.HookReply {
				if call == 1 {
					return kit.HookReply{After: time.Second}
				}
				return kit.ReplyWith(http.StatusForbidden)
			})
			h.say(alice, "first")
			h.say(alice, "second")
			h.wantQueue(alice.channel, "bot", 2, 0)
			h.WantCalls(bot.Hook, 2, kit.PromptLimit)
			h.wantQueue(alice.channel, "bot", 0, 1)
		}},
	{Number: "N-71", Title: "After PUT, what is queued goes to the new connection string only",
		Cites: `CHANNEL "The service"; C-7`, Needs: needsAgent, Wait: 4 * time.Second, Run: func(h *channelProbe) {
			alice := h.talk()
			bot := h.agent(alice.channel, "bot", kit.ReplyWith(http.StatusServiceUnavailable))
			first := h.say(alice, "first")
			h.WantCalls(bot.Hook, 1, kit.PromptLimit)
			second := h.say(alice, "second")
			old, current := bot.Hook, h.inbox(func(int) kit.HookReply { return kit.ReplyOK })
			h.Sleep(kit.Quiet) // the service may not have read the answer yet
			h.wantConnection(h.wantOK(h.put(alice.channel, "bot", kit.Message{"url": current.URL, "mcp": "none"}),
				http.StatusOK), "bot", "active")
			seen := len(old.Seen())
			bot.Hook = current
			got := h.received(bot, 2, 4*kit.PromptLimit)
			h.wantIDs(got, first, second)
			h.Want(got[0].mcp == "" && got[1].mcp == "", got[0].Body, "the new form of mcp, which is none")
			h.WantNoMoreCalls(old, seen)
			h.wantQueue(alice.channel, "bot", 0, 0)
		}},
	{Number: "N-72", Title: "After DELETE of a connection it gets no more deliveries",
		Cites: `CHANNEL "The service"`, Needs: needsAgent, Wait: 3 * time.Second, Run: func(h *channelProbe) {
			alice := h.talk()
			bot := h.agent(alice.channel, "bot", kit.ReplyWith(http.StatusServiceUnavailable))
			h.say(alice, "first")
			h.say(alice, "second")
			h.WantCalls(bot.Hook, 1, kit.PromptLimit)
			h.Sleep(kit.Quiet) // the service may not have read the answer yet
			h.wantOK(h.Remove(alice.channel.key, alice.path("/connections/bot")), http.StatusOK)
			seen := len(bot.Seen())
			h.sayTo(0, alice, "to nobody")
			again := h.agent(alice.channel, "bot", kit.ReplyOK)
			event := h.sayTo(1, alice, "to the new connection")
			h.Sleep(3 * time.Second)
			h.WantNoMoreCalls(bot.Hook, seen)
			h.wantIDs(h.received(again, 1, kit.PromptLimit), event)
			h.WantNoMoreCalls(again.Hook, 1)
		}},
}

// wantQueue waits until the connection has these counts.
func (h *channelProbe) wantQueue(c *channel, name string, queued, dead float64) {
	h.waitForConnection(c, name, fmt.Sprintf(`"queued":%v and "dead":%v`, queued, dead), func(row kit.Answer) bool {
		return row.Members["queued"] != nil && row.Number("queued") == queued && row.Members["dead"] != nil &&
			row.Number("dead") == dead
	})
}

func laneOrder(h *channelProbe) {
	h.beSlow()
	alice := h.talk()
	bot := h.agentWith(alice.channel, "bot", nil, func(call int) kit.HookReply {
		if call == 3 {
			return kit.HookReply{Status: http.StatusServiceUnavailable, After: kit.Quiet / 4}
		}
		return kit.HookReply{Body: kit.ReplyOK.Body, After: kit.Quiet / 4}
	})
	carol := h.member(alice.channel, "carol")
	h.InParallel(8, func(i int) kit.Answer {
		m := []*member{alice, carol}[i%2]
		return h.Write(m.key, m.path("/messages"), kit.Message{"content": fmt.Sprint(i)})
	})
	got := h.received(bot, 9, 3*kit.PromptLimit)
	events := h.wantEvents(alice.channel, 8)
	h.wantIDs(got, slices.Insert(slices.Clone(events), 2, events[2])...)
	h.Expect("one delivery at a time")
	for i, d := range got {
		if d.Overlapped {
			h.Failf("delivery %d began before the one before it had ended", i+1)
		}
	}
	h.WantNoMoreCalls(bot.Hook, 9)
}

func laneRetried(h *channelProbe) {
	alice := h.talk()
	statuses := []int{http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}
	var agents []*agent
	for _, status := range statuses {
		agents = append(agents, h.agentWith(alice.channel, fmt.Sprint("bot", status), nil,
			kit.ReplyFirst(kit.ReplyWith(status))))
	}
	event := h.sayTo(len(agents), alice, "hello")
	for i, bot := range agents {
		h.Describe("a message to an agent that first answers %d", statuses[i])
		got := h.received(bot, 2, 3*kit.PromptLimit)
		h.wantIDs(got, event, event)
		h.Expect("the second attempt 1.6 to 2.4 seconds after the first one")
		if pause := got[1].Began.Sub(got[0].Ended); pause < 1500*time.Millisecond || pause > 2*kit.PromptLimit {
			h.Failf("after %v", pause.Round(time.Millisecond))
		}
	}
	for _, bot := range agents {
		h.wantQueue(alice.channel, bot.name, 0, 0)
		row := h.connection(alice.channel, bot.name)
		h.Want(row.Text("status") == "active", row, "the status active")
	}
}

func laneDead(h *channelProbe) {
	alice := h.talk()
	elsewhere := h.inbox(func(int) kit.HookReply { return kit.ReplyOK })
	location := http.Header{"Location": {elsewhere.URL}}
	bad := []kit.HookReply{kit.ReplyWith(http.StatusBadRequest), kit.ReplyWith(http.StatusUnauthorized),
		kit.ReplyWith(http.StatusForbidden), kit.ReplyWith(http.StatusConflict),
		kit.ReplyWith(http.StatusUnprocessableEntity),
		{Status: http.StatusFound, Header: location}, {Status: http.StatusPermanentRedirect, Header: location}}
	bot := h.agentWith(alice.channel, "bot", nil, func(call int) kit.HookReply {
		if call <= len(bad) {
			return bad[call-1]
		}
		return kit.ReplyOK
	})
	var events []kit.Answer
	for i := range len(bad) + 2 {
		events = append(events, h.sayTo(1, alice, fmt.Sprint(i)))
	}
	h.wantIDs(h.received(bot, len(events), 2*kit.PromptLimit), events...)
	h.wantQueue(alice.channel, "bot", 0, float64(len(bad)))
	row := h.connection(alice.channel, "bot")
	h.Want(row.Text("status") == "active", row, "the status active")
	h.WantNoMoreCalls(bot.Hook, len(events))
	h.WantNoMoreCalls(elsewhere, 0)
}

func laneRevoked(h *channelProbe) {
	for _, status := range []int{http.StatusNotFound, http.StatusGone} {
		alice := h.talk()
		h.beSlow()
		bot := h.agent(alice.channel, "bot", kit.HookReply{Status: status, After: kit.Quiet})
		other := h.agent(alice.channel, "other", kit.ReplyOK)
		h.sayTo(2, alice, "first")
		h.sayTo(2, alice, "second")
		d := h.received(bot, 1, kit.PromptLimit)[0]
		h.waitForConnection(alice.channel, "bot", `"status":"revoked", "queued":0 and "dead":2`, func(row kit.Answer) bool {
			return row.Text("status") == "revoked" && row.Number("queued") == 0 && row.Number("dead") == 2
		})
		h.wantGone(h.report(d, statusEvent("reading")))
		h.sayTo(1, alice, "third")
		h.received(other, 3, kit.PromptLimit)
		h.WantNoMoreCalls(bot.Hook, 1)
		current := h.inbox(func(int) kit.HookReply { return kit.ReplyOK })
		h.wantConnection(h.wantOK(h.put(alice.channel, "bot", kit.Message{"url": current.URL}), http.StatusOK), "bot",
			"active")
		event := h.sayTo(2, alice, "fourth")
		bot.Hook = current
		got := h.received(bot, 1, kit.PromptLimit)
		h.wantIDs(got[len(got)-1:], event)
	}
}
