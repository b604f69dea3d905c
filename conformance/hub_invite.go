package conformance

import (
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// bareList returns the elements of an answer that is a JSON array. It returns nil if it is something else.
func bareList(a answer) []answer {
	var list []json.RawMessage
	if a.status != http.StatusOK || json.Unmarshal(a.body, &list) != nil || list == nil {
		return nil
	}
	rows := []answer{}
	for _, raw := range list {
		rows = append(rows, parseRow(raw))
	}
	return rows
}

// wantEntry ends the check unless a is a bare list that has the agent once, with its culture and languages.
func (h *hubProbe) wantEntry(a answer, agent *hubAgent) answer {
	rows := bareList(a)
	h.want(rows != nil && strings.HasPrefix(a.header.Get("Content-Type"), "application/json"), a, "a JSON array")
	var found []answer
	for _, row := range rows {
		_, online := row.flag("online")
		h.want(row.text("agent_id") != "" && row.members["culture"] != nil && row.members["languages"] != nil &&
			online, row, "each entry has agent_id, culture, languages and online")
		if row.text("agent_id") == agent.id {
			found = append(found, row)
		}
	}
	h.expect("the agent %s once", agent.id)
	if len(found) != 1 {
		h.failf("it is there %d times", len(found))
	}
	return found[0]
}

// wantCard ends the check unless an entry has the culture and the languages of the run's agents.
func (h *hubProbe) wantCard(entry answer) {
	h.want(entry.text("culture") == "en" && sameJSON(entry.members["languages"], card()["supported_languages"]), entry,
		`"culture":"en" and "languages":["en","zh-CN"]`)
}

// listed returns the entry of an agent in /discover.
func (h *hubProbe) listed(a *hubAgent) answer { return h.wantEntry(h.read("", "/discover"), a) }

// wantListed ends the check unless all entries have this value of a member, and only one of the agents is listed.
func (h *hubProbe) wantListed(a answer, member, value string, with, without *hubAgent) {
	rows := bareList(a)
	h.want(rows != nil, a, "a JSON array")
	found := false
	for _, row := range rows {
		h.want(string(row.members[member]) == value, row, "only entries with %q:%s", member, value)
		h.want(without == nil || row.text("agent_id") != without.id, row, "only entries that both parameters select")
		found = found || row.text("agent_id") == with.id
	}
	h.expect("the entry of %s", with.id)
	if !found {
		h.failf("%s", describeRows(rows))
	}
}

// readAs sends GET with this Accept.
func (h *hubProbe) readAs(target, accept string) answer {
	return h.ask("Accept: "+accept, http.MethodGet, target, "", http.Header{"Accept": {accept}}, nil)
}

// inviteJSON ends the check unless a is an invite for programs. It returns its data.
func (h *hubProbe) inviteJSON(a answer) answer {
	data := h.wantData(a, http.StatusOK)
	_, online := data.flag("online")
	_, exists := data.flag("exists")
	h.want(data.text("agent_id") != "" && data.text("connect_instructions") != "" && data.members["culture"] != nil &&
		online && exists, a, "agent_id, culture, online, exists and connect_instructions")
	hub, err := url.Parse(data.text("hub"))
	h.want(err == nil && hub.Host != "" && (hub.Scheme == "http" || hub.Scheme == "https") &&
		!strings.HasSuffix(data.text("hub"), "/"), a, "hub is the absolute URL of the hub")
	return data
}

// hubInviteChecks test the invite of an agent.
var hubInviteChecks = []hubCheck{
	{number: "hub.invite.json", title: "An invite with application/json in Accept is JSON, also for an unknown address",
		cites: `HUB "Endpoints"`, run: func(h *hubProbe) {
			a := h.one()
			for _, accept := range []string{"application/json", "text/html, application/json;q=0.9",
				"application/json, */*"} {
				answered := h.readAs("/invite/"+a.id, accept)
				data := h.inviteJSON(answered)
				exists, _ := data.flag("exists")
				h.want(exists && data.text("agent_id") == a.id && data.text("culture") == "en", answered,
					`"exists":true, the agent_id and the culture "en"`)
				answered = h.readAs("/invite/nobody@conformance.example", accept)
				data = h.inviteJSON(answered)
				exists, _ = data.flag("exists")
				online, _ := data.flag("online")
				h.want(!exists && !online && string(data.members["culture"]) == "null", answered,
					`"exists":false, "online":false and "culture":null`)
			}
		}},
	{number: "hub.invite.form",
		title: "An invite for something that is no address is refused with 400", cites: `HUB "Endpoints"`,
		run: func(h *hubProbe) {
			for _, id := range []string{"a@b@c", "a%20b@c", "@", "%3Cb%3E@c", strings.Repeat("a", 127) + "@b"} {
				h.wantInvalid(h.readAs("/invite/"+id, "application/json"))
			}
		}},
	{number: "hub.invite.html",
		title: "Otherwise an invite is HTML, with a Content-Security-Policy that allows nothing active",
		cites: `HUB "Endpoints"; H-25`, run: func(h *hubProbe) {
			a := h.one()
			for _, accept := range []string{"text/html", "*/*", ""} {
				answered := h.readAs("/invite/"+a.id, accept)
				isHTML := strings.HasPrefix(answered.header.Get("Content-Type"), "text/html")
				h.want(answered.status == http.StatusOK && isHTML && strings.Contains(string(answered.body), a.id),
					answered, "status 200, text/html, and the address %s", a.id)
				h.wantInert(answered)
			}
		}},
	{number: "hub.invite.inert", title: "The invite page is inert for every path", cites: `HUB "Endpoints"; H-25`,
		run: func(h *hubProbe) {
			for _, id := range []string{"<script>alert(1)</script>@x", `"><img src=x onerror=alert(1)>@x`,
				"'-alert(1)-'@x", "javascript:alert(1)//@x", "</title><script>alert(1)</script>", "a@b&lt;script&gt;",
				"a@<svg/onload=alert(1)>", "a\"onmouseover=\"alert(1)@b", "../../register",
				"..%2f..%2fhealth", "a@b\u2028", "a@b\x00<script>alert(1)", "{{7*7}}@x", "${alert(1)}@x",
				"a@b\r\nX-Injected: 1", strings.Repeat("<b>", 500) + "@x",
				"\xff<script>@x"} {
				for _, accept := range []string{"text/html", "application/json"} {
					h.wantInert(h.readAs("/invite/"+url.PathEscape(id), accept))
				}
			}
		}},
	{number: "hub.invite.host",
		title: "No answer contains the Host header of the request, and hub is the hub's own URL",
		cites: `HUB "Start a hub"; GATEWAYS "Turn them on"; H-26`, run: falseHost},
}

var activeHTML = regexp.MustCompile(`(?i)<(script|iframe|object|embed|form|svg|img|base|link|meta[^>]+refresh|b><b)` +
	`|<[^>]*\son[a-z]+\s*=|(href|src|action)\s*=\s*["']?\s*(javascript|data|vbscript):`)

// wantInert ends the check if a browser could run something in the answer.
func (h *hubProbe) wantInert(a answer) {
	kind := a.header.Get("Content-Type")
	h.want(a.err == nil && a.status < 500 && (a.status < 300 || a.status >= 400), a,
		"an answer that is no redirect and no fault")
	h.want(a.header.Get("X-Injected") == "", a, "no header that the path contains")
	if strings.HasPrefix(kind, "application/json") {
		h.want(a.members != nil, a, "a JSON object, because the Content-Type is %q", kind)
		return
	}
	h.want(strings.HasPrefix(kind, "text/html"), a, "the Content-Type text/html or application/json, instead of %q",
		kind)
	h.want(a.header.Get("Content-Security-Policy") == "default-src 'none'; style-src 'unsafe-inline'", a,
		"Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline', instead of %q",
		a.header.Get("Content-Security-Policy"))
	found := activeHTML.Find(a.body)
	h.expect("every value in the page is escaped, and it has no scripts, handlers and foreign parts")
	if found != nil {
		h.failf("the page contains %q", found)
	}
}

func falseHost(h *hubProbe) {
	a := h.one()
	hub := h.inviteJSON(h.readAs("/invite/"+a.id, "application/json")).text("hub")
	const evil = "evil-host.example"
	for _, header := range []http.Header{{"Host": {evil}}, {"Host": {evil + ":80"}}, {"X-Forwarded-Host": {evil}},
		{"Forwarded": {"host=" + evil}}, {"X-Forwarded-Proto": {"evil-host.example"}}} {
		for _, target := range []string{"/invite/" + a.id, "/.well-known/chorus.json", "/skill?lang=en",
			"/agents/" + a.id,
			"/nothing-is-here"} {
			for _, accept := range []string{"text/html", "application/json"} {
				both := header.Clone()
				both.Set("Accept", accept)
				answered := h.ask("with a false Host header", http.MethodGet, target, "", both, nil)
				h.wantNoText(answered, "nothing of the false Host", evil)
				for name, values := range answered.header {
					h.want(!strings.Contains(strings.Join(values, " "), evil), answered,
						"no false Host in the header %s", name)
				}
				if answered.status == http.StatusOK && accept == "application/json" && target == "/invite/"+a.id {
					h.want(h.inviteJSON(answered).text("hub") == hub, answered, "the hub %s", hub)
				}
			}
		}
	}
}
