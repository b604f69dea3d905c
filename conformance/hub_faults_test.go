package conformance_test

import (
	"net/http"
	"net/url"
	"strings"
	"time"
)

func envelopeFaults() []fault {
	return []fault{
		{name: "counts bytes", front: refuses(http.StatusBadRequest, refusal("ERR_VALIDATION"), countsBytes),
			fails: map[string]string{"hub.envelope.text": "status 400", "hub.envelope.context": "status 400",
				"hub.envelope.conversation": "status 400", "hub.envelope.size": "status 400"}},
		{name: "counts characters", front: acceptsSending(countsCharacters),
			fails: map[string]string{"hub.envelope.text": "accepted", "hub.envelope.context": "accepted",
				"hub.envelope.conversation": "accepted"}},
		{name: "ignores unknown members of envelopes", front: dropsUnknownMembers("envelope", "chorus_version",
			"sender_id", "original_text", "sender_culture", "cultural_context", "conversation_id", "turn_number"),
			fails: map[string]string{"hub.envelope.strict": "accepted"}},
		{name: "takes older versions", front: editsRequests(func(_ *http.Request, body object) {
			if e := envelopeIn(body); e["chorus_version"] == "0.3" {
				e["chorus_version"] = "0.4"
			}
		}), fails: map[string]string{"hub.envelope.version": "accepted"}},
		{name: "takes any sender", front: acceptsSending(func(body object) bool {
			sender, _ := envelopeIn(body)["sender_id"].(string)
			return strings.Count(sender, "@") != 1
		}), fails: map[string]string{"hub.envelope.sender": "accepted", "hub.envelope.strict": "accepted"}},
		{name: "takes any culture of a sender", front: acceptsSending(func(body object) bool {
			culture, ok := envelopeIn(body)["sender_culture"].(string)
			return ok && culture != "en"
		}), fails: map[string]string{"hub.envelope.culture": "accepted"}},
		{name: "takes turns below 1", front: acceptsSending(func(body object) bool {
			turn, ok := wholeNumber(envelopeIn(body)["turn_number"])
			return ok && turn < 1
		}), fails: map[string]string{"hub.envelope.turn": "accepted"}},
		{name: "escapes text twice", front: eachHistoryRow(func(row object) {
			e := row["envelope"].(object)
			e["original_text"] = strings.ReplaceAll(e["original_text"].(string), "&", "&amp;")
		}), fails: map[string]string{"hub.envelope.unchanged": "in the history"}},
		{name: "has no limit for envelopes", front: acceptsSending(func(body object) bool {
			text, _ := envelopeIn(body)["original_text"].(string)
			return len(text) <= 10_000 && len(encode(envelopeIn(body))) > 60_000
		}), fails: map[string]string{"hub.envelope.size": "accepted"}},
	}
}

func sendFaults() []fault {
	return []fault{
		{name: "answers as if every message waited", front: editsAnswers(func(r *http.Request, a *exchange) {
			if isSend(r) && a.Code == http.StatusOK {
				a.Code = http.StatusAccepted
				a.data()["delivery"], a.data()["state"] = "queued", "queued"
			}
		}), fails: map[string]string{"hub.send.stream": "status 202"}},
		{name: "answers as if every message arrived", front: editsAnswers(func(r *http.Request, a *exchange) {
			if isSend(r) && a.Code == http.StatusAccepted {
				a.Code = http.StatusOK
				a.data()["delivery"], a.data()["state"] = "delivered_sse", "sent"
			}
		}), fails: map[string]string{"hub.send.queued": "status 200", "hub.limits.sender": "status 200"}},
		{name: "checks the receiver first", front: func(h http.Handler) http.Handler {
			return editsAnswers(func(r *http.Request, a *exchange) {
				to, _ := a.sent["receiver_id"].(string)
				if isSend(r) && a.code() == "ERR_SENDER_MISMATCH" &&
					atHub(h, r, "GET", "/agents/"+to, "", nil).Code == http.StatusNotFound {
					setAnswer(a, http.StatusNotFound, refusal("ERR_AGENT_NOT_FOUND"))
				}
			})(h)
		}, fails: map[string]string{"hub.send.order": "another status or code"}},
		{name: "ignores the type of stream", front: editsRequests(func(_ *http.Request, body object) {
			delete(body, "stream")
		}), fails: map[string]string{"hub.send.form": "accepted"}},
		{name: "queues for unknown agents", front: acceptsOnHub(func(r *http.Request, a *exchange) bool {
			return isSend(r) && a.code() == "ERR_AGENT_NOT_FOUND"
		}), fails: map[string]string{"hub.send.receiver": "accepted"}},
		{name: "lets agents send as others", front: acceptsOnHub(func(r *http.Request, a *exchange) bool {
			return a.code() == "ERR_SENDER_MISMATCH"
		}), fails: map[string]string{"hub.send.sender": "accepted", "hub.send.order": "accepted"}},
		{name: "writes whole seconds", front: eachHistoryRow(func(row object) {
			row["timestamp"] = row["timestamp"].(string)[:20] + "000Z"
		}), fails: map[string]string{"hub.send.ids": "delivered_via"}},
		{name: "ignores Idempotency-Key", front: dropsHeader("Idempotency-Key"),
			fails: map[string]string{"hub.idempotency.repeat": "status 202", "hub.idempotency.conflict": "accepted",
				"hub.idempotency.refusal": "status 202", "hub.idempotency.form": "accepted",
				"hub.idempotency.race": "status 202",
				"hub.send.order":       "another status or code", "hub.limits.sender": "status 429"}},
		{name: "shares Idempotency-Keys among agents", front: repeatsFirst(
			func(r *http.Request, _ *exchange) string { return r.Header.Get("Idempotency-Key") },
			func(status int) bool { return status < 300 }),
			fails: map[string]string{"hub.idempotency.callers": "status 202", "hub.idempotency.conflict": "accepted"}},
		{name: "keeps refusals for an Idempotency-Key", front: repeatsFirst(
			func(r *http.Request, a *exchange) string {
				return keyOf(r) + r.Header.Get("Idempotency-Key") + string(a.raw)
			}, func(status int) bool { return status == http.StatusNotFound }),
			fails: map[string]string{"hub.idempotency.refusal": "status 404"}},
		{name: "has no limit for one sender", front: acceptsOnHub(func(r *http.Request, a *exchange) bool {
			return a.code() == "ERR_INBOX_FULL"
		}), fails: map[string]string{"hub.limits.sender": "accepted"}},
	}
}

func streamFaults() []fault {
	return []fault{
		{name: "lets proxies buffer streams", front: hidesHeader("X-Accel-Buffering"),
			fails: map[string]string{"hub.stream.header": "status 200"}},
		{name: "writes loose JSON", front: eachFrame(loosens),
			fails: map[string]string{"hub.stream.connected": `, \"message`, "hub.stream.message": `, \"sender_id`}},
		{name: "keeps streams alive in another way", front: eachFrame(func(frame string) string {
			return strings.Replace(frame, ":ping", ":keep-alive", 1)
		}), fails: map[string]string{"hub.stream.ping": ":keep-alive"}},
		{name: "writes messages in another order", front: editsFrames(swapsMessages),
			fails: map[string]string{"hub.stream.order": "after the id", "hub.stream.message": "nothing came",
				"hub.stream.replaced": "no message came", "hub.stream.pace": "another message came"}},
		{name: "shows nobody as online", front: editsAnswers(func(r *http.Request, a *exchange) {
			if hubPath(r) == "/discover" {
				a.text = []byte(strings.ReplaceAll(a.Body.String(), `"online":true`, `"online":false`))
			}
		}), fails: map[string]string{"hub.stream.online": `"online":false`, "hub.discover.filters": `"online":false`}},
		{name: "writes a backlog at once", front: eachFrame(func(frame string) string {
			if lineOf(frame, "event: ") == "message" {
				frame += ":" + strings.Repeat("x", 900_000) + "\n\n"
			}
			return frame
		}), fails: map[string]string{"hub.stream.pace": "bytes"}},
		{name: "keeps what a client does not read", front: readsAhead,
			fails: map[string]string{stalled: "still open"}},
		{name: "ignores Last-Event-ID", front: dropsHeader("Last-Event-ID"),
			fails: map[string]string{"hub.replay.resume": "another message", "hub.replay.last": "event: message",
				"hub.replay.form": "status 200", "hub.replay.polled": "another message",
				"hub.state.last-event-id": "sent"}},
		{name: "writes no backlog", front: before(isInbox, handsOutEverything), fails: map[string]string{
			"hub.replay.queued": "no message came", "hub.replay.resume": "no message came",
			"hub.replay.last":        "no message came",
			"hub.replay.last-minute": "no message came", "hub.replay.polled": "no message came"}},
		{name: "forgets the last minute", front: before(func(r *http.Request) bool {
			return isInbox(r) && r.Header.Get("Last-Event-ID") == ""
		}, func(h http.Handler, r *http.Request) {
			atHub(h, r, "POST", "/agent/ack", keyOf(r), object{"up_to": 1 << 40})
		}), fails: map[string]string{"hub.replay.last-minute": "another message"}},
		{name: "writes messages to the stream of their sender", front: showsOwnMessages,
			fails: map[string]string{"hub.replay.other": "0b8c"}},
	}
}

func stateFaults() []fault {
	return []fault{
		{name: "takes what it has written as delivered", front: withKeys(confirmsWhatItWrites),
			fails: map[string]string{"hub.state.stream": "delivered"}, also: []string{"hub.state.last-event-id"}},
		{name: "hands out by a look of the sender", front: eachHistoryRow(func(row object) {
			if row["state"] == "queued" {
				row["state"] = "sent"
			}
		}), fails: map[string]string{"hub.state.poll": "sent", "hub.ack.received": "sent"}},
		{name: "confirms by any poll", front: before(isHistory, func(h http.Handler, r *http.Request) {
			atHub(h, r, "POST", "/agent/ack", keyOf(r), object{"up_to": 1 << 40})
		}), fails: map[string]string{"hub.state.poll": "delivered", "hub.state.since": "delivered"}},
		{name: "changes its mind", front: eachHistoryRow(func(row object) {
			if row["state"] == "failed" {
				row["detail"] = "second"
			}
		}), fails: map[string]string{"hub.state.final": "second"}},
		{name: "confirms more than was asked", front: editsRequests(func(r *http.Request, body object) {
			if n, ok := wholeNumber(body["up_to"]); ok && isAck(r) && n > 0 && n < 1<<40 {
				body["up_to"] = n + 1000
			}
		}), fails: map[string]string{"hub.ack.up-to": `"acknowledged":3`}},
		{name: "confirms also for others", front: withKeys(confirmsForAll),
			fails: map[string]string{
				"hub.ack.others": "delivered",
			}, also: []string{"hub.ack.up-to", "hub.ack.trace-ids",
				"hub.ack.error", "hub.ack.cut", "hub.ack.form"}},
		{name: "confirms what it has not handed out", front: before(isAck, handsOutEverything),
			fails: map[string]string{"hub.ack.received": `"acknowledged":1`}},
		{
			name: "confirms all messages for one trace id",
			front: editsRequests(func(r *http.Request, body object) {
				if list, ok := body["trace_ids"].([]any); ok && isAck(r) && len(list) == 5 {
					delete(body, "trace_ids")
					body["up_to"] = 1 << 40
				}
			}),
			fails: map[string]string{"hub.ack.trace-ids": `"acknowledged":3`},
		},
		{name: "ignores the response", front: editsRequests(func(_ *http.Request, body object) {
			delete(body, "response")
		}), fails: map[string]string{"hub.ack.error": "delivered", "hub.ack.cut": "delivered",
			"hub.ack.form": "accepted"}},
		{name: "keeps long texts", front: eachHistoryRow(func(row object) {
			if detail, ok := row["detail"].(string); ok && len(detail) >= 1000 {
				row["detail"] = detail + "…"
			}
		}), fails: map[string]string{"hub.ack.cut": wideText}},
		{name: "takes an empty list of trace ids", front: acceptsOnHub(func(r *http.Request, a *exchange) bool {
			list, ok := a.sent["trace_ids"].([]any)
			return isAck(r) && ok && len(list) == 0
		}), fails: map[string]string{"hub.ack.form": "accepted"}},
	}
}

func historyFaults() []fault {
	return []fault{
		{name: "does not say how a message was delivered", front: eachHistoryRow(func(row object) {
			delete(row, "delivered_via")
		}), fails: map[string]string{"hub.history.rows": `"state":"queued"`}},
		{
			name:  "shows messages of others",
			front: leaksMessages,
			fails: everything("History", "", "hub.history.since-form"),
		},
		{name: "treats since as inclusive", front: shiftSince(-1, 0),
			fails: map[string]string{"hub.history.since-id": "trace_id"},
			also:  []string{"hub.history.limit", "hub.history.limit-hands-out"}},
		{name: "treats a time as exclusive", front: shiftSince(0, time.Millisecond),
			fails: map[string]string{"hub.history.since-time": ""}},
		{name: "ignores a malformed since", front: withQuery("/hub/agent/messages", func(q url.Values) {
			if len(q["since"]) == 1 && strings.Contains(q["since"][0], "e") {
				delete(q, "since")
			}
		}), fails: map[string]string{"hub.history.since-form": "accepted"}},
		{name: "does not say that there is more", front: editsAnswers(func(_ *http.Request, a *exchange) {
			if metadata, ok := a.body["metadata"].(object); ok {
				delete(metadata, "has_more")
			}
		}), fails: map[string]string{"hub.history.limit": "status 200"}},
		{name: "hands out more than it returns", front: before(func(r *http.Request) bool {
			return isHistory(r) && r.URL.Query().Has("limit")
		}, handsOutEverything), fails: map[string]string{"hub.history.limit-hands-out": "sent"}},
	}
}

func directoryFaults() []fault {
	return []fault{
		{name: "lists agents by age", front: editsAnswers(func(r *http.Request, a *exchange) {
			if list := a.list(); isTo(r, http.MethodGet, "/agents") && len(list) > 1 {
				list[0], list[len(list)-1] = list[len(list)-1], list[0]
			}
		}), fails: map[string]string{"hub.agents.list": "is after"}},
		{
			name: "answers an unknown agent with an empty one",
			front: editsAnswers(func(r *http.Request, a *exchange) {
				if r.Method == http.MethodGet && strings.HasPrefix(hubPath(r), "/agents/") &&
					a.Code == http.StatusNotFound {
					setAnswer(a, http.StatusOK, success(nil))
				}
			}),
			fails: map[string]string{"hub.agents.one": "accepted"},
		},
		{name: "wraps every list of agents", front: editsAnswers(func(r *http.Request, a *exchange) {
			if hubPath(r) == "/discover" && a.body == nil {
				a.text = []byte(`{"success":true,"data":` + a.Body.String() + `}`)
			}
		}), fails: everything("Directory", "success", "hub.agents.list", "hub.agents.one", "hub.discover.wrapped",
			"hub.discover.key")},
		{name: "wraps no list of agents", front: changesHeader(func(r *http.Request) {
			if hubPath(r) == "/discover" {
				r.Header.Del("Authorization")
			}
		}), fails: map[string]string{"hub.discover.wrapped": "status 200", "hub.discover.key": "accepted"}},
		{name: "ignores the parameter culture", front: withQuery("/hub/discover", func(q url.Values) {
			delete(q, "culture")
		}), fails: map[string]string{"hub.discover.filters": `"culture":`}},
		{name: "has no invite for an unknown address", front: editsAnswers(func(_ *http.Request, a *exchange) {
			if a.data()["exists"] == false {
				setAnswer(a, http.StatusNotFound, refusal("ERR_AGENT_NOT_FOUND"))
			}
		}), fails: map[string]string{"hub.invite.json": "status 404"}},
		{name: "has an invite for everything", front: editsAnswers(func(r *http.Request, a *exchange) {
			if strings.HasPrefix(hubPath(r), "/invite/") && a.Code == http.StatusBadRequest {
				setAnswer(a, http.StatusOK, success(object{"exists": false}))
			}
		}), fails: map[string]string{"hub.invite.form": "accepted"}},
		{name: "has no Content-Security-Policy", front: hidesHeader("Content-Security-Policy"),
			fails: map[string]string{"hub.invite.html": "status 200"}},
		{name: "repeats the path of an invite", front: editsAnswers(echoesPath),
			fails: map[string]string{
				"hub.invite.inert": "the page contains",
				"hub.invite.form":  "another status or code",
			}},
		{name: "takes the Host header as its own address", front: repeatsHost,
			fails: map[string]string{"hub.invite.host": "evil-host"}},
	}
}

func operatorFaults() []fault {
	return []fault{
		{name: "makes a new key when the operator replaces a registration", front: editsAnswers(
			func(r *http.Request, a *exchange) {
				if isTo(r, http.MethodPost, "/agents") && a.Code == http.StatusOK {
					a.data()["api_key"] = "ca_0123456789abcdef0123456789abcdef"
				}
			}), fails: map[string]string{"hub.operator.register": "ca_0123"}},
		{name: "needs no endpoint", front: editsRequests(func(r *http.Request, body object) {
			if isTo(r, http.MethodPost, "/agents") && body["agent_id"] != nil && body["endpoint"] == nil {
				body["endpoint"] = "https://agent.example/"
			}
		}), fails: map[string]string{"hub.operator.form": "accepted"}},
		{name: "does not know its operator", front: refuses(http.StatusForbidden, refusal("ERR_FORBIDDEN"),
			func(r *http.Request, _ object) bool {
				return strings.HasPrefix(keyOf(r), "op_") && (r.Method == http.MethodDelete || isSend(r))
			}), fails: map[string]string{"hub.operator.delete": "status 403", "hub.operator.send": "status 403"}},
		{name: "hides endpoints from its operator", front: editsAnswers(func(r *http.Request, a *exchange) {
			if strings.HasPrefix(keyOf(r), "op_") {
				delete(a.data(), "endpoint")
			}
		}), fails: map[string]string{"hub.operator.endpoint": "status 200", "hub.operator.register": "status 200"}},
		{name: "does not know the operator's key", front: changesHeader(func(r *http.Request) {
			if strings.HasPrefix(keyOf(r), "op_") && strings.HasPrefix(hubPath(r), "/agent/") {
				r.Header.Del("Authorization")
			}
		}), fails: map[string]string{"hub.operator.purpose": "status 401"}},
	}
}
