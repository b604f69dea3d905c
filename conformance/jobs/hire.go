package jobs

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// largest is how many bytes input_data and output_data may have.
const largest = 49_152

// dataOf returns an object of size bytes as compact JSON.
func dataOf(size int) map[string]any {
	const empty = `{"text":""}`
	return map[string]any{"text": strings.Repeat("a", size-len(empty))}
}

// notData are values that are no input_data and no output_data.
func notData() []any { return []any{"text", 1, true, []any{}, dataOf(largest + 1)} }

// jobsHireChecks test how jobs begin.
var jobsHireChecks = []jobsCheck{
	{Number: "jobs.hire.pending", Title: "A job that has not ended is answered with 202, a JobResult PENDING and its Location",
		Cites: `JOBS "Jobs"`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			for _, path := range []string{a.path(), "/a/" + a.id} {
				body := request(hirer, a)
				got := h.Write(hirer.key, path+"?wait=0", body)
				j := h.pending(hirer, a, body, got)
				h.Want(j.id == body["job_id"] && got.Text("agent_id") == a.id, got, "the job_id and the agent_id")
				h.Want(strings.HasSuffix(got.Header.Get("Location"), "/jobs/"+j.id), got, "Location: {B}/jobs/%s", j.id)
				h.wantResult(h.at(j), "PENDING")
			}
		}},
	{Number: "jobs.hire.wait", Title: "The hirer's request waits for the end of the job, for as long as wait says",
		Cites: `JOBS "Jobs"`, Wait: 2 * time.Second, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			body := request(hirer, a)
			got := h.Write(hirer.key, a.path()+"?wait=1", body)
			h.pending(hirer, a, body, got)
			h.Want(got.Took > 800*time.Millisecond && got.Took < time.Second+kit.PromptLimit, got,
				"the answer after 1 s, not after %v",
				got.Took.Round(time.Second/10))
			h.handedOut(a, 0)
			for _, wait := range []string{"?wait=20", "", "?wait=120"} {
				body := request(hirer, a)
				answered := make(chan kit.Answer, 1)
				h.Tasks.Go(func() { answered <- h.Write(hirer.key, a.path()+wait, body) })
				j := &job{id: body["job_id"].(string), hirer: hirer, agent: a}
				h.dispatch(a, j)
				h.reported(j, successOf(j))
				got := h.wantStatus(<-answered, http.StatusOK)
				h.wantResult(got, "SUCCESS")
				h.Want(got.Took < 2*kit.PromptLimit && got.Text("job_id") == j.id, got, "the answer at once after the result")
			}
		}},
	{Number: "jobs.hire.wait-bounds", Title: "wait is 0 to 120", Cites: `JOBS "The HTTP interface"`,
		Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			before := h.watch(hirer)
			for _, wait := range []string{"121", "-1", "x", "", "1.5", "1e1"} {
				h.wantInvalid(h.Write(hirer.key, a.path()+"?wait="+wait, request(hirer, a)))
			}
			before.wantMoved("0")
		}},
	{Number: "jobs.hire.fields", Title: "Fields are taken at both sides of their bounds, and refused with 422 beyond",
		Cites: `JOBS "The HTTP interface"; J-11`, Run: hireFields},
	{Number: "jobs.hire.callback-url", Title: "A callback_url that the registry must not call is refused with 422",
		Cites: `JOBS "The HTTP interface"; GATEWAYS "Requests to other servers"; G-14`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			before := h.watch(hirer)
			for _, url := range kit.BlockedURLs() {
				h.wantInvalid(h.Write(hirer.key, a.path()+"?wait=0", request(hirer, a, kit.Set("callback_url", url))))
			}
			for _, url := range kit.NotURLs() {
				h.wantInvalid(h.Write(hirer.key, a.path()+"?wait=0", request(hirer, a, kit.Set("callback_url", url))))
			}
			before.wantMoved("0")
			for _, change := range []func(kit.Message){kit.Set("callback_url", ""), kit.Set("callback_url", "local://memory"),
				kit.Without("callback_url")} {
				h.hire(hirer, a, change)
			}
		}},
	{Number: "jobs.hire.ids", Title: "A job_id is a UUID of any version, kept in lower case, and created if absent",
		Cites: `JOBS "The HTTP interface"`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			for _, id := range []string{newUUID(), strings.ToUpper(newUUID())} {
				id = id[:14] + "1" + id[15:]
				j := h.hire(hirer, a, kit.Set("job_id", id))
				h.Want(j.id == strings.ToLower(id), j.answer, `"job_id":%q`, strings.ToLower(id))
			}
			first, second := h.hire(hirer, a, kit.Without("job_id")), h.hire(hirer, a, kit.Without("job_id"))
			h.Want(first.id != second.id, second.answer, "another job_id for each job")
		}},
	{Number: "jobs.hire.repeat", Title: "A repeat of a job gets its JobResult as it stands, and holds nothing",
		Cites: `JOBS "Jobs"; J-6`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			before := h.watch(hirer, a.principal)
			j := h.hire(hirer, a)
			h.wantResult(h.wantStatus(h.Write(hirer.key, a.path()+"?wait=0", j.body), http.StatusAccepted), "PENDING")
			before.wantMoved("-0.15", "0")
			later := kit.Message{}
			kit.Combine(func(m kit.Message) {
				for name, value := range j.body {
					m[name] = value
				}
			}, kit.Set("timestamp_utc", "2026-02-11T14:16:00Z"), kit.Set("job_id", strings.ToUpper(j.id)))(later)
			h.wantResult(h.wantStatus(h.Write(hirer.key, a.path()+"?wait=0", later), http.StatusAccepted), "PENDING")
			h.finish(j, successOf(j))
			for _, body := range []kit.Message{j.body, later} {
				got := h.wantStatus(h.Write(hirer.key, a.path()+"?wait=0", body), http.StatusOK)
				h.wantResult(got, "SUCCESS")
				h.Want(got.Text("job_id") == j.id, got, "the job_id %s", j.id)
			}
			h.Expect("no other job for the agent")
			if rows := h.handedOut(a, 0); len(rows) != 0 {
				h.Failf("%s", kit.DescribeRows(rows))
			}
			before.wantMoved("-0.1", "0.1")
		}},
	{Number: "jobs.hire.other", Title: "A known job_id with other content, for another agent or by another principal is 409",
		Cites: `JOBS "Jobs"; J-6`, Run: func(h *jobsProbe) {
			hirer, p, stranger := h.three()
			a := h.agent(p)
			second := h.agentAt(p, a.skill, a.price)
			before := h.watch(hirer, stranger)
			j := h.hire(hirer, a)
			for _, change := range []func(kit.Message){kit.Set("budget", number("0.16")), kit.Set("input_data",
				map[string]any{"text": "bye"}),
				kit.Set("orchestrator_id", "someone"), kit.Set("skill_name", "another"), kit.Set("callback_url", kit.ExampleURL)} {
				h.wantTaken(h.Write(hirer.key, a.path()+"?wait=0", request(hirer, a, kit.Set("job_id", j.id), change)))
			}
			h.wantTaken(h.Write(hirer.key, second.path()+"?wait=0", j.body))
			h.wantTaken(h.Write(stranger.key, a.path()+"?wait=0", j.body))
			before.wantMoved("-0.15", "0")
		}},
	{Number: "jobs.hire.race", Title: "A job that is posted 8 times at once is held once",
		Cites: `JOBS "Jobs"; J-6`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			before := h.watch(hirer)
			for range 3 {
				body := request(hirer, a)
				for _, got := range h.InParallel(8, func(int) kit.Answer { return h.Write(hirer.key, a.path()+"?wait=0", body) }) {
					h.pending(hirer, a, body, got)
				}
				h.wantRecords(&job{id: body["job_id"].(string), hirer: hirer}, fmt.Sprintf("hold %s @escrow 0.15", hirer.owner))
			}
			before.wantMoved("-0.45")
			h.Expect("3 jobs for the agent")
			if rows := h.handedOut(a, 0); len(rows) != 3 {
				h.Failf("%s", kit.DescribeRows(rows))
			}
		}},
	{Number: "jobs.hire.order", Title: "A request is checked for the key, then the fields, then the agent, then the job_id",
		Cites: `JOBS "Jobs"`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			missing := "/a/" + unknownAgent + "/jobs?wait=0"
			bad := request(hirer, a, kit.Set("job_id", j.id), kit.Set("budget", -1))
			h.wantNoKey(h.Write("", missing, bad))
			h.wantInvalid(h.Write(hirer.key, missing, bad))
			h.wantUnknown(h.Write(hirer.key, missing, j.body))
			h.wantUnknown(h.Write(hirer.key, missing, request(hirer, a)))
			h.wantTaken(h.Write(hirer.key, a.path()+"?wait=0", request(hirer, a, kit.Set("job_id", j.id),
				kit.Set("skill_name", "another"), kit.Set("budget", 0))))
		}},
}

func hireFields(h *jobsProbe) {
	hirer, p := h.two()
	a := h.agentAt(p, kit.NewName(), "0.000001")
	before := h.watch(hirer)
	for _, change := range []func(kit.Message){
		kit.Without("orchestrator_id"), kit.Set("orchestrator_id", ""), kit.Set("orchestrator_id", strings.Repeat("o", 129)),
		kit.Set("orchestrator_id", 1), kit.Without("skill_name"), kit.Set("skill_name", ""), kit.Set("skill_name", "a b"),
		kit.Set("skill_name", strings.Repeat("k", 129)), kit.Set("skill_name", 1), kit.Without("budget"), kit.Set("currency",
			"usd"),
		kit.Set("currency", 1), kit.Set("job_id", "x"), kit.Set("job_id", 1), kit.Set("job_id", newUUID()+"0"),
	} {
		h.wantInvalid(h.Write(hirer.key, a.path()+"?wait=0", request(hirer, a, change)))
	}
	for _, value := range notData() {
		h.wantInvalid(h.Write(hirer.key, a.path()+"?wait=0", request(hirer, a, kit.Set("input_data", value))))
	}
	for _, text := range badAmounts() {
		body := rawNumber(request(hirer, a, kit.Without("budget")), "budget", text)
		h.wantInvalid(h.Write(hirer.key, a.path()+"?wait=0", body))
	}
	before.wantMoved("0")
	for _, change := range []func(kit.Message){
		kit.Set("orchestrator_id", "o"), kit.Set("orchestrator_id", strings.Repeat("o", 128)),
		kit.Set("orchestrator_id", kit.TextsOf(128)[1]), kit.Set("input_data", map[string]any{}), kit.Set("input_data",
			dataOf(largest)),
		kit.Without("currency"), kit.Set("timestamp_utc", "yesterday"), kit.Without("timestamp_utc"),
		kit.Set("budget", number("0.30000000000000004")),
	} {
		h.hire(hirer, a, change)
	}
	before.wantMoved("-0.300008")
}

// jobsFailureChecks test requests that end in a FAILURE at once, and make no job.
var jobsFailureChecks = []jobsCheck{
	{Number: "jobs.failure.skill", Title: "A skill that the agent does not have is a FAILURE with SKILL_MISMATCH",
		Cites: `JOBS "Jobs"; J-20, J-21`, Run: failsAtOnce("SKILL_MISMATCH", kit.Set("skill_name", "another"))},
	{Number: "jobs.failure.budget", Title: "A budget below the cost is a FAILURE with BUDGET_INSUFFICIENT",
		Cites: `JOBS "Jobs"; J-20, J-21`, Run: failsAtOnce("BUDGET_INSUFFICIENT", kit.Set("budget", number("0.099999")))},
	{Number: "jobs.failure.credits", Title: "An account below the budget is a FAILURE with TRANSFER_FAILED",
		Cites: `JOBS "Jobs"; J-20, J-21, J-3`, Run: failsAtOnce("TRANSFER_FAILED", kit.Set("budget", 999_999_999))},
	{Number: "jobs.failure.order", Title: "Of several reasons the first of §4 is named: skill, budget, credits",
		Cites: `JOBS "Jobs"; J-20`, Run: func(h *jobsProbe) {
			hirer, p := h.two()
			a := h.agentAt(p, kit.NewName(), "999999999")
			h.wantFailure(h.Write(hirer.key, a.path()+"?wait=0", request(hirer, a, kit.Set("skill_name", "another"),
				kit.Set("budget", 1))), "SKILL_MISMATCH")
			h.wantFailure(h.Write(hirer.key, a.path()+"?wait=0", request(hirer, a, kit.Set("budget", 999_999_998))),
				"BUDGET_INSUFFICIENT")
			h.wantFailure(h.Write(hirer.key, a.path()+"?wait=0", request(hirer, a)), "TRANSFER_FAILED")
		}},
	{Number: "jobs.failure.exact", Title: "A budget that equals the cost is enough", Cites: `JOBS "Jobs"`,
		Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			before := h.watch(hirer, a.principal)
			j := h.hire(hirer, a, kit.Set("budget", number("0.1")))
			h.finish(j, successOf(j))
			before.wantMoved("-0.1", "0.1")
		}},
}

// failsAtOnce returns a check of a request with a change that ends in a FAILURE with this code.
func failsAtOnce(code string, change func(kit.Message)) func(*jobsProbe) {
	return func(h *jobsProbe) {
		hirer, a := h.pair()
		before := h.watch(hirer, a.principal)
		body := request(hirer, a)
		id := body["job_id"].(string)
		got := h.Write(hirer.key, a.path()+"?wait=0", request(hirer, a, kit.Set("job_id", id), change))
		h.wantFailure(got, code)
		h.Want(got.Text("job_id") == id && got.Text("agent_id") == a.id && got.Text("error_message") != "", got,
			"the job_id, the agent_id and an error_message")
		before.wantMoved("0", "0")
		if records := h.audit(hirer.key, "?job_id="+id); len(records) != 0 {
			h.Expect("no records")
			h.Failf("%s", kit.DescribeRows(records))
		}
		h.wantForeign(h.Read(hirer.key, "/jobs/"+id))
		h.Expect("no job for the agent")
		if rows := h.handedOut(a, 0); len(rows) != 0 {
			h.Failf("%s", kit.DescribeRows(rows))
		}
		h.wantScore(a, "50", 0, 0)
		h.Describe("the same job_id again, with a good request")
		h.hired(hirer, a, body)
	}
}
