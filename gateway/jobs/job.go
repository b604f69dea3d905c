package jobs

import (
	"cmp"
	"net/http"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// This file has the rows of jobs, and ends jobs.

// state is the state of a job.
type state int64

const (
	running state = iota
	success
	failure
)

// The names of these states in a JobResult.
const (
	statusPending = "PENDING"
	statusSuccess = "SUCCESS"
	statusFailure = "FAILURE"
)

var statusNames = map[state]string{running: statusPending, success: statusSuccess, failure: statusFailure}

// way is how a job goes to its agent. It is the column pull.
type way int64

const (
	toEndpoint way = iota // it is sent to the agent's endpoint
	byPull                // the agent pulls it
	byRequest             // it is a REQUEST to the agent's DID
)

// job is a row of jobs_job.
type job struct {
	n             int64
	id            string
	hirer         int64
	payer, payee  int64
	agent         int64
	orchestrator  string
	boss          int64
	skill         string
	price, budget credits.Amount
	content       []byte
	input         string
	callback      []byte
	way           way
	appended      bool
	created       int64
	dispatched    int64
	handed        int64
	due           int64
	state         state
	result        []byte
	output        string
	cost          credits.Amount
	millis        int64
	code, message string
	ended         int64
	counted       bool
}

const (
	jobTable   = "jobs_job"
	jobColumns = "n, id, hirer, payer, payee, agent, orchestrator, boss, skill, price, budget, content, input, callback, " +
		"pull, appended, created, dispatched, handed, due, state, result, output, cost, millis, code, message, ended, counted"
)

func (j job) values() []any {
	return []any{j.n, j.id, j.hirer, j.payer, j.payee, j.agent, j.orchestrator, j.boss, j.skill, int64(j.price),
		int64(j.budget), j.content, j.input, blob(j.callback), int64(j.way), flag(j.appended), j.created, j.dispatched, j.handed,
		j.due, int64(j.state), blob(j.result), j.output, int64(j.cost), j.millis, j.code, j.message, j.ended, flag(j.counted)}
}

func (j *job) fields() []any {
	return []any{&j.n, &j.id, &j.hirer, &j.payer, &j.payee, &j.agent, &j.orchestrator, &j.boss, &j.skill, &j.price,
		&j.budget, &j.content, &j.input, &j.callback, &j.way, &j.appended, &j.created, &j.dispatched, &j.handed, &j.due,
		&j.state, &j.result, &j.output, &j.cost, &j.millis, &j.code, &j.message, &j.ended, &j.counted}
}

// callbackPlace says where the callback of a job's hirer is stored.
func callbackPlace(job int64) gateway.Place {
	return gateway.Place{Table: jobTable, Column: "callback", Row: job}
}

func jobByNumber(q relay.Querier, n int64) (j job, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(j.fields()...) },
		"SELECT "+jobColumns+" FROM jobs_job WHERE n = ?", n)
	return j, err
}

func jobByID(q relay.Querier, id string) (j job, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(j.fields()...) },
		"SELECT "+jobColumns+" FROM jobs_job WHERE id = ?", id)
	return j, err
}

// jobs returns the jobs that a SELECT of jobColumns finds.
func jobs(q relay.Querier, text string, args ...any) (all []job, err error) {
	err = q.Query(func(scan gateway.Scanner) error {
		var j job
		err := scan(j.fields()...)
		all = append(all, j)
		return err
	}, text, args...)
	return all, err
}

func insertJob(tx relay.ExtTx, j job) error {
	return gateway.Exec(tx, "INSERT INTO jobs_job ("+jobColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "+
		"?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", gateway.WithSum(jobTable, j.values())...)
}

func updateJob(tx relay.ExtTx, j job) error {
	return gateway.Exec(tx, "UPDATE jobs_job SET n = ?, id = ?, hirer = ?, payer = ?, payee = ?, agent = ?, "+
		"orchestrator = ?, boss = ?, skill = ?, price = ?, budget = ?, content = ?, input = ?, callback = ?, pull = ?, "+
		"appended = ?, created = ?, dispatched = ?, handed = ?, due = ?, state = ?, result = ?, output = ?, cost = ?, "+
		"millis = ?, code = ?, message = ?, ended = ?, counted = ?, sum = ? WHERE n = ?",
		append(gateway.WithSum(jobTable, j.values()), j.n)...)
}

// sends reports whether the job is still to be sent to its agent's endpoint. The zero job is not.
func (j job) sends() bool {
	return j.n != 0 && j.state == running && j.way == toEndpoint && j.dispatched == 0
}

// dispatch records that the agent has got the job: it has pulled the job, its endpoint has answered, its OFFER was accepted,
// or it has reported a result after an attempt to send the job.
func (g *Gateway) dispatch(o *gateway.Op, j *job) {
	if j.dispatched != 0 {
		return
	}
	life := g.options.Timeout
	if j.way == byRequest {
		life = min(life, deliver.Life) // its thread ends then
	}
	j.dispatched, j.due = o.Now, o.Now+int64(life)
}

// outcome is how a job ends.
type outcome struct {
	state         state
	output        string // JSON
	cost          credits.Amount
	costGiven     bool
	millis        int64
	code, message string // empty: none
	hash          []byte // of the agent's result; empty: the relay has ended the job
	untried       bool   // the job has waited for a free call all the time, and was never sent
	removed       bool   // by the operator; the job does not count
}

// end ends a job, unless it has ended: it pays or refunds what was held, changes the agent's score, and stores the outcome
// (J-7). Nothing else ends a job.
func (g *Gateway) end(o *gateway.Op, j job, out outcome) (job, error) {
	if j.state != running {
		return j, nil
	}
	j.state, j.output, j.millis, j.code, j.message = out.state, out.output, out.millis, out.code, out.message
	j.result, j.ended = out.hash, o.Now
	if out.state == success {
		if j.cost = j.price; out.costGiven {
			j.cost = min(out.cost, j.price)
		}
	}
	for _, r := range []record{{kind: kindSettle, payee: j.payee, behalf: j.payer, amount: j.cost},
		{kind: kindRefund, payee: j.payer, amount: j.budget - j.cost}} {
		if r.amount == 0 {
			continue
		}
		r.payer, r.job, r.jobID = g.escrow, j.n, j.id
		if _, enough, err := g.move(o, r); err != nil || !enough {
			return j, cmp.Or(err, errBooks)
		}
	}
	if err := g.judge(o, &j, out); err != nil {
		return j, err
	}
	if err := updateJob(o.ExtTx, j); err != nil {
		return j, err
	}
	if err := g.sending.RemoveLane(o.ExtTx, j.n); err != nil {
		return j, err
	}
	if err := g.dropRequest(o, j.n); err != nil {
		return j, err
	}
	if len(j.callback) > 0 {
		if err := g.telling.Add(o.ExtTx, j.n, j.hirer); err != nil {
			return j, err
		}
	}
	o.Then(func() { g.wake(j.n) })
	return j, nil
}

// wake tells those who wait for a job that it has changed.
func (g *Gateway) wake(job int64) {
	g.ended.Tell(job)
	g.sending.Wake(job)
	g.telling.Wake(job)
}

// judge changes the agent of a job that ends, and its score if the job counts. The agent is not offline because the relay
// had no time to send the job.
func (g *Gateway) judge(o *gateway.Op, j *job, out outcome) error {
	a, err := agentByNumber(o, j.agent)
	if err != nil {
		return err
	}
	a.active = o.Now
	if j.code == codeOffline && !out.untried {
		a.offline = true
	}
	if j.counted, err = counts(o, *j, a); err != nil {
		return err
	}
	j.counted = j.counted && !out.removed
	if j.counted && j.state == success {
		c := newScore
		if j.boss != 0 {
			boss, err := agentByNumber(o, j.boss)
			if err != nil {
				return err
			}
			c = boss.score
		}
		a.score = a.score.succeeded(c)
		a.successes++
	} else if j.counted {
		a.score = a.score.failed()
		a.failures++
	}
	return updateAgent(o.ExtTx, a)
}

// counts reports whether a job that ends changes the score of its agent (J-15 to J-17).
func counts(o *gateway.Op, j job, a agent) (bool, error) {
	if a.principal == j.hirer || j.dispatched == 0 || j.state == success && j.cost == 0 {
		return false, nil
	}
	counted, err := o.Number("SELECT COUNT(*) FROM jobs_job WHERE agent = ? AND hirer = ? AND counted = 1 AND ended > ?",
		j.agent, j.hirer, o.Now-int64(countTime))
	return counted < maxCountedJobs, err
}

// expire ends a job whose time is over, and returns it. It leaves a job that has ended as it is.
func (g *Gateway) expire(o *gateway.Op, j job) (job, error) {
	if o.Now < j.due {
		return j, nil
	}
	out := outcome{state: failure, code: codeError, message: "the agent has not delivered in time"}
	if j.dispatched == 0 {
		out.code, out.message = codeOffline, "the agent could not be reached in 5 minutes"
		switch {
		case j.way == byRequest:
			return g.expireRequest(o, j)
		case j.way == byPull:
			out.message = "the agent did not pull the job in 5 minutes"
		case j.handed == 0:
			out.message, out.untried = "too many other jobs were sent, so this job was not sent in 5 minutes", true
		}
	}
	return g.end(o, j, out)
}

// jobResult is a JobResult ([003] §3.4).
type jobResult struct {
	JobID     string         `json:"job_id"`
	AgentID   string         `json:"agent_id"`
	Status    string         `json:"status"`
	Output    raw            `json:"output_data"`
	Cost      credits.Amount `json:"execution_cost"`
	Millis    int64          `json:"execution_time_ms"`
	Message   *string        `json:"error_message"`
	Code      *string        `json:"error_code"`
	Timestamp stamp          `json:"timestamp_utc"`
}

// raw is JSON in an answer; empty: {}.
type raw string

// MarshalJSON implements json.Marshaler.
func (r raw) MarshalJSON() ([]byte, error) {
	if r == "" {
		r = "{}"
	}
	return []byte(r), nil
}

// orNull returns nil for an empty text.
func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// shown returns a job as answers show it.
func (j job) shown(agentID string) jobResult {
	return jobResult{j.id, agentID, statusNames[j.state], raw(j.output), j.cost, j.millis, orNull(j.message),
		orNull(j.code), stamp(max(j.created, j.ended))}
}

// jobRequest is a JobRequest as agents get it ([003] §3.3).
type jobRequest struct {
	JobID        string         `json:"job_id"`
	Orchestrator string         `json:"orchestrator_id"`
	Skill        string         `json:"skill_name"`
	Input        raw            `json:"input_data"`
	Budget       credits.Amount `json:"budget"`
	Currency     string         `json:"currency"`
	Callback     string         `json:"callback_url"`
	Timestamp    stamp          `json:"timestamp_utc"`
}

// request returns a job as its agent gets it. The callback is a URL of this relay, never the hirer's.
func (j job) request(callback string) jobRequest {
	return jobRequest{j.id, j.orchestrator, j.skill, raw(j.input), j.budget, currency, callback, stamp(j.created)}
}

// resultBody returns the JobResult of a job as JSON.
func resultBody(q relay.Querier, j job) ([]byte, error) {
	a, err := agentByNumber(q, j.agent)
	return jsontext.Compact(j.shown(a.id)), err
}

// getJob is the handler of GET /jobs/{id}.
func (g *Gateway) getJob(r *request) error {
	if err := r.needPrincipal(); err != nil {
		return err
	}
	var j job
	var a agent
	err := g.Relay.View(r.Context(), r.from, func(q relay.Querier) (err error) {
		if j, err = jobByID(q, r.id()); err == nil {
			a, err = agentByNumber(q, j.agent)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case !r.caller.owns(j.hirer) && !r.caller.owns(a.principal):
		return forbidden("there is no job with this job_id that you have ordered or that is for an agent of yours")
	}
	return r.answer(http.StatusOK, j.shown(a.id))
}
