package jobs

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/relay"
)

// This file takes jobs.

// Bounds of the parameter wait, in seconds.
const (
	maxHireWait     = 120
	defaultHireWait = 60
	maxPullWait     = 60
)

// order is the body of a request that hires an agent.
type order struct {
	id           string // empty: it is to be made
	orchestrator string
	skill        string
	input        string
	budget       credits.Amount
	callback     string
	request      prepared
}

func (g *Gateway) parseOrder(f *form) order {
	f.currency()
	return order{id: f.uuid("job_id"), orchestrator: f.text("orchestrator_id", true, 1, maxName),
		skill: f.skillName("skill_name"), input: f.data("input_data"), budget: f.amount("budget", true),
		callback: f.url("callback_url", g.Outgoing.Destinations)}
}

// content returns a hash of what an order says, to recognize its repeats.
func (p order) content(agent int64) []byte {
	hash := sha256.Sum256(fmt.Appendf(nil, "%d %q %q %q %d %q", agent, p.orchestrator, p.skill, p.input, int64(p.budget),
		p.callback))
	return hash[:]
}

// postJob is the handler of POST /a/{id}/jobs and POST /a/{id}.
func (g *Gateway) postJob(r *request) error {
	if err := r.needPrincipal(); err != nil {
		return err
	}
	query, err := newQuery(r.Request, "wait")
	if err != nil {
		return err
	}
	wait := time.Duration(query.number("wait", 0, maxHireWait, defaultHireWait)) * time.Second
	f, err := g.read(r.from, r.body)
	if err != nil {
		return err
	}
	f.wrong = query.wrong // one answer names all that is wrong
	ordered := g.parseOrder(f)
	if err := f.err(); err != nil {
		return err
	}
	if ordered.id == "" {
		ordered.id = newUUID()
	}
	var stream *relay.Stream
	if wait > 0 {
		stream, err = g.Relay.OpenStream(r.from, r.caller.did)
		switch {
		case err == nil:
			defer stream.Close()
		case envelope.CodeOf(err) == envelope.CodeRateLimited:
			wait = 0 // too many requests of this address wait; this one is answered with 202
		default:
			return err
		}
	}
	if ordered.request, err = g.prepare(r, ordered); err != nil {
		return err
	}
	var hired hired
	admit := g.payment(r)
	if err := g.Update(r.detached(), r.from, func(o *gateway.Op) (err error) {
		hired, err = g.hire(o, r.caller, r.id(), ordered, admit)
		return err
	}); err != nil {
		return err
	}
	if hired.job.n != 0 && !hired.known {
		if hired.job, err = g.await(r, hired.job, wait, stream); err != nil {
			return err
		}
		hired.result = hired.job.shown(hired.result.AgentID)
	}
	if hired.result.Status != statusPending {
		return r.answer(http.StatusOK, hired.result)
	}
	r.w.Header().Set("Location", r.base+"/jobs/"+hired.job.id)
	return r.answer(http.StatusAccepted, hired.result)
}

// hired is what a request that hires an agent has led to.
type hired struct {
	job    job // zero: no job was made
	known  bool
	result jobResult
}

// hire stores a job and holds its budget, or finds out why it cannot.
func (g *Gateway) hire(
	o *gateway.Op, c caller, agentID string, p order, admit func(account int64) error,
) (h hired, err error) {
	a, err := agentByID(o, agentID)
	if err != nil {
		return h, err
	}
	if !a.live() {
		return h, unknownAgent()
	}
	if a, err = g.present(o, a); err != nil {
		return h, err
	}
	known, err := jobByID(o, p.id)
	if err != nil {
		return h, err
	}
	if known.n != 0 {
		if !c.owns(known.hirer) || !bytes.Equal(known.content, p.content(a.n)) {
			return h, conflict("this job_id was used for another job; use a new one")
		}
		if known.way != byRequest { // its thread must be canceled too, which the sweep does
			known, err = g.expire(o, known)
		}
		return hired{known, true, known.shown(a.id)}, err
	}
	if err := checkJobLimits(o, c, a); err != nil {
		return h, err
	}
	j, code, message, err := g.plan(o, c, a, p)
	if err != nil {
		return h, err
	}
	if code != "" {
		h.result = job{id: p.id, state: failure, code: code, message: message, created: o.Now}.shown(a.id)
		return h, nil
	}
	if err := admit(j.payer); err != nil {
		return h, err
	}
	h.job, err = g.begin(o, j, p)
	h.result = h.job.shown(a.id)
	return h, err
}

// checkJobLimits refuses one more unfinished job if there are too many.
func checkJobLimits(o *gateway.Op, c caller, a agent) error {
	ofHirer, err := o.Number("SELECT COUNT(*) FROM jobs_job WHERE hirer = ? AND state = 0", c.principal)
	if err != nil {
		return err
	}
	ofAgent, err := o.Number("SELECT COUNT(*) FROM jobs_job WHERE agent = ? AND state = 0", a.n)
	switch {
	case err != nil:
		return err
	case ofHirer >= maxHirerJobs:
		return busy("you have %d unfinished jobs, which is the limit; wait until some have ended", maxHirerJobs)
	case ofAgent >= maxAgentJobs:
		return busy("this agent has %d unfinished jobs, which is the limit; hire another one, or try again later", maxAgentJobs)
	}
	return nil
}

// busyRetry is the Retry-After of a limit on unfinished jobs.
const busyRetry = 5 * time.Second

func busy(format string, args ...any) error {
	e := envelope.Errorf(envelope.CodeRateLimited, format, args...)
	e.RetryAfter, e.Details = busyRetry, map[string]any{envelope.DetailLimit: limitJobs}
	return e
}

// plan returns the job for an order. If the order cannot be done, code and message say why.
func (g *Gateway) plan(o *gateway.Op, c caller, a agent, p order) (j job, code, message string, err error) {
	offered := false
	j = job{id: p.id, hirer: c.principal, payee: a.owner, agent: a.n, orchestrator: p.orchestrator, skill: p.skill,
		budget: p.budget, way: a.way()}
	if err := o.Query(func(scan gateway.Scanner) error { offered = true; return scan(&j.price) },
		"SELECT cost FROM jobs_skill WHERE agent = ? AND name = ?", a.n, p.skill); err != nil {
		return j, "", "", err
	}
	payer, boss, err := paying(o, c, p)
	j.payer, j.boss = payer.n, boss
	switch {
	case err != nil:
		return j, "", "", err
	case !offered:
		code, message = codeSkill, "the agent does not have this skill"
	case p.budget < j.price:
		code, message = codeBudget, fmt.Sprintf("the agent takes %v for this skill, and the budget is %v", j.price, p.budget)
	case !a.online(o.Now):
		code, message = codeOffline, "the agent is offline"
	case payer.n == 0:
		code, message = codeTransfer, fmt.Sprintf("none of your accounts has the budget of %v", p.budget)
	case payer.balance < p.budget:
		code, message = codeTransfer, tooLittle(payer, p.budget)
	}
	return j, code, message, nil
}

// paying returns the account that pays for an order: the account of the caller's agent that orders; else the caller's
// account with that name; else the caller's oldest account whose balance covers the budget. boss is the number of the
// agent; 0: there is none.
func paying(q relay.Querier, c caller, p order) (payer owner, boss int64, err error) {
	orders, err := agentByID(q, strings.ToLower(p.orchestrator))
	if err != nil {
		return payer, 0, err
	}
	if orders.live() && c.owns(orders.principal) {
		payer, err = ownerByNumber(q, orders.owner)
		return payer, orders.n, err
	}
	if c.principal == 0 { // the accounts of the relay have this number
		return payer, 0, nil
	}
	own, err := ownersOf(q, c.principal)
	if err != nil {
		return payer, 0, err
	}
	for _, a := range own {
		if a.id == p.orchestrator {
			return a, 0, nil
		}
		if payer.n == 0 && a.balance >= p.budget {
			payer = a
		}
	}
	return payer, 0, nil
}

// begin stores a new job and holds its budget.
func (g *Gateway) begin(o *gateway.Op, j job, p order) (job, error) {
	var err error
	if j.n, err = gateway.Next(o.ExtTx, jobCounter); err != nil {
		return j, err
	}
	j.content, j.input = p.content(j.agent), p.input
	if p.callback != "" {
		j.callback = g.Secrets.Encrypt(callbackPlace(j.n), []byte(p.callback))
	}
	j.created, j.due = o.Now, o.Now+int64(dispatchTime)
	if err := insertJob(o.ExtTx, j); err != nil {
		return j, err
	}
	if j.budget > 0 {
		_, enough, err := g.move(o, record{kind: kindHold, payer: j.payer, payee: g.escrow, amount: j.budget, job: j.n,
			jobID: j.id})
		if err != nil || !enough {
			return j, cmp.Or(err, errBooks)
		}
	}
	a, err := agentByNumber(o, j.agent)
	if err != nil {
		return j, err
	}
	return j, g.offer(o, j, a, p.request)
}

// offer lets an agent pull a job, sends a REQUEST, or puts the job into the outbox. request may be zero.
func (g *Gateway) offer(o *gateway.Op, j job, a agent, request prepared) error {
	switch j.way {
	case byPull:
		o.Then(func() { g.offered.Tell(j.agent) })
		return nil
	case byRequest:
		return g.request(o, j, a, request)
	}
	o.Then(func() { g.sending.Wake(j.n) })
	return g.sending.Add(o.ExtTx, j.n, a.principal)
}

// await waits until a job ends, the time is over, or stream ends. It returns the job as it is then.
func (g *Gateway) await(r *request, j job, wait time.Duration, stream *relay.Stream) (job, error) {
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	end := g.ended.Follow(j.n)
	defer end.Close()
	for over := wait == 0; ; {
		news := end.Next()
		if err := g.Relay.View(r.Context(), r.from, func(q relay.Querier) (err error) {
			j, err = jobByNumber(q, j.n)
			return err
		}); err != nil {
			return j, err
		}
		if j.state != running || over {
			return j, nil
		}
		select {
		case <-news:
		case <-timeout.C:
			over = true
		case <-stream.Ended():
			return j, nil
		case <-r.Context().Done():
			return j, r.Context().Err()
		}
	}
}
