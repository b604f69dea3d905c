package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
)

const directory = "PROTOCOL §6"

// directoryChecks are about manifests, and about what a relay says of itself.
var directoryChecks = []Check{
	{Number: "X-18", Title: "A MANIFEST is accepted and found by its intent, with the signed envelope in its row", Cites: directory, run: found},
	{Number: "X-19", Title: "GET /agents/{did} shows an agent's manifests", Cites: directory, run: func(p *probe) {
		agent := p.actor("an agent")
		first, second := p.manifest(agent, "cap_one", newID("one")), p.manifest(agent, "cap_two", newID("two"))
		p.accept(agent, first)
		p.accept(agent, second)
		a := p.agent(agent)
		p.expect("agent.id, agent.online true and two agent.manifests")
		record := a.object("agent")
		manifests, _ := record.list("manifests")
		if online, _ := record.flag("online"); a.status != 200 || record.text("id") != agent.did() || !online || len(manifests) != 2 {
			p.failf("%s", a)
		}
	}},
	{Number: "X-20", Title: "An agent without a manifest is 404 AGENT_NOT_FOUND", Cites: directory, run: func(p *probe) {
		p.refused(p.agent(p.actor("nobody")), refused(http.StatusNotFound, envelope.CodeAgentNotFound))
	}},
	{Number: "X-21", Title: "A path that is no did:key is 400 INVALID_DID", Cites: directory + "; §2", run: func(p *probe) {
		p.refused(p.call("", "GET", "/agents/nobody", nil, nil, 0), invalidDID)
	}},
	{Number: "X-22", Title: "Of manifests with one id the newest counts", Cites: directory, run: newestManifest},
	{Number: "X-23", Title: "Nobody announces another's key", Cites: directory + " (auth.public_key is the sender's own)", run: func(p *probe) {
		agent, other := p.actor("an agent"), p.actor("another agent")
		m := p.manifest(agent, "cap", newID("intent"))
		set("payload.auth", map[string]any{"methods": []string{"ed25519"}, "public_key": strings.TrimPrefix(other.did(), "did:key:")})(m)
		p.refuse(invalid, "a MANIFEST whose auth.public_key is another's", m.sign(agent).body)
		set("payload.auth.public_key", strings.TrimPrefix(agent.did(), "did:key:"))(m)
		m["id"] = newID("msg")
		p.accept(agent, m)
	}},
	{Number: "X-24", Title: "Nothing unsigned enters the directory", Cites: directory, run: func(p *probe) {
		agent, stranger, intent := p.actor("an agent"), p.actor("a stranger"), newID("intent")
		p.refuse(badSignature, "a MANIFEST signed by another key than its sender's", p.manifest(agent, "cap", intent).sign(stranger).body)
		p.lists(p.agents("intent", intent))
	}},
	{Number: "X-25", Title: "q finds words of a manifest, limit and cursor go through the rows", Cites: directory + " (GET /agents)", run: searched},
	{Number: "X-26", Title: "online chooses those heard from in the last five minutes", Cites: directory + " (online)", run: func(p *probe) {
		agent, intent := p.actor("an agent"), newID("intent")
		p.accept(agent, p.manifest(agent, "cap", intent))
		p.lists(p.agents("intent", intent, "online", "true"), agent)
		p.lists(p.agents("intent", intent, "online", "false"))
	}},
	{Number: "X-27", Title: "A manifest that has expired is not found", Cites: directory + "; §1 meta.ttl", wait: 7 * second, run: func(p *probe) {
		agent, intent := p.actor("an agent"), newID("intent")
		m := p.manifest(agent, "cap", intent)
		dying(m)
		p.accept(agent, m)
		p.sleep(7 * second)
		p.lists(p.agents("intent", intent))
	}},
	{Number: "X-28", Title: "Unknown and malformed parameters of GET /agents are refused", Cites: overHTTP + " (unknown, repeated or malformed parameters)", run: func(p *probe) {
		for _, pair := range [][2]string{{"intnet", "x"}, {"online", "maybe"}, {"limit", "0"}, {"limit", "1001"}, {"cursor", "x"}} {
			p.refused(p.call("", "GET", "/agents"+query(pair[0], pair[1]), nil, nil, 0), invalid)
		}
	}},
	{Number: "X-29", Title: "/.well-known/agora.json names the relay's did, limits and features", Cites: overHTTP + " (GET /.well-known/agora.json)", run: wellKnown},
}

// manifest returns a MANIFEST that announces one intent.
func (p *probe) manifest(agent actor, id, intent string) message {
	m := p.message("MANIFEST", agent, actor{}, "", "")
	delete(m, "thread")
	m["payload"] = map[string]any{"id": id, "name": "Conformance check", "description": "Announced by agora conformance; it does nothing.",
		"version": "1.0.0", "intents": []any{map[string]any{"id": intent, "name": "Nothing"}}, "pricing": map[string]any{"model": "free"}}
	return m
}

func (p *probe) agents(pairs ...string) answer {
	return p.call("", "GET", "/agents"+query(pairs...), nil, nil, 0)
}

func (p *probe) agent(agent actor) answer {
	return p.call("", "GET", "/agents/"+url.PathEscape(agent.did()), nil, nil, 0)
}

// lists ends the check unless the rows of the directory are these agents', in any order, and returns them.
func (p *probe) lists(a answer, agents ...actor) []answer {
	p.expect("status 200 with agents, %d of them", len(agents))
	list, isList := a.list("agents")
	if a.status != 200 || !isList || len(list) != len(agents) {
		p.failf("%s", a)
	}
	var rows []answer
	for _, raw := range list {
		var row answer
		_ = json.Unmarshal(raw, &row.members) // no members: no id
		if !slices.ContainsFunc(agents, func(agent actor) bool { return agent.did() == row.text("id") }) {
			p.failf("a row of somebody else: %s", excerpt(raw, 300))
		}
		rows = append(rows, row)
	}
	return rows
}

func found(p *probe) {
	agent, intent := p.actor("an agent"), newID("intent")
	sent := p.accept(agent, p.manifest(agent, "cap", intent))
	row := p.lists(p.agents("intent", intent), agent)[0]
	p.genuine(event{raw: row.members["envelope"]}, sent)
	p.expect("online true and lastSeen, a time")
	_, isTime := envelope.ParseTime(row.text("lastSeen"))
	if online, _ := row.flag("online"); !online || !isTime {
		p.failf("online %s, lastSeen %s", row.members["online"], row.members["lastSeen"])
	}
	p.lists(p.agents("intent", intent[:len(intent)-1]))
}

func newestManifest(p *probe) {
	agent, old, current := p.actor("an agent"), newID("old"), newID("new")
	m := p.manifest(agent, "cap", old)
	m["ts"] = stamp(p.now().Add(-10 * time.Second))
	p.accept(agent, m)
	p.accept(agent, p.manifest(agent, "cap", current))
	p.lists(p.agents("intent", current), agent)
	p.lists(p.agents("intent", old))
}

func searched(p *probe) {
	word := newID("word")
	var all []actor
	for i := range 3 {
		agent := p.actor(fmt.Sprintf("agent %d", i))
		m := p.manifest(agent, "cap", newID("intent"))
		set("payload.description", "Knows the "+strings.ToUpper(word)+" by heart")(m)
		p.accept(agent, m)
		all = append(all, agent)
	}
	p.lists(p.agents("q", word), all...)
	first := p.agents("q", word, "limit", "2")
	p.expect("two rows, hasMore true and a cursor")
	rows, _ := first.list("agents")
	if more, _ := first.flag("hasMore"); len(rows) != 2 || !more || first.text("cursor") == "" {
		p.failf("%s", first)
	}
	rest := p.agents("q", word, "limit", "2", "cursor", first.text("cursor"))
	p.expect("the third row, and hasMore false")
	rows, _ = rest.list("agents")
	if more, said := rest.flag("hasMore"); len(rows) != 1 || more || !said {
		p.failf("%s", rest)
	}
}

func wellKnown(p *probe) {
	a := p.call("", "GET", "/.well-known/agora.json", nil, nil, 0)
	p.expect("status 200 with ok, did (a did:key), limits, features, and reads open or parties")
	features, isList := a.list("features")
	reads := a.text("reads")
	if ok, _ := a.ok(); a.status != 200 || !ok || a.object("limits").members == nil || !isList || len(features) == 0 || reads != "open" && reads != "parties" {
		p.failf("%s", a)
	}
	if err := checkDID(a.text("did")); err != nil {
		p.failf("did: %v", err)
	}
}
