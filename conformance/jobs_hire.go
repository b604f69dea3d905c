package conformance

import (
	"fmt"
	"net/http"
	"strings"
	"time"
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
	{number: "jobs.hire.pending", title: "A job that has not ended is answered with 202, a JobResult PENDING and its Location",
		cites: `JOBS "Jobs"`, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			for _, path := range []string{a.path(), "/a/" + a.id} {
				body := request(hirer, a)
				got := h.write(hirer.key, path+"?wait=0", body)
				j := h.pending(hirer, a, body, got)
				h.want(j.id == body["job_id"] && got.text("agent_id") == a.id, got, "the job_id and the agent_id")
				h.want(strings.HasSuffix(got.header.Get("Location"), "/jobs/"+j.id), got, "Location: {B}/jobs/%s", j.id)
				h.wantResult(h.at(j), "PENDING")
			}
		}},
	{number: "jobs.hire.wait", title: "The hirer's request waits for the end of the job, for as long as wait says",
		cites: `JOBS "Jobs"`, wait: 2 * time.Second, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			body := request(hirer, a)
			got := h.write(hirer.key, a.path()+"?wait=1", body)
			h.pending(hirer, a, body, got)
			h.want(got.took > 800*time.Millisecond && got.took < time.Second+promptLimit, got, "the answer after 1 s, not after %v",
				got.took.Round(second/10))
			h.handedOut(a, 0)
			for _, wait := range []string{"?wait=20", "", "?wait=120"} {
				body := request(hirer, a)
				answered := make(chan answer, 1)
				h.tasks.Go(func() { answered <- h.write(hirer.key, a.path()+wait, body) })
				j := &job{id: body["job_id"].(string), hirer: hirer, agent: a}
				h.dispatch(a, j)
				h.reported(j, successOf(j))
				got := h.wantStatus(<-answered, http.StatusOK)
				h.wantResult(got, "SUCCESS")
				h.want(got.took < 2*promptLimit && got.text("job_id") == j.id, got, "the answer at once after the result")
			}
		}},
	{number: "jobs.hire.wait-bounds", title: "wait is 0 to 120", cites: `JOBS "The HTTP interface"`, run: func(h *jobsProbe) {
		hirer, a := h.pair()
		before := h.watch(hirer)
		for _, wait := range []string{"121", "-1", "x", "", "1.5", "1e1"} {
			h.wantInvalid(h.write(hirer.key, a.path()+"?wait="+wait, request(hirer, a)))
		}
		before.wantMoved("0")
	}},
	{number: "jobs.hire.fields", title: "Fields are taken at both sides of their bounds, and refused with 422 beyond",
		cites: `JOBS "The HTTP interface"; J-11`, run: hireFields},
	{number: "jobs.hire.callback-url", title: "A callback_url that the registry must not call is refused with 422",
		cites: `JOBS "The HTTP interface"; GATEWAYS "Requests to other servers"; G-14`, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			before := h.watch(hirer)
			for _, url := range blockedURLs() {
				h.wantInvalid(h.write(hirer.key, a.path()+"?wait=0", request(hirer, a, set("callback_url", url))))
			}
			for _, url := range notURLs() {
				h.wantInvalid(h.write(hirer.key, a.path()+"?wait=0", request(hirer, a, set("callback_url", url))))
			}
			before.wantMoved("0")
			for _, change := range []func(message){set("callback_url", ""), set("callback_url", "local://memory"),
				without("callback_url")} {
				h.hire(hirer, a, change)
			}
		}},
	{number: "jobs.hire.ids", title: "A job_id is a UUID of any version, kept in lower case, and created if absent",
		cites: `JOBS "The HTTP interface"`, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			for _, id := range []string{newUUID(), strings.ToUpper(newUUID())} {
				id = id[:14] + "1" + id[15:]
				j := h.hire(hirer, a, set("job_id", id))
				h.want(j.id == strings.ToLower(id), j.answer, `"job_id":%q`, strings.ToLower(id))
			}
			first, second := h.hire(hirer, a, without("job_id")), h.hire(hirer, a, without("job_id"))
			h.want(first.id != second.id, second.answer, "another job_id for each job")
		}},
	{number: "jobs.hire.repeat", title: "A repeat of a job gets its JobResult as it stands, and holds nothing",
		cites: `JOBS "Jobs"; J-6`, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			before := h.watch(hirer, a.principal)
			j := h.hire(hirer, a)
			h.wantResult(h.wantStatus(h.write(hirer.key, a.path()+"?wait=0", j.body), http.StatusAccepted), "PENDING")
			before.wantMoved("-0.15", "0")
			later := message{}
			combine(func(m message) {
				for name, value := range j.body {
					m[name] = value
				}
			}, set("timestamp_utc", "2026-02-11T14:16:00Z"), set("job_id", strings.ToUpper(j.id)))(later)
			h.wantResult(h.wantStatus(h.write(hirer.key, a.path()+"?wait=0", later), http.StatusAccepted), "PENDING")
			h.finish(j, successOf(j))
			for _, body := range []message{j.body, later} {
				got := h.wantStatus(h.write(hirer.key, a.path()+"?wait=0", body), http.StatusOK)
				h.wantResult(got, "SUCCESS")
				h.want(got.text("job_id") == j.id, got, "the job_id %s", j.id)
			}
			h.expect("no other job for the agent")
			if rows := h.handedOut(a, 0); len(rows) != 0 {
				h.failf("%s", describeRows(rows))
			}
			before.wantMoved("-0.1", "0.1")
		}},
	{number: "jobs.hire.other", title: "A known job_id with other content, for another agent or by another principal is 409",
		cites: `JOBS "Jobs"; J-6`, run: func(h *jobsProbe) {
			hirer, p, stranger := h.three()
			a := h.agent(p)
			second := h.agentAt(p, a.skill, a.price)
			before := h.watch(hirer, stranger)
			j := h.hire(hirer, a)
			for _, change := range []func(message){set("budget", number("0.16")), set("input_data", map[string]any{"text": "bye"}),
				set("orchestrator_id", "someone"), set("skill_name", "another"), set("callback_url", exampleURL)} {
				h.wantTaken(h.write(hirer.key, a.path()+"?wait=0", request(hirer, a, set("job_id", j.id), change)))
			}
			h.wantTaken(h.write(hirer.key, second.path()+"?wait=0", j.body))
			h.wantTaken(h.write(stranger.key, a.path()+"?wait=0", j.body))
			before.wantMoved("-0.15", "0")
		}},
	{number: "jobs.hire.race", title: "A job that is posted 8 times at once is held once",
		cites: `JOBS "Jobs"; J-6`, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			before := h.watch(hirer)
			for range 3 {
				body := request(hirer, a)
				for _, got := range h.inParallel(8, func(int) answer { return h.write(hirer.key, a.path()+"?wait=0", body) }) {
					h.pending(hirer, a, body, got)
				}
				h.wantRecords(&job{id: body["job_id"].(string), hirer: hirer}, fmt.Sprintf("hold %s @escrow 0.15", hirer.owner))
			}
			before.wantMoved("-0.45")
			h.expect("3 jobs for the agent")
			if rows := h.handedOut(a, 0); len(rows) != 3 {
				h.failf("%s", describeRows(rows))
			}
		}},
	{number: "jobs.hire.order", title: "A request is checked for the key, then the fields, then the agent, then the job_id",
		cites: `JOBS "Jobs"`, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			missing := "/a/" + unknownAgent + "/jobs?wait=0"
			bad := request(hirer, a, set("job_id", j.id), set("budget", -1))
			h.wantNoKey(h.write("", missing, bad))
			h.wantInvalid(h.write(hirer.key, missing, bad))
			h.wantUnknown(h.write(hirer.key, missing, j.body))
			h.wantUnknown(h.write(hirer.key, missing, request(hirer, a)))
			h.wantTaken(h.write(hirer.key, a.path()+"?wait=0", request(hirer, a, set("job_id", j.id),
				set("skill_name", "another"), set("budget", 0))))
		}},
}

func hireFields(h *jobsProbe) {
	hirer, p := h.two()
	a := h.agentAt(p, newName(), "0.000001")
	before := h.watch(hirer)
	for _, change := range []func(message){
		without("orchestrator_id"), set("orchestrator_id", ""), set("orchestrator_id", strings.Repeat("o", 129)),
		set("orchestrator_id", 1), without("skill_name"), set("skill_name", ""), set("skill_name", "a b"),
		set("skill_name", strings.Repeat("k", 129)), set("skill_name", 1), without("budget"), set("currency", "usd"),
		set("currency", 1), set("job_id", "x"), set("job_id", 1), set("job_id", newUUID()+"0"),
	} {
		h.wantInvalid(h.write(hirer.key, a.path()+"?wait=0", request(hirer, a, change)))
	}
	for _, value := range notData() {
		h.wantInvalid(h.write(hirer.key, a.path()+"?wait=0", request(hirer, a, set("input_data", value))))
	}
	for _, text := range badAmounts() {
		body := rawNumber(request(hirer, a, without("budget")), "budget", text)
		h.wantInvalid(h.write(hirer.key, a.path()+"?wait=0", body))
	}
	before.wantMoved("0")
	for _, change := range []func(message){
		set("orchestrator_id", "o"), set("orchestrator_id", strings.Repeat("o", 128)),
		set("orchestrator_id", textsOf(128)[1]), set("input_data", map[string]any{}), set("input_data", dataOf(largest)),
		without("currency"), set("timestamp_utc", "yesterday"), without("timestamp_utc"),
		set("budget", number("0.30000000000000004")),
	} {
		h.hire(hirer, a, change)
	}
	before.wantMoved("-0.300008")
}

// jobsFailureChecks test requests that end in a FAILURE at once, and make no job.
var jobsFailureChecks = []jobsCheck{
	{number: "jobs.failure.skill", title: "A skill that the agent does not have is a FAILURE with SKILL_MISMATCH",
		cites: `JOBS "Jobs"; J-20, J-21`, run: failsAtOnce("SKILL_MISMATCH", set("skill_name", "another"))},
	{number: "jobs.failure.budget", title: "A budget below the cost is a FAILURE with BUDGET_INSUFFICIENT",
		cites: `JOBS "Jobs"; J-20, J-21`, run: failsAtOnce("BUDGET_INSUFFICIENT", set("budget", number("0.099999")))},
	{number: "jobs.failure.credits", title: "An account below the budget is a FAILURE with TRANSFER_FAILED",
		cites: `JOBS "Jobs"; J-20, J-21, J-3`, run: failsAtOnce("TRANSFER_FAILED", set("budget", 999_999_999))},
	{number: "jobs.failure.order", title: "Of several reasons the first of §4 is named: skill, budget, credits",
		cites: `JOBS "Jobs"; J-20`, run: func(h *jobsProbe) {
			hirer, p := h.two()
			a := h.agentAt(p, newName(), "999999999")
			h.wantFailure(h.write(hirer.key, a.path()+"?wait=0", request(hirer, a, set("skill_name", "another"),
				set("budget", 1))), "SKILL_MISMATCH")
			h.wantFailure(h.write(hirer.key, a.path()+"?wait=0", request(hirer, a, set("budget", 999_999_998))),
				"BUDGET_INSUFFICIENT")
			h.wantFailure(h.write(hirer.key, a.path()+"?wait=0", request(hirer, a)), "TRANSFER_FAILED")
		}},
	{number: "jobs.failure.exact", title: "A budget that equals the cost is enough", cites: `JOBS "Jobs"`,
		run: func(h *jobsProbe) {
			hirer, a := h.pair()
			before := h.watch(hirer, a.principal)
			j := h.hire(hirer, a, set("budget", number("0.1")))
			h.finish(j, successOf(j))
			before.wantMoved("-0.1", "0.1")
		}},
}

// failsAtOnce returns a check of a request with a change that ends in a FAILURE with this code.
func failsAtOnce(code string, change func(message)) func(*jobsProbe) {
	return func(h *jobsProbe) {
		hirer, a := h.pair()
		before := h.watch(hirer, a.principal)
		body := request(hirer, a)
		id := body["job_id"].(string)
		got := h.write(hirer.key, a.path()+"?wait=0", request(hirer, a, set("job_id", id), change))
		h.wantFailure(got, code)
		h.want(got.text("job_id") == id && got.text("agent_id") == a.id && got.text("error_message") != "", got,
			"the job_id, the agent_id and an error_message")
		before.wantMoved("0", "0")
		if records := h.audit(hirer.key, "?job_id="+id); len(records) != 0 {
			h.expect("no records")
			h.failf("%s", describeRows(records))
		}
		h.wantForeign(h.read(hirer.key, "/jobs/"+id))
		h.expect("no job for the agent")
		if rows := h.handedOut(a, 0); len(rows) != 0 {
			h.failf("%s", describeRows(rows))
		}
		h.wantScore(a, "50", 0, 0)
		h.describe("the same job_id again, with a good request")
		h.hired(hirer, a, body)
	}
}
