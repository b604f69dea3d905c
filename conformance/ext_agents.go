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

// directoryChecks test the directory of agents, and the document that describes the relay.
var directoryChecks = []relayCheck{
	{Number: "X-18",
		Title: "A MANIFEST is accepted, and GET /agents finds it by its intent and returns the signed envelope",
		Cites: directory, run: findManifest},
	{Number: "X-19", Title: "GET /agents/{did} returns the manifests of the agent",
		Cites: directory, run: func(p *relayProbe) {
			agent := p.actor("an agent")
			first, second := p.manifest(agent, "cap_one", newID("one")), p.manifest(agent, "cap_two", newID("two"))
			p.postAccepted(agent, first)
			p.postAccepted(agent, second)
			a := p.agent(agent)
			p.expect("agent.id, agent.online true, and two elements in agent.manifests")
			record := a.object("agent")
			manifests, _ := record.list("manifests")
			if online, _ := record.flag("online"); a.status != 200 || record.text("id") != agent.did() || !online ||
				len(manifests) != 2 {
				p.failf("%s", a)
			}
		}},
	{Number: "X-20", Title: "GET /agents/{did} for an agent without a manifest is answered with 404 AGENT_NOT_FOUND",
		Cites: directory, run: func(p *relayProbe) {
			p.checkRefused(p.agent(p.actor("an agent without a manifest")),
				refused(http.StatusNotFound, envelope.CodeAgentNotFound))
		}},
	{Number: "X-21", Title: "GET /agents/{did} with an id that is not a did:key is answered with 400 INVALID_DID",
		Cites: directory + "; §2", run: func(p *relayProbe) {
			p.checkRefused(p.call("", "GET", "/agents/nobody", nil, nil, 0), invalidDID)
		}},
	{Number: "X-22", Title: "Of several manifests with the same id, only the newest is listed",
		Cites: directory, run: newestManifest},
	{Number: "X-23", Title: "A MANIFEST with the public key of another agent is refused",
		Cites: directory + " (auth.public_key is the sender's own)", run: func(p *relayProbe) {
			agent, other := p.actor("an agent"), p.actor("another agent")
			m := p.manifest(agent, "cap", newID("intent"))
			auth := map[string]any{"methods": []string{"ed25519"},
				"public_key": strings.TrimPrefix(other.did(), "did:key:")}
			set("payload.auth", auth)(m)
			p.postRefused(invalid, "a MANIFEST whose auth.public_key is the key of another agent", m.sign(agent).body)
			set("payload.auth.public_key", strings.TrimPrefix(agent.did(), "did:key:"))(m)
			m["id"] = newID("msg")
			p.postAccepted(agent, m)
		}},
	{Number: "X-24", Title: "A MANIFEST with an invalid signature is refused and not listed",
		Cites: directory, run: func(p *relayProbe) {
			agent, stranger, intent := p.actor("an agent"), p.actor("a stranger"), newID("intent")
			p.postRefused(badSignature, "a MANIFEST that is not signed with its sender's key",
				p.manifest(agent, "cap", intent).sign(stranger).body)
			p.checkAgents(p.agents("intent", intent))
		}},
	{Number: "X-25", Title: "q finds words of a manifest, and limit and cursor page through the results",
		Cites: directory + " (GET /agents)", run: searchAgents},
	{Number: "X-26", Title: "online selects agents by whether they were heard from in the last five minutes",
		Cites: directory + " (online)", run: func(p *relayProbe) {
			agent, intent := p.actor("an agent"), newID("intent")
			p.postAccepted(agent, p.manifest(agent, "cap", intent))
			p.checkAgents(p.agents("intent", intent, "online", "true"), agent)
			p.checkAgents(p.agents("intent", intent, "online", "false"))
		}},
	{Number: "X-27", Title: "A manifest that has expired is not listed",
		Cites: directory + "; §1 meta.ttl", wait: 7 * second, run: func(p *relayProbe) {
			agent, intent := p.actor("an agent"), newID("intent")
			m := p.manifest(agent, "cap", intent)
			expiringSoon(m)
			p.postAccepted(agent, m)
			p.sleep(7 * second)
			p.checkAgents(p.agents("intent", intent))
		}},
	{Number: "X-28", Title: "Unknown and malformed parameters of GET /agents are refused",
		Cites: overHTTP + " (unknown, repeated or malformed parameters)", run: func(p *relayProbe) {
			for _, pair := range [][2]string{{"intnet", "x"}, {"online", "maybe"}, {"limit", "0"}, {"limit", "1001"},
				{"cursor", "x"}} {
				p.checkRefused(p.call("", "GET", "/agents"+query(pair[0], pair[1]), nil, nil, 0), invalid)
			}
		}},
	{Number: "X-29", Title: "/.well-known/agora.json has the relay's did, limits and features",
		Cites: overHTTP + " (GET /.well-known/agora.json)", run: wellKnown},
}

// manifest returns a MANIFEST with one intent, not signed yet.
func (p *relayProbe) manifest(agent actor, id, intent string) message {
	m := p.message("MANIFEST", agent, actor{}, "", "")
	delete(m, "thread")
	m["payload"] = map[string]any{
		"id":          id,
		"name":        "Conformance check",
		"description": "Announced by agora conformance; it does nothing.",
		"version":     "1.0.0",
		"intents":     []any{map[string]any{"id": intent, "name": "Nothing"}},
		"pricing":     map[string]any{"model": "free"},
	}
	return m
}

func (p *relayProbe) agents(pairs ...string) answer {
	return p.call("", "GET", "/agents"+query(pairs...), nil, nil, 0)
}

func (p *relayProbe) agent(agent actor) answer {
	return p.call("", "GET", "/agents/"+url.PathEscape(agent.did()), nil, nil, 0)
}

// checkAgents ends the check unless the rows of a directory answer are exactly these agents, in any order. It returns
// the rows.
func (p *relayProbe) checkAgents(a answer, agents ...actor) []answer {
	p.expect("status 200 and %d rows in agents", len(agents))
	list, isList := a.list("agents")
	if a.status != 200 || !isList || len(list) != len(agents) {
		p.failf("%s", a)
	}
	var rows []answer
	for _, raw := range list {
		var row answer
		_ = json.Unmarshal(raw, &row.members) // on an error the row has no id and the check fails
		if !slices.ContainsFunc(agents, func(agent actor) bool { return agent.did() == row.text("id") }) {
			p.failf("the answer has a row of another agent: %s", excerpt(raw, 300))
		}
		rows = append(rows, row)
	}
	return rows
}

func findManifest(p *relayProbe) {
	agent, intent := p.actor("an agent"), newID("intent")
	sent := p.postAccepted(agent, p.manifest(agent, "cap", intent))
	row := p.checkAgents(p.agents("intent", intent), agent)[0]
	p.checkUnchanged(event{raw: row.members["envelope"]}, sent)
	p.expect("online true, and lastSeen as a time")
	_, isTime := envelope.ParseTime(row.text("lastSeen"))
	if online, _ := row.flag("online"); !online || !isTime {
		p.failf("online %s, lastSeen %s", row.members["online"], row.members["lastSeen"])
	}
	p.checkAgents(p.agents("intent", intent[:len(intent)-1]))
}

func newestManifest(p *relayProbe) {
	agent, old, current := p.actor("an agent"), newID("old"), newID("new")
	m := p.manifest(agent, "cap", old)
	m["ts"] = formatTime(p.now().Add(-10 * time.Second))
	p.postAccepted(agent, m)
	p.postAccepted(agent, p.manifest(agent, "cap", current))
	p.checkAgents(p.agents("intent", current), agent)
	p.checkAgents(p.agents("intent", old))
}

func searchAgents(p *relayProbe) {
	word := newID("word")
	var all []actor
	for i := range 3 {
		agent := p.actor(fmt.Sprintf("agent %d", i))
		m := p.manifest(agent, "cap", newID("intent"))
		set("payload.description", "Knows the "+strings.ToUpper(word)+" by heart")(m)
		p.postAccepted(agent, m)
		all = append(all, agent)
	}
	p.checkAgents(p.agents("q", word), all...)
	first := p.agents("q", word, "limit", "2")
	p.expect("two rows, hasMore true and a cursor")
	rows, _ := first.list("agents")
	if more, _ := first.flag("hasMore"); len(rows) != 2 || !more || first.text("cursor") == "" {
		p.failf("%s", first)
	}
	rest := p.agents("q", word, "limit", "2", "cursor", first.text("cursor"))
	p.expect("the third row, and hasMore false")
	rows, _ = rest.list("agents")
	if more, present := rest.flag("hasMore"); len(rows) != 1 || more || !present {
		p.failf("%s", rest)
	}
}

func wellKnown(p *relayProbe) {
	a := p.document()
	p.expect("status 200 with ok true, limits, features, reads \"open\" or \"parties\", and a did that is a did:key")
	features, isList := a.list("features")
	reads := a.text("reads")
	if ok, _ := a.ok(); a.status != 200 || !ok || a.object("limits").members == nil || !isList || len(features) == 0 ||
		reads != "open" && reads != "parties" {
		p.failf("%s", a)
	}
	if err := checkDID(a.text("did")); err != nil {
		p.failf("the did is invalid: %v", err)
	}
}
