package conformance

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// endpoint registers an agent whose jobs come to the run. It replies to each job with what reply returns. Jobs have
// numbers from 1.
func (h *jobsProbe) endpoint(p *principal, suffix string, reply func(a *jobAgent, call int) hookReply) (*jobAgent, *hook) {
	var a *jobAgent
	ready := make(chan struct{})
	k := h.registry.hooks.add("/agents/"+strings.ToLower(rand.Text()), func(call int) hookReply {
		<-ready
		return reply(a, call)
	})
	a = h.agent(p, set("api_endpoint", k.url+suffix))
	close(ready)
	return a, k
}

// replyResult is the reply with a result of the job that was called.
func replyResult(a *jobAgent, changes ...func(message)) hookReply {
	return hookReply{bodyOf: func(sent answer) string {
		return string(canonical(successOf(&job{id: sent.text("job_id"), agent: a}, changes...)))
	}}
}

func replySuccess(a *jobAgent, _ int) hookReply { return replyResult(a) }

// hireNow asks for a job and waits for its end.
func (h *jobsProbe) hireNow(hirer *principal, a *jobAgent, changes ...func(message)) (message, answer) {
	body := request(hirer, a, changes...)
	return body, h.write(hirer.key, a.path()+"?wait=20", body)
}

// callbackOf returns the target of the callback in a job that an endpoint has received.
func (h *jobsProbe) callbackOf(call hookCall) string {
	h.expect("a job with a callback_url {B}/cb/tok_…")
	found := jobCallbackForm.FindStringSubmatch(call.body.text("callback_url"))
	if found == nil {
		h.failf("%s", excerpt(call.body.body, 600))
	}
	return found[1]
}

// jobsEndpointChecks test agents with an endpoint.
var jobsEndpointChecks = []jobsCheck{
	{number: "jobs.endpoint.request",
		title: "A job is posted to the endpoint as it was requested, with a callback_url of the registry",
		cites: `JOBS "Jobs"; GATEWAYS "Requests to other servers"; J-22`, needs: needsEndpoint, run: func(h *jobsProbe) {
			hirer, p := h.two()
			before := h.watch(hirer, p)
			a, k := h.endpoint(p, "", replySuccess)
			body, got := h.hireNow(hirer, a)
			h.wantResult(h.wantStatus(got, http.StatusOK), "SUCCESS")
			call := h.wantCalls(k, 1, promptLimit)[0]
			for _, name := range []string{"job_id", "orchestrator_id", "skill_name", "input_data", "currency"} {
				h.want(sameJSON(call.body.members[name], body[name]), call.body, "the %s of the request", name)
			}
			h.wantAmount(call.body, "budget", mustMicros(usualBudget))
			h.callbackOf(call)
			h.want(call.method == http.MethodPost && call.header.Get("Content-Type") == "application/json" &&
				call.header.Get("Idempotency-Key") == body["job_id"] && call.header.Get("Authorization") == "", call.body,
				"POST with Content-Type: application/json and Idempotency-Key: %s, and without Authorization; not %s %v",
				body["job_id"], call.method, call.header)
			before.wantMoved("-0.1", "0.1")
			h.wantScore(a, "51", 1, 0)
			h.wantNoMoreCalls(k, 1)
		}},
	{number: "jobs.endpoint.path", title: "/jobs is appended to an endpoint; one that ends in /jobs is tried as it is first",
		cites: `JOBS "Agents"; J-23`, needs: needsEndpoint, run: func(h *jobsProbe) {
			hirer, p := h.two()
			for suffix, want := range map[string]string{"": "/jobs", "/jobs": "/jobs", "/v1": "/v1/jobs"} {
				a, k := h.endpoint(p, suffix, replySuccess)
				_, got := h.hireNow(hirer, a)
				h.wantResult(h.wantStatus(got, http.StatusOK), "SUCCESS")
				h.wantPaths(k, want)
			}
			for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed} {
				a, k := h.endpoint(p, "/jobs", func(a *jobAgent, call int) hookReply {
					if call == 1 {
						return replyWith(status)
					}
					return replyResult(a)
				})
				_, got := h.hireNow(hirer, a)
				h.wantResult(h.wantStatus(got, http.StatusOK), "SUCCESS")
				h.wantPaths(k, "/jobs", "/jobs/jobs")
			}
		}},
	{number: "jobs.endpoint.failure", title: "A FAILURE in the endpoint's answer ends the job",
		cites: `JOBS "Jobs"; J-20, J-22`, needs: needsEndpoint, run: func(h *jobsProbe) {
			hirer, p := h.two()
			before := h.watch(hirer, p)
			a, k := h.endpoint(p, "", func(a *jobAgent, _ int) hookReply {
				return replyResult(a, set("status", "FAILURE"), set("error_code", "EXECUTION_ERROR"),
					set("error_message", "It failed."))
			})
			_, got := h.hireNow(hirer, a)
			h.wantFailure(got, "EXECUTION_ERROR")
			before.wantMoved("0", "0")
			h.wantScore(a, "45.5", 0, 1)
			h.wantNoMoreCalls(k, 1)
		}},
	{number: "jobs.endpoint.error",
		title: "An answer that is neither 2xx nor retried, and 2xx without a JobResult, are EXECUTION_ERROR",
		cites: `JOBS "Jobs"; J-20, J-21`, needs: needsEndpoint, run: func(h *jobsProbe) {
			hirer, p := h.two()
			before := h.watch(hirer, p)
			for what, reply := range map[string]hookReply{"400": replyWith(http.StatusBadRequest),
				"501": {status: http.StatusTeapot}, "a redirect": {status: http.StatusFound, header: http.Header{"Location": {"/"}}},
				"no JSON": {body: "done"}, "an empty object": {body: "{}"}, "an empty body": {status: http.StatusNoContent},
				"another job_id": {bodyOf: func(answer) string {
					return string(canonical(message{"job_id": newUUID(), "agent_id": newUUID(), "status": "SUCCESS",
						"output_data": map[string]any{}}))
				}}} {
				a, k := h.endpoint(p, "", func(*jobAgent, int) hookReply { return reply })
				h.describe("a job for an endpoint that answers with %s", what)
				_, got := h.hireNow(hirer, a)
				h.wantFailure(got, "EXECUTION_ERROR")
				h.expect("one call of the endpoint, which answers with %s", what)
				if n := len(k.seen()); n != 1 {
					h.failf("%d calls", n)
				}
			}
			before.wantMoved("0", "0")
		}},
	{number: "jobs.endpoint.retry",
		title: "408, 425, 429 and 5xx are retried with the same Idempotency-Key and a new callback_url",
		cites: `JOBS "Jobs"; GATEWAYS "Outbox"`, needs: needsEndpoint, wait: 4 * time.Second, run: func(h *jobsProbe) {
			hirer, p := h.two()
			var jobs []*job
			var hooks []*hook
			for _, status := range []int{408, 425, 429, 500, 503} {
				a, k := h.endpoint(p, "", func(a *jobAgent, call int) hookReply {
					if call == 1 {
						return replyWith(status)
					}
					return replyResult(a)
				})
				jobs, hooks = append(jobs, h.hire(hirer, a)), append(hooks, k)
			}
			for i, k := range hooks {
				calls := h.wantCalls(k, 2, 2*promptLimit)
				pause := calls[1].began.Sub(calls[0].ended)
				h.expect("the second call about 2 s after the first one, with the same Idempotency-Key")
				if pause < 1500*time.Millisecond || calls[1].header.Get("Idempotency-Key") != jobs[i].id {
					h.failf("after %v with %q", pause.Round(time.Millisecond), calls[1].header.Get("Idempotency-Key"))
				}
				h.want(h.callbackOf(calls[0]) != h.callbackOf(calls[1]), calls[1].body, "another callback_url for each attempt")
				h.wantEnded(jobs[i], "SUCCESS")
			}
		}},
	{number: "jobs.endpoint.pending", title: "PENDING leaves the job to the callback, which needs no key",
		cites: `JOBS "Jobs"; J-22`, needs: needsEndpoint, run: func(h *jobsProbe) {
			hirer, p := h.two()
			before := h.watch(hirer, p)
			a, k := h.endpoint(p, "", func(a *jobAgent, _ int) hookReply { return replyResult(a, set("status", "PENDING")) })
			for i, result := range []func(*job) message{func(j *job) message { return successOf(j) },
				func(j *job) message { return failureOf(j) }} {
				j := h.hire(hirer, a)
				call := h.wantCalls(k, i+1, promptLimit)[i]
				h.sleep(quiet)
				h.wantResult(h.at(j), "PENDING")
				callback, other := h.callbackOf(call), successOf(j, set("execution_cost", number("0.01")))
				h.wantInvalid(h.write("", callback, with(result(j), "agent_id", newUUID())))
				h.wantInvalid(h.write("", callback, with(result(j), "status", "DONE")))
				h.wantResult(h.at(j), "PENDING")
				for range 2 {
					got := h.wantStatus(h.write("", callback, result(j)), http.StatusOK)
					h.want(got.text("status") == "ok", got, `{"status":"ok"}`)
				}
				h.wantTaken(h.write("", callback, other))
				h.wantResult(h.at(j), result(j)["status"].(string))
			}
			before.wantMoved("-0.1", "0.1")
			h.wantNoMoreCalls(k, 2)
		}},
	{number: "jobs.endpoint.race", title: "Of results that come to the callback and to the agent's path at once, one ends the job",
		cites: `JOBS "Jobs"; J-7`, needs: needsEndpoint, run: func(h *jobsProbe) {
			hirer, p := h.two()
			a, k := h.endpoint(p, "", func(a *jobAgent, _ int) hookReply { return replyResult(a, set("status", "PENDING")) })
			for i := range 3 {
				before := h.watch(hirer, p)
				j := h.hire(hirer, a)
				callback := h.callbackOf(h.wantCalls(k, i+1, promptLimit)[i])
				answers := h.inParallel(6, func(n int) answer {
					if n%2 == 0 {
						return h.write("", callback, successOf(j))
					}
					return h.report(j, failureOf(j))
				})
				ended, moved, paid := 1, "0", "0"
				if h.at(j).text("status") == "SUCCESS" {
					ended, moved, paid = 0, "-0.1", "0.1"
				}
				for n, got := range answers {
					if n%2 == ended {
						h.wantStatus(got, http.StatusOK)
					} else {
						h.wantTaken(got)
					}
				}
				before.wantMoved(moved, paid)
			}
		}},
	{number: "jobs.endpoint.callback", title: "An unknown callback is 404, and a callback ends its own job only",
		cites: `GATEWAYS "Keys of callers"; J-29`, needs: needsEndpoint, run: func(h *jobsProbe) {
			hirer, p := h.two()
			a, k := h.endpoint(p, "", func(a *jobAgent, _ int) hookReply { return replyResult(a, set("status", "PENDING")) })
			first := h.hire(hirer, a)
			callback := h.callbackOf(h.wantCalls(k, 1, promptLimit)[0])
			second := h.hire(hirer, a)
			h.wantCalls(k, 2, promptLimit)
			got := h.write("", callback, successOf(second))
			h.want(got.status >= 400 && got.status < 500, got, "refused: a status of 4xx")
			h.wantResult(h.at(second), "PENDING")
			for _, tok := range []string{unknownToken, callback[len("/cb/"):] + "A", "x", hirer.key} {
				h.wantUnknown(h.write("", "/cb/"+tok, successOf(first)))
			}
			h.wantResult(h.at(first), "PENDING")
		}},
	{number: "jobs.endpoint.lanes", title: "A slow job of an endpoint does not delay its other jobs",
		cites: `JOBS "Jobs"; G-19`, needs: needsEndpoint, wait: 3 * time.Second, run: func(h *jobsProbe) {
			hirer, p := h.two()
			a, k := h.endpoint(p, "", func(a *jobAgent, call int) hookReply {
				reply := replyResult(a)
				if call == 1 {
					reply.after = 3 * time.Second
				}
				return reply
			})
			slow := h.hire(hirer, a)
			h.waitForCalls(k, 1, promptLimit, func(hookCall) bool { return true })
			_, got := h.hireNow(hirer, a)
			h.wantResult(h.wantStatus(got, http.StatusOK), "SUCCESS")
			h.want(got.took < 2*time.Second, got, "the second job ends before the first, and not after %v",
				got.took.Round(second/10))
			h.wantResult(h.at(slow), "PENDING")
			h.sleep(2 * time.Second)
			h.wantEnded(slow, "SUCCESS")
			h.wantNoMoreCalls(k, 2)
		}},
	{number: "jobs.endpoint.callback-url", title: "The hirer's callback_url gets the JobResult",
		cites: `JOBS "Jobs"; GATEWAYS "Requests to other servers"; J-24`, needs: needsEndpoint, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			for _, result := range []func(*job) message{func(j *job) message { return successOf(j) },
				func(j *job) message { return failureOf(j) }} {
				k := h.registry.hooks.add("/results/"+strings.ToLower(rand.Text()), func(int) hookReply { return replyOK })
				j := h.hire(hirer, a, set("callback_url", k.url))
				h.finish(j, result(j))
				call := h.wantCalls(k, 1, promptLimit)[0]
				h.wantResult(call.body, result(j)["status"].(string))
				h.want(call.body.text("job_id") == j.id && call.body.text("agent_id") == a.id && call.method == http.MethodPost &&
					call.header.Get("Idempotency-Key") == j.id, call.body, "POST of the JobResult with Idempotency-Key: %s", j.id)
				h.wantNoText(call.body, "no key and no callback of the agent", "tok_", hirer.key, a.key)
				h.wantNoMoreCalls(k, 1)
			}
		}},
	{number: "jobs.endpoint.hidden", title: "The agent does not learn the hirer's callback_url",
		cites: `JOBS "Jobs"`, needs: needsEndpoint, run: func(h *jobsProbe) {
			hirer, p := h.two()
			results := h.registry.hooks.add("/results/"+strings.ToLower(rand.Text()), func(int) hookReply { return replyOK })
			a, k := h.endpoint(p, "", replySuccess)
			_, got := h.hireNow(hirer, a, set("callback_url", results.url))
			h.wantResult(h.wantStatus(got, http.StatusOK), "SUCCESS")
			h.wantNoText(h.wantCalls(k, 1, promptLimit)[0].body, "no callback_url of the hirer", results.path)
		}},
}

// wantPaths ends the check unless the calls of a hook had these paths, relative to its URL.
func (h *jobsProbe) wantPaths(k *hook, want ...string) {
	var got []string
	for _, call := range k.seen() {
		_, rest, _ := strings.Cut(call.target, k.path)
		got = append(got, rest)
	}
	h.expect("calls of the endpoint at %q", want)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		h.failf("calls at %q", got)
	}
}

// jobsLimitChecks test the limits of a registry. They run after all others.
var jobsLimitChecks = []jobsCheck{
	{number: "jobs.limits.unfinished", title: "An agent has at most 100 unfinished jobs", cites: `JOBS "Limits"; G-25`,
		last: true, run: func(h *jobsProbe) {
			hirer, p := h.two()
			a := h.agentAt(p, newName(), "0")
			bodies := make([]message, 101)
			for i := range bodies {
				bodies[i] = request(hirer, a)
			}
			post := func(i int) answer { return h.write(hirer.key, a.path()+"?wait=0", bodies[i]) }
			jobs := make([]*job, 100)
			for i, got := range h.severalAtOnce(100, post) {
				jobs[i] = h.pending(hirer, a, bodies[i], got)
			}
			h.wantLimit(post(100), "unfinishedJobs")
			h.pending(hirer, a, bodies[0], post(0)) // a known job is no new one
			h.dispatch(a, jobs...)
			h.reported(jobs[7], failureOf(jobs[7]))
			h.pending(hirer, a, bodies[100], post(100))
			for _, got := range h.severalAtOnce(100, func(i int) answer { return h.report(jobs[i], failureOf(jobs[i])) }) {
				h.wantStatus(got, http.StatusOK)
			}
		}},
	{number: "jobs.limits.owners", title: "A principal has at most 16 accounts", cites: `JOBS "Limits"; G-25`,
		last: true, run: func(h *jobsProbe) {
			p := h.one()
			h.account(p, 14) // with the oldest one, these are 16
			h.wantLimit(h.write(p.key, "/accounts", message{"owner_id": newName()}), "owners")
			h.wantLimit(h.write(p.key, "/register", registrationOf(newUUID(), newName(), newName(), usualPrice)), "owners")
			h.wantStatus(h.write(p.key, "/accounts", message{"owner_id": p.others[3]}), http.StatusCreated)
			h.agent(p)
		}},
	{number: "jobs.limits.agents", title: "A principal has at most 100 agents", cites: `JOBS "Limits"; G-25`,
		needs: needsThorough, last: true, run: func(h *jobsProbe) {
			p := h.one()
			for range 100 {
				h.agent(p)
			}
			h.wantRefused(h.write(p.key, "/register", registrationOf(newUUID(), p.owner, newName(), usualPrice)),
				http.StatusTooManyRequests)
			h.wantStatus(h.register(h.agents[7], p.key), http.StatusCreated)
			h.wantStatus(h.remove(p.key, "/agents/"+h.agents[7].id), http.StatusOK)
			h.agent(p)
		}},
	{number: "jobs.limits.principals", title: "10 new principals a day are allowed to one address, and no more",
		cites: `JOBS "Limits"; G-25`, needs: needsThorough, last: true, run: func(h *jobsProbe) {
			for i := range 30 {
				target, body := "/accounts", message{"owner_id": newName()}
				if i%2 == 0 {
					target, body = "/register", registrationOf(newUUID(), newName(), newName(), usualPrice)
				}
				a := h.write("", target, body)
				if a.status == http.StatusTooManyRequests {
					h.wantLimit(a, "principals")
					return
				}
				h.wantStatus(a, http.StatusCreated)
				if i%2 == 0 {
					h.agents = append(h.agents, &jobAgent{principal: &principal{key: a.text("api_key")}, id: a.text("agent_id")})
				}
			}
			h.end(NotTested, "this needs a registry that limits this address; a registry may exempt its own machine")
		}},
}
