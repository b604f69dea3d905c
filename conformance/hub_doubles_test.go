package conformance_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// Middlewares that wrap this project's hub and add one fault each.

// refusal is the text of a refusal by a hub.
func refusal(code string) []byte {
	return encode(map[string]any{"success": false, "error": map[string]any{"code": code, "message": "refused"},
		"metadata": map[string]any{"timestamp": "2026-03-20T10:00:00.000Z"}})
}

// success is the text of a success of a hub.
func success(data any) []byte {
	return encode(map[string]any{"success": true, "data": data,
		"metadata": map[string]any{"timestamp": "2026-03-20T10:00:00.000Z"}})
}

// refusesHub is a middleware that refuses requests.
func refusesHub(
	status int,
	code string,
	when func(r *http.Request, body map[string]any) bool,
) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if when(r, decode(readBody(r))) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status)
				_, _ = w.Write(refusal(code)) // the client may be gone
				return
			}
			h.ServeHTTP(w, r)
		})
	}
}

// setAnswer replaces the answer.
func setAnswer(a *hubAnswer, status int, text []byte) { a.Code, a.text = status, text }

// acceptsOnHub is a middleware that answers with a success instead of a refusal.
func acceptsOnHub(when func(r *http.Request, a *hubAnswer) bool) func(http.Handler) http.Handler {
	return editsHubAnswers(func(r *http.Request, a *hubAnswer) {
		if a.body["success"] != false || !when(r, a) {
			return
		}
		switch hubPath(r) {
		case "/messages":
			setAnswer(a, http.StatusAccepted, success(map[string]any{"delivery": "queued", "state": "queued",
				"trace_id": "0b8c0000-0000-4000-8000-000000000000"}))
		case "/register":
			setAnswer(a, http.StatusOK, success(map[string]any{"agent_id": a.sent["agent_id"], "registration": nil,
				"api_key": "ca_0123456789abcdef0123456789abcdef"}))
		default:
			setAnswer(a, http.StatusOK, success(map[string]any{"acknowledged": 0}))
		}
	})
}

// acceptsSending is acceptsOnHub for messages.
func acceptsSending(when func(body map[string]any) bool) func(http.Handler) http.Handler {
	return acceptsOnHub(func(r *http.Request, a *hubAnswer) bool { return isSend(r) && when(a.sent) })
}

func envelopeIn(body map[string]any) map[string]any {
	e, _ := body["envelope"].(map[string]any)
	return e
}

// textBounds are the upper bounds of the texts of envelopes.
var textBounds = map[string]int{"original_text": 10_000, "cultural_context": 500, "conversation_id": 64}

// countsBytes reports whether a text of an envelope has too many bytes.
func countsBytes(r *http.Request, body map[string]any) bool {
	for name, most := range textBounds {
		if text, _ := envelopeIn(body)[name].(string); isSend(r) && len(text) > most {
			return true
		}
	}
	return false
}

// countsCharacters reports whether a text of an envelope has too many code units, but no text has too many characters.
func countsCharacters(body map[string]any) bool {
	long := false
	for name, most := range textBounds {
		text, _ := envelopeIn(body)[name].(string)
		if utf8.RuneCountInString(text) > most {
			return false
		}
		long = long || len(utf16.Encode([]rune(text))) > most
	}
	return long
}

// dropsUnknownMembers is a middleware that removes unknown members from the object in a member of a body.
func dropsUnknownMembers(member string, known ...string) func(http.Handler) http.Handler {
	return editsRequests(func(_ *http.Request, body map[string]any) {
		if object, ok := body[member].(map[string]any); ok {
			for name := range object {
				if !slices.Contains(known, name) {
					delete(object, name)
				}
			}
		}
	})
}

// changesHeader is a middleware that changes the header of requests.
func changesHeader(change func(r *http.Request)) func(http.Handler) http.Handler {
	return editsRequests(func(r *http.Request, _ map[string]any) { change(r) })
}

// dropsHeader is a middleware that removes a header from requests.
func dropsHeader(name string) func(http.Handler) http.Handler {
	return changesHeader(func(r *http.Request) { r.Header.Del(name) })
}

// hidesHeader is a middleware that removes a header from answers. It also works for streams.
func hidesHeader(name string) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(&headerHider{ResponseWriter: w, name: name}, r)
		})
	}
}

type headerHider struct {
	http.ResponseWriter
	name string
}

func (w *headerHider) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *headerHider) WriteHeader(status int) {
	w.Header().Del(w.name)
	w.ResponseWriter.WriteHeader(status)
}

func (w *headerHider) Write(text []byte) (int, error) {
	w.Header().Del(w.name) // no effect if the header is written
	return w.ResponseWriter.Write(text)
}

// withHubQuery is a middleware that changes the parameters of requests to a path.
func withHubQuery(path string, change func(q map[string][]string)) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if hubPath(r) == path {
				q := r.URL.Query()
				change(q)
				r.URL.RawQuery = q.Encode()
			}
			h.ServeHTTP(w, r)
		})
	}
}

// firstParameter keeps only the first value of each parameter, and only if it is not malformed.
func firstParameter(q map[string][]string) {
	for name, values := range q {
		if q[name] = values[:1]; values[0] == "" || values[0] == "maybe" {
			delete(q, name)
		}
	}
}

// shiftSince changes a since of digits by n, and another one by d.
func shiftSince(n int, d time.Duration) func(http.Handler) http.Handler {
	return withHubQuery("/agent/messages", func(q map[string][]string) {
		for i, since := range q["since"] {
			if id, err := strconv.ParseUint(since, 10, 62); err == nil && n != 0 {
				q["since"][i] = strconv.Itoa(max(0, int(id)+n))
			} else if at, err := time.Parse(time.RFC3339, since); err == nil && d != 0 {
				q["since"][i] = at.Add(d).Format(time.RFC3339Nano)
			}
		}
	})
}

// acceptsUsedTokens is a middleware that opens a stream for a session token again and again.
func acceptsUsedTokens(h http.Handler) http.Handler {
	var mu sync.Mutex
	owners := map[string]string{} // the Authorization with which a token was made
	learning := editsHubAnswers(func(r *http.Request, a *hubAnswer) {
		if token, ok := a.data()["session_token"].(string); ok {
			mu.Lock()
			owners[token] = r.Header.Get("Authorization")
			mu.Unlock()
		}
	})(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		owner := owners[r.URL.Query().Get("session")]
		mu.Unlock()
		if isInbox(r) && owner != "" {
			r.URL.RawQuery = ""
			r.Header.Set("Authorization", owner)
			w.Header().Set("Referrer-Policy", "no-referrer")
		}
		learning.ServeHTTP(w, r)
	})
}

// letsAnyoneRegister rotates the key of a taken address for everybody.
func letsAnyoneRegister(h http.Handler, keys *keyring) http.Handler {
	return editsHubAnswers(func(r *http.Request, a *hubAnswer) {
		if isTo(r, http.MethodPost, "/register") && a.Code == http.StatusConflict {
			if again := internally(h, r, "POST", "/register", keys.of(a.sent["agent_id"]),
				a.sent); again.Code == http.StatusOK {
				setAnswer(a, again.Code, again.Body.Bytes())
			}
		}
	})(h)
}

// keepsOldKeys lets all keys work that an agent ever had.
func keepsOldKeys(h http.Handler, keys *keyring) http.Handler {
	return changesHeader(func(r *http.Request) {
		if newest := keys.newest(keyOf(r)); newest != "" && !isTo(r, http.MethodPost, "/register") {
			r.Header.Set("Authorization", "Bearer "+newest)
		}
	})(h)
}

// letsAgentsDelete lets every agent delete every other one.
func letsAgentsDelete(h http.Handler, keys *keyring) http.Handler {
	return editsHubAnswers(func(r *http.Request, a *hubAnswer) {
		if r.Method == http.MethodDelete && a.Code == http.StatusForbidden {
			path := hubPath(r)
			again := internally(h, r, "DELETE", path, keys.of(strings.TrimPrefix(path, "/agents/")), nil)
			setAnswer(a, again.Code, again.Body.Bytes())
		}
	})(h)
}

// forgetsDeletedAddresses lets everybody register a deleted address.
func forgetsDeletedAddresses(h http.Handler, keys *keyring) http.Handler {
	return editsHubAnswers(func(r *http.Request, a *hubAnswer) {
		if !isTo(r, http.MethodPost, "/register") || a.Code != http.StatusConflict {
			return
		}
		id, _ := a.sent["agent_id"].(string)
		if internally(h, r, "GET", "/agents/"+id, "", nil).Code == http.StatusNotFound {
			again := internally(h, r, "POST", "/register", keys.of(id), a.sent)
			setAnswer(a, again.Code, again.Body.Bytes())
		}
	})(h)
}

// showsEndpoints shows the endpoint of a registration to everybody.
func showsEndpoints(h http.Handler) http.Handler {
	var mu sync.Mutex
	endpoints := map[any]any{}
	return editsHubAnswers(func(r *http.Request, a *hubAnswer) {
		mu.Lock()
		defer mu.Unlock()
		if isTo(r, http.MethodPost, "/register") && a.Code < 300 {
			endpoints[a.sent["agent_id"]] = a.sent["endpoint"]
		}
		if data := a.data(); endpoints[data["agent_id"]] != nil && strings.HasPrefix(hubPath(r), "/agents/") {
			data["endpoint"] = endpoints[data["agent_id"]]
		}
	})(h)
}

// showsKeys adds the key of an agent to its registration.
func showsKeys(h http.Handler, keys *keyring) http.Handler {
	return editsHubAnswers(func(r *http.Request, a *hubAnswer) {
		if data := a.data(); strings.HasPrefix(hubPath(r), "/agents/") && keys.of(data["agent_id"]) != "" {
			data["api_key"] = keys.of(data["agent_id"])
		}
	})(h)
}

// repeatsFirstAnswers is a middleware that answers a request with an Idempotency-Key as the first request with the same
// name, if it has kept that answer.
func repeatsFirstAnswers(
	name func(r *http.Request, a *hubAnswer) string, keep func(status int) bool,
) func(http.Handler) http.Handler {
	var mu sync.Mutex
	type first struct {
		status int
		body   []byte
	}
	answers := map[string]first{}
	return editsHubAnswers(func(r *http.Request, a *hubAnswer) {
		if !isSend(r) || r.Header.Get("Idempotency-Key") == "" || a.Code == http.StatusUnauthorized {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if found, ok := answers[name(r, a)]; ok {
			a.Header().Set("Idempotent-Replay", "true")
			setAnswer(a, found.status, found.body)
		} else if keep(a.Code) {
			answers[name(r, a)] = first{a.Code, bytes.Clone(a.Body.Bytes())}
		}
	})
}

// keepsDuplicates parses bodies as many libraries do: the last of several members with one name counts.
func keepsDuplicates(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, body := readBody(r), map[string]any{}
		if len(text) <= 65_536 && json.Unmarshal(text, &body) == nil {
			setBody(r, encode(body))
		}
		h.ServeHTTP(w, r)
	})
}

// readsFirstValue reads one JSON value of a body and ignores the rest.
func readsFirstValue(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := readBody(r)
		var value json.RawMessage
		if len(text) <= 65_536 && json.NewDecoder(bytes.NewReader(text)).Decode(&value) == nil {
			setBody(r, value)
		}
		h.ServeHTTP(w, r)
	})
}

// repeatsHost uses the Host header of the request as the address of the hub.
func repeatsHost(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, own := r.Host, r.Context().Value(http.LocalAddrContextKey)
		r.Host = fmt.Sprint(own)
		editsHubAnswers(func(_ *http.Request, a *hubAnswer) {
			a.text = bytes.ReplaceAll(a.Body.Bytes(), []byte(fmt.Sprint(own)), []byte(host))
		})(h).ServeHTTP(w, r)
	})
}

// echoesPath shows the path of an invite in a page, as it is.
func echoesPath(r *http.Request, a *hubAnswer) {
	if id, ok := strings.CutPrefix(hubPath(r), "/invite/"); ok && a.Code == http.StatusBadRequest {
		a.Header().Set("Content-Type", "text/html; charset=utf-8")
		a.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		setAnswer(a, http.StatusBadRequest, []byte("<!doctype html><p>"+id+" is no address.</p>"))
	}
}
