package jobs

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// endpoint registers an agent whose jobs come to the run. It replies to each job with what reply returns. Jobs have
// numbers from 1.
func (h *jobsProbe) endpoint(p *principal, suffix string, reply func(a *jobAgent, call int) kit.HookReply) (*jobAgent,
	*kit.Hook) {
	var a *jobAgent
	ready := make(chan struct{})
	k := h.registry.hooks.Add("/agents/"+strings.ToLower(rand.Text()), func(call int) kit.HookReply {
		<-ready
		return reply(a, call)
	})
	a = h.agent(p, kit.Set("api_endpoint", k.URL+suffix))
	close(ready)
	return a, k
}

// replyResult is the reply with a result of the job that was called.
func replyResult(a *jobAgent, changes ...func(kit.Message)) kit.HookReply {
	return kit.HookReply{BodyOf: func(sent kit.Answer) string {
		return string(kit.Canonical(successOf(&job{id: sent.Text("job_id"), agent: a}, changes...)))
	}}
}

func replySuccess(a *jobAgent, _ int) kit.HookReply { return replyResult(a) }

// hireNow asks for a job and waits for its end.
func (h *jobsProbe) hireNow(hirer *principal, a *jobAgent, changes ...func(kit.Message)) (kit.Message, kit.Answer) {
	body := request(hirer, a, changes...)
	return body, h.Write(hirer.key, a.path()+"?wait=20", body)
}

// callbackOf returns the target of the callback in a job that an endpoint has received.
func (h *jobsProbe) callbackOf(call kit.HookCall) string {
	h.Expect("a job with a callback_url {B}/cb/tok_…")
	found := jobCallbackForm.FindStringSubmatch(call.Body.Text("callback_url"))
	if found == nil {
		h.Failf("%s", kit.Excerpt(call.Body.Body, 600))
	}
	return found[1]
}

// jobsEndpointChecks test agents with an endpoint.
var jobsEndpointChecks = []jobsCheck{
	{Number: "jobs.endpoint.request",
		Title: "A job is posted to the endpoint as it was requested, with a callback_url of the registry",
		Cites: `JOBS "Jobs"; GATEWAYS "Requests to other servers"; J-22`, Needs: needsEndpoint, Run: func(h *jobsProbe) {
			hirer, p := h.two()
			before := h.watch(hirer, p)
			a, k := h.endpoint(p, "", replySuccess)
			body, got := h.hireNow(hirer, a)
			h.wantResult(h.wantStatus(got, http.StatusOK), "SUCCESS")
			call := h.WantCalls(k, 1, kit.PromptLimit)[0]
			for _, name := range []string{"job_id", "orchestrator_id", "skill_name", "input_data", "currency"} {
				h.Want(kit.SameJSON(call.Body.Members[name], body[name]), call.Body, "the %s of the request", name)
			}
			h.wantAmount(call.Body, "budget", mustMicros(usualBudget))
			h.callbackOf(call)
			h.Want(call.Method == http.MethodPost && call.Header.Get("Content-Type") == "application/json" &&
				call.Header.Get("Idempotency-Key") == body["job_id"] && call.Header.Get("Authorization") == "", call.Body,
				"POST with Content-Type: application/json and Idempotency-Key: %s, and without Authorization; not %s %v",
				body["job_id"], call.Method, call.Header)
			before.wantMoved("-0.1", "0.1")
			h.wantScore(a, "51", 1, 0)
			h.WantNoMoreCalls(k, 1)
		}},
	{Number: "jobs.endpoint.path", Title: "/jobs is appended to an endpoint; one that ends in /jobs is tried as it is first",
		Cites: `JOBS "Agents"; J-23`, Needs: needsEndpoint, Run: func(h *jobsProbe) {
			hirer, p := h.two()
			for suffix, want := range map[string]string{"": "/jobs", "/jobs": "/jobs", "/v1": "/v1/jobs"} {
				a, k := h.endpoint(p, suffix, replySuccess)
				_, got := h.hireNow(hirer, a)
				h.wantResult(h.wantStatus(got, http.StatusOK), "SUCCESS")
				h.wantPaths(k, want)
			}
			for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed} {
				a, k := h.endpoint(p, "/jobs", func(a *jobAgent, call int) kit.HookReply {
					if call == 1 {
						return kit.ReplyWith(status)
					}
					return replyResult(a)
				})
				_, got := h.hireNow(hirer, a)
				h.wantResult(h.wantStatus(got, http.StatusOK), "SUCCESS")
				h.wantPaths(k, "/jobs", "/jobs/jobs")
			}
		}},
	{Number: "jobs.endpoint.failure", Title: "A FAILURE in the endpoint's answer ends the job",
		Cites: `JOBS "Jobs"; J-20, J-22`, Needs: needsEndpoint, Run: func(h *jobsProbe) {
			hirer, p := h.two()
			before := h.watch(hirer, p)
			a, k := h.endpoint(p, "", func(a *jobAgent, _ int) kit.HookReply {
				return replyResult(a, kit.Set("status", "FAILURE"), kit.Set("error_code", "EXECUTION_ERROR"),
					kit.Set("error_message", "It failed."))
			})
			_, got := h.hireNow(hirer, a)
			h.wantFailure(got, "EXECUTION_ERROR")
			before.wantMoved("0", "0")
			h.wantScore(a, "45.5", 0, 1)
			h.WantNoMoreCalls(k, 1)
		}},
	{Number: "jobs.endpoint.error",
		Title: "An answer that is neither 2xx nor retried, and 2xx without a JobResult, are EXECUTION_ERROR",
		Cites: `JOBS "Jobs"; J-20, J-21`, Needs: needsEndpoint, Run: func(h *jobsProbe) {
			hirer, p := h.two()
			before := h.watch(hirer, p)
			for what, reply := range map[string]kit.HookReply{"400": kit.ReplyWith(http.StatusBadRequest),
				"501": {Status: http.StatusTeapot}, "a redirect": {Status: http.StatusFound,
					Header: http.Header{"Location": {"/"}}},
				"no JSON": {Body: "done"}, "an empty object": {Body: "{}"}, "an empty body": {Status: http.StatusNoContent},
				"another job_id": {BodyOf: func(kit.Answer) string {
					return string(kit.Canonical(kit.Message{"job_id": newUUID(), "agent_id": newUUID(), "status": "SUCCESS",
						"output_data": map[string]any{}}))
				}}} {
				a, k := h.endpoint(p, "", func(*jobAgent, int) kit.HookReply { return reply })
				h.Describe("a job for an endpoint that answers with %s", what)
				_, got := h.hireNow(hirer, a)
				h.wantFailure(got, "EXECUTION_ERROR")
				h.Expect("one call of the endpoint, which answers with %s", what)
				if n := len(k.Seen()); n != 1 {
					h.Failf("%d calls", n)
				}
			}
			before.wantMoved("0", "0")
		}},
	{Number: "jobs.endpoint.retry",
		Title: "408, 425, 429 and 5xx are retried with the same Idempotency-Key and a new callback_url",
		Cites: `JOBS "Jobs"; GATEWAYS "Outbox"`, Needs: needsEndpoint, Wait: 4 * time.Second, Run: func(h *jobsProbe) {
			hirer, p := h.two()
			var jobs []*job
			var hooks []*kit.Hook
			for _, status := range []int{408, 425, 429, 500, 503} {
				a, k := h.endpoint(p, "", func(a *jobAgent, call int) kit.HookReply {
					if call == 1 {
						return kit.ReplyWith(status)
					}
					return replyResult(a)
				})
				jobs, hooks = append(jobs, h.hire(hirer, a)), append(hooks, k)
			}
			for i, k := range hooks {
				calls := h.WantCalls(k, 2, 2*kit.PromptLimit)
				pause := calls[1].Began.Sub(calls[0].Ended)
				h.Expect("the second call about 2 s after the first one, with the same Idempotency-Key")
				if pause < 1500*time.Millisecond || calls[1].Header.Get("Idempotency-Key") != jobs[i].id {
					h.Failf("after %v with %q", pause.Round(time.Millisecond), calls[1].Header.Get("Idempotency-Key"))
				}
				h.Want(h.callbackOf(calls[0]) != h.callbackOf(calls[1]), calls[1].Body, "another callback_url for each attempt")
				h.wantEnded(jobs[i], "SUCCESS")
			}
		}},
	{Number: "jobs.endpoint.pending", Title: "PENDING leaves the job to the callback, which needs no key",
		Cites: `JOBS "Jobs"; J-22`, Needs: needsEndpoint, Run: func(h *jobsProbe) {
			hirer, p := h.two()
			before := h.watch(hirer, p)
			a, k := h.endpoint(p, "", func(a *jobAgent, _ int) kit.HookReply {
				return replyResult(a, kit.Set("status",
					"PENDING"))
			})
			for i, result := range []func(*job) kit.Message{func(j *job) kit.Message { return successOf(j) },
				func(j *job) kit.Message { return failureOf(j) }} {
				j := h.hire(hirer, a)
				call := h.WantCalls(k, i+1, kit.PromptLimit)[i]
				h.Sleep(kit.Quiet)
				h.wantResult(h.at(j), "PENDING")
				callback, other := h.callbackOf(call), successOf(j, kit.Set("execution_cost", number("0.01")))
				h.wantInvalid(h.Write("", callback, kit.With(result(j), "agent_id", newUUID())))
				h.wantInvalid(h.Write("", callback, kit.With(result(j), "status", "DONE")))
				h.wantResult(h.at(j), "PENDING")
				for range 2 {
					got := h.wantStatus(h.Write("", callback, result(j)), http.StatusOK)
					h.Want(got.Text("status") == "ok", got, `{"status":"ok"}`)
				}
				h.wantTaken(h.Write("", callback, other))
				h.wantResult(h.at(j), result(j)["status"].(string))
			}
			before.wantMoved("-0.1", "0.1")
			h.WantNoMoreCalls(k, 2)
		}},
	{Number: "jobs.endpoint.race", Title: "Of results that come to the callback and to the agent's path at once, one ends the job",
		Cites: `JOBS "Jobs"; J-7`, Needs: needsEndpoint, Run: func(h *jobsProbe) {
			hirer, p := h.two()
			a, k := h.endpoint(p, "", func(a *jobAgent, _ int) kit.HookReply {
				return replyResult(a, kit.Set("status",
					"PENDING"))
			})
			for i := range 3 {
				before := h.watch(hirer, p)
				j := h.hire(hirer, a)
				callback := h.callbackOf(h.WantCalls(k, i+1, kit.PromptLimit)[i])
				answers := h.InParallel(6, func(n int) kit.Answer {
					if n%2 == 0 {
						return h.Write("", callback, successOf(j))
					}
					return h.report(j, failureOf(j))
				})
				ended, moved, paid := 1, "0", "0"
				if h.at(j).Text("status") == "SUCCESS" {
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
	{Number: "jobs.endpoint.callback", Title: "An unknown callback is 404, and a callback ends its own job only",
		Cites: `GATEWAYS "Keys of callers"; J-29`, Needs: needsEndpoint, Run: func(h *jobsProbe) {
			hirer, p := h.two()
			a, k := h.endpoint(p, "", func(a *jobAgent, _ int) kit.HookReply {
				return replyResult(a, kit.Set("status",
					"PENDING"))
			})
			first := h.hire(hirer, a)
			callback := h.callbackOf(h.WantCalls(k, 1, kit.PromptLimit)[0])
			second := h.hire(hirer, a)
			h.WantCalls(k, 2, kit.PromptLimit)
			got := h.Write("", callback, successOf(second))
			h.Want(got.Status >= 400 && got.Status < 500, got, "refused: a status of 4xx")
			h.wantResult(h.at(second), "PENDING")
			for _, tok := range []string{kit.UnknownToken, callback[len("/cb/"):] + "A", "x", hirer.key} {
				h.wantUnknown(h.Write("", "/cb/"+tok, successOf(first)))
			}
			h.wantResult(h.at(first), "PENDING")
		}},
	{Number: "jobs.endpoint.lanes", Title: "A slow job of an endpoint does not delay its other jobs",
		Cites: `JOBS "Jobs"; G-19`, Needs: needsEndpoint, Wait: 3 * time.Second, Run: func(h *jobsProbe) {
			hirer, p := h.two()
			a, k := h.endpoint(p, "", func(a *jobAgent, call int) kit.HookReply {
				reply := replyResult(a)
				if call == 1 {
					reply.After = 3 * time.Second
				}
				return reply
			})
			slow := h.hire(hirer, a)
			h.WaitForCalls(k, 1, kit.PromptLimit, func(kit.HookCall) bool { return true })
			_, got := h.hireNow(hirer, a)
			h.wantResult(h.wantStatus(got, http.StatusOK), "SUCCESS")
			h.Want(got.Took < 2*time.Second, got, "the second job ends before the first, and not after %v",
				got.Took.Round(time.Second/10))
			h.wantResult(h.at(slow), "PENDING")
			h.Sleep(2 * time.Second)
			h.wantEnded(slow, "SUCCESS")
			h.WantNoMoreCalls(k, 2)
		}},
	{Number: "jobs.endpoint.callback-url", Title: "The hirer's callback_url gets the JobResult",
		Cites: `JOBS "Jobs"; GATEWAYS "Requests to other servers"; J-24`, Needs: needsEndpoint, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			for _, result := range []func(*job) kit.Message{func(j *job) kit.Message { return successOf(j) },
				func(j *job) kit.Message { return failureOf(j) }} {
				k := h.registry.hooks.Add("/results/"+strings.ToLower(rand.Text()), func(int) kit.HookReply { return kit.ReplyOK })
				j := h.hire(hirer, a, kit.Set("callback_url", k.URL))
				h.finish(j, result(j))
				call := h.WantCalls(k, 1, kit.PromptLimit)[0]
				h.wantResult(call.Body, result(j)["status"].(string))
				h.Want(call.Body.Text("job_id") == j.id && call.Body.Text("agent_id") == a.id && call.Method == http.MethodPost &&
					call.Header.Get("Idempotency-Key") == j.id, call.Body, "POST of the JobResult with Idempotency-Key: %s", j.id)
				h.WantNoText(call.Body, "no key and no callback of the agent", "tok_", hirer.key, a.key)
				h.WantNoMoreCalls(k, 1)
			}
		}},
	{Number: "jobs.endpoint.hidden", Title: "The agent does not learn the hirer's callback_url",
		Cites: `JOBS "Jobs"`, Needs: needsEndpoint, Run: func(h *jobsProbe) {
			hirer, p := h.two()
			results := h.registry.hooks.Add("/results/"+strings.ToLower(rand.Text()),
				func(int) kit.HookReply { return kit.ReplyOK })
			a, k := h.endpoint(p, "", replySuccess)
			_, got := h.hireNow(hirer, a, kit.Set("callback_url", results.URL))
			h.wantResult(h.wantStatus(got, http.StatusOK), "SUCCESS")
			h.WantNoText(h.WantCalls(k, 1, kit.PromptLimit)[0].Body, "no callback_url of the hirer", results.Path)
		}},
}

// wantPaths ends the check unless the calls of a hook had these paths, relative to its URL.
func (h *jobsProbe) wantPaths(k *kit.Hook, want ...string) {
	var got []string
	for _, call := range k.Seen() {
		_, rest, _ := strings.Cut(call.Target, k.Path)
		got = append(got, rest)
	}
	h.Expect("calls of the endpoint at %q", want)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		h.Failf("calls at %q", got)
	}
}

// jobsLimitChecks test the limits of a registry. They run after all others.
var jobsLimitChecks = []jobsCheck{
	{Number: "jobs.limits.unfinished", Title: "An agent has at most 100 unfinished jobs", Cites: `JOBS "Limits"; G-25`,
		Last: true, Run: func(h *jobsProbe) {
			hirer, p := h.two()
			a := h.agentAt(p, kit.NewName(), "0")
			bodies := make([]kit.Message, 101)
			for i := range bodies {
				bodies[i] = request(hirer, a)
			}
			post := func(i int) kit.Answer { return h.Write(hirer.key, a.path()+"?wait=0", bodies[i]) }
			jobs := make([]*job, 100)
			for i, got := range h.severalAtOnce(100, post) {
				jobs[i] = h.pending(hirer, a, bodies[i], got)
			}
			h.wantLimit(post(100), "unfinishedJobs")
			h.pending(hirer, a, bodies[0], post(0)) // a known job is no new one
			h.dispatch(a, jobs...)
			h.reported(jobs[7], failureOf(jobs[7]))
			h.pending(hirer, a, bodies[100], post(100))
			for _, got := range h.severalAtOnce(100, func(i int) kit.Answer { return h.report(jobs[i], failureOf(jobs[i])) }) {
				h.wantStatus(got, http.StatusOK)
			}
		}},
	{Number: "jobs.limits.owners", Title: "A principal has at most 16 accounts", Cites: `JOBS "Limits"; G-25`,
		Last: true, Run: func(h *jobsProbe) {
			p := h.one()
			h.account(p, 14) // with the oldest one, these are 16
			h.wantLimit(h.Write(p.key, "/accounts", kit.Message{"owner_id": kit.NewName()}), "owners")
			h.wantLimit(h.Write(p.key, "/register", registrationOf(newUUID(), kit.NewName(), kit.NewName(), usualPrice)),
				"owners")
			h.wantStatus(h.Write(p.key, "/accounts", kit.Message{"owner_id": p.others[3]}), http.StatusCreated)
			h.agent(p)
		}},
	{Number: "jobs.limits.agents", Title: "A principal has at most 100 agents", Cites: `JOBS "Limits"; G-25`,
		Needs: kit.NeedsThorough, Last: true, Run: func(h *jobsProbe) {
			p := h.one()
			for range 100 {
				h.agent(p)
			}
			h.wantRefused(h.Write(p.key, "/register", registrationOf(newUUID(), p.owner, kit.NewName(), usualPrice)),
				http.StatusTooManyRequests)
			h.wantStatus(h.register(h.agents[7], p.key), http.StatusCreated)
			h.wantStatus(h.Remove(p.key, "/agents/"+h.agents[7].id), http.StatusOK)
			h.agent(p)
		}},
	{Number: "jobs.limits.principals", Title: "10 new principals a day are allowed to one address, and no more",
		Cites: `JOBS "Limits"; G-25`, Needs: kit.NeedsThorough, Last: true, Run: func(h *jobsProbe) {
			for i := range 30 {
				target, body := "/accounts", kit.Message{"owner_id": kit.NewName()}
				if i%2 == 0 {
					target, body = "/register", registrationOf(newUUID(), kit.NewName(), kit.NewName(), usualPrice)
				}
				a := h.Write("", target, body)
				if a.Status == http.StatusTooManyRequests {
					h.wantLimit(a, "principals")
					return
				}
				h.wantStatus(a, http.StatusCreated)
				if i%2 == 0 {
					h.agents = append(h.agents, &jobAgent{principal: &principal{key: a.Text("api_key")}, id: a.Text("agent_id")})
				}
			}
			h.End(kit.NotTested, "this needs a registry that limits this address; a registry may exempt its own machine")
		}},
}
