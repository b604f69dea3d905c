package hub

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
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
	{Number: "hub.document.fields",
		Title: "/.well-known/chorus.json has the version, the paths and the limits, without a wrapper",
		Cites: `HUB "Endpoints"`, Run: func(h *hubProbe) { h.wantDocument(h.Read("", "/.well-known/chorus.json"), "") }},
	{Number: "hub.document.paths", Title: "Every path of /.well-known/chorus.json answers",
		Cites: `HUB "Endpoints"; H-27`, Run: func(h *hubProbe) {
			h.wantPaths(h.hub.client, h.Read("", "/.well-known/chorus.json"))
		}},
	{Number: "hub.document.root", Title: "The root of the server has the document too, with paths below the hub's path",
		Cites: `HUB "Endpoints"; H-27`, Needs: kit.NeedsPrefix, Run: func(h *hubProbe) {
			h.NoteSent("GET /.well-known/chorus.json at the root of the server")
			document := h.hub.agora.Root.Do(h.Ctx, http.MethodGet, "/.well-known/chorus.json", nil, nil)
			h.wantDocument(document, h.hub.agora.Prefix)
			h.wantPaths(h.hub.agora.Root, document)
		}},
	{Number: "hub.health", Title: "GET /health has the counts of the hub", Cites: `HUB "Endpoints"`, Run: hubHealth},
	{Number: "hub.skill",
		Title: "GET /skill is SKILL.md for this hub, in English or Chinese, by lang or Accept-Language",
		Cites: `HUB "Endpoints"`, Run: hubSkill},
}

// wantDocument ends the check unless a is the document of a hub whose paths begin with prefix.
func (h *hubProbe) wantDocument(a kit.Answer, prefix string) {
	h.Want(a.Status == http.StatusOK && strings.HasPrefix(a.Header.Get("Content-Type"), "application/json"), a,
		"status 200 and Content-Type: application/json")
	h.Want(a.Text("chorus_version") == "0.4" && a.Text("server_name") != "", a,
		`"chorus_version":"0.4" and a server_name`)
	for _, e := range hubEndpoints {
		h.Want(a.Object("endpoints").Text(e.name) == prefix+e.path, a, "endpoints has %q:%q", e.name, prefix+e.path)
	}
	limits := a.Object("limits")
	h.Want(limits.Number("max_message_bytes") == 65536 && limits.Number("max_agents") >= 1, a,
		"limits has max_message_bytes 65536, and max_agents")
}

// wantPaths ends the check unless every path in the document answers. The paths are relative to the client's address.
func (h *hubProbe) wantPaths(client *kit.RelayClient, document kit.Answer) {
	for _, e := range hubEndpoints {
		path := document.Object("endpoints").Text(e.name)
		h.Want(strings.HasPrefix(path, "/"), document, "endpoints has a path for %s", e.name)
		path = strings.Replace(path, ":agent_id", "nobody@conformance.example", 1)
		var body []byte
		if e.method == http.MethodPost {
			body = []byte("{}")
		}
		h.NoteSent(e.method + " " + path)
		a := client.DoWithRetries(h.Ctx, kit.RetryableRequest{Method: e.method, Target: path, Body: body}, isHubRateLimit)
		h.Want(a.Status == e.status, a, "status %d for %s %s, without a key", e.status, e.method, path)
	}
}

func hubHealth(h *hubProbe) {
	a := h.one()
	before := h.wantData(h.Read("", "/health"), http.StatusOK)
	h.open(a, "")
	answered := h.Read("", "/health")
	data := h.wantData(answered, http.StatusOK)
	h.Want(data.Text("status") == "ok" && data.Text("version") != "", answered, `"status":"ok" and a version`)
	for _, name := range []string{"uptime_seconds", "agents_registered", "inbox_connections", "messages_stored",
		"messages_queued", "messages_failed"} {
		var number float64
		h.Want(json.Unmarshal(data.Members[name], &number) == nil && number >= 0, answered, "%s is a number", name)
	}
	h.Want(data.Number("agents_registered") >= 1 && data.Number("inbox_connections") >= 1 &&
		data.Number("uptime_seconds") >= before.Number("uptime_seconds"), answered,
		"at least one registered agent and one open stream, and an uptime that grows")
}

func hubSkill(h *hubProbe) {
	hub := h.inviteJSON(h.readAs("/invite/nobody@conformance.example", "application/json")).Text("hub")
	read := func(target, language string) string {
		header := http.Header{}
		if language != "" {
			header.Set("Accept-Language", language)
		}
		a := h.Ask("Accept-Language: "+language, http.MethodGet, target, "", header, nil)
		h.Want(a.Status == http.StatusOK && strings.HasPrefix(a.Header.Get("Content-Type"), "text/markdown"), a,
			"status 200 and Content-Type: text/markdown")
		h.Want(strings.Contains(string(a.Body), hub), a, "the text has the hub's address %s", hub)
		return string(a.Body)
	}
	english, chinese := read("/skill?lang=en", ""), read("/skill?lang=zh-CN", "")
	h.Expect("different texts for lang=en and lang=zh-CN, the second one in Chinese")
	if english == chinese || !strings.ContainsAny(chinese, "的是不") ||
		strings.ContainsAny(english[:min(200, len(english))], "的是不") {
		h.Failf("the texts begin with %q and %q", kit.Excerpt([]byte(english), 100), kit.Excerpt([]byte(chinese), 100))
	}
	h.Expect("Accept-Language chooses the language, unless lang does")
	if read("/skill", "zh-CN,zh;q=0.9,en;q=0.8") != chinese || read("/skill", "en-US,en;q=0.9") != english ||
		read("/skill?lang=en", "zh-CN") != english {
		h.Failf("the hub returned another language")
	}
}

// hubHTTPChecks test paths, methods and the form of answers.
var hubHTTPChecks = []hubCheck{
	{Number: "hub.http.wrapper", Title: "All JSON answers have the wrapper, with a timestamp in milliseconds",
		Cites: `HUB "Endpoints"; GATEWAYS "Bodies and errors"`, Run: hubWrapper},
	{Number: "hub.http.unknown-path", Title: "An unknown path is answered with 404 ERR_NOT_FOUND and never redirected",
		Cites: `GATEWAYS "Turn them on"; GATEWAYS "Bodies and errors"; G-25`, Run: func(h *hubProbe) {
			for _, path := range []string{"/nothing-is-here", "/register/", "//register", "/agent", "/agent/inbox/x",
				"/messages/", "/agent/nothing", "/discover/", "/x/../register", "/invite", "/health/"} {
				for _, method := range []string{http.MethodGet, http.MethodPost} {
					var body any
					if method == http.MethodPost {
						body = registration("nobody@conformance.example")
					}
					h.wantError(h.Ask("", method, path, "", nil, body), http.StatusNotFound, "ERR_NOT_FOUND")
				}
			}
		}},
	{Number: "hub.http.method",
		Title: "A method that a path does not support is refused with 405 ERR_METHOD_NOT_ALLOWED and an Allow header",
		Cites: `GATEWAYS "Bodies and errors"; G-25`, Run: func(h *hubProbe) {
			for _, asked := range []struct{ method, path, allowed string }{
				{"GET", "/register", "POST"}, {"PUT", "/agents", "GET"}, {"POST", "/agents/a@b", "DELETE"},
				{"POST", "/discover", "GET"}, {"GET", "/agent/session", "POST"}, {"POST", "/agent/inbox", "GET"},
				{"DELETE", "/agent/messages", "GET"}, {"GET", "/agent/ack", "POST"}, {"GET", "/messages", "POST"},
				{"POST", "/invite/a@b", "GET"}, {"POST", "/health", "GET"}, {"PATCH", "/skill", "GET"},
				{"POST", "/.well-known/chorus.json", "GET"}, {"DELETE", "/agents", "POST"},
			} {
				a := h.Ask("", asked.method, asked.path, "", nil, []byte("{}"))
				h.wantError(a, http.StatusMethodNotAllowed, "ERR_METHOD_NOT_ALLOWED")
				h.WantAllow(a, asked.method, asked.allowed)
			}
		}},
	{Number: "hub.http.content-type", Title: "The Content-Type of a request is ignored",
		Cites: `GATEWAYS "Bodies and errors"`,
		Run: func(h *hubProbe) {
			alice, bob := h.two()
			for _, value := range []string{"text/plain", "application/x-www-form-urlencoded", "nonsense"} {
				body := letter(alice, bob, "with the Content-Type "+value)
				h.accepted(alice, bob, body, h.Ask("Content-Type: "+value, http.MethodPost, "/messages", alice.key,
					http.Header{"Content-Type": {value}}, body))
			}
			body := letter(alice, bob, "without a Content-Type")
			h.accepted(alice, bob, body, h.Ask("without a Content-Type", http.MethodPost, "/messages", alice.key,
				http.Header{"Content-Type": nil}, body))
		}},
	{Number: "hub.http.encoding",
		Title: "A body with any Content-Encoding is refused with 415 ERR_UNSUPPORTED_MEDIA_TYPE",
		Cites: `GATEWAYS "Bodies and errors"; G-25`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			for _, encoding := range []string{"gzip", "br", "identity"} {
				for path, body := range map[string]kit.Message{
					"/messages": letter(alice, bob, "encoded"), "/register": registration(alice.id),
				} {
					h.wantError(h.Ask("Content-Encoding: "+encoding, http.MethodPost, path, alice.key,
						http.Header{"Content-Encoding": {encoding}}, body),
						http.StatusUnsupportedMediaType, "ERR_UNSUPPORTED_MEDIA_TYPE")
				}
			}
		}},
	{Number: "hub.http.parameters",
		Title: "Unknown query parameters are ignored, and repeated or malformed ones are refused",
		Cites: `GATEWAYS "Bodies and errors"`, Run: hubParameters},
}

func hubWrapper(h *hubProbe) {
	a := h.one()
	for _, answered := range []kit.Answer{
		h.Read("", "/agents"), h.Read("", "/agents/"+a.id), h.Read(a.key, "/discover"), h.Read("", "/health"),
		h.Write(a.key, "/agent/session", nil), h.Read(a.key, "/agent/messages"),
		h.Write(a.key, "/agent/ack", map[string]any{"up_to": 0}),
		h.readAs("/invite/"+a.id, "application/json"),
		h.Read("", "/nothing-is-here"), h.Read("", "/register"), h.Write("", "/register", kit.Message{}),
		h.Read("", "/agent/messages"), h.Read("", "/agents/nobody@conformance.example"), h.Write("", "/agents",
			kit.Message{}),
	} {
		h.Expect(`{"success":true,"data":…,"metadata":{"timestamp":"2026-03-20T10:00:00.000Z"}} or ` +
			`{"success":false,"error":{"code":"ERR_…","message":"…"},"metadata":{…}}, as application/json`)
		success, present := answered.Flag("success")
		right := answered.Members["data"] != nil && answered.Members["error"] == nil
		if !success {
			right = answered.Members["data"] == nil && strings.HasPrefix(hubCode(answered), "ERR_") &&
				answered.Object("error").Text("message") != ""
		}
		if !present || !right || success != (answered.Status < 300) ||
			!kit.TimeForm.MatchString(answered.Object("metadata").Text("timestamp")) ||
			!strings.HasPrefix(answered.Header.Get("Content-Type"), "application/json") {
			h.Failf("%s: %s", fmt.Sprint(answered.Header["Content-Type"]), answered)
		}
	}
}

func hubParameters(h *hubProbe) {
	a := h.one()
	h.rows(h.Read(a.key, "/agent/messages?unknown=1&also=2"))
	h.rows(h.Read(a.key, "/discover?unknown=1"))
	for _, target := range []string{"/agent/messages?limit=1&limit=1", "/agent/messages?since=1&since=1",
		"/agent/messages?limit=", "/agent/messages?limit=%zz", "/discover?culture=en&culture=en",
		"/discover?online=true&online=true", "/discover?online=maybe"} {
		h.wantInvalid(h.Read(a.key, target))
	}
	h.wantInvalid(h.Read("", "/skill?lang=en&lang=en"))
}
