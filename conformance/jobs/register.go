package jobs

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// register sends a registration of an agent with changes.
func (h *jobsProbe) register(a *jobAgent, key string, changes ...func(kit.Message)) kit.Answer {
	body := registrationOf(a.id, a.owner, a.skill, a.price)
	kit.Combine(changes...)(body)
	return h.Write(key, "/register", body)
}

// textBound is a text that has least to most bytes.
type textBound struct {
	member      string
	least, most int
}

// wantBounds posts bodies with good and bad values of a member.
func (h *jobsProbe) wantBounds(b textBound, post func(value any) kit.Answer, status ...int) {
	good := kit.TextsOf(b.most)
	if b.least > 0 {
		good = append(good, "a")
	} else {
		good = append(good, "")
	}
	for _, text := range good {
		a := post(text)
		h.Want(slices.Contains(status, a.Status), a, "%s with %d bytes is taken", b.member, len(text))
	}
	bad := slices.Clone(kit.NotTexts)
	for _, text := range kit.TextsOf(b.most + 1) {
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
	{Number: "jobs.register.new", Title: "POST /register returns 201 with agent_id, the score 50.0 and job_url",
		Cites: `JOBS "Agents"; JOBS "Reputation"`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			h.Remove(a.key, "/agents/"+a.id)
			a.id = newUUID()
			got := h.wantStatus(h.register(a, a.key), http.StatusCreated)
			h.Want(got.Text("status") == "registered" && got.Text("agent_id") == a.id &&
				string(got.Members["reputation_score"]) == "50.0" && strings.HasSuffix(got.Text("job_url"), a.path()) &&
				got.Members["api_key"] == nil, got,
				`{"status":"registered","agent_id":%q,"reputation_score":50.0,"job_url":"{B}%s"}, without api_key`, a.id, a.path())
		}},
	{Number: "jobs.register.principal",
		Title: "Without a key /register makes a principal; its account has 0 credits until POST /accounts, which pays once",
		Cites: `JOBS "Agents"; J-31`, Run: registerWithoutKey},
	{Number: "jobs.register.again", Title: "Registering again by the same principal replaces the fields and keeps the score",
		Cites: `JOBS "Agents"; J-13`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			h.finish(j, successOf(j))
			h.wantScore(a, "51", 1, 0)
			a.skill = kit.NewName()
			got := h.wantStatus(h.register(a, a.key, kit.Set("agent_name", "Renamed"), kit.Set("api_endpoint", kit.ExampleURL)),
				http.StatusCreated)
			h.wantAmount(got, "reputation_score", mustMicros("51"))
			row := h.found("", a)
			h.Want(row.Text("agent_name") == "Renamed" && row.Text("api_endpoint") == kit.ExampleURL &&
				row.Object("skill").Text("skill_name") == a.skill, row, "the new name, api_endpoint and skill")
			h.wantAmount(row, "reputation_score", mustMicros("51"))
			h.wantScore(a, "51", 1, 0)
		}},
	{Number: "jobs.register.taken", Title: "The agent_id or owner_id of another principal is 409",
		Cites: `JOBS "Agents"; J-14`, Run: func(h *jobsProbe) {
			other, a := h.pair()
			before := h.row(a)
			h.wantTaken(h.register(a, other.key, kit.Set("owner_id", other.owner)))
			h.wantTaken(h.register(a, "", kit.Set("owner_id", kit.NewName())))
			h.wantTaken(h.register(a, other.key, kit.Set("agent_id", newUUID())))
			h.wantTaken(h.register(a, "", kit.Set("agent_id", newUUID())))
			h.wantSame(h.row(a), before)
		}},
	{Number: "jobs.register.race", Title: "Of several principals that register one agent_id at once, one gets it",
		Cites: `JOBS "Agents"; J-14`, Run: func(h *jobsProbe) {
			p, other := h.two()
			a := &jobAgent{principal: p, id: newUUID(), skill: kit.NewName(), price: usualPrice}
			a.principal = h.wantOneWinner(p, other, func(from *principal) kit.Answer {
				return h.Write(from.key, "/register", registrationOf(a.id, from.owner, a.skill, a.price))
			})
			a.owner, h.agents = a.principal.owner, append(h.agents, a)
			h.Want(h.row(a).Text("owner_id") == a.owner, h.row(a), "the owner_id %q", a.owner)
		}},
	{Number: "jobs.register.delete", Title: "DELETE unregisters an agent, for its principal only",
		Cites: `JOBS "The HTTP interface"`, Run: func(h *jobsProbe) {
			other, a := h.pair()
			h.wantForeign(h.Remove(other.key, "/agents/"+a.id))
			got := h.wantStatus(h.Remove(a.key, "/agents/"+a.id), http.StatusOK)
			h.Want(got.Text("status") == "unregistered" && got.Text("agent_id") == a.id, got,
				`{"status":"unregistered","agent_id":%q}`, a.id)
			h.wantUnknown(h.Read("", "/agents/"+a.id))
			h.wantUnknown(h.Remove(a.key, "/agents/"+a.id))
			h.wantUnknown(h.Write(other.key, a.path(), request(other, a)))
			if rows := h.discovered(h.Read("", "/discover?skill="+a.skill)); len(rows) != 0 {
				h.Expect("no agent in /discover")
				h.Failf("%s", kit.DescribeRows(rows))
			}
		}},
	{Number: "jobs.register.deleted", Title: "After DELETE an agent_id stays with its principal, and so does its score",
		Cites: `JOBS "Agents"; J-13, J-14`, Run: func(h *jobsProbe) {
			other, a := h.pair()
			j := h.hire(other, a)
			h.finish(j, failureOf(j))
			h.wantStatus(h.Remove(a.key, "/agents/"+a.id), http.StatusOK)
			h.wantTaken(h.register(a, other.key, kit.Set("owner_id", other.owner)))
			h.wantTaken(h.register(a, "", kit.Set("owner_id", kit.NewName())))
			h.wantStatus(h.register(a, a.key), http.StatusCreated)
			h.wantScore(a, "45.5", 0, 1)
		}},
	{Number: "jobs.register.fields", Title: "Fields are taken at both sides of their bounds, and refused with 422 beyond",
		Cites: `JOBS "The HTTP interface"`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			name := h.row(a).Text("agent_name")
			h.wantBounds(textBound{"agent_name", 1, 128}, func(value any) kit.Answer {
				return h.register(a, a.key, kit.Set("agent_name", value))
			}, http.StatusCreated)
			skillWith := func(member string, value any) func(kit.Message) {
				skill := skillOf(a.skill, a.price)
				skill[member] = value
				return kit.Set("skills", []any{skill})
			}
			h.wantBounds(textBound{"description", 0, 2000}, func(value any) kit.Answer {
				return h.register(a, a.key, skillWith("description", value))
			}, http.StatusCreated)
			for _, name := range []string{"k", strings.Repeat("k", 128), "A0._:-z"} {
				h.wantStatus(h.register(a, a.key, skillWith("skill_name", name)), http.StatusCreated)
			}
			for _, name := range append([]any{"", " a", ".a", "_a", "-a", ":a", "a b", "a/b", "a@b", "ä", "a\n", nil,
				strings.Repeat("k", 129)}, kit.NotTexts...) {
				h.wantInvalid(h.register(a, a.key, skillWith("skill_name", name)))
			}
			for _, owner := range badOwners() {
				h.wantInvalid(h.register(a, a.key, kit.Set("owner_id", owner)))
			}
			for _, change := range []func(kit.Message){kit.Without("agent_name"), kit.Without("owner_id"), kit.Set("skills",
				"x"),
				kit.Set("skills", []any{1}), kit.Set("skills", map[string]any{}),
				kit.Set("skills", []any{map[string]any{"cost_per_call": 1}}),
				kit.Set("skills", []any{map[string]any{"skill_name": "a", "cost_per_call": "1"}})} {
				h.wantInvalid(h.register(a, a.key, change))
			}
			h.wantStatus(h.register(a, a.key, kit.Set("timestamp_utc", "yesterday")), http.StatusCreated)
			h.Want(h.row(a).Text("agent_name") == name, h.row(a), "the agent_name %q", name)
		}},
	{Number: "jobs.register.skills", Title: "An agent has 0 to 64 skills with different names", Cites: `JOBS "Agents"`,
		Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			for _, n := range []int{0, 1, 64} {
				h.wantStatus(h.register(a, a.key, kit.Set("skills", skillsOf(n))), http.StatusCreated)
				row := h.row(a)
				list, ok := row.List("skills")
				h.Want(ok && len(list) == n, row, "%d skills", n)
			}
			h.wantInvalid(h.register(a, a.key, kit.Set("skills", skillsOf(65))))
			h.wantInvalid(h.register(a, a.key, kit.Set("skills", append(skillsOf(2), skillsOf(1)...))))
			list, _ := h.row(a).List("skills")
			h.Expect("64 skills as before")
			if len(list) != 64 {
				h.Failf("%d skills", len(list))
			}
		}},
	{Number: "jobs.register.endpoint", Title: "An api_endpoint is a URL that the registry may call, or none",
		Cites: `JOBS "The HTTP interface"; GATEWAYS "Requests to other servers"; G-14`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			own := h.row(a).Text("job_url")
			for _, url := range append(kit.BlockedURLs(), own) {
				h.wantInvalid(h.register(a, a.key, kit.Set("api_endpoint", url)))
			}
			for _, url := range kit.NotURLs() {
				h.wantInvalid(h.register(a, a.key, kit.Set("api_endpoint", url)))
			}
			for _, url := range []string{kit.ExampleURL, kit.LongURL(2048), "https://agent.example/?key=1"} {
				h.wantStatus(h.register(a, a.key, kit.Set("api_endpoint", url)), http.StatusCreated)
				h.Want(h.row(a).Text("api_endpoint") == url, h.row(a), "the api_endpoint as it was registered")
			}
			for _, change := range []func(kit.Message){kit.Set("api_endpoint", ""), kit.Set("api_endpoint", "local://memory"),
				kit.Without("api_endpoint")} {
				h.wantStatus(h.register(a, a.key, kit.Set("api_endpoint", kit.ExampleURL)), http.StatusCreated)
				h.wantStatus(h.register(a, a.key, change), http.StatusCreated)
				row := h.row(a)
				h.Want(row.Text("api_endpoint") == strings.TrimSuffix(own, "/jobs"), row, "the api_endpoint {B}/a/%s", a.id)
			}
		}},
	{Number: "jobs.register.ids", Title: "An agent_id is a UUID of any version, kept in lower case, and created if absent",
		Cites: `JOBS "The HTTP interface"`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			other := newUUID()
			for _, id := range []string{other[:14] + "1" + other[15:], strings.ToUpper(newUUID())} {
				got := h.wantStatus(h.register(a, a.key, kit.Set("agent_id", id)), http.StatusCreated)
				h.keep(a, strings.ToLower(id))
				h.Want(got.Text("agent_id") == strings.ToLower(id), got, `"agent_id":%q`, strings.ToLower(id))
				h.wantStatus(h.Read("", "/agents/"+strings.ToLower(id)), http.StatusOK)
			}
			got := h.wantStatus(h.register(a, a.key, kit.Without("agent_id")), http.StatusCreated)
			h.Want(uuidForm.MatchString(got.Text("agent_id")), got, "a new agent_id")
			h.keep(a, got.Text("agent_id"))
			for _, id := range append([]any{"x", "", other[:35], other + "0", strings.ReplaceAll(other, "-", ""),
				"{" + other + "}", "urn:uuid:" + other, other[:35] + "g", " " + other}, kit.NotTexts...) {
				h.wantInvalid(h.register(a, a.key, kit.Set("agent_id", id)))
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
	owner := kit.NewName()
	a := &jobAgent{owner: owner, id: newUUID(), skill: kit.NewName(), price: usualPrice}
	got := h.wantStatus(h.register(a, ""), http.StatusCreated)
	p := &principal{key: got.Text("api_key"), owner: owner}
	a.principal, h.agents = p, append(h.agents, a)
	h.Want(principalKeyForm.MatchString(p.key) && got.Text("agent_id") == a.id, got, "the agent_id, and an api_key cj_…")
	empty := h.watch(p)
	h.Expect("the balance 0")
	if empty.balance[0] != 0 {
		h.Failf("%s", credits(empty.balance[0]))
	}
	open := func(int) kit.Answer {
		return h.Write(p.key, "/accounts", kit.Message{"owner_id": owner, "initial_balance": 30})
	}
	first := int64(0)
	for i, got := range append(h.InParallel(6, open), open(6)) {
		h.wantStatus(got, http.StatusCreated)
		if i == 0 {
			first = h.amount(got, "balance")
			h.Want(first > 0 && first <= 30_000_000 && got.Members["api_key"] == nil, got, "initial credits, and no api_key")
		}
		h.wantAmount(got, "balance", first)
	}
	empty.wantMoved(credits(first))
	h.wantStatus(h.Write(p.key, "/heartbeat", kit.Message{"agent_id": a.id}), http.StatusOK)
}
