package jobsclient

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/internal/exchange"
)

// Job is a request for work (JobRequest).
type Job struct {
	ID           string          `json:"job_id"`          // a UUID; empty: Hire and Start make one
	Orchestrator string          `json:"orchestrator_id"` // an agent or an owner of the hirer, who pays; empty: any
	Skill        string          `json:"skill_name"`
	Input        json.RawMessage `json:"input_data"` // an object
	Budget       credits.Amount  `json:"budget"`     // what is held while the job runs
	Callback     string          `json:"callback_url,omitempty"`
}

// Status is the state of a job.
type Status string

// The states of a job.
const (
	Success Status = "SUCCESS"
	Failure Status = "FAILURE"
	Pending Status = "PENDING"
)

// Why a job failed: the values of Result.ErrorCode.
const (
	SkillMismatch      = "SKILL_MISMATCH"      // the agent does not have the skill
	BudgetInsufficient = "BUDGET_INSUFFICIENT" // the budget is below the price
	TransferFailed     = "TRANSFER_FAILED"     // the account has less than the budget
	AgentOffline       = "AGENT_OFFLINE"       // the agent is offline, or could not be reached
	ExecutionError     = "EXECUTION_ERROR"     // the agent could not do the job, or gave no result in time
)

// Result is what came of a job (JobResult).
type Result struct {
	JobID        string          `json:"job_id"`
	AgentID      string          `json:"agent_id,omitempty"`
	Status       Status          `json:"status"`
	Output       json.RawMessage `json:"output_data,omitempty"`       // an object
	Cost         *credits.Amount `json:"execution_cost,omitempty"`    // to the agent's owner; nil in a report: the price
	TimeMS       *int64          `json:"execution_time_ms,omitempty"` // as the agent has measured it; nil: not known
	ErrorMessage string          `json:"error_message,omitempty"`
	ErrorCode    string          `json:"error_code,omitempty"` // of a FAILURE: why, such as AgentOffline
}

// anyOrchestrator is neither an agent nor an owner. So the oldest account of the hirer that has enough pays.
const anyOrchestrator = "-"

// MaxWait is how long the gateway waits at most for the end of a job that it is asked to start.
const MaxWait = 120 * time.Second

// Start posts a job to an agent, and lets the gateway wait up to this time for its end. The result may be PENDING; Job
// reads it again later. The same job with the same ID is held and paid once, however often it is posted. A FAILURE is
// no error. With an error, the result has the id of the job. Its status is PENDING if the job may run (Unknown), and
// empty if the gateway has refused it.
func (c *Client) Start(ctx context.Context, agent string, j Job, wait time.Duration) (Result, error) {
	if j.ID == "" {
		j.ID = NewID()
	}
	if j.Orchestrator == "" {
		j.Orchestrator = anyOrchestrator
	}
	if len(j.Input) == 0 {
		j.Input = json.RawMessage("{}")
	}
	wait = max(0, min(wait, MaxWait)).Truncate(time.Second)
	path := "/a/" + url.PathEscape(agent) + "/jobs?wait=" + strconv.Itoa(int(wait/time.Second))
	answer := Result{}
	err := c.do(ctx, call{method: http.MethodPost, path: path, body: j, safe: true, wait: wait, out: &answer})
	if err == nil {
		err = answer.check(j.ID)
	}
	if err != nil {
		return unanswered(j.ID, err), err
	}
	return answer, nil
}

// unanswered returns the result of a call about a job that has failed with err. It is PENDING if the job may run.
func unanswered(job string, err error) Result {
	r := Result{JobID: job}
	if Unknown(err) {
		r.Status = Pending
	}
	return r
}

// check returns an error unless r is a result of this job.
func (r Result) check(job string) error {
	switch {
	case r.JobID != job:
		return &exchange.Lost{Text: "the answer is not about the job that was asked for; is the URL right?"}
	case r.Status != Success && r.Status != Failure && r.Status != Pending:
		return &exchange.Lost{Text: fmt.Sprintf("the answer has the unknown status %q", exchange.Shorten(string(r.Status)))}
	}
	return nil
}

// Job returns the result of a job as it stands. The caller must be the hirer or the agent's principal.
func (c *Client) Job(ctx context.Context, job string) (Result, error) {
	var answer Result
	err := c.do(ctx, call{method: http.MethodGet, path: "/jobs/" + url.PathEscape(job), safe: true, out: &answer})
	if err == nil {
		err = answer.check(job)
	}
	if err != nil {
		return unanswered(job, err), err
	}
	return answer, nil
}

// How often Hire and Wait ask for a job that runs: at first soon, and then less and less often.
const (
	firstLook = 500 * time.Millisecond
	lastLook  = 10 * time.Second
	hireWait  = time.Minute
)

// Hire posts a job to an agent, and waits until it ends or ctx ends. A FAILURE is no error. With an error, the result is
// that of Start. If the job may run, call Hire with the same job and ID to wait for it. A job cannot be cancelled.
func (c *Client) Hire(ctx context.Context, agent string, j Job) (Result, error) {
	r, err := c.Start(ctx, agent, j, hireWait)
	if err != nil || r.Status != Pending {
		return r, err
	}
	return c.Wait(ctx, r.JobID)
}

// Wait waits until a job ends or ctx ends. While the gateway does not answer, it keeps trying.
func (c *Client) Wait(ctx context.Context, job string) (Result, error) {
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		r, err := c.Job(ctx, job)
		if err != nil {
			if _, again := exchange.Repeatable(err, true); !again {
				return r, err
			}
			c.Log.Warn("reading the job failed, will be retried", "job", job, "err", err)
		} else if r.Status != Pending {
			return r, nil
		}
		if err := exchange.Sleep(ctx, pause); err != nil {
			return unanswered(job, err), err
		}
	}
}

// MaxPull is how long the gateway waits at most for a job to hand out.
const MaxPull = 60 * time.Second

// Pull returns jobs for an agent without an endpoint. If there is none, the gateway waits up to this time. A job that
// has not ended is handed out again after 300 seconds, so an agent must drop repeats by the id.
func (c *Client) Pull(ctx context.Context, agent string, wait time.Duration) ([]Job, error) {
	wait = max(0, min(wait, MaxPull)).Truncate(time.Second)
	var answer struct {
		Jobs []Job `json:"jobs"`
	}
	path := agentPath(agent, "/jobs?wait="+strconv.Itoa(int(wait/time.Second)))
	err := c.do(ctx, call{method: http.MethodGet, path: path, safe: true, wait: wait, out: &answer})
	return answer.Jobs, err
}

// Report reports the result of a job for an agent. The same report may be sent again. If the job has ended in another
// way, for example because it took too long, the error is an *Error with status 409.
func (c *Client) Report(ctx context.Context, agent string, r Result) error {
	q := call{method: http.MethodPost, path: agentPath(agent, "/results"), body: r, safe: true, out: new(struct{})}
	return c.do(ctx, q)
}

// ReportTo reports the result of a job to the callback_url that came with it. It needs no key. It works like Report.
func (c *Client) ReportTo(ctx context.Context, callback string, r Result) error {
	anonymous := &Client{URL: callback, HTTP: c.HTTP, Log: c.Log}
	return anonymous.do(ctx, call{method: http.MethodPost, body: r, safe: true, out: new(struct{})})
}
