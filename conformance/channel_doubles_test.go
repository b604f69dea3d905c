package conformance_test

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/channel"
	"github.com/agora-relay/agora/relay/httpapi"
)

// Middlewares that wrap this project's channel service, or stand between it and the agents that it calls.

// startChannel runs this project's channel service until the test ends, and returns its URL.
func startChannel(t *testing.T, front middleware) string {
	t.Helper()
	url := startGateway(t, front, channel.Extension,
		func(core *gateway.Core) ([]httpapi.Mount, func(context.Context), error) {
			served, err := channel.New(t.Context(), core)
			if err != nil {
				return nil, nil, err
			}
			return served.Mounts("/channel"), served.Run, nil
		})
	return url + "/channel"
}

// textOf returns a value that is a text, or the empty text.
func textOf(v any) string {
	text, _ := v.(string)
	return text
}

func lessByOne(digits string) string {
	n, err := strconv.Atoi(digits)
	if err != nil {
		return digits
	}
	return strconv.Itoa(n - 1)
}

// rowsIn returns the objects in a list, and in a member beside it.
func rowsIn(body object, list, one string) (rows []object) {
	all, _ := body[list].([]any)
	for _, value := range append(all, body[one]) {
		if row, ok := value.(object); ok {
			rows = append(rows, row)
		}
	}
	return rows
}

// eachEvent is a middleware that changes the events in answers.
func eachEvent(change func(r *http.Request, event object)) middleware {
	return editsAnswers(func(r *http.Request, a *exchange) {
		for _, event := range rowsIn(a.body, "events", "event") {
			change(r, event)
		}
	})
}

// eachConnection is a middleware that changes the connections in answers.
func eachConnection(change func(row object)) middleware {
	return editsAnswers(func(_ *http.Request, a *exchange) {
		for _, row := range rowsIn(a.body, "connections", "connection") {
			change(row)
		}
	})
}

// tellsChannels answers 404 instead of 403 for a channel that nobody has created.
func tellsChannels(h http.Handler) http.Handler {
	var created sync.Map
	return editsAnswers(func(r *http.Request, a *exchange) {
		if channel, ok := a.body["channel"].(object); ok {
			created.Store(channel["id"], true)
		}
		if _, known := created.Load(channelOf(r)); !known && a.Code == http.StatusForbidden {
			setAnswer(a, http.StatusNotFound, refusedByChannel("NOT_FOUND"))
		}
	})(h)
}

// showsURLs adds to each connection the URL with which it was made.
func showsURLs(h http.Handler) http.Handler {
	var urls sync.Map // by the names of connections
	return editsAnswers(func(_ *http.Request, a *exchange) {
		if a.sent["url"] != nil && a.Code < 300 {
			urls.Store(a.sent["name"], a.sent["url"])
		}
		for _, row := range rowsIn(a.body, "connections", "connection") {
			if url, ok := urls.Load(row["name"]); ok {
				row["url"] = url
			}
		}
	})(h)
}

// believes shows as the sender of a channel's events whom a request has named.
func believes(h http.Handler) http.Handler {
	var named sync.Map // by channel
	return editsAnswers(func(r *http.Request, a *exchange) {
		if a.sent["sender"] != nil {
			named.Store(channelOf(r), a.sent["sender"])
		}
		if sender, ok := named.Load(channelOf(r)); ok {
			for _, event := range rowsIn(a.body, "events", "event") {
				event["sender"] = sender
			}
		}
	})(h)
}

// countsFrom2 gives the first event of a channel the number 2.
func countsFrom2(h http.Handler) http.Handler {
	return editsAnswers(func(_ *http.Request, a *exchange) {
		for _, row := range append(rowsIn(a.body, "events", "event"), a.body) {
			if seq, ok := wholeNumber(row["seq"]); ok {
				row["seq"] = seq + 1
			}
		}
	})(h)
}

// toolResults is a middleware that changes the results of tools.
func toolResults(change func(r *http.Request, result object)) middleware {
	return editsAnswers(func(r *http.Request, a *exchange) {
		result, _ := a.body["result"].(object)
		if got, ok := result["structuredContent"].(object); ok {
			change(r, got)
		}
	})
}

// showsAllMessages shows the messages of all channels to each agent.
func showsAllMessages(h http.Handler) http.Handler {
	var mu sync.Mutex
	var posted []any
	return toolResults(func(_ *http.Request, result object) {
		if list, ok := result["messages"].([]any); ok {
			mu.Lock()
			result["messages"] = append(list, posted...)
			mu.Unlock()
		}
	})(eachEvent(func(r *http.Request, event object) {
		if isFor(r, http.MethodPost, "/messages") {
			mu.Lock()
			posted = append(posted, event)
			mu.Unlock()
		}
	})(h))
}

// eachDelivery is a hook that changes deliveries.
func eachDelivery(change func(r *http.Request, body object)) middleware {
	return editsRequests(func(r *http.Request, body object) {
		if body["message"] != nil {
			change(r, body)
		}
	})
}

func senderOf(delivery object) any {
	message, _ := delivery["message"].(object)
	return message["sender"]
}

// attempt returns what tells an attempt of a delivery from those of other deliveries.
func attempt(r *http.Request) string { return r.URL.Path + " " + r.Header.Get("Idempotency-Key") }

// repeatsTokens is a hook that sends the tokens of the first attempt in all others.
func repeatsTokens() middleware {
	var first sync.Map
	return eachDelivery(func(r *http.Request, body object) {
		old, _ := first.LoadOrStore(attempt(r), [2]any{body["callback"], body["mcp"]})
		body["callback"] = old.([2]any)[0]
		if body["mcp"] != nil {
			body["mcp"] = old.([2]any)[1]
		}
	})
}

// otherIDs is a hook that changes the id of a message in all attempts but the first.
func otherIDs() middleware {
	var seen sync.Map
	return eachDelivery(func(r *http.Request, body object) {
		if _, again := seen.LoadOrStore(attempt(r), true); again {
			body["message"].(object)["id"] = "msg_" + strings.Repeat("a", 26)
		}
	})
}

// firstAttempts is a hook that passes on only the first attempt of a delivery.
func firstAttempts() middleware {
	var seen sync.Map
	return swallows(func(r *http.Request, _ object) bool {
		_, again := seen.LoadOrStore(attempt(r), true)
		return again
	})
}

// swapsDeliveries is a hook that keeps the first delivery to each connection until it has passed on the second.
func swapsDeliveries() middleware {
	var mu sync.Mutex
	held := map[string][]byte{} // by path; nil: it was passed on
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body := readBody(r)
			mu.Lock()
			first, known := held[r.URL.Path]
			held[r.URL.Path] = nil
			if !known {
				held[r.URL.Path] = body
			}
			mu.Unlock()
			if !known {
				return
			}
			forwards(func(w http.ResponseWriter, r *http.Request, forward func() *http.Response) {
				passOn(w, forward())
				if first != nil {
					again := r.Clone(r.Context())
					setBody(again, first)
					recorded(h, again)
				}
			})(h).ServeHTTP(w, r)
		})
	}
}

// oneAtATime is a hook that passes on one request at a time.
func oneAtATime(h http.Handler) http.Handler {
	var mu sync.Mutex
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		h.ServeHTTP(w, r)
	})
}

// atMost is a hook that passes on n deliveries to each connection.
func atMost(n int) middleware {
	var mu sync.Mutex
	passed := map[string]int{}
	return swallows(func(r *http.Request, _ object) bool {
		mu.Lock()
		defer mu.Unlock()
		passed[r.URL.Path]++
		return passed[r.URL.Path] > n
	})
}

// opensCallbacksLate is a service whose callbacks work only after the agent has answered.
func opensCallbacksLate() fault {
	var open sync.Map
	return fault{name: "opens callbacks late",
		front: refuses(http.StatusNotFound, refusedByChannel("NOT_FOUND"), func(r *http.Request, _ object) bool {
			_, known := open.Load(r.URL.Path)
			return isFor(r, "", "/inbox/") && !known
		}),
		hook: func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				callback := textOf(decode(readBody(r))["callback"])
				h.ServeHTTP(w, r)
				if i := strings.Index(callback, "/channel/"); i >= 0 {
					open.Store(callback[i:], true)
				}
			})
		}, fails: map[string]string{"N-83": "status 404"}, also: channels().ofTheme("Callback")}
}
