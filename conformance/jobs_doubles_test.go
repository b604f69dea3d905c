package conformance_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/jobs"
	"github.com/agora-relay/agora/relay/httpapi"
)

// Middlewares that wrap this project's registry, or stand between it and the agents and hirers that it calls.

// startJobs runs this project's registry until the test ends, and returns its URL.
func startJobs(t *testing.T, front middleware) string {
	t.Helper()
	url := startGateway(t, front, jobs.Extension,
		func(core *gateway.Core) ([]httpapi.Mount, func(context.Context), error) {
			served, err := jobs.New(t.Context(), core, jobs.Defaults)
			if err != nil {
				return nil, nil, err
			}
			return served.Mounts("/jobs"), served.Run, nil
		})
	return url + "/jobs"
}

// newUUID returns a random UUID.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// eachRow is a middleware that changes the rows of a list in answers.
func eachRow(list string, change func(r *http.Request, row object)) middleware {
	return editsAnswers(func(r *http.Request, a *exchange) {
		for _, row := range rowsIn(a.body, list, "") {
			change(r, row)
		}
	})
}

// rest returns a part of the path behind a text, such as the id behind /agents/.
func rest(r *http.Request, behind string) string {
	_, text, _ := strings.Cut(r.URL.Path, behind)
	text, _, _ = strings.Cut(text, "/")
	return text
}

// paysAgain shows more credits when an account is opened again.
func paysAgain(h http.Handler) http.Handler {
	var opened sync.Map
	return editsAnswers(func(r *http.Request, a *exchange) {
		if r.Method == http.MethodPost && a.body["balance"] != nil {
			if _, again := opened.LoadOrStore(a.sent["owner_id"], true); again {
				a.body["balance"] = json.Number("1000")
			}
		}
	})(h)
}

// showsJobsKeys shows the key of an agent's principal in its rows.
func showsJobsKeys(h http.Handler) http.Handler {
	var keys sync.Map // by agent
	return editsAnswers(func(r *http.Request, a *exchange) {
		if a.body["status"] == "registered" {
			keys.Store(a.body["agent_id"], keyOf(r))
		}
		for _, row := range append(rowsIn(a.body, "agents", ""), a.body) {
			if key, ok := keys.Load(row["agent_id"]); ok {
				row["key"] = key
			}
		}
	})(h)
}

// tellsJobs answers 404 instead of 403 for a job that does not exist.
func tellsJobs(h http.Handler) http.Handler {
	var known sync.Map
	return editsAnswers(func(r *http.Request, a *exchange) {
		if a.Code == http.StatusAccepted {
			known.Store(a.body["job_id"], true)
		}
		if _, exists := known.Load(rest(r, "/jobs/jobs/")); !exists && a.Code == http.StatusForbidden &&
			isFor(r, http.MethodGet, "/jobs/jobs/") {
			a.Code = http.StatusNotFound
		}
	})(h)
}

// paysAtRegistration gives 100 credits to the account of a new principal.
func paysAtRegistration(h http.Handler) http.Handler {
	return editsAnswers(func(r *http.Request, a *exchange) {
		if a.body["status"] == "registered" && a.body["api_key"] != nil {
			internally(h, r, http.MethodPost, "/jobs/operator/grants", operatorKey, object{"grant_id": newUUID(),
				"owner_id": a.sent["owner_id"], "amount": 100})
		}
	})(h)
}

// keepsSkills lists every skill that an agent ever had.
func keepsSkills(h http.Handler) http.Handler {
	var mu sync.Mutex
	var names []any
	return editsAnswers(func(r *http.Request, a *exchange) {
		mu.Lock()
		defer mu.Unlock()
		for _, skill := range rowsIn(a.sent, "skills", "") {
			names = append(names, skill["skill_name"])
		}
		if strings.HasSuffix(r.URL.Path, "/skills") && a.Code == http.StatusOK {
			a.body["skills"] = slices.Clone(names)
		}
	})(h)
}

// hidesBeating does not list agents that have sent a heartbeat.
func hidesBeating(h http.Handler) http.Handler {
	var beating sync.Map
	return editsAnswers(func(r *http.Request, a *exchange) {
		if isFor(r, http.MethodPost, "/heartbeat") && a.Code == http.StatusOK {
			beating.Store(a.sent["agent_id"], true)
		}
		if list, ok := a.body["agents"].([]any); ok {
			list = slices.DeleteFunc(list, func(row any) bool {
				_, hidden := beating.Load(row.(object)["agent_id"])
				return hidden
			})
			a.body["agents"], a.body["total"] = list, len(list)
		}
	})(h)
}

// takesRepeatsAsNew takes a repeated job as a new one.
func takesRepeatsAsNew(h http.Handler) http.Handler {
	var seen sync.Map
	return editsRequests(func(r *http.Request, body object) {
		if isFor(r, http.MethodPost, "/a/") && body["job_id"] != nil {
			if _, again := seen.LoadOrStore(body["job_id"], true); again {
				body["job_id"] = newUUID()
			}
		}
	})(h)
}

// handsOutAgain hands out all jobs of an agent each time.
func handsOutAgain(h http.Handler) http.Handler {
	var mu sync.Mutex
	given := map[string][]any{} // by agent
	return editsAnswers(func(r *http.Request, a *exchange) {
		list, ok := a.body["jobs"].([]any)
		if !ok {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		agent := rest(r, "/agents/")
		given[agent] = append(given[agent], list...)
		a.body["jobs"] = slices.Clone(given[agent])
	})(h)
}

// handsOutAll hands out to an agent also the jobs of the other agents of its principal.
func handsOutAll(h http.Handler) http.Handler {
	var mu sync.Mutex
	agents := map[string][]string{} // by key
	return editsAnswers(func(r *http.Request, a *exchange) {
		mu.Lock()
		defer mu.Unlock()
		if a.body["status"] == "registered" {
			agents[keyOf(r)] = append(agents[keyOf(r)], textOf(a.body["agent_id"]))
		}
		if list, ok := a.body["jobs"].([]any); ok {
			for _, agent := range agents[keyOf(r)] {
				other := internally(h, r, http.MethodGet, "/jobs/agents/"+agent+"/jobs", keyOf(r), nil)
				more, _ := other.body["jobs"].([]any)
				list = append(list, more...)
			}
			a.body["jobs"] = list
		}
	})(h)
}

// refusesRepeats refuses a result that has been reported before.
func refusesRepeats(h http.Handler) http.Handler {
	var reported sync.Map
	return editsAnswers(func(r *http.Request, a *exchange) {
		if isFor(r, http.MethodPost, "/results") && a.Code == http.StatusOK {
			if _, again := reported.LoadOrStore(string(a.raw), true); again {
				setAnswer(a, http.StatusConflict, refusedByJobs)
			}
		}
	})(h)
}

// keepsFirstSkills ignores the skills of an agent that registers again.
func keepsFirstSkills(h http.Handler) http.Handler {
	var skills sync.Map // by agent
	return editsRequests(func(_ *http.Request, body object) {
		if body["skills"] != nil {
			body["skills"], _ = skills.LoadOrStore(body["agent_id"], body["skills"])
		}
	})(h)
}

// refusesOwnJobs fails a job whose hirer is the agent's principal.
func refusesOwnJobs(h http.Handler) http.Handler {
	var keys sync.Map // by agent
	return editsAnswers(func(r *http.Request, a *exchange) {
		if a.body["status"] == "registered" {
			keys.Store(a.body["agent_id"], keyOf(r))
		}
		if key, ok := keys.Load(rest(r, "/a/")); ok && key == keyOf(r) {
			a.Code, a.body["status"], a.body["error_code"] = http.StatusOK, "FAILURE", "SKILL_MISMATCH"
		}
	})(h)
}

// showsBalances shows in /economy the accounts of everybody.
func showsBalances(h http.Handler) http.Handler {
	var mu sync.Mutex
	seen := object{}
	return editsAnswers(func(r *http.Request, a *exchange) {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodPost && a.body["balance"] != nil {
			seen[textOf(a.body["owner_id"])] = a.body["balance"]
		}
		if all, ok := a.body["all_balances"].(object); ok {
			for owner, balance := range seen {
				if all[owner] == nil {
					all[owner] = balance
				}
			}
		}
	})(h)
}

// scores is a middleware that changes the score in /reputation.
func scores(change func(r *http.Request, score float64, stats object) float64) middleware {
	return editsAnswers(func(r *http.Request, a *exchange) {
		stats, _ := a.body["stats"].(object)
		text, ok := a.body["score"].(json.Number)
		if score, err := text.Float64(); ok && err == nil && stats != nil {
			shown := strconv.FormatFloat(change(r, score, stats), 'f', -1, 64)
			if !strings.Contains(shown, ".") {
				shown += ".0"
			}
			a.body["score"] = json.Number(shown)
		}
	})
}

// countsEveryJob counts each success that an agent reports.
func countsEveryJob(h http.Handler) http.Handler {
	var mu sync.Mutex
	successes := map[string]int64{} // by agent
	counted := scores(func(r *http.Request, score float64, stats object) float64 {
		mu.Lock()
		defer mu.Unlock()
		n, _ := wholeNumber(stats["successes"])
		total, _ := wholeNumber(stats["total"])
		more := max(0, successes[rest(r, "/reputation/")]-n)
		stats["successes"], stats["total"] = n+more, total+more
		return score + float64(more)
	})
	return counted(editsAnswers(func(r *http.Request, a *exchange) {
		if isFor(r, http.MethodPost, "/results") && a.Code == http.StatusOK && a.sent["status"] == "SUCCESS" {
			mu.Lock()
			successes[rest(r, "/agents/")]++
			mu.Unlock()
		}
	})(h))
}

// answersJobs is a hook that changes what endpoints answer to jobs.
func answersJobs(change func(job, result object)) middleware {
	return editsAnswers(func(_ *http.Request, a *exchange) {
		if a.sent["skill_name"] != nil && a.body != nil {
			change(a.sent, a.body)
		}
	})
}

// tellsCallbacks is a registry that tells agents the callback_url of their hirers.
func tellsCallbacks() fault {
	var urls sync.Map // by job
	return fault{name: "sends the hirer's callback_url",
		front: editsRequests(func(r *http.Request, body object) {
			if isFor(r, http.MethodPost, "/a/") {
				urls.Store(body["job_id"], body["callback_url"])
			}
		}),
		hook: editsRequests(func(_ *http.Request, body object) {
			if url, ok := urls.Load(body["job_id"]); ok && body["skill_name"] != nil {
				body["hirer"] = url
			}
		}), fails: map[string]string{"jobs.endpoint.hidden": "hirer"}}
}
