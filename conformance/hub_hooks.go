package conformance

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// hubWebhookChecks test what a hub sends to a webhook, and what a reply does. A hub waits a second or more before it
// repeats a call, so these checks count as waiting ones.
var hubWebhookChecks = []hubCheck{
	{number: "hub.webhook.request",
		title: "A webhook gets POST with the envelope alone, and the trace_id in two headers",
		cites: `HUB "Webhooks"; GATEWAYS "Requests to other servers"`, needs: needsWebhook, run: func(h *hubProbe) {
			alice, bob := h.two()
			k := h.hook(replyOK)
			h.listenAt(bob, k)
			m := h.sendWith(alice, bob, set("envelope.original_text", "<你好>"+astral), set("envelope.turn_number", 7))
			call := h.wantCalls(k, 1, promptLimit)[0]
			h.expect("POST with {\"envelope\":…} and Content-Type: application/json; Chorus-Trace-Id and "+
				"Idempotency-Key are %s", m.trace)
			if call.method != http.MethodPost || call.trace != m.trace ||
				call.header.Get("Idempotency-Key") != m.trace ||
				!strings.HasPrefix(call.header.Get("Content-Type"), "application/json") {
				h.failf("%s with the header %v", call.method, call.header)
			}
			if len(call.body.members) != 1 || !sameJSON(call.body.members["envelope"], m.envelope) {
				h.failf("the body %s", excerpt(call.body.body, 600))
			}
			if call.header.Get("Authorization") != "" || call.header.Get("Cookie") != "" {
				h.failf("a header with a key: %v", call.header)
			}
		}},
	{number: "hub.webhook.ok", title: "The reply status ok gets 200 with delivered and the receiver_response",
		cites: `HUB "Webhooks"; H-10, H-30`, needs: needsWebhook, run: func(h *hubProbe) {
			alice, bob := h.two()
			k := h.hook(hookReply{body: `{"status":"ok","other":"53cr3t"}`})
			h.listenAt(bob, k)
			m := h.send(alice, bob, "to a webhook")
			h.wantDelivery(m, http.StatusOK, "delivered", "delivered")
			h.want(sameJSON(m.data.members["receiver_response"], map[string]any{"status": "ok"}), m.answer,
				`receiver_response is {"status":"ok"}, without other members of the reply`)
			row := h.keepsState(m, "delivered")
			h.want(row.text("delivered_via") == "webhook" &&
				sameJSON(row.members["receiver_response"], map[string]any{"status": "ok"}), row,
				"delivered_via webhook, and the receiver_response")
			h.wantNoMoreCalls(k, 1)
			h.wantOnly(h.open(bob, ""))
		}},
	{number: "hub.webhook.other-success",
		title: "A reply 2xx without such a status confirms, and receiver_response is null",
		cites: `HUB "Webhooks"; H-30`, needs: needsWebhook, run: func(h *hubProbe) {
			alice, bob := h.two()
			for _, reply := range []hookReply{{body: "{}"}, {body: "thanks"}, {body: `{"received":true}`},
				{status: http.StatusAccepted, body: "[]"}} {
				h.listenAt(bob, h.hook(reply))
				m := h.send(alice, bob, "to a webhook that answers "+reply.body)
				h.wantDelivery(m, http.StatusOK, "delivered", "delivered")
				h.want(string(m.data.members["receiver_response"]) == "null", m.answer, `"receiver_response":null`)
			}
		}},
	{number: "hub.webhook.error",
		title: "A reply status error with 2xx or 4xx is final: 200 failed with its code and detail",
		cites: `HUB "Webhooks"; H-10, H-30`, needs: needsWebhook, run: func(h *hubProbe) {
			alice, bob := h.two()
			for _, status := range []int{http.StatusOK, http.StatusBadRequest, http.StatusUnprocessableEntity} {
				k := h.hook(hookReply{status: status, body: `{"status":"error","error_code":"INVALID_ENVELOPE",` +
					`"detail":"missing sender_culture","other":"53cr3t"}`})
				h.listenAt(bob, k)
				m := h.send(alice, bob, "to a webhook that refuses it")
				h.wantFailed(m, "INVALID_ENVELOPE", "missing sender_culture")
				h.wantNoText(m.answer, "no other member of the reply", "53cr3t")
				h.wantNoMoreCalls(k, 1)
			}
		}},
	{number: "hub.webhook.cut",
		title: "The texts of a reply are cut at 1,000 code units", cites: `HUB "Webhooks"; H-30`,
		needs: needsWebhook, run: func(h *hubProbe) {
			alice, bob := h.two()
			h.listenAt(bob, h.hook(hookReply{body: fmt.Sprintf(`{"status":"error","error_code":%q,"detail":%q}`,
				strings.Repeat("E", 1001), strings.Repeat(wide, 3000))}))
			h.wantFailed(h.send(alice, bob, "refused with long texts"), strings.Repeat("E", 1000),
				strings.Repeat(wide, 1000))
		}},
	{number: "hub.webhook.refused",
		title: "3xx, and 4xx without JSON, are final: failed with ERR_AGENT_UNREACHABLE and HTTP nnn",
		cites: `HUB "Webhooks"; H-30, G-16`, needs: needsWebhook, run: func(h *hubProbe) {
			alice, bob := h.two()
			elsewhere := h.hook(replyOK)
			for _, reply := range []hookReply{{status: http.StatusNotFound, body: "not here"},
				{status: http.StatusGone, body: ""},
				{status: http.StatusFound, header: http.Header{"Location": {elsewhere.url}}},
				{status: http.StatusPermanentRedirect, header: http.Header{"Location": {elsewhere.url}}}} {
				k := h.hook(reply)
				h.listenAt(bob, k)
				m := h.send(alice, bob, "to a webhook that is not there")
				h.wantFailed(m, "ERR_AGENT_UNREACHABLE", fmt.Sprintf("HTTP %d", reply.status))
				h.wantNoMoreCalls(k, 1)
			}
			h.wantNoMoreCalls(elsewhere, 0)
		}},
	{number: "hub.webhook.retry",
		title: "After 5xx the call is repeated with the same id, and the state becomes delivered",
		cites: `HUB "Webhooks"; GATEWAYS "Outbox"; H-10, H-30`, needs: needsWebhook, wait: 3 * time.Second,
		run: retriedWebhook},
	{number: "hub.webhook.unreachable",
		title: "If nothing listens, the message stays queued with ERR_AGENT_UNREACHABLE",
		cites: `HUB "Webhooks"; GATEWAYS "Outbox"; H-10, G-16`, needs: needsWebhook, wait: 3 * time.Second,
		run: unreachableWebhook},
	{number: "hub.webhook.slow",
		title: "A webhook may answer after the sender's 15 s; then its sender has 202, and it is called once",
		cites: `HUB "Webhooks"; H-33`, needs: needsWebhook, wait: 22 * time.Second, run: slowWebhook(20 * time.Second)},
	{number: "hub.webhook.minute", title: "A webhook that answers after more than a minute is called once",
		cites: `HUB "Webhooks"; H-32`, needs: needsWebhook, wait: 64 * time.Second, run: func(h *hubProbe) {
			if !h.hub.Thorough {
				h.end(NotTested, needsThorough)
			}
			slowWebhook(62 * time.Second)(h)
		}},
	{number: "hub.webhook.online",
		title: "An agent is online after a webhook reply", cites: `HUB "Endpoints"`, needs: needsWebhook,
		run: func(h *hubProbe) {
			alice, bob := h.two()
			h.listenAt(bob, h.hook(replyOK))
			h.send(alice, bob, "to a webhook")
			h.wantOnline(bob, true, promptLimit)
		}},
}

// wantFailed ends the check unless the POST of m got 200 with a final failure.
func (h *hubProbe) wantFailed(m sentMessage, code, detail string) {
	h.wantDelivery(m, http.StatusOK, "failed", "failed")
	h.want(m.data.text("error_code") == code && m.data.text("detail") == detail, m.answer,
		"the error_code %q and the detail %q", excerpt([]byte(code), 40), excerpt([]byte(detail), 40))
	row := h.keepsState(m, "failed")
	h.want(row.text("error_code") == code && row.text("detail") == detail, row, "the same error_code and detail")
}

// retriedWebhook fails the first call of each message. The hub may answer the sender after that call, or wait for the
// next one.
func retriedWebhook(h *hubProbe) {
	alice, bob := h.two()
	for _, first := range []hookReply{{status: http.StatusServiceUnavailable, body: "busy"},
		{status: http.StatusInternalServerError,
			body: `{"status":"error","error_code":"INTERNAL","detail":"crashed"}`}} {
		k := h.hookWith(func(call int) hookReply {
			if call == 1 {
				return first
			}
			return replyOK
		})
		h.listenAt(bob, k)
		m := h.send(alice, bob, "to a webhook that fails once")
		if m.answer.status == http.StatusAccepted {
			h.wantDelivery(m, http.StatusAccepted, "queued", "queued")
			h.want(m.data.text("error_code") != "" && m.data.text("detail") != "", m.answer,
				"error_code and detail of the first attempt")
		} else {
			h.wantDelivery(m, http.StatusOK, "delivered", "delivered")
		}
		calls := h.wantCalls(k, 2, 2*promptLimit)
		h.expect("the second call about 2 s after the first one, with the same Chorus-Trace-Id and Idempotency-Key")
		pause := calls[1].began.Sub(calls[0].ended)
		if pause < 1500*time.Millisecond || calls[1].trace != m.trace ||
			calls[1].header.Get("Idempotency-Key") != m.trace {
			h.failf("after %v with %q", pause.Round(time.Millisecond), calls[1].trace)
		}
		h.wantState(m, "delivered")
		h.wantNoMoreCalls(k, 2)
	}
}

// unreachableWebhook names a port of the webhook's host at which nothing listens.
func unreachableWebhook(h *hubProbe) {
	if h.hub.WebhookURL != "" {
		h.end(NotTested, "this needs webhooks that the hub reaches without --webhook-url")
	}
	listener, err := net.Listen("tcp", h.hub.hooks.address)
	if err != nil {
		h.end(Skipped, "cannot find a free port: %v", err)
	}
	_ = listener.Close() // now nothing listens there
	alice, bob := h.two()
	h.rotate(bob, set("endpoint", "http://"+listener.Addr().String()+"/"))
	m := h.send(alice, bob, "to a port where nothing listens")
	h.wantDelivery(m, http.StatusAccepted, "queued", "queued")
	h.want(m.data.text("error_code") == "ERR_AGENT_UNREACHABLE" && m.data.text("detail") == "unreachable", m.answer,
		`the error_code ERR_AGENT_UNREACHABLE and the detail "unreachable"`)
	h.wantOnly(h.open(bob, ""), m)
}

// slowWebhook returns a check of a webhook that answers after a time of more than 15 s.
func slowWebhook(after time.Duration) func(*hubProbe) {
	return func(h *hubProbe) {
		alice, bob := h.two()
		k := h.hook(hookReply{body: replyOK.body, after: after})
		h.listenAt(bob, k)
		body := letter(alice, bob, "to a slow webhook")
		started := time.Now()
		a := h.write(alice.key, "/messages", body)
		waited := time.Since(started)
		m := h.accepted(alice, bob, body, a)
		h.wantDelivery(m, http.StatusAccepted, "queued", "queued")
		h.expect("the answer after about 15 s")
		if waited < senderWaits-2*time.Second || waited > senderWaits+promptLimit {
			h.failf("it came after %v", waited.Round(time.Second/10))
		}
		h.wantCalls(k, 1, after)
		row := h.wantState(m, "delivered")
		h.want(row.text("delivered_via") == "webhook", row, "delivered_via webhook")
		h.wantNoMoreCalls(k, 1)
	}
}

// hubLaneChecks test the order of webhooks, and what streams, registrations and deletions do to waiting ones.
var hubLaneChecks = []hubCheck{
	{number: "hub.lane.order", title: "The webhook of one receiver is called in the order of id, one call at a time",
		cites: `HUB "Webhooks"; H-28`, needs: needsWebhook, wait: 3 * time.Second, run: func(h *hubProbe) {
			alice, carol, bob := h.three()
			k := h.hookWith(func(call int) hookReply {
				if call == 3 {
					return hookReply{status: http.StatusServiceUnavailable, after: quiet / 4}
				}
				return hookReply{body: replyOK.body, after: quiet / 4}
			})
			h.listenAt(bob, k)
			h.inParallel(8, func(i int) answer {
				from := []*hubAgent{alice, carol}[i%2]
				return h.write(from.key, "/messages", letter(from, bob, fmt.Sprint(i)))
			})
			calls := h.wantCalls(k, 9, 2*promptLimit)
			var want []string
			for _, row := range h.history(bob) {
				want = append(want, row.text("trace_id"))
			}
			h.expect("8 messages in the order of id; the third one twice, because its first call failed: %v", want)
			var got []string
			for i, call := range calls {
				if call.overlapped {
					h.failf("call %d began before the one before it had ended", i+1)
				}
				if i != 3 {
					got = append(got, call.trace)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) || calls[3].trace != calls[2].trace {
				h.failf("%v", got)
			}
		}},
	{number: "hub.lane.stream-first",
		title: "An open stream is preferred to the webhook", cites: `HUB "Webhooks"`, needs: needsWebhook,
		run: func(h *hubProbe) {
			alice, bob := h.two()
			k := h.hook(replyOK)
			h.listenAt(bob, k)
			s := h.open(bob, "")
			m := h.send(alice, bob, "to a stream and not to the webhook")
			h.wantMessages(s, m)
			h.wantDelivery(m, http.StatusOK, "delivered_sse", "sent")
			h.wantNoMoreCalls(k, 0)
		}},
	{number: "hub.lane.takeover", title: "A stream that opens takes over what waits for the webhook",
		cites: `HUB "Webhooks"; H-31`, needs: needsWebhook, wait: 4 * time.Second, run: func(h *hubProbe) {
			alice, bob := h.two()
			k := h.hook(hookReply{status: http.StatusServiceUnavailable, header: http.Header{"Retry-After": {"3"}}})
			h.listenAt(bob, k)
			first := h.sendInBackground(alice, bob, "waits for the webhook")
			h.wantCalls(k, 1, promptLimit)
			second := h.sendInBackground(alice, bob, "waits behind it")
			h.sleep(quiet)
			s := h.open(bob, "")
			taken := first()
			h.wantOnly(s, taken, second())
			h.wantState(taken, "sent")
			h.sleep(3 * time.Second)
			h.wantNoMoreCalls(k, 1)
		}},
	{number: "hub.lane.retry-after",
		title: "A webhook is not called again before its Retry-After", cites: `GATEWAYS "Outbox"; G-20`,
		needs: needsWebhook, wait: 6 * time.Second, run: func(h *hubProbe) {
			alice, bob := h.two()
			k := h.hookWith(func(call int) hookReply {
				if call == 1 {
					return hookReply{status: http.StatusTooManyRequests, header: http.Header{"Retry-After": {"5"}}}
				}
				return replyOK
			})
			h.listenAt(bob, k)
			m := h.send(alice, bob, "to a busy webhook")
			calls := h.wantCalls(k, 2, 5*time.Second+2*promptLimit)
			h.expect("the second call 5 s after the first one")
			if pause := calls[1].began.Sub(calls[0].ended); pause < 4900*time.Millisecond {
				h.failf("after %v", pause.Round(time.Millisecond))
			}
			h.wantState(m, "delivered")
		}},
	{number: "hub.lane.current", title: "The URL of the current registration is called", cites: `HUB "Webhooks"`,
		needs: needsWebhook, wait: 3 * time.Second, run: func(h *hubProbe) {
			alice, bob := h.two()
			old, current := h.hook(hookReply{status: http.StatusServiceUnavailable}), h.hook(replyOK)
			h.listenAt(bob, old)
			waiting := h.sendInBackground(alice, bob, "waits for the webhook")
			h.wantCalls(old, 1, promptLimit)
			h.listenAt(bob, current)
			h.wantCalls(current, 1, 2*promptLimit)
			h.wantState(waiting(), "delivered")
			h.wantDelivery(h.send(alice, bob, "to the current webhook"), http.StatusOK, "delivered", "delivered")
			h.wantNoMoreCalls(old, 1)
		}},
	{number: "hub.lane.deleted", title: "DELETE fails what waits for the webhook, and it is not called again",
		cites: `HUB "Registration and keys"`, needs: needsWebhook, wait: 3 * time.Second, run: func(h *hubProbe) {
			alice, bob := h.two()
			k := h.hook(hookReply{status: http.StatusServiceUnavailable})
			h.listenAt(bob, k)
			waiting := h.sendInBackground(alice, bob, "waits for the webhook")
			h.wantCalls(k, 1, promptLimit)
			h.sleep(quiet) // the hub may not have read the answer yet
			h.wantDeleted(bob, true)
			row := h.wantState(waiting(), "failed")
			h.want(row.text("error_code") == "ERR_AGENT_NOT_FOUND", row, "the error_code ERR_AGENT_NOT_FOUND")
			h.revive(bob)
			h.sleep(3 * time.Second)
			h.wantNoMoreCalls(k, 1)
		}},
}

// hook returns a new URL that the hub can call. All calls get the same reply.
func (h *hubProbe) hook(reply hookReply) *hook {
	return h.hookWith(func(int) hookReply { return reply })
}

// hookWith is hook with a reply for each call. Calls have numbers from 1.
func (h *hubProbe) hookWith(reply func(call int) hookReply) *hook {
	return h.hub.hooks.add("/"+strings.ToLower(rand.Text()), reply)
}

// listenAt gives the agent a the endpoint of the hook.
func (h *hubProbe) listenAt(a *hubAgent, k *hook) { h.rotate(a, set("endpoint", k.url)) }
