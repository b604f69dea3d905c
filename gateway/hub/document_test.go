package hub_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// H-27: every path in the document answers, at the prefix, at the root and on the own listener. Clients append it to
// the URL of the document, less /.well-known/chorus.json.
func TestDocument(t *testing.T) {
	t.Parallel()
	f := startLocal(t, func(f *fixture) { f.options.MaxAgents = 77 })
	const document = "/.well-known/chorus.json"
	const text = `{"chorus_version":"0.4","endpoints":{"ack":"P/agent/ack","directory":"P/discover",` +
		`"discover":"P/agents","health":"P/health","inbox":"P/agent/inbox","invite":"P/invite/:agent_id",` +
		`"messages":"P/agent/messages","register":"P/agents","self_register":"P/register","send":"P/messages",` +
		`"session":"P/agent/session","skill":"P/skill"},` +
		`"limits":{"max_agents":77,"max_message_bytes":65536},"server_name":"relay.example"}` + "\n"
	posts := []string{"register", "self_register", "send", "session", "ack"}
	for base, prefix := range map[string]string{f.URL + "/hub": "", f.URL: "/hub", f.Own: ""} {
		a := f.at(base, call{"GET", document, "", nil, nil})
		if a.Status != 200 || string(a.Body) != strings.ReplaceAll(text, "P/", prefix+"/") {
			t.Errorf("%s: %v", base+document, a)
		}
		var read struct{ Endpoints map[string]string }
		if err := json.Unmarshal(a.Body, &read); err != nil {
			t.Fatal(err)
		}
		for name, path := range read.Endpoints {
			method := "GET"
			if slices.Contains(posts, name) {
				method = "POST"
			}
			a := f.at(base, call{method, strings.ReplaceAll(path, ":agent_id", "a@b"), "", "{}", nil})
			switch {
			case a.Status == 200 && method == "GET", a.Status == 401 && a.code() == "ERR_UNAUTHORIZED",
				a.Status == 400 && name == "self_register" && a.code() == "ERR_VALIDATION":
			default:
				t.Errorf("%s at %s: %v", name, base+path, a)
			}
		}
		if a := f.at(base, call{"POST", document, "", "{}", nil}); a.Status != 405 || a.code() != "ERR_METHOD_NOT_ALLOWED" {
			t.Errorf("POST %s: %v", base+document, a)
		}
	}
	// G-3: the own listener serves no path of the relay, and nothing under the prefix. G-2: it has the same agents.
	for _, path := range []string{"/events", "/threads/x", "/.well-known/agora.json", "/hub/health", "/hub", "/",
		"/hub" + document} {
		if a := f.at(f.Own, call{"GET", path, "", nil, nil}); a.Status != 404 || a.code() != "ERR_NOT_FOUND" {
			t.Errorf("GET %s on the own listener: %v", path, a)
		}
	}
	key := f.register("a@b")
	for _, base := range []string{f.URL + "/hub", f.Own} {
		for _, path := range []string{"/agents/a@b", "/agent/messages", "/discover", "/nothing"} {
			a, again := f.get(path, key), f.at(base, call{"GET", path, key, nil, nil})
			if a.Status != again.Status || fmt.Sprint(a.data("")) != fmt.Sprint(again.data("")) || a.code() != again.code() {
				t.Errorf("GET %s: %v and on the own listener %v", path, a, again)
			}
		}
	}
	a := f.at(f.Own, call{"GET", "/invite/a@b", "", nil, map[string]string{"Accept": asJSON}})
	if a.text("hub") != baseURL {
		t.Errorf("on the own listener the invite is %v", a)
	}
}

// TestHubName: --hub-name is the host of short addresses, and the server_name.
func TestHubName(t *testing.T) {
	t.Parallel()
	f := startLocal(t, func(f *fixture) { f.options.Name = "chorus.example" })
	key := f.register("bob@chorus.example")
	f.send(key, "bob@chorus.example", "bob", "hello")
	if a := f.get("/agents/bob", ""); a.text("agent_id") != "bob@chorus.example" {
		t.Errorf("the agent is %v", a)
	}
	if a := f.get("/.well-known/chorus.json", ""); !a.has(`"server_name":"chorus.example"`) {
		t.Errorf("the document is %v", a)
	}
}
