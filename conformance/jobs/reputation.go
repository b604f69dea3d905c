package jobs

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// penny is the price of an agent that is hired often.
const penny = "0.001"

// work lets a hirer hire an agent n times. Each job succeeds.
func (h *jobsProbe) work(hirer *principal, a *jobAgent, n int, changes ...func(kit.Message)) {
	h.workAs(hirer, a, n, func(j *job) kit.Message { return successOf(j) }, changes...)
}

// workAs is work for jobs with this result.
func (h *jobsProbe) workAs(hirer *principal, a *jobAgent, n int, result func(*job) kit.Message,
	changes ...func(kit.Message)) {
	bodies := make([]kit.Message, n)
	for i := range bodies {
		bodies[i] = request(hirer, a, changes...)
	}
	jobs := make([]*job, n)
	for i, got := range h.severalAtOnce(n, func(i int) kit.Answer {
		return h.Write(hirer.key, a.path()+"?wait=0",
			bodies[i])
	}) {
		jobs[i] = h.pending(hirer, a, bodies[i], got)
	}
	h.dispatch(a, jobs...)
	for _, got := range h.severalAtOnce(n, func(i int) kit.Answer { return h.report(jobs[i], result(jobs[i])) }) {
		h.wantStatus(got, http.StatusOK)
	}
}

// severalAtOnce runs f for 0 to n-1, a few at the same time.
func (h *jobsProbe) severalAtOnce(n int, f func(i int) kit.Answer) (all []kit.Answer) {
	const together = 5
	for i := 0; i < n; i += together {
		all = append(all, h.InParallel(min(together, n-i), func(j int) kit.Answer { return f(i + j) })...)
	}
	return all
}

// jobsReputationChecks test the scores of agents.
var jobsReputationChecks = []jobsCheck{
	{Number: "jobs.reputation.new", Title: "A new agent has the score 50.0 and no jobs that count",
		Cites: `JOBS "Reputation"; J-1`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			h.wantScore(a, "50", 0, 0)
			got := h.Read("", "/reputation/"+a.id)
			h.Want(string(got.Members["score"]) == "50.0", got, `"score":50.0`)
			h.wantUnknown(h.Read("", "/reputation/"+unknownAgent))
		}},
	{Number: "jobs.reputation.values", Title: "A success of a hirer without an agent adds 1.0, and a failure takes 4.5",
		Cites: `JOBS "Reputation"; J-1`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			h.work(hirer, a, 1)
			h.wantScore(a, "51", 1, 0)
			got := h.Read("", "/reputation/"+a.id)
			h.Want(scoreForm.Match(got.Members["score"]), got, "a score with one or two decimals")
			other := h.agent(a.principal)
			h.workAs(hirer, other, 1, func(j *job) kit.Message { return failureOf(j) })
			h.wantScore(other, "45.5", 0, 1)
			h.work(hirer, other, 1)
			h.wantScore(other, "46.5", 1, 1)
			h.work(hirer, a, 1, kit.Set("orchestrator_id", other.id)) // not an agent of the hirer
			h.wantScore(a, "52", 2, 0)
		}},
	{Number: "jobs.reputation.hirer", Title: "A success adds 2.0 × c / 100, where c is the score of the hirer's agent",
		Cites: `JOBS "Reputation"; J-1`, Wait: time.Second, Run: func(h *jobsProbe) {
			first, second, p := h.three()
			senior := h.agentAt(p, kit.NewName(), penny)
			h.work(first, senior, 20)
			h.work(second, senior, 10)
			h.wantScore(senior, "80", 30, 0)
			a := h.agentAt(first, kit.NewName(), penny)
			h.work(p, a, 1, kit.Set("orchestrator_id", senior.id))
			h.wantScore(a, "51.6", 1, 0)
			got := h.Read("", "/reputation/"+a.id)
			h.Want(string(got.Members["score"]) == "51.6", got, `"score":51.6`)
			h.work(second, senior, 1, kit.Set("orchestrator_id", h.agent(second).id)) // its score is 50
			h.wantScore(senior, "81", 31, 0)
		}},
	{Number: "jobs.reputation.floor", Title: "The score does not fall below 0", Cites: `JOBS "Reputation"; J-1`,
		Wait: time.Second, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			failed := func(j *job) kit.Message { return failureOf(j) }
			h.workAs(hirer, a, 11, failed)
			h.wantScore(a, "0.5", 0, 11)
			h.workAs(hirer, a, 1, failed)
			h.wantScore(a, "0", 0, 12)
			h.work(hirer, a, 1)
			h.wantScore(a, "1", 1, 12)
		}},
	{Number: "jobs.reputation.cap", Title: "Only 20 jobs a day of one hirer and one agent count",
		Cites: `JOBS "Reputation"; J-17`, Wait: time.Second, Run: func(h *jobsProbe) {
			hirer, p, other := h.three()
			a := h.agentAt(p, kit.NewName(), penny)
			h.work(hirer, a, 20)
			h.wantScore(a, "70", 20, 0)
			before := h.watch(hirer, p)
			h.work(hirer, a, 1)
			h.workAs(hirer, a, 1, func(j *job) kit.Message { return failureOf(j) })
			h.wantScore(a, "70", 20, 0)
			before.wantMoved("-"+penny, penny)
			h.work(hirer, h.agentAt(p, kit.NewName(), penny), 1)
			h.work(other, a, 1)
			h.wantScore(a, "71", 21, 0)
		}},
	{Number: "jobs.reputation.self", Title: "A job within one principal does not count", Cites: `JOBS "Reputation"; J-15`,
		Run: func(h *jobsProbe) {
			p := h.one()
			a := h.agent(p, kit.Set("owner_id", h.account(p, 0)))
			before := h.watch(p)
			h.work(p, a, 2)
			before.wantMoved("-0.2")
			h.workAs(p, a, 1, func(j *job) kit.Message { return failureOf(j) })
			h.work(p, a, 1, kit.Set("orchestrator_id", h.agent(p).id))
			h.wantScore(a, "50", 0, 0)
		}},
	{Number: "jobs.reputation.unpaid", Title: "A success without a payment does not count",
		Cites: `JOBS "Reputation"; J-16`,
		Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			free := h.agentAt(a.principal, kit.NewName(), "0")
			h.work(hirer, free, 1)
			h.wantScore(free, "50", 0, 0)
			h.workAs(hirer, a, 1, func(j *job) kit.Message { return successOf(j, kit.Set("execution_cost", 0)) })
			h.wantScore(a, "50", 0, 0)
			h.workAs(hirer, a, 1, func(j *job) kit.Message {
				return successOf(j, kit.Set("execution_cost",
					number("0.000001")))
			})
			h.wantScore(a, "51", 1, 0)
		}},
	{Number: "jobs.reputation.undispatched", Title: "A result of a job that was never handed out does not count",
		Cites: `JOBS "Reputation"; J-16`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			for _, result := range []func(*job) kit.Message{func(j *job) kit.Message { return successOf(j) },
				func(j *job) kit.Message { return failureOf(j) }} {
				j := h.hire(hirer, a)
				h.reported(j, result(j))
				h.wantResult(h.at(j), result(j)["status"].(string))
				h.wantScore(a, "50", 0, 0)
			}
		}},
	{Number: "jobs.reputation.closed", Title: "Nobody can report an outcome: /reputation/{id}/success and /failure are 403",
		Cites: `JOBS "Reputation"`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			for _, key := range []string{"", hirer.key, a.key} {
				for _, outcome := range []string{"success", "failure"} {
					target := fmt.Sprintf("/reputation/%s/%s?job_id=%s&contractor_reputation=100", a.id, outcome, newUUID())
					h.wantForeign(h.Ask("", http.MethodPost, target, key, nil, nil))
					h.wantForeign(h.Write(key, strings.Replace(target, "?", "?x=1&", 1), kit.Message{}))
				}
			}
			h.wantScore(a, "50", 0, 0)
		}},
}
