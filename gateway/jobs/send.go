package jobs

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// This file sends jobs to the endpoints of agents, and results to the callbacks of hirers.

// payer returns who pays for a call: the principal, which is the ref of all jobs in the outboxes of this gateway.
func payer(sent gateway.Job) string { return strconv.FormatInt(sent.Ref, 10) }

// sender sends jobs to endpoints. A lane is a job. Its principal is the agent's principal.
type sender struct{ g *Gateway }

// Target implements gateway.Courier.
func (s *sender) Target(ctx context.Context, sent gateway.Job) (target string, plan gateway.Plan, err error) {
	var j job
	var a agent
	var p principal
	if err := s.g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		if j, err = jobByNumber(q, sent.Lane); err == nil {
			a, p, err = agentWithPrincipal(q, j.agent)
		}
		return err
	}); err != nil {
		return "", gateway.Hold, err
	}
	switch {
	case !j.sends():
		return "", gateway.Drop, nil
	case !a.live() || s.g.checkBan(p) != nil:
		return "", gateway.Hold, nil // the job ends after dispatchTime, and is removed then
	}
	endpoint, err := s.g.endpointOf(a)
	if err != nil {
		return "", gateway.Hold, err
	}
	target, err = jobsURL(endpoint, j.appended)
	return target, gateway.Send, err
}

// hasJobs reports whether the path of an endpoint ends in /jobs.
func hasJobs(path string) bool { return strings.HasSuffix(path, "/jobs") }

// jobsURL returns the URL to which jobs for an endpoint are posted (J-23).
func jobsURL(endpoint string, appended bool) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || hasJobs(u.Path) && !appended {
		return endpoint, err
	}
	return u.JoinPath("jobs").String(), nil
}

// Call implements gateway.Courier. Each attempt has its own callback, which the agent may use before it answers. While
// the attempt lasts, the job does not end because it was not dispatched.
func (s *sender) Call(ctx context.Context, sent gateway.Job) (c gateway.Call, p gateway.Plan, err error) {
	token := gateway.NewKey(gateway.Callback)
	var j job
	err = s.g.Update(context.WithoutCancel(ctx), self, func(o *gateway.Op) (err error) {
		if j, err = jobByNumber(o, sent.Lane); err != nil || !j.sends() {
			return err
		}
		j.handed, j.due = o.Now, max(j.due, o.Now+int64(attemptTime))
		if err := updateJob(o.ExtTx, j); err != nil {
			return err
		}
		expires := time.Unix(0, o.Now).Add(attemptTime + s.g.options.Timeout + tokenKept)
		return gateway.AddKey(o.ExtTx, token, gateway.Holder{Kind: gateway.Callback, Owner: j.n, Only: callbackOf,
			Expires: expires})
	})
	if err == nil && !j.sends() {
		return c, gateway.Drop, nil
	}
	body := jsontext.Compact(j.request(s.g.url + "/cb/" + token))
	return gateway.Call{ID: j.id, Body: body, Wait: answerTime}, gateway.Send, err
}

// attempt is what an attempt to send a job has led to. It is the Data of a Verdict.
type attempt struct {
	dispatched bool     // the agent has got the job
	other      bool     // the endpoint knows no such path: it may need /jobs after it
	result     *result  // what was answered with 2xx
	wrong      error    // why the answer with 2xx is no JobResult
	failed     *outcome // how the job ends, unless result is its result; nil: it has not ended
}

// Judge implements gateway.Courier.
func (s *sender) Judge(_ gateway.Job, r gateway.Response, err error) gateway.Verdict {
	v := gateway.Judge(r, err)
	broken := &outcome{state: failure, code: codeError, message: "the agent's endpoint answered " + v.Failure}
	switch {
	case errors.Is(err, gateway.Timeout) && r.Sent:
		return gateway.Verdict{Outcome: gateway.Done, Data: attempt{dispatched: true}} // J-25
	case v.Outcome == gateway.Retry:
	case v.Outcome == gateway.Done:
		broken.message = "the agent's endpoint answered with something that is not a JobResult"
		p, wrong := resultIn(r.Body)
		v.Data = attempt{dispatched: true, failed: broken, result: &p, wrong: wrong}
	case err != nil:
		broken.code, broken.message = codeOffline, "the agent's endpoint cannot be called: "+v.Failure
		v.Data = attempt{failed: broken}
	default:
		notThere := r.Status == http.StatusNotFound || r.Status == http.StatusMethodNotAllowed
		v.Data = attempt{other: notThere, failed: broken}
	}
	if v.Outcome == gateway.Dead {
		v.Outcome = gateway.Done // the job says what has failed
	}
	return v
}

// resultIn returns the JobResult that an endpoint has answered.
func resultIn(body []byte) (p result, err error) {
	canonical, err := envelope.ParseObject(body, maxAnswer)
	if err != nil {
		return p, err
	}
	f, err := newForm(body, canonical)
	if err != nil {
		return p, err
	}
	p = parseResult(f)
	return p, f.err()
}

// maxAnswer is how many bytes the answer of an endpoint may have.
const maxAnswer = gateway.MaxBody

// Settle implements gateway.Courier.
func (s *sender) Settle(tx relay.ExtTx, sent gateway.Job, v gateway.Verdict) error {
	o := s.g.NewOp(tx)
	j, err := jobByNumber(o, sent.Lane)
	if err != nil || j.state != running {
		return err
	}
	made, ended := v.Data.(attempt)
	switch {
	case !ended: // retried, or dead of age
		if j.dispatched == 0 {
			j.due = j.created + int64(dispatchTime)
		}
		return updateJob(o.ExtTx, j)
	case made.other && !j.appended:
		again, err := s.g.mayAppend(o, j)
		if err != nil {
			return err
		}
		if j.appended = again; again {
			if err := updateJob(o.ExtTx, j); err != nil {
				return err
			}
			return s.g.sending.Add(tx, sent.Lane, sent.Ref)
		}
	}
	if made.dispatched {
		s.g.dispatch(o, &j)
	}
	switch {
	case made.failed == nil:
		return updateJob(o.ExtTx, j)
	case made.result == nil:
		_, err = s.g.end(o, j, *made.failed)
		return err
	}
	return s.take(o, j, made)
}

// take ends a job with the result that its endpoint has answered. If that is no result of the job, the job fails. What is
// wrong with it is told only if it names the job. Otherwise hirers could learn what any server answers (G-16).
func (s *sender) take(o *gateway.Op, j job, made attempt) error {
	p, failed := *made.result, *made.failed
	same, err := s.g.sameEndpoint(o, j, p.agentID)
	switch {
	case err != nil:
		return err
	case made.wrong != nil && p.jobID == j.id:
		failed.message += ": " + made.wrong.Error()
	case made.wrong != nil:
	case p.jobID != j.id:
		failed.message = "the agent's endpoint answered with the result of another job"
	case !same:
		failed.message = "the agent's endpoint answered with the result of another agent"
	default:
		_, err := s.g.finish(o, j, p)
		return err
	}
	_, err = s.g.end(o, j, failed)
	return err
}

// sameEndpoint reports whether the agent that a result names is the agent of the job, or another one of the same principal
// with the same endpoint. Upstream's agents take a new agent_id at each start, and one endpoint may serve several agents.
func (g *Gateway) sameEndpoint(q relay.Querier, j job, agentID string) (bool, error) {
	a, err := agentByNumber(q, j.agent)
	if err != nil || agentID == "" || agentID == a.id {
		return true, err
	}
	other, err := agentByID(q, agentID)
	if err != nil || !other.live() || other.principal != a.principal || a.pulls() || other.pulls() {
		return false, err
	}
	one, err := g.endpointOf(a)
	if err != nil {
		return false, err
	}
	two, err := g.endpointOf(other)
	return one == two, err
}

// mayAppend reports whether the endpoint of a job's agent ends in /jobs, so that the attempt has used it as it is.
func (g *Gateway) mayAppend(q relay.Querier, j job) (bool, error) {
	a, err := agentByNumber(q, j.agent)
	if err != nil {
		return false, err
	}
	endpoint, err := g.endpointOf(a)
	if err != nil {
		return false, err
	}
	u, err := url.Parse(endpoint)
	return err == nil && hasJobs(u.Path), err
}

// Settled implements gateway.Courier.
func (s *sender) Settled(sent gateway.Job, _ gateway.Verdict) { s.g.wake(sent.Lane) }

// teller sends results to the callbacks of hirers. A lane is a job. Its principal is the hirer.
type teller struct{ g *Gateway }

// Target implements gateway.Courier.
func (t *teller) Target(ctx context.Context, sent gateway.Job) (target string, p gateway.Plan, err error) {
	var j job
	var hirer principal
	if err := t.g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		if j, err = jobByNumber(q, sent.Lane); err == nil {
			hirer, err = principalByNumber(q, j.hirer)
		}
		return err
	}); err != nil {
		return "", gateway.Hold, err
	}
	switch {
	case len(j.callback) == 0:
		return "", gateway.Drop, nil
	case t.g.checkBan(hirer) != nil:
		return "", gateway.Hold, nil // the hirer gets the result with GET when it is no longer banned
	}
	text, err := t.g.Secrets.Decrypt(callbackPlace(j.n), j.callback)
	return string(text), gateway.Send, err
}

// Call implements gateway.Courier.
func (t *teller) Call(ctx context.Context, sent gateway.Job) (c gateway.Call, p gateway.Plan, err error) {
	err = t.g.Relay.View(ctx, self, func(q relay.Querier) error {
		j, err := jobByNumber(q, sent.Lane)
		if err != nil {
			return err
		}
		c.ID = j.id
		c.Body, err = resultBody(q, j)
		return err
	})
	return c, gateway.Send, err
}

// Judge implements gateway.Courier.
func (*teller) Judge(_ gateway.Job, r gateway.Response, err error) gateway.Verdict {
	return gateway.Judge(r, err)
}

// Settle implements gateway.Courier.
func (*teller) Settle(relay.ExtTx, gateway.Job, gateway.Verdict) error { return nil }

// Settled implements gateway.Courier.
func (*teller) Settled(gateway.Job, gateway.Verdict) {}
