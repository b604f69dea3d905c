package conformance_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/conformance"
)

// faultyJobs is a registry of jobs with one fault.
type faultyJobs struct {
	name string // see doubleFaults.has
	// fails has the checks that must fail, each with a text that Result.Got must contain.
	fails map[string]string
	also  []string // other checks of the same themes that fail too, or may fail
}

// TestJobsFaultsAreDetected tests that checks can fail, and that they fail only because of their own rules: with some
// faults, the other checks of the same themes run too, and must pass. TestJobsDoublePasses tests that all checks pass
// without a fault.
func TestJobsFaultsAreDetected(t *testing.T) {
	t.Parallel()
	for i, f := range faultyRegistries() {
		if raceDetector && i%4 != 0 {
			continue // the race detector makes them slow
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			takeTurn(t)
			runFaultyJobs(t, f, *thorough || i%4 == 0)
		})
	}
}

// runAtJobsDouble runs checks at a new double with a fault.
func runAtJobsDouble(t *testing.T, fault string, o conformance.JobsOptions) conformance.Report {
	d := startJobsDouble(t, fault)
	o.OperatorKey = d.operator
	report, err := conformance.RunJobs(t.Context(), d.url, o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// runFaultyJobs runs the checks that must find the fault f. withTheme adds the other checks of their themes.
func runFaultyJobs(t *testing.T, f faultyJobs, withTheme bool) {
	themes := map[string]bool{}
	o := conformance.JobsOptions{Listen: "127.0.0.1:0", Thorough: true}
	for _, c := range conformance.JobsChecks() {
		if _, named := f.fails[c.Number]; named {
			themes[c.Theme] = withTheme
		}
	}
	for _, c := range conformance.JobsChecks() {
		if _, named := f.fails[c.Number]; named || themes[c.Theme] && c.Number != heartbeatExpiry {
			o.Only = append(o.Only, c.Number)
		}
	}
	report := runAtJobsDouble(t, f.name, o)
	if slices.ContainsFunc(report.Results, func(r conformance.Result) bool { return r.Status == conformance.Skipped }) {
		// Another test used the port of this double before, and sent it requests late. They used up what one address may
		// register.
		report = runAtJobsDouble(t, f.name, o)
	}
	failed := 0
	for _, r := range report.Results {
		want, named := f.fails[r.Number]
		switch {
		case named && r.Status == conformance.Failed && strings.Contains(r.Got, want):
			failed++
		case named:
			t.Errorf("want failed with %q:\n%s", want, r.Finding())
		case r.Status != conformance.Passed && !slices.Contains(f.also, r.Number):
			t.Errorf("must not fail:\n%s", r.Finding())
		}
	}
	if failed != len(f.fails) || report.Holds() {
		t.Errorf("%d checks failed, want %d; Holds returns %v", failed, len(f.fails), report.Holds())
	}
}

// TestEveryJobsCheckCanFail tests that each check is named by a fault.
func TestEveryJobsCheckCanFail(t *testing.T) {
	named := map[string]bool{}
	for _, f := range faultyRegistries() {
		for number := range f.fails {
			named[number] = true
		}
	}
	for _, number := range agoraChecks(conformance.JobsChecks()) {
		named[number] = true // see TestAgoraFaults
	}
	for _, c := range conformance.JobsChecks() {
		if !named[c.Number] {
			t.Errorf("no fault shows that %s can fail", c.Number)
		}
	}
}

// everyJobsCheck returns the checks of a theme.
func everyJobsCheck(theme string) (list []string) {
	for _, c := range conformance.JobsChecks() {
		if c.Theme == theme {
			list = append(list, c.Number)
		}
	}
	return list
}

func faultyRegistries() (all []faultyJobs) {
	for _, list := range [][]faultyJobs{jobsWireFaults(), jobsCallerFaults(), jobsAgentFaults(), jobsRunFaults(),
		jobsLedgerFaults(), jobsScoreFaults(), jobsEndpointFaults()} {
		all = append(all, list...)
	}
	return all
}

func jobsWireFaults() []faultyJobs {
	return []faultyJobs{
		{name: "redirects double slashes", fails: map[string]string{"jobs.http.unknown-path": "status 301"}},
		{name: "has no Allow header", fails: map[string]string{"jobs.http.method": "status 405"}},
		{name: "has refusals without a text", fails: map[string]string{"jobs.http.error-form": `"message"`}},
		{name: "does not say where the bad value is", fails: map[string]string{"jobs.http.validation-form": `["body"]`}},
		{name: "requires a Content-Type", fails: map[string]string{"jobs.http.content-type": "status 415"}},
		{name: "ignores Content-Encoding", fails: map[string]string{"jobs.http.encoding": "accepted"}},
		{name: "ignores repeated parameters", fails: map[string]string{"jobs.http.parameters": "accepted"}},
		{name: "takes the Host header as its own address", fails: map[string]string{"jobs.http.host": "evil-host"}},
		{name: "counts no skills", fails: map[string]string{"jobs.http.health": "healthy"}},
		{name: "refuses large bodies with 400", fails: map[string]string{"jobs.body.size": "another status"}},
		{name: "takes 32 levels", fails: map[string]string{"jobs.body.depth": "status 422"}},
		{name: "refuses unknown members", fails: map[string]string{"jobs.body.unknown-members": "status 422"},
			also: []string{"jobs.body.depth"}},
		{name: "reads one JSON value and ignores the rest", fails: map[string]string{"jobs.body.object": "accepted"}},
		{name: "parses leniently", fails: map[string]string{"jobs.body.duplicates": "accepted",
			"jobs.body.strings": "accepted"}},
		{name: "takes U+0000", fails: map[string]string{"jobs.body.strings": "accepted"}},
		{name: "takes huge numbers", fails: map[string]string{"jobs.body.numbers": "accepted"}},
	}
}

func jobsCallerFaults() []faultyJobs {
	return []faultyJobs{
		{name: "shows the key again", fails: map[string]string{"jobs.account.new": "cj_"}},
		{name: "pays what accounts ask for", fails: map[string]string{"jobs.account.initial": "credits"}},
		{name: "pays accounts again", fails: map[string]string{"jobs.account.again": "status 201"}},
		{name: "adds accounts of others", fails: map[string]string{"jobs.account.taken": "accepted"}},
		{name: "looks for accounts too early", fails: map[string]string{"jobs.account.race": "accepted"}},
		{name: "takes every owner_id", fails: map[string]string{"jobs.account.owner-id": "accepted"}},
		{name: "takes the DIDs of others", fails: map[string]string{"jobs.account.did": "status 201"}},
		{name: "shows foreign accounts", fails: map[string]string{"jobs.account.read": "accepted"}},
		{name: "takes seven decimal places", fails: map[string]string{"jobs.amount.bounds": "accepted",
			"jobs.account.owner-id": "accepted"}},
		{name: "refuses float noise", fails: map[string]string{"jobs.amount.noise": "status 422"},
			also: []string{"jobs.amount.form", "jobs.amount.sums"}},
		{name: "writes six decimal places", fails: map[string]string{"jobs.amount.form": "status 200"}},
		{name: "keeps cents", fails: map[string]string{"jobs.amount.sums": "the balance is"}},
		{name: "does not say how to authorize", fails: map[string]string{"jobs.key.required": "status 401",
			"jobs.key.invalid": "status 401"}, also: []string{"jobs.key.job"}},
		{name: "takes any scheme", fails: map[string]string{"jobs.key.invalid": ""}},
		{name: "compares the scheme exactly", fails: map[string]string{"jobs.key.scheme": "status 401"}},
		{name: "shows keys in rows", fails: map[string]string{"jobs.key.told-once": "cj_"}},
		{name: "lets anyone manage agents", fails: map[string]string{"jobs.key.foreign": "accepted"}},
		{name: "tells which jobs exist", fails: map[string]string{"jobs.key.job": "status 404"}},
		{name: "authenticates only GET in bases", fails: map[string]string{"jobs.base.key": "status 409"},
			also: []string{"jobs.base.discover"}},
		{name: "serves open paths under wrong keys", fails: map[string]string{"jobs.base.wrong": "accepted"}},
		{name: "prefers the key in Authorization", fails: map[string]string{"jobs.base.two": "accepted"}},
		{name: "lets answers be stored", fails: map[string]string{"jobs.base.private": "status 200"}},
		{name: "shows the registered endpoint everywhere", fails: map[string]string{"jobs.base.discover": "agent.example"}},
		{name: "gives DIDs a key", fails: map[string]string{"jobs.signed.principal": "api_key"}},
		{name: "takes tokens twice", fails: map[string]string{"jobs.signed.refused": "accepted"}},
	}
}

func jobsAgentFaults() []faultyJobs {
	return []faultyJobs{
		{name: "shows whole scores", fails: map[string]string{"jobs.register.new": `"reputation_score":50`,
			"jobs.reputation.new": `"score":50`}, also: []string{"jobs.reputation.values"}},
		{name: "pays accounts at registration", fails: map[string]string{"jobs.register.principal": "100"}},
		{name: "pays at once", fails: map[string]string{"jobs.register.principal": "201"}},
		{name: "looks for agents too early", fails: map[string]string{"jobs.register.race": "accepted"}},
		{name: "resets scores", fails: map[string]string{"jobs.register.again": `"reputation_score":50`},
			also: []string{"jobs.register.deleted"}},
		{name: "lets anyone register agents again", fails: map[string]string{"jobs.register.taken": "accepted"},
			also: []string{"jobs.register.deleted"}},
		{name: "keeps deleted agents", fails: map[string]string{"jobs.register.delete": "accepted"}},
		{name: "forgets deleted agents", fails: map[string]string{"jobs.register.deleted": "accepted"}},
		{name: "counts characters", fails: map[string]string{"jobs.register.fields": "accepted"}},
		{name: "takes skills twice", fails: map[string]string{"jobs.register.skills": "accepted"}},
		{name: "calls every host", fails: map[string]string{"jobs.register.endpoint": "accepted"}},
		{name: "keeps upper case", fails: map[string]string{"jobs.register.ids": "status 201",
			"jobs.hire.ids": "status 202"}, also: everyJobsCheck("Hiring")},
		{name: "hides the schemas", fails: map[string]string{"jobs.discover.row": "skills"}},
		{name: "takes max_cost as exclusive", fails: map[string]string{"jobs.discover.filter": ""}},
		{name: "sorts by cost first", fails: map[string]string{"jobs.discover.order": ""},
			also: []string{"jobs.discover.filter"}},
		{name: "takes every min_reputation", fails: map[string]string{"jobs.discover.parameters": "accepted"}},
		{name: "lists the skills of deleted agents", fails: map[string]string{"jobs.discover.skills": "still there"}},
		{name: "keeps no heartbeats", fails: map[string]string{"jobs.heartbeat": "last_heartbeat"}},
		{name: "is offline after a heartbeat", fails: map[string]string{"jobs.heartbeat.expiry": "agent_id"},
			also: []string{"jobs.heartbeat"}},
	}
}

func jobsRunFaults() []faultyJobs {
	return []faultyJobs{
		{name: "gives no Location", fails: map[string]string{"jobs.hire.pending": "status 202"}},
		{name: "does not wait for the end", fails: map[string]string{"jobs.hire.wait": "status 202"}},
		{name: "ignores a bad wait", fails: map[string]string{"jobs.hire.wait-bounds": "accepted",
			"jobs.pull.wait": "accepted"}},
		{name: "takes every currency", fails: map[string]string{"jobs.hire.fields": "accepted"}},
		{name: "calls every hirer", fails: map[string]string{"jobs.hire.callback-url": "accepted"}},
		{name: "holds repeats again", fails: map[string]string{"jobs.hire.repeat": "the balance is"},
			also: everyJobsCheck("Hiring")},
		{name: "answers for other jobs", fails: map[string]string{"jobs.hire.other": "accepted",
			"jobs.hire.order": "accepted"}},
		{name: "looks for repeats too early", fails: map[string]string{"jobs.hire.race": "hold"}},
		{name: "looks for the agent first", fails: map[string]string{"jobs.hire.order": "status 404"}},
		{name: "takes every skill", fails: map[string]string{"jobs.failure.skill": "status 202"},
			also: []string{"jobs.failure.order"}},
		{name: "takes every budget", fails: map[string]string{"jobs.failure.budget": "status 202"},
			also: []string{"jobs.failure.order"}},
		{name: "lends credits", fails: map[string]string{"jobs.failure.credits": "status 202"},
			also: []string{"jobs.failure.order"}},
		{name: "looks at the budget first", fails: map[string]string{"jobs.failure.order": "BUDGET_INSUFFICIENT"},
			also: []string{"jobs.failure.skill"}},
		{name: "needs more than the cost", fails: map[string]string{"jobs.failure.exact": "BUDGET_INSUFFICIENT"},
			also: []string{"jobs.failure.order"}},
		{name: "hands out no input", fails: map[string]string{"jobs.pull.success": "job_id"}},
		{name: "hides error messages", fails: map[string]string{"jobs.pull.failure": `"error_message":null`}},
		{name: "hands out jobs again", fails: map[string]string{"jobs.pull.once": ""}, also: []string{"jobs.pull.success"}},
		{name: "does not wait for jobs", fails: map[string]string{"jobs.pull.wait": `"jobs":[]`}},
		{name: "hands out the jobs of all agents", fails: map[string]string{"jobs.pull.own": "2 jobs"}},
		{name: "refuses repeated results", fails: map[string]string{"jobs.result.repeat": "status 409"},
			also: []string{"jobs.result.race"}},
		{name: "ends jobs twice", fails: map[string]string{"jobs.result.race": "accepted",
			"jobs.endpoint.race": "accepted"}},
		{name: "takes every status", fails: map[string]string{"jobs.result.fields": "accepted"}},
		{name: "takes PENDING as an end", fails: map[string]string{"jobs.result.pending": "SUCCESS",
			"jobs.endpoint.pending": "SUCCESS"}, also: []string{"jobs.endpoint.callback"}},
		{name: "takes results of every agent", fails: map[string]string{"jobs.result.foreign": "status 200"},
			also: []string{"jobs.result.fields"}},
	}
}

func jobsLedgerFaults() []faultyJobs {
	return []faultyJobs{
		{name: "holds the price", fails: map[string]string{"jobs.pay.escrow": "a change by -0.1"},
			also: everyJobsCheck("Payment")},
		{name: "keeps the cost of failures", fails: map[string]string{"jobs.pay.refund": `"execution_cost":0.1`}},
		{name: "pays every cost", fails: map[string]string{"jobs.pay.cost": `"execution_cost":0.15`},
			also: []string{"jobs.pay.price"}},
		{name: "pays the price of today", fails: map[string]string{"jobs.pay.price": "a change by -0.14"}},
		{name: "lets the oldest account pay", fails: map[string]string{"jobs.pay.orchestrator": "a change by -0.15"}},
		{name: "refuses jobs within a principal", fails: map[string]string{"jobs.pay.within": "status 200"}},
		{name: "tells the balance before", fails: map[string]string{"jobs.transfer.ok": "sender_balance"}},
		{name: "takes transfers of nothing", fails: map[string]string{"jobs.transfer.fields": "accepted"}},
		{name: "forgets transfer ids", fails: map[string]string{"jobs.transfer.repeat-id": "",
			"jobs.transfer.race": "a change by -2"}},
		{name: "knows repeats only by transfer_id", fails: map[string]string{"jobs.transfer.repeat": "completed",
			"jobs.transfer.race": "a change by -2"}, also: []string{"jobs.transfer.settled-case"}},
		{name: "pays settled jobs again", fails: map[string]string{"jobs.transfer.settled": `"kind":"transfer"`},
			also: []string{"jobs.transfer.settled-case", "jobs.transfer.settled-id"}},
		{name: "compares the spelling of job ids", fails: map[string]string{"jobs.transfer.settled-case": `"kind":"transfer"`}},
		{name: "forgets the ids of settlements", fails: map[string]string{"jobs.transfer.settled-id": "accepted"}},
		{name: "makes accounts for payees", fails: map[string]string{"jobs.transfer.refused": "accepted"}},
		{name: "moves everybody's credits", fails: map[string]string{"jobs.transfer.foreign": "accepted"}},
		{name: "names no error code", fails: map[string]string{"jobs.transfer.too-little": "status 400"}},
		{name: "transfers without a lock", fails: map[string]string{"jobs.transfer.race": "a change by",
			"jobs.transfer.overdraw": ""}},
		{name: "shows the newest record first", fails: map[string]string{"jobs.audit.rows": "transfer_id"},
			also: []string{"jobs.audit.filter"}},
		{name: "ignores owner_id", fails: map[string]string{"jobs.audit.filter": "transfer"}},
		{name: "shows the records of all", fails: map[string]string{"jobs.audit.foreign": "transfer"},
			also: everyJobsCheck("Audit and economy")},
		{name: "forgets refunds", fails: map[string]string{"jobs.audit.sums": "the sum is"}, also: []string{"jobs.audit.rows"}},
		{name: "shows all balances", fails: map[string]string{"jobs.economy": "total_volume"}},
		{name: "repeats grants", fails: map[string]string{"jobs.operator.grant": "a change by 0.5"}},
		{name: "has no supply", fails: map[string]string{"jobs.operator.supply": "accepted"}},
		{name: "lets principals grant", fails: map[string]string{"jobs.operator.refused": "accepted"}},
		{name: "hides records from the operator", fails: map[string]string{"jobs.operator.reads": "no rows"}},
		{name: "lets the operator do everything", fails: map[string]string{"jobs.operator.purpose": "accepted"}},
	}
}

func jobsScoreFaults() []faultyJobs {
	return []faultyJobs{
		{name: "invents agents", fails: map[string]string{"jobs.reputation.new": "accepted"}},
		{name: "takes 3 for a failure", fails: map[string]string{"jobs.reputation.values": "the score 47",
			"jobs.reputation.floor": "the score 17"}},
		{name: "ignores who hires", fails: map[string]string{"jobs.reputation.hirer": "the score 51"}},
		{name: "goes below 0", fails: map[string]string{"jobs.reputation.floor": "the score -4"}},
		{name: "counts every job", fails: map[string]string{"jobs.reputation.cap": "21 successes"}},
		{name: "counts jobs within a principal", fails: map[string]string{"jobs.reputation.self": "the score"}},
		{name: "counts unpaid jobs", fails: map[string]string{"jobs.reputation.unpaid": "the score 51"}},
		{name: "counts undispatched jobs", fails: map[string]string{"jobs.reputation.undispatched": "the score 51"}},
		{name: "takes outcomes", fails: map[string]string{"jobs.reputation.closed": "accepted"}},
	}
}

func jobsEndpointFaults() []faultyJobs {
	return []faultyJobs{
		{name: "sends no Idempotency-Key", fails: map[string]string{"jobs.endpoint.request": "job_id",
			"jobs.endpoint.callback-url": "job_id"}, also: []string{"jobs.endpoint.retry"}},
		{name: "appends /jobs only once", fails: map[string]string{"jobs.endpoint.path": "EXECUTION_ERROR"}},
		{name: "takes every result as a success", fails: map[string]string{"jobs.endpoint.failure": "SUCCESS"},
			also: everyJobsCheck("Endpoints")},
		{name: "takes 2xx as a success", fails: map[string]string{"jobs.endpoint.error": "SUCCESS"}},
		{name: "gives up at the first failure", fails: map[string]string{"jobs.endpoint.retry": "1 calls"}},
		{name: "takes callbacks for every job", fails: map[string]string{"jobs.endpoint.callback": "status 200"}},
		{name: "has one lane for an agent", fails: map[string]string{"jobs.endpoint.lanes": "status 200"}},
		{name: "tells hirers nothing", fails: map[string]string{"jobs.endpoint.callback-url": "0 calls"}},
		{name: "sends the hirer's callback_url", fails: map[string]string{"jobs.endpoint.hidden": "hirer"}},
		{name: "takes every job", fails: map[string]string{"jobs.limits.unfinished": "accepted"}},
		{name: "has no limit of accounts", fails: map[string]string{"jobs.limits.owners": "accepted"}},
		{name: "has no limit of agents", fails: map[string]string{"jobs.limits.agents": "accepted"}},
		{name: "names no limit", fails: map[string]string{"jobs.limits.principals": "429"},
			also: []string{"jobs.limits.owners", "jobs.limits.unfinished"}},
	}
}
