package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// Middlewares and stores that wrap those of this project's relay and add one fault each.

func isPost(r *http.Request) bool { return r.Method == http.MethodPost && r.URL.Path == "/events" }
func isPoll(r *http.Request) bool { return r.Method == http.MethodGet && r.URL.Path == "/events" }

// acceptsRefusals is a middleware that answers 200 instead of a refusal for which when is true.
func acceptsRefusals(when func(envelope, answer object) bool) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !isPost(r) {
				h.ServeHTTP(w, r)
				return
			}
			e := decode(readBody(r))
			answer := recorded(h, r)
			if a := decode(answer.Body.Bytes()); a["ok"] == false && when(e, a) {
				_, _ = w.Write(encode(object{"ok": true, "id": e["id"], "duplicate": false}))
				return
			}
			send(w, answer, answer.Body.Bytes())
		})
	}
}

// refusesPosts is a middleware that refuses the messages for which when is true.
func refusesPosts(when func(envelope object) bool) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !isPost(r) || !when(decode(readBody(r))) {
				h.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write(encode(object{"ok": false, "error": "FORBIDDEN", "message": "no", "retryable": false}))
		})
	}
}

func refusedFor(code string) func(e, a object) bool {
	return func(_, a object) bool { return a["error"] == code }
}

// rewritesEvents is a middleware that changes the events in the answers to polls.
func rewritesEvents(change func(events []json.RawMessage) []json.RawMessage) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !isPoll(r) {
				h.ServeHTTP(w, r)
				return
			}
			answer := recorded(h, r)
			var page map[string]json.RawMessage
			var events []json.RawMessage
			body := answer.Body.Bytes()
			if json.Unmarshal(body, &page) == nil && json.Unmarshal(page["events"], &events) == nil {
				// The list is joined here, because json.Marshal would change the bytes of the events.
				list := append([]byte("["), bytes.Join(rawBytes(change(events)), []byte(","))...)
				delete(page, "events")
				body = append(append([]byte(`{"events":`), append(list, "],"...)...), encode(page)[1:]...)
			}
			send(w, answer, body)
		})
	}
}

func rawBytes(events []json.RawMessage) [][]byte {
	list := make([][]byte, len(events))
	for i, e := range events {
		list[i] = e
	}
	return list
}

func encodesDifferently(events []json.RawMessage) []json.RawMessage {
	for i, e := range events {
		v := decode(e)
		if payload, ok := v["payload"].(object); ok {
			if params, ok := payload["params"].(object); ok && params["big"] != nil {
				params["big"] = json.Number("1e+21")
				params["tenth"] = float32(0.1)
				params["long"] = json.Number("9007199254740991")
			}
		}
		events[i] = encode(v) // this also escapes < and >
	}
	return events
}

func addsMember(events []json.RawMessage) []json.RawMessage {
	for i, e := range events {
		v := decode(e)
		v["receivedAt"] = "2026-01-01T00:00:00Z"
		events[i] = encode(v)
	}
	return events
}

func sortsByTS(events []json.RawMessage) []json.RawMessage {
	slices.SortStableFunc(events, func(a, b json.RawMessage) int {
		return strings.Compare(decode(a)["ts"].(string), decode(b)["ts"].(string))
	})
	return events
}

// deliversDuplicates is a middleware that accepts a repeated message as new and delivers it again.
func deliversDuplicates(h http.Handler) http.Handler {
	var mu sync.Mutex
	times := map[string]int{}
	posts := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isPost(r) {
			h.ServeHTTP(w, r)
			return
		}
		e := decode(readBody(r))
		id, _ := e["id"].(string)
		answer := recorded(h, r)
		a := decode(answer.Body.Bytes())
		if a["ok"] == true || a["error"] == "DUPLICATE_ID" {
			mu.Lock()
			times[id]++
			mu.Unlock()
			_, _ = w.Write(encode(object{"ok": true, "id": id, "duplicate": false}))
			return
		}
		send(w, answer, answer.Body.Bytes())
	})
	return rewritesEvents(func(events []json.RawMessage) (all []json.RawMessage) {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range events {
			id, _ := decode(e)["id"].(string)
			for range max(1, times[id]) {
				all = append(all, e)
			}
		}
		return all
	})(posts)
}

func dropsParameter(name string) middleware {
	return withQuery("/events", func(q url.Values) { q.Del(name) })
}

func setsParameter(name, value string) middleware {
	return withQuery("/events", func(q url.Values) { q.Set(name, value) })
}

func ignoresUnknownParameters(h http.Handler) http.Handler {
	return withQuery("/events", func(q url.Values) {
		for name := range q {
			if !slices.Contains(
				[]string{"since", "cursor", "before", "recipient", "sender", "type", "thread", "broadcast", "timeout", "limit"},
				name) {
				q.Del(name)
			}
		}
	})(h)
}

// sinceInclusive is a middleware that treats since as >= instead of >. So the event with exactly the ts since is
// delivered again.
func sinceInclusive(h http.Handler) http.Handler {
	return withQuery("/events", func(q url.Values) {
		if since, ok := envelope.ParseTime(q.Get("since")); ok {
			q.Set("since", since.Add(-time.Nanosecond).Format(time.RFC3339Nano))
		}
	})(h)
}

// literalSince returns a store that returns only events with ts > since, without the rules of PROTOCOL §7.
func literalSince(s relay.Store) relay.Store { return literal{s} }

type literal struct{ relay.Store }

func (l literal) Read(ctx context.Context, q relay.Query) (relay.Page, error) {
	if !q.TS.IsZero() { // no bookmarks
		return relay.Page{}, nil
	}
	newer := q.NewerThan
	page, err := l.Store.Read(ctx, q)
	if !newer.IsZero() {
		page.Events = slices.DeleteFunc(page.Events, func(e relay.Event) bool { return !e.TS.After(newer) })
	}
	return page, err
}

// neverNotifies is a store that never reports new events.
type neverNotifies struct{ relay.Store }

func (neverNotifies) Watch(ctx context.Context, _ relay.Cursor, _ func() relay.Wanted, _ func([]relay.Posted)) error {
	<-ctx.Done()
	return ctx.Err()
}

// neverExpires is a store that also returns expired events.
type neverExpires struct{ relay.Store }

func (a neverExpires) Read(ctx context.Context, q relay.Query) (relay.Page, error) {
	q.Expired = true
	page, err := a.Store.Read(ctx, q)
	for i := range page.Events {
		page.Events[i].Expires = page.Events[i].Expires.Add(time.Hour)
	}
	return page, err
}

// comparesIDsOnly is a middleware that refuses an id that another sender has used.
func comparesIDsOnly(h http.Handler) http.Handler {
	var mu sync.Mutex
	senders := map[any]any{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if e := decode(readBody(r)); isPost(r) && e["id"] != nil {
			sender := encode(e["sender"])
			mu.Lock()
			first, found := senders[e["id"]]
			if !found {
				senders[e["id"]] = string(sender)
			}
			mu.Unlock()
			if found && first != string(sender) {
				w.WriteHeader(http.StatusConflict)
				_, _ = w.Write([]byte(`{"ok":false,"error":"DUPLICATE_ID","message":"used","retryable":false}`))
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}

func dropsUnknown(events []json.RawMessage) []json.RawMessage {
	for i, e := range events {
		v := decode(e)
		delete(v, "x-trace")
		delete(v, "extra")
		events[i] = encode(v)
	}
	return events
}

func onePollAtATime(h http.Handler) http.Handler {
	var mu sync.Mutex
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isPoll(r) {
			mu.Lock()
			defer mu.Unlock()
		}
		h.ServeHTTP(w, r)
	})
}

// withoutMember is a middleware that removes a member from every answer.
func withoutMember(name string) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer := recorded(h, r)
			v := decode(answer.Body.Bytes())
			delete(v, name)
			send(w, answer, encode(v))
		})
	}
}

// identifiesThreadsByID is a middleware that refuses a REQUEST with a thread id that another client has used.
func identifiesThreadsByID(h http.Handler) http.Handler {
	var mu sync.Mutex
	taken := object{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if e := decode(readBody(r)); isPost(r) && e["type"] == "REQUEST" {
			id := e["thread"].(object)["id"].(string)
			sender := e["sender"].(object)["id"]
			mu.Lock()
			first, found := taken[id]
			taken[id] = sender
			mu.Unlock()
			if found && first != sender {
				w.WriteHeader(http.StatusConflict)
				_, _ = w.Write([]byte(`{"ok":false,"error":"INVALID_TRANSITION","message":"used","retryable":false}`))
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}

// foldsCase is a middleware that accepts a member name that differs from a known name only in case.
func foldsCase(h http.Handler) http.Handler {
	return acceptsRefusals(func(e, a object) bool {
		for name := range e {
			if slices.Contains([]string{"type", "sig", "sender", "ts", "thread"},
				strings.ToLower(strings.ReplaceAll(name, "ſ", "s"))) &&
				name != strings.ToLower(strings.ReplaceAll(name, "ſ", "s")) {
				return true
			}
		}
		return false
	})(h)
}

// losesEveryNth is a middleware that answers every nth post with 200 and does not store it.
func losesEveryNth(n int64) middleware {
	return func(h http.Handler) http.Handler {
		var posts atomic.Int64
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if isPost(r) && posts.Add(1)%n == 0 {
				_, _ = w.Write(encode(object{"ok": true, "id": decode(readBody(r))["id"]}))
				return
			}
			h.ServeHTTP(w, r)
		})
	}
}

func plainErrors(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := recorded(h, r)
		if answer.Code >= 400 {
			http.Error(w, http.StatusText(answer.Code), answer.Code)
			return
		}
		send(w, answer, answer.Body.Bytes())
	})
}

// restartsSequence is a middleware that returns the same cursor with every answer. A relay whose sequence starts again
// after a restart also returns cursors that it has returned before.
func restartsSequence(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isPoll(r) {
			h.ServeHTTP(w, r)
			return
		}
		if cursor := r.URL.Query().Get("cursor"); cursor == "fixed-1" {
			_, _ = w.Write([]byte(`{"ok":true,"events":[],"hasMore":false,"cursor":"fixed-1"}`))
			return
		}
		answer := recorded(h, r)
		page := decode(answer.Body.Bytes())
		if page["cursor"] != nil {
			page["cursor"] = "fixed-1"
		}
		send(w, answer, encode(page))
	})
}
