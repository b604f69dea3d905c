package jobs

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// discovered returns the rows of an answer to GET /discover.
func (h *jobsProbe) discovered(a kit.Answer) (rows []kit.Answer) {
	h.wantStatus(a, http.StatusOK)
	list, ok := a.List("agents")
	h.Want(ok && a.Number("total") == float64(len(list)), a, `{"agents":[…],"total":…}`)
	for _, raw := range list {
		rows = append(rows, kit.ParseRow(raw))
	}
	return rows
}

// wantFound ends the check unless /discover returns exactly these agents, in this order.
func (h *jobsProbe) wantFound(query string, agents ...*jobAgent) {
	rows := h.discovered(h.Read("", "/discover?"+query))
	var got, want []string
	for _, row := range rows {
		got = append(got, row.Text("agent_id"))
	}
	for _, a := range agents {
		want = append(want, a.id)
	}
	h.Expect("the agents %q, in this order", want)
	if !slices.Equal(got, want) {
		h.Failf("%q", got)
	}
}

// jobsDiscoverChecks test how agents are found.
var jobsDiscoverChecks = []jobsCheck{
	{Number: "jobs.discover.row", Title: "/discover and /agents/{id} show an agent with the members of a row",
		Cites: `JOBS "Agents"`, Run: discoverRow},
	{Number: "jobs.discover.filter", Title: "/discover filters by skill, min_reputation and max_cost, both inclusive",
		Cites: `JOBS "Agents"; J-18`, Run: func(h *jobsProbe) {
			hirer, p := h.two()
			skill := kit.NewName()
			cheap, dear := h.agentAt(p, skill, "0.05"), h.agentAt(p, skill, "0.2")
			free := h.agentAt(p, skill, "0", kit.Set("skills", []any{skillOf("another", "9"), skillOf(skill, "0")}))
			h.agentAt(p, kit.NewName(), "0.05")
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
			h.wantFound("skill=" + kit.NewName())
		}},
	{Number: "jobs.discover.order", Title: "/discover sorts by reputation (highest first), then cost, then agent_id",
		Cites: `JOBS "Agents"; J-18`, Wait: 0, Run: func(h *jobsProbe) {
			hirer, p := h.two()
			skill := kit.NewName()
			var same []*jobAgent
			for range 4 {
				same = append(same, h.agentAt(p, skill, "0.2"))
			}
			good, bad := h.agentAt(p, skill, "0.3"), h.agentAt(p, skill, "0.01")
			cheap := h.agentAt(p, skill, "0.02")
			j := h.hire(hirer, good, kit.Set("budget", number("0.3")))
			h.finish(j, successOf(j))
			j = h.hire(hirer, bad)
			h.finish(j, failureOf(j))
			slices.SortFunc(same, func(a, b *jobAgent) int { return strings.Compare(a.id, b.id) })
			h.wantFound("skill="+skill, slices.Concat([]*jobAgent{good, cheap}, same, []*jobAgent{bad})...)
		}},
	{Number: "jobs.discover.parameters", Title: "A missing skill and bad numbers are 422",
		Cites: `JOBS "The HTTP interface"; GATEWAYS "Bodies and errors"`, Run: func(h *jobsProbe) {
			for _, query := range []string{"", "?skill=", "?max_cost=1", "?skill=x&min_reputation=-1",
				"?skill=x&min_reputation=100.1", "?skill=x&min_reputation=x", "?skill=x&min_reputation=",
				"?skill=x&max_cost=-1", "?skill=x&max_cost=x", "?skill=x&max_cost=", "?skill=x&max_cost=0.0000001",
				"?skill=x&max_cost=1e9"} {
				h.wantInvalid(h.Read("", "/discover"+query))
			}
			for _, query := range []string{"?skill=x&min_reputation=0", "?skill=x&min_reputation=100&max_cost=0",
				"?skill=x&min_reputation=99.5&max_cost=0.000001"} {
				h.discovered(h.Read("", "/discover"+query))
			}
		}},
	{Number: "jobs.discover.skills", Title: "/skills lists the skills of agents that are online",
		Cites: `JOBS "The HTTP interface"`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			has := func() bool {
				got := h.wantStatus(h.Read("", "/skills"), http.StatusOK)
				list, ok := got.List("skills")
				h.Want(ok && got.Members["total_agents"] != nil, got, `{"skills":[…],"total_agents":…}`)
				return slices.ContainsFunc(list, func(raw json.RawMessage) bool {
					return kit.SameJSON(raw, a.skill) || kit.ParseRow(raw).Text("skill_name") == a.skill
				})
			}
			h.Expect("the skill of an agent in /skills")
			if !has() {
				h.Failf("it is not there")
			}
			h.wantStatus(h.Remove(a.key, "/agents/"+a.id), http.StatusOK)
			gone := !has()
			h.Expect("no skill of a deleted agent in /skills")
			if !gone {
				h.Failf("it is still there")
			}
		}},
	{Number: "jobs.heartbeat", Title: "POST /heartbeat returns a timestamp, and the row shows it as last_heartbeat",
		Cites: `JOBS "Agents"`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			got := h.wantStatus(h.Write(a.key, "/heartbeat", kit.Message{"agent_id": a.id}), http.StatusOK)
			h.Want(got.Text("status") == "ok" && got.Text("agent_id") == a.id &&
				jobsTimeForm.MatchString(got.Text("timestamp")), got,
				`{"status":"ok","agent_id":%q,"timestamp":"2026-02-11T14:15:09.000Z"}`, a.id)
			row := h.found("", a)
			h.Want(row.Text("status") == "online" && row.Text("last_heartbeat") == got.Text("timestamp"), row,
				`"status":"online","last_heartbeat":%q`, got.Text("timestamp"))
			for _, id := range append([]any{"x", "", nil, a.id + "0"}, kit.NotTexts...) {
				h.wantInvalid(h.Write(a.key, "/heartbeat", kit.Message{"agent_id": id}))
			}
			h.wantInvalid(h.Write(a.key, "/heartbeat", kit.Message{}))
		}},
	{Number: "jobs.heartbeat.expiry",
		Title: "An agent is offline 90 s after its last heartbeat, and not at all if it never sent one",
		Cites: `JOBS "Agents"; J-19, J-20`, Needs: kit.NeedsThorough, Wait: 95 * time.Second, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			silent := h.agentAt(a.principal, a.skill, a.price)
			beat := func() {
				h.wantStatus(h.Write(a.key, "/heartbeat", kit.Message{"agent_id": a.id}), http.StatusOK)
			}
			beat()
			h.found("", a)
			h.Sleep(80 * time.Second)
			h.found("", a)
			h.found("", silent)
			h.Sleep(13 * time.Second)
			h.wantFound("skill="+a.skill, silent)
			body := request(hirer, a)
			h.wantFailure(h.Write(hirer.key, a.path()+"?wait=0", body), "AGENT_OFFLINE")
			beat()
			h.found("", a)
			h.dispatch(a, h.hired(hirer, a, body))
		}},
}

func discoverRow(h *jobsProbe) {
	p := h.one()
	a := h.agentAt(p, kit.NewName(), "0.1", func(m kit.Message) {
		m["skills"] = append(m["skills"].([]any), map[string]any{"skill_name": "another", "cost_per_call": 2})
	})
	for _, row := range []kit.Answer{h.found("", a), h.row(a)} {
		h.Want(row.Text("agent_id") == a.id && row.Text("agent_name") == "Kit "+kit.Astral &&
			row.Text("owner_id") == a.owner &&
			row.Text("status") == "online", row, "the agent's id, name and owner, and the status online")
		h.Want(scoreForm.Match(row.Members["reputation_score"]), row, "a reputation_score with one or two decimals")
		job := row.Text("job_url")
		h.Want(strings.HasPrefix(job, "http") && strings.HasSuffix(job, a.path()), row, "a job_url {B}%s", a.path())
		h.Want(row.Text("api_endpoint") == strings.TrimSuffix(job, "/jobs"), row, "the api_endpoint {B}/a/%s", a.id)
		h.Want(jobsTimeForm.MatchString(row.Text("registered_at")) && row.Members["last_heartbeat"] != nil, row,
			"registered_at such as 2026-02-11T14:15:09.000Z, and last_heartbeat")
		list, _ := row.List("skills")
		h.Want(len(list) == 2 && kit.SameJSON(list[0], skillOf(a.skill, "0.1")), row,
			"both skills, the first with all its members")
	}
	row := h.found("", a)
	h.Want(kit.SameJSON(row.Members["skill"], skillOf(a.skill, "0.1")), row,
		"the member skill is the skill that was asked for")
}
