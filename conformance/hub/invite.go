package hub

import (
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// bareList returns the elements of an answer that is a JSON array. It returns nil if it is something else.
func bareList(a kit.Answer) []kit.Answer {
	var list []json.RawMessage
	if a.Status != http.StatusOK || json.Unmarshal(a.Body, &list) != nil || list == nil {
		return nil
	}
	rows := []kit.Answer{}
	for _, raw := range list {
		rows = append(rows, kit.ParseRow(raw))
	}
	return rows
}

// wantEntry ends the check unless a is a bare list that has the agent once, with its culture and languages.
func (h *hubProbe) wantEntry(a kit.Answer, agent *hubAgent) kit.Answer {
	rows := bareList(a)
	h.Want(rows != nil && strings.HasPrefix(a.Header.Get("Content-Type"), "application/json"), a, "a JSON array")
	var found []kit.Answer
	for _, row := range rows {
		_, online := row.Flag("online")
		h.Want(row.Text("agent_id") != "" && row.Members["culture"] != nil && row.Members["languages"] != nil &&
			online, row, "each entry has agent_id, culture, languages and online")
		if row.Text("agent_id") == agent.id {
			found = append(found, row)
		}
	}
	h.Expect("the agent %s once", agent.id)
	if len(found) != 1 {
		h.Failf("it is there %d times", len(found))
	}
	return found[0]
}

// wantCard ends the check unless an entry has the culture and the languages of the run's agents.
func (h *hubProbe) wantCard(entry kit.Answer) {
	h.Want(entry.Text("culture") == "en" && kit.SameJSON(entry.Members["languages"], card()["supported_languages"]), entry,
		`"culture":"en" and "languages":["en","zh-CN"]`)
}

// listed returns the entry of an agent in /discover.
func (h *hubProbe) listed(a *hubAgent) kit.Answer { return h.wantEntry(h.Read("", "/discover"), a) }

// wantListed ends the check unless all entries have this value of a member, and only one of the agents is listed.
func (h *hubProbe) wantListed(a kit.Answer, member, value string, with, without *hubAgent) {
	rows := bareList(a)
	h.Want(rows != nil, a, "a JSON array")
	found := false
	for _, row := range rows {
		h.Want(string(row.Members[member]) == value, row, "only entries with %q:%s", member, value)
		h.Want(without == nil || row.Text("agent_id") != without.id, row, "only entries that both parameters select")
		found = found || row.Text("agent_id") == with.id
	}
	h.Expect("the entry of %s", with.id)
	if !found {
		h.Failf("%s", kit.DescribeRows(rows))
	}
}

// readAs sends GET with this Accept.
func (h *hubProbe) readAs(target, accept string) kit.Answer {
	return h.Ask("Accept: "+accept, http.MethodGet, target, "", http.Header{"Accept": {accept}}, nil)
}

// inviteJSON ends the check unless a is an invite for programs. It returns its data.
func (h *hubProbe) inviteJSON(a kit.Answer) kit.Answer {
	data := h.wantData(a, http.StatusOK)
	_, online := data.Flag("online")
	_, exists := data.Flag("exists")
	h.Want(data.Text("agent_id") != "" && data.Text("connect_instructions") != "" && data.Members["culture"] != nil &&
		online && exists, a, "agent_id, culture, online, exists and connect_instructions")
	hub, err := url.Parse(data.Text("hub"))
	h.Want(err == nil && hub.Host != "" && (hub.Scheme == "http" || hub.Scheme == "https") &&
		!strings.HasSuffix(data.Text("hub"), "/"), a, "hub is the absolute URL of the hub")
	return data
}

// hubInviteChecks test the invite of an agent.
var hubInviteChecks = []hubCheck{
	{Number: "hub.invite.json", Title: "An invite with application/json in Accept is JSON, also for an unknown address",
		Cites: `HUB "Endpoints"`, Run: func(h *hubProbe) {
			a := h.one()
			for _, accept := range []string{"application/json", "text/html, application/json;q=0.9",
				"application/json, */*"} {
				answered := h.readAs("/invite/"+a.id, accept)
				data := h.inviteJSON(answered)
				exists, _ := data.Flag("exists")
				h.Want(exists && data.Text("agent_id") == a.id && data.Text("culture") == "en", answered,
					`"exists":true, the agent_id and the culture "en"`)
				answered = h.readAs("/invite/nobody@conformance.example", accept)
				data = h.inviteJSON(answered)
				exists, _ = data.Flag("exists")
				online, _ := data.Flag("online")
				h.Want(!exists && !online && string(data.Members["culture"]) == "null", answered,
					`"exists":false, "online":false and "culture":null`)
			}
		}},
	{Number: "hub.invite.form",
		Title: "An invite for something that is no address is refused with 400", Cites: `HUB "Endpoints"`,
		Run: func(h *hubProbe) {
			for _, id := range []string{"a@b@c", "a%20b@c", "@", "%3Cb%3E@c", strings.Repeat("a", 127) + "@b"} {
				h.wantInvalid(h.readAs("/invite/"+id, "application/json"))
			}
		}},
	{Number: "hub.invite.html",
		Title: "Otherwise an invite is HTML, with a Content-Security-Policy that allows nothing active",
		Cites: `HUB "Endpoints"; H-25`, Run: func(h *hubProbe) {
			a := h.one()
			for _, accept := range []string{"text/html", "*/*", ""} {
				answered := h.readAs("/invite/"+a.id, accept)
				isHTML := strings.HasPrefix(answered.Header.Get("Content-Type"), "text/html")
				h.Want(answered.Status == http.StatusOK && isHTML && strings.Contains(string(answered.Body), a.id),
					answered, "status 200, text/html, and the address %s", a.id)
				h.wantInert(answered)
			}
		}},
	{Number: "hub.invite.inert", Title: "The invite page is inert for every path", Cites: `HUB "Endpoints"; H-25`,
		Run: func(h *hubProbe) {
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
	{Number: "hub.invite.host",
		Title: "No answer contains the Host header of the request, and hub is the hub's own URL",
		Cites: `HUB "Start a hub"; GATEWAYS "Turn them on"; H-26`, Run: falseHost},
}

var activeHTML = regexp.MustCompile(`(?i)<(script|iframe|object|embed|form|svg|img|base|link|meta[^>]+refresh|b><b)` +
	`|<[^>]*\son[a-z]+\s*=|(href|src|action)\s*=\s*["']?\s*(javascript|data|vbscript):`)

// wantInert ends the check if a browser could run something in the answer.
func (h *hubProbe) wantInert(a kit.Answer) {
	kind := a.Header.Get("Content-Type")
	h.Want(a.Err == nil && a.Status < 500 && (a.Status < 300 || a.Status >= 400), a,
		"an answer that is no redirect and no fault")
	h.Want(a.Header.Get("X-Injected") == "", a, "no header that the path contains")
	if strings.HasPrefix(kind, "application/json") {
		h.Want(a.Members != nil, a, "a JSON object, because the Content-Type is %q", kind)
		return
	}
	h.Want(strings.HasPrefix(kind, "text/html"), a, "the Content-Type text/html or application/json, instead of %q",
		kind)
	h.Want(a.Header.Get("Content-Security-Policy") == "default-src 'none'; style-src 'unsafe-inline'", a,
		"Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline', instead of %q",
		a.Header.Get("Content-Security-Policy"))
	found := activeHTML.Find(a.Body)
	h.Expect("every value in the page is escaped, and it has no scripts, no handlers, and no parts from elsewhere")
	if found != nil {
		h.Failf("the page contains %q", found)
	}
}

func falseHost(h *hubProbe) {
	a := h.one()
	hub := h.inviteJSON(h.readAs("/invite/"+a.id, "application/json")).Text("hub")
	const evil = "evil-host.example"
	for _, header := range []http.Header{{"Host": {evil}}, {"Host": {evil + ":80"}}, {"X-Forwarded-Host": {evil}},
		{"Forwarded": {"host=" + evil}}, {"X-Forwarded-Proto": {"evil-host.example"}}} {
		for _, target := range []string{"/invite/" + a.id, "/.well-known/chorus.json", "/skill?lang=en",
			"/agents/" + a.id,
			"/nothing-is-here"} {
			for _, accept := range []string{"text/html", "application/json"} {
				both := header.Clone()
				both.Set("Accept", accept)
				answered := h.Ask("with a false Host header", http.MethodGet, target, "", both, nil)
				h.WantNoText(answered, "nothing of the false Host", evil)
				for name, values := range answered.Header {
					h.Want(!strings.Contains(strings.Join(values, " "), evil), answered,
						"no false Host in the header %s", name)
				}
				if answered.Status == http.StatusOK && accept == "application/json" && target == "/invite/"+a.id {
					h.Want(h.inviteJSON(answered).Text("hub") == hub, answered, "the hub %s", hub)
				}
			}
		}
	}
}
