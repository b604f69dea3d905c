package jobs

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// The steps of checks about jobs, and about what they do to balances and scores.

// job is a job that the registry has taken.
type job struct {
	id     string
	hirer  *principal
	agent  *jobAgent
	body   kit.Message
	answer kit.Answer // to its POST
}

// request returns the body of a good job for an agent. The oldest account of the hirer pays.
func request(hirer *principal, a *jobAgent, changes ...func(kit.Message)) kit.Message {
	body := kit.Message{"job_id": newUUID(), "orchestrator_id": hirer.owner, "skill_name": a.skill,
		"input_data": map[string]any{"text": "hello"}, "budget": number(usualBudget), "currency": "chorus_credits_v1",
		"callback_url": "", "timestamp_utc": "2026-02-11T14:15:09Z"}
	if mustMicros(a.price) > mustMicros(usualBudget) || mustMicros(a.price) < mustMicros("0.01") {
		body["budget"] = number(a.price)
	}
	kit.Combine(changes...)(body)
	return body
}

// hire asks for a job without waiting for its end. The registry must take it.
func (h *jobsProbe) hire(hirer *principal, a *jobAgent, changes ...func(kit.Message)) *job {
	return h.hired(hirer, a, request(hirer, a, changes...))
}

// hired is hire with this body.
func (h *jobsProbe) hired(hirer *principal, a *jobAgent, body kit.Message) *job {
	return h.pending(hirer, a, body, h.Write(hirer.key, a.path()+"?wait=0", body))
}

// pending returns the job that the answer to its POST is about. The job must not have ended.
func (h *jobsProbe) pending(hirer *principal, a *jobAgent, body kit.Message, got kit.Answer) *job {
	h.hires++
	j := &job{hirer: hirer, agent: a, body: body, answer: got}
	j.id = h.wantResult(h.wantStatus(got, http.StatusAccepted), "PENDING").Text("job_id")
	return j
}

// wantResult ends the check unless a is a JobResult with this status.
func (h *jobsProbe) wantResult(a kit.Answer, status string) kit.Answer {
	h.Want(a.Text("status") == status && uuidForm.MatchString(a.Text("job_id")), a, `a JobResult with "status":%q`, status)
	return a
}

// wantFailure ends the check unless a is the answer to a hirer whose job has failed with this code.
func (h *jobsProbe) wantFailure(a kit.Answer, code string) {
	h.wantStatus(a, http.StatusOK)
	h.wantResult(a, "FAILURE")
	h.Want(a.Text("error_code") == code, a, `"error_code":%q`, code)
}

// at returns how the registry shows a job to its hirer.
func (h *jobsProbe) at(j *job) kit.Answer {
	return h.wantStatus(h.Read(j.hirer.key, "/jobs/"+j.id), http.StatusOK)
}

// wantEnded waits until the job has ended with this status, and returns its result.
func (h *jobsProbe) wantEnded(j *job, status string) kit.Answer {
	for deadline := time.Now().Add(kit.PromptLimit); ; h.Sleep(time.Second / 10) {
		a := h.at(j)
		if a.Text("status") == status || a.Text("status") != "PENDING" || time.Now().After(deadline) {
			return h.wantResult(a, status)
		}
	}
}

// handedOut returns the jobs that the registry hands out to the agent now.
func (h *jobsProbe) handedOut(a *jobAgent, wait int) (rows []kit.Answer) {
	got := h.wantStatus(h.Read(a.key, fmt.Sprintf("/agents/%s/jobs?wait=%d", a.id, wait)), http.StatusOK)
	list, ok := got.List("jobs")
	h.Want(ok, got, `{"jobs":[…]}`)
	for _, raw := range list {
		rows = append(rows, kit.ParseRow(raw))
	}
	return rows
}

// dispatch fetches jobs as the agent, until it has these. All jobs that the agent gets must be among them.
func (h *jobsProbe) dispatch(a *jobAgent, jobs ...*job) {
	for left := len(jobs); left > 0; {
		rows := h.handedOut(a, 5)
		h.Expect("the jobs of the agent are handed out, each once")
		if len(rows) == 0 || len(rows) > left {
			h.Failf("%d jobs, and %d were left", len(rows), left)
		}
		for _, row := range rows {
			h.Want(slices.ContainsFunc(jobs, func(j *job) bool { return j.id == row.Text("job_id") }), row,
				"a job of this agent")
		}
		left -= len(rows)
	}
}

// successOf and failureOf return results of a job.
func successOf(j *job, changes ...func(kit.Message)) kit.Message {
	body := kit.Message{"job_id": j.id, "agent_id": j.agent.id, "status": "SUCCESS",
		"output_data": map[string]any{"words": 1}, "execution_cost": number(j.agent.price), "execution_time_ms": 1250,
		"error_message": nil, "timestamp_utc": "2026-02-11T14:15:10Z"}
	kit.Combine(changes...)(body)
	return body
}

func failureOf(j *job, changes ...func(kit.Message)) kit.Message {
	return successOf(j, kit.Set("status", "FAILURE"), kit.Set("output_data", map[string]any{}), kit.Set("execution_cost",
		0),
		kit.Set("error_message", "It failed."), kit.Combine(changes...))
}

// report reports a result as the agent.
func (h *jobsProbe) report(j *job, result kit.Message) kit.Answer {
	return h.Write(j.agent.key, "/agents/"+j.agent.id+"/results", result)
}

// reported does the same as report, for a result that the registry must take.
func (h *jobsProbe) reported(j *job, result kit.Message) {
	a := h.wantStatus(h.report(j, result), http.StatusOK)
	h.Want(a.Text("status") == "ok", a, `{"status":"ok"}`)
}

// finish hands out a job and reports this result. It returns the job as its hirer sees it.
func (h *jobsProbe) finish(j *job, result kit.Message) kit.Answer {
	h.dispatch(j.agent, j)
	h.reported(j, result)
	return h.wantResult(h.at(j), result["status"].(string))
}

// balance returns the balance of an account of p.
func (h *jobsProbe) balance(p *principal, owner string) int64 {
	a := h.wantStatus(h.Read(p.key, "/accounts/"+owner), http.StatusOK)
	h.Want(a.Text("owner_id") == owner, a, `"owner_id":%q`, owner)
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
		l.h.Expect("the balance of %s changes by %s, from %s to %s", l.owners[i], text, credits(l.balance[i]), credits(want))
		if got != want {
			l.h.Failf("the balance is %s, a change by %s", credits(got), credits(got-l.balance[i]))
		}
	}
}

// audit returns the records that p sees with these parameters, such as ?job_id=….
func (h *jobsProbe) audit(key, query string) []kit.Answer {
	return h.records(h.Read(key, "/audit"+query))
}

// records returns the records of an answer to GET /audit.
func (h *jobsProbe) records(a kit.Answer) (rows []kit.Answer) {
	h.wantStatus(a, http.StatusOK)
	list, ok := a.List("transactions")
	h.Want(ok && a.Number("total") >= float64(len(list)), a, `{"transactions":[…],"total":…}`)
	for _, raw := range list {
		rows = append(rows, kit.ParseRow(raw))
	}
	return rows
}

// movements returns records as texts such as "hold acme @escrow 0.15". Records of nothing are left out.
func (h *jobsProbe) movements(rows []kit.Answer) (list []string) {
	for _, row := range rows {
		if n := h.amount(row, "amount"); n != 0 {
			list = append(list, fmt.Sprintf("%s %s %s %s", row.Text("kind"), row.Text("from_owner"), row.Text("to_owner"),
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
	h.Expect("the records of the job in /audit are %q", want)
	if !slices.Equal(got, want) {
		h.Failf("%q", got)
	}
}

// score returns the score of an agent in millionths, and how many jobs have counted.
func (h *jobsProbe) score(a *jobAgent) (score int64, stats kit.Answer) {
	got := h.wantStatus(h.Read("", "/reputation/"+a.id), http.StatusOK)
	score, ok := micros(string(got.Members["score"]))
	h.Want(ok && got.Text("agent_id") == a.id && got.Members["stats"] != nil, got,
		`{"agent_id":%q,"score":…,"stats":{…}}`, a.id)
	return score, got.Object("stats")
}

// wantScore ends the check unless the agent has this score, and so many jobs have counted.
func (h *jobsProbe) wantScore(a *jobAgent, want string, successes, failures int) {
	score, stats := h.score(a)
	h.Expect("the score %s, with %d successes and %d failures", want, successes, failures)
	if score != mustMicros(want) || stats.Number("successes") != float64(successes) ||
		stats.Number("failures") != float64(failures) || stats.Number("total") != float64(successes+failures) {
		h.Failf("the score %s, with %v successes and %v failures of %v", credits(score), stats.Number("successes"),
			stats.Number("failures"), stats.Number("total"))
	}
}
