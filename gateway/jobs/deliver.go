package jobs

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// This file hands jobs to agents that pull them, and takes results.

// Bounds of an answer with jobs.
const (
	maxHanded      = 20
	maxHandedBytes = 1 << 20 // of input_data; one job may exceed it
)

// getJobs is the handler of GET /agents/{id}/jobs.
func (g *Gateway) getJobs(r *request) error {
	if err := r.needPrincipal(); err != nil {
		return err
	}
	query, err := newQuery(r.Request, "wait")
	if err != nil {
		return err
	}
	wait := time.Duration(query.number("wait", 0, maxPullWait, 0)) * time.Second
	if err := query.err(); err != nil {
		return err
	}
	a, err := g.agent(r, r.id())
	if err != nil {
		return err
	}
	if !r.caller.owns(a.principal) {
		return foreignAgent()
	}
	var stream *relay.Stream
	if wait > 0 {
		if stream, err = g.Relay.OpenStream(r.from, r.caller.did); err != nil {
			return err
		}
		defer stream.Close()
	}
	handed, err := g.pull(r, a, wait, stream)
	if err != nil {
		return err
	}
	return r.list("jobs", gateway.Encoded(handed), func() string { return "]}\n" })
}

// pull hands out the jobs of an agent. If there is none, it waits for one until stream ends.
func (g *Gateway) pull(r *request, a agent, wait time.Duration, stream *relay.Stream) ([]jobRequest, error) {
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	offers := g.offered.Follow(a.n)
	defer offers.Close()
	for over := wait == 0; ; {
		news := offers.Next()
		// An Update is written to disk even if it changes nothing. So the gateway first looks for something to do.
		some := a.offline
		a.offline = false
		if err := g.Relay.View(r.Context(), r.from, func(q relay.Querier) error {
			all, err := pullable(q, a.n, g.Relay.Now(), 1)
			some = some || len(all) > 0
			return err
		}); err != nil {
			return nil, err
		}
		if some {
			handed, err := g.hand(r, a)
			if err != nil || len(handed) > 0 {
				return handed, err
			}
		}
		if over {
			return []jobRequest{}, nil
		}
		select {
		case <-news:
		case <-timeout.C:
			over = true
		case <-stream.Ended():
			return []jobRequest{}, nil
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

// pullable returns the oldest jobs that an agent can pull now.
func pullable(q relay.Querier, agent int64, now time.Time, most int) ([]job, error) {
	return jobs(q, "SELECT "+jobColumns+" FROM jobs_job WHERE agent = ? AND state = 0 AND pull = 1 AND handed <= ? AND "+
		"due > ? ORDER BY n LIMIT ?", agent, now.Add(-handTime).UnixNano(), now.UnixNano(), most)
}

// hand hands out jobs, and records that the agent was heard from.
func (g *Gateway) hand(r *request, of agent) (handed []jobRequest, err error) {
	err = g.Update(r.detached(), r.from, func(o *gateway.Op) error {
		handed = []jobRequest{}
		a, err := agentByNumber(o, of.n)
		if err != nil {
			return err
		}
		if err := heard(o, a); err != nil {
			return err
		}
		all, err := pullable(o, a.n, time.Unix(0, o.Now), maxHanded)
		size := 0
		for _, j := range all {
			if size += len(j.input); err != nil || len(handed) > 0 && size > maxHandedBytes {
				break
			}
			j.handed = o.Now
			g.dispatch(o, &j)
			err = updateJob(o.ExtTx, j)
			handed = append(handed, j.request(""))
		}
		return err
	})
	return handed, err
}

// heard records that an agent was heard from.
func heard(o *gateway.Op, a agent) error {
	if !a.offline {
		return nil
	}
	a.offline = false
	return updateAgent(o.ExtTx, a)
}

// reroute gives an agent that has registered again the jobs that it has not got yet: at its endpoint, or to pull.
func (g *Gateway) reroute(o *gateway.Op, a agent) error {
	all, err := jobs(o, "SELECT "+jobColumns+" FROM jobs_job WHERE agent = ? AND state = 0 AND dispatched = 0 ORDER BY n", a.n)
	for _, j := range all {
		if err != nil {
			return err
		}
		if err := g.sending.RemoveLane(o.ExtTx, j.n); err != nil {
			return err
		}
		if j.way == byRequest && a.bridged {
			continue
		}
		if err := g.dropRequest(o, j.n); err != nil {
			return err
		}
		j.way, j.appended, j.handed = a.way(), false, 0
		if err = updateJob(o.ExtTx, j); err == nil {
			err = g.offer(o, j, a, prepared{})
		}
	}
	return err
}

// result is a JobResult that an agent has sent.
type result struct {
	jobID, agentID string // agentID is empty if it is absent
	status         string
	outcome
}

var codes = []string{codeSkill, codeBudget, codeOffline, codeError, codeTransfer}

func parseResult(f *form) (p result) {
	p.jobID, p.agentID, p.status = f.requiredUUID("job_id"), f.uuid("agent_id"), f.text("status", true, 0, math.MaxInt)
	p.output, p.cost, p.costGiven = f.data("output_data"), f.amount("execution_cost", false), f.has("execution_cost")
	p.message, p.code = f.text("error_message", false, 0, math.MaxInt), f.text("error_code", false, 0, math.MaxInt)
	p.message = cut(p.message, maxMessage)
	if f.has("execution_time_ms") {
		var millis float64
		if json.Unmarshal(f.sent["execution_time_ms"], &millis) != nil || millis < 0 || millis > 1e15 {
			f.fail("execution_time_ms", "must be a number from 0 to 10¹⁵")
		}
		p.millis = int64(millis)
	}
	switch p.status {
	case statusSuccess:
		p.state, p.code = success, ""
	case statusFailure:
		p.state = failure
		if !slices.Contains(codes, p.code) {
			p.code = codeError // the agent has its own code, or none
		}
	case statusPending:
	default:
		if f.has("status") {
			f.fail("status", "must be %s, %s or %s", statusSuccess, statusFailure, statusPending)
		}
	}
	hash := sha256.Sum256(fmt.Appendf(nil, "%q %q %d %v %d %q %q", p.status, p.output, int64(p.cost), p.costGiven, p.millis,
		p.message, p.code))
	p.hash = hash[:]
	return p
}

// cut returns a text without what follows its first most bytes. It does not split a character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

// done is the answer to a result.
type done struct {
	Status string `json:"status"`
}

// postResult is the handler of POST /agents/{id}/results.
func (g *Gateway) postResult(r *request) error {
	if err := r.needPrincipal(); err != nil {
		return err
	}
	return g.takeResult(r, func(o *gateway.Op, p result) (j job, err error) {
		a, err := agentByID(o, r.id())
		if err != nil {
			return j, err
		}
		switch {
		case a.n == 0:
			return j, unknownAgent()
		case !r.caller.owns(a.principal):
			return j, foreignAgent()
		}
		if j, err = jobByID(o, p.jobID); err != nil {
			return j, err
		}
		switch {
		case j.n == 0 || j.agent != a.n:
			err = forbidden("this agent has no job with this job_id")
		case p.agentID != "" && p.agentID != a.id:
			err = otherAgent()
		}
		return j, err
	})
}

// callbackOf marks the keys of kind gateway.Callback that belong to this gateway.
const callbackOf = "jobs"

// postCallback is the handler of POST /cb/{token}.
func (g *Gateway) postCallback(r *request) error {
	find := func(q relay.Querier) (j job, err error) {
		h, found, err := gateway.FindKey(q, r.path("token"), g.Relay.Now())
		if err != nil {
			return j, err
		}
		if found = found && h.Kind == gateway.Callback && h.Only == callbackOf; found {
			j, err = jobByNumber(q, h.Owner)
		}
		if err == nil && j.n == 0 {
			err = notFound("there is no callback with this token")
		}
		if err != nil {
			return j, err
		}
		_, p, err := agentWithPrincipal(q, j.agent)
		return j, cmp.Or(err, g.checkBan(p))
	}
	var j job
	if err := g.Relay.View(r.Context(), r.from, func(q relay.Querier) (err error) {
		j, err = find(q)
		return err
	}); err != nil {
		return err
	}
	if err := g.Relay.Gate().AdmitCaller(r.from, fmt.Sprintf("jobs job %d", j.n)); err != nil {
		return err
	}
	return g.takeResult(r, func(o *gateway.Op, p result) (job, error) {
		j, err := find(o)
		if err != nil {
			return j, err
		}
		if p.jobID != j.id {
			return j, invalidField("is not the job of this callback", "body", "job_id")
		}
		same, err := g.sameEndpoint(o, j, p.agentID)
		if err == nil && !same {
			err = otherAgent()
		}
		return j, err
	})
}

// takeResult reads a result, and ends the job with it. find returns the job, and refuses results that may not end it.
func (g *Gateway) takeResult(r *request, find func(*gateway.Op, result) (job, error)) error {
	f, err := g.read(r.from, r.body)
	if err != nil {
		return err
	}
	p := parseResult(f)
	if err := f.err(); err != nil {
		return err
	}
	late := false
	err = g.agents.End(r.detached(), r.from, "the result came in another way", ofJobID(p.jobID), func(o *gateway.Op) error {
		j, err := find(o, p)
		if err != nil {
			return err
		}
		late, err = g.finish(o, j, p)
		return err
	})
	switch {
	case err != nil:
		return err
	case late:
		return conflict("the job has ended before, in another way; GET …/jobs/%s shows how", p.jobID)
	}
	return r.answer(http.StatusOK, done{"ok"})
}

// otherAgent is the refusal of a result that another agent signs.
func otherAgent() error {
	return invalidField("is not the agent of this job", "body", "agent_id")
}

// finish ends a job with a result of its agent. A repeat of the result that has ended the job changes nothing. late is
// true if the job has ended in another way.
func (g *Gateway) finish(o *gateway.Op, j job, p result) (late bool, err error) {
	a, err := agentByNumber(o, j.agent)
	if err != nil {
		return false, err
	}
	if j, err = g.expire(o, j); err != nil {
		return false, err
	}
	if j.state != running {
		return !bytes.Equal(j.result, p.hash), nil
	}
	if err := heard(o, a); err != nil {
		return false, err
	}
	if j.handed != 0 { // J-16: a result for a job that the agent has not got does not count
		g.dispatch(o, &j)
	}
	if p.state == running {
		return false, updateJob(o.ExtTx, j)
	}
	_, err = g.end(o, j, p.outcome)
	return false, err
}
