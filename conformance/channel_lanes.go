package conformance

import (
	"fmt"
	"net/http"
	"slices"
	"time"
)

// channelLaneChecks test the order of deliveries, and what failures do. A service waits about 2 seconds before it
// repeats a delivery, so most of these checks count as waiting ones.
var channelLaneChecks = []channelCheck{
	{number: "N-63", title: "A connection gets the messages of its channel one after the other, in order",
		cites: `CHANNEL "Deliveries"; GATEWAYS "Outbox"; C-2, G-17`, needs: needsAgent, wait: 3 * time.Second, run: laneOrder},
	{number: "N-64", title: "A slow connection delays no other one", cites: `CHANNEL "Deliveries"; C-3, G-19`,
		needs: needsAgent, wait: 5 * time.Second, run: func(h *channelProbe) {
			h.beSlow()
			alice := h.talk()
			slow := h.agent(alice.channel, "slow", hookReply{after: 2 * promptLimit})
			quick := h.agent(alice.channel, "quick", replyOK)
			events := []answer{h.sayTo(2, alice, "first")}
			h.waitForCalls(slow.hook, 1, promptLimit, func(hookCall) bool { return true })
			for i := range 2 {
				events = append(events, h.sayTo(2, alice, fmt.Sprint(i)))
			}
			h.wantIDs(h.received(quick, 3, promptLimit), events...)
			h.expect("one delivery in progress at the slow connection")
			if calls := slow.seen(); len(calls) != 1 || !calls[0].ended.IsZero() {
				h.failf("%d deliveries", len(calls))
			}
		}},
	{number: "N-65", title: "After 408, 425, 429 and 5xx a delivery is repeated about 2 seconds later",
		cites: `CHANNEL "Deliveries"; GATEWAYS "Outbox"; C-6`, needs: needsAgent, wait: 3 * time.Second, run: laneRetried},
	{number: "N-66", title: "A delivery is not repeated before its Retry-After",
		cites: `GATEWAYS "Outbox"; G-20`, needs: needsAgent, wait: 6 * time.Second, run: func(h *channelProbe) {
			alice := h.talk()
			bot := h.agentWith(alice.channel, "bot", nil, replyFirst(hookReply{status: http.StatusTooManyRequests,
				header: http.Header{"Retry-After": {"5"}}}))
			h.say(alice, "to a busy agent")
			calls := h.wantCalls(bot.hook, 2, 5*time.Second+2*promptLimit)
			h.expect("the second attempt 5 s after the first one")
			if pause := calls[1].began.Sub(calls[0].ended); pause < 4900*time.Millisecond {
				h.failf("after %v", pause.Round(time.Millisecond))
			}
		}},
	{number: "N-67", title: "A delivery without an answer within 10 seconds is repeated",
		cites: `GATEWAYS "Requests to other servers"; GATEWAYS "Outbox"; C-6, G-15`, needs: needsAgent,
		wait: 16 * time.Second, run: func(h *channelProbe) {
			h.beSlow()
			alice := h.talk()
			bot := h.agentWith(alice.channel, "bot", nil, replyFirst(hookReply{after: 30 * time.Second}))
			event := h.say(alice, "to an agent that sleeps")
			calls := h.waitForCalls(bot.hook, 2, 14*time.Second+promptLimit, func(hookCall) bool { return true })
			h.expect("a second attempt 11 to 15 seconds after the first one, with the same message")
			if pause := calls[1].began.Sub(calls[0].began); pause < 10*time.Second || pause > 14*time.Second+promptLimit {
				h.failf("after %v", pause.Round(time.Second/10))
			}
			h.wantIDs([]channelDelivery{h.delivery(calls[0]), h.delivery(calls[1])}, event, event)
		}},
	{number: "N-68", title: "After another 4xx, or 3xx, the delivery is dead and the next one follows; none is followed",
		cites: `CHANNEL "Deliveries"; GATEWAYS "Outbox"; C-6, G-18`, needs: needsAgent, run: laneDead},
	{number: "N-69", title: "After 404 or 410 the connection is revoked and its deliveries are dead, until PUT",
		cites: `CHANNEL "Deliveries"; C-6`, needs: needsAgent, wait: 3 * time.Second, run: laneRevoked},
	{number: "N-70", title: "queued counts what waits and what is being tried, and dead what has failed",
		cites: `CHANNEL "The service"; CHANNEL "Agent inboxes"`, needs: needsAgent, wait: time.Second, run: func(h *channelProbe) {
			h.beSlow()
			alice := h.talk()
			bot := h.agentWith(alice.channel, "bot", nil, func(call int) hookReply {
				if call == 1 {
					return hookReply{after: second}
				}
				return replyWith(http.StatusForbidden)
			})
			h.say(alice, "first")
			h.say(alice, "second")
			h.wantQueue(alice.channel, "bot", 2, 0)
			h.wantCalls(bot.hook, 2, promptLimit)
			h.wantQueue(alice.channel, "bot", 0, 1)
		}},
	{number: "N-71", title: "After PUT, what is queued goes to the new connection string only",
		cites: `CHANNEL "The service"; C-7`, needs: needsAgent, wait: 4 * time.Second, run: func(h *channelProbe) {
			alice := h.talk()
			bot := h.agent(alice.channel, "bot", replyWith(http.StatusServiceUnavailable))
			first := h.say(alice, "first")
			h.wantCalls(bot.hook, 1, promptLimit)
			second := h.say(alice, "second")
			old, current := bot.hook, h.inbox(func(int) hookReply { return replyOK })
			h.sleep(quiet) // the service may not have read the answer yet
			h.wantConnection(h.wantOK(h.put(alice.channel, "bot", message{"url": current.url, "mcp": "none"}),
				http.StatusOK), "bot", "active")
			seen := len(old.seen())
			bot.hook = current
			got := h.received(bot, 2, 4*promptLimit)
			h.wantIDs(got, first, second)
			h.want(got[0].mcp == "" && got[1].mcp == "", got[0].body, "the new form of mcp, which is none")
			h.wantNoMoreCalls(old, seen)
			h.wantQueue(alice.channel, "bot", 0, 0)
		}},
	{number: "N-72", title: "After DELETE of a connection it gets no more deliveries",
		cites: `CHANNEL "The service"`, needs: needsAgent, wait: 3 * time.Second, run: func(h *channelProbe) {
			alice := h.talk()
			bot := h.agent(alice.channel, "bot", replyWith(http.StatusServiceUnavailable))
			h.say(alice, "first")
			h.say(alice, "second")
			h.wantCalls(bot.hook, 1, promptLimit)
			h.sleep(quiet) // the service may not have read the answer yet
			h.wantOK(h.remove(alice.channel.key, alice.path("/connections/bot")), http.StatusOK)
			seen := len(bot.seen())
			h.sayTo(0, alice, "to nobody")
			again := h.agent(alice.channel, "bot", replyOK)
			event := h.sayTo(1, alice, "to the new connection")
			h.sleep(3 * time.Second)
			h.wantNoMoreCalls(bot.hook, seen)
			h.wantIDs(h.received(again, 1, promptLimit), event)
			h.wantNoMoreCalls(again.hook, 1)
		}},
}

// wantQueue waits until the connection has these counts.
func (h *channelProbe) wantQueue(c *channel, name string, queued, dead float64) {
	h.waitForConnection(c, name, fmt.Sprintf(`"queued":%v and "dead":%v`, queued, dead), func(row answer) bool {
		return row.members["queued"] != nil && row.number("queued") == queued && row.members["dead"] != nil &&
			row.number("dead") == dead
	})
}

func laneOrder(h *channelProbe) {
	h.beSlow()
	alice := h.talk()
	bot := h.agentWith(alice.channel, "bot", nil, func(call int) hookReply {
		if call == 3 {
			return hookReply{status: http.StatusServiceUnavailable, after: quiet / 4}
		}
		return hookReply{body: replyOK.body, after: quiet / 4}
	})
	carol := h.member(alice.channel, "carol")
	h.inParallel(8, func(i int) answer {
		m := []*member{alice, carol}[i%2]
		return h.write(m.key, m.path("/messages"), message{"content": fmt.Sprint(i)})
	})
	got := h.received(bot, 9, 3*promptLimit)
	events := h.wantEvents(alice.channel, 8)
	h.wantIDs(got, slices.Insert(slices.Clone(events), 2, events[2])...)
	h.expect("one delivery at a time")
	for i, d := range got {
		if d.overlapped {
			h.failf("delivery %d began before the one before it had ended", i+1)
		}
	}
	h.wantNoMoreCalls(bot.hook, 9)
}

func laneRetried(h *channelProbe) {
	alice := h.talk()
	statuses := []int{http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}
	var agents []*agent
	for _, status := range statuses {
		agents = append(agents, h.agentWith(alice.channel, fmt.Sprint("bot", status), nil,
			replyFirst(replyWith(status))))
	}
	event := h.sayTo(len(agents), alice, "hello")
	for i, bot := range agents {
		h.describe("a message to an agent that first answers %d", statuses[i])
		got := h.received(bot, 2, 3*promptLimit)
		h.wantIDs(got, event, event)
		h.expect("the second attempt 1.6 to 2.4 seconds after the first one")
		if pause := got[1].began.Sub(got[0].ended); pause < 1500*time.Millisecond || pause > 2*promptLimit {
			h.failf("after %v", pause.Round(time.Millisecond))
		}
	}
	for _, bot := range agents {
		h.wantQueue(alice.channel, bot.name, 0, 0)
		row := h.connection(alice.channel, bot.name)
		h.want(row.text("status") == "active", row, "the status active")
	}
}

func laneDead(h *channelProbe) {
	alice := h.talk()
	elsewhere := h.inbox(func(int) hookReply { return replyOK })
	location := http.Header{"Location": {elsewhere.url}}
	bad := []hookReply{replyWith(http.StatusBadRequest), replyWith(http.StatusUnauthorized),
		replyWith(http.StatusForbidden), replyWith(http.StatusConflict), replyWith(http.StatusUnprocessableEntity),
		{status: http.StatusFound, header: location}, {status: http.StatusPermanentRedirect, header: location}}
	bot := h.agentWith(alice.channel, "bot", nil, func(call int) hookReply {
		if call <= len(bad) {
			return bad[call-1]
		}
		return replyOK
	})
	var events []answer
	for i := range len(bad) + 2 {
		events = append(events, h.sayTo(1, alice, fmt.Sprint(i)))
	}
	h.wantIDs(h.received(bot, len(events), 2*promptLimit), events...)
	h.wantQueue(alice.channel, "bot", 0, float64(len(bad)))
	row := h.connection(alice.channel, "bot")
	h.want(row.text("status") == "active", row, "the status active")
	h.wantNoMoreCalls(bot.hook, len(events))
	h.wantNoMoreCalls(elsewhere, 0)
}

func laneRevoked(h *channelProbe) {
	for _, status := range []int{http.StatusNotFound, http.StatusGone} {
		alice := h.talk()
		h.beSlow()
		bot := h.agent(alice.channel, "bot", hookReply{status: status, after: quiet})
		other := h.agent(alice.channel, "other", replyOK)
		h.sayTo(2, alice, "first")
		h.sayTo(2, alice, "second")
		d := h.received(bot, 1, promptLimit)[0]
		h.waitForConnection(alice.channel, "bot", `"status":"revoked", "queued":0 and "dead":2`, func(row answer) bool {
			return row.text("status") == "revoked" && row.number("queued") == 0 && row.number("dead") == 2
		})
		h.wantGone(h.report(d, statusEvent("reading")))
		h.sayTo(1, alice, "third")
		h.received(other, 3, promptLimit)
		h.wantNoMoreCalls(bot.hook, 1)
		current := h.inbox(func(int) hookReply { return replyOK })
		h.wantConnection(h.wantOK(h.put(alice.channel, "bot", message{"url": current.url}), http.StatusOK), "bot", "active")
		event := h.sayTo(2, alice, "fourth")
		bot.hook = current
		got := h.received(bot, 1, promptLimit)
		h.wantIDs(got[len(got)-1:], event)
	}
}
