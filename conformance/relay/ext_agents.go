package relay

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
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
			agent := p.Actor("an agent")
			first, second := p.manifest(agent, "cap_one", kit.NewID("one")), p.manifest(agent, "cap_two", kit.NewID("two"))
			p.PostAccepted(agent, first)
			p.PostAccepted(agent, second)
			a := p.agent(agent)
			p.Expect("agent.id, agent.online true, and two elements in agent.manifests")
			record := a.Object("agent")
			manifests, _ := record.List("manifests")
			if online, _ := record.Flag("online"); a.Status != 200 || record.Text("id") != agent.DID() || !online ||
				len(manifests) != 2 {
				p.Failf("%s", a)
			}
		}},
	{Number: "X-20", Title: "GET /agents/{did} for an agent without a manifest is answered with 404 AGENT_NOT_FOUND",
		Cites: directory, run: func(p *relayProbe) {
			p.CheckRefused(p.agent(p.Actor("an agent without a manifest")),
				kit.Refused(http.StatusNotFound, envelope.CodeAgentNotFound))
		}},
	{Number: "X-21", Title: "GET /agents/{did} with an id that is not a did:key is answered with 400 INVALID_DID",
		Cites: directory + "; §2", run: func(p *relayProbe) {
			p.CheckRefused(p.Call("", "GET", "/agents/nobody", nil, nil, 0), invalidDID)
		}},
	{Number: "X-22", Title: "Of several manifests with the same id, only the newest is listed",
		Cites: directory, run: newestManifest},
	{Number: "X-23", Title: "A MANIFEST with the public key of another agent is refused",
		Cites: directory + " (auth.public_key is the sender's own)", run: func(p *relayProbe) {
			agent, other := p.Actor("an agent"), p.Actor("another agent")
			m := p.manifest(agent, "cap", kit.NewID("intent"))
			auth := map[string]any{"methods": []string{"ed25519"},
				"public_key": strings.TrimPrefix(other.DID(), "did:key:")}
			kit.Set("payload.auth", auth)(m)
			p.PostRefused(invalid, "a MANIFEST whose auth.public_key is the key of another agent", m.Sign(agent).Body)
			kit.Set("payload.auth.public_key", strings.TrimPrefix(agent.DID(), "did:key:"))(m)
			m["id"] = kit.NewID("msg")
			p.PostAccepted(agent, m)
		}},
	{Number: "X-24", Title: "A MANIFEST with an invalid signature is refused and not listed",
		Cites: directory, run: func(p *relayProbe) {
			agent, stranger, intent := p.Actor("an agent"), p.Actor("a stranger"), kit.NewID("intent")
			p.PostRefused(badSignature, "a MANIFEST that is not signed with its sender's key",
				p.manifest(agent, "cap", intent).Sign(stranger).Body)
			p.checkAgents(p.agents("intent", intent))
		}},
	{Number: "X-25", Title: "q finds words of a manifest, and limit and cursor page through the results",
		Cites: directory + " (GET /agents)", run: searchAgents},
	{Number: "X-26", Title: "online selects agents by whether they were heard from in the last five minutes",
		Cites: directory + " (online)", run: func(p *relayProbe) {
			agent, intent := p.Actor("an agent"), kit.NewID("intent")
			p.PostAccepted(agent, p.manifest(agent, "cap", intent))
			p.checkAgents(p.agents("intent", intent, "online", "true"), agent)
			p.checkAgents(p.agents("intent", intent, "online", "false"))
		}},
	{Number: "X-27", Title: "A manifest that has expired is not listed",
		Cites: directory + "; §1 meta.ttl", wait: 7 * time.Second, run: func(p *relayProbe) {
			agent, intent := p.Actor("an agent"), kit.NewID("intent")
			m := p.manifest(agent, "cap", intent)
			expiringSoon(m)
			p.PostAccepted(agent, m)
			p.Sleep(7 * time.Second)
			p.checkAgents(p.agents("intent", intent))
		}},
	{Number: "X-28", Title: "Unknown and malformed parameters of GET /agents are refused",
		Cites: overHTTP + " (unknown, repeated or malformed parameters)", run: func(p *relayProbe) {
			for _, pair := range [][2]string{{"intnet", "x"}, {"online", "maybe"}, {"limit", "0"}, {"limit", "1001"},
				{"cursor", "x"}} {
				p.CheckRefused(p.Call("", "GET", "/agents"+kit.Query(pair[0], pair[1]), nil, nil, 0), invalid)
			}
		}},
	{Number: "X-29", Title: "/.well-known/agora.json has the relay's did, limits and features",
		Cites: overHTTP + " (GET /.well-known/agora.json)", run: wellKnown},
}

// manifest returns a MANIFEST with one intent, not signed yet.
func (p *relayProbe) manifest(agent kit.Actor, id, intent string) kit.Message {
	m := p.Message("MANIFEST", agent, kit.Actor{}, "", "")
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

func (p *relayProbe) agents(pairs ...string) kit.Answer {
	return p.Call("", "GET", "/agents"+kit.Query(pairs...), nil, nil, 0)
}

func (p *relayProbe) agent(agent kit.Actor) kit.Answer {
	return p.Call("", "GET", "/agents/"+url.PathEscape(agent.DID()), nil, nil, 0)
}

// checkAgents ends the check unless the rows of a directory answer are exactly these agents, in any order. It returns
// the rows.
func (p *relayProbe) checkAgents(a kit.Answer, agents ...kit.Actor) []kit.Answer {
	p.Expect("status 200 and %d rows in agents", len(agents))
	list, isList := a.List("agents")
	if a.Status != 200 || !isList || len(list) != len(agents) {
		p.Failf("%s", a)
	}
	var rows []kit.Answer
	for _, raw := range list {
		var row kit.Answer
		_ = json.Unmarshal(raw, &row.Members) // on an error the row has no id and the check fails
		if !slices.ContainsFunc(agents, func(agent kit.Actor) bool { return agent.DID() == row.Text("id") }) {
			p.Failf("the answer has a row of another agent: %s", kit.Excerpt(raw, 300))
		}
		rows = append(rows, row)
	}
	return rows
}

func findManifest(p *relayProbe) {
	agent, intent := p.Actor("an agent"), kit.NewID("intent")
	sent := p.PostAccepted(agent, p.manifest(agent, "cap", intent))
	row := p.checkAgents(p.agents("intent", intent), agent)[0]
	p.CheckUnchanged(kit.Event{Raw: row.Members["envelope"]}, sent)
	p.Expect("online true, and lastSeen as a time")
	_, isTime := envelope.ParseTime(row.Text("lastSeen"))
	if online, _ := row.Flag("online"); !online || !isTime {
		p.Failf("online %s, lastSeen %s", row.Members["online"], row.Members["lastSeen"])
	}
	p.checkAgents(p.agents("intent", intent[:len(intent)-1]))
}

func newestManifest(p *relayProbe) {
	agent, old, current := p.Actor("an agent"), kit.NewID("old"), kit.NewID("new")
	m := p.manifest(agent, "cap", old)
	m["ts"] = kit.FormatTime(p.Now().Add(-10 * time.Second))
	p.PostAccepted(agent, m)
	p.PostAccepted(agent, p.manifest(agent, "cap", current))
	p.checkAgents(p.agents("intent", current), agent)
	p.checkAgents(p.agents("intent", old))
}

func searchAgents(p *relayProbe) {
	word := kit.NewID("word")
	var all []kit.Actor
	for i := range 3 {
		agent := p.Actor(fmt.Sprintf("agent %d", i))
		m := p.manifest(agent, "cap", kit.NewID("intent"))
		kit.Set("payload.description", "Knows the "+strings.ToUpper(word)+" by heart")(m)
		p.PostAccepted(agent, m)
		all = append(all, agent)
	}
	p.checkAgents(p.agents("q", word), all...)
	first := p.agents("q", word, "limit", "2")
	p.Expect("two rows, hasMore true and a cursor")
	rows, _ := first.List("agents")
	if more, _ := first.Flag("hasMore"); len(rows) != 2 || !more || first.Text("cursor") == "" {
		p.Failf("%s", first)
	}
	rest := p.agents("q", word, "limit", "2", "cursor", first.Text("cursor"))
	p.Expect("the third row, and hasMore false")
	rows, _ = rest.List("agents")
	if more, present := rest.Flag("hasMore"); len(rows) != 1 || more || !present {
		p.Failf("%s", rest)
	}
}

func wellKnown(p *relayProbe) {
	a := p.Document()
	p.Expect("status 200 with ok true, limits, features, reads \"open\" or \"parties\", and a did that is a did:key")
	features, isList := a.List("features")
	reads := a.Text("reads")
	if ok, _ := a.OK(); a.Status != 200 || !ok || a.Object("limits").Members == nil || !isList || len(features) == 0 ||
		reads != "open" && reads != "parties" {
		p.Failf("%s", a)
	}
	if err := checkDID(a.Text("did")); err != nil {
		p.Failf("the did is invalid: %v", err)
	}
}
