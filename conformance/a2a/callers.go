package a2a

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// a2aCallerChecks test who sees what.
var a2aCallerChecks = []a2aCheck{
	{Number: "a2a.callers.key", Title: "A caller without a key, or with a wrong one, is refused with 401",
		Cites: `A2A 1.0 7.4; A-7`, Needs: needsCallerKeys, Run: func(h *a2aProbe) {
			for _, b := range h.server.bindings {
				for _, key := range []string{"", "aa_" + strings.Repeat("A", 43)} {
					for method, params := range map[string]kit.Message{"SendMessage": said("Hello.", nil), "ListTasks": {},
						"GetTask": {"id": unknownA2ATask}, "CancelTask": {"id": unknownA2ATask}} {
						a := h.call(b, a2aCall{method: method, params: params, key: key})
						h.Want(a.Status == http.StatusUnauthorized, a.Answer, "status 401")
						h.Want(a.Header.Get("WWW-Authenticate") != "", a.Answer, "the header WWW-Authenticate")
					}
				}
			}
		}},
	{Number: "a2a.callers.tasks",
		Title: "For another caller, a task is answered as one that does not exist, byte for byte",
		Cites: `A2A 1.0 3.3.2, 13.1; A-26`, Needs: needsOtherKey, Run: a2aOtherTasks},
	{Number: "a2a.callers.lists",
		Title: "The lists of another caller do not have the task, also of a context with the same id",
		Cites: `A2A 1.0 3.1.4, 13.1; A-25, A-26`, Needs: needsOtherKey, Run: func(h *a2aProbe) {
			task := h.send(h.server.bindings[0], h.server.Bearer, nil)
			for _, b := range h.server.bindings {
				list := func(params kit.Message) a2aAnswer {
					a := h.call(b, a2aCall{method: "ListTasks", params: params, key: h.server.Other})
					h.wantResult(a)
					return a
				}
				h.wantList(list(kit.Message{"contextId": task.Text("contextId")}), 0)
				a := list(kit.Message{"pageSize": 100})
				h.Want(!bytes.Contains(a.Body, []byte(task.Text("id"))), a.Answer, "no task %s", task.Text("id"))
			}
		}},
}

func a2aOtherTasks(h *a2aProbe) {
	task := h.send(h.server.bindings[0], h.server.Bearer, nil)
	id := task.Text("id")
	for _, b := range h.server.bindings {
		for _, c := range []a2aCall{
			{method: "GetTask", params: kit.Message{"id": id}},
			{method: "CancelTask", params: kit.Message{"id": id}},
			{method: "SubscribeToTask", params: kit.Message{"id": id}},
			{method: "SendMessage", params: said("Hello.", kit.Message{"taskId": id})},
		} {
			c.key = h.server.Other
			strange := h.call(b, c)
			h.wantRefused(strange, a2aNoTask)
			c.params = unknownInstead(c.params)
			unknown := h.call(b, c)
			got := strings.ReplaceAll(string(strange.Body), id, unknownA2ATask)
			h.Want(got == string(unknown.Body) && strange.Status == unknown.Status, strange.Answer,
				"the same as for an unknown task: %s", unknown)
		}
	}
	got := h.ask(h.server.bindings[0], "GetTask", kit.Message{"id": id}).result
	h.Want(stateOf(got) != "CANCELED", got, "the other caller has not canceled the task")
}

// unknownInstead returns params that name the unknown task in place of theirs.
func unknownInstead(params kit.Message) kit.Message {
	if params["message"] != nil {
		return said("Hello.", kit.Message{"taskId": unknownA2ATask})
	}
	return kit.Message{"id": unknownA2ATask}
}

// a2aLimitChecks test that the server protects itself.
var a2aLimitChecks = []a2aCheck{
	{Number: "a2a.limits.large", Title: "A message of 32 MiB is refused, and the server still answers",
		Cites: `A2A 1.0 13.2; A-41`,
		Run: func(h *a2aProbe) {
			h.wantTooMuch(h.server.bindings[0], "text", `"`+strings.Repeat("a", 32<<20)+`"`)
		}},
	{Number: "a2a.limits.deep", Title: "A message with 100,000 levels of JSON is refused, and the server still answers",
		Cites: `A2A 1.0 13.2; A-41`, Run: func(h *a2aProbe) {
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
	params["message"].(kit.Message)["parts"] = []any{kit.Message{member: marker}}
	r := b.request(a2aCall{method: "SendMessage", params: params}, h.server.header(h.server.Bearer))
	r.Body = bytes.Replace(r.Body, []byte(`"`+marker+`"`), []byte(content), 1)
	a := h.exchange(b, r)
	h.Want(a.result.Members == nil && (a.Err != nil || a.Status < 500), a.Answer, "a refusal, but no status 5xx")
	h.refuse(b, "GetTask", kit.Message{"id": unknownA2ATask}, a2aNoTask)
}
