package hub

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// hubWebhookChecks test what a hub sends to a webhook, and what a reply does. A hub waits a second or more before it
// repeats a call, so these checks count as waiting ones.
var hubWebhookChecks = []hubCheck{
	{Number: "hub.webhook.request",
		Title: "A webhook gets POST with the envelope alone, and the trace_id in two headers",
		Cites: `HUB "Webhooks"; GATEWAYS "Requests to other servers"`, Needs: kit.NeedsWebhook, Run: func(h *hubProbe) {
			alice, bob := h.two()
			k := h.hook(kit.ReplyOK)
			h.listenAt(bob, k)
			m := h.sendWith(alice, bob, kit.Set("envelope.original_text", "<你好>"+kit.Astral), kit.Set("envelope.turn_number", 7))
			call := h.WantCalls(k, 1, kit.PromptLimit)[0]
			h.Expect("POST with {\"envelope\":…} and Content-Type: application/json; Chorus-Trace-Id and "+
				"Idempotency-Key are %s", m.trace)
			if call.Method != http.MethodPost || call.Trace != m.trace ||
				call.Header.Get("Idempotency-Key") != m.trace ||
				!strings.HasPrefix(call.Header.Get("Content-Type"), "application/json") {
				h.Failf("%s with the header %v", call.Method, call.Header)
			}
			if len(call.Body.Members) != 1 || !kit.SameJSON(call.Body.Members["envelope"], m.envelope) {
				h.Failf("the body %s", kit.Excerpt(call.Body.Body, 600))
			}
			if call.Header.Get("Authorization") != "" || call.Header.Get("Cookie") != "" {
				h.Failf("a header with a key: %v", call.Header)
			}
		}},
	{Number: "hub.webhook.ok", Title: "The reply status ok gets 200 with delivered and the receiver_response",
		Cites: `HUB "Webhooks"; H-10, H-30`, Needs: kit.NeedsWebhook, Run: func(h *hubProbe) {
			alice, bob := h.two()
			k := h.hook(kit.HookReply{Body: `{"status":"ok","other":"53cr3t"}`})
			h.listenAt(bob, k)
			m := h.send(alice, bob, "to a webhook")
			h.wantDelivery(m, http.StatusOK, "delivered", "delivered")
			h.Want(kit.SameJSON(m.data.Members["receiver_response"], map[string]any{"status": "ok"}), m.answer,
				`receiver_response is {"status":"ok"}, without other members of the reply`)
			row := h.keepsState(m, "delivered")
			h.Want(row.Text("delivered_via") == "webhook" &&
				kit.SameJSON(row.Members["receiver_response"], map[string]any{"status": "ok"}), row,
				"delivered_via webhook, and the receiver_response")
			h.WantNoMoreCalls(k, 1)
			h.wantOnly(h.open(bob, ""))
		}},
	{Number: "hub.webhook.other-success",
		Title: "A reply 2xx without such a status confirms, and receiver_response is null",
		Cites: `HUB "Webhooks"; H-30`, Needs: kit.NeedsWebhook, Run: func(h *hubProbe) {
			alice, bob := h.two()
			for _, reply := range []kit.HookReply{{Body: "{}"}, {Body: "thanks"}, {Body: `{"received":true}`},
				{Status: http.StatusAccepted, Body: "[]"}} {
				h.listenAt(bob, h.hook(reply))
				m := h.send(alice, bob, "to a webhook that answers "+reply.Body)
				h.wantDelivery(m, http.StatusOK, "delivered", "delivered")
				h.Want(string(m.data.Members["receiver_response"]) == "null", m.answer, `"receiver_response":null`)
			}
		}},
	{Number: "hub.webhook.error",
		Title: "A reply status error with 2xx or 4xx is final: 200 failed with its code and detail",
		Cites: `HUB "Webhooks"; H-10, H-30`, Needs: kit.NeedsWebhook, Run: func(h *hubProbe) {
			alice, bob := h.two()
			for _, status := range []int{http.StatusOK, http.StatusBadRequest, http.StatusUnprocessableEntity} {
				k := h.hook(kit.HookReply{Status: status, Body: `{"status":"error","error_code":"INVALID_ENVELOPE",` +
					`"detail":"missing sender_culture","other":"53cr3t"}`})
				h.listenAt(bob, k)
				m := h.send(alice, bob, "to a webhook that refuses it")
				h.wantFailed(m, "INVALID_ENVELOPE", "missing sender_culture")
				h.WantNoText(m.answer, "no other member of the reply", "53cr3t")
				h.WantNoMoreCalls(k, 1)
			}
		}},
	{Number: "hub.webhook.cut",
		Title: "The texts of a reply are cut at 1,000 code units", Cites: `HUB "Webhooks"; H-30`,
		Needs: kit.NeedsWebhook, Run: func(h *hubProbe) {
			alice, bob := h.two()
			h.listenAt(bob, h.hook(kit.HookReply{Body: fmt.Sprintf(`{"status":"error","error_code":%q,"detail":%q}`,
				strings.Repeat("E", 1001), strings.Repeat(wide, 3000))}))
			h.wantFailed(h.send(alice, bob, "refused with long texts"), strings.Repeat("E", 1000),
				strings.Repeat(wide, 1000))
		}},
	{Number: "hub.webhook.refused",
		Title: "3xx, and 4xx without JSON, are final: failed with ERR_AGENT_UNREACHABLE and HTTP nnn",
		Cites: `HUB "Webhooks"; H-30, G-16`, Needs: kit.NeedsWebhook, Run: func(h *hubProbe) {
			alice, bob := h.two()
			elsewhere := h.hook(kit.ReplyOK)
			for _, reply := range []kit.HookReply{{Status: http.StatusNotFound, Body: "not here"},
				{Status: http.StatusGone, Body: ""},
				{Status: http.StatusFound, Header: http.Header{"Location": {elsewhere.URL}}},
				{Status: http.StatusPermanentRedirect, Header: http.Header{"Location": {elsewhere.URL}}}} {
				k := h.hook(reply)
				h.listenAt(bob, k)
				m := h.send(alice, bob, "to a webhook that is not there")
				h.wantFailed(m, "ERR_AGENT_UNREACHABLE", fmt.Sprintf("HTTP %d", reply.Status))
				h.WantNoMoreCalls(k, 1)
			}
			h.WantNoMoreCalls(elsewhere, 0)
		}},
	{Number: "hub.webhook.retry",
		Title: "After 5xx the call is repeated with the same id, and the state becomes delivered",
		Cites: `HUB "Webhooks"; GATEWAYS "Outbox"; H-10, H-30`, Needs: kit.NeedsWebhook, Wait: 3 * time.Second,
		Run: retriedWebhook},
	{Number: "hub.webhook.unreachable",
		Title: "If nothing listens, the message stays queued with ERR_AGENT_UNREACHABLE",
		Cites: `HUB "Webhooks"; GATEWAYS "Outbox"; H-10, G-16`, Needs: kit.NeedsWebhook, Wait: 3 * time.Second,
		Run: unreachableWebhook},
	{Number: "hub.webhook.slow",
		Title: "A webhook may answer after the sender's 15 s; then its sender has 202, and it is called once",
		Cites: `HUB "Webhooks"; H-33`, Needs: kit.NeedsWebhook, Wait: 22 * time.Second, Run: slowWebhook(20 * time.Second)},
	{Number: "hub.webhook.minute", Title: "A webhook that answers after more than a minute is called once",
		Cites: `HUB "Webhooks"; H-32`, Needs: kit.NeedsWebhook, Wait: 64 * time.Second, Run: func(h *hubProbe) {
			if !h.hub.Thorough {
				h.End(kit.NotTested, kit.NeedsThorough)
			}
			slowWebhook(62 * time.Second)(h)
		}},
	{Number: "hub.webhook.online",
		Title: "An agent is online after a webhook reply", Cites: `HUB "Endpoints"`, Needs: kit.NeedsWebhook,
		Run: func(h *hubProbe) {
			alice, bob := h.two()
			h.listenAt(bob, h.hook(kit.ReplyOK))
			h.send(alice, bob, "to a webhook")
			h.wantOnline(bob, true, kit.PromptLimit)
		}},
}

// wantFailed ends the check unless the POST of m got 200 with a final failure.
func (h *hubProbe) wantFailed(m sentMessage, code, detail string) {
	h.wantDelivery(m, http.StatusOK, "failed", "failed")
	h.Want(m.data.Text("error_code") == code && m.data.Text("detail") == detail, m.answer,
		"the error_code %q and the detail %q", kit.Excerpt([]byte(code), 40), kit.Excerpt([]byte(detail), 40))
	row := h.keepsState(m, "failed")
	h.Want(row.Text("error_code") == code && row.Text("detail") == detail, row, "the same error_code and detail")
}

// retriedWebhook fails the first call of each message. The hub may answer the sender after that call, or wait for the
// next one.
func retriedWebhook(h *hubProbe) {
	alice, bob := h.two()
	for _, first := range []kit.HookReply{{Status: http.StatusServiceUnavailable, Body: "busy"},
		{Status: http.StatusInternalServerError,
			Body: `{"status":"error","error_code":"INTERNAL","detail":"crashed"}`}} {
		k := h.hookWith(func(call int) kit.HookReply {
			if call == 1 {
				return first
			}
			return kit.ReplyOK
		})
		h.listenAt(bob, k)
		m := h.send(alice, bob, "to a webhook that fails once")
		if m.answer.Status == http.StatusAccepted {
			h.wantDelivery(m, http.StatusAccepted, "queued", "queued")
			h.Want(m.data.Text("error_code") != "" && m.data.Text("detail") != "", m.answer,
				"error_code and detail of the first attempt")
		} else {
			h.wantDelivery(m, http.StatusOK, "delivered", "delivered")
		}
		calls := h.WantCalls(k, 2, 2*kit.PromptLimit)
		h.Expect("the second call about 2 s after the first one, with the same Chorus-Trace-Id and Idempotency-Key")
		pause := calls[1].Began.Sub(calls[0].Ended)
		if pause < 1500*time.Millisecond || calls[1].Trace != m.trace ||
			calls[1].Header.Get("Idempotency-Key") != m.trace {
			h.Failf("after %v with %q", pause.Round(time.Millisecond), calls[1].Trace)
		}
		h.wantState(m, "delivered")
		h.WantNoMoreCalls(k, 2)
	}
}

// unreachableWebhook names a port of the webhook's host at which nothing listens.
func unreachableWebhook(h *hubProbe) {
	if h.hub.WebhookURL != "" {
		h.End(kit.NotTested, "this needs webhooks that the hub reaches without --webhook-url")
	}
	listener, err := net.Listen("tcp", h.hub.hooks.Address)
	if err != nil {
		h.End(kit.Skipped, "cannot find a free port: %v", err)
	}
	_ = listener.Close() // now nothing listens there
	alice, bob := h.two()
	h.rotate(bob, kit.Set("endpoint", "http://"+listener.Addr().String()+"/"))
	m := h.send(alice, bob, "to a port where nothing listens")
	h.wantDelivery(m, http.StatusAccepted, "queued", "queued")
	h.Want(m.data.Text("error_code") == "ERR_AGENT_UNREACHABLE" && m.data.Text("detail") == "unreachable", m.answer,
		`the error_code ERR_AGENT_UNREACHABLE and the detail "unreachable"`)
	h.wantOnly(h.open(bob, ""), m)
}

// slowWebhook returns a check of a webhook that answers after a time of more than 15 s.
func slowWebhook(after time.Duration) func(*hubProbe) {
	return func(h *hubProbe) {
		alice, bob := h.two()
		k := h.hook(kit.HookReply{Body: kit.ReplyOK.Body, After: after})
		h.listenAt(bob, k)
		body := letter(alice, bob, "to a slow webhook")
		started := time.Now()
		a := h.Write(alice.key, "/messages", body)
		waited := time.Since(started)
		m := h.accepted(alice, bob, body, a)
		h.wantDelivery(m, http.StatusAccepted, "queued", "queued")
		h.Expect("the answer after about 15 s")
		if waited < senderWaits-2*time.Second || waited > senderWaits+kit.PromptLimit {
			h.Failf("it came after %v", waited.Round(time.Second/10))
		}
		h.WantCalls(k, 1, after)
		row := h.wantState(m, "delivered")
		h.Want(row.Text("delivered_via") == "webhook", row, "delivered_via webhook")
		h.WantNoMoreCalls(k, 1)
	}
}

// hubLaneChecks test the order of webhooks, and what streams, registrations and deletions do to waiting ones.
var hubLaneChecks = []hubCheck{
	{Number: "hub.lane.order", Title: "The webhook of one receiver is called in the order of id, one call at a time",
		Cites: `HUB "Webhooks"; H-28`, Needs: kit.NeedsWebhook, Wait: 3 * time.Second, Run: func(h *hubProbe) {
			alice, carol, bob := h.three()
			k := h.hookWith(func(call int) kit.HookReply {
				if call == 3 {
					return kit.HookReply{Status: http.StatusServiceUnavailable, After: kit.Quiet / 4}
				}
				return kit.HookReply{Body: kit.ReplyOK.Body, After: kit.Quiet / 4}
			})
			h.listenAt(bob, k)
			h.InParallel(8, func(i int) kit.Answer {
				from := []*hubAgent{alice, carol}[i%2]
				return h.Write(from.key, "/messages", letter(from, bob, fmt.Sprint(i)))
			})
			calls := h.WantCalls(k, 9, 2*kit.PromptLimit)
			var want []string
			for _, row := range h.history(bob) {
				want = append(want, row.Text("trace_id"))
			}
			h.Expect("8 messages in the order of id; the third one twice, because its first call failed: %v", want)
			var got []string
			for i, call := range calls {
				if call.Overlapped {
					h.Failf("call %d began before the one before it had ended", i+1)
				}
				if i != 3 {
					got = append(got, call.Trace)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) || calls[3].Trace != calls[2].Trace {
				h.Failf("%v", got)
			}
		}},
	{Number: "hub.lane.stream-first",
		Title: "An open stream is preferred to the webhook", Cites: `HUB "Webhooks"`, Needs: kit.NeedsWebhook,
		Run: func(h *hubProbe) {
			alice, bob := h.two()
			k := h.hook(kit.ReplyOK)
			h.listenAt(bob, k)
			s := h.open(bob, "")
			m := h.send(alice, bob, "to a stream and not to the webhook")
			h.wantMessages(s, m)
			h.wantDelivery(m, http.StatusOK, "delivered_sse", "sent")
			h.WantNoMoreCalls(k, 0)
		}},
	{Number: "hub.lane.takeover", Title: "A stream that opens takes over what waits for the webhook",
		Cites: `HUB "Webhooks"; H-31`, Needs: kit.NeedsWebhook, Wait: 4 * time.Second, Run: func(h *hubProbe) {
			alice, bob := h.two()
			k := h.hook(kit.HookReply{Status: http.StatusServiceUnavailable, Header: http.Header{"Retry-After": {"3"}}})
			h.listenAt(bob, k)
			first := h.sendInBackground(alice, bob, "waits for the webhook")
			h.WantCalls(k, 1, kit.PromptLimit)
			second := h.sendInBackground(alice, bob, "waits behind it")
			h.Sleep(kit.Quiet)
			s := h.open(bob, "")
			taken := first()
			h.wantOnly(s, taken, second())
			h.wantState(taken, "sent")
			h.Sleep(3 * time.Second)
			h.WantNoMoreCalls(k, 1)
		}},
	{Number: "hub.lane.retry-after",
		Title: "A webhook is not called again before its Retry-After", Cites: `GATEWAYS "Outbox"; G-20`,
		Needs: kit.NeedsWebhook, Wait: 6 * time.Second, Run: func(h *hubProbe) {
			alice, bob := h.two()
			k := h.hookWith(func(call int) kit.HookReply {
				if call == 1 {
					return kit.HookReply{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"5"}}}
				}
				return kit.ReplyOK
			})
			h.listenAt(bob, k)
			m := h.send(alice, bob, "to a busy webhook")
			calls := h.WantCalls(k, 2, 5*time.Second+2*kit.PromptLimit)
			h.Expect("the second call 5 s after the first one")
			if pause := calls[1].Began.Sub(calls[0].Ended); pause < 4900*time.Millisecond {
				h.Failf("after %v", pause.Round(time.Millisecond))
			}
			h.wantState(m, "delivered")
		}},
	{Number: "hub.lane.current", Title: "The URL of the current registration is called", Cites: `HUB "Webhooks"`,
		Needs: kit.NeedsWebhook, Wait: 3 * time.Second, Run: func(h *hubProbe) {
			alice, bob := h.two()
			old, current := h.hook(kit.HookReply{Status: http.StatusServiceUnavailable}), h.hook(kit.ReplyOK)
			h.listenAt(bob, old)
			waiting := h.sendInBackground(alice, bob, "waits for the webhook")
			h.WantCalls(old, 1, kit.PromptLimit)
			h.listenAt(bob, current)
			h.WantCalls(current, 1, 2*kit.PromptLimit)
			h.wantState(waiting(), "delivered")
			h.wantDelivery(h.send(alice, bob, "to the current webhook"), http.StatusOK, "delivered", "delivered")
			h.WantNoMoreCalls(old, 1)
		}},
	{Number: "hub.lane.deleted", Title: "DELETE fails what waits for the webhook, and it is not called again",
		Cites: `HUB "Registration and keys"`, Needs: kit.NeedsWebhook, Wait: 3 * time.Second, Run: func(h *hubProbe) {
			alice, bob := h.two()
			k := h.hook(kit.HookReply{Status: http.StatusServiceUnavailable})
			h.listenAt(bob, k)
			waiting := h.sendInBackground(alice, bob, "waits for the webhook")
			h.WantCalls(k, 1, kit.PromptLimit)
			h.Sleep(kit.Quiet) // the hub may not have read the answer yet
			h.wantDeleted(bob, true)
			row := h.wantState(waiting(), "failed")
			h.Want(row.Text("error_code") == "ERR_AGENT_NOT_FOUND", row, "the error_code ERR_AGENT_NOT_FOUND")
			h.revive(bob)
			h.Sleep(3 * time.Second)
			h.WantNoMoreCalls(k, 1)
		}},
}

// hook returns a new URL that the hub can call. All calls get the same reply.
func (h *hubProbe) hook(reply kit.HookReply) *kit.Hook {
	return h.hookWith(func(int) kit.HookReply { return reply })
}

// hookWith is hook with a reply for each call. Calls have numbers from 1.
func (h *hubProbe) hookWith(reply func(call int) kit.HookReply) *kit.Hook {
	return h.hub.hooks.Add("/"+strings.ToLower(rand.Text()), reply)
}

// listenAt gives the agent a the endpoint of the hook.
func (h *hubProbe) listenAt(a *hubAgent, k *kit.Hook) { h.rotate(a, kit.Set("endpoint", k.URL)) }
