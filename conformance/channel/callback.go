package channel

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// Good events of each type.
var (
	toolCall = kit.Message{"type": "tool_call", "name": "web_search", "args": map[string]any{"q": "oslo"},
		"id": "tc_001"}
	toolResult = kit.Message{"type": "tool_result", "id": "tc_001", "content": "3°C"}
	errorEvent = kit.Message{"type": "error", "message": "failed", "code": "tool_error"}
	lifecycle  = kit.Message{"type": "lifecycle", "status": "processing"}
)

// goodEvents returns events of all types, at both sides of their limits.
func goodEvents() []kit.Message {
	list := []kit.Message{
		toolCall, kit.With(toolCall, "args", kit.Nothing), kit.With(toolCall, "args", map[string]any{}),
		toolResult, kit.With(toolResult, "content", ""), kit.With(toolResult, "content", strings.Repeat("c", 40_000)),
		errorEvent, kit.With(errorEvent, "code", kit.Nothing), lifecycle, kit.With(lifecycle, "status", "idle"),
		messageEvent("hello"), statusEvent("reading"),
	}
	for _, b := range eventBounds {
		for _, text := range append(kit.TextsOf(b.most), "x") {
			list = append(list, kit.With(b.event, b.member, text))
		}
	}
	return list
}

// eventBounds are the texts of events that have 1 to most bytes.
var eventBounds = []struct {
	event  kit.Message
	member string
	most   int
}{
	{messageEvent(""), "content", 32_768}, {toolCall, "name", 256}, {toolCall, "id", 256}, {toolResult, "id", 256},
	{errorEvent, "message", 32_768}, {errorEvent, "code", 256}, {statusEvent(""), "status", 500},
	{lifecycle, "status", 64},
}

// badEvents returns events of known types with a bad member.
func badEvents() []kit.Message {
	list := []kit.Message{kit.With(toolResult, "content", kit.Nothing)}
	for _, b := range eventBounds {
		values := append([]any{""}, kit.NotTexts...)
		for _, text := range kit.TextsOf(b.most + 1) {
			values = append(values, text)
		}
		if b.member != "code" {
			values = append(values, kit.Nothing, nil)
		}
		for _, value := range values {
			list = append(list, kit.With(b.event, b.member, value))
		}
	}
	for _, value := range kit.NotTexts {
		list = append(list, kit.With(toolResult, "content", value))
	}
	for _, value := range []any{"text", 1, true, []any{}} {
		list = append(list, kit.With(toolCall, "args", value))
	}
	return list
}

// channelCallbackChecks test what agents report to a callback.
var channelCallbackChecks = []channelCheck{
	{Number: "N-73", Title: "Each type of event is taken at both sides of its limits, and stored as it was sent",
		Cites: `CHANNEL "Callback"; C-8`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			for _, event := range goodEvents() {
				row := h.reported(alice.channel, d, event)
				h.wantGenuine(row, "bot", "agent", "callback", 1)
				h.wantReported(row, event)
			}
		}},
	{Number: "N-74", Title: "An event of an unknown type, or without a type, is refused with 400",
		Cites: `CHANNEL "Callback"; C-9`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			for _, value := range append([]any{"", "Message", "messages", "thinking", "message ", kit.Nothing, nil},
				kit.NotTexts...) {
				h.wantInvalid(h.report(d, kit.With(kit.Message{"content": "hello", "status": "idle"}, "type", value)))
			}
			h.wantEvents(alice.channel, 1)
		}},
	{Number: "N-75", Title: "An event with a bad or missing member is refused with 400",
		Cites: `CHANNEL "Callback"; C-8`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			for _, event := range badEvents() {
				h.wantInvalid(h.report(d, event))
			}
			h.wantEvents(alice.channel, 1)
			h.wantSeq(h.report(d, statusEvent("the callback still works")))
		}},
	{Number: "N-76", Title: "Unknown members of an event are kept, in RFC 8785 form",
		Cites: `CHANNEL "Callback"`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			for _, event := range []kit.Message{messageEvent("hello"), toolCall, toolResult, errorEvent, statusEvent("reading"),
				lifecycle} {
				event = kit.With(event, "x", map[string]any{"list": []any{1, "two", nil}, "你好": true})
				h.wantReported(h.reported(alice.channel, d, event), event)
			}
			text := kit.SpliceMember(statusEvent("counting"), `"x":[1.50e1, 1E21,-0]`)
			row := h.eventAt(alice.channel, h.wantSeq(h.Write("", d.callback, text)))
			h.Want(string(row.Members["x"]) == "[15,1e+21,0]", row, `"x":[15,1e+21,0], which is the RFC 8785 form`)
		}},
	{Number: "N-77",
		Title: "Members of an event cannot change its sender, kind, via, depth, seq and ts, and not the id of a message",
		Cites: `CHANNEL "The service"; CHANNEL "Callback"`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			for _, event := range []kit.Message{messageEvent("hello"), toolCall, toolResult, errorEvent, statusEvent("reading"),
				lifecycle} {
				for name, value := range forged {
					event = kit.With(event, name, value)
				}
				row := h.reported(alice.channel, d, event)
				h.wantGenuine(row, "bot", "agent", "callback", 1)
				if event["id"] == nil {
					row = h.reported(alice.channel, d, kit.With(event, "id", "msg_"+strings.Repeat("a", 26)))
					h.Want(eventIDForm.MatchString(row.Text("id")) && row.Text("id") != "msg_"+strings.Repeat("a", 26), row,
						"the service's own id")
				}
			}
		}},
	{Number: "N-78", Title: "Events are numbered in the order of receipt", Cites: `CHANNEL "Callback"; C-10`,
		Needs: needsAgent, Run: callbackOrder},
	{Number: "N-79", Title: "An event with an Idempotency-Key is stored once, and gets 409 with another body",
		Cites: `CHANNEL "Callback"; GATEWAYS "Idempotency-Key"; G-21, G-22, G-23, G-24`, Needs: needsAgent,
		Run: callbackRepeats},
	{Number: "N-80", Title: "An unknown token is refused with 404",
		Cites: `CHANNEL "Callback"; GATEWAYS "Keys of callers"`,
		Needs: needsAgent, Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			last := d.callback[len(d.callback)-1:]
			for _, target := range []string{alice.path("/inbox/" + kit.UnknownToken), alice.path("/inbox/x"),
				alice.path("/inbox/tok_"), d.callback[:len(d.callback)-1], d.callback + "A",
				strings.TrimSuffix(d.callback, last) + map[bool]string{true: "B", false: "A"}[last == "A"]} {
				h.wantUnknown(h.Write("", target, statusEvent("reading")))
			}
			h.wantEvents(alice.channel, 1)
		}},
	{Number: "N-81", Title: "A token is worth nothing for another channel", Cites: `CHANNEL "Callback"; C-12`,
		Needs: needsAgent, Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			other, _, _ := h.exchange()
			token := strings.TrimPrefix(d.callback, alice.path("/inbox/"))
			h.wantUnknown(h.Write("", other.path("/inbox/"+token), messageEvent("hello")))
			h.wantUnknown(h.Write("", unknownChannel.path("/inbox/"+token), messageEvent("hello")))
			h.wantEvents(other.channel, 1)
			h.wantEvents(alice.channel, 1)
			h.wantSeq(h.report(d, statusEvent("the callback still works")))
		}},
	{Number: "N-82", Title: "After DELETE of its connection a callback is 410",
		Cites: `CHANNEL "Callback"; C-11`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			other := h.agent(alice.channel, "other", kit.ReplyOK)
			kept := h.deliver(alice, other)
			h.wantSeq(h.report(d, statusEvent("before")))
			h.wantOK(h.Remove(alice.channel.key, alice.path("/connections/bot")), http.StatusOK)
			h.wantGone(h.report(d, statusEvent("after")))
			h.wantOK(h.connectTo(alice.channel, "bot", kit.ExampleURL), http.StatusCreated)
			h.wantGone(h.report(d, statusEvent("after another connection has the name")))
			h.wantSeq(h.report(kept, statusEvent("the other connection")))
			h.wantEvents(alice.channel, 4)
		}},
	{Number: "N-83", Title: "A callback works while the agent has not answered the delivery yet",
		Cites: `CHANNEL "Callback"`, Needs: needsAgent, Wait: time.Second, Run: func(h *channelProbe) {
			h.beSlow()
			alice := h.talk()
			bot := h.agent(alice.channel, "bot", kit.HookReply{After: 2 * time.Second})
			h.say(alice, "hello")
			calls := h.WaitForCalls(bot.Hook, 1, kit.PromptLimit, func(kit.HookCall) bool { return true })
			d := h.delivery(calls[0])
			h.wantSeq(h.report(d, statusEvent("reading")))
			h.initialize(d)
			h.Expect("all this before the agent answers")
			if !bot.Seen()[0].Ended.IsZero() {
				h.End(kit.Skipped, "the requests took longer than %v", 2*time.Second)
			}
		}},
}

// wantReported ends the check unless row has all members of an event as they were sent.
func (h *channelProbe) wantReported(row kit.Answer, event kit.Message) {
	for name, value := range event {
		h.Want(row.Members[name] != nil && kit.SameJSON(row.Members[name], value), row, "%q as it was sent: %s", name,
			kit.Excerpt(kit.Canonical(value), 300))
	}
	if event["id"] == nil {
		h.Want(eventIDForm.MatchString(row.Text("id")), row, "an id such as msg_ and 26 characters of base32")
	}
}

func callbackOrder(h *channelProbe) {
	alice, elsewhere := h.talk(), h.talk()
	first, second := h.agent(alice.channel, "first", kit.ReplyOK), h.agent(alice.channel, "second", kit.ReplyOK)
	h.sayTo(2, alice, "hello")
	callbacks := []channelDelivery{h.received(first, 1, kit.PromptLimit)[0], h.received(second, 1, kit.PromptLimit)[0]}
	for i := 2; i <= 7; i++ {
		h.sayTo(0, elsewhere, "in another channel") // each channel has its own numbers
		seq := h.wantSeq(h.report(callbacks[i%2], statusEvent(fmt.Sprint(i))))
		h.Expect("the seq %d", i)
		if seq != float64(i) {
			h.Failf("the seq %v", seq)
		}
	}
	var seqs []float64
	for i, a := range h.InParallel(8, func(i int) kit.Answer {
		return h.report(callbacks[i%2],
			statusEvent(fmt.Sprint(i)))
	}) {
		seq := h.wantSeq(a)
		h.Expect("another seq for each event")
		if slices.Contains(seqs, seq) {
			h.Failf("the seq %v twice", seq)
		}
		seqs = append(seqs, seq)
		row := h.eventAt(alice.channel, seq)
		h.Want(row.Text("status") == fmt.Sprint(i), row, "the event %d", i)
	}
	for i, row := range h.wantEvents(alice.channel, 15) {
		h.Want(row.Number("seq") == float64(i+1), row, "the seq %d", i+1)
	}
}

func callbackRepeats(h *channelProbe) {
	alice, _, d := h.exchange()
	id := kit.NewID("repeat")
	report := func(d channelDelivery, body any) kit.Answer {
		return h.Ask("Idempotency-Key: "+id, http.MethodPost, d.callback, "", http.Header{"Idempotency-Key": {id}}, body)
	}
	h.wantInvalid(report(d, statusEvent("")))
	first := report(d, messageEvent("once"))
	h.wantSeq(first)
	h.wantReplay(report(d, messageEvent("once")), first)
	h.wantReplay(report(d, []byte(` {"content":"\u006fnce" , "type":"message"}`)), first)
	h.wantConflict(report(d, messageEvent("twice")))
	h.wantEvents(alice.channel, 2)
	other := h.deliver(alice, h.agent(alice.channel, "other", kit.ReplyOK))
	h.wantSeq(report(other, messageEvent("from another agent")))
	h.wantEvents(alice.channel, 4)
}
