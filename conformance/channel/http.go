package channel

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// channelHTTPChecks test paths, methods and the form of answers.
var channelHTTPChecks = []channelCheck{
	{Number: "N-1", Title: "An unknown path is answered with 404 NOT_FOUND and never redirected",
		Cites: `GATEWAYS "Turn them on"; GATEWAYS "Bodies and errors"; G-25`, Run: func(h *channelProbe) {
			for _, path := range []string{"/nothing-is-here", "/channels/", "//channels", "/channel", "/messages",
				"/events", "/x/../channels"} {
				for _, method := range []string{http.MethodGet, http.MethodPost} {
					h.wantUnknown(h.Ask("", method, path, "", nil, kit.EncodeBody(kit.Message{"name": "kit"})))
				}
			}
		}},
	{Number: "N-2",
		Title: "A method that a path does not support is refused with 405 METHOD_NOT_ALLOWED and an Allow header",
		Cites: `GATEWAYS "Bodies and errors"; CHANNEL "The service"; G-25`, Needs: kit.NeedsOperator, Run: channelMethods},
	{Number: "N-3", Title: "A refusal is JSON with ok false, error, message and retryable",
		Cites: `CHANNEL "The service"; GATEWAYS "Bodies and errors"; G-25`, Needs: kit.NeedsOperator, Run: channelErrorForm},
	{Number: "N-4", Title: "The Content-Type of a request is ignored",
		Cites: `GATEWAYS "Bodies and errors"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.talk()
			for _, values := range [][]string{{"text/plain"}, {"application/x-www-form-urlencoded"}, {"nonsense"}, nil} {
				h.said(h.Ask("Content-Type: "+strings.Join(values, ""), http.MethodPost, alice.path("/messages"),
					alice.key, http.Header{"Content-Type": values}, kit.Message{"content": "hello"}), 0)
			}
			h.wantEvents(alice.channel, 4)
		}},
	{Number: "N-5", Title: "A body with any Content-Encoding is refused with 415 UNSUPPORTED_MEDIA_TYPE",
		Cites: `GATEWAYS "Bodies and errors"; G-25`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.talk()
			for _, encoding := range []string{"gzip", "br", "identity"} {
				h.wantError(h.Ask("Content-Encoding: "+encoding, http.MethodPost, alice.path("/messages"), alice.key,
					http.Header{"Content-Encoding": {encoding}}, kit.Message{"content": "hello"}),
					http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE")
				h.wantError(h.Ask("Content-Encoding: "+encoding, http.MethodPost, alice.path("/members"),
					alice.channel.key, http.Header{"Content-Encoding": {encoding}}, kit.Message{"name": "carol"}),
					http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE")
			}
			h.wantEvents(alice.channel, 0)
		}},
	{Number: "N-6",
		Title: "Unknown query parameters are ignored, and repeated or malformed ones are refused",
		Cites: `GATEWAYS "Bodies and errors"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.talk()
			h.say(alice, "hello")
			if n := len(h.events(alice.channel, "?unknown=1&also=2&unknown=3")); n != 1 {
				h.Expect("one event")
				h.Failf("%d events", n)
			}
			for _, query := range []string{"?after=0&after=0", "?limit=1&limit=1", "?wait=0&wait=0", "?after=",
				"?limit=x", "?wait=x", "?limit=1.5", "?after=-1", "?limit=%zz"} {
				h.wantInvalid(h.Read(alice.channel.key, alice.path("/events"+query)))
			}
		}},
	{Number: "N-7",
		Title: "Answers on a path with a key have Cache-Control: no-store and Referrer-Policy: no-referrer",
		Cites: `GATEWAYS "Keys of callers"`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			for _, a := range []kit.Answer{h.report(d, statusEvent("reading")), h.report(d, kit.Message{"type": "x"}),
				h.Write("", alice.path("/inbox/"+kit.UnknownToken), statusEvent("reading"))} {
				h.Want(a.Header.Get("Cache-Control") == "no-store" && a.Header.Get("Referrer-Policy") == "no-referrer", a,
					"Cache-Control: no-store and Referrer-Policy: no-referrer, instead of %q and %q",
					a.Header.Get("Cache-Control"), a.Header.Get("Referrer-Policy"))
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
		{"GET", c.path("/inbox/" + kit.UnknownToken), "POST"},
	} {
		key := h.service.OperatorKey
		if strings.Contains(asked.path, "/inbox/") {
			key = ""
		}
		a := h.Ask("", asked.method, asked.path, key, nil, []byte("{}"))
		h.wantError(a, http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED")
		h.WantAllow(a, asked.method, asked.allowed)
	}
	h.wantOK(h.Read(c.key, c.path("")), http.StatusOK)
	h.entry(h.Read(c.key, c.path("/members")), "members", "alice")
}

func channelErrorForm(h *channelProbe) {
	alice := h.talk()
	for _, a := range []kit.Answer{
		h.Read("", "/nothing-is-here"), h.Read("", "/channels"), h.Write("", "/channels", kit.Message{}),
		h.Write(h.service.OperatorKey, "/channels", kit.Message{}), h.Read(alice.key, alice.path("")),
		h.Write(alice.key, alice.path("/messages"), kit.Message{"content": ""}),
		h.Write(alice.channel.key, alice.path("/members"), kit.Message{"name": "alice"}),
		h.Read(h.service.OperatorKey, unknownChannel.path("")),
		h.Write("", alice.path("/inbox/"+kit.UnknownToken), statusEvent("reading")),
		h.Write(alice.key, alice.path("/messages"), []byte(strings.Repeat(" ", 65537))),
	} {
		h.Expect(`{"ok":false,"error":"CODE","message":"…","retryable":false}, as application/json, and details ` +
			`only as an object`)
		ok, present := a.OK()
		_, retryable := a.Flag("retryable")
		var details map[string]json.RawMessage
		if a.Status < 400 || ok || !present || !retryable || a.Code() == "" || a.Text("message") == "" ||
			a.Members["details"] != nil && json.Unmarshal(a.Members["details"], &details) != nil ||
			!strings.HasPrefix(a.Header.Get("Content-Type"), "application/json") {
			h.Failf("%v: %s", a.Header["Content-Type"], a)
		}
	}
}

// channelBodyChecks test how a service reads the body of a request.
var channelBodyChecks = []channelCheck{
	{Number: "N-8",
		Title: "A body of 65,536 bytes is taken, and one byte more is refused with 413 PAYLOAD_TOO_LARGE",
		Cites: `GATEWAYS "Bodies and errors"; G-26`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.talk()
			h.said(h.Write(alice.key, alice.path("/messages"), kit.PadBody(kit.Message{"content": "a large body"}, 65536)), 0)
			for path, key := range map[string]string{"/messages": alice.key, "/members": alice.channel.key} {
				body := kit.PadBody(kit.Message{"content": "too large", "name": "carol"}, 65537)
				h.wantError(h.Write(key, alice.path(path), body), http.StatusRequestEntityTooLarge, "PAYLOAD_TOO_LARGE")
			}
			h.wantEvents(alice.channel, 1)
		}},
	{Number: "N-9", Title: "A body with 64 levels of nesting is taken, and one with 65 is refused",
		Cites: `GATEWAYS "Bodies and errors"; G-26`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.talk()
			body := kit.Message{"content": "a deep body"}
			h.said(h.Write(alice.key, alice.path("/messages"), kit.DeepBody(body, 64)), 0)
			h.wantInvalid(h.Write(alice.key, alice.path("/messages"), kit.DeepBody(body, 65)))
			h.wantInvalid(h.Write(alice.key, alice.path("/messages"), kit.DeepBody(body, 30_000)))
			h.wantEvents(alice.channel, 1)
		}},
	{Number: "N-10", Title: "Unknown members of a body are ignored",
		Cites: `GATEWAYS "Bodies and errors"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.talk()
			h.said(h.Write(alice.key, alice.path("/messages"), kit.Message{"content": "hello", "x": []any{nil}}), 0)
			h.wantOK(h.Write(alice.channel.key, alice.path("/members"), kit.Message{"name": "carol", "x": true}),
				http.StatusCreated)
			h.wantOK(h.Ask("", http.MethodPatch, alice.path(""), alice.channel.key, nil, kit.Message{"x": 1, "name": "other"}),
				http.StatusOK)
		}},
	{Number: "N-11", Title: "A body that is not one JSON object is refused",
		Cites: `GATEWAYS "Bodies and errors"; G-27`, Needs: kit.NeedsOperator,
		Run: refusesMessages(func(good string) []string { return append(kit.NotOneObject(good), kit.HugeNumbers(good)...) })},
	{Number: "N-12", Title: "A body with a duplicate member is refused, at any depth and in any spelling",
		Cites: `GATEWAYS "Bodies and errors"; G-27`, Needs: kit.NeedsOperator,
		Run: refusesMessages(func(good string) []string { return kit.DoubledMembers(good, "content") })},
	{Number: "N-13", Title: "A body with a lone surrogate, U+0000 or invalid UTF-8 is refused",
		Cites: `GATEWAYS "Bodies and errors"; G-27, G-35`, Needs: kit.NeedsOperator,
		Run: refusesMessages(kit.BadTexts)},
	{Number: "N-14", Title: "The same rules hold for the body of a callback",
		Cites: `GATEWAYS "Bodies and errors"; G-26, G-27, G-35`, Needs: needsAgent, Run: callbackBodies},
}

// refusesMessages returns a check that posts a good message, which the service must take, and then variants of its
// text, which the service must refuse.
func refusesMessages(variants func(good string) []string) func(*channelProbe) {
	return func(h *channelProbe) {
		alice := h.talk()
		h.say(alice, "hello")
		for _, text := range variants(string(kit.Canonical(kit.Message{"content": "hello"}))) {
			h.wantInvalid(h.Write(alice.key, alice.path("/messages"), []byte(text)))
		}
		h.Describe("the events of the channel")
		h.wantEvents(alice.channel, 1)
	}
}

func callbackBodies(h *channelProbe) {
	alice, _, d := h.exchange()
	event := statusEvent("hello")
	good := string(kit.Canonical(event))
	h.wantSeq(h.Ask("65,536 bytes", http.MethodPost, d.callback, "", nil, kit.PadBody(event, 65536)))
	h.wantSeq(h.Ask("64 levels", http.MethodPost, d.callback, "", nil, kit.DeepBody(event, 64)))
	h.wantError(h.Ask("65,537 bytes", http.MethodPost, d.callback, "", nil, kit.PadBody(event, 65537)),
		http.StatusRequestEntityTooLarge, "PAYLOAD_TOO_LARGE")
	h.wantInvalid(h.Ask("65 levels", http.MethodPost, d.callback, "", nil, kit.DeepBody(event, 65)))
	for _, text := range []string{"", "[" + good + "]", good + good, strings.Replace(good, "{", `{"x":1,"x":2,`, 1),
		strings.Replace(good, "hello", `\ud800`, 1), strings.Replace(good, "hello", "\xff", 1),
		strings.Replace(good, "hello", `a\u0000b`, 1)} {
		h.wantInvalid(h.Ask("", http.MethodPost, d.callback, "", nil, []byte(text)))
	}
	h.wantError(h.Ask("Content-Encoding: gzip", http.MethodPost, d.callback, "",
		http.Header{"Content-Encoding": {"gzip"}}, event), http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE")
	h.Describe("the events of the channel")
	h.wantEvents(alice.channel, 3)
}
