package a2a

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// a2aProbe is the context of one running check of an A2A server.
type a2aProbe struct {
	kit.GatewayProbe
	server *a2aRun
}

// a2aAnswer is an answer of an operation, in either binding.
type a2aAnswer struct {
	kit.Answer
	rpc    bool
	result kit.Answer // what the operation returns; without members: it returned an error
}

// a2aError is an error of the specification.
type a2aError struct {
	name   string
	code   int   // in JSON-RPC
	status []int // in HTTP+JSON; 1.0.0 and 1.0.1 differ
	reason string
}

var (
	a2aNoTask        = a2aError{"TaskNotFoundError", -32001, []int{404}, "TASK_NOT_FOUND"}
	a2aNotCancelable = a2aError{"TaskNotCancelableError", -32002, []int{400, 409}, "TASK_NOT_CANCELABLE"}
	a2aUnsupported   = a2aError{"UnsupportedOperationError", -32004, []int{400}, "UNSUPPORTED_OPERATION"}
	a2aVersion       = a2aError{"VersionNotSupportedError", -32009, []int{400}, "VERSION_NOT_SUPPORTED"}
	a2aBadParams     = a2aError{"invalid params", -32602, []int{400}, ""}
)

// a2aCall is a request for an operation.
type a2aCall struct {
	method string
	params kit.Message
	key    string // of the caller
	header http.Header
}

// targetOf returns the request of HTTP+JSON for an operation.
func (c a2aCall) targetOf() (verb, target string, body []byte) {
	id := url.PathEscape(fmt.Sprint(c.params["id"]))
	query := url.Values{}
	for name, value := range c.params {
		if name != "id" {
			query.Set(name, fmt.Sprint(value))
		}
	}
	suffix := ""
	if len(query) > 0 {
		suffix = "?" + query.Encode()
	}
	switch c.method {
	case "SendMessage":
		return http.MethodPost, "/message:send", kit.Canonical(c.params)
	case "SendStreamingMessage":
		return http.MethodPost, "/message:stream", kit.Canonical(c.params)
	case "GetTask":
		return http.MethodGet, "/tasks/" + id + suffix, nil
	case "ListTasks":
		return http.MethodGet, "/tasks" + suffix, nil
	case "CancelTask":
		return http.MethodPost, "/tasks/" + id + ":cancel", []byte("{}")
	}
	return http.MethodGet, "/tasks/" + id + ":subscribe", nil
}

// request returns the HTTP request for an operation in this binding.
func (b *a2aBinding) request(c a2aCall, header http.Header) kit.RetryableRequest {
	for name, values := range c.header {
		header[name] = values
	}
	if b.name == bindingHTTP {
		verb, target, body := c.targetOf()
		return kit.RetryableRequest{Method: verb, Target: target, Header: header, Body: body}
	}
	return kit.RetryableRequest{Method: http.MethodPost, Header: header, Body: kit.Canonical(kit.Message{"jsonrpc": "2.0",
		"id":     "kit",
		"method": c.method, "params": c.params})}
}

// a2aHold is how long an answer may take in addition, because the server waits for the agent.
const a2aHold = time.Minute

// call sends a request for an operation.
func (h *a2aProbe) call(b *a2aBinding, c a2aCall) a2aAnswer {
	r := b.request(c, h.server.header(c.key))
	r.Hold = a2aHold
	return h.exchange(b, r)
}

// exchange sends a request in a binding.
func (h *a2aProbe) exchange(b *a2aBinding, r kit.RetryableRequest) a2aAnswer {
	h.NoteSent(strings.TrimSpace(fmt.Sprintf("%s %s%s\n%s", r.Method, b.client.BaseURL, r.Target, kit.Excerpt(r.Body,
		700))))
	h.Pace.Wait(h.Ctx, r.Method, r.Target)
	a := a2aAnswer{Answer: b.client.DoWithRetries(h.Ctx, r, h.Pace.Refused), rpc: b.name == bindingRPC}
	switch {
	case a.rpc:
		a.result = kit.ParseRow(a.Members["result"])
	case a.Status < 300:
		a.result = kit.Answer{Members: a.Members, Body: a.Body}
	}
	return a
}

// ask calls an operation as the first caller. It must succeed.
func (h *a2aProbe) ask(b *a2aBinding, method string, params kit.Message) a2aAnswer {
	a := h.call(b, a2aCall{method: method, params: params, key: h.server.Bearer})
	h.wantResult(a)
	return a
}

// wantResult ends the check unless the operation has returned something.
func (h *a2aProbe) wantResult(a a2aAnswer) {
	if kit.IsRateLimit(a.Answer) {
		h.End(kit.Skipped, "the server takes no more messages for now: %s", a)
	}
	h.Want(a.Err == nil && a.Status < 300 && a.result.Members != nil, a.Answer, "a result")
}

// refuse calls an operation as the first caller. It must return this error.
func (h *a2aProbe) refuse(b *a2aBinding, method string, params kit.Message, e a2aError) {
	h.wantRefused(h.call(b, a2aCall{method: method, params: params, key: h.server.Bearer}), e)
}

// wantRefused ends the check unless a is this error.
func (h *a2aProbe) wantRefused(a a2aAnswer, e a2aError) {
	refused := a.Object("error")
	var code int
	_ = json.Unmarshal(refused.Members["code"], &code) // on an error it stays 0
	holds := code == e.code
	details := "data"
	if !a.rpc {
		holds, details = slices.Contains(e.status, a.Status), "details"
	}
	if e.reason != "" && holds {
		list, _ := refused.List(details)
		holds = slices.ContainsFunc(list, func(raw json.RawMessage) bool {
			return kit.ParseRow(raw).Text(
				"reason") == e.reason
		})
	}
	h.Want(a.Err == nil && holds, a.Answer,
		"%s: the code %d in JSON-RPC, the status %v in HTTP+JSON, and an ErrorInfo with the reason %q",
		e.name, e.code, e.status, e.reason)
}

// said returns the params of a message with a new messageId. more are further members of the message.
func said(text string, more kit.Message) kit.Message {
	m := kit.Message{"messageId": "kit-" + strings.ToLower(rand.Text()), "role": "ROLE_USER",
		"parts": []any{kit.Message{"text": text}}}
	for name, value := range more {
		m[name] = value
	}
	return kit.Message{"message": m}
}

// What the kit says. An agent that takes the second one's time lets the kit open streams and cancel.
const (
	helloOfKit = "Hello from the conformance kit."
	slowOfKit  = "Hello from the conformance kit. Please take some time for your answer."
)

// send sends a text and returns the task. The call returns at once.
func (h *a2aProbe) send(b *a2aBinding, key string, more kit.Message) kit.Answer {
	return h.sendText(b, key, helloOfKit, more)
}

func (h *a2aProbe) sendText(b *a2aBinding, key, text string, more kit.Message) kit.Answer {
	params := said(text, more)
	params["configuration"] = kit.Message{"returnImmediately": true}
	a := h.call(b, a2aCall{method: "SendMessage", params: params, key: key})
	h.wantResult(a)
	if a.result.Members["message"] != nil {
		h.End(kit.NotTested, "this agent answers with messages, not with tasks")
	}
	task := taskOf(a)
	h.Want(task.Text("id") != "" && task.Text("contextId") != "" && stateOf(task) != "", a.Answer,
		"a task with id, contextId and status.state")
	return task
}

// stateOf returns the state of a task, without TASK_STATE_.
func stateOf(task kit.Answer) string {
	return strings.TrimPrefix(task.Object("status").Text("state"), "TASK_STATE_")
}

// isOver reports whether a task never changes again.
func isOver(state string) bool {
	return slices.Contains([]string{"COMPLETED", "FAILED", "CANCELED", "REJECTED"}, state)
}

// isAsking reports whether a task waits for its caller.
func isAsking(state string) bool { return state == "INPUT_REQUIRED" || state == "AUTH_REQUIRED" }

// over returns a task that never changes again. A task that the agent does not end is canceled.
func (h *a2aProbe) over(b *a2aBinding) kit.Answer {
	task := h.send(b, h.server.Bearer, nil)
	id := task.Text("id")
	for deadline := time.Now().Add(patienceOfKit); !isOver(stateOf(task)); {
		if isAsking(stateOf(task)) || time.Now().After(deadline) {
			task = h.ask(b, "CancelTask", kit.Message{"id": id}).result
			h.Want(stateOf(task) == "CANCELED", task, "the task is canceled")
			break
		}
		h.Sleep(100 * time.Millisecond)
		task = h.ask(b, "GetTask", kit.Message{"id": id}).result
	}
	return task
}

// patienceOfKit is how long a check waits for the agent.
const patienceOfKit = 40 * time.Second

// unknownA2ATask is the id of no task.
const unknownA2ATask = "tsk_conformancekitunknown000000"
