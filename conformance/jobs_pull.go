package conformance

import (
	"fmt"
	"net/http"
	"time"
)

// jobsPullChecks test agents that fetch their jobs.
var jobsPullChecks = []jobsCheck{
	{number: "jobs.pull.success", title: "GET hands out a job as it was requested, and its result ends it",
		cites: `JOBS "Jobs"; J-22`, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			rows := h.handedOut(a, 5)
			h.expect("one job")
			if len(rows) != 1 {
				h.failf("%s", describeRows(rows))
			}
			for _, name := range []string{"job_id", "orchestrator_id", "skill_name", "input_data", "currency"} {
				h.want(sameJSON(rows[0].members[name], j.body[name]), rows[0], "the %s of the request", name)
			}
			h.wantAmount(rows[0], "budget", mustMicros(usualBudget))
			h.reported(j, successOf(j))
			got := h.wantResult(h.at(j), "SUCCESS")
			h.want(got.text("job_id") == j.id && got.text("agent_id") == a.id && got.number("execution_time_ms") == 1250 &&
				sameJSON(got.members["output_data"], map[string]any{"words": 1}) &&
				string(got.members["error_message"]) == "null", got, "the JobResult that the agent has reported")
			h.wantAmount(got, "execution_cost", mustMicros(usualPrice))
			h.want(jobsTimeForm.MatchString(got.text("timestamp_utc")), got, "timestamp_utc such as 2026-02-11T14:15:09.000Z")
		}},
	{number: "jobs.pull.failure", title: "A result FAILURE ends the job, and the hirer sees its error",
		cites: `JOBS "Jobs"; J-20, J-21, J-22`, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			before := h.watch(hirer, a.principal)
			j := h.hire(hirer, a)
			h.finish(j, failureOf(j, set("error_code", "EXECUTION_ERROR")))
			got := h.at(j)
			h.wantFailure(got, "EXECUTION_ERROR")
			h.want(got.text("error_message") == "It failed.", got, "the error_message of the agent")
			before.wantMoved("0", "0")
		}},
	{number: "jobs.pull.once", title: "A job is handed out once, and not again within 300 s",
		cites: `JOBS "Jobs"`, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			first := h.hire(hirer, a)
			h.dispatch(a, first)
			second := h.hire(hirer, a)
			h.dispatch(a, second)
			for range 2 {
				rows := h.handedOut(a, 0)
				h.expect("no job")
				if len(rows) != 0 {
					h.failf("%s", describeRows(rows))
				}
			}
		}},
	{number: "jobs.pull.wait", title: "GET waits for a job, for as long as wait says, from 0 to 60",
		cites: `JOBS "The HTTP interface"`, wait: 3 * time.Second, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			target := fmt.Sprintf("/agents/%s/jobs", a.id)
			for seconds, query := range []string{"?wait=0", "?wait=1"} {
				got := h.wantStatus(h.read(a.key, target+query), http.StatusOK)
				list, ok := got.list("jobs")
				least := time.Duration(seconds)*time.Second - 200*time.Millisecond
				h.want(ok && len(list) == 0 && got.took >= least && got.took < least+promptLimit, got,
					"no jobs, after %d s and not after %v", seconds, got.took.Round(second/10))
			}
			for _, wait := range []string{"61", "-1", "x", "", "1.5"} {
				h.wantInvalid(h.read(a.key, target+"?wait="+wait))
			}
			answered := make(chan answer, 1)
			h.tasks.Go(func() { answered <- h.read(a.key, target+"?wait=20") })
			h.sleep(time.Second)
			j := h.hire(hirer, a)
			got := h.wantStatus(<-answered, http.StatusOK)
			list, _ := got.list("jobs")
			h.want(len(list) == 1 && parseRow(list[0]).text("job_id") == j.id && got.took > 800*time.Millisecond &&
				got.took < time.Second+promptLimit, got, "the job at once, and not after %v", got.took.Round(second/10))
		}},
	{number: "jobs.pull.own", title: "An agent gets its own jobs only", cites: `JOBS "Jobs"`, run: func(h *jobsProbe) {
		hirer, a := h.pair()
		second := h.agentAt(a.principal, a.skill, a.price)
		mine, other := h.hire(hirer, a), h.hire(hirer, second)
		h.dispatch(second, other)
		h.dispatch(a, mine)
	}},
}

// jobsResultChecks test results.
var jobsResultChecks = []jobsCheck{
	{number: "jobs.result.repeat", title: "A repeat of the result that ended a job is 200, and any other result is 409",
		cites: `JOBS "Jobs"; J-7`, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			before := h.watch(hirer, a.principal)
			j := h.hire(hirer, a)
			result := successOf(j)
			h.finish(j, result)
			h.reported(j, result)
			h.reported(j, successOf(j, set("timestamp_utc", "2026-02-11T14:15:11Z")))
			for _, other := range []message{failureOf(j), successOf(j, set("execution_cost", number("0.05"))),
				successOf(j, set("output_data", map[string]any{"words": 2}))} {
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
	{number: "jobs.result.race", title: "Of SUCCESS and FAILURE reported at once, one ends the job",
		cites: `JOBS "Jobs"; J-7`, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			for range 4 {
				before := h.watch(hirer, a.principal)
				j := h.hire(hirer, a)
				h.dispatch(a, j)
				answers := h.inParallel(8, func(i int) answer {
					if i%2 == 0 {
						return h.report(j, successOf(j))
					}
					return h.report(j, failureOf(j))
				})
				got := h.at(j)
				ended, moved, paid := 1, "0", "0"
				records := []string{"hold " + hirer.owner + " @escrow 0.15"}
				if got.text("status") == "SUCCESS" {
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
	{number: "jobs.result.fields", title: "A result with bad fields is 422 and ends nothing",
		cites: `JOBS "The HTTP interface"; JOBS "Jobs"; J-11`, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			h.dispatch(a, j)
			for _, change := range []func(message){
				without("status"), set("status", "DONE"), set("status", "success"), set("status", 1), without("job_id"),
				set("job_id", "x"), set("job_id", 1), set("agent_id", newUUID()), set("agent_id", "x"), set("agent_id", 1),
			} {
				h.wantInvalid(h.report(j, successOf(j, change)))
			}
			for _, value := range notData() {
				h.wantInvalid(h.report(j, successOf(j, set("output_data", value))))
			}
			for _, text := range badAmounts() {
				h.wantInvalid(h.write(a.key, "/agents/"+a.id+"/results",
					rawNumber(successOf(j, without("execution_cost")), "execution_cost", text)))
			}
			h.wantResult(h.at(j), "PENDING")
			result := successOf(j, set("output_data", dataOf(largest)))
			h.reported(j, result)
			got := h.wantResult(h.at(j), "SUCCESS")
			h.want(sameJSON(got.members["output_data"], result["output_data"]), got, "the output_data of 49,152 bytes")
		}},
	{number: "jobs.result.pending", title: "A result PENDING does not end a job", cites: `JOBS "Jobs"`,
		run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			h.dispatch(a, j)
			got := h.report(j, successOf(j, set("status", "PENDING")))
			h.want(got.status == http.StatusOK || got.status == http.StatusUnprocessableEntity, got, "status 200 or 422")
			h.wantResult(h.at(j), "PENDING")
			h.reported(j, successOf(j))
			h.wantResult(h.at(j), "SUCCESS")
		}},
	{number: "jobs.result.foreign", title: "An agent cannot report for the job of another agent, as for an unknown job",
		cites: `JOBS "Jobs"; GATEWAYS "Keys of callers"; G-11, J-29`, run: func(h *jobsProbe) {
			hirer, p, stranger := h.three()
			a, other := h.agent(p), h.agent(stranger)
			j := h.hire(hirer, a)
			h.dispatch(a, j)
			foreign := h.write(stranger.key, "/agents/"+other.id+"/results", successOf(j, set("agent_id", other.id)))
			unknown := h.write(stranger.key, "/agents/"+other.id+"/results",
				successOf(j, set("agent_id", other.id), set("job_id", newUUID())))
			for _, got := range []answer{foreign, unknown} {
				h.want(got.status == http.StatusForbidden || got.status == http.StatusNotFound, got, "refused: status 403 or 404")
			}
			h.want(string(foreign.body) == string(unknown.body), foreign, "the same answer as for an unknown job: %s", unknown)
			h.wantResult(h.at(j), "PENDING")
		}},
}
