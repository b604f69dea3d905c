package conformance_test

import (
	"net/http"
	"net/url"
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
	return encode(object{"success": false, "error": object{"code": code, "message": "refused"},
		"metadata": object{"timestamp": "2026-03-20T10:00:00.000Z"}})
}

// success is the text of a success of a hub.
func success(data any) []byte {
	return encode(object{"success": true, "data": data,
		"metadata": object{"timestamp": "2026-03-20T10:00:00.000Z"}})
}

// acceptsOnHub is a middleware that answers with a success instead of a refusal.
func acceptsOnHub(when func(r *http.Request, a *exchange) bool) middleware {
	return editsAnswers(func(r *http.Request, a *exchange) {
		if a.body["success"] != false || !when(r, a) {
			return
		}
		switch hubPath(r) {
		case "/messages":
			setAnswer(a, http.StatusAccepted, success(object{"delivery": "queued", "state": "queued",
				"trace_id": "0b8c0000-0000-4000-8000-000000000000"}))
		case "/register":
			setAnswer(a, http.StatusOK, success(object{"agent_id": a.sent["agent_id"], "registration": nil,
				"api_key": "ca_0123456789abcdef0123456789abcdef"}))
		default:
			setAnswer(a, http.StatusOK, success(object{"acknowledged": 0}))
		}
	})
}

// acceptsSending is acceptsOnHub for messages.
func acceptsSending(when func(body object) bool) middleware {
	return acceptsOnHub(func(r *http.Request, a *exchange) bool { return isSend(r) && when(a.sent) })
}

func envelopeIn(body object) object {
	e, _ := body["envelope"].(object)
	return e
}

// textBounds are the upper bounds of the texts of envelopes.
var textBounds = map[string]int{"original_text": 10_000, "cultural_context": 500, "conversation_id": 64}

// countsBytes reports whether a text of an envelope has too many bytes.
func countsBytes(r *http.Request, body object) bool {
	for name, most := range textBounds {
		if text, _ := envelopeIn(body)[name].(string); isSend(r) && len(text) > most {
			return true
		}
	}
	return false
}

// countsCharacters reports whether a text of an envelope has too many code units, but no text has too many characters.
func countsCharacters(body object) bool {
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
func dropsUnknownMembers(member string, known ...string) middleware {
	return editsRequests(func(_ *http.Request, body object) {
		if object, ok := body[member].(object); ok {
			for name := range object {
				if !slices.Contains(known, name) {
					delete(object, name)
				}
			}
		}
	})
}

// firstParameter keeps only the first value of each parameter, and only if it is not malformed.
func firstParameter(q url.Values) {
	for name, values := range q {
		if q[name] = values[:1]; values[0] == "" || values[0] == "maybe" {
			delete(q, name)
		}
	}
}

// shiftSince changes a since of digits by n, and another one by d.
func shiftSince(n int, d time.Duration) middleware {
	return withQuery("/hub/agent/messages", func(q url.Values) {
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
	learning := editsAnswers(func(r *http.Request, a *exchange) {
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
	return editsAnswers(func(r *http.Request, a *exchange) {
		if isTo(r, http.MethodPost, "/register") && a.Code == http.StatusConflict {
			if again := atHub(h, r, "POST", "/register", keys.of(a.sent["agent_id"]),
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
	return editsAnswers(func(r *http.Request, a *exchange) {
		if r.Method == http.MethodDelete && a.Code == http.StatusForbidden {
			path := hubPath(r)
			again := atHub(h, r, "DELETE", path, keys.of(strings.TrimPrefix(path, "/agents/")), nil)
			setAnswer(a, again.Code, again.Body.Bytes())
		}
	})(h)
}

// forgetsDeletedAddresses lets everybody register a deleted address.
func forgetsDeletedAddresses(h http.Handler, keys *keyring) http.Handler {
	return editsAnswers(func(r *http.Request, a *exchange) {
		if !isTo(r, http.MethodPost, "/register") || a.Code != http.StatusConflict {
			return
		}
		id, _ := a.sent["agent_id"].(string)
		if atHub(h, r, "GET", "/agents/"+id, "", nil).Code == http.StatusNotFound {
			again := atHub(h, r, "POST", "/register", keys.of(id), a.sent)
			setAnswer(a, again.Code, again.Body.Bytes())
		}
	})(h)
}

// showsEndpoints shows the endpoint of a registration to everybody.
func showsEndpoints(h http.Handler) http.Handler {
	var mu sync.Mutex
	endpoints := map[any]any{}
	return editsAnswers(func(r *http.Request, a *exchange) {
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
	return editsAnswers(func(r *http.Request, a *exchange) {
		if data := a.data(); strings.HasPrefix(hubPath(r), "/agents/") && keys.of(data["agent_id"]) != "" {
			data["api_key"] = keys.of(data["agent_id"])
		}
	})(h)
}

// echoesPath shows the path of an invite in a page, as it is.
func echoesPath(r *http.Request, a *exchange) {
	if id, ok := strings.CutPrefix(hubPath(r), "/invite/"); ok && a.Code == http.StatusBadRequest {
		a.Header().Set("Content-Type", "text/html; charset=utf-8")
		a.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		setAnswer(a, http.StatusBadRequest, []byte("<!doctype html><p>"+id+" is no address.</p>"))
	}
}
