package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// jobsAgent is an agent with one skill.
type jobsAgent struct {
	id      string
	kind    agentKind
	account *account
	price   int64 // millionths of a credit
}

// agentKind is how an agent gets its jobs, and how it delivers the results.
type agentKind int

const (
	pulls           agentKind = iota // it pulls its jobs, and posts the results
	answers                          // its endpoint answers with the result
	answersAfter404                  // the same, but only under the path of the endpoint with /jobs after it
	callsBack                        // its endpoint answers PENDING, and it posts the result to the callback
)

// startAgent registers an agent with its own principal, and starts it.
func (l *jobsLoad) startAgent(kind agentKind) {
	l.t.Helper()
	n := len(l.agents)
	a := &jobsAgent{id: l.uuid(), kind: kind, account: l.open(fmt.Sprint("agent", n), 100_000_000),
		price: 100_001 + int64(n)}
	body := map[string]any{"agent_id": a.id, "agent_name": a.account.id, "owner_id": a.account.id,
		"skills": []any{map[string]any{"skill_name": "work", "cost_per_call": credits(a.price)}}}
	if kind == pulls {
		l.delivering.Go(func() { l.pull(a) })
	} else {
		s := httptest.NewServer(l.endpoint(a))
		l.t.Cleanup(s.Close)
		body["api_endpoint"] = s.URL + "/jobs"
	}
	l.must(jobsCall{"POST", "/register", a.account.key, body}, 201)
	l.agents = append(l.agents, a)
}

// The variants of a result. The relay must take one of them, and refuse the other.
const (
	planned  = "planned"
	opposite = "opposite" // it reports FAILURE instead of SUCCESS, or the reverse
)

// status returns the status in a variant of a job's result, and what it costs.
func (j *hiredJob) status(variant string) (status string, cost int64) {
	switch {
	case j.fails == (variant == planned):
		return "FAILURE", 0
	case variant == opposite || j.claim < 0:
		return "SUCCESS", j.agent.price
	}
	return "SUCCESS", min(j.claim, j.agent.price)
}

// result returns a variant of a job's result.
func (j *hiredJob) result(variant string) map[string]any {
	status, _ := j.status(variant)
	r := map[string]any{"job_id": j.id, "agent_id": j.agent.id, "status": status,
		"output_data": map[string]any{"variant": variant}}
	if variant == planned && j.claim >= 0 {
		r["execution_cost"] = credits(j.claim)
	}
	return r
}

// finalResult is the JobResult of a job that has ended.
type finalResult struct {
	JobID   string `json:"job_id"`
	AgentID string `json:"agent_id"`
	Status  string `json:"status"`
	Output  struct {
		Variant string `json:"variant"`
	} `json:"output_data"`
	Cost    float64 `json:"execution_cost"`
	Code    string  `json:"error_code"`
	Message string  `json:"error_message"`
}

// parseFinal parses the final JobResult of a job; empty: the job has not ended.
func parseFinal(t testing.TB, j *hiredJob, text string) (r finalResult) {
	if text == "" {
		return r
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil || r.JobID != j.id || r.AgentID != j.agent.id {
		t.Errorf("the result of job %s of agent %s is %s, %v", j.id, j.agent.id, text, err)
	}
	return r
}

// job returns the job with an id; nil: there is none.
func (l *jobsLoad) job(id string) *hiredJob {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jobs[id] == nil {
		l.t.Errorf("the relay has handed out job %q, which nobody has posted", id)
	}
	return l.jobs[id]
}

// begin records that an agent sends the result of a job. The result is false if it has begun to do so before.
func (l *jobsLoad) begin(j *hiredJob) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if j.begun {
		return false
	}
	j.begun = true
	l.done++
	return true
}

// hand counts a job that its agent has got.
func (l *jobsLoad) hand() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handed++
}

// pull pulls jobs and delivers their results until the agents stop.
func (l *jobsLoad) pull(a *jobsAgent) {
	var waiting []*hiredJob
	opened := false
	for l.agentsUntil.Err() == nil {
		answer, err := l.try(l.agentsUntil, jobsCall{"GET", "/agents/" + a.id + "/jobs?wait=1", a.account.key, nil})
		if err == nil && answer.status == 200 {
			for _, r := range answer.Jobs {
				if j := l.job(r.JobID); j != nil {
					waiting = append(waiting, j)
					l.hand()
				}
			}
		}
		if !opened {
			select {
			case <-l.closed:
				opened = true
			default:
				continue
			}
		}
		for _, j := range waiting {
			if l.begin(j) {
				l.deliver(j, "/agents/"+a.id+"/results", a.account.key)
			}
		}
		waiting = nil
	}
}

// endpoint is the server of an agent. Sometimes it answers with 503, before it has seen the job or after that.
func (l *jobsLoad) endpoint(a *jobsAgent) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if a.kind == answersAfter404 && r.URL.Path != "/jobs/jobs" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		var request jobRequest
		if json.NewDecoder(r.Body).Decode(&request) != nil {
			return // the relay was killed while it sent the request
		}
		j := l.job(request.JobID)
		if j == nil {
			return
		}
		if id := r.Header.Get("Idempotency-Key"); id != j.id {
			l.t.Errorf("job %s has come with the Idempotency-Key %q", j.id, id)
		}
		before, after, later := l.oneIn(20), l.oneIn(20), "1"
		if a.kind == callsBack && !before {
			_, path, _ := strings.Cut(request.Callback, "/jobs") // the relay has another port after each start
			l.callBack(j, path)
		}
		body := map[string]any{"job_id": j.id, "status": "PENDING"}
		if a.kind != callsBack {
			if body = j.result(planned); j.broken {
				body = map[string]any{}
			}
			select {
			case <-l.closed:
			default:
				before, later = true, "3"
			}
		}
		if before || after {
			w.Header().Set("Retry-After", later)
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if a.kind != callsBack {
			l.begin(j)
		}
		_ = json.NewEncoder(w).Encode(body) // the relay may have been killed
	}
}

// nearly is how long before the end of its time a job may end.
const nearly = 50 * time.Millisecond

// callBack delivers the result of a job by its callback, unless the agent does so already. Sometimes it does so when
// the time of the job is almost over, so that the relay may end the job before.
func (l *jobsLoad) callBack(j *hiredJob, path string) {
	l.mu.Lock()
	again := j.called
	j.called = true
	l.mu.Unlock()
	if again {
		return
	}
	l.hand()
	l.delivering.Go(func() {
		select {
		case <-l.closed:
		case <-l.agentsUntil.Done():
			return
		}
		l.pause(2 * nearly)
		if l.timeout > 0 && l.oneIn(10) {
			sleep(l.timeout - nearly)
		}
		l.begin(j)
		l.deliver(j, path, "")
	})
}

// deliver posts the result of a job until it is answered. Sometimes the agent posts the opposite result too, at the
// same time or later, or repeats what it has posted.
func (l *jobsLoad) deliver(j *hiredJob, path, key string) {
	var both sync.WaitGroup
	if l.oneIn(8) {
		both.Go(func() { l.report(j, path, key, opposite) })
	}
	l.report(j, path, key, planned)
	both.Wait()
	for range 2 {
		if l.oneIn(4) {
			l.report(j, path, key, []string{planned, opposite}[l.intN(2)])
		}
	}
}

// report posts a variant of a job's result until it is answered.
func (l *jobsLoad) report(j *hiredJob, path, key, variant string) {
	a, answered := l.insist(jobsCall{"POST", path, key, j.result(variant)}, false)
	if !answered {
		return
	}
	took := a.status == http.StatusOK
	l.mu.Lock()
	defer l.mu.Unlock()
	if !took && a.status != http.StatusConflict {
		l.t.Errorf("the %s result of job %s: %d %s", variant, j.id, a.status, a.text)
	}
	if before, known := j.taken[variant]; known && before != took {
		l.t.Errorf("the %s result of job %s was taken: %t, and then: %t", variant, j.id, before, took)
	}
	j.taken[variant] = took
	if j.taken[planned] && j.taken[opposite] {
		l.t.Errorf("both results of job %s were taken", j.id)
	}
}

// takeResult is the server for the results that hirers get. It sometimes answers with 503.
func (l *jobsLoad) takeResult(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the relay was killed while it sent the request
	}
	if l.oneIn(10) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	id := r.Header.Get("Idempotency-Key")
	l.told[id] = append(l.told[id], strings.TrimSpace(string(body)))
}
