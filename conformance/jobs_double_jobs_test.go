package conformance_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// The jobs of a double of a registry. They run while its mutex is held.

type doubleJob struct {
	id            string
	hirer         *doublePrincipal
	agent         *doubleAgent
	boss          *doubleAgent // whose score counts, or nil
	payer, payee  *doubleAccount
	price, budget int64
	request       object
	form          string // the request without its timestamp, in RFC 8785 form
	callback      string // the hirer's
	dispatched    bool
	status        string
	result        object
	ended         string // the result that ended it, as form
	settled       *doubleRecord
}

const largestData = 49_152

// data checks a member that is an object.
func (d *jobsDouble) data(body object, name string) {
	value, given := body[name]
	if _, isObject := value.(object); given && (!isObject || len(encode(value)) > largestData) {
		invalid("body", name)
	}
}

// formWithout returns the RFC 8785 form of an object without some members.
func formWithout(body object, names ...string) string {
	rest := object{}
	for name, value := range body {
		if !slices.Contains(names, name) {
			rest[name] = value
		}
	}
	form, err := envelope.Canonicalize(encode(rest))
	if err != nil {
		panic(err) // cannot happen: it is JSON
	}
	return string(form)
}

func (d *jobsDouble) hire(c *jobsCall) {
	d.mustPrincipal(c)
	if d.has("looks for the agent first") {
		d.agent(c.id)
	}
	d.read(c)
	wait := d.number(c, "wait", 0, 120, 60)
	j := &doubleJob{id: d.uuid(c.body, "job_id"), hirer: c.from, status: "PENDING", request: c.body}
	boss := d.mustText(c.body, "orchestrator_id", 1, 128, "body")
	skill := d.mustText(c.body, "skill_name", 1, 128, "body")
	if !doubleSkill.MatchString(skill) {
		invalid("body", "skill_name")
	}
	d.data(c.body, "input_data")
	j.budget = d.mustAmount(c.body, "budget", "body")
	if currency, given := d.text(c.body, "currency", 0, 100, "body"); given && currency != "chorus_credits_v1" &&
		!d.has("takes every currency") {
		invalid("body", "currency")
	}
	if d.has("calls every hirer") {
		j.callback, _ = c.body["callback_url"].(string)
	} else {
		j.callback = d.destination(c.body, "callback_url")
	}
	j.request["job_id"] = j.id
	j.form = formWithout(c.body, "timestamp_utc")
	j.agent = d.agent(c.id)
	if old := d.jobs[j.id]; old != nil && !d.has("holds repeats again") {
		if (old.hirer != c.from || old.agent != j.agent || old.form != j.form) && !d.has("answers for other jobs") {
			refuse(http.StatusConflict)
		}
		d.answerHirer(c, old, wait)
		return
	}
	d.pause("looks for repeats too early")
	unfinished := 0
	for _, other := range d.jobs {
		if other.agent == j.agent && other.status == "PENDING" {
			unfinished++
		}
	}
	if unfinished >= 100 && !d.has("takes every job") {
		panic(doubleError{status: http.StatusTooManyRequests, limit: "unfinishedJobs"})
	}
	if code := d.begin(j, boss, skill); code != "" {
		d.answer(c, http.StatusOK, d.failed(j, code))
		return
	}
	d.answerHirer(c, j, wait)
}

// failed returns the JobResult of a job that the registry ends.
func (d *jobsDouble) failed(j *doubleJob, code string) object {
	return object{"job_id": j.id, "agent_id": j.agent.id, "status": "FAILURE", "output_data": object{},
		"execution_cost": json.Number("0"), "execution_time_ms": 0, "error_message": "the double says " + code,
		"error_code": code, "timestamp_utc": milliseconds(time.Now())}
}

// begin makes a job, or returns why it fails.
func (d *jobsDouble) begin(j *doubleJob, boss, skill string) (code string) {
	price, has := j.agent.prices[skill]
	if !has && !d.has("takes every skill") {
		if d.has("looks at the budget first") && j.budget < 1_000_000_000 {
			return "BUDGET_INSUFFICIENT"
		}
		return "SKILL_MISMATCH"
	}
	if j.budget < price && !d.has("takes every budget") || d.has("needs more than the cost") && j.budget == price && price > 0 {
		return "BUDGET_INSUFFICIENT"
	}
	if !d.online(j.agent) {
		return "AGENT_OFFLINE"
	}
	d.choosePayer(j, boss)
	if j.payer == nil || j.payer.balance < j.budget && !d.has("lends credits") {
		return "TRANSFER_FAILED"
	}
	if j.agent.of == j.hirer && d.has("refuses jobs within a principal") {
		return "SKILL_MISMATCH"
	}
	j.price, j.payee = price, j.agent.owner
	if d.has("holds the price") {
		j.budget = price
	}
	d.jobs[j.id] = j
	d.move(&doubleRecord{id: newUUID(), from: j.payer.id, to: "@escrow", amount: j.budget, job: j.id, kind: "hold"})
	if j.agent.endpoint != "" {
		d.work.Go(func() { d.send(j) })
	}
	d.tell()
	return ""
}

// choosePayer finds the account that pays for a job.
func (d *jobsDouble) choosePayer(j *doubleJob, boss string) {
	if a := d.agents[boss]; a != nil && a.of == j.hirer && !a.deleted {
		j.boss, j.payer = a, a.owner
		if !d.has("lets the oldest account pay") {
			return
		}
	}
	if a := d.accounts[boss]; a != nil && a.of == j.hirer && !d.has("lets the oldest account pay") {
		j.payer = a
		return
	}
	for _, a := range j.hirer.owners {
		if a.balance >= j.budget || d.has("lends credits") {
			j.payer = a
			return
		}
	}
	j.payer = nil
}

// jobResult returns a job as its hirer sees it.
func (d *jobsDouble) jobResult(j *doubleJob) object {
	if j.status != "PENDING" {
		return j.result
	}
	return object{"job_id": j.id, "agent_id": j.agent.id, "status": "PENDING", "output_data": object{},
		"execution_cost": json.Number("0"), "execution_time_ms": 0, "error_message": nil, "error_code": nil,
		"timestamp_utc": milliseconds(time.Now())}
}

func (d *jobsDouble) answerHirer(c *jobsCall, j *doubleJob, wait int) {
	if d.has("does not wait for the end") {
		wait = 0
	}
	d.waitFor(c, wait, func() bool { return j.status != "PENDING" })
	status := http.StatusOK
	if j.status == "PENDING" {
		status = http.StatusAccepted
		if !d.has("gives no Location") {
			c.w.Header().Set("Location", d.url+"/jobs/"+j.id)
		}
	}
	d.answer(c, status, d.jobResult(j))
}

func (d *jobsDouble) showJob(c *jobsCall) {
	d.mustPrincipal(c)
	j := d.jobs[c.id]
	if j == nil && d.has("tells which jobs exist") {
		refuse(http.StatusNotFound)
	}
	if j == nil || j.hirer != c.from && j.agent.of != c.from {
		refuse(http.StatusForbidden)
	}
	d.answer(c, http.StatusOK, d.jobResult(j))
}

func (d *jobsDouble) handOut(c *jobsCall) {
	d.mustPrincipal(c)
	wait := d.number(c, "wait", 0, 60, 0)
	a := d.ownAgent(c, c.id)
	if d.has("does not wait for jobs") {
		wait = 0
	}
	var ready []*doubleJob
	d.waitFor(c, wait, func() bool { ready = d.ready(a); return len(ready) > 0 })
	rows := []object{}
	for _, j := range d.ready(a) {
		j.dispatched = true
		row := object{}
		for name, value := range j.request {
			if name != "callback_url" && !(name == "input_data" && d.has("hands out no input")) {
				row[name] = value
			}
		}
		rows = append(rows, row)
	}
	d.answer(c, http.StatusOK, object{"jobs": rows})
}

// ready returns the jobs that can be handed out to an agent.
func (d *jobsDouble) ready(a *doubleAgent) (list []*doubleJob) {
	for _, j := range d.jobs {
		its := j.agent == a || d.has("hands out the jobs of all agents") && j.agent.of == a.of
		if its && j.status == "PENDING" && (!j.dispatched || d.has("hands out jobs again")) && j.agent.endpoint == "" {
			list = append(list, j)
		}
	}
	return list
}

func (d *jobsDouble) report(c *jobsCall) {
	d.mustPrincipal(c)
	a := d.ownAgent(c, c.id)
	d.read(c)
	j := d.jobs[d.checkResult(c.body)]
	if (j == nil || j.agent != a) && !(j != nil && d.has("takes results of every agent")) {
		refuse(http.StatusNotFound)
	}
	d.finish(c, j)
}

// checkResult checks the fields of a result, and returns its job_id.
func (d *jobsDouble) checkResult(body object) string {
	if _, given := body["job_id"]; !given {
		invalid("body", "job_id")
	}
	id := d.uuid(body, "job_id")
	status := d.mustText(body, "status", 1, 100, "body")
	if !slices.Contains([]string{"SUCCESS", "FAILURE", "PENDING"}, status) && !d.has("takes every status") {
		invalid("body", "status")
	}
	d.data(body, "output_data")
	d.amount(body, "execution_cost", "body")
	return id
}

// finish ends a job with a result.
func (d *jobsDouble) finish(c *jobsCall, j *doubleJob) {
	agent, given := d.text(c.body, "agent_id", 1, 100, "body")
	if given && agent != j.agent.id && !d.has("takes results of every agent") {
		invalid("body", "agent_id")
	}
	if c.body["status"] == "PENDING" && !d.has("takes PENDING as an end") {
		d.answer(c, http.StatusOK, object{"status": "ok"})
		return
	}
	form := formWithout(c.body, "timestamp_utc")
	if j.status != "PENDING" && (j.ended != form || d.has("refuses repeated results")) {
		refuse(http.StatusConflict)
	}
	if j.status == "PENDING" {
		d.pause("ends jobs twice")
		d.end(j, c.body, form)
	}
	d.answer(c, http.StatusOK, object{"status": "ok"})
}

func (d *jobsDouble) callback(c *jobsCall) {
	j := d.callbacks[c.id]
	if j == nil {
		refuse(http.StatusNotFound)
	}
	d.read(c)
	if id := d.checkResult(c.body); id != j.id {
		if !d.has("takes callbacks for every job") || d.jobs[id] == nil {
			invalid("body", "job_id")
		}
		j = d.jobs[id]
	}
	d.finish(c, j)
}

// end pays for a job, and changes the score of its agent.
func (d *jobsDouble) end(j *doubleJob, result object, form string) {
	status, _ := result["status"].(string)
	if status != "FAILURE" || d.has("takes every result as a success") {
		status = "SUCCESS"
	}
	price := j.price
	if d.has("pays the price of today") {
		price = max(j.agent.prices[j.request["skill_name"].(string)], 0)
	}
	cost, given := d.amount(result, "execution_cost", "body")
	if !given || cost > price && !d.has("pays every cost") {
		cost = price
	}
	if status == "FAILURE" && !d.has("keeps the cost of failures") {
		cost = 0
	}
	cost = min(cost, j.budget)
	j.status, j.ended = status, form
	j.result = object{"job_id": j.id, "agent_id": j.agent.id, "status": status, "output_data": result["output_data"],
		"execution_cost": d.credit(cost), "execution_time_ms": result["execution_time_ms"],
		"error_message": result["error_message"], "error_code": result["error_code"],
		"timestamp_utc": milliseconds(time.Now())}
	if d.has("hides error messages") {
		j.result["error_message"] = nil
	}
	if cost > 0 {
		j.settled = d.move(&doubleRecord{id: newUUID(), from: "@escrow", to: j.payee.id, amount: cost, job: j.id,
			kind: "settle", by: j.hirer})
	}
	if rest := j.budget - cost; rest > 0 {
		d.move(&doubleRecord{id: newUUID(), from: "@escrow", to: j.payer.id, amount: rest, job: j.id, kind: "refund"})
	}
	d.judge(j, cost)
	if j.callback != "" && !d.has("tells hirers nothing") {
		d.work.Go(func() { d.post(j.callback, j.id, encode(j.result)) })
	}
	d.tell()
}

// judge changes the score of the agent of a job that has ended.
func (d *jobsDouble) judge(j *doubleJob, cost int64) {
	a := j.agent
	switch {
	case a.of == j.hirer && !d.has("counts jobs within a principal"),
		!j.dispatched && !d.has("counts undispatched jobs"),
		j.status == "SUCCESS" && cost == 0 && !d.has("counts unpaid jobs"),
		j.hirer.counted[a] == 20 && !d.has("counts every job"):
		return
	}
	j.hirer.counted[a]++
	c := int64(50_000_000)
	if j.boss != nil && !d.has("ignores who hires") {
		c = j.boss.score
	}
	switch {
	case j.status == "SUCCESS":
		a.successes++
		a.score += (2*c + 50) / 100
	case d.has("takes 3 for a failure"):
		a.failures++
		a.score -= 3_000_000
	default:
		a.failures++
		a.score -= 4_500_000
	}
	if !d.has("goes below 0") {
		a.score = max(0, min(a.score, 100_000_000))
	}
}
