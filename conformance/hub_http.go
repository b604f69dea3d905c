package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// hubEndpoints are the members of endpoints in the hub's document, with a request that each path must answer with this
// status.
var hubEndpoints = []struct {
	name, path, method string
	status             int
}{
	{"register", "/agents", http.MethodPost, http.StatusUnauthorized},
	{"self_register", "/register", http.MethodPost, http.StatusBadRequest},
	{"discover", "/agents", http.MethodGet, http.StatusOK}, {"directory", "/discover", http.MethodGet, http.StatusOK},
	{"send", "/messages", http.MethodPost, http.StatusUnauthorized},
	{"inbox", "/agent/inbox", http.MethodGet, http.StatusUnauthorized},
	{"session", "/agent/session", http.MethodPost, http.StatusUnauthorized},
	{"messages", "/agent/messages", http.MethodGet, http.StatusUnauthorized},
	{"ack", "/agent/ack", http.MethodPost, http.StatusUnauthorized},
	{"invite", "/invite/:agent_id", http.MethodGet, http.StatusOK},
	{"skill", "/skill", http.MethodGet, http.StatusOK}, {"health", "/health", http.MethodGet, http.StatusOK},
}

// hubDocumentChecks test what a hub says about itself.
var hubDocumentChecks = []hubCheck{
	{number: "hub.document.fields",
		title: "/.well-known/chorus.json has the version, the paths and the limits, without a wrapper",
		cites: `HUB "Endpoints"`, run: func(h *hubProbe) { h.wantDocument(h.read("", "/.well-known/chorus.json"), "") }},
	{number: "hub.document.paths", title: "Every path of /.well-known/chorus.json answers",
		cites: `HUB "Endpoints"; H-27`, run: func(h *hubProbe) {
			h.wantPaths(h.hub.client, h.read("", "/.well-known/chorus.json"))
		}},
	{number: "hub.document.root", title: "The root of the server has the document too, with paths below the hub's path",
		cites: `HUB "Endpoints"; H-27`, needs: needsPrefix, run: func(h *hubProbe) {
			h.noteSent("GET /.well-known/chorus.json at the root of the server")
			document := h.hub.agora.root.do(h.ctx, http.MethodGet, "/.well-known/chorus.json", nil, nil)
			h.wantDocument(document, h.hub.agora.prefix)
			h.wantPaths(h.hub.agora.root, document)
		}},
	{number: "hub.health", title: "GET /health has the counts of the hub", cites: `HUB "Endpoints"`, run: hubHealth},
	{number: "hub.skill",
		title: "GET /skill is SKILL.md for this hub, in English or Chinese, by lang or Accept-Language",
		cites: `HUB "Endpoints"`, run: hubSkill},
}

// wantDocument ends the check unless a is the document of a hub whose paths begin with prefix.
func (h *hubProbe) wantDocument(a answer, prefix string) {
	h.want(a.status == http.StatusOK && strings.HasPrefix(a.header.Get("Content-Type"), "application/json"), a,
		"status 200 and Content-Type: application/json")
	h.want(a.text("chorus_version") == "0.4" && a.text("server_name") != "", a,
		`"chorus_version":"0.4" and a server_name`)
	for _, e := range hubEndpoints {
		h.want(a.object("endpoints").text(e.name) == prefix+e.path, a, "endpoints has %q:%q", e.name, prefix+e.path)
	}
	limits := a.object("limits")
	h.want(limits.number("max_message_bytes") == 65536 && limits.number("max_agents") >= 1, a,
		"limits has max_message_bytes 65536, and max_agents")
}

// wantPaths ends the check unless every path in the document answers. The paths are relative to the client's address.
func (h *hubProbe) wantPaths(client *relayClient, document answer) {
	for _, e := range hubEndpoints {
		path := document.object("endpoints").text(e.name)
		h.want(strings.HasPrefix(path, "/"), document, "endpoints has a path for %s", e.name)
		path = strings.Replace(path, ":agent_id", "nobody@conformance.example", 1)
		var body []byte
		if e.method == http.MethodPost {
			body = []byte("{}")
		}
		h.noteSent(e.method + " " + path)
		a := client.doWithRetries(h.ctx, retryableRequest{method: e.method, target: path, body: body}, isHubRateLimit)
		h.want(a.status == e.status, a, "status %d for %s %s, without a key", e.status, e.method, path)
	}
}

func hubHealth(h *hubProbe) {
	a := h.one()
	before := h.wantData(h.read("", "/health"), http.StatusOK)
	h.open(a, "")
	answered := h.read("", "/health")
	data := h.wantData(answered, http.StatusOK)
	h.want(data.text("status") == "ok" && data.text("version") != "", answered, `"status":"ok" and a version`)
	for _, name := range []string{"uptime_seconds", "agents_registered", "inbox_connections", "messages_stored",
		"messages_queued", "messages_failed"} {
		var number float64
		h.want(json.Unmarshal(data.members[name], &number) == nil && number >= 0, answered, "%s is a number", name)
	}
	h.want(data.number("agents_registered") >= 1 && data.number("inbox_connections") >= 1 &&
		data.number("uptime_seconds") >= before.number("uptime_seconds"), answered,
		"at least one registered agent and one open stream, and an uptime that grows")
}

func hubSkill(h *hubProbe) {
	hub := h.inviteJSON(h.readAs("/invite/nobody@conformance.example", "application/json")).text("hub")
	read := func(target, language string) string {
		header := http.Header{}
		if language != "" {
			header.Set("Accept-Language", language)
		}
		a := h.ask("Accept-Language: "+language, http.MethodGet, target, "", header, nil)
		h.want(a.status == http.StatusOK && strings.HasPrefix(a.header.Get("Content-Type"), "text/markdown"), a,
			"status 200 and Content-Type: text/markdown")
		h.want(strings.Contains(string(a.body), hub), a, "the text has the hub's address %s", hub)
		return string(a.body)
	}
	english, chinese := read("/skill?lang=en", ""), read("/skill?lang=zh-CN", "")
	h.expect("different texts for lang=en and lang=zh-CN, the second one in Chinese")
	if english == chinese || !strings.ContainsAny(chinese, "的是不") ||
		strings.ContainsAny(english[:min(200, len(english))], "的是不") {
		h.failf("the texts begin with %q and %q", excerpt([]byte(english), 100), excerpt([]byte(chinese), 100))
	}
	h.expect("Accept-Language chooses the language, unless lang does")
	if read("/skill", "zh-CN,zh;q=0.9,en;q=0.8") != chinese || read("/skill", "en-US,en;q=0.9") != english ||
		read("/skill?lang=en", "zh-CN") != english {
		h.failf("the hub returned another language")
	}
}

// hubHTTPChecks test paths, methods and the form of answers.
var hubHTTPChecks = []hubCheck{
	{number: "hub.http.wrapper", title: "All JSON answers have the wrapper, with a timestamp in milliseconds",
		cites: `HUB "Endpoints"; GATEWAYS "Bodies and errors"`, run: hubWrapper},
	{number: "hub.http.unknown-path", title: "An unknown path is answered with 404 ERR_NOT_FOUND and never redirected",
		cites: `GATEWAYS "Turn them on"; GATEWAYS "Bodies and errors"; G-25`, run: func(h *hubProbe) {
			for _, path := range []string{"/nothing-is-here", "/register/", "//register", "/agent", "/agent/inbox/x",
				"/messages/", "/agent/nothing", "/discover/", "/x/../register", "/invite", "/health/"} {
				for _, method := range []string{http.MethodGet, http.MethodPost} {
					var body any
					if method == http.MethodPost {
						body = registration("nobody@conformance.example")
					}
					h.wantError(h.ask("", method, path, "", nil, body), http.StatusNotFound, "ERR_NOT_FOUND")
				}
			}
		}},
	{number: "hub.http.method",
		title: "A method that a path does not support is refused with 405 ERR_METHOD_NOT_ALLOWED and an Allow header",
		cites: `GATEWAYS "Bodies and errors"; G-25`, run: func(h *hubProbe) {
			for _, asked := range []struct{ method, path, allowed string }{
				{"GET", "/register", "POST"}, {"PUT", "/agents", "GET"}, {"POST", "/agents/a@b", "DELETE"},
				{"POST", "/discover", "GET"}, {"GET", "/agent/session", "POST"}, {"POST", "/agent/inbox", "GET"},
				{"DELETE", "/agent/messages", "GET"}, {"GET", "/agent/ack", "POST"}, {"GET", "/messages", "POST"},
				{"POST", "/invite/a@b", "GET"}, {"POST", "/health", "GET"}, {"PATCH", "/skill", "GET"},
				{"POST", "/.well-known/chorus.json", "GET"}, {"DELETE", "/agents", "POST"},
			} {
				a := h.ask("", asked.method, asked.path, "", nil, []byte("{}"))
				h.wantError(a, http.StatusMethodNotAllowed, "ERR_METHOD_NOT_ALLOWED")
				h.wantAllow(a, asked.method, asked.allowed)
			}
		}},
	{number: "hub.http.content-type", title: "The Content-Type of a request is ignored",
		cites: `GATEWAYS "Bodies and errors"`,
		run: func(h *hubProbe) {
			alice, bob := h.two()
			for _, value := range []string{"text/plain", "application/x-www-form-urlencoded", "nonsense"} {
				body := letter(alice, bob, "with the Content-Type "+value)
				h.accepted(alice, bob, body, h.ask("Content-Type: "+value, http.MethodPost, "/messages", alice.key,
					http.Header{"Content-Type": {value}}, body))
			}
			body := letter(alice, bob, "without a Content-Type")
			h.accepted(alice, bob, body, h.ask("without a Content-Type", http.MethodPost, "/messages", alice.key,
				http.Header{"Content-Type": nil}, body))
		}},
	{number: "hub.http.encoding",
		title: "A body with any Content-Encoding is refused with 415 ERR_UNSUPPORTED_MEDIA_TYPE",
		cites: `GATEWAYS "Bodies and errors"; G-25`, run: func(h *hubProbe) {
			alice, bob := h.two()
			for _, encoding := range []string{"gzip", "br", "identity"} {
				for path, body := range map[string]message{
					"/messages": letter(alice, bob, "encoded"), "/register": registration(alice.id),
				} {
					h.wantError(h.ask("Content-Encoding: "+encoding, http.MethodPost, path, alice.key,
						http.Header{"Content-Encoding": {encoding}}, body),
						http.StatusUnsupportedMediaType, "ERR_UNSUPPORTED_MEDIA_TYPE")
				}
			}
		}},
	{number: "hub.http.parameters",
		title: "Unknown query parameters are ignored, and repeated or malformed ones are refused",
		cites: `GATEWAYS "Bodies and errors"`, run: hubParameters},
}

func hubWrapper(h *hubProbe) {
	a := h.one()
	for _, answered := range []answer{
		h.read("", "/agents"), h.read("", "/agents/"+a.id), h.read(a.key, "/discover"), h.read("", "/health"),
		h.write(a.key, "/agent/session", nil), h.read(a.key, "/agent/messages"),
		h.write(a.key, "/agent/ack", map[string]any{"up_to": 0}),
		h.readAs("/invite/"+a.id, "application/json"),
		h.read("", "/nothing-is-here"), h.read("", "/register"), h.write("", "/register", message{}),
		h.read("", "/agent/messages"), h.read("", "/agents/nobody@conformance.example"), h.write("", "/agents",
			message{}),
	} {
		h.expect(`{"success":true,"data":…,"metadata":{"timestamp":"2026-03-20T10:00:00.000Z"}} or ` +
			`{"success":false,"error":{"code":"ERR_…","message":"…"},"metadata":{…}}, as application/json`)
		success, present := answered.flag("success")
		right := answered.members["data"] != nil && answered.members["error"] == nil
		if !success {
			right = answered.members["data"] == nil && strings.HasPrefix(hubCode(answered), "ERR_") &&
				answered.object("error").text("message") != ""
		}
		if !present || !right || success != (answered.status < 300) ||
			!timeForm.MatchString(answered.object("metadata").text("timestamp")) ||
			!strings.HasPrefix(answered.header.Get("Content-Type"), "application/json") {
			h.failf("%s: %s", fmt.Sprint(answered.header["Content-Type"]), answered)
		}
	}
}

func hubParameters(h *hubProbe) {
	a := h.one()
	h.rows(h.read(a.key, "/agent/messages?unknown=1&also=2"))
	h.rows(h.read(a.key, "/discover?unknown=1"))
	for _, target := range []string{"/agent/messages?limit=1&limit=1", "/agent/messages?since=1&since=1",
		"/agent/messages?limit=", "/agent/messages?limit=%zz", "/discover?culture=en&culture=en",
		"/discover?online=true&online=true", "/discover?online=maybe"} {
		h.wantInvalid(h.read(a.key, target))
	}
	h.wantInvalid(h.read("", "/skill?lang=en&lang=en"))
}
