package conformance

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Good events of each type.
var (
	toolCall   = message{"type": "tool_call", "name": "web_search", "args": map[string]any{"q": "oslo"}, "id": "tc_001"}
	toolResult = message{"type": "tool_result", "id": "tc_001", "content": "3°C"}
	errorEvent = message{"type": "error", "message": "failed", "code": "tool_error"}
	lifecycle  = message{"type": "lifecycle", "status": "processing"}
)

// goodEvents returns events of all types, at both sides of their limits.
func goodEvents() []message {
	list := []message{
		toolCall, with(toolCall, "args", nothing), with(toolCall, "args", map[string]any{}),
		toolResult, with(toolResult, "content", ""), with(toolResult, "content", strings.Repeat("c", 40_000)),
		errorEvent, with(errorEvent, "code", nothing), lifecycle, with(lifecycle, "status", "idle"),
		messageEvent("hello"), statusEvent("reading"),
	}
	for _, b := range eventBounds {
		for _, text := range append(textsOf(b.most), "x") {
			list = append(list, with(b.event, b.member, text))
		}
	}
	return list
}

// eventBounds are the texts of events that have 1 to most bytes.
var eventBounds = []struct {
	event  message
	member string
	most   int
}{
	{messageEvent(""), "content", 32_768}, {toolCall, "name", 256}, {toolCall, "id", 256}, {toolResult, "id", 256},
	{errorEvent, "message", 32_768}, {errorEvent, "code", 256}, {statusEvent(""), "status", 500},
	{lifecycle, "status", 64},
}

// badEvents returns events of known types with a bad member.
func badEvents() []message {
	list := []message{with(toolResult, "content", nothing)}
	for _, b := range eventBounds {
		values := append([]any{""}, notTexts...)
		for _, text := range textsOf(b.most + 1) {
			values = append(values, text)
		}
		if b.member != "code" {
			values = append(values, nothing, nil)
		}
		for _, value := range values {
			list = append(list, with(b.event, b.member, value))
		}
	}
	for _, value := range notTexts {
		list = append(list, with(toolResult, "content", value))
	}
	for _, value := range []any{"text", 1, true, []any{}} {
		list = append(list, with(toolCall, "args", value))
	}
	return list
}

// channelCallbackChecks test what agents report to a callback.
var channelCallbackChecks = []channelCheck{
	{number: "N-73", title: "Each type of event is taken at both sides of its limits, and stored as it was sent",
		cites: `CHANNEL "Callback"; C-8`, needs: needsAgent, run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			for _, event := range goodEvents() {
				row := h.reported(alice.channel, d, event)
				h.wantGenuine(row, "bot", "agent", "callback", 1)
				h.wantReported(row, event)
			}
		}},
	{number: "N-74", title: "An event of an unknown type, or without a type, is refused with 400",
		cites: `CHANNEL "Callback"; C-9`, needs: needsAgent, run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			for _, value := range append([]any{"", "Message", "messages", "thinking", "message ", nothing, nil}, notTexts...) {
				h.wantInvalid(h.report(d, with(message{"content": "hello", "status": "idle"}, "type", value)))
			}
			h.wantEvents(alice.channel, 1)
		}},
	{number: "N-75", title: "An event with a bad or missing member is refused with 400",
		cites: `CHANNEL "Callback"; C-8`, needs: needsAgent, run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			for _, event := range badEvents() {
				h.wantInvalid(h.report(d, event))
			}
			h.wantEvents(alice.channel, 1)
			h.wantSeq(h.report(d, statusEvent("the callback still works")))
		}},
	{number: "N-76", title: "Unknown members of an event are kept, in RFC 8785 form",
		cites: `CHANNEL "Callback"`, needs: needsAgent, run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			for _, event := range []message{messageEvent("hello"), toolCall, toolResult, errorEvent, statusEvent("reading"),
				lifecycle} {
				event = with(event, "x", map[string]any{"list": []any{1, "two", nil}, "你好": true})
				h.wantReported(h.reported(alice.channel, d, event), event)
			}
			text := spliceMember(statusEvent("counting"), `"x":[1.50e1, 1E21,-0]`)
			row := h.eventAt(alice.channel, h.wantSeq(h.write("", d.callback, text)))
			h.want(string(row.members["x"]) == "[15,1e+21,0]", row, `"x":[15,1e+21,0], which is the RFC 8785 form`)
		}},
	{number: "N-77",
		title: "Members of an event cannot change its sender, kind, via, depth, seq and ts, and not the id of a message",
		cites: `CHANNEL "The service"; CHANNEL "Callback"`, needs: needsAgent, run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			for _, event := range []message{messageEvent("hello"), toolCall, toolResult, errorEvent, statusEvent("reading"),
				lifecycle} {
				for name, value := range forged {
					event = with(event, name, value)
				}
				row := h.reported(alice.channel, d, event)
				h.wantGenuine(row, "bot", "agent", "callback", 1)
				if event["id"] == nil {
					row = h.reported(alice.channel, d, with(event, "id", "msg_"+strings.Repeat("a", 26)))
					h.want(eventIDForm.MatchString(row.text("id")) && row.text("id") != "msg_"+strings.Repeat("a", 26), row,
						"the service's own id")
				}
			}
		}},
	{number: "N-78", title: "Events are numbered in the order of receipt", cites: `CHANNEL "Callback"; C-10`,
		needs: needsAgent, run: callbackOrder},
	{number: "N-79", title: "An event with an Idempotency-Key is stored once, and gets 409 with another body",
		cites: `CHANNEL "Callback"; GATEWAYS "Idempotency-Key"; G-21, G-22, G-23, G-24`, needs: needsAgent, run: callbackRepeats},
	{number: "N-80", title: "An unknown token is refused with 404", cites: `CHANNEL "Callback"; GATEWAYS "Keys of callers"`,
		needs: needsAgent, run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			last := d.callback[len(d.callback)-1:]
			for _, target := range []string{alice.path("/inbox/" + unknownToken), alice.path("/inbox/x"),
				alice.path("/inbox/tok_"), d.callback[:len(d.callback)-1], d.callback + "A",
				strings.TrimSuffix(d.callback, last) + map[bool]string{true: "B", false: "A"}[last == "A"]} {
				h.wantUnknown(h.write("", target, statusEvent("reading")))
			}
			h.wantEvents(alice.channel, 1)
		}},
	{number: "N-81", title: "A token is worth nothing for another channel", cites: `CHANNEL "Callback"; C-12`,
		needs: needsAgent, run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			other, _, _ := h.exchange()
			token := strings.TrimPrefix(d.callback, alice.path("/inbox/"))
			h.wantUnknown(h.write("", other.path("/inbox/"+token), messageEvent("hello")))
			h.wantUnknown(h.write("", unknownChannel.path("/inbox/"+token), messageEvent("hello")))
			h.wantEvents(other.channel, 1)
			h.wantEvents(alice.channel, 1)
			h.wantSeq(h.report(d, statusEvent("the callback still works")))
		}},
	{number: "N-82", title: "After DELETE of its connection a callback is 410",
		cites: `CHANNEL "Callback"; C-11`, needs: needsAgent, run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			other := h.agent(alice.channel, "other", replyOK)
			kept := h.deliver(alice, other)
			h.wantSeq(h.report(d, statusEvent("before")))
			h.wantOK(h.remove(alice.channel.key, alice.path("/connections/bot")), http.StatusOK)
			h.wantGone(h.report(d, statusEvent("after")))
			h.wantOK(h.connectTo(alice.channel, "bot", exampleURL), http.StatusCreated)
			h.wantGone(h.report(d, statusEvent("after another connection has the name")))
			h.wantSeq(h.report(kept, statusEvent("the other connection")))
			h.wantEvents(alice.channel, 4)
		}},
	{number: "N-83", title: "A callback works while the agent has not answered the delivery yet",
		cites: `CHANNEL "Callback"`, needs: needsAgent, wait: time.Second, run: func(h *channelProbe) {
			h.beSlow()
			alice := h.talk()
			bot := h.agent(alice.channel, "bot", hookReply{after: 2 * second})
			h.say(alice, "hello")
			calls := h.waitForCalls(bot.hook, 1, promptLimit, func(hookCall) bool { return true })
			d := h.delivery(calls[0])
			h.wantSeq(h.report(d, statusEvent("reading")))
			h.initialize(d)
			h.expect("all this before the agent answers")
			if !bot.seen()[0].ended.IsZero() {
				h.end(Skipped, "the requests took longer than %v", 2*second)
			}
		}},
}

// wantReported ends the check unless row has all members of an event as they were sent.
func (h *channelProbe) wantReported(row answer, event message) {
	for name, value := range event {
		h.want(row.members[name] != nil && sameJSON(row.members[name], value), row, "%q as it was sent: %s", name,
			excerpt(canonical(value), 300))
	}
	if event["id"] == nil {
		h.want(eventIDForm.MatchString(row.text("id")), row, "an id such as msg_ and 26 characters of base32")
	}
}

func callbackOrder(h *channelProbe) {
	alice, elsewhere := h.talk(), h.talk()
	first, second := h.agent(alice.channel, "first", replyOK), h.agent(alice.channel, "second", replyOK)
	h.sayTo(2, alice, "hello")
	callbacks := []channelDelivery{h.received(first, 1, promptLimit)[0], h.received(second, 1, promptLimit)[0]}
	for i := 2; i <= 7; i++ {
		h.sayTo(0, elsewhere, "in another channel") // each channel has its own numbers
		seq := h.wantSeq(h.report(callbacks[i%2], statusEvent(fmt.Sprint(i))))
		h.expect("the seq %d", i)
		if seq != float64(i) {
			h.failf("the seq %v", seq)
		}
	}
	var seqs []float64
	for i, a := range h.inParallel(8, func(i int) answer { return h.report(callbacks[i%2], statusEvent(fmt.Sprint(i))) }) {
		seq := h.wantSeq(a)
		h.expect("another seq for each event")
		if slices.Contains(seqs, seq) {
			h.failf("the seq %v twice", seq)
		}
		seqs = append(seqs, seq)
		row := h.eventAt(alice.channel, seq)
		h.want(row.text("status") == fmt.Sprint(i), row, "the event %d", i)
	}
	for i, row := range h.wantEvents(alice.channel, 15) {
		h.want(row.number("seq") == float64(i+1), row, "the seq %d", i+1)
	}
}

func callbackRepeats(h *channelProbe) {
	alice, _, d := h.exchange()
	id := newID("repeat")
	report := func(d channelDelivery, body any) answer {
		return h.ask("Idempotency-Key: "+id, http.MethodPost, d.callback, "", http.Header{"Idempotency-Key": {id}}, body)
	}
	h.wantInvalid(report(d, statusEvent("")))
	first := report(d, messageEvent("once"))
	h.wantSeq(first)
	h.wantReplay(report(d, messageEvent("once")), first)
	h.wantReplay(report(d, []byte(` {"content":"\u006fnce" , "type":"message"}`)), first)
	h.wantConflict(report(d, messageEvent("twice")))
	h.wantEvents(alice.channel, 2)
	other := h.deliver(alice, h.agent(alice.channel, "other", replyOK))
	h.wantSeq(report(other, messageEvent("from another agent")))
	h.wantEvents(alice.channel, 4)
}
