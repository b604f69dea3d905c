package jobs

import (
	"fmt"
	"net/http"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// jobsPullChecks test agents that fetch their jobs.
var jobsPullChecks = []jobsCheck{
	{Number: "jobs.pull.success", Title: "GET hands out a job as it was requested, and its result ends it",
		Cites: `JOBS "Jobs"; J-22`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			rows := h.handedOut(a, 5)
			h.Expect("one job")
			if len(rows) != 1 {
				h.Failf("%s", kit.DescribeRows(rows))
			}
			for _, name := range []string{"job_id", "orchestrator_id", "skill_name", "input_data", "currency"} {
				h.Want(kit.SameJSON(rows[0].Members[name], j.body[name]), rows[0], "the %s of the request", name)
			}
			h.wantAmount(rows[0], "budget", mustMicros(usualBudget))
			h.reported(j, successOf(j))
			got := h.wantResult(h.at(j), "SUCCESS")
			h.Want(got.Text("job_id") == j.id && got.Text("agent_id") == a.id && got.Number("execution_time_ms") == 1250 &&
				kit.SameJSON(got.Members["output_data"], map[string]any{"words": 1}) &&
				string(got.Members["error_message"]) == "null", got, "the JobResult that the agent has reported")
			h.wantAmount(got, "execution_cost", mustMicros(usualPrice))
			h.Want(jobsTimeForm.MatchString(got.Text("timestamp_utc")), got, "timestamp_utc such as 2026-02-11T14:15:09.000Z")
		}},
	{Number: "jobs.pull.failure", Title: "A result FAILURE ends the job, and the hirer sees its error",
		Cites: `JOBS "Jobs"; J-20, J-21, J-22`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			before := h.watch(hirer, a.principal)
			j := h.hire(hirer, a)
			h.finish(j, failureOf(j, kit.Set("error_code", "EXECUTION_ERROR")))
			got := h.at(j)
			h.wantFailure(got, "EXECUTION_ERROR")
			h.Want(got.Text("error_message") == "It failed.", got, "the error_message of the agent")
			before.wantMoved("0", "0")
		}},
	{Number: "jobs.pull.once", Title: "A job is handed out once, and not again within 300 s",
		Cites: `JOBS "Jobs"`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			first := h.hire(hirer, a)
			h.dispatch(a, first)
			second := h.hire(hirer, a)
			h.dispatch(a, second)
			for range 2 {
				rows := h.handedOut(a, 0)
				h.Expect("no job")
				if len(rows) != 0 {
					h.Failf("%s", kit.DescribeRows(rows))
				}
			}
		}},
	{Number: "jobs.pull.wait", Title: "GET waits for a job, for as long as wait says, from 0 to 60",
		Cites: `JOBS "The HTTP interface"`, Wait: 3 * time.Second, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			target := fmt.Sprintf("/agents/%s/jobs", a.id)
			for seconds, query := range []string{"?wait=0", "?wait=1"} {
				got := h.wantStatus(h.Read(a.key, target+query), http.StatusOK)
				list, ok := got.List("jobs")
				least := time.Duration(seconds)*time.Second - 200*time.Millisecond
				h.Want(ok && len(list) == 0 && got.Took >= least && got.Took < least+kit.PromptLimit, got,
					"no jobs, after %d s and not after %v", seconds, got.Took.Round(time.Second/10))
			}
			for _, wait := range []string{"61", "-1", "x", "", "1.5"} {
				h.wantInvalid(h.Read(a.key, target+"?wait="+wait))
			}
			answered := make(chan kit.Answer, 1)
			h.Tasks.Go(func() { answered <- h.Read(a.key, target+"?wait=20") })
			h.Sleep(time.Second)
			j := h.hire(hirer, a)
			got := h.wantStatus(<-answered, http.StatusOK)
			list, _ := got.List("jobs")
			h.Want(len(list) == 1 && kit.ParseRow(list[0]).Text("job_id") == j.id && got.Took > 800*time.Millisecond &&
				got.Took < time.Second+kit.PromptLimit, got, "the job at once, and not after %v", got.Took.Round(time.Second/10))
		}},
	{Number: "jobs.pull.own", Title: "An agent gets its own jobs only", Cites: `JOBS "Jobs"`, Run: func(h *jobsProbe) {
		hirer, a := h.pair()
		second := h.agentAt(a.principal, a.skill, a.price)
		mine, other := h.hire(hirer, a), h.hire(hirer, second)
		h.dispatch(second, other)
		h.dispatch(a, mine)
	}},
}

// jobsResultChecks test results.
var jobsResultChecks = []jobsCheck{
	{Number: "jobs.result.repeat", Title: "A repeat of the result that ended a job is 200, and any other result is 409",
		Cites: `JOBS "Jobs"; J-7`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			before := h.watch(hirer, a.principal)
			j := h.hire(hirer, a)
			result := successOf(j)
			h.finish(j, result)
			h.reported(j, result)
			h.reported(j, successOf(j, kit.Set("timestamp_utc", "2026-02-11T14:15:11Z")))
			for _, other := range []kit.Message{failureOf(j), successOf(j, kit.Set("execution_cost", number("0.05"))),
				successOf(j, kit.Set("output_data", map[string]any{"words": 2}))} {
				h.wantTaken(h.report(j, other))
			}
			h.reported(j, result)
			h.wantResult(h.at(j), "SUCCESS")
			before.wantMoved("-0.1", "0.1")
			h.wantScore(a, "51", 1, 0)
			j = h.hire(hirer, a)
			h.finish(j, failureOf(j))
			h.reported(j, failureOf(j))
			h.wantTaken(h.report(j, successOf(j)))
			before.wantMoved("-0.1", "0.1")
		}},
	{Number: "jobs.result.race", Title: "Of SUCCESS and FAILURE reported at once, one ends the job",
		Cites: `JOBS "Jobs"; J-7`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			for range 4 {
				before := h.watch(hirer, a.principal)
				j := h.hire(hirer, a)
				h.dispatch(a, j)
				answers := h.InParallel(8, func(i int) kit.Answer {
					if i%2 == 0 {
						return h.report(j, successOf(j))
					}
					return h.report(j, failureOf(j))
				})
				got := h.at(j)
				ended, moved, paid := 1, "0", "0"
				records := []string{"hold " + hirer.owner + " @escrow 0.15"}
				if got.Text("status") == "SUCCESS" {
					ended, moved, paid = 0, "-0.1", "0.1"
					records = append(records, "settle @escrow "+a.owner+" 0.1", "refund @escrow "+hirer.owner+" 0.05")
				} else {
					h.wantResult(got, "FAILURE")
					records = append(records, "refund @escrow "+hirer.owner+" 0.15")
				}
				for i, one := range answers {
					if i%2 == ended {
						h.wantStatus(one, http.StatusOK)
					} else {
						h.wantTaken(one)
					}
				}
				before.wantMoved(moved, paid)
				h.wantRecords(j, records...)
			}
		}},
	{Number: "jobs.result.fields", Title: "A result with bad fields is 422 and ends nothing",
		Cites: `JOBS "The HTTP interface"; JOBS "Jobs"; J-11`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			h.dispatch(a, j)
			for _, change := range []func(kit.Message){
				kit.Without("status"), kit.Set("status", "DONE"), kit.Set("status", "success"), kit.Set("status", 1),
				kit.Without("job_id"),
				kit.Set("job_id", "x"), kit.Set("job_id", 1), kit.Set("agent_id", newUUID()), kit.Set("agent_id", "x"),
				kit.Set("agent_id", 1),
			} {
				h.wantInvalid(h.report(j, successOf(j, change)))
			}
			for _, value := range notData() {
				h.wantInvalid(h.report(j, successOf(j, kit.Set("output_data", value))))
			}
			for _, text := range badAmounts() {
				h.wantInvalid(h.Write(a.key, "/agents/"+a.id+"/results",
					rawNumber(successOf(j, kit.Without("execution_cost")), "execution_cost", text)))
			}
			h.wantResult(h.at(j), "PENDING")
			result := successOf(j, kit.Set("output_data", dataOf(largest)))
			h.reported(j, result)
			got := h.wantResult(h.at(j), "SUCCESS")
			h.Want(kit.SameJSON(got.Members["output_data"], result["output_data"]), got, "the output_data of 49,152 bytes")
		}},
	{Number: "jobs.result.pending", Title: "A result PENDING does not end a job", Cites: `JOBS "Jobs"`,
		Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			h.dispatch(a, j)
			got := h.report(j, successOf(j, kit.Set("status", "PENDING")))
			h.Want(got.Status == http.StatusOK || got.Status == http.StatusUnprocessableEntity, got, "status 200 or 422")
			h.wantResult(h.at(j), "PENDING")
			h.reported(j, successOf(j))
			h.wantResult(h.at(j), "SUCCESS")
		}},
	{Number: "jobs.result.foreign", Title: "An agent cannot report for the job of another agent, as for an unknown job",
		Cites: `JOBS "Jobs"; GATEWAYS "Keys of callers"; G-11, J-29`, Run: func(h *jobsProbe) {
			hirer, p, stranger := h.three()
			a, other := h.agent(p), h.agent(stranger)
			j := h.hire(hirer, a)
			h.dispatch(a, j)
			foreign := h.Write(stranger.key, "/agents/"+other.id+"/results", successOf(j, kit.Set("agent_id", other.id)))
			unknown := h.Write(stranger.key, "/agents/"+other.id+"/results",
				successOf(j, kit.Set("agent_id", other.id), kit.Set("job_id", newUUID())))
			for _, got := range []kit.Answer{foreign, unknown} {
				h.Want(got.Status == http.StatusForbidden || got.Status == http.StatusNotFound, got, "refused: status 403 or 404")
			}
			h.Want(string(foreign.Body) == string(unknown.Body), foreign, "the same answer as for an unknown job: %s", unknown)
			h.wantResult(h.at(j), "PENDING")
		}},
}
