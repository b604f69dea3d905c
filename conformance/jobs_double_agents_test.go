package conformance_test

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The agents of a double of a registry. They run while its mutex is held.

type doubleAgent struct {
	id, name, endpoint  string
	of                  *doublePrincipal
	owner               *doubleAccount
	skills              []object
	prices              map[string]int64
	score               int64 // in millionths
	successes, failures int
	registered, active  time.Time
	heartbeat           time.Time // zero: it never sent one
	deleted             bool
	lane                chan struct{} // for a fault
}

func (d *jobsDouble) online(a *doubleAgent) bool {
	switch {
	case a.deleted:
		return false
	case a.heartbeat.IsZero():
		return time.Since(a.active) < 24*time.Hour
	}
	return time.Since(a.heartbeat) < 90*time.Second && !d.has("is offline after a heartbeat")
}

// destination returns a member that is a URL, or the empty string.
func (d *jobsDouble) destination(body object, name string) string {
	text, given := d.text(body, name, 0, 4096, "body")
	if !given || text == "" || text == "local://memory" {
		return ""
	}
	if _, err := d.urls.Check(text); err != nil && !d.has("calls every host") {
		invalid("body", name)
	}
	return text
}

// skillsOf reads the skills of a registration.
func (d *jobsDouble) skillsOf(body object) (skills []object, prices map[string]int64) {
	list, isList := body["skills"].([]any)
	if _, given := body["skills"]; given && !isList || len(list) > 64 {
		invalid("body", "skills")
	}
	prices = map[string]int64{}
	for i, value := range list {
		sent, _ := value.(object)
		name := d.mustText(sent, "skill_name", 1, 128, "body", "skills", i)
		_, twice := prices[name]
		if !doubleSkill.MatchString(name) || twice && !d.has("takes skills twice") {
			invalid("body", "skills", i, "skill_name")
		}
		prices[name] = d.mustAmount(sent, "cost_per_call", "body", "skills", i)
		shown := object{"skill_name": name, "cost_per_call": d.credit(prices[name])}
		shown["description"], _ = d.text(sent, "description", 0, 2000, "body", "skills", i)
		if !d.has("hides the schemas") {
			shown["input_schema"], shown["output_schema"] = sent["input_schema"], sent["output_schema"]
		}
		skills = append(skills, shown)
	}
	return skills, prices
}

func (d *jobsDouble) register(c *jobsCall) {
	d.read(c)
	id, name, owner := d.uuid(c.body, "agent_id"), d.mustText(c.body, "agent_name", 1, 128, "body"), d.owner(c, "owner_id")
	endpoint := d.destination(c.body, "api_endpoint")
	skills, prices := d.skillsOf(c.body)
	a, account := d.agents[id], d.accounts[owner]
	if a != nil && a.deleted && d.has("forgets deleted agents") {
		a = nil
	}
	foreign := a != nil && a.of != c.from || account != nil && account.of != c.from
	if foreign && !d.has("lets anyone register agents again") {
		refuse(http.StatusConflict)
	}
	d.pause("looks for agents too early")
	key := d.stranger(c)
	account = d.account(c, owner)
	if key != "" && d.has("pays accounts at registration") {
		d.pay(account, 100_000_000)
	}
	if a == nil || a.deleted {
		agents := 0
		for _, other := range d.agents {
			if other.of == c.from && !other.deleted {
				agents++
			}
		}
		if agents == 100 && !d.has("has no limit of agents") {
			panic(doubleError{status: http.StatusTooManyRequests, limit: "agents"})
		}
	}
	if a == nil || d.has("resets scores") {
		a = &doubleAgent{id: id, score: 50_000_000, registered: time.Now(), active: time.Now(), lane: make(chan struct{}, 1)}
		d.agents[id] = a
	}
	a.of, a.name, a.owner, a.endpoint, a.skills, a.prices, a.deleted = c.from, name, account, endpoint, skills, prices, false
	body := object{"status": "registered", "agent_id": id, "reputation_score": d.score(a.score),
		"job_url": d.url + "/a/" + id + "/jobs"}
	if key != "" {
		body["api_key"] = key
	}
	d.answer(c, http.StatusCreated, body)
}

// row returns how an agent is shown. skill may be empty.
func (d *jobsDouble) row(c *jobsCall, a *doubleAgent, skill string) object {
	status := "offline"
	if d.online(a) {
		status = "online"
	}
	row := object{"agent_id": a.id, "agent_name": a.name, "owner_id": a.owner.id, "api_endpoint": a.endpoint,
		"job_url": strings.Split(c.base, "/k/")[0] + "/a/" + a.id + "/jobs", "skills": append([]object{}, a.skills...),
		"reputation_score": d.score(a.score), "status": status, "registered_at": milliseconds(a.registered),
		"last_heartbeat": nil}
	if !a.heartbeat.IsZero() && !d.has("keeps no heartbeats") {
		row["last_heartbeat"] = milliseconds(a.heartbeat)
	}
	if a.endpoint == "" || strings.Contains(c.base, "/k/") && !d.has("shows the registered endpoint everywhere") {
		row["api_endpoint"] = c.base + "/a/" + a.id
	}
	for _, s := range a.skills {
		if s["skill_name"] == skill {
			row["skill"] = s
		}
	}
	if d.has("shows keys in rows") {
		row["key"] = a.of.key
	}
	return row
}

// agent returns an agent that is not deleted.
func (d *jobsDouble) agent(id string) *doubleAgent {
	a := d.agents[id]
	if a == nil || a.deleted && !d.has("keeps deleted agents") {
		refuse(http.StatusNotFound)
	}
	return a
}

// ownAgent returns an agent of the caller.
func (d *jobsDouble) ownAgent(c *jobsCall, id string) *doubleAgent {
	a := d.agent(id)
	if a.of != c.from && !d.has("lets anyone manage agents") && !(c.from.operator && d.has("lets the operator do everything")) {
		refuse(http.StatusForbidden)
	}
	return a
}

func (d *jobsDouble) showAgent(c *jobsCall) { d.answer(c, http.StatusOK, d.row(c, d.agent(c.id), "")) }

func (d *jobsDouble) unregister(c *jobsCall) {
	d.mustPrincipal(c)
	d.ownAgent(c, c.id).deleted = true
	d.answer(c, http.StatusOK, object{"status": "unregistered", "agent_id": c.id})
}

// limitOf returns a parameter that is a number up to most, in millionths.
func (d *jobsDouble) limitOf(c *jobsCall, name string, usual, most int64) int64 {
	if !c.values.Has(name) {
		return usual
	}
	n, ok := d.amountOf(c.values.Get(name))
	if (!ok || n > most) && !(d.has("takes every min_reputation") && name == "min_reputation") {
		invalid("query", name)
	}
	return n
}

func (d *jobsDouble) discover(c *jobsCall) {
	const all = 999_999_999_999_999
	skill := c.values.Get("skill")
	least, most := d.limitOf(c, "min_reputation", 0, 100_000_000), d.limitOf(c, "max_cost", all, all)
	if skill == "" {
		invalid("query", "skill")
	}
	var found []*doubleAgent
	for _, a := range d.agents {
		price, has := a.prices[skill]
		cheap := price <= most
		if d.has("takes max_cost as exclusive") && most != all {
			cheap = price < most
		}
		if has && cheap && a.score >= least && d.online(a) {
			found = append(found, a)
		}
	}
	slices.SortFunc(found, func(a, b *doubleAgent) int {
		byCost, byScore := cmp.Compare(a.prices[skill], b.prices[skill]), cmp.Compare(b.score, a.score)
		if d.has("sorts by cost first") {
			byCost, byScore = byScore, byCost
		}
		return cmp.Or(byScore, byCost, strings.Compare(a.id, b.id))
	})
	rows := []any{}
	for _, a := range found {
		rows = append(rows, d.row(c, a, skill))
	}
	d.answer(c, http.StatusOK, object{"agents": rows, "total": len(rows)})
}

func (d *jobsDouble) listSkills(c *jobsCall) {
	d.answer(c, http.StatusOK, object{"skills": append([]string{}, d.skills()...), "total_agents": len(d.agents)})
}

func (d *jobsDouble) heartbeat(c *jobsCall) {
	d.mustPrincipal(c)
	d.read(c)
	if _, given := c.body["agent_id"]; !given {
		invalid("body", "agent_id")
	}
	a := d.ownAgent(c, d.uuid(c.body, "agent_id"))
	a.heartbeat = time.Now()
	d.answer(c, http.StatusOK, object{"status": "ok", "agent_id": a.id, "timestamp": milliseconds(a.heartbeat)})
}

func (d *jobsDouble) showReputation(c *jobsCall) {
	if d.agents[c.id] == nil && d.has("invents agents") {
		d.answer(c, http.StatusOK, object{"agent_id": c.id, "score": json.Number("50.0"), "stats": object{}})
		return
	}
	a := d.agent(c.id)
	d.answer(c, http.StatusOK, object{"agent_id": a.id, "score": d.score(a.score), "stats": object{
		"total": a.successes + a.failures, "successes": a.successes, "failures": a.failures}})
}

func (d *jobsDouble) outcome(c *jobsCall) {
	if a := d.agents[c.id]; a != nil && d.has("takes outcomes") {
		a.score += 1_000_000
		d.answer(c, http.StatusOK, object{})
		return
	}
	refuse(http.StatusForbidden)
}
