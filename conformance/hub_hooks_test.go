package conformance_test

import (
	"io"
	"net/http"
	"strings"
	"time"
)

// webhookFaults are faults of the requests that the hub sends, and of what it does with the replies. A program between
// the hub and the run's server makes them.
func webhookFaults() []fault {
	return []fault{
		{name: "names no message in the call", hook: forwards(
			func(w http.ResponseWriter, r *http.Request, forward func() *http.Response) {
				r.Header.Del("Chorus-Trace-Id")
				passOn(w, forward())
			}), fails: map[string]string{"hub.webhook.request": "POST with the header", "hub.webhook.retry": `with ""`,
			"hub.lane.order": ""}},
		{name: "calls each webhook twice", hook: forwards(
			func(w http.ResponseWriter, _ *http.Request, forward func() *http.Response) {
				_ = forward().Body.Close() // the first answer is ignored
				passOn(w, forward())
			}), fails: map[string]string{"hub.webhook.ok": "2 calls", "hub.webhook.error": "2 calls",
			"hub.webhook.refused": "2 calls", "hub.webhook.retry": "after", "hub.lane.order": "",
			"hub.lane.takeover": "2 calls", "hub.lane.current": "2 calls", "hub.lane.deleted": "2 calls"}},
		{
			name: "passes on everything that a webhook says",
			front: editsAnswers(func(r *http.Request, a *exchange) {
				if reply, ok := a.data()["receiver_response"].(object); ok && isSend(r) {
					reply["other"] = "53cr3t"
				}
			}),
			fails: map[string]string{"hub.webhook.ok": "53cr3t"},
		},
		{name: "takes only a reply of the protocol as success", hook: forwards(
			func(w http.ResponseWriter, _ *http.Request, forward func() *http.Response) {
				answer := forward()
				body, _ := io.ReadAll(answer.Body) // the hub may be gone
				if answer.StatusCode < 300 && !strings.Contains(string(body), `"status"`) {
					w.WriteHeader(http.StatusBadGateway)
					return
				}
				answer.Body = io.NopCloser(strings.NewReader(string(body)))
				passOn(w, answer)
			}), fails: map[string]string{"hub.webhook.other-success": "status 202"}},
		{name: "takes every reply as success", hook: forwards(
			func(w http.ResponseWriter, _ *http.Request, forward func() *http.Response) {
				_ = forward().Body.Close() // the answer is ignored
				_, _ = io.WriteString(w, `{"status":"ok"}`)
			}), fails: map[string]string{"hub.webhook.other-success": "receiver_response",
			"hub.webhook.error": "delivered",
			"hub.webhook.cut":   "delivered", "hub.webhook.refused": "delivered", "hub.webhook.retry": "1 calls",
			"hub.lane.order": "8 calls", "hub.lane.takeover": "message came", "hub.lane.current": "0 calls",
			"hub.lane.deleted": "delivered"}},
		{name: "follows redirects", hook: forwards(
			func(w http.ResponseWriter, r *http.Request, forward func() *http.Response) {
				answer := forward()
				if to := answer.Header.Get("Location"); to != "" {
					r.URL.Path = to[strings.LastIndexByte(to, '/'):]
					answer = forward()
				}
				passOn(w, answer)
			}), fails: map[string]string{"hub.webhook.refused": "delivered"}},
		{name: "repeats a failed call at once", hook: forwards(
			func(w http.ResponseWriter, _ *http.Request, forward func() *http.Response) {
				answer := forward()
				for range 3 {
					if answer.StatusCode < 500 && answer.StatusCode != http.StatusTooManyRequests {
						break
					}
					answer = forward()
				}
				passOn(w, answer)
			}), fails: map[string]string{"hub.webhook.retry": "after", "hub.lane.retry-after": "after",
			"hub.lane.takeover": "calls",
			"hub.lane.current":  "calls", "hub.lane.deleted": "calls"}},
		{name: "does not wait for slow webhooks", hook: forwards(
			func(w http.ResponseWriter, _ *http.Request, forward func() *http.Response) {
				answered := make(chan *http.Response, 1)
				go func() { answered <- forward() }()
				select {
				case answer := <-answered:
					passOn(w, answer)
				case <-time.After(2 * time.Second):
					_, _ = io.WriteString(w, `{"status":"ok"}`) // the hub may be gone
				}
			}), fails: map[string]string{"hub.webhook.slow": "delivered"}},
		{name: "shows no webhook as online", front: editsAnswers(func(r *http.Request, a *exchange) {
			if hubPath(r) == "/discover" {
				a.text = []byte(strings.ReplaceAll(a.Body.String(), `"online":true`, `"online":false`))
			}
		}), fails: map[string]string{"hub.webhook.online": `"online":false`}},
		{name: "tells why it cannot reach a webhook", front: editsAnswers(func(r *http.Request, a *exchange) {
			if a.data()["detail"] == "unreachable" {
				a.data()["detail"] = "dial tcp 127.0.0.1:1: connect: connection refused"
			}
		}), fails: map[string]string{"hub.webhook.unreachable": "connection refused"}},
		{name: "prefers the webhook", front: callsWebhooksItself,
			fails: map[string]string{"hub.lane.stream-first": "1 calls", "hub.lane.takeover": "calls"}},
	}
}

// callsWebhooksItself calls the webhook of a receiver that has a stream.
func callsWebhooksItself(h http.Handler) http.Handler {
	return withKeys(func(h http.Handler, keys *keyring) http.Handler {
		return editsAnswers(func(r *http.Request, a *exchange) {
			id, _ := a.sent["receiver_id"].(string)
			if !isSend(r) || a.data()["delivery"] != "delivered_sse" {
				return
			}
			own := atHub(h, r, "GET", "/agents/"+id, keys.of(id), nil)
			if url, ok := own.data()["endpoint"].(string); ok {
				client := &http.Client{Timeout: 5 * time.Second}
				if answer, err := client.Post(url, "application/json", strings.NewReader("{}")); err == nil {
					_ = answer.Body.Close() // it is not read
				}
			}
		})(h)
	})(h)
}
