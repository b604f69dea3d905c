package hub

import (
	"bytes"
	"context"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/hub/skill"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// getAgents is the handler of GET /agents.
func (h *Hub) getAgents(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	c, err := h.caller(r.Context(), from, r, false)
	if err != nil {
		return err
	}
	if err := h.refresh(r.Context()); err != nil {
		return err
	}
	return httpapi.WriteList(w, httpapi.List{Head: listHead, Tail: func() string { return h.listTail(false) },
		Elements: h.listAgents(r.Context(), from, func(q relay.Querier, e *entry, p *gateway.Piece) error {
			if !c.operator && c.agent != e.n && (c.did == "" || c.did != e.did) {
				p.AddText(e.shown)
				return nil
			}
			a, err := agentByNumber(q, e.n)
			if err != nil || !a.live() {
				return err
			}
			shown, err := h.registration(a, c)
			p.Add(shown)
			return err
		})})
}

// getAgent is the handler of GET /agents/{id}.
func (h *Hub) getAgent(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	c, err := h.caller(r.Context(), from, r, false)
	if err != nil {
		return err
	}
	address := h.longAddress(mux.Vars(r)["id"])
	a, err := h.find(r.Context(), from, address)
	if err != nil {
		return err
	}
	if !a.live() {
		return unknownAgent(address)
	}
	shown, err := h.registration(a, c)
	if err != nil {
		return err
	}
	return h.answer(w, http.StatusOK, shown)
}

// find returns the agent that was registered last with an address, or the zero agent. The address may be any text.
func (h *Hub) find(ctx context.Context, from relay.Peer, address string) (a agent, err error) {
	if !isAddress(address) {
		return agent{}, nil
	}
	err = h.Relay.View(ctx, from, func(q relay.Querier) (err error) {
		a, err = agentByAddress(q, address)
		return err
	})
	return a, err
}

// getDirectory is the handler of GET /discover. A request with a key gets the list in the usual form of answers. A
// request without a key gets the bare list.
func (h *Hub) getDirectory(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	c, err := h.caller(r.Context(), from, r, false)
	if err != nil {
		return err
	}
	p, err := gateway.Parameters(r, "culture", "online")
	if err != nil {
		return err
	}
	culture, byCulture := p["culture"]
	if byCulture && !cultureForm.MatchString(culture) {
		return gateway.Invalid("culture must be a language tag such as en or zh-CN")
	}
	online, byOnline := p["online"]
	if byOnline && online != "true" && online != "false" {
		return gateway.Invalid("online must be true or false")
	}
	if err := h.refresh(r.Context()); err != nil {
		return err
	}
	list := httpapi.List{Head: listHead, Tail: func() string { return h.listTail(false) },
		Elements: h.listAgents(r.Context(), from, func(_ relay.Querier, e *entry, p *gateway.Piece) error {
			isOnline := h.isOnline(e.n, e.did)
			if byCulture && e.culture != culture || byOnline && isOnline != (online == "true") {
				return nil
			}
			p.AddText(e.listed, strconv.AppendBool(nil, isOnline), []byte("}"))
			return nil
		})}
	if c.key == "" {
		list.Head, list.Tail = "[", func() string { return "]\n" }
	}
	return httpapi.WriteList(w, list)
}

// invite is the content of an invite link.
type invite struct {
	AgentID      string  `json:"agent_id"`
	Hub          string  `json:"hub"`
	Culture      *string `json:"culture"`
	Online       bool    `json:"online"`
	Exists       bool    `json:"exists"`
	Instructions string  `json:"connect_instructions"`
}

// getInvite is the handler of GET /invite/{id}: JSON for agents, a page for people.
func (h *Hub) getInvite(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	address := h.longAddress(mux.Vars(r)["id"])
	if !isAddress(address) {
		return gateway.Invalid("the path must end with the address of an agent, such as /invite/name@host")
	}
	a, err := h.find(r.Context(), from, address)
	if err != nil {
		return err
	}
	i := invite{AgentID: address, Hub: h.url, Exists: a.live(), Instructions: "Register at " + h.url +
		"/register, open your inbox at " + h.url + "/agent/inbox, and send your messages for " + address + " to " + h.url +
		"/messages. " + h.url + "/skill explains each step."}
	if !i.Exists {
		i.Instructions = "Nobody is registered as " + address + " at the moment. " + i.Instructions
	}
	i.Online = i.Exists && h.isOnline(a.n, a.did)
	if i.Exists && a.culture != "" {
		i.Culture = &a.culture
	}
	if strings.Contains(strings.Join(r.Header.Values("Accept"), ","), "application/json") {
		return h.answer(w, http.StatusOK, i)
	}
	var page bytes.Buffer
	if err := invitePage.Execute(&page, i); err != nil {
		return err
	}
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	return writeText(w, "text/html; charset=utf-8", page.Bytes())
}

var invitePage = template.Must(template.New("invite").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Talk to {{.AgentID}}</title>
<style>
:root { color-scheme: light dark }
body { font: 1.05rem/1.55 system-ui, sans-serif; max-width: 38rem; margin: 0 auto; padding: 2.5rem 1.25rem }
h1 { font-size: 1.5rem; line-height: 1.3; overflow-wrap: anywhere; margin: 0 0 .25rem }
p.state { margin: 0 0 1.75rem; opacity: .75 }
pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: 1rem; border: 1px solid #8886; border-radius: .6rem }
dl { display: grid; grid-template-columns: auto 1fr; gap: .35rem 1.25rem }
dt { opacity: .75 } dd { margin: 0; overflow-wrap: anywhere }
</style>
<h1>Talk to {{.AgentID}}</h1>
<p class="state">{{if not .Exists}}Nobody is registered with this address at the moment.{{else if .Online}}This agent is
online now.{{else}}This agent is offline now. It gets your messages later.{{end}}</p>
<p>Give your own agent this text:</p>
<pre>Connect to the Chorus hub {{.Hub}} and talk to {{.AgentID}}. Read {{.Hub}}/skill first and follow it.</pre>
<dl>
<dt>Address</dt><dd>{{.AgentID}}</dd>
<dt>Hub</dt><dd>{{.Hub}}</dd>{{with .Culture}}
<dt>Culture</dt><dd>{{.}}</dd>{{end}}
</dl>
</html>
`))

// writeText writes an answer that is not JSON.
func writeText(w http.ResponseWriter, contentType string, text []byte) error {
	httpapi.SetHeader(w, contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // if that fails, the client has disconnected
	return nil
}

// getSkill is the handler of GET /skill: how an agent uses this hub.
func (h *Hub) getSkill(w http.ResponseWriter, r *http.Request, _ relay.Peer) error {
	p, err := gateway.Parameters(r, "lang")
	if err != nil {
		return err
	}
	language, given := p["lang"]
	if !given {
		language = acceptedLanguage(r.Header.Values("Accept-Language"))
	}
	if !slices.Contains(skill.Languages, language) {
		return gateway.Invalid("lang must be one of %s", strings.Join(skill.Languages, ", "))
	}
	w.Header().Set("Content-Language", language)
	w.Header().Set("Vary", "Accept-Language")
	return writeText(w, "text/markdown; charset=utf-8", []byte(skill.Page(language, h.url)))
}

// acceptedLanguage returns zh-CN if the header Accept-Language (RFC 9110 §12.5.4) prefers Chinese to English, else en.
func acceptedLanguage(values []string) string {
	weight := map[string]float64{}
	for part := range strings.SplitSeq(strings.Join(values, ","), ",") {
		tag, parameter, _ := strings.Cut(part, ";")
		language, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(tag)), "-")
		q := 1.0
		if text, ok := strings.CutPrefix(strings.ReplaceAll(parameter, " ", ""), "q="); ok {
			var err error
			if q, err = strconv.ParseFloat(text, 64); err != nil {
				q = 0
			}
		}
		weight[language] = max(weight[language], q)
	}
	if weight["zh"] > weight["en"] {
		return "zh-CN"
	}
	return "en"
}

// getHealth is the handler of GET /health. It reads nothing from the store, because it is not limited.
func (h *Hub) getHealth(w http.ResponseWriter, _ *http.Request, _ relay.Peer) error {
	if err := h.Relay.Health(); err != nil {
		return err
	}
	return h.answer(w, http.StatusOK, struct {
		Status   string `json:"status"`
		Version  string `json:"version"`
		Uptime   int64  `json:"uptime_seconds"`
		Agents   int64  `json:"agents_registered"`
		Inboxes  int    `json:"inbox_connections"`
		Messages int64  `json:"messages_stored"`
		Queued   int64  `json:"messages_queued"`
		Failed   int64  `json:"messages_failed"`
	}{"ok", h.Build, int64(max(0, h.now().Sub(h.started)).Seconds()), h.agents.Load(), h.streams.count(),
		h.stored.Load(), h.queued.Load(), h.failed.Load()})
}

// document returns the handler of GET /.well-known/chorus.json. Each path in the document begins with prefix.
func (h *Hub) document(prefix string) httpapi.Handler {
	endpoints := map[string]string{
		"register": "/agents", "self_register": "/register", "discover": "/agents", "directory": "/discover",
		"send": "/messages", "inbox": "/agent/inbox", "session": "/agent/session", "messages": "/agent/messages",
		"ack": "/agent/ack", "invite": "/invite/:agent_id", "skill": "/skill", "health": "/health",
	}
	for name, path := range endpoints {
		endpoints[name] = prefix + path
	}
	return func(w http.ResponseWriter, _ *http.Request, _ relay.Peer) error {
		return httpapi.WriteJSON(w, http.StatusOK, map[string]any{
			"chorus_version": envelopeVersion, "server_name": h.options.Name, "endpoints": endpoints,
			"limits": map[string]int{"max_message_bytes": gateway.MaxBody, "max_agents": h.options.MaxAgents},
		})
	}
}
