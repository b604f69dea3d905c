package conformance_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/conformance"
)

// channels is the suite of channel services.
func channels() suite {
	return suite{checks: conformance.ChannelChecks(), slow: slices.Concat(slowChannelChecks, channelLimits),
		shares: true, start: startChannel,
		run: func(t *testing.T, url string, only []string, listen, listenURL string) (conformance.Report, error) {
			return conformance.RunChannel(t.Context(), url, conformance.ChannelOptions{OperatorKey: operatorKey,
				Listen: listen, ListenURL: listenURL, Thorough: true, Only: only})
		}}
}

// slowChannelChecks and channelLimits run only where a fault names them. The limits take hundreds of requests.
var (
	slowChannelChecks = []string{"N-67"}
	channelLimits     = []string{"N-97", "N-98", "N-99"}
)

// TestChannelFaultsAreDetected tests that checks can fail, and that each fails only if its own rule is broken.
// TestOwnChannelPasses tests that all checks pass without a fault.
func TestChannelFaultsAreDetected(t *testing.T) {
	t.Parallel()
	channels().testFaults(t, faultyChannels())
}

// TestEveryChannelCheckCanFail tests that each check is named by a fault.
func TestEveryChannelCheckCanFail(t *testing.T) { channels().wantNamed(t, faultyChannels()) }

func faultyChannels() []fault {
	return slices.Concat(channelHTTPFaults(), channelFaults(), memberFaults(), callerFaults(), eventFaults(),
		deliveryFaults(), laneFaults(), callbackFaults(), mcpFaults())
}

// refusedByChannel is the text of a refusal by a channel service.
func refusedByChannel(code string) []byte {
	return encode(object{"ok": false, "error": code, "message": "refused", "retryable": false})
}

func channelHTTPFaults() []fault {
	invalid := refusedByChannel("INVALID_REQUEST")
	return []fault{
		{name: "redirects double slashes", front: redirects, fails: map[string]string{"N-1": "status 301"}},
		{name: "has no Allow header", front: hidesHeader("Allow"), fails: map[string]string{"N-2": "status 405"}},
		{name: "does not say whether to retry", front: editsAnswers(func(_ *http.Request, a *exchange) {
			delete(a.body, "retryable")
		}), fails: map[string]string{"N-3": "status 404"}},
		{name: "requires a Content-Type", front: requiresContentType(refusedByChannel("UNSUPPORTED_MEDIA_TYPE")),
			fails: map[string]string{"N-4": "status 415"}},
		{name: "ignores Content-Encoding", front: dropsHeader("Content-Encoding"),
			fails: map[string]string{"N-5": "accepted", "N-14": "accepted"}},
		{name: "ignores bad parameters", front: acceptsAt(http.StatusBadRequest, http.MethodGet, "/events"),
			fails: map[string]string{"N-6": "accepted", "N-50": "accepted", "N-53": "accepted"}},
		{name: "lets answers be stored", front: hidesHeader("Cache-Control"), fails: map[string]string{"N-7": "status 200"}},
		{name: "refuses large bodies with 400",
			front: otherStatus(http.StatusRequestEntityTooLarge, http.StatusBadRequest),
			fails: map[string]string{"N-8": "another status", "N-14": "another status"}},
		{name: "takes 32 levels", front: takesLevels32(http.StatusBadRequest, invalid),
			fails: map[string]string{"N-9": "status 400", "N-14": "status 400"}},
		{name: "refuses unknown members", front: refusesMembers(http.StatusBadRequest, invalid),
			fails: map[string]string{"N-10": "status 400", "N-9": "status 400", "N-14": "status 400"}},
		{name: "reads one JSON value and ignores the rest", front: readsFirstValue,
			fails: map[string]string{"N-11": "accepted", "N-14": "accepted"}},
		{name: "takes the last of several members", front: keepsDuplicates,
			fails: map[string]string{"N-12": "accepted", "N-13": "accepted", "N-14": "accepted"}},
		{name: "takes U+0000", front: accepts(sends(`\u0000`)),
			fails: map[string]string{"N-13": "accepted", "N-14": "accepted"}},
	}
}

// channelOf returns the id of the channel in a path.
func channelOf(r *http.Request) string {
	parts := strings.Split(r.URL.Path, "/")
	if len(parts) > 3 {
		return parts[3]
	}
	return ""
}

// isChannel reports whether a request is for a channel itself.
func isChannel(r *http.Request, method string) bool {
	return r.Method == method && strings.Count(r.URL.Path, "/") == 3 && isFor(r, method, "/channels/")
}

// halves does a part of a refused change: it changes one member alone.
func halves(h http.Handler) http.Handler {
	return editsAnswers(func(r *http.Request, a *exchange) {
		for _, name := range []string{"name", "url"} {
			if text, _ := a.sent[name].(string); text != "" && a.Code == http.StatusBadRequest &&
				(r.Method == http.MethodPatch || r.Method == http.MethodPut) {
				internally(h, r, r.Method, r.URL.Path, keyOf(r), object{name: text})
			}
		}
	})(h)
}

func channelFaults() []fault {
	return []fault{
		{name: "hides the context", front: editsAnswers(func(_ *http.Request, a *exchange) {
			channel, _ := a.body["channel"].(object)
			delete(channel, "context")
		}), fails: map[string]string{"N-15": "context", "N-16": "context", "N-18": "context", "N-17": "status 201"},
			also: []string{"N-19"}},
		{name: "has other keys", front: editsAnswers(func(_ *http.Request, a *exchange) {
			if key, ok := a.body["key"].(string); ok {
				a.body["key"] = "key_" + key
			}
		}), fails: map[string]string{"N-15": "key_", "N-16": "key_"}, also: channels().ofTheme("Channels")},
		{name: "counts characters", front: accepts(sends(astral)),
			fails: map[string]string{"N-17": "accepted", "N-42": "accepted", "N-75": "accepted"}, also: []string{"N-18"}},
		{name: "does a half of what it refuses", front: halves,
			fails: map[string]string{"N-18": "good", "N-31": "third.example"}},
		{name: "knows the keys of deleted channels", front: acceptsAt(http.StatusUnauthorized, "", "/channels/"),
			fails: map[string]string{"N-19": "accepted"}},
		{name: "keeps the tokens of deleted channels", front: accepts(func(r *http.Request, _ *exchange) bool {
			return isFor(r, "", "/inbox/") || isFor(r, "", "/mcp/")
		}), fails: map[string]string{"N-20": "status 200"}},
		{name: "tells which channels exist", front: tellsChannels, fails: map[string]string{"N-21": "status 404"}},
		{name: "shows connection strings", front: showsURLs,
			fails: map[string]string{"N-22": "sk_53cr3t", "N-27": "also url"}, also: []string{"N-28", "N-31"}},
		{name: "shows no host", front: eachConnection(func(row object) { delete(row, "host") }),
			fails: map[string]string{"N-27": "host", "N-28": "host", "N-31": "host"}},
		{name: "takes every form of mcp", front: acceptsWith(http.StatusBadRequest, "mcp"),
			fails: map[string]string{"N-28": "accepted", "N-31": "accepted"}},
		{name: "calls any URL", front: acceptsWith(http.StatusBadRequest, "url"),
			fails: map[string]string{"N-29": "accepted", "N-30": "accepted", "N-31": "accepted"}, also: []string{"N-28"}},
		{name: "calls itself", front: accepts(func(r *http.Request, a *exchange) bool {
			to, err := url.Parse(textOf(a.sent["url"]))
			return err == nil && strings.EqualFold(to.Host, r.Host)
		}), fails: map[string]string{"N-30": "accepted"}},
		{name: "forgets mcp at a PUT", front: editsRequests(func(r *http.Request, body object) {
			if body != nil && body["mcp"] == nil && r.Method == http.MethodPut {
				body["mcp"] = "object"
			}
		}), fails: map[string]string{"N-31": `"mcp":"object"`}},
		{name: "deletes no connections", front: refuses(http.StatusOK, []byte(`{"ok":true}`),
			func(r *http.Request, _ object) bool { return isFor(r, http.MethodDelete, "/connections/") }),
			fails: map[string]string{"N-32": "status 200", "N-72": "status 201", "N-82": "accepted", "N-94": "status 200"}},
		{name: "has no limits", front: acceptsAt(http.StatusTooManyRequests, "", ""),
			fails: map[string]string{"N-97": "accepted", "N-98": "accepted", "N-99": "accepted"}},
	}
}

func memberFaults() []fault {
	return []fault{
		{name: "lists one member", front: editsAnswers(func(_ *http.Request, a *exchange) {
			if list, ok := a.body["members"].([]any); ok && len(list) > 1 {
				a.body["members"] = list[:1]
			}
		}), fails: map[string]string{"N-23": "status 200"}},
		{name: "takes every name", front: acceptsWith(http.StatusBadRequest, "name"),
			fails: map[string]string{"N-24": "accepted"}},
		{name: "takes a taken name", front: acceptsAt(http.StatusConflict, http.MethodPost, "/members"),
			fails: map[string]string{"N-25": "accepted"}},
		{name: "keeps the keys of deleted members", front: accepts(func(r *http.Request, a *exchange) bool {
			return a.Code == http.StatusUnauthorized && strings.HasPrefix(keyOf(r), "cm_")
		}), fails: map[string]string{"N-26": "accepted"}},
	}
}

func callerFaults() []fault {
	return []fault{
		{name: "does not say how to authorize", front: hidesHeader("WWW-Authenticate"),
			fails: map[string]string{"N-33": "status 401", "N-34": "status 401", "N-39": "status 401"}},
		{name: "takes any scheme", front: takesAnyScheme(), fails: map[string]string{"N-34": "accepted"}},
		{name: "compares the scheme exactly", front: comparesSchemes(), fails: map[string]string{"N-35": "status 401"}},
		{name: "lets managers post", front: acceptsAt(http.StatusForbidden, http.MethodPost, "/messages"),
			fails: map[string]string{"N-36": "accepted"}, also: []string{"N-38", "N-40"}},
		{name: "lets members manage", front: accepts(func(r *http.Request, a *exchange) bool {
			return a.Code == http.StatusForbidden && strings.HasPrefix(keyOf(r), "cm_")
		}), fails: map[string]string{"N-37": "accepted"}, also: []string{"N-38", "N-39"}},
		{name: "takes keys of other channels", front: acceptsAt(http.StatusForbidden, "", "/channels/"),
			fails: map[string]string{"N-38": "accepted"}, also: []string{"N-36", "N-37", "N-40"}},
		{name: "lets channels create channels", front: accepts(func(r *http.Request, a *exchange) bool {
			return a.Code == http.StatusForbidden && strings.HasSuffix(r.URL.Path, "/channels")
		}), fails: map[string]string{"N-39": "accepted"}, also: []string{"N-37"}},
		{name: "takes tokens as keys", front: accepts(func(r *http.Request, _ *exchange) bool {
			return strings.HasPrefix(keyOf(r), "tok_") || strings.HasPrefix(keyOf(r), "mt_") && isFor(r, "", "/channels/")
		}), fails: map[string]string{"N-40": "status 200"}},
	}
}

func eventFaults() []fault {
	const anyKey = "Idempotency-Key"
	return []fault{
		{name: "does not say how an event came", front: eachEvent(func(_ *http.Request, event object) {
			delete(event, "via")
		}), fails: map[string]string{"N-41": "via", "N-43": "hello", "N-73": "web_search"},
			also: slices.Concat(channels().ofTheme("Messages"), channels().ofTheme("Callback"))},
		{name: "believes what is sent", front: believes,
			fails: map[string]string{"N-43": "mallory", "N-77": "mallory"}},
		{name: "hides that it repeats", front: hidesHeader("Idempotent-Replay"),
			fails: map[string]string{"N-44": "status 201", "N-45": "status 201", "N-79": "status 200"}},
		{name: "ignores Idempotency-Key", front: dropsHeader(anyKey), fails: map[string]string{"N-44": "status 201",
			"N-45": "accepted", "N-46": "accepted", "N-47": "accepted", "N-48": "status 201", "N-79": "status 200"}},
		{name: "has one set of Idempotency-Keys", front: repeatsFirst(func(r *http.Request, _ *exchange) string {
			return r.Header.Get(anyKey)
		}, func(status int) bool { return status < 300 }),
			fails: map[string]string{"N-45": "accepted", "N-46": "alice", "N-79": "accepted"}},
		{name: "takes after as inclusive", front: withQuery("/events", func(q url.Values) {
			if n := q.Get("after"); n != "" && n != "0" {
				q.Set("after", lessByOne(n))
			}
		}), fails: map[string]string{"N-49": ""}, also: channels().ofTheme("Events")},
		{name: "shows 100 events", front: withQuery("/events", func(q url.Values) {
			if !q.Has("limit") {
				q.Set("limit", "100")
			}
		}), fails: map[string]string{"N-50": "52 events"}},
		{name: "counts from 2", front: countsFrom2, fails: map[string]string{"N-51": "", "N-78": "seq"},
			also: slices.Concat(channels().ofTheme("Events"), channels().ofTheme("Callback"))},
		{name: "does not wait", front: ignoresParameter("/events", "wait"),
			fails: map[string]string{"N-52": "status 200", "N-53": "status 200"}},
		{name: "takes other values as texts", front: acceptsAt(http.StatusBadRequest, "", ""),
			fails: map[string]string{"N-42": "accepted", "N-75": "accepted", "N-24": "accepted", "N-17": "accepted"},
			also:  everyChannelCheck()},
	}
}

// everyChannelCheck returns all checks.
func everyChannelCheck() (numbers []string) {
	for _, c := range conformance.ChannelChecks() {
		numbers = append(numbers, c.Number)
	}
	return numbers
}

func deliveryFaults() []fault {
	return []fault{
		{name: "sends the whole event", hook: eachDelivery(func(_ *http.Request, body object) {
			body["message"].(object)["kind"] = "member"
		}), fails: map[string]string{"N-54": "message is not", "N-55": "message is not", "N-56": "message is not"}},
		{name: "sends one object to all", hook: eachDelivery(func(_ *http.Request, body object) {
			if list, ok := body["mcp"].([]any); ok {
				body["mcp"] = list[0]
			}
		}), fails: map[string]string{"N-55": "mcp is not"}},
		{name: "does not name its server", hook: eachDelivery(func(_ *http.Request, body object) {
			if list, ok := body["mcp"].([]any); ok {
				delete(list[0].(object), "name")
			}
		}), fails: map[string]string{"N-55": "mcp is not"}},
		{name: "sends mcp to all", hook: eachDelivery(func(_ *http.Request, body object) {
			if callback, _, _ := strings.Cut(textOf(body["callback"]), "/inbox/"); body["mcp"] == nil {
				body["mcp"] = object{"url": strings.Replace(callback, "/channels/", "/mcp/", 1),
					"headers": object{"Authorization": "Bearer mt_" + strings.Repeat("A", 43)}}
			}
		}), fails: map[string]string{"N-56": "also mcp"}},
		{name: "sends a key", hook: changesHeader(func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") }),
			fails: map[string]string{"N-57": "Bearer x"}},
		{name: "drops the query", hook: changesHeader(func(r *http.Request) { r.URL.RawQuery = "" }),
			fails: map[string]string{"N-58": `the query ""`}},
		{name: "delivers to one connection", front: editsAnswers(func(_ *http.Request, a *exchange) {
			if n, ok := wholeNumber(a.body["deliveries"]); ok && n > 1 {
				a.body["deliveries"] = 1
			}
		}), fails: map[string]string{"N-59": "status 201", "N-60": "status 201"}},
		{name: "loses what agents say", hook: swallows(func(_ *http.Request, body object) bool {
			return senderOf(body) == "first"
		}), fails: map[string]string{"N-60": "1 calls"}},
		{name: "delivers all events", front: editsRequests(func(r *http.Request, body object) {
			if isFor(r, http.MethodPost, "/inbox/") && body["type"] != "message" {
				clear(body)
				body["type"], body["content"] = "message", "x"
			}
		}), fails: map[string]string{"N-61": "calls"}},
		{name: "has one token for all attempts", hook: repeatsTokens(), fails: map[string]string{"N-62": "the headers"}},
		{name: "changes the id in each attempt", hook: otherIDs(),
			fails: map[string]string{"N-62": "deliveries of", "N-65": "deliveries of"},
			also:  channels().ofTheme("Order and failures")},
	}
}

func laneFaults() []fault {
	given := func(wanted int, list ...int) middleware {
		return statuses(func(status int) int {
			if slices.Contains(list, status) {
				return wanted
			}
			return status
		})
	}
	return []fault{
		{name: "delivers the second message first", hook: swapsDeliveries(), fails: map[string]string{"N-63": "deliveries of"},
			also: channels().ofTheme("Order and failures")},
		{name: "has one lane for all", hook: oneAtATime, fails: map[string]string{"N-64": "calls"},
			also: channels().ofTheme("Order and failures")},
		{name: "gives up at the first failure", hook: firstAttempts(), fails: map[string]string{"N-65": "1 calls",
			"N-66": "1 calls", "N-63": "8 calls", "N-67": "1 calls", "N-62": "1 calls"}},
		{name: "ignores Retry-After", hook: hidesHeader("Retry-After"), fails: map[string]string{"N-66": "after"}},
		{name: "repeats what was refused", hook: given(http.StatusServiceUnavailable, 400, 401, 403, 409, 422, 302, 308),
			fails: map[string]string{"N-68": ""}, also: []string{"N-70"}},
		{name: "takes 404 as any failure", hook: given(http.StatusBadRequest, 404, 410),
			fails: map[string]string{"N-69": "active"}},
		{name: "does not count what it tries", front: eachConnection(func(row object) {
			if n, ok := wholeNumber(row["queued"]); ok && n > 0 {
				row["queued"] = n - 1
			}
		}), fails: map[string]string{"N-70": `"queued":`}},
		{name: "keeps the URL of what is queued", front: editsRequests(func(r *http.Request, body object) {
			if r.Method == http.MethodPut {
				delete(body, "url")
			}
		}), fails: map[string]string{"N-71": "0 calls", "N-31": "other.example"}, also: []string{"N-69"}},
	}
}

func callbackFaults() []fault {
	types := []any{"message", "tool_call", "tool_result", "error", "status", "lifecycle"}
	return []fault{
		{name: "takes short names", front: refuses(http.StatusBadRequest, refusedByChannel("INVALID_REQUEST"),
			func(_ *http.Request, body object) bool {
				return len(textOf(body["name"])) == 256 || len(textOf(body["id"])) == 256
			}), fails: map[string]string{"N-73": "status 400", "N-61": "status 400"}},
		{name: "takes events of every type", front: accepts(func(r *http.Request, a *exchange) bool {
			return isFor(r, http.MethodPost, "/inbox/") && a.sent != nil && !slices.Contains(types, a.sent["type"])
		}), fails: map[string]string{"N-74": "accepted"}},
		{name: "checks no members", front: accepts(func(r *http.Request, a *exchange) bool {
			return isFor(r, http.MethodPost, "/inbox/") && a.Code == http.StatusBadRequest && slices.Contains(types, a.sent["type"])
		}), fails: map[string]string{"N-75": "accepted"}, also: []string{"N-79"}},
		{name: "keeps the spelling of numbers", front: replaces("/events", "[15,1e+21,0]", "[1.50e1,1e+21,0]"),
			fails: map[string]string{"N-76": "1.50e1"}},
		{name: "drops unknown members", front: editsRequests(func(r *http.Request, body object) {
			if isFor(r, "", "/inbox/") {
				delete(body, "x")
			}
		}), fails: map[string]string{"N-76": `"type"`}},
		{name: "answers unknown callbacks with 401", front: otherStatus(http.StatusNotFound, http.StatusUnauthorized),
			fails: map[string]string{"N-80": "status 401", "N-81": "status 401"}},
		{name: "takes tokens of other channels", front: accepts(func(r *http.Request, _ *exchange) bool {
			return isFor(r, "", "/inbox/") || isFor(r, "", "/mcp/")
		}), fails: map[string]string{"N-81": "accepted", "N-93": "status 200", "N-80": "accepted"},
			also: slices.Concat(channels().ofTheme("Callback"), channels().ofTheme("MCP"))},
		opensCallbacksLate(),
		{name: "counts no depth", front: eachEvent(func(_ *http.Request, event object) {
			if n, _ := wholeNumber(event["depth"]); n > 3 {
				event["depth"] = 3
			}
		}), fails: map[string]string{"N-84": `"depth":3`}},
		{name: "stops at depth 3", hook: swallows(func(_ *http.Request, body object) bool {
			message, _ := body["message"].(object)
			return message["content"] == "depth 4"
		}), fails: map[string]string{"N-84": "calls"}},
		{name: "lets agents say little", hook: atMost(50), fails: map[string]string{"N-85": "calls"}},
	}
}

func mcpFaults() []fault {
	return []fault{
		{name: "answers MCP as a stream", front: editsAnswers(func(r *http.Request, a *exchange) {
			if isFor(r, "", "/mcp/") && a.Code == http.StatusOK {
				a.Header().Set("Content-Type", "text/event-stream")
				a.text = []byte("event: message\ndata: {}\n\n")
			}
		}), fails: map[string]string{"N-86": "event: message"}, also: channels().ofTheme("MCP")},
		{name: "has three tools", front: replaces("/mcp/", `"name":"set_status"`, `"name":"get_roster"`),
			fails: map[string]string{"N-87": `"tools":`}},
		{name: "takes tools for callbacks", front: replaces("/events", `"via":"mcp"`, `"via":"callback"`),
			fails: map[string]string{"N-88": `"via":"callback"`}},
		{name: "shows the newest message first", front: toolResults(func(_ *http.Request, result object) {
			if list, ok := result["messages"].([]any); ok {
				slices.Reverse(list)
			}
		}), fails: map[string]string{"N-89": `"seq":5`}, also: []string{"N-90"}},
		{name: "says that there is more", front: toolResults(func(_ *http.Request, result object) {
			if result["hasMore"] == false {
				result["hasMore"] = true
			}
		}), fails: map[string]string{"N-89": `"hasMore":true`, "N-90": `"hasMore":true`}},
		{name: "shows 20 messages", front: editsRequests(func(_ *http.Request, body object) {
			params, _ := body["params"].(object)
			if args, ok := params["arguments"].(object); ok && params["name"] == "get_messages" && args["limit"] == nil {
				args["limit"] = 20
			}
		}), fails: map[string]string{"N-90": `"hasMore":true`}},
		{name: "shows no status", front: toolResults(func(_ *http.Request, result object) {
			list, _ := result["members"].([]any)
			for _, row := range list {
				row.(object)["status"] = ""
			}
		}), fails: map[string]string{"N-91": `"status":""`}},
		{name: "hides that a tool refuses", front: replaces("/mcp/", `"isError":true`, `"isError":false`),
			fails: map[string]string{"N-92": `"isError":false`}},
		{name: "takes every token", front: acceptsAt(http.StatusUnauthorized, "", "/mcp/"),
			fails: map[string]string{"N-93": "status 200", "N-94": "status 200"}},
		{name: "guards its MCP server by Host", front: func(h http.Handler) http.Handler {
			return refuses(http.StatusForbidden, refusedByChannel("FORBIDDEN"), func(r *http.Request, _ object) bool {
				return isFor(r, "", "/mcp/") && strings.HasPrefix(r.Host, "proxy.")
			})(takesAnyHost(h))
		}, fails: map[string]string{"N-95": "status 403"}},
		{name: "shows the messages of all channels", front: showsAllMessages, fails: map[string]string{"N-96": "53cr3t"},
			also: channels().ofTheme("MCP")},
	}
}
