package channel

import (
	"fmt"
	"net/http"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// channelLoopChecks test that agents cannot answer each other for ever.
var channelLoopChecks = []channelCheck{
	{Number: "N-84", Title: "Answers of agents to each other are delivered up to depth 4, and stored beyond it",
		Cites: `CHANNEL "Deliveries"; C-13`, Needs: needsAgent, Run: loopDepth},
	{Number: "N-85",
		Title: "The 61st message of a channel's agents in a minute is stored, but not delivered; members still are",
		Cites: `CHANNEL "Deliveries"; C-14`, Needs: needsAgent, Wait: 5 * time.Second, Run: loopMinute},
}

func loopDepth(h *channelProbe) {
	alice := h.talk()
	agents := []*agent{h.agent(alice.channel, "ping", kit.ReplyOK), h.agent(alice.channel, "pong", kit.ReplyOK)}
	h.sayTo(2, alice, "hello")
	h.received(agents[1], 1, kit.PromptLimit)
	got := []int{0, 1} // deliveries of each agent so far
	for depth := 1; depth <= 5; depth++ {
		from, to := (depth+1)%2, depth%2 // ping says depth 1, 3 and 5
		got[from] = max(got[from], 1)
		all := h.received(agents[from], got[from], kit.PromptLimit)
		row := h.reported(alice.channel, all[len(all)-1], messageEvent(fmt.Sprint("depth ", depth)))
		h.wantGenuine(row, agents[from].name, "agent", "callback", depth)
		if depth <= 4 {
			got[to]++
			all = h.received(agents[to], got[to], kit.PromptLimit)
			h.wantIDs(all[len(all)-1:], row)
		}
	}
	h.Describe("the message with depth 5")
	h.WantNoMoreCalls(agents[0].Hook, got[0])
	h.WantNoMoreCalls(agents[1].Hook, got[1])
	h.wantEvents(alice.channel, 6)
	event := h.sayTo(2, alice, "hello again")
	all := h.received(agents[1], got[1]+1, kit.PromptLimit)
	h.wantIDs(all[len(all)-1:], event)
	row := h.reported(alice.channel, all[len(all)-1], messageEvent("depth 1 again"))
	h.wantGenuine(row, "pong", "agent", "callback", 1)
}

func loopMinute(h *channelProbe) {
	alice := h.talk()
	first, second := h.agent(alice.channel, "first", kit.ReplyOK), h.agent(alice.channel, "second", kit.ReplyOK)
	listener := h.agent(alice.channel, "listener", kit.ReplyOK)
	events := []kit.Answer{h.sayTo(3, alice, "hello")}
	callbacks := []channelDelivery{h.received(first, 1, kit.PromptLimit)[0], h.received(second, 1, kit.PromptLimit)[0]}
	h.received(listener, 1, kit.PromptLimit)
	started := time.Now()
	for i := range 61 {
		row := h.reported(alice.channel, callbacks[i%2], messageEvent(fmt.Sprint("message ", i+1)))
		if i < 60 {
			events = append(events, row)
		}
	}
	if time.Since(started) > 55*time.Second {
		h.End(kit.Skipped, "61 messages took %v", time.Since(started).Round(time.Second))
	}
	events = append(events, h.sayTo(3, alice, "members are still heard"))
	h.wantEvents(alice.channel, 63)
	h.wantIDs(h.received(listener, 62, 5*kit.PromptLimit), events...)
	h.WantNoMoreCalls(listener.Hook, 62)
}

// channelLimitChecks test the largest numbers of things. They need hundreds of requests.
var channelLimitChecks = []channelCheck{
	{Number: "N-97", Title: "A channel has at most 200 members", Cites: `CHANNEL "The service"; G-25`,
		Needs: kit.NeedsThorough, Run: func(h *channelProbe) {
			c := h.newChannel()
			add := func(i int) kit.Answer {
				return h.Write(c.key, c.path("/members"), kit.Message{"name": fmt.Sprint("member-", i)})
			}
			for range 50 {
				for _, a := range h.InParallel(4, func(int) kit.Answer { return add(int(h.service.names.Add(1))) }) {
					h.wantOK(a, http.StatusCreated)
				}
			}
			h.wantLimit(add(0), "members")
			a := h.Read(c.key, c.path("/members"))
			list, _ := a.List("members")
			h.Want(len(list) == 200, a, "200 members, and not %d", len(list))
		}},
	{Number: "N-98", Title: "A channel has at most 50 connections", Cites: `CHANNEL "The service"; G-25`,
		Needs: kit.NeedsThorough, Run: func(h *channelProbe) {
			c := h.newChannel()
			for i := range 50 {
				h.wantOK(h.connectTo(c, fmt.Sprint("bot-", i), kit.ExampleURL), http.StatusCreated)
			}
			h.wantLimit(h.connectTo(c, "bot-50", kit.ExampleURL), "connections")
			h.wantOK(h.Remove(c.key, c.path("/connections/bot-7")), http.StatusOK)
			h.wantOK(h.connectTo(c, "bot-50", kit.ExampleURL), http.StatusCreated)
		}},
	{Number: "N-99", Title: "A callback takes 600 events in an hour, and then refuses them with 429",
		Cites: `CHANNEL "Callback"; G-25`, Needs: kit.NeedsThorough, Run: func(h *channelProbe) {
			if h.service.hooks == nil {
				h.End(kit.NotTested, "%s", needsAgent)
			}
			_, _, d := h.exchange()
			started := time.Now()
			for range 150 {
				for _, a := range h.InParallel(4, func(int) kit.Answer { return h.report(d, statusEvent("busy")) }) {
					h.wantSeq(a)
				}
			}
			a := h.report(d, statusEvent("one too many"))
			// Meanwhile the service may have allowed one more in each six seconds.
			for n := time.Since(started)/(6*time.Second) + 1; a.Status == http.StatusOK && n > 0; n-- {
				a = h.report(d, statusEvent("one too many"))
			}
			h.wantLimit(a, "callbackEvents")
		}},
}

// wantLimit ends the check unless a names this limit and says when to try again.
func (h *channelProbe) wantLimit(a kit.Answer, limit string) {
	h.wantError(a, http.StatusTooManyRequests, "RATE_LIMITED")
	h.Want(a.Object("details").Text("limit") == limit && kit.WaitsForSeconds(a), a,
		"details.limit %q, and the header Retry-After with seconds, instead of %q", limit, a.Header.Get("Retry-After"))
}
