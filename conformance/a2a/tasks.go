package a2a

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// a2aBindingChecks test what all operations of a binding have in common.
var a2aBindingChecks = []a2aCheck{
	{Number: "a2a.binding.same", Title: "Both bindings show the same task", Cites: `A2A 1.0 5.1; A-2`,
		Needs: needsBothBindings,
		Wait:  time.Second, Run: func(h *a2aProbe) {
			task := h.over(h.server.bindings[0])
			var texts [][]byte
			var last kit.Answer
			for _, b := range h.server.bindings {
				last = h.ask(b, "GetTask", kit.Message{"id": task.Text("id")}).result
				texts = append(texts, kit.Canonical(last.Members))
			}
			h.Want(bytes.Equal(texts[0], texts[1]), last, "the task as in %s: %s", h.server.bindings[0].name,
				kit.Excerpt(texts[0], 400))
		}},
	{Number: "a2a.binding.unknown", Title: "An unknown task is answered with TaskNotFoundError",
		Cites: `A2A 1.0 3.3.2, 5.4; A-9`,
		Run: func(h *a2aProbe) {
			for _, b := range h.server.bindings {
				h.refuse(b, "GetTask", kit.Message{"id": unknownA2ATask}, a2aNoTask)
				h.refuse(b, "CancelTask", kit.Message{"id": unknownA2ATask}, a2aNoTask)
				h.refuse(b, "SendMessage", said("Hello.", kit.Message{"taskId": unknownA2ATask}), a2aNoTask)
			}
		}},
	{Number: "a2a.binding.version",
		Title: "A version that the card does not name is answered with VersionNotSupportedError",
		Cites: `A2A 1.0 3.6.2; A-11`, Run: func(h *a2aProbe) {
			for _, b := range h.server.bindings {
				h.wantRefused(h.call(b, a2aCall{method: "GetTask", params: kit.Message{"id": unknownA2ATask}, key: h.server.Bearer,
					header: http.Header{"A2a-Version": {"9.9"}}}), a2aVersion)
			}
		}},
	{Number: "a2a.rpc.requests",
		Title: "What is no request of JSON-RPC has its own errors, and answers have the id of the request",
		Cites: `A2A 1.0 9.1; JSON-RPC 4, 5; A-9`, Needs: needsJSONRPC, Run: a2aRequests},
}

func a2aRequests(h *a2aProbe) {
	b := h.server.binding(bindingRPC)
	send := func(body string) a2aAnswer {
		return h.exchange(b, kit.RetryableRequest{Method: http.MethodPost, Header: h.server.header(h.server.Bearer),
			Body: []byte(body)})
	}
	for _, c := range []struct {
		body string
		code int
	}{
		{`{"jsonrpc":"2.0","id":1,`, -32700},
		{`{"jsonrpc":"1.0","id":1,"method":"GetTask","params":{"id":"x"}}`, -32600},
		{`{"jsonrpc":"2.0","id":1,"method":"NoSuchMethod","params":{}}`, -32601},
		{`{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{}}`, -32602},
	} {
		h.wantRefused(send(c.body), a2aError{name: "the error of JSON-RPC", code: c.code})
	}
	for _, id := range []string{`"kit \u00e9"`, `7`} {
		a := send(`{"jsonrpc":"2.0","id":` + id + `,"method":"GetTask","params":{"id":"` + unknownA2ATask + `"}}`)
		want, got := new(any), new(any)
		_ = json.Unmarshal([]byte(id), want)             // it is valid
		_ = json.Unmarshal(a.Members["id"], got)         // on an error it stays nil
		h.Want(*want == *got, a.Answer, "the id %s", id) // texts and numbers compare by value
	}
}

// a2aTaskChecks test tasks.
var a2aTaskChecks = []a2aCheck{
	{Number: "a2a.task.kept", Title: "A task that SendMessage has answered can be read at once, in each binding",
		Cites: `A2A 1.0 3.1.1, 3.1.3; A-14`, Run: func(h *a2aProbe) {
			task := h.send(h.server.bindings[0], h.server.Bearer, nil)
			for _, b := range h.server.bindings {
				got := h.ask(b, "GetTask", kit.Message{"id": task.Text("id")}).result
				h.Want(got.Text("id") == task.Text("id") && got.Text("contextId") == task.Text("contextId"), got,
					"the task %s of the context %s", task.Text("id"), task.Text("contextId"))
			}
		}},
	{Number: "a2a.task.context", Title: "A task begins in the context that its message names",
		Cites: `A2A 1.0 3.4.1; A-25`,
		Run: func(h *a2aProbe) {
			b := h.server.bindings[0]
			first := h.send(b, h.server.Bearer, nil)
			next := h.send(b, h.server.Bearer, kit.Message{"contextId": first.Text("contextId")})
			h.Want(next.Text("contextId") == first.Text("contextId") && next.Text("id") != first.Text("id"), next,
				"another task of the context %s", first.Text("contextId"))
		}},
	{Number: "a2a.task.history", Title: "historyLength bounds the history", Cites: `A2A 1.0 3.2.4; A-29`, Wait: time.Second,
		Run: func(h *a2aProbe) {
			id := h.over(h.server.bindings[0]).Text("id")
			for _, b := range h.server.bindings {
				for length := range 2 {
					got := h.ask(b, "GetTask", kit.Message{"id": id, "historyLength": length}).result
					history, _ := got.List("history")
					h.Want(len(history) <= length, got, "at most %d messages", length)
				}
			}
		}},
	{Number: "a2a.task.over", Title: "A task that is over takes no message and no cancel",
		Cites: `A2A 1.0 3.1.1, 3.1.5; A-19, A-35`,
		Wait:  time.Second, Run: func(h *a2aProbe) {
			task := h.over(h.server.bindings[0])
			id := task.Text("id")
			for _, b := range h.server.bindings {
				h.refuse(b, "SendMessage", said("More.", kit.Message{"taskId": id}), a2aUnsupported)
				h.refuse(b, "CancelTask", kit.Message{"id": id}, a2aNotCancelable)
				got := h.ask(b, "GetTask", kit.Message{"id": id}).result
				h.Want(stateOf(got) == stateOf(task), got, "the state is still %s", stateOf(task))
			}
		}},
	{Number: "a2a.task.cancel", Title: "A canceled task stays canceled", Cites: `A2A 1.0 3.1.5; A-35`, Wait: time.Second,
		Run: func(h *a2aProbe) {
			b := h.server.bindings[0]
			id := h.sendText(b, h.server.Bearer, slowOfKit, nil).Text("id")
			a := h.call(b, a2aCall{method: "CancelTask", params: kit.Message{"id": id}, key: h.server.Bearer})
			if got := h.ask(b, "GetTask", kit.Message{"id": id}).result; a.result.Members == nil && isOver(stateOf(got)) {
				h.wantRefused(a, a2aNotCancelable)
				h.End(kit.NotTested, "the agent ended its task before it could be canceled")
			}
			h.wantResult(a)
			h.Want(stateOf(a.result) == "CANCELED", a.Answer, "the state CANCELED")
			h.Sleep(time.Second) // in which the agent may still answer
			got := h.ask(b, "GetTask", kit.Message{"id": id}).result
			h.Want(stateOf(got) == "CANCELED", got, "the state is still CANCELED")
		}},
}

// a2aListChecks test ListTasks.
var a2aListChecks = []a2aCheck{
	{Number: "a2a.list.pages", Title: "The pages of a list have each task once, the newest status first",
		Cites: `A2A 1.0 3.1.4; A-28`, Wait: time.Second, Run: a2aPages},
	{Number: "a2a.list.empty", Title: "The list of a context without tasks is empty, and never null",
		Cites: `A2A 1.0 3.1.4; A-28`,
		Run: func(h *a2aProbe) {
			for _, b := range h.server.bindings {
				h.wantList(h.ask(b, "ListTasks", kit.Message{"contextId": unknownA2ATask}), 0)
			}
		}},
	{Number: "a2a.list.params", Title: "A page size that is not from 1 to 100, and a bad page token, are refused",
		Cites: `A2A 1.0 3.1.4; A-28`, Run: func(h *a2aProbe) {
			for _, b := range h.server.bindings {
				for _, params := range []kit.Message{{"pageSize": 0}, {"pageSize": 101}, {"pageSize": -1},
					{"pageToken": "no such token"}} {
					h.refuse(b, "ListTasks", params, a2aBadParams)
				}
			}
		}},
}

// wantList ends the check unless the answer is a page of a list with this total. It returns the tasks.
func (h *a2aProbe) wantList(a a2aAnswer, total int) (tasks []kit.Answer) {
	rows, ok := a.result.List("tasks")
	_, token := a.result.Members["nextPageToken"]
	var size int
	sized := json.Unmarshal(a.result.Members["totalSize"], &size) == nil
	h.Want(ok && token && sized && size == total, a.Answer, "tasks, nextPageToken, and the totalSize %d", total)
	for _, row := range rows {
		tasks = append(tasks, kit.ParseRow(row))
	}
	return tasks
}

func a2aPages(h *a2aProbe) {
	b := h.server.bindings[0]
	first := h.over(b)
	contextID := first.Text("contextId")
	made := []string{first.Text("id")}
	for range 2 {
		made = append(made, h.send(b, h.server.Bearer, kit.Message{"contextId": contextID}).Text("id"))
	}
	for _, id := range made { // so that no status changes while the pages are read
		h.call(b, a2aCall{method: "CancelTask", params: kit.Message{"id": id}, key: h.server.Bearer})
	}
	for _, b := range h.server.bindings {
		var seen, times []string
		params := kit.Message{"contextId": contextID, "pageSize": 1}
		for range len(made) + 1 {
			a := h.ask(b, "ListTasks", params)
			tasks := h.wantList(a, len(made))
			h.Want(len(tasks) == 1, a.Answer, "one task on the page")
			seen = append(seen, tasks[0].Text("id"))
			times = append(times, tasks[0].Object("status").Text("timestamp"))
			token := a.result.Text("nextPageToken")
			if token == "" {
				break
			}
			params["pageToken"] = token
		}
		h.Expect("each of the tasks %v once, by the timestamps of their status", made)
		newest := slices.Clone(times)
		slices.SortStableFunc(newest, func(x, y string) int { return strings.Compare(y, x) })
		sorted, all := slices.Sorted(slices.Values(seen)), slices.Sorted(slices.Values(made))
		if !slices.Equal(sorted, all) || !slices.Equal(newest, times) {
			h.Failf("%v with the timestamps %v", seen, times)
		}
	}
}
