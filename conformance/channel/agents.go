package channel

import (
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// channelDelivery is a message as an agent has received it.
type channelDelivery struct {
	kit.HookCall
	id       string // of the message
	callback string // the target of the callback, relative to the service's address
	mcp      string // the target of the MCP server, relative to the service's address; empty: there is none
	token    string // for the MCP server
}

var (
	callbackForm = regexp.MustCompile(`^(https?://.+)(/channels/ch_[a-z2-7]{26}/inbox/tok_[A-Za-z0-9_-]{43})$`)
	mcpURLForm   = regexp.MustCompile(`^(https?://.+)(/mcp/ch_[a-z2-7]{26})$`)
	mcpKeyForm   = regexp.MustCompile(`^Bearer (mt_[A-Za-z0-9_-]{43})$`)
)

// delivery ends the check unless a call is a delivery with a callback. It returns the delivery.
func (h *channelProbe) delivery(call kit.HookCall) channelDelivery {
	h.Expect("a delivery with a message and a callback such as {B}/channels/ch_…/inbox/tok_…")
	d := channelDelivery{HookCall: call, id: call.Body.Object("message").Text("id")}
	found := callbackForm.FindStringSubmatch(call.Body.Text("callback"))
	if found == nil || d.id == "" {
		h.Failf("%s", kit.Excerpt(call.Body.Body, 600))
	}
	d.callback = found[2]
	server := call.Body.Object("mcp")
	if list, ok := call.Body.List("mcp"); ok && len(list) == 1 {
		server = kit.ParseRow(list[0])
	}
	if call.Body.Members["mcp"] == nil {
		return d
	}
	h.Expect(`mcp has a url such as {B}/mcp/ch_… and the header "Authorization":"Bearer mt_…"`)
	mcpURL := mcpURLForm.FindStringSubmatch(server.Text("url"))
	key := mcpKeyForm.FindStringSubmatch(server.Object("headers").Text("Authorization"))
	if mcpURL == nil || key == nil {
		h.Failf("%s", kit.Excerpt(call.Body.Body, 600))
	}
	h.Want(mcpURL[1] == found[1], call.Body, "callback and mcp have the same address of the service")
	d.mcp, d.token = mcpURL[2], key[1]
	return d
}

// received waits until an agent has taken n deliveries, and returns all of them.
func (h *channelProbe) received(a *agent, n int, within time.Duration) (list []channelDelivery) {
	for _, call := range h.WantCalls(a.Hook, n, within) {
		list = append(list, h.delivery(call))
	}
	return list
}

// wantIDs ends the check unless these deliveries are about these events, in this order.
func (h *channelProbe) wantIDs(list []channelDelivery, events ...kit.Answer) {
	var want, got []string
	for _, e := range events {
		want = append(want, e.Text("id"))
	}
	for _, d := range list {
		got = append(got, d.id)
	}
	h.Expect("deliveries of %s, in this order", strings.Join(want, ", "))
	if strings.Join(got, " ") != strings.Join(want, " ") {
		h.Failf("deliveries of %s", strings.Join(got, ", "))
	}
}

// exchange creates a channel with the member alice and the agent bot, and lets alice say something to bot.
func (h *channelProbe) exchange() (alice *member, bot *agent, d channelDelivery) {
	alice = h.talk()
	bot = h.agent(alice.channel, "bot", kit.ReplyOK)
	return alice, bot, h.deliver(alice, bot)
}

// deliver lets a member say something, and returns how the agent received it. The agent must have received nothing yet.
func (h *channelProbe) deliver(m *member, a *agent) channelDelivery {
	h.say(m, "hello, "+a.name)
	return h.received(a, 1, kit.PromptLimit)[0]
}

// report sends an event to the callback of a delivery, without Authorization.
func (h *channelProbe) report(d channelDelivery, event kit.Message) kit.Answer {
	return h.Write("", d.callback, event)
}

// wantSeq ends the check unless a is the answer to an accepted event. It returns the number of the event.
func (h *channelProbe) wantSeq(a kit.Answer) float64 {
	h.wantOK(a, http.StatusOK)
	h.Want(a.Number("seq") >= 1, a, `{"ok":true,"seq":…}`)
	return a.Number("seq")
}

// reported sends an event, which the service must accept, and returns it as it is stored.
func (h *channelProbe) reported(c *channel, d channelDelivery, event kit.Message) kit.Answer {
	return h.eventAt(c, h.wantSeq(h.report(d, event)))
}

func statusEvent(text string) kit.Message  { return kit.Message{"type": "status", "status": text} }
func messageEvent(text string) kit.Message { return kit.Message{"type": "message", "content": text} }

// beSlow waits until the check may have agents that answer late.
func (h *channelProbe) beSlow() {
	if h.slow {
		return
	}
	select {
	case h.service.slow <- struct{}{}:
		h.slow = true
	case <-h.Ctx.Done():
		h.Stopped()
	}
}
