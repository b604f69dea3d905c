package conformance

import (
	"encoding/json"
	"net/http"
	"strings"
)

// channelHTTPChecks test paths, methods and the form of answers.
var channelHTTPChecks = []channelCheck{
	{number: "N-1", title: "An unknown path is answered with 404 NOT_FOUND and never redirected",
		cites: `GATEWAYS "Turn them on"; GATEWAYS "Bodies and errors"; G-25`, run: func(h *channelProbe) {
			for _, path := range []string{"/nothing-is-here", "/channels/", "//channels", "/channel", "/messages",
				"/events", "/x/../channels"} {
				for _, method := range []string{http.MethodGet, http.MethodPost} {
					h.wantUnknown(h.ask("", method, path, "", nil, encodeBody(message{"name": "kit"})))
				}
			}
		}},
	{number: "N-2",
		title: "A method that a path does not support is refused with 405 METHOD_NOT_ALLOWED and an Allow header",
		cites: `GATEWAYS "Bodies and errors"; CHANNEL "The service"; G-25`, needs: needsOperator, run: channelMethods},
	{number: "N-3", title: "A refusal is JSON with ok false, error, message and retryable",
		cites: `CHANNEL "The service"; GATEWAYS "Bodies and errors"; G-25`, needs: needsOperator, run: channelErrorForm},
	{number: "N-4", title: "The Content-Type of a request is ignored",
		cites: `GATEWAYS "Bodies and errors"`, needs: needsOperator, run: func(h *channelProbe) {
			alice := h.talk()
			for _, values := range [][]string{{"text/plain"}, {"application/x-www-form-urlencoded"}, {"nonsense"}, nil} {
				h.said(h.ask("Content-Type: "+strings.Join(values, ""), http.MethodPost, alice.path("/messages"),
					alice.key, http.Header{"Content-Type": values}, message{"content": "hello"}), 0)
			}
			h.wantEvents(alice.channel, 4)
		}},
	{number: "N-5", title: "A body with any Content-Encoding is refused with 415 UNSUPPORTED_MEDIA_TYPE",
		cites: `GATEWAYS "Bodies and errors"; G-25`, needs: needsOperator, run: func(h *channelProbe) {
			alice := h.talk()
			for _, encoding := range []string{"gzip", "br", "identity"} {
				h.wantError(h.ask("Content-Encoding: "+encoding, http.MethodPost, alice.path("/messages"), alice.key,
					http.Header{"Content-Encoding": {encoding}}, message{"content": "hello"}),
					http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE")
				h.wantError(h.ask("Content-Encoding: "+encoding, http.MethodPost, alice.path("/members"),
					alice.channel.key, http.Header{"Content-Encoding": {encoding}}, message{"name": "carol"}),
					http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE")
			}
			h.wantEvents(alice.channel, 0)
		}},
	{number: "N-6",
		title: "Unknown query parameters are ignored, and repeated or malformed ones are refused",
		cites: `GATEWAYS "Bodies and errors"`, needs: needsOperator, run: func(h *channelProbe) {
			alice := h.talk()
			h.say(alice, "hello")
			if n := len(h.events(alice.channel, "?unknown=1&also=2&unknown=3")); n != 1 {
				h.expect("one event")
				h.failf("%d events", n)
			}
			for _, query := range []string{"?after=0&after=0", "?limit=1&limit=1", "?wait=0&wait=0", "?after=",
				"?limit=x", "?wait=x", "?limit=1.5", "?after=-1", "?limit=%zz"} {
				h.wantInvalid(h.read(alice.channel.key, alice.path("/events"+query)))
			}
		}},
	{number: "N-7",
		title: "Answers on a path with a key have Cache-Control: no-store and Referrer-Policy: no-referrer",
		cites: `GATEWAYS "Keys of callers"`, needs: needsAgent, run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			for _, a := range []answer{h.report(d, statusEvent("reading")), h.report(d, message{"type": "x"}),
				h.write("", alice.path("/inbox/"+unknownToken), statusEvent("reading"))} {
				h.want(a.header.Get("Cache-Control") == "no-store" && a.header.Get("Referrer-Policy") == "no-referrer", a,
					"Cache-Control: no-store and Referrer-Policy: no-referrer, instead of %q and %q",
					a.header.Get("Cache-Control"), a.header.Get("Referrer-Policy"))
			}
		}},
}

func channelMethods(h *channelProbe) {
	alice := h.talk()
	c := alice.channel
	for _, asked := range []struct{ method, path, allowed string }{
		{"GET", "/channels", "POST"}, {"PUT", "/channels", "POST"}, {"POST", c.path(""), "GET"},
		{"PUT", c.path(""), "PATCH"}, {"DELETE", c.path("/members"), "POST"}, {"PATCH", c.path("/connections"), "GET"},
		{"GET", c.path("/messages"), "POST"}, {"DELETE", c.path("/messages"), "POST"},
		{"POST", c.path("/events"), "GET"}, {"PUT", c.path("/members/alice"), "DELETE"},
		{"PATCH", c.path("/connections/bot"), "PUT"}, {"PATCH", c.path("/connections/bot"), "DELETE"},
		{"GET", c.path("/inbox/" + unknownToken), "POST"},
	} {
		key := h.service.OperatorKey
		if strings.Contains(asked.path, "/inbox/") {
			key = ""
		}
		a := h.ask("", asked.method, asked.path, key, nil, []byte("{}"))
		h.wantError(a, http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED")
		h.wantAllow(a, asked.method, asked.allowed)
	}
	h.wantOK(h.read(c.key, c.path("")), http.StatusOK)
	h.entry(h.read(c.key, c.path("/members")), "members", "alice")
}

func channelErrorForm(h *channelProbe) {
	alice := h.talk()
	for _, a := range []answer{
		h.read("", "/nothing-is-here"), h.read("", "/channels"), h.write("", "/channels", message{}),
		h.write(h.service.OperatorKey, "/channels", message{}), h.read(alice.key, alice.path("")),
		h.write(alice.key, alice.path("/messages"), message{"content": ""}),
		h.write(alice.channel.key, alice.path("/members"), message{"name": "alice"}),
		h.read(h.service.OperatorKey, unknownChannel.path("")),
		h.write("", alice.path("/inbox/"+unknownToken), statusEvent("reading")),
		h.write(alice.key, alice.path("/messages"), []byte(strings.Repeat(" ", 65537))),
	} {
		h.expect(`{"ok":false,"error":"CODE","message":"…","retryable":false}, as application/json, and details ` +
			`only as an object`)
		ok, present := a.ok()
		_, retryable := a.flag("retryable")
		var details map[string]json.RawMessage
		if a.status < 400 || ok || !present || !retryable || a.code() == "" || a.text("message") == "" ||
			a.members["details"] != nil && json.Unmarshal(a.members["details"], &details) != nil ||
			!strings.HasPrefix(a.header.Get("Content-Type"), "application/json") {
			h.failf("%v: %s", a.header["Content-Type"], a)
		}
	}
}

// channelBodyChecks test how a service reads the body of a request.
var channelBodyChecks = []channelCheck{
	{number: "N-8",
		title: "A body of 65,536 bytes is taken, and one byte more is refused with 413 PAYLOAD_TOO_LARGE",
		cites: `GATEWAYS "Bodies and errors"; G-26`, needs: needsOperator, run: func(h *channelProbe) {
			alice := h.talk()
			h.said(h.write(alice.key, alice.path("/messages"), padBody(message{"content": "a large body"}, 65536)), 0)
			for path, key := range map[string]string{"/messages": alice.key, "/members": alice.channel.key} {
				body := padBody(message{"content": "too large", "name": "carol"}, 65537)
				h.wantError(h.write(key, alice.path(path), body), http.StatusRequestEntityTooLarge, "PAYLOAD_TOO_LARGE")
			}
			h.wantEvents(alice.channel, 1)
		}},
	{number: "N-9", title: "A body with 64 levels of nesting is taken, and one with 65 is refused",
		cites: `GATEWAYS "Bodies and errors"; G-26`, needs: needsOperator, run: func(h *channelProbe) {
			alice := h.talk()
			body := message{"content": "a deep body"}
			h.said(h.write(alice.key, alice.path("/messages"), deepBody(body, 64)), 0)
			h.wantInvalid(h.write(alice.key, alice.path("/messages"), deepBody(body, 65)))
			h.wantInvalid(h.write(alice.key, alice.path("/messages"), deepBody(body, 30_000)))
			h.wantEvents(alice.channel, 1)
		}},
	{number: "N-10", title: "Unknown members of a body are ignored",
		cites: `GATEWAYS "Bodies and errors"`, needs: needsOperator, run: func(h *channelProbe) {
			alice := h.talk()
			h.said(h.write(alice.key, alice.path("/messages"), message{"content": "hello", "x": []any{nil}}), 0)
			h.wantOK(h.write(alice.channel.key, alice.path("/members"), message{"name": "carol", "x": true}),
				http.StatusCreated)
			h.wantOK(h.ask("", http.MethodPatch, alice.path(""), alice.channel.key, nil, message{"x": 1, "name": "other"}),
				http.StatusOK)
		}},
	{number: "N-11", title: "A body that is not one JSON object is refused",
		cites: `GATEWAYS "Bodies and errors"; G-27`, needs: needsOperator,
		run: refusesMessages(func(good string) []string { return append(notOneObject(good), hugeNumbers(good)...) })},
	{number: "N-12", title: "A body with a duplicate member is refused, at any depth and in any spelling",
		cites: `GATEWAYS "Bodies and errors"; G-27`, needs: needsOperator,
		run: refusesMessages(func(good string) []string { return doubledMembers(good, "content") })},
	{number: "N-13", title: "A body with a lone surrogate, U+0000 or invalid UTF-8 is refused",
		cites: `GATEWAYS "Bodies and errors"; G-27, G-35`, needs: needsOperator,
		run: refusesMessages(badTexts)},
	{number: "N-14", title: "The same rules hold for the body of a callback",
		cites: `GATEWAYS "Bodies and errors"; G-26, G-27, G-35`, needs: needsAgent, run: callbackBodies},
}

// refusesMessages returns a check that posts a good message, which the service must take, and then variants of its
// text, which the service must refuse.
func refusesMessages(variants func(good string) []string) func(*channelProbe) {
	return func(h *channelProbe) {
		alice := h.talk()
		h.say(alice, "hello")
		for _, text := range variants(string(canonical(message{"content": "hello"}))) {
			h.wantInvalid(h.write(alice.key, alice.path("/messages"), []byte(text)))
		}
		h.describe("the events of the channel")
		h.wantEvents(alice.channel, 1)
	}
}

func callbackBodies(h *channelProbe) {
	alice, _, d := h.exchange()
	event := statusEvent("hello")
	good := string(canonical(event))
	h.wantSeq(h.ask("65,536 bytes", http.MethodPost, d.callback, "", nil, padBody(event, 65536)))
	h.wantSeq(h.ask("64 levels", http.MethodPost, d.callback, "", nil, deepBody(event, 64)))
	h.wantError(h.ask("65,537 bytes", http.MethodPost, d.callback, "", nil, padBody(event, 65537)),
		http.StatusRequestEntityTooLarge, "PAYLOAD_TOO_LARGE")
	h.wantInvalid(h.ask("65 levels", http.MethodPost, d.callback, "", nil, deepBody(event, 65)))
	for _, text := range []string{"", "[" + good + "]", good + good, strings.Replace(good, "{", `{"x":1,"x":2,`, 1),
		strings.Replace(good, "hello", `\ud800`, 1), strings.Replace(good, "hello", "\xff", 1),
		strings.Replace(good, "hello", `a\u0000b`, 1)} {
		h.wantInvalid(h.ask("", http.MethodPost, d.callback, "", nil, []byte(text)))
	}
	h.wantError(h.ask("Content-Encoding: gzip", http.MethodPost, d.callback, "",
		http.Header{"Content-Encoding": {"gzip"}}, event), http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE")
	h.describe("the events of the channel")
	h.wantEvents(alice.channel, 3)
}
