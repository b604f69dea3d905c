package conformance

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"
)

// discovered returns the rows of an answer to GET /discover.
func (h *jobsProbe) discovered(a answer) (rows []answer) {
	h.wantStatus(a, http.StatusOK)
	list, ok := a.list("agents")
	h.want(ok && a.number("total") == float64(len(list)), a, `{"agents":[…],"total":…}`)
	for _, raw := range list {
		rows = append(rows, parseRow(raw))
	}
	return rows
}

// wantFound ends the check unless /discover returns exactly these agents, in this order.
func (h *jobsProbe) wantFound(query string, agents ...*jobAgent) {
	rows := h.discovered(h.read("", "/discover?"+query))
	var got, want []string
	for _, row := range rows {
		got = append(got, row.text("agent_id"))
	}
	for _, a := range agents {
		want = append(want, a.id)
	}
	h.expect("the agents %q, in this order", want)
	if !slices.Equal(got, want) {
		h.failf("%q", got)
	}
}

// jobsDiscoverChecks test how agents are found.
var jobsDiscoverChecks = []jobsCheck{
	{number: "jobs.discover.row", title: "/discover and /agents/{id} show an agent with the members of a row",
		cites: `JOBS "Agents"`, run: discoverRow},
	{number: "jobs.discover.filter", title: "/discover filters by skill, min_reputation and max_cost, both inclusive",
		cites: `JOBS "Agents"; J-18`, run: func(h *jobsProbe) {
			hirer, p := h.two()
			skill := newName()
			cheap, dear := h.agentAt(p, skill, "0.05"), h.agentAt(p, skill, "0.2")
			free := h.agentAt(p, skill, "0", set("skills", []any{skillOf("another", "9"), skillOf(skill, "0")}))
			h.agentAt(p, newName(), "0.05")
			j := h.hire(hirer, cheap)
			h.finish(j, successOf(j)) // its score is 51 now
			all := "skill=" + skill
			h.wantFound(all, cheap, free, dear)
			h.wantFound(all+"&min_reputation=50&max_cost=1", cheap, free, dear)
			h.wantFound(all+"&min_reputation=50.01", cheap)
			h.wantFound(all+"&min_reputation=51", cheap)
			h.wantFound(all + "&min_reputation=51.01")
			h.wantFound(all+"&max_cost=0.1", cheap, free)
			h.wantFound(all+"&max_cost=0.05", cheap, free)
			h.wantFound(all+"&max_cost=0.049999", free)
			h.wantFound(all+"&max_cost=0", free)
			h.wantFound(all+"&max_cost=0&min_reputation=50", free)
			h.wantFound(all + "&max_cost=0&min_reputation=51")
			h.wantFound("skill=" + newName())
		}},
	{number: "jobs.discover.order", title: "/discover sorts by reputation (highest first), then cost, then agent_id",
		cites: `JOBS "Agents"; J-18`, wait: 0, run: func(h *jobsProbe) {
			hirer, p := h.two()
			skill := newName()
			var same []*jobAgent
			for range 4 {
				same = append(same, h.agentAt(p, skill, "0.2"))
			}
			good, bad := h.agentAt(p, skill, "0.3"), h.agentAt(p, skill, "0.01")
			cheap := h.agentAt(p, skill, "0.02")
			j := h.hire(hirer, good, set("budget", number("0.3")))
			h.finish(j, successOf(j))
			j = h.hire(hirer, bad)
			h.finish(j, failureOf(j))
			slices.SortFunc(same, func(a, b *jobAgent) int { return strings.Compare(a.id, b.id) })
			h.wantFound("skill="+skill, slices.Concat([]*jobAgent{good, cheap}, same, []*jobAgent{bad})...)
		}},
	{number: "jobs.discover.parameters", title: "A missing skill and bad numbers are 422",
		cites: `JOBS "The HTTP interface"; GATEWAYS "Bodies and errors"`, run: func(h *jobsProbe) {
			for _, query := range []string{"", "?skill=", "?max_cost=1", "?skill=x&min_reputation=-1",
				"?skill=x&min_reputation=100.1", "?skill=x&min_reputation=x", "?skill=x&min_reputation=",
				"?skill=x&max_cost=-1", "?skill=x&max_cost=x", "?skill=x&max_cost=", "?skill=x&max_cost=0.0000001",
				"?skill=x&max_cost=1e9"} {
				h.wantInvalid(h.read("", "/discover"+query))
			}
			for _, query := range []string{"?skill=x&min_reputation=0", "?skill=x&min_reputation=100&max_cost=0",
				"?skill=x&min_reputation=99.5&max_cost=0.000001"} {
				h.discovered(h.read("", "/discover"+query))
			}
		}},
	{number: "jobs.discover.skills", title: "/skills lists the skills of agents that are online",
		cites: `JOBS "The HTTP interface"`, run: func(h *jobsProbe) {
			a := h.agent(h.one())
			has := func() bool {
				got := h.wantStatus(h.read("", "/skills"), http.StatusOK)
				list, ok := got.list("skills")
				h.want(ok && got.members["total_agents"] != nil, got, `{"skills":[…],"total_agents":…}`)
				return slices.ContainsFunc(list, func(raw json.RawMessage) bool {
					return sameJSON(raw, a.skill) || parseRow(raw).text("skill_name") == a.skill
				})
			}
			h.expect("the skill of an agent in /skills")
			if !has() {
				h.failf("it is not there")
			}
			h.wantStatus(h.remove(a.key, "/agents/"+a.id), http.StatusOK)
			gone := !has()
			h.expect("no skill of a deleted agent in /skills")
			if !gone {
				h.failf("it is still there")
			}
		}},
	{number: "jobs.heartbeat", title: "POST /heartbeat returns a timestamp, and the row shows it as last_heartbeat",
		cites: `JOBS "Agents"`, run: func(h *jobsProbe) {
			a := h.agent(h.one())
			got := h.wantStatus(h.write(a.key, "/heartbeat", message{"agent_id": a.id}), http.StatusOK)
			h.want(got.text("status") == "ok" && got.text("agent_id") == a.id &&
				jobsTimeForm.MatchString(got.text("timestamp")), got,
				`{"status":"ok","agent_id":%q,"timestamp":"2026-02-11T14:15:09.000Z"}`, a.id)
			row := h.found("", a)
			h.want(row.text("status") == "online" && row.text("last_heartbeat") == got.text("timestamp"), row,
				`"status":"online","last_heartbeat":%q`, got.text("timestamp"))
			for _, id := range append([]any{"x", "", nil, a.id + "0"}, notTexts...) {
				h.wantInvalid(h.write(a.key, "/heartbeat", message{"agent_id": id}))
			}
			h.wantInvalid(h.write(a.key, "/heartbeat", message{}))
		}},
	{number: "jobs.heartbeat.expiry",
		title: "An agent is offline 90 s after its last heartbeat, and not at all if it never sent one",
		cites: `JOBS "Agents"; J-19, J-20`, needs: needsThorough, wait: 95 * time.Second, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			silent := h.agentAt(a.principal, a.skill, a.price)
			beat := func() {
				h.wantStatus(h.write(a.key, "/heartbeat", message{"agent_id": a.id}), http.StatusOK)
			}
			beat()
			h.found("", a)
			h.sleep(80 * time.Second)
			h.found("", a)
			h.found("", silent)
			h.sleep(13 * time.Second)
			h.wantFound("skill="+a.skill, silent)
			body := request(hirer, a)
			h.wantFailure(h.write(hirer.key, a.path()+"?wait=0", body), "AGENT_OFFLINE")
			beat()
			h.found("", a)
			h.dispatch(a, h.hired(hirer, a, body))
		}},
}

func discoverRow(h *jobsProbe) {
	p := h.one()
	a := h.agentAt(p, newName(), "0.1", func(m message) {
		m["skills"] = append(m["skills"].([]any), map[string]any{"skill_name": "another", "cost_per_call": 2})
	})
	for _, row := range []answer{h.found("", a), h.row(a)} {
		h.want(row.text("agent_id") == a.id && row.text("agent_name") == "Kit "+astral && row.text("owner_id") == a.owner &&
			row.text("status") == "online", row, "the agent's id, name and owner, and the status online")
		h.want(scoreForm.Match(row.members["reputation_score"]), row, "a reputation_score with one or two decimals")
		job := row.text("job_url")
		h.want(strings.HasPrefix(job, "http") && strings.HasSuffix(job, a.path()), row, "a job_url {B}%s", a.path())
		h.want(row.text("api_endpoint") == strings.TrimSuffix(job, "/jobs"), row, "the api_endpoint {B}/a/%s", a.id)
		h.want(jobsTimeForm.MatchString(row.text("registered_at")) && row.members["last_heartbeat"] != nil, row,
			"registered_at such as 2026-02-11T14:15:09.000Z, and last_heartbeat")
		list, _ := row.list("skills")
		h.want(len(list) == 2 && sameJSON(list[0], skillOf(a.skill, "0.1")), row, "both skills, the first with all its members")
	}
	row := h.found("", a)
	h.want(sameJSON(row.members["skill"], skillOf(a.skill, "0.1")), row, "the member skill is the skill that was asked for")
}
