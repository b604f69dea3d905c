package conformance

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// a2aBindingChecks test what all operations of a binding have in common.
var a2aBindingChecks = []a2aCheck{
	{number: "a2a.binding.same", title: "Both bindings show the same task", cites: `A2A 1.0 5.1; A-2`,
		needs: needsBothBindings,
		wait:  second, run: func(h *a2aProbe) {
			task := h.over(h.server.bindings[0])
			var texts [][]byte
			var last answer
			for _, b := range h.server.bindings {
				last = h.ask(b, "GetTask", message{"id": task.text("id")}).result
				texts = append(texts, canonical(last.members))
			}
			h.want(bytes.Equal(texts[0], texts[1]), last, "the task as in %s: %s", h.server.bindings[0].name,
				excerpt(texts[0], 400))
		}},
	{number: "a2a.binding.unknown", title: "An unknown task is answered with TaskNotFoundError",
		cites: `A2A 1.0 3.3.2, 5.4; A-9`,
		run: func(h *a2aProbe) {
			for _, b := range h.server.bindings {
				h.refuse(b, "GetTask", message{"id": unknownA2ATask}, a2aNoTask)
				h.refuse(b, "CancelTask", message{"id": unknownA2ATask}, a2aNoTask)
				h.refuse(b, "SendMessage", said("Hello.", message{"taskId": unknownA2ATask}), a2aNoTask)
			}
		}},
	{number: "a2a.binding.version",
		title: "A version that the card does not name is answered with VersionNotSupportedError",
		cites: `A2A 1.0 3.6.2; A-11`, run: func(h *a2aProbe) {
			for _, b := range h.server.bindings {
				h.wantRefused(h.call(b, a2aCall{method: "GetTask", params: message{"id": unknownA2ATask}, key: h.server.Bearer,
					header: http.Header{"A2a-Version": {"9.9"}}}), a2aVersion)
			}
		}},
	{number: "a2a.rpc.requests",
		title: "What is no request of JSON-RPC has its own errors, and answers have the id of the request",
		cites: `A2A 1.0 9.1; JSON-RPC 4, 5; A-9`, needs: needsJSONRPC, run: a2aRequests},
}

func a2aRequests(h *a2aProbe) {
	b := h.server.binding(bindingRPC)
	send := func(body string) a2aAnswer {
		return h.exchange(b, retryableRequest{method: http.MethodPost, header: h.server.header(h.server.Bearer),
			body: []byte(body)})
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
		_ = json.Unmarshal(a.members["id"], got)         // on an error it stays nil
		h.want(*want == *got, a.answer, "the id %s", id) // texts and numbers compare by value
	}
}

// a2aTaskChecks test tasks.
var a2aTaskChecks = []a2aCheck{
	{number: "a2a.task.kept", title: "A task that SendMessage has answered can be read at once, in each binding",
		cites: `A2A 1.0 3.1.1, 3.1.3; A-14`, run: func(h *a2aProbe) {
			task := h.send(h.server.bindings[0], h.server.Bearer, nil)
			for _, b := range h.server.bindings {
				got := h.ask(b, "GetTask", message{"id": task.text("id")}).result
				h.want(got.text("id") == task.text("id") && got.text("contextId") == task.text("contextId"), got,
					"the task %s of the context %s", task.text("id"), task.text("contextId"))
			}
		}},
	{number: "a2a.task.context", title: "A task begins in the context that its message names",
		cites: `A2A 1.0 3.4.1; A-25`,
		run: func(h *a2aProbe) {
			b := h.server.bindings[0]
			first := h.send(b, h.server.Bearer, nil)
			next := h.send(b, h.server.Bearer, message{"contextId": first.text("contextId")})
			h.want(next.text("contextId") == first.text("contextId") && next.text("id") != first.text("id"), next,
				"another task of the context %s", first.text("contextId"))
		}},
	{number: "a2a.task.history", title: "historyLength bounds the history", cites: `A2A 1.0 3.2.4; A-29`, wait: second,
		run: func(h *a2aProbe) {
			id := h.over(h.server.bindings[0]).text("id")
			for _, b := range h.server.bindings {
				for length := range 2 {
					got := h.ask(b, "GetTask", message{"id": id, "historyLength": length}).result
					history, _ := got.list("history")
					h.want(len(history) <= length, got, "at most %d messages", length)
				}
			}
		}},
	{number: "a2a.task.over", title: "A task that is over takes no message and no cancel",
		cites: `A2A 1.0 3.1.1, 3.1.5; A-19, A-35`,
		wait:  second, run: func(h *a2aProbe) {
			task := h.over(h.server.bindings[0])
			id := task.text("id")
			for _, b := range h.server.bindings {
				h.refuse(b, "SendMessage", said("More.", message{"taskId": id}), a2aUnsupported)
				h.refuse(b, "CancelTask", message{"id": id}, a2aNotCancelable)
				got := h.ask(b, "GetTask", message{"id": id}).result
				h.want(stateOf(got) == stateOf(task), got, "the state is still %s", stateOf(task))
			}
		}},
	{number: "a2a.task.cancel", title: "A canceled task stays canceled", cites: `A2A 1.0 3.1.5; A-35`, wait: second,
		run: func(h *a2aProbe) {
			b := h.server.bindings[0]
			id := h.sendText(b, h.server.Bearer, slowOfKit, nil).text("id")
			a := h.call(b, a2aCall{method: "CancelTask", params: message{"id": id}, key: h.server.Bearer})
			if got := h.ask(b, "GetTask", message{"id": id}).result; a.result.members == nil && isOver(stateOf(got)) {
				h.wantRefused(a, a2aNotCancelable)
				h.end(NotTested, "the agent ended its task before it could be canceled")
			}
			h.wantResult(a)
			h.want(stateOf(a.result) == "CANCELED", a.answer, "the state CANCELED")
			h.sleep(second) // in which the agent may still answer
			got := h.ask(b, "GetTask", message{"id": id}).result
			h.want(stateOf(got) == "CANCELED", got, "the state is still CANCELED")
		}},
}

// a2aListChecks test ListTasks.
var a2aListChecks = []a2aCheck{
	{number: "a2a.list.pages", title: "The pages of a list have each task once, the newest status first",
		cites: `A2A 1.0 3.1.4; A-28`, wait: second, run: a2aPages},
	{number: "a2a.list.empty", title: "The list of a context without tasks is empty, and never null",
		cites: `A2A 1.0 3.1.4; A-28`,
		run: func(h *a2aProbe) {
			for _, b := range h.server.bindings {
				h.wantList(h.ask(b, "ListTasks", message{"contextId": unknownA2ATask}), 0)
			}
		}},
	{number: "a2a.list.params", title: "A page size that is not from 1 to 100, and a bad page token, are refused",
		cites: `A2A 1.0 3.1.4; A-28`, run: func(h *a2aProbe) {
			for _, b := range h.server.bindings {
				for _, params := range []message{{"pageSize": 0}, {"pageSize": 101}, {"pageSize": -1},
					{"pageToken": "no such token"}} {
					h.refuse(b, "ListTasks", params, a2aBadParams)
				}
			}
		}},
}

// wantList ends the check unless the answer is a page of a list with this total. It returns the tasks.
func (h *a2aProbe) wantList(a a2aAnswer, total int) (tasks []answer) {
	rows, ok := a.result.list("tasks")
	_, token := a.result.members["nextPageToken"]
	var size int
	sized := json.Unmarshal(a.result.members["totalSize"], &size) == nil
	h.want(ok && token && sized && size == total, a.answer, "tasks, nextPageToken, and the totalSize %d", total)
	for _, row := range rows {
		tasks = append(tasks, parseRow(row))
	}
	return tasks
}

func a2aPages(h *a2aProbe) {
	b := h.server.bindings[0]
	first := h.over(b)
	contextID := first.text("contextId")
	made := []string{first.text("id")}
	for range 2 {
		made = append(made, h.send(b, h.server.Bearer, message{"contextId": contextID}).text("id"))
	}
	for _, id := range made { // so that no status changes while the pages are read
		h.call(b, a2aCall{method: "CancelTask", params: message{"id": id}, key: h.server.Bearer})
	}
	for _, b := range h.server.bindings {
		var seen, times []string
		params := message{"contextId": contextID, "pageSize": 1}
		for range len(made) + 1 {
			a := h.ask(b, "ListTasks", params)
			tasks := h.wantList(a, len(made))
			h.want(len(tasks) == 1, a.answer, "one task on the page")
			seen = append(seen, tasks[0].text("id"))
			times = append(times, tasks[0].object("status").text("timestamp"))
			token := a.result.text("nextPageToken")
			if token == "" {
				break
			}
			params["pageToken"] = token
		}
		h.expect("each of the tasks %v once, by the timestamps of their status", made)
		newest := slices.Clone(times)
		slices.SortStableFunc(newest, func(x, y string) int { return strings.Compare(y, x) })
		sorted, all := slices.Sorted(slices.Values(seen)), slices.Sorted(slices.Values(made))
		if !slices.Equal(sorted, all) || !slices.Equal(newest, times) {
			h.failf("%v with the timestamps %v", seen, times)
		}
	}
}
