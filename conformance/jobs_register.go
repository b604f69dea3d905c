package conformance

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// register sends a registration of an agent with changes.
func (h *jobsProbe) register(a *jobAgent, key string, changes ...func(message)) answer {
	body := registrationOf(a.id, a.owner, a.skill, a.price)
	combine(changes...)(body)
	return h.write(key, "/register", body)
}

// textBound is a text that has least to most bytes.
type textBound struct {
	member      string
	least, most int
}

// wantBounds posts bodies with good and bad values of a member.
func (h *jobsProbe) wantBounds(b textBound, post func(value any) answer, status ...int) {
	good := textsOf(b.most)
	if b.least > 0 {
		good = append(good, "a")
	} else {
		good = append(good, "")
	}
	for _, text := range good {
		a := post(text)
		h.want(slices.Contains(status, a.status), a, "%s with %d bytes is taken", b.member, len(text))
	}
	bad := slices.Clone(notTexts)
	for _, text := range textsOf(b.most + 1) {
		bad = append(bad, text)
	}
	if b.least > 0 {
		bad = append(bad, "")
	}
	for _, value := range bad {
		h.wantInvalid(post(value))
	}
}

// jobsRegisterChecks test registrations.
var jobsRegisterChecks = []jobsCheck{
	{number: "jobs.register.new", title: "POST /register returns 201 with agent_id, the score 50.0 and job_url",
		cites: `JOBS "Agents"; JOBS "Reputation"`, run: func(h *jobsProbe) {
			a := h.agent(h.one())
			h.remove(a.key, "/agents/"+a.id)
			a.id = newUUID()
			got := h.wantStatus(h.register(a, a.key), http.StatusCreated)
			h.want(got.text("status") == "registered" && got.text("agent_id") == a.id &&
				string(got.members["reputation_score"]) == "50.0" && strings.HasSuffix(got.text("job_url"), a.path()) &&
				got.members["api_key"] == nil, got,
				`{"status":"registered","agent_id":%q,"reputation_score":50.0,"job_url":"{B}%s"}, without api_key`, a.id, a.path())
		}},
	{number: "jobs.register.principal",
		title: "Without a key /register makes a principal; its account has 0 credits until POST /accounts, which pays once",
		cites: `JOBS "Agents"; J-31`, run: registerWithoutKey},
	{number: "jobs.register.again", title: "Registering again by the same principal replaces the fields and keeps the score",
		cites: `JOBS "Agents"; J-13`, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			h.finish(j, successOf(j))
			h.wantScore(a, "51", 1, 0)
			a.skill = newName()
			got := h.wantStatus(h.register(a, a.key, set("agent_name", "Renamed"), set("api_endpoint", exampleURL)),
				http.StatusCreated)
			h.wantAmount(got, "reputation_score", mustMicros("51"))
			row := h.found("", a)
			h.want(row.text("agent_name") == "Renamed" && row.text("api_endpoint") == exampleURL &&
				row.object("skill").text("skill_name") == a.skill, row, "the new name, api_endpoint and skill")
			h.wantAmount(row, "reputation_score", mustMicros("51"))
			h.wantScore(a, "51", 1, 0)
		}},
	{number: "jobs.register.taken", title: "The agent_id or owner_id of another principal is 409",
		cites: `JOBS "Agents"; J-14`, run: func(h *jobsProbe) {
			other, a := h.pair()
			before := h.row(a)
			h.wantTaken(h.register(a, other.key, set("owner_id", other.owner)))
			h.wantTaken(h.register(a, "", set("owner_id", newName())))
			h.wantTaken(h.register(a, other.key, set("agent_id", newUUID())))
			h.wantTaken(h.register(a, "", set("agent_id", newUUID())))
			h.wantSame(h.row(a), before)
		}},
	{number: "jobs.register.race", title: "Of several principals that register one agent_id at once, one gets it",
		cites: `JOBS "Agents"; J-14`, run: func(h *jobsProbe) {
			p, other := h.two()
			a := &jobAgent{principal: p, id: newUUID(), skill: newName(), price: usualPrice}
			a.principal = h.wantOneWinner(p, other, func(from *principal) answer {
				return h.write(from.key, "/register", registrationOf(a.id, from.owner, a.skill, a.price))
			})
			a.owner, h.agents = a.principal.owner, append(h.agents, a)
			h.want(h.row(a).text("owner_id") == a.owner, h.row(a), "the owner_id %q", a.owner)
		}},
	{number: "jobs.register.delete", title: "DELETE unregisters an agent, for its principal only",
		cites: `JOBS "The HTTP interface"`, run: func(h *jobsProbe) {
			other, a := h.pair()
			h.wantForeign(h.remove(other.key, "/agents/"+a.id))
			got := h.wantStatus(h.remove(a.key, "/agents/"+a.id), http.StatusOK)
			h.want(got.text("status") == "unregistered" && got.text("agent_id") == a.id, got,
				`{"status":"unregistered","agent_id":%q}`, a.id)
			h.wantUnknown(h.read("", "/agents/"+a.id))
			h.wantUnknown(h.remove(a.key, "/agents/"+a.id))
			h.wantUnknown(h.write(other.key, a.path(), request(other, a)))
			if rows := h.discovered(h.read("", "/discover?skill="+a.skill)); len(rows) != 0 {
				h.expect("no agent in /discover")
				h.failf("%s", describeRows(rows))
			}
		}},
	{number: "jobs.register.deleted", title: "After DELETE an agent_id stays with its principal, and so does its score",
		cites: `JOBS "Agents"; J-13, J-14`, run: func(h *jobsProbe) {
			other, a := h.pair()
			j := h.hire(other, a)
			h.finish(j, failureOf(j))
			h.wantStatus(h.remove(a.key, "/agents/"+a.id), http.StatusOK)
			h.wantTaken(h.register(a, other.key, set("owner_id", other.owner)))
			h.wantTaken(h.register(a, "", set("owner_id", newName())))
			h.wantStatus(h.register(a, a.key), http.StatusCreated)
			h.wantScore(a, "45.5", 0, 1)
		}},
	{number: "jobs.register.fields", title: "Fields are taken at both sides of their bounds, and refused with 422 beyond",
		cites: `JOBS "The HTTP interface"`, run: func(h *jobsProbe) {
			a := h.agent(h.one())
			name := h.row(a).text("agent_name")
			h.wantBounds(textBound{"agent_name", 1, 128}, func(value any) answer {
				return h.register(a, a.key, set("agent_name", value))
			}, http.StatusCreated)
			skillWith := func(member string, value any) func(message) {
				skill := skillOf(a.skill, a.price)
				skill[member] = value
				return set("skills", []any{skill})
			}
			h.wantBounds(textBound{"description", 0, 2000}, func(value any) answer {
				return h.register(a, a.key, skillWith("description", value))
			}, http.StatusCreated)
			for _, name := range []string{"k", strings.Repeat("k", 128), "A0._:-z"} {
				h.wantStatus(h.register(a, a.key, skillWith("skill_name", name)), http.StatusCreated)
			}
			for _, name := range append([]any{"", " a", ".a", "_a", "-a", ":a", "a b", "a/b", "a@b", "ä", "a\n", nil,
				strings.Repeat("k", 129)}, notTexts...) {
				h.wantInvalid(h.register(a, a.key, skillWith("skill_name", name)))
			}
			for _, owner := range badOwners() {
				h.wantInvalid(h.register(a, a.key, set("owner_id", owner)))
			}
			for _, change := range []func(message){without("agent_name"), without("owner_id"), set("skills", "x"),
				set("skills", []any{1}), set("skills", map[string]any{}),
				set("skills", []any{map[string]any{"cost_per_call": 1}}),
				set("skills", []any{map[string]any{"skill_name": "a", "cost_per_call": "1"}})} {
				h.wantInvalid(h.register(a, a.key, change))
			}
			h.wantStatus(h.register(a, a.key, set("timestamp_utc", "yesterday")), http.StatusCreated)
			h.want(h.row(a).text("agent_name") == name, h.row(a), "the agent_name %q", name)
		}},
	{number: "jobs.register.skills", title: "An agent has 0 to 64 skills with different names", cites: `JOBS "Agents"`,
		run: func(h *jobsProbe) {
			a := h.agent(h.one())
			for _, n := range []int{0, 1, 64} {
				h.wantStatus(h.register(a, a.key, set("skills", skillsOf(n))), http.StatusCreated)
				row := h.row(a)
				list, ok := row.list("skills")
				h.want(ok && len(list) == n, row, "%d skills", n)
			}
			h.wantInvalid(h.register(a, a.key, set("skills", skillsOf(65))))
			h.wantInvalid(h.register(a, a.key, set("skills", append(skillsOf(2), skillsOf(1)...))))
			list, _ := h.row(a).list("skills")
			h.expect("64 skills as before")
			if len(list) != 64 {
				h.failf("%d skills", len(list))
			}
		}},
	{number: "jobs.register.endpoint", title: "An api_endpoint is a URL that the registry may call, or none",
		cites: `JOBS "The HTTP interface"; GATEWAYS "Requests to other servers"; G-14`, run: func(h *jobsProbe) {
			a := h.agent(h.one())
			own := h.row(a).text("job_url")
			for _, url := range append(blockedURLs(), own) {
				h.wantInvalid(h.register(a, a.key, set("api_endpoint", url)))
			}
			for _, url := range notURLs() {
				h.wantInvalid(h.register(a, a.key, set("api_endpoint", url)))
			}
			for _, url := range []string{exampleURL, longURL(2048), "https://agent.example/?key=1"} {
				h.wantStatus(h.register(a, a.key, set("api_endpoint", url)), http.StatusCreated)
				h.want(h.row(a).text("api_endpoint") == url, h.row(a), "the api_endpoint as it was registered")
			}
			for _, change := range []func(message){set("api_endpoint", ""), set("api_endpoint", "local://memory"),
				without("api_endpoint")} {
				h.wantStatus(h.register(a, a.key, set("api_endpoint", exampleURL)), http.StatusCreated)
				h.wantStatus(h.register(a, a.key, change), http.StatusCreated)
				row := h.row(a)
				h.want(row.text("api_endpoint") == strings.TrimSuffix(own, "/jobs"), row, "the api_endpoint {B}/a/%s", a.id)
			}
		}},
	{number: "jobs.register.ids", title: "An agent_id is a UUID of any version, kept in lower case, and created if absent",
		cites: `JOBS "The HTTP interface"`, run: func(h *jobsProbe) {
			a := h.agent(h.one())
			other := newUUID()
			for _, id := range []string{other[:14] + "1" + other[15:], strings.ToUpper(newUUID())} {
				got := h.wantStatus(h.register(a, a.key, set("agent_id", id)), http.StatusCreated)
				h.keep(a, strings.ToLower(id))
				h.want(got.text("agent_id") == strings.ToLower(id), got, `"agent_id":%q`, strings.ToLower(id))
				h.wantStatus(h.read("", "/agents/"+strings.ToLower(id)), http.StatusOK)
			}
			got := h.wantStatus(h.register(a, a.key, without("agent_id")), http.StatusCreated)
			h.want(uuidForm.MatchString(got.text("agent_id")), got, "a new agent_id")
			h.keep(a, got.text("agent_id"))
			for _, id := range append([]any{"x", "", other[:35], other + "0", strings.ReplaceAll(other, "-", ""),
				"{" + other + "}", "urn:uuid:" + other, other[:35] + "g", " " + other}, notTexts...) {
				h.wantInvalid(h.register(a, a.key, set("agent_id", id)))
			}
		}},
}

// keep makes release also delete this agent of the principal of a.
func (h *jobsProbe) keep(a *jobAgent, id string) {
	h.agents = append(h.agents, &jobAgent{principal: a.principal, id: id})
}

// skillsOf returns n skills with different names.
func skillsOf(n int) (list []any) {
	for i := range n {
		list = append(list, map[string]any{"skill_name": fmt.Sprint("kit-", i), "cost_per_call": 1})
	}
	if list == nil {
		return []any{}
	}
	return list
}

func registerWithoutKey(h *jobsProbe) {
	owner := newName()
	a := &jobAgent{owner: owner, id: newUUID(), skill: newName(), price: usualPrice}
	got := h.wantStatus(h.register(a, ""), http.StatusCreated)
	p := &principal{key: got.text("api_key"), owner: owner}
	a.principal, h.agents = p, append(h.agents, a)
	h.want(principalKeyForm.MatchString(p.key) && got.text("agent_id") == a.id, got, "the agent_id, and an api_key cj_…")
	empty := h.watch(p)
	h.expect("the balance 0")
	if empty.balance[0] != 0 {
		h.failf("%s", credits(empty.balance[0]))
	}
	open := func(int) answer {
		return h.write(p.key, "/accounts", message{"owner_id": owner, "initial_balance": 30})
	}
	first := int64(0)
	for i, got := range append(h.inParallel(6, open), open(6)) {
		h.wantStatus(got, http.StatusCreated)
		if i == 0 {
			first = h.amount(got, "balance")
			h.want(first > 0 && first <= 30_000_000 && got.members["api_key"] == nil, got, "initial credits, and no api_key")
		}
		h.wantAmount(got, "balance", first)
	}
	empty.wantMoved(credits(first))
	h.wantStatus(h.write(p.key, "/heartbeat", message{"agent_id": a.id}), http.StatusOK)
}
