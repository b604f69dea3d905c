package conformance

import (
	"fmt"
	"net/http"
	"slices"
	"time"
)

// The steps of checks about jobs, and about what they do to balances and scores.

// job is a job that the registry has taken.
type job struct {
	id     string
	hirer  *principal
	agent  *jobAgent
	body   message
	answer answer // to its POST
}

// request returns the body of a good job for an agent. The oldest account of the hirer pays.
func request(hirer *principal, a *jobAgent, changes ...func(message)) message {
	body := message{"job_id": newUUID(), "orchestrator_id": hirer.owner, "skill_name": a.skill,
		"input_data": map[string]any{"text": "hello"}, "budget": number(usualBudget), "currency": "chorus_credits_v1",
		"callback_url": "", "timestamp_utc": "2026-02-11T14:15:09Z"}
	if mustMicros(a.price) > mustMicros(usualBudget) || mustMicros(a.price) < mustMicros("0.01") {
		body["budget"] = number(a.price)
	}
	combine(changes...)(body)
	return body
}

// hire asks for a job without waiting for its end. The registry must take it.
func (h *jobsProbe) hire(hirer *principal, a *jobAgent, changes ...func(message)) *job {
	return h.hired(hirer, a, request(hirer, a, changes...))
}

// hired is hire with this body.
func (h *jobsProbe) hired(hirer *principal, a *jobAgent, body message) *job {
	return h.pending(hirer, a, body, h.write(hirer.key, a.path()+"?wait=0", body))
}

// pending returns the job that the answer to its POST is about. The job must not have ended.
func (h *jobsProbe) pending(hirer *principal, a *jobAgent, body message, got answer) *job {
	h.hires++
	j := &job{hirer: hirer, agent: a, body: body, answer: got}
	j.id = h.wantResult(h.wantStatus(got, http.StatusAccepted), "PENDING").text("job_id")
	return j
}

// wantResult ends the check unless a is a JobResult with this status.
func (h *jobsProbe) wantResult(a answer, status string) answer {
	h.want(a.text("status") == status && uuidForm.MatchString(a.text("job_id")), a, `a JobResult with "status":%q`, status)
	return a
}

// wantFailure ends the check unless a is the answer to a hirer whose job has failed with this code.
func (h *jobsProbe) wantFailure(a answer, code string) {
	h.wantStatus(a, http.StatusOK)
	h.wantResult(a, "FAILURE")
	h.want(a.text("error_code") == code, a, `"error_code":%q`, code)
}

// at returns how the registry shows a job to its hirer.
func (h *jobsProbe) at(j *job) answer {
	return h.wantStatus(h.read(j.hirer.key, "/jobs/"+j.id), http.StatusOK)
}

// wantEnded waits until the job has ended with this status, and returns its result.
func (h *jobsProbe) wantEnded(j *job, status string) answer {
	for deadline := time.Now().Add(promptLimit); ; h.sleep(second / 10) {
		a := h.at(j)
		if a.text("status") == status || a.text("status") != "PENDING" || time.Now().After(deadline) {
			return h.wantResult(a, status)
		}
	}
}

// handedOut returns the jobs that the registry hands out to the agent now.
func (h *jobsProbe) handedOut(a *jobAgent, wait int) (rows []answer) {
	got := h.wantStatus(h.read(a.key, fmt.Sprintf("/agents/%s/jobs?wait=%d", a.id, wait)), http.StatusOK)
	list, ok := got.list("jobs")
	h.want(ok, got, `{"jobs":[…]}`)
	for _, raw := range list {
		rows = append(rows, parseRow(raw))
	}
	return rows
}

// dispatch fetches jobs as the agent, until it has these. All jobs that the agent gets must be among them.
func (h *jobsProbe) dispatch(a *jobAgent, jobs ...*job) {
	for left := len(jobs); left > 0; {
		rows := h.handedOut(a, 5)
		h.expect("the jobs of the agent are handed out, each once")
		if len(rows) == 0 || len(rows) > left {
			h.failf("%d jobs, and %d were left", len(rows), left)
		}
		for _, row := range rows {
			h.want(slices.ContainsFunc(jobs, func(j *job) bool { return j.id == row.text("job_id") }), row,
				"a job of this agent")
		}
		left -= len(rows)
	}
}

// successOf and failureOf return results of a job.
func successOf(j *job, changes ...func(message)) message {
	body := message{"job_id": j.id, "agent_id": j.agent.id, "status": "SUCCESS",
		"output_data": map[string]any{"words": 1}, "execution_cost": number(j.agent.price), "execution_time_ms": 1250,
		"error_message": nil, "timestamp_utc": "2026-02-11T14:15:10Z"}
	combine(changes...)(body)
	return body
}

func failureOf(j *job, changes ...func(message)) message {
	return successOf(j, set("status", "FAILURE"), set("output_data", map[string]any{}), set("execution_cost", 0),
		set("error_message", "It failed."), combine(changes...))
}

// report reports a result as the agent.
func (h *jobsProbe) report(j *job, result message) answer {
	return h.write(j.agent.key, "/agents/"+j.agent.id+"/results", result)
}

// reported is report for a result that the registry must take.
func (h *jobsProbe) reported(j *job, result message) {
	a := h.wantStatus(h.report(j, result), http.StatusOK)
	h.want(a.text("status") == "ok", a, `{"status":"ok"}`)
}

// finish hands out a job and reports this result. It returns the job as its hirer sees it.
func (h *jobsProbe) finish(j *job, result message) answer {
	h.dispatch(j.agent, j)
	h.reported(j, result)
	return h.wantResult(h.at(j), result["status"].(string))
}

// balance returns the balance of an account of p.
func (h *jobsProbe) balance(p *principal, owner string) int64 {
	a := h.wantStatus(h.read(p.key, "/accounts/"+owner), http.StatusOK)
	h.want(a.text("owner_id") == owner, a, `"owner_id":%q`, owner)
	return h.amount(a, "balance")
}

// ledger remembers balances, to see what a check does to them.
type ledger struct {
	h       *jobsProbe
	of      []*principal
	owners  []string
	balance []int64
}

// watch remembers the balance of the oldest account of each principal.
func (h *jobsProbe) watch(list ...*principal) *ledger {
	l := &ledger{h: h}
	for _, p := range list {
		l.add(p, p.owner)
	}
	return l
}

// add also remembers the balance of this account.
func (l *ledger) add(p *principal, owner string) *ledger {
	l.of, l.owners, l.balance = append(l.of, p), append(l.owners, owner), append(l.balance, l.h.balance(p, owner))
	return l
}

// wantMoved ends the check unless each balance has changed by this amount since the ledger remembered it. The amounts
// are decimal numbers.
func (l *ledger) wantMoved(amounts ...string) {
	for i, text := range amounts {
		got, want := l.h.balance(l.of[i], l.owners[i]), l.balance[i]+mustMicros(text)
		l.h.expect("the balance of %s changes by %s, from %s to %s", l.owners[i], text, credits(l.balance[i]), credits(want))
		if got != want {
			l.h.failf("the balance is %s, a change by %s", credits(got), credits(got-l.balance[i]))
		}
	}
}

// audit returns the records that p sees with these parameters, such as ?job_id=….
func (h *jobsProbe) audit(key, query string) []answer {
	return h.records(h.read(key, "/audit"+query))
}

// records returns the records of an answer to GET /audit.
func (h *jobsProbe) records(a answer) (rows []answer) {
	h.wantStatus(a, http.StatusOK)
	list, ok := a.list("transactions")
	h.want(ok && a.number("total") >= float64(len(list)), a, `{"transactions":[…],"total":…}`)
	for _, raw := range list {
		rows = append(rows, parseRow(raw))
	}
	return rows
}

// movements returns records as texts such as "hold acme @escrow 0.15". Records of nothing are left out.
func (h *jobsProbe) movements(rows []answer) (list []string) {
	for _, row := range rows {
		if n := h.amount(row, "amount"); n != 0 {
			list = append(list, fmt.Sprintf("%s %s %s %s", row.text("kind"), row.text("from_owner"), row.text("to_owner"),
				credits(n)))
		}
	}
	return list
}

// wantRecords ends the check unless the hirer's audit has exactly these records of the job, in any order.
func (h *jobsProbe) wantRecords(j *job, want ...string) {
	got := h.movements(h.audit(j.hirer.key, "?job_id="+j.id))
	slices.Sort(got)
	slices.Sort(want)
	h.expect("the records of the job in /audit are %q", want)
	if !slices.Equal(got, want) {
		h.failf("%q", got)
	}
}

// score returns the score of an agent in millionths, and how many jobs have counted.
func (h *jobsProbe) score(a *jobAgent) (score int64, stats answer) {
	got := h.wantStatus(h.read("", "/reputation/"+a.id), http.StatusOK)
	score, ok := micros(string(got.members["score"]))
	h.want(ok && got.text("agent_id") == a.id && got.members["stats"] != nil, got,
		`{"agent_id":%q,"score":…,"stats":{…}}`, a.id)
	return score, got.object("stats")
}

// wantScore ends the check unless the agent has this score, and so many jobs have counted.
func (h *jobsProbe) wantScore(a *jobAgent, want string, successes, failures int) {
	score, stats := h.score(a)
	h.expect("the score %s, with %d successes and %d failures", want, successes, failures)
	if score != mustMicros(want) || stats.number("successes") != float64(successes) ||
		stats.number("failures") != float64(failures) || stats.number("total") != float64(successes+failures) {
		h.failf("the score %s, with %v successes and %v failures of %v", credits(score), stats.number("successes"),
			stats.number("failures"), stats.number("total"))
	}
}
