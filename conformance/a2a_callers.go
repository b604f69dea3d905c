package conformance

import (
	"bytes"
	"net/http"
	"strings"
)

// a2aCallerChecks test who sees what.
var a2aCallerChecks = []a2aCheck{
	{number: "a2a.callers.key", title: "A caller without a key, or with a wrong one, is refused with 401",
		cites: `A2A 1.0 7.4; A-7`, needs: needsCallerKeys, run: func(h *a2aProbe) {
			for _, b := range h.server.bindings {
				for _, key := range []string{"", "aa_" + strings.Repeat("A", 43)} {
					for method, params := range map[string]message{"SendMessage": said("Hello.", nil), "ListTasks": {},
						"GetTask": {"id": unknownA2ATask}, "CancelTask": {"id": unknownA2ATask}} {
						a := h.call(b, a2aCall{method: method, params: params, key: key})
						h.want(a.status == http.StatusUnauthorized, a.answer, "status 401")
						h.want(a.header.Get("WWW-Authenticate") != "", a.answer, "the header WWW-Authenticate")
					}
				}
			}
		}},
	{number: "a2a.callers.tasks",
		title: "For another caller, a task is answered as one that does not exist, byte for byte",
		cites: `A2A 1.0 3.3.2, 13.1; A-26`, needs: needsOtherKey, run: a2aOtherTasks},
	{number: "a2a.callers.lists",
		title: "The lists of another caller do not have the task, also of a context with the same id",
		cites: `A2A 1.0 3.1.4, 13.1; A-25, A-26`, needs: needsOtherKey, run: func(h *a2aProbe) {
			task := h.send(h.server.bindings[0], h.server.Bearer, nil)
			for _, b := range h.server.bindings {
				list := func(params message) a2aAnswer {
					a := h.call(b, a2aCall{method: "ListTasks", params: params, key: h.server.Other})
					h.wantResult(a)
					return a
				}
				h.wantList(list(message{"contextId": task.text("contextId")}), 0)
				a := list(message{"pageSize": 100})
				h.want(!bytes.Contains(a.body, []byte(task.text("id"))), a.answer, "no task %s", task.text("id"))
			}
		}},
}

func a2aOtherTasks(h *a2aProbe) {
	task := h.send(h.server.bindings[0], h.server.Bearer, nil)
	id := task.text("id")
	for _, b := range h.server.bindings {
		for _, c := range []a2aCall{
			{method: "GetTask", params: message{"id": id}},
			{method: "CancelTask", params: message{"id": id}},
			{method: "SubscribeToTask", params: message{"id": id}},
			{method: "SendMessage", params: said("Hello.", message{"taskId": id})},
		} {
			c.key = h.server.Other
			strange := h.call(b, c)
			h.wantRefused(strange, a2aNoTask)
			c.params = unknownInstead(c.params)
			unknown := h.call(b, c)
			got := strings.ReplaceAll(string(strange.body), id, unknownA2ATask)
			h.want(got == string(unknown.body) && strange.status == unknown.status, strange.answer,
				"the same as for an unknown task: %s", unknown)
		}
	}
	got := h.ask(h.server.bindings[0], "GetTask", message{"id": id}).result
	h.want(stateOf(got) != "CANCELED", got, "the other caller has not canceled the task")
}

// unknownInstead returns params that name the unknown task in place of theirs.
func unknownInstead(params message) message {
	if params["message"] != nil {
		return said("Hello.", message{"taskId": unknownA2ATask})
	}
	return message{"id": unknownA2ATask}
}

// a2aLimitChecks test that the server protects itself.
var a2aLimitChecks = []a2aCheck{
	{number: "a2a.limits.large", title: "A message of 32 MiB is refused, and the server still answers",
		cites: `A2A 1.0 13.2; A-41`,
		run: func(h *a2aProbe) {
			h.wantTooMuch(h.server.bindings[0], "text", `"`+strings.Repeat("a", 32<<20)+`"`)
		}},
	{number: "a2a.limits.deep", title: "A message with 100,000 levels of JSON is refused, and the server still answers",
		cites: `A2A 1.0 13.2; A-41`, run: func(h *a2aProbe) {
			for _, b := range h.server.bindings {
				h.wantTooMuch(b, "data", strings.Repeat("[", 100_000)+strings.Repeat("]", 100_000))
			}
		}},
}

// wantTooMuch ends the check unless the server refuses a message whose part has this content, and answers after that.
// It may close the connection while it reads the message.
func (h *a2aProbe) wantTooMuch(b *a2aBinding, member, content string) {
	const marker = "too much"
	params := said("", nil)
	params["message"].(message)["parts"] = []any{message{member: marker}}
	r := b.request(a2aCall{method: "SendMessage", params: params}, h.server.header(h.server.Bearer))
	r.body = bytes.Replace(r.body, []byte(`"`+marker+`"`), []byte(content), 1)
	a := h.exchange(b, r)
	h.want(a.result.members == nil && (a.err != nil || a.status < 500), a.answer, "a refusal, but no status 5xx")
	h.refuse(b, "GetTask", message{"id": unknownA2ATask}, a2aNoTask)
}
