package conformance_test

import (
	"net/http"
	"strings"
	"time"
)

func envelopeFaults() []faultyHub {
	return []faultyHub{
		{name: "counts bytes", middleware: refusesHub(http.StatusBadRequest, "ERR_VALIDATION", countsBytes),
			fails: map[string]string{"hub.envelope.text": "status 400", "hub.envelope.context": "status 400",
				"hub.envelope.conversation": "status 400", "hub.envelope.size": "status 400"}},
		{name: "counts characters", middleware: acceptsSending(countsCharacters),
			fails: map[string]string{"hub.envelope.text": "accepted", "hub.envelope.context": "accepted",
				"hub.envelope.conversation": "accepted"}},
		{name: "ignores unknown members of envelopes", middleware: dropsUnknownMembers("envelope", "chorus_version",
			"sender_id", "original_text", "sender_culture", "cultural_context", "conversation_id", "turn_number"),
			fails: map[string]string{"hub.envelope.strict": "accepted"}},
		{name: "takes older versions", middleware: editsRequests(func(_ *http.Request, body map[string]any) {
			if e := envelopeIn(body); e["chorus_version"] == "0.3" {
				e["chorus_version"] = "0.4"
			}
		}), fails: map[string]string{"hub.envelope.version": "accepted"}},
		{name: "takes any sender", middleware: acceptsSending(func(body map[string]any) bool {
			sender, _ := envelopeIn(body)["sender_id"].(string)
			return strings.Count(sender, "@") != 1
		}), fails: map[string]string{"hub.envelope.sender": "accepted", "hub.envelope.strict": "accepted"}},
		{name: "takes any culture of a sender", middleware: acceptsSending(func(body map[string]any) bool {
			culture, ok := envelopeIn(body)["sender_culture"].(string)
			return ok && culture != "en"
		}), fails: map[string]string{"hub.envelope.culture": "accepted"}},
		{name: "takes turns below 1", middleware: acceptsSending(func(body map[string]any) bool {
			turn, ok := envelopeIn(body)["turn_number"].(float64)
			return ok && turn < 1
		}), fails: map[string]string{"hub.envelope.turn": "accepted"}},
		{name: "escapes text twice", middleware: eachRow(func(row map[string]any) {
			e := row["envelope"].(map[string]any)
			e["original_text"] = strings.ReplaceAll(e["original_text"].(string), "&", "&amp;")
		}), fails: map[string]string{"hub.envelope.unchanged": "in the history"}},
		{name: "has no limit for envelopes", middleware: acceptsSending(func(body map[string]any) bool {
			text, _ := envelopeIn(body)["original_text"].(string)
			return len(text) <= 10_000 && len(encode(envelopeIn(body))) > 60_000
		}), fails: map[string]string{"hub.envelope.size": "accepted"}},
	}
}

func sendFaults() []faultyHub {
	return []faultyHub{
		{name: "answers as if every message waited", middleware: editsHubAnswers(func(r *http.Request, a *hubAnswer) {
			if isSend(r) && a.Code == http.StatusOK {
				a.Code = http.StatusAccepted
				a.data()["delivery"], a.data()["state"] = "queued", "queued"
			}
		}), fails: map[string]string{"hub.send.stream": "status 202"}},
		{name: "answers as if every message arrived", middleware: editsHubAnswers(func(r *http.Request, a *hubAnswer) {
			if isSend(r) && a.Code == http.StatusAccepted {
				a.Code = http.StatusOK
				a.data()["delivery"], a.data()["state"] = "delivered_sse", "sent"
			}
		}), fails: map[string]string{"hub.send.queued": "status 200", "hub.limits.sender": "status 200"}},
		{name: "checks the receiver first", middleware: func(h http.Handler) http.Handler {
			return editsHubAnswers(func(r *http.Request, a *hubAnswer) {
				to, _ := a.sent["receiver_id"].(string)
				if isSend(r) && a.code() == "ERR_SENDER_MISMATCH" &&
					internally(h, r, "GET", "/agents/"+to, "", nil).Code == http.StatusNotFound {
					setAnswer(a, http.StatusNotFound, refusal("ERR_AGENT_NOT_FOUND"))
				}
			})(h)
		}, fails: map[string]string{"hub.send.order": "another status or code"}},
		{name: "ignores the type of stream", middleware: editsRequests(func(_ *http.Request, body map[string]any) {
			delete(body, "stream")
		}), fails: map[string]string{"hub.send.form": "accepted"}},
		{name: "queues for unknown agents", middleware: acceptsOnHub(func(r *http.Request, a *hubAnswer) bool {
			return isSend(r) && a.code() == "ERR_AGENT_NOT_FOUND"
		}), fails: map[string]string{"hub.send.receiver": "accepted"}},
		{name: "lets agents send as others", middleware: acceptsOnHub(func(r *http.Request, a *hubAnswer) bool {
			return a.code() == "ERR_SENDER_MISMATCH"
		}), fails: map[string]string{"hub.send.sender": "accepted", "hub.send.order": "accepted"}},
		{name: "writes whole seconds", middleware: eachRow(func(row map[string]any) {
			row["timestamp"] = row["timestamp"].(string)[:20] + "000Z"
		}), fails: map[string]string{"hub.send.ids": "delivered_via"}},
		{name: "ignores Idempotency-Key", middleware: dropsHeader("Idempotency-Key"),
			fails: map[string]string{"hub.idempotency.repeat": "status 202", "hub.idempotency.conflict": "accepted",
				"hub.idempotency.refusal": "status 202", "hub.idempotency.form": "accepted",
				"hub.idempotency.race": "status 202",
				"hub.send.order":       "another status or code", "hub.limits.sender": "status 429"}},
		{name: "shares Idempotency-Keys among agents", middleware: repeatsFirstAnswers(
			func(r *http.Request, _ *hubAnswer) string { return r.Header.Get("Idempotency-Key") },
			func(status int) bool { return status < 300 }),
			fails: map[string]string{"hub.idempotency.callers": "status 202", "hub.idempotency.conflict": "accepted"}},
		{name: "keeps refusals for an Idempotency-Key", middleware: repeatsFirstAnswers(
			func(r *http.Request, a *hubAnswer) string {
				return keyOf(r) + r.Header.Get("Idempotency-Key") + string(a.raw)
			}, func(status int) bool { return status == http.StatusNotFound }),
			fails: map[string]string{"hub.idempotency.refusal": "status 404"}},
		{name: "has no limit for one sender", middleware: acceptsOnHub(func(r *http.Request, a *hubAnswer) bool {
			return a.code() == "ERR_INBOX_FULL"
		}), fails: map[string]string{"hub.limits.sender": "accepted"}},
	}
}

func streamFaults() []faultyHub {
	return []faultyHub{
		{name: "lets proxies buffer streams", middleware: hidesHeader("X-Accel-Buffering"),
			fails: map[string]string{"hub.stream.header": "status 200"}},
		{name: "writes loose JSON", middleware: eachFrame(loosens),
			fails: map[string]string{"hub.stream.connected": `, \"message`, "hub.stream.message": `, \"sender_id`}},
		{name: "keeps streams alive in another way", middleware: eachFrame(func(frame string) string {
			return strings.Replace(frame, ":ping", ":keep-alive", 1)
		}), fails: map[string]string{"hub.stream.ping": ":keep-alive"}},
		{name: "writes messages in another order", middleware: editsFrames(swapsMessages),
			fails: map[string]string{"hub.stream.order": "after the id", "hub.stream.message": "nothing came",
				"hub.stream.replaced": "no message came", "hub.stream.pace": "another message came"}},
		{name: "shows nobody as online", middleware: editsHubAnswers(func(r *http.Request, a *hubAnswer) {
			if hubPath(r) == "/discover" {
				a.text = []byte(strings.ReplaceAll(a.Body.String(), `"online":true`, `"online":false`))
			}
		}), fails: map[string]string{"hub.stream.online": `"online":false`, "hub.discover.filters": `"online":false`}},
		{name: "writes a backlog at once", middleware: eachFrame(func(frame string) string {
			if lineOf(frame, "event: ") == "message" {
				frame += ":" + strings.Repeat("x", 900_000) + "\n\n"
			}
			return frame
		}), fails: map[string]string{"hub.stream.pace": "bytes"}},
		{name: "keeps what a client does not read", middleware: readsAhead,
			fails: map[string]string{stalled: "still open"}},
		{name: "ignores Last-Event-ID", middleware: dropsHeader("Last-Event-ID"),
			fails: map[string]string{"hub.replay.resume": "another message", "hub.replay.last": "event: message",
				"hub.replay.form": "status 200", "hub.replay.polled": "another message",
				"hub.state.last-event-id": "sent"}},
		{name: "writes no backlog", middleware: before(isInbox, handsOutEverything), fails: map[string]string{
			"hub.replay.queued": "no message came", "hub.replay.resume": "no message came",
			"hub.replay.last":        "no message came",
			"hub.replay.last-minute": "no message came", "hub.replay.polled": "no message came"}},
		{name: "forgets the last minute", middleware: before(func(r *http.Request) bool {
			return isInbox(r) && r.Header.Get("Last-Event-ID") == ""
		}, func(h http.Handler, r *http.Request) {
			internally(h, r, "POST", "/agent/ack", keyOf(r), map[string]any{"up_to": 1 << 40})
		}), fails: map[string]string{"hub.replay.last-minute": "another message"}},
		{name: "writes messages to the stream of their sender", middleware: showsOwnMessages,
			fails: map[string]string{"hub.replay.other": "0b8c"}},
	}
}

func stateFaults() []faultyHub {
	return []faultyHub{
		{name: "takes what it has written as delivered", middleware: withKeys(confirmsWhatItWrites),
			fails: map[string]string{"hub.state.stream": "delivered"}, also: []string{"hub.state.last-event-id"}},
		{name: "hands out by a look of the sender", middleware: eachRow(func(row map[string]any) {
			if row["state"] == "queued" {
				row["state"] = "sent"
			}
		}), fails: map[string]string{"hub.state.poll": "sent", "hub.ack.received": "sent"}},
		{name: "confirms by any poll", middleware: before(isHistory, func(h http.Handler, r *http.Request) {
			internally(h, r, "POST", "/agent/ack", keyOf(r), map[string]any{"up_to": 1 << 40})
		}), fails: map[string]string{"hub.state.poll": "delivered", "hub.state.since": "delivered"}},
		{name: "changes its mind", middleware: eachRow(func(row map[string]any) {
			if row["state"] == "failed" {
				row["detail"] = "second"
			}
		}), fails: map[string]string{"hub.state.final": "second"}},
		{name: "confirms more than was asked", middleware: editsRequests(func(r *http.Request, body map[string]any) {
			if n, ok := body["up_to"].(float64); ok && isAck(r) && n > 0 && n < 1<<40 {
				body["up_to"] = n + 1000
			}
		}), fails: map[string]string{"hub.ack.up-to": `"acknowledged":3`}},
		{name: "confirms also for others", middleware: withKeys(confirmsForAll),
			fails: map[string]string{
				"hub.ack.others": "delivered",
			}, also: []string{"hub.ack.up-to", "hub.ack.trace-ids",
				"hub.ack.error", "hub.ack.cut", "hub.ack.form"}},
		{name: "confirms what it has not handed out", middleware: before(isAck, handsOutEverything),
			fails: map[string]string{"hub.ack.received": `"acknowledged":1`}},
		{
			name: "confirms all messages for one trace id",
			middleware: editsRequests(func(r *http.Request, body map[string]any) {
				if list, ok := body["trace_ids"].([]any); ok && isAck(r) && len(list) == 5 {
					delete(body, "trace_ids")
					body["up_to"] = 1 << 40
				}
			}),
			fails: map[string]string{"hub.ack.trace-ids": `"acknowledged":3`},
		},
		{name: "ignores the response", middleware: editsRequests(func(_ *http.Request, body map[string]any) {
			delete(body, "response")
		}), fails: map[string]string{"hub.ack.error": "delivered", "hub.ack.cut": "delivered",
			"hub.ack.form": "accepted"}},
		{name: "keeps long texts", middleware: eachRow(func(row map[string]any) {
			if detail, ok := row["detail"].(string); ok && len(detail) >= 1000 {
				row["detail"] = detail + "…"
			}
		}), fails: map[string]string{"hub.ack.cut": wideText}},
		{name: "takes an empty list of trace ids", middleware: acceptsOnHub(func(r *http.Request, a *hubAnswer) bool {
			list, ok := a.sent["trace_ids"].([]any)
			return isAck(r) && ok && len(list) == 0
		}), fails: map[string]string{"hub.ack.form": "accepted"}},
	}
}

func historyFaults() []faultyHub {
	return []faultyHub{
		{name: "does not say how a message was delivered", middleware: eachRow(func(row map[string]any) {
			delete(row, "delivered_via")
		}), fails: map[string]string{"hub.history.rows": `"state":"queued"`}},
		{
			name:       "shows messages of others",
			middleware: leaksMessages,
			fails:      everything("History", "", "hub.history.since-form"),
		},
		{name: "treats since as inclusive", middleware: shiftSince(-1, 0),
			fails: map[string]string{"hub.history.since-id": "trace_id"},
			also:  []string{"hub.history.limit", "hub.history.limit-hands-out"}},
		{name: "treats a time as exclusive", middleware: shiftSince(0, time.Millisecond),
			fails: map[string]string{"hub.history.since-time": ""}},
		{name: "ignores a malformed since", middleware: withHubQuery("/agent/messages", func(q map[string][]string) {
			if len(q["since"]) == 1 && strings.Contains(q["since"][0], "e") {
				delete(q, "since")
			}
		}), fails: map[string]string{"hub.history.since-form": "accepted"}},
		{name: "does not say that there is more", middleware: editsHubAnswers(func(_ *http.Request, a *hubAnswer) {
			if metadata, ok := a.body["metadata"].(map[string]any); ok {
				delete(metadata, "has_more")
			}
		}), fails: map[string]string{"hub.history.limit": "status 200"}},
		{name: "hands out more than it returns", middleware: before(func(r *http.Request) bool {
			return isHistory(r) && r.URL.Query().Has("limit")
		}, handsOutEverything), fails: map[string]string{"hub.history.limit-hands-out": "sent"}},
	}
}

func directoryFaults() []faultyHub {
	return []faultyHub{
		{name: "lists agents by age", middleware: editsHubAnswers(func(r *http.Request, a *hubAnswer) {
			if list := a.list(); isTo(r, http.MethodGet, "/agents") && len(list) > 1 {
				list[0], list[len(list)-1] = list[len(list)-1], list[0]
			}
		}), fails: map[string]string{"hub.agents.list": "is after"}},
		{
			name: "answers an unknown agent with an empty one",
			middleware: editsHubAnswers(func(r *http.Request, a *hubAnswer) {
				if r.Method == http.MethodGet && strings.HasPrefix(hubPath(r), "/agents/") &&
					a.Code == http.StatusNotFound {
					setAnswer(a, http.StatusOK, success(nil))
				}
			}),
			fails: map[string]string{"hub.agents.one": "accepted"},
		},
		{name: "wraps every list of agents", middleware: editsHubAnswers(func(r *http.Request, a *hubAnswer) {
			if hubPath(r) == "/discover" && a.body == nil {
				a.text = []byte(`{"success":true,"data":` + a.Body.String() + `}`)
			}
		}), fails: everything("Directory", "success", "hub.agents.list", "hub.agents.one", "hub.discover.wrapped",
			"hub.discover.key")},
		{name: "wraps no list of agents", middleware: changesHeader(func(r *http.Request) {
			if hubPath(r) == "/discover" {
				r.Header.Del("Authorization")
			}
		}), fails: map[string]string{"hub.discover.wrapped": "status 200", "hub.discover.key": "accepted"}},
		{name: "ignores the parameter culture", middleware: withHubQuery("/discover", func(q map[string][]string) {
			delete(q, "culture")
		}), fails: map[string]string{"hub.discover.filters": `"culture":"en"`}},
		{name: "has no invite for an unknown address", middleware: editsHubAnswers(func(_ *http.Request, a *hubAnswer) {
			if a.data()["exists"] == false {
				setAnswer(a, http.StatusNotFound, refusal("ERR_AGENT_NOT_FOUND"))
			}
		}), fails: map[string]string{"hub.invite.json": "status 404"}},
		{name: "has an invite for everything", middleware: editsHubAnswers(func(r *http.Request, a *hubAnswer) {
			if strings.HasPrefix(hubPath(r), "/invite/") && a.Code == http.StatusBadRequest {
				setAnswer(a, http.StatusOK, success(map[string]any{"exists": false}))
			}
		}), fails: map[string]string{"hub.invite.form": "accepted"}},
		{name: "has no Content-Security-Policy", middleware: hidesHeader("Content-Security-Policy"),
			fails: map[string]string{"hub.invite.html": "status 200"}},
		{name: "repeats the path of an invite", middleware: editsHubAnswers(echoesPath),
			fails: map[string]string{
				"hub.invite.inert": "the page contains",
				"hub.invite.form":  "another status or code",
			}},
		{name: "takes the Host header as its own address", middleware: repeatsHost,
			fails: map[string]string{"hub.invite.host": "evil-host"}},
	}
}

func operatorFaults() []faultyHub {
	return []faultyHub{
		{name: "makes a new key when the operator replaces a registration", middleware: editsHubAnswers(
			func(r *http.Request, a *hubAnswer) {
				if isTo(r, http.MethodPost, "/agents") && a.Code == http.StatusOK {
					a.data()["api_key"] = "ca_0123456789abcdef0123456789abcdef"
				}
			}), fails: map[string]string{"hub.operator.register": "ca_0123"}},
		{name: "needs no endpoint", middleware: editsRequests(func(r *http.Request, body map[string]any) {
			if isTo(r, http.MethodPost, "/agents") && body["agent_id"] != nil && body["endpoint"] == nil {
				body["endpoint"] = "https://agent.example/"
			}
		}), fails: map[string]string{"hub.operator.form": "accepted"}},
		{name: "does not know its operator", middleware: refusesHub(http.StatusForbidden, "ERR_FORBIDDEN",
			func(r *http.Request, _ map[string]any) bool {
				return strings.HasPrefix(keyOf(r), "op_") && (r.Method == http.MethodDelete || isSend(r))
			}), fails: map[string]string{"hub.operator.delete": "status 403", "hub.operator.send": "status 403"}},
		{name: "hides endpoints from its operator", middleware: editsHubAnswers(func(r *http.Request, a *hubAnswer) {
			if strings.HasPrefix(keyOf(r), "op_") {
				delete(a.data(), "endpoint")
			}
		}), fails: map[string]string{"hub.operator.endpoint": "status 200", "hub.operator.register": "status 200"}},
		{name: "does not know the operator's key", middleware: changesHeader(func(r *http.Request) {
			if strings.HasPrefix(keyOf(r), "op_") && strings.HasPrefix(hubPath(r), "/agent/") {
				r.Header.Del("Authorization")
			}
		}), fails: map[string]string{"hub.operator.purpose": "status 401"}},
	}
}
