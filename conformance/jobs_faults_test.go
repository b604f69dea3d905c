package conformance_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/conformance"
)

// registries is the suite of registries of jobs.
func registries() suite {
	return suite{checks: conformance.JobsChecks(), slow: []string{heartbeatExpiry, agentsLimit},
		shares: true, start: startJobs,
		run: func(t *testing.T, url string, only []string, listen, listenURL string) (conformance.Report, error) {
			return conformance.RunJobs(t.Context(), url, conformance.JobsOptions{OperatorKey: operatorKey, Listen: listen,
				ListenURL: listenURL, Thorough: true, Only: only})
		}}
}

// agentsLimit is the check that registers 100 agents.
const agentsLimit = "jobs.limits.agents"

// TestJobsFaultsAreDetected tests that checks can fail, and that each fails only if its own rule is broken.
// TestOwnJobsPass tests that all checks pass without a fault.
func TestJobsFaultsAreDetected(t *testing.T) {
	t.Parallel()
	registries().testFaults(t, faultyRegistries())
}

// TestEveryJobsCheckCanFail tests that each check is named by a fault. TestAgoraFaults has those of the theme Agora.
func TestEveryJobsCheckCanFail(t *testing.T) {
	registries().wantNamed(t, faultyRegistries(), agoraChecks(conformance.JobsChecks())...)
}

func faultyRegistries() []fault {
	return slices.Concat(jobsWireFaults(), accountFaults(), jobsCallerFaults(), jobsAgentFaults(), jobsRunFaults(),
		resultFaults(), ledgerFaults(), auditFaults(), scoreFaults(), endpointFaults())
}

var refusedByJobs = encode(object{"detail": "refused"})

func jobsWireFaults() []fault {
	return []fault{
		{name: "redirects double slashes", front: redirects, fails: map[string]string{"jobs.http.unknown-path": "status 301"}},
		{name: "has no Allow header", front: hidesHeader("Allow"), fails: map[string]string{"jobs.http.method": "status 405"}},
		{name: "has refusals without a text", front: editsAnswers(func(_ *http.Request, a *exchange) {
			if text, ok := a.body["detail"].(string); ok {
				a.body["detail"] = object{"message": text}
			}
		}), fails: map[string]string{"jobs.http.error-form": `"message"`}},
		{name: "does not say where the bad value is", front: editsAnswers(func(_ *http.Request, a *exchange) {
			list, _ := a.body["detail"].([]any)
			for _, row := range list {
				row.(object)["loc"] = []any{"body"}
			}
		}), fails: map[string]string{"jobs.http.validation-form": `["body"]`}},
		{name: "requires a Content-Type", front: requiresContentType(refusedByJobs),
			fails: map[string]string{"jobs.http.content-type": "status 415"}},
		{name: "ignores Content-Encoding", front: dropsHeader("Content-Encoding"),
			fails: map[string]string{"jobs.http.encoding": "accepted"}},
		{name: "ignores bad parameters", front: acceptsAt(http.StatusUnprocessableEntity, http.MethodGet, ""),
			fails: map[string]string{"jobs.http.parameters": "accepted", "jobs.discover.parameters": "accepted",
				"jobs.audit.filter": "accepted", "jobs.pull.wait": "accepted"}, also: []string{"jobs.http.validation-form"}},
		{name: "takes the Host header as its own address", front: repeatsHost,
			fails: map[string]string{"jobs.http.host": "evil-host"}},
		{name: "counts no skills", front: editsAnswers(func(_ *http.Request, a *exchange) { delete(a.body, "total_skills") }),
			fails: map[string]string{"jobs.http.health": "healthy"}},
		{name: "refuses large bodies with 400",
			front: otherStatus(http.StatusRequestEntityTooLarge, http.StatusBadRequest),
			fails: map[string]string{"jobs.body.size": "another status"}},
		{name: "takes 32 levels", front: takesLevels32(http.StatusUnprocessableEntity, refusedByJobs),
			fails: map[string]string{"jobs.body.depth": "status 422"}},
		{name: "refuses unknown members", front: refusesMembers(http.StatusUnprocessableEntity, refusedByJobs),
			fails: map[string]string{"jobs.body.unknown-members": "status 422"}, also: []string{"jobs.body.depth"}},
		{name: "reads one JSON value and ignores the rest", front: readsFirstValue,
			fails: map[string]string{"jobs.body.object": "accepted"}},
		{name: "takes the last of several members", front: keepsDuplicates,
			fails: map[string]string{"jobs.body.duplicates": "accepted", "jobs.body.strings": "accepted"}},
		{name: "takes U+0000", front: accepts(sends(`\u0000`)), fails: map[string]string{"jobs.body.strings": "accepted"}},
		{name: "takes huge numbers", front: accepts(sends("e999", "e400")),
			fails: map[string]string{"jobs.body.numbers": "accepted"}},
	}
}

func accountFaults() []fault {
	return []fault{
		{name: "shows the key again", front: editsAnswers(func(r *http.Request, a *exchange) {
			if isFor(r, http.MethodGet, "/accounts/") && a.Code == http.StatusOK {
				a.body["api_key"] = keyOf(r)
			}
		}), fails: map[string]string{"jobs.account.new": "cj_"}},
		{name: "pays what accounts ask for", front: editsAnswers(func(r *http.Request, a *exchange) {
			if asked := a.sent["initial_balance"]; asked != nil && a.body["balance"] != nil {
				a.body["balance"] = asked
			}
		}), fails: map[string]string{"jobs.account.initial": "credits"}, also: registries().ofTheme("Accounts")},
		{name: "pays accounts again", front: paysAgain, fails: map[string]string{"jobs.account.again": "status 201"}},
		{name: "adds accounts of others", front: acceptsAt(http.StatusConflict, "", "/accounts"),
			fails: map[string]string{"jobs.account.taken": "accepted", "jobs.account.race": ""}},
		{name: "takes every owner_id", front: acceptsWith(http.StatusUnprocessableEntity, "owner_id"),
			fails: map[string]string{"jobs.account.owner-id": "accepted"}},
		{name: "takes the DIDs of others", front: accepts(func(_ *http.Request, a *exchange) bool {
			return strings.HasPrefix(textOf(a.sent["owner_id"]), "did:")
		}), fails: map[string]string{"jobs.account.did": "status 200"}},
		{name: "shows foreign accounts", front: acceptsAt(http.StatusForbidden, http.MethodGet, "/accounts/"),
			fails: map[string]string{"jobs.account.read": "accepted"}},
		{name: "takes seven decimal places", front: accepts(sends("0.0000001")),
			fails: map[string]string{"jobs.amount.bounds": "accepted", "jobs.account.owner-id": "accepted",
				"jobs.transfer.fields": "accepted"}},
		{name: "refuses float noise", front: refuses(http.StatusUnprocessableEntity, refusedByJobs,
			func(r *http.Request, _ object) bool { return strings.Contains(string(readBody(r)), "00000000004") }),
			fails: map[string]string{"jobs.amount.noise": "status 422"}, also: []string{"jobs.amount.form", "jobs.amount.sums"}},
		{name: "writes six decimal places", front: editsAnswers(func(_ *http.Request, a *exchange) {
			list, _ := a.body["skills"].([]any)
			for _, skill := range list {
				if price, ok := skill.(object)["cost_per_call"].(json.Number); ok && !strings.Contains(price.String(), ".") {
					skill.(object)["cost_per_call"] = price + ".000000"
				}
			}
		}), fails: map[string]string{"jobs.amount.form": "status 200"}},
		{name: "keeps cents", front: editsAnswers(func(_ *http.Request, a *exchange) {
			if n, ok := a.body["balance"].(json.Number); ok {
				whole, part, _ := strings.Cut(n.String(), ".")
				a.body["balance"] = json.Number(whole + "." + (part + "00")[:2])
			}
		}), fails: map[string]string{"jobs.amount.sums": "the balance is"}, also: []string{"jobs.amount.form"}},
	}
}

func jobsCallerFaults() []fault {
	return []fault{
		{name: "does not say how to authorize", front: hidesHeader("WWW-Authenticate"),
			fails: map[string]string{"jobs.key.required": "status 401", "jobs.key.invalid": "status 401"},
			also:  []string{"jobs.key.job"}},
		{name: "takes any scheme", front: takesAnyScheme(), fails: map[string]string{"jobs.key.invalid": ""}},
		{name: "compares the scheme exactly", front: comparesSchemes(),
			fails: map[string]string{"jobs.key.scheme": "status 401"}},
		{name: "shows keys in rows", front: showsJobsKeys, fails: map[string]string{"jobs.key.told-once": "cj_"}},
		{name: "lets anyone manage agents", front: acceptsAt(http.StatusForbidden, "", "/agents/"),
			fails: map[string]string{"jobs.key.foreign": "", "jobs.operator.purpose": "accepted"}},
		{name: "lets anyone send heartbeats", front: acceptsAt(http.StatusForbidden, "", "/heartbeat"),
			fails: map[string]string{"jobs.key.foreign": "accepted"}},
		{name: "tells which jobs exist", front: tellsJobs, fails: map[string]string{"jobs.key.job": "status 404"}},
		{name: "authenticates only GET in bases", front: editsRequests(func(r *http.Request, _ object) {
			if rest, ok := strings.CutPrefix(r.URL.Path, "/jobs/k/"); ok && r.Method != http.MethodGet {
				_, rest, _ = strings.Cut(rest, "/")
				r.URL.Path = "/jobs/" + rest
			}
		}), fails: map[string]string{"jobs.base.key": "status 409"}, also: []string{"jobs.base.discover", "jobs.base.wrong"}},
		{name: "serves paths under wrong keys", front: acceptsAt(http.StatusUnauthorized, "", "/jobs/k/"),
			fails: map[string]string{"jobs.base.wrong": "accepted", "jobs.base.two": "accepted"}},
		{name: "lets answers be stored", front: hidesHeader("Cache-Control"),
			fails: map[string]string{"jobs.base.private": "status 200"}},
		{name: "shows the registered endpoint everywhere", front: editsRequests(func(r *http.Request, _ object) {
			rest, ok := strings.CutPrefix(r.URL.Path, "/jobs/k/")
			if _, rest, _ = strings.Cut(rest, "/"); ok && r.Method == http.MethodGet && !strings.Contains(rest, "accounts") {
				r.URL.Path = "/jobs/" + rest
			}
		}), fails: map[string]string{"jobs.base.discover": "/jobs/a/"},
			also: []string{"jobs.base.key", "jobs.base.wrong", "jobs.base.two", "jobs.base.private"}},
		{name: "gives DIDs a key", front: editsAnswers(func(r *http.Request, a *exchange) {
			if strings.HasPrefix(r.Header.Get("Authorization"), "Agora ") && a.body["balance"] != nil {
				a.body["api_key"] = "cj_" + strings.Repeat("A", 43)
			}
		}), fails: map[string]string{"jobs.signed.principal": "api_key"}},
		{name: "takes tokens twice", front: accepts(func(_ *http.Request, a *exchange) bool {
			return a.body["reason"] == "used"
		}), fails: map[string]string{"jobs.signed.refused": "accepted"}},
	}
}

func jobsAgentFaults() []fault {
	return []fault{
		{name: "shows whole scores", front: replaces("/jobs/", ":50.0,", ":50,"),
			fails: map[string]string{"jobs.register.new": `"reputation_score":50`, "jobs.reputation.new": `"score":50`},
			also:  []string{"jobs.reputation.values"}},
		{name: "pays accounts at registration", front: paysAtRegistration,
			fails: map[string]string{"jobs.register.principal": "100"}},
		{name: "takes taken agents", front: acceptsAt(http.StatusConflict, http.MethodPost, "/register"),
			fails: map[string]string{"jobs.register.race": "", "jobs.register.taken": "accepted",
				"jobs.register.deleted": "accepted"}},
		{name: "resets scores", front: editsAnswers(func(_ *http.Request, a *exchange) {
			if a.body["status"] == "registered" {
				a.body["reputation_score"] = json.Number("50.0")
			}
		}), fails: map[string]string{"jobs.register.again": `"reputation_score":50`}},
		{name: "keeps deleted agents", front: acceptsAt(http.StatusNotFound, http.MethodGet, "/agents/"),
			fails: map[string]string{"jobs.register.delete": "accepted"}},
		{name: "counts characters", front: accepts(func(r *http.Request, a *exchange) bool {
			return strings.Contains(textOf(a.sent["agent_name"]), strings.Repeat(astral, 32)) && isFor(r, "", "/register")
		}), fails: map[string]string{"jobs.register.fields": "accepted"}},
		{name: "takes skills twice", front: acceptsWith(http.StatusUnprocessableEntity, "skills"),
			fails: map[string]string{"jobs.register.skills": "accepted"}, also: registries().ofTheme("Registration")},
		{name: "calls every host", front: accepts(func(_ *http.Request, a *exchange) bool {
			return strings.Contains(textOf(a.sent["api_endpoint"]), "/")
		}), fails: map[string]string{"jobs.register.endpoint": "accepted"}},
		{name: "keeps upper case", front: editsAnswers(func(_ *http.Request, a *exchange) {
			for _, name := range []string{"agent_id", "job_id"} {
				if id := textOf(a.sent[name]); id != "" && strings.EqualFold(id, textOf(a.body[name])) {
					a.body[name] = id
				}
			}
		}), fails: map[string]string{"jobs.register.ids": "status 201", "jobs.hire.ids": "status 202"},
			also: registries().ofTheme("Hiring")},
		{name: "hides the schemas", front: eachRow("agents", func(_ *http.Request, row object) {
			skill, _ := row["skill"].(object)
			delete(skill, "input_schema")
		}), fails: map[string]string{"jobs.discover.row": "skills"}},
		{name: "ignores min_reputation", front: ignoresParameter("/discover", "min_reputation"),
			fails: map[string]string{"jobs.discover.filter": ""}, also: []string{"jobs.discover.parameters"}},
		{name: "lists the last agent first", front: editsAnswers(func(_ *http.Request, a *exchange) {
			if list, ok := a.body["agents"].([]any); ok {
				slices.Reverse(list)
			}
		}), fails: map[string]string{"jobs.discover.order": ""}, also: []string{"jobs.discover.filter"}},
		{name: "lists the skills of deleted agents", front: keepsSkills,
			fails: map[string]string{"jobs.discover.skills": "still there"}},
		{name: "keeps no heartbeats", front: eachRow("agents", func(_ *http.Request, row object) {
			row["last_heartbeat"] = nil
		}), fails: map[string]string{"jobs.heartbeat": "last_heartbeat"}},
		{name: "is offline after a heartbeat", front: hidesBeating,
			fails: map[string]string{heartbeatExpiry: "", "jobs.heartbeat": ""}},
	}
}

func jobsRunFaults() []fault {
	failures := func(code string) middleware {
		return editsAnswers(func(_ *http.Request, a *exchange) {
			if a.body["error_code"] == code && a.Code == http.StatusOK {
				a.Code, a.body["status"], a.body["error_code"] = http.StatusAccepted, "PENDING", nil
			}
		})
	}
	return []fault{
		{name: "gives no Location", front: hidesHeader("Location"), fails: map[string]string{"jobs.hire.pending": "status 202"}},
		{name: "does not wait for the end", front: changesHeader(func(r *http.Request) {
			if isFor(r, http.MethodPost, "/a/") {
				r.URL.RawQuery = "wait=0"
			}
		}), fails: map[string]string{"jobs.hire.wait": "status 202", "jobs.hire.wait-bounds": "accepted"}},
		{name: "takes every currency", front: acceptsWith(http.StatusUnprocessableEntity, "currency"),
			fails: map[string]string{"jobs.hire.fields": "accepted"},
			also:  []string{"jobs.hire.wait-bounds", "jobs.hire.callback-url", "jobs.hire.order"}},
		{name: "calls every hirer", front: accepts(func(_ *http.Request, a *exchange) bool {
			return textOf(a.sent["callback_url"]) != "" && a.Code == http.StatusUnprocessableEntity
		}), fails: map[string]string{"jobs.hire.callback-url": "accepted"}, also: registries().ofTheme("Hiring")},
		{name: "holds repeats again", front: takesRepeatsAsNew, fails: map[string]string{"jobs.hire.repeat": "the balance is",
			"jobs.hire.race": ""}, also: registries().ofTheme("Hiring")},
		{name: "answers for other jobs", front: acceptsAt(http.StatusConflict, http.MethodPost, "/a/"),
			fails: map[string]string{"jobs.hire.other": "accepted", "jobs.hire.order": "accepted"}},
		{name: "takes every skill", front: failures("SKILL_MISMATCH"),
			fails: map[string]string{"jobs.failure.skill": "status 202"}, also: []string{"jobs.failure.order"}},
		{name: "takes every budget", front: failures("BUDGET_INSUFFICIENT"),
			fails: map[string]string{"jobs.failure.budget": "status 202"}, also: []string{"jobs.failure.order"}},
		{name: "lends credits", front: failures("TRANSFER_FAILED"),
			fails: map[string]string{"jobs.failure.credits": "status 202"}, also: []string{"jobs.failure.order"}},
		{name: "looks at the budget first", front: replaces("/a/", "SKILL_MISMATCH", "BUDGET_INSUFFICIENT"),
			fails: map[string]string{"jobs.failure.order": "BUDGET_INSUFFICIENT"}, also: []string{"jobs.failure.skill"}},
		{name: "needs more than the cost", front: editsRequests(func(_ *http.Request, body object) {
			if body["budget"] == json.Number("0.1") {
				body["budget"] = json.Number("0.099999")
			}
		}), fails: map[string]string{"jobs.failure.exact": "BUDGET_INSUFFICIENT"}},
		{name: "hands out no input", front: eachRow("jobs", func(_ *http.Request, row object) { delete(row, "input_data") }),
			fails: map[string]string{"jobs.pull.success": "job_id"}},
		{name: "hides error messages", front: editsAnswers(func(_ *http.Request, a *exchange) {
			if a.body["error_message"] != nil {
				a.body["error_message"] = nil
			}
		}), fails: map[string]string{"jobs.pull.failure": `"error_message":null`}},
		{name: "hands out jobs again", front: handsOutAgain, fails: map[string]string{"jobs.pull.once": ""},
			also: registries().ofTheme("Agents without an endpoint")},
		{name: "does not wait for jobs", front: ignoresParameter("/jobs", "wait"),
			fails: map[string]string{"jobs.pull.wait": `"jobs":[]`}, also: registries().ofTheme("Agents without an endpoint")},
		{name: "hands out the jobs of all agents", front: handsOutAll, fails: map[string]string{"jobs.pull.own": ""},
			also: registries().ofTheme("Agents without an endpoint")},
	}
}

func resultFaults() []fault {
	ofResults := func(r *http.Request) bool { return isFor(r, "", "/results") || isFor(r, "", "/cb/") }
	return []fault{
		{name: "refuses repeated results", front: refusesRepeats, fails: map[string]string{"jobs.result.repeat": "status 409"},
			also: []string{"jobs.result.race"}},
		{name: "takes results of ended jobs", front: accepts(func(r *http.Request, a *exchange) bool {
			return ofResults(r) && a.Code == http.StatusConflict
		}), fails: map[string]string{"jobs.result.race": "accepted", "jobs.endpoint.race": "accepted",
			"jobs.result.repeat": "accepted", "jobs.endpoint.pending": "accepted"}},
		{name: "takes every status", front: accepts(func(r *http.Request, a *exchange) bool {
			return ofResults(r) && a.Code == http.StatusUnprocessableEntity
		}), fails: map[string]string{"jobs.result.fields": "accepted", "jobs.endpoint.callback": "status 200",
			"jobs.endpoint.pending": "accepted"}},
		{name: "takes PENDING as an end", front: editsRequests(func(r *http.Request, body object) {
			if ofResults(r) && body["status"] == "PENDING" {
				body["status"] = "SUCCESS"
			}
		}), hook: answersJobs(func(_, result object) {
			if result["status"] == "PENDING" {
				result["status"] = "SUCCESS"
			}
		}), fails: map[string]string{"jobs.result.pending": "SUCCESS", "jobs.endpoint.pending": "SUCCESS"},
			also: []string{"jobs.endpoint.callback"}},
		{name: "takes results of every agent", front: accepts(func(r *http.Request, a *exchange) bool {
			return isFor(r, "", "/results") && (a.Code == http.StatusForbidden || a.Code == http.StatusNotFound)
		}), fails: map[string]string{"jobs.result.foreign": "status 200"}},
	}
}

func ledgerFaults() []fault {
	return []fault{
		{name: "holds the price", front: editsRequests(func(_ *http.Request, body object) {
			if body["budget"] == json.Number("0.15") {
				body["budget"] = json.Number("0.1")
			}
		}), fails: map[string]string{"jobs.pay.escrow": "a change by -0.1"}, also: registries().ofTheme("Payment")},
		{name: "keeps the cost of failures", front: editsAnswers(func(_ *http.Request, a *exchange) {
			if a.body["status"] == "FAILURE" {
				a.body["execution_cost"] = json.Number("0.1")
			}
		}), fails: map[string]string{"jobs.pay.refund": `"execution_cost":0.1`}},
		{name: "pays every price", front: editsRequests(func(_ *http.Request, body object) { delete(body, "execution_cost") }),
			fails: map[string]string{"jobs.pay.cost": `"execution_cost":0.1`}},
		{name: "keeps the first price", front: keepsFirstSkills, fails: map[string]string{"jobs.pay.price": "status 202"}},
		{name: "lets the oldest account pay", front: editsRequests(func(_ *http.Request, body object) {
			if body["orchestrator_id"] != nil {
				body["orchestrator_id"] = "nobody"
			}
		}), fails: map[string]string{"jobs.pay.orchestrator": "a change by -0.15", "jobs.reputation.hirer": "the score 51"}},
		{name: "refuses jobs within a principal", front: refusesOwnJobs,
			fails: map[string]string{"jobs.pay.within": "status 200"}},
		{name: "tells no balance", front: editsAnswers(func(_ *http.Request, a *exchange) {
			if a.body["sender_balance"] != nil {
				a.body["sender_balance"] = 0
			}
		}), fails: map[string]string{"jobs.transfer.ok": "sender_balance"}},
		{name: "takes transfers of nothing", front: acceptsWith(http.StatusUnprocessableEntity, "from_owner"),
			fails: map[string]string{"jobs.transfer.fields": "accepted"}, also: []string{"jobs.transfer.refused"}},
		{name: "forgets transfers", front: editsRequests(func(_ *http.Request, body object) {
			if body["from_owner"] != nil {
				body["transfer_id"] = newUUID()
			}
		}), fails: map[string]string{"jobs.transfer.repeat-id": "", "jobs.transfer.race": "a change by -2",
			"jobs.transfer.repeat": "completed", "jobs.transfer.settled-case": "a change by",
			"jobs.transfer.settled-id": "accepted"}, also: registries().ofTheme("Transfers")},
		{name: "pays settled jobs again", front: editsRequests(func(_ *http.Request, body object) {
			if body["from_owner"] != nil && body["job_id"] != nil {
				body["job_id"] = newUUID()
			}
		}), fails: map[string]string{"jobs.transfer.settled": `"kind":"transfer"`}, also: registries().ofTheme("Transfers")},
		{name: "makes accounts for payees", front: acceptsAt(http.StatusNotFound, "", "/transfer"),
			fails: map[string]string{"jobs.transfer.refused": "accepted"}},
		{name: "moves everybody's credits", front: acceptsAt(http.StatusForbidden, "", "/transfer"),
			fails: map[string]string{"jobs.transfer.foreign": "accepted"}},
		{name: "names no error code", front: editsAnswers(func(_ *http.Request, a *exchange) {
			if a.Code == http.StatusBadRequest {
				delete(a.body, "error_code")
			}
		}), fails: map[string]string{"jobs.transfer.too-little": "status 400"}},
		{name: "takes transfers of more than an account has", front: acceptsAt(http.StatusBadRequest, "", "/transfer"),
			fails: map[string]string{"jobs.transfer.overdraw": "", "jobs.transfer.too-little": "accepted"}},
	}
}

func auditFaults() []fault {
	transactions := func(change func(list []any) []any) middleware {
		return editsAnswers(func(_ *http.Request, a *exchange) {
			if list, ok := a.body["transactions"].([]any); ok {
				a.body["transactions"] = change(list)
			}
		})
	}
	asOperator := func(when func(r *http.Request) bool) middleware {
		return changesHeader(func(r *http.Request) {
			if when(r) {
				r.Header.Set("Authorization", "Bearer "+operatorKey)
			}
		})
	}
	return []fault{
		{name: "shows the newest record first", front: transactions(func(list []any) []any {
			slices.Reverse(list)
			return list
		}), fails: map[string]string{"jobs.audit.rows": "transfer_id"}, also: []string{"jobs.audit.filter"}},
		{name: "ignores owner_id", front: ignoresParameter("/audit", "owner_id"),
			fails: map[string]string{"jobs.audit.filter": "transfer"}, also: registries().ofTheme("Audit and economy")},
		{name: "shows the records of all", front: asOperator(func(r *http.Request) bool { return isFor(r, "GET", "/audit") }),
			fails: map[string]string{"jobs.audit.foreign": "transfer"}, also: registries().ofTheme("Audit and economy")},
		{name: "forgets refunds", front: transactions(func(list []any) []any {
			return slices.DeleteFunc(list, func(row any) bool { return row.(object)["kind"] == "refund" })
		}), fails: map[string]string{"jobs.audit.sums": "the sum is"}, also: []string{"jobs.audit.rows"}},
		{name: "shows all balances", front: showsBalances, fails: map[string]string{"jobs.economy": "total_volume"}},
		{name: "repeats grants", front: editsRequests(func(_ *http.Request, body object) {
			if body["grant_id"] != nil {
				body["grant_id"] = newUUID()
			}
		}), fails: map[string]string{"jobs.operator.grant": "a change by 0.5"}, also: []string{"jobs.operator.refused"}},
		{name: "has no supply", front: acceptsAt(http.StatusConflict, "", "/grants"),
			fails: map[string]string{"jobs.operator.supply": "accepted"}, also: []string{"jobs.operator.grant"}},
		{name: "lets principals grant", front: asOperator(func(r *http.Request) bool {
			return isFor(r, "", "/grants") && strings.HasPrefix(keyOf(r), "cj_")
		}), fails: map[string]string{"jobs.operator.refused": "accepted"}},
		{name: "hides records from the operator", front: func(h http.Handler) http.Handler {
			hidden := transactions(func([]any) []any { return []any{} })(h)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if keyOf(r) == operatorKey {
					hidden.ServeHTTP(w, r)
					return
				}
				h.ServeHTTP(w, r)
			})
		}, fails: map[string]string{"jobs.operator.reads": "no"}},
	}
}

func scoreFaults() []fault {
	return []fault{
		{name: "invents agents", front: acceptsAt(http.StatusNotFound, "", "/reputation/"),
			fails: map[string]string{"jobs.reputation.new": "accepted"}},
		{name: "takes 3 for a failure", front: scores(func(_ *http.Request, score float64, stats object) float64 {
			n, _ := wholeNumber(stats["failures"])
			return score + 1.5*float64(n)
		}), fails: map[string]string{"jobs.reputation.values": "the score 47", "jobs.reputation.floor": "the score 17"}},
		{name: "goes below 0", front: scores(func(_ *http.Request, score float64, stats object) float64 {
			if n, _ := wholeNumber(stats["failures"]); n > 11 {
				return 50 - 4.5*float64(n)
			}
			return score
		}), fails: map[string]string{"jobs.reputation.floor": "the score -4"}},
		{name: "counts every job", front: countsEveryJob, fails: map[string]string{"jobs.reputation.cap": "21 successes",
			"jobs.reputation.self": "the score", "jobs.reputation.unpaid": "the score 51",
			"jobs.reputation.undispatched": "the score 51"}},
		{name: "takes outcomes", front: acceptsAt(http.StatusForbidden, "", "/reputation/"),
			fails: map[string]string{"jobs.reputation.closed": "accepted"}},
	}
}

func endpointFaults() []fault {
	unnamed := editsAnswers(func(_ *http.Request, a *exchange) { delete(a.body, "limit") })
	return []fault{
		{name: "sends no Idempotency-Key", hook: dropsHeader("Idempotency-Key"),
			fails: map[string]string{"jobs.endpoint.request": "job_id", "jobs.endpoint.callback-url": "job_id"},
			also:  []string{"jobs.endpoint.retry"}},
		{name: "appends /jobs only once", hook: statuses(func(status int) int {
			if status == http.StatusNotFound || status == http.StatusMethodNotAllowed {
				return http.StatusBadRequest
			}
			return status
		}), fails: map[string]string{"jobs.endpoint.path": "EXECUTION_ERROR"}},
		{name: "takes every result as a success", hook: answersJobs(func(_, result object) {
			if result["status"] == "FAILURE" {
				result["status"] = "SUCCESS"
			}
		}), fails: map[string]string{"jobs.endpoint.failure": "SUCCESS"}, also: registries().ofTheme("Endpoints")},
		{name: "takes every answer as a success", hook: editsAnswers(func(_ *http.Request, a *exchange) {
			if a.sent["skill_name"] != nil {
				setAnswer(a, http.StatusOK, encode(object{"job_id": a.sent["job_id"], "status": "SUCCESS",
					"output_data": object{}}))
			}
		}), fails: map[string]string{"jobs.endpoint.error": "SUCCESS"}, also: registries().ofTheme("Endpoints")},
		{name: "gives up at the first failure", hook: firstAttempts(),
			fails: map[string]string{"jobs.endpoint.retry": "1 calls"}},
		{name: "has one lane for an agent", hook: oneAtATime, fails: map[string]string{"jobs.endpoint.lanes": "status 20"},
			also: registries().ofTheme("Endpoints")},
		{name: "tells hirers nothing", hook: swallows(func(r *http.Request, _ object) bool { return isFor(r, "", "/results/") }),
			fails: map[string]string{"jobs.endpoint.callback-url": "0 calls"}},
		tellsCallbacks(),
		{name: "has no limits", front: acceptsAt(http.StatusTooManyRequests, "", ""),
			fails: map[string]string{"jobs.limits.unfinished": "accepted", "jobs.limits.owners": "accepted",
				agentsLimit: "accepted"}},
		{name: "names no limit", front: func(h http.Handler) http.Handler { return unnamed(fromRemoteAddress(h)) },
			fails: map[string]string{"jobs.limits.principals": "429"},
			also:  []string{"jobs.limits.owners", "jobs.limits.unfinished"}},
	}
}
