package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// This file hands jobs to agents whose endpoint is a DID, each as one sealed REQUEST (docs/JOBS.md, "Agents with a DID").

// bridgedLife is how long such an agent is online after the relay has heard from it (B-13).
const bridgedLife = relay.OnlineWithin

// jobRow is a row of jobs_request: the REQUEST of a running job.
type jobRow struct {
	job       int64
	id        string
	principal int64
	state     deliver.State
	price     credits.Amount // of the accepted OFFER
}

const (
	requestTable   = "jobs_request"
	requestColumns = "job, id, principal, state, price"
)

func (r jobRow) values() []any {
	return []any{r.job, r.id, r.principal, int64(r.state), int64(r.price)}
}

func (r *jobRow) fields() []any { return []any{&r.job, &r.id, &r.principal, &r.state, &r.price} }

// requests returns the rows that a SELECT of requestColumns finds.
func requests(q relay.Querier, text string, args ...any) (all []jobRow, err error) {
	err = q.Query(func(scan gateway.Scanner) error {
		var r jobRow
		err := scan(r.fields()...)
		all = append(all, r)
		return err
	}, text, args...)
	return all, err
}

func requestOf(q relay.Querier, job int64) (r jobRow, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(r.fields()...) },
		"SELECT "+requestColumns+" FROM jobs_request WHERE job = ?", job)
	return r, err
}

func insertRequest(tx relay.ExtTx, r jobRow) error {
	return gateway.Exec(tx, "INSERT INTO jobs_request ("+requestColumns+", sum) VALUES (?, ?, ?, ?, ?, ?)",
		gateway.WithSum(requestTable, r.values())...)
}

func updateRequest(tx relay.ExtTx, r jobRow) error {
	return gateway.Exec(tx, "UPDATE jobs_request SET job = ?, id = ?, principal = ?, state = ?, price = ?, sum = ? "+
		"WHERE job = ?", append(gateway.WithSum(requestTable, r.values()), r.job)...)
}

// dropRequest forgets the REQUEST of a job that ends, or that goes to its agent in another way.
func (g *Gateway) dropRequest(o *gateway.Op, job int64) error {
	removed, err := o.Exec("DELETE FROM jobs_request WHERE job = ?", job)
	if removed > 0 {
		o.Then(g.agents.Wake)
	}
	return err
}

// newRequestID returns the id of the REQUEST of a job, and of its thread (B-10).
func newRequestID() string { return gateway.NewID("job_") }

// delivery returns a REQUEST as a delivery.
func (r jobRow) delivery(q relay.Querier) (d deliver.Delivery, err error) {
	if r.job == 0 {
		return d, nil
	}
	p, err := principalByNumber(q, r.principal)
	return deliver.Delivery{N: r.job, ID: r.id, Owner: p.did, State: r.state}, err
}

// deliveriesOf returns the REQUESTs that a SELECT of requestColumns finds, as deliveries.
func deliveriesOf(q relay.Querier, text string, args ...any) (all []deliver.Delivery, err error) {
	rows, err := requests(q, text, args...)
	for _, r := range rows {
		if err == nil {
			var d deliver.Delivery
			d, err = r.delivery(q)
			all = append(all, d)
		}
	}
	return all, err
}

// ofJobs returns a function that finds the REQUESTs of jobs, for deliver.Deliveries.End.
func ofJobs(numbers ...int64) func(relay.Querier) ([]deliver.Delivery, error) {
	return func(q relay.Querier) (all []deliver.Delivery, err error) {
		for _, n := range numbers {
			some, err := deliveriesOf(q, "SELECT "+requestColumns+" FROM jobs_request WHERE job = ?", n)
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
		return all, nil
	}
}

// ofJobID is ofJobs for a job_id.
func ofJobID(id string) func(relay.Querier) ([]deliver.Delivery, error) {
	return func(q relay.Querier) ([]deliver.Delivery, error) {
		n, err := gateway.Number(q, "SELECT n FROM jobs_job WHERE id = ?", id)
		if err != nil || n == 0 {
			return nil, err
		}
		return ofJobs(n)(q)
	}
}

// ofAgentID is ofJobs for the jobs that an agent has not accepted. It can have them until it registers another endpoint.
func ofAgentID(id string) func(relay.Querier) ([]deliver.Delivery, error) {
	return func(q relay.Querier) ([]deliver.Delivery, error) {
		n, err := gateway.Number(q, "SELECT n FROM jobs_agent WHERE id = ? AND bridged = 1", id)
		if err != nil || n == 0 {
			return nil, err
		}
		numbers, err := gateway.Numbers(q, "SELECT n FROM jobs_job WHERE agent = ? AND state = 0 AND dispatched = 0 ORDER BY n", n)
		if err != nil {
			return nil, err
		}
		return ofJobs(numbers...)(q)
	}
}

// ofID is ofJobs for a job_id, or for the agent_id of an agent that is removed.
func ofID(id string) func(relay.Querier) ([]deliver.Delivery, error) {
	return func(q relay.Querier) ([]deliver.Delivery, error) {
		job, err := ofJobID(id)(q)
		if err != nil {
			return nil, err
		}
		all, err := ofAgentID(id)(q)
		return append(all, job...), err
	}
}

// prepared is the REQUEST of a job that is about to be stored. It is zero if there is no room for one, or if the job goes to
// its agent in another way.
type prepared struct {
	id      string
	agent   int64
	price   credits.Amount
	checked relay.Checked
}

// prepare signs the REQUEST of a job, because that takes too long for an Update.
func (g *Gateway) prepare(r *request, p order) (made prepared, err error) {
	var to principal
	room, known := false, false
	j := job{id: p.id, orchestrator: p.orchestrator, skill: p.skill, input: p.input}
	if err := g.Relay.View(r.Context(), r.from, func(q relay.Querier) error {
		room, known = false, false
		a, err := agentByID(q, r.id())
		if err != nil || !a.live() || !a.bridged {
			return err
		}
		made.agent = a.n
		if to, err = principalByNumber(q, a.principal); err != nil {
			return err
		}
		if err := q.Query(func(scan gateway.Scanner) error { known = true; return scan(&j.price) },
			"SELECT cost FROM jobs_skill WHERE agent = ? AND name = ?", a.n, p.skill); err != nil {
			return err
		}
		room, err = hasRoom(q, a.principal)
		return err
	}); err != nil || !room || !known || p.budget < j.price {
		return prepared{}, err
	}
	made.id, made.price = newRequestID(), j.price
	made.checked, err = g.agents.Seal(made.id, to.did, j.agentRequest(made.id))
	if deliver.Refused(err) {
		return prepared{}, nil // the job is stored, and its REQUEST is tried again
	}
	return made, err
}

// request stores the REQUEST of a job. It is sent at once if it says what is stored now, and if there is room (B-2).
func (g *Gateway) request(o *gateway.Op, j job, a agent, made prepared) error {
	row := jobRow{job: j.n, id: newRequestID(), principal: a.principal}
	room, err := hasRoom(o, a.principal)
	if err != nil {
		return err
	}
	if room && made.checked.Envelope() != nil && made.agent == a.n && made.price == j.price {
		if err := g.agents.Append(o, made.checked); err == nil {
			row.id, row.state, j.handed = made.id, deliver.Sent, o.Now
			if err := updateJob(o.ExtTx, j); err != nil {
				return err
			}
		} else if !deliver.Refused(err) {
			return err
		}
	}
	if row.state == deliver.Waiting {
		o.Then(g.agents.Wake)
	}
	return insertRequest(o.ExtTx, row)
}

// Find implements deliver.Mapping.
func (g *Gateway) Find(q relay.Querier, id string) (d deliver.Delivery, err error) {
	rows, err := requests(q, "SELECT "+requestColumns+" FROM jobs_request WHERE id = ?", id)
	if err != nil || len(rows) == 0 {
		return d, err
	}
	return rows[0].delivery(q)
}

// maxCost is the most that an OFFER may ask.
type maxCost struct {
	Amount   credits.Amount `json:"amount"`
	Currency string         `json:"currency"`
}

// constraints are those of the REQUEST of a job (B-10).
type constraints struct {
	MaxCost      maxCost `json:"max_cost"`
	JobID        string  `json:"job_id"`
	Orchestrator string  `json:"orchestrator_id"`
}

// agentRequest is the payload of the REQUEST of a job.
type agentRequest struct {
	envelope.Request
	Constraints constraints `json:"constraints"`
}

// agentRequest returns what the REQUEST of a job says (B-10).
func (j job) agentRequest(id string) agentRequest {
	return agentRequest{envelope.Request{RequestID: id, Intent: j.skill, Params: json.RawMessage(j.input)},
		constraints{maxCost{j.price, currency}, j.id, j.orchestrator}}
}

// NextLane implements deliver.Queue. A lane is a principal, so all agents of a DID have one window (B-3).
func (g *Gateway) NextLane(q relay.Querier, after int64) (int64, error) {
	return gateway.Number(q, "SELECT principal FROM jobs_request WHERE state = 0 AND principal > ? ORDER BY principal LIMIT 1",
		after)
}

// hasRoom reports whether another REQUEST may be sent to the agents of a principal (B-3).
func hasRoom(q relay.Querier, principal int64) (bool, error) {
	sent, err := gateway.Number(q, "SELECT COUNT(*) FROM jobs_request WHERE principal = ? AND state = 1", principal)
	return sent < deliver.Window, err
}

// Next implements deliver.Queue.
func (g *Gateway) Next(q relay.Querier, principal int64) (d deliver.Draft, err error) {
	room, err := hasRoom(q, principal)
	if err != nil || !room {
		return d, err
	}
	rows, err := requests(q, "SELECT "+requestColumns+" FROM jobs_request WHERE principal = ? AND state = 0 ORDER BY job LIMIT 1",
		principal)
	if err != nil || len(rows) == 0 {
		return d, err
	}
	if d.Delivery, err = rows[0].delivery(q); err != nil {
		return d, err
	}
	j, err := jobByNumber(q, d.N)
	d.Request = j.agentRequest(d.ID)
	return d, err
}

// Sent implements deliver.Queue.
func (g *Gateway) Sent(o *gateway.Op, d deliver.Draft) (done bool, err error) {
	r, err := requestOf(o, d.N)
	if err != nil || r.id != d.ID || r.state != deliver.Waiting {
		return false, err
	}
	r.state = deliver.Sent
	if err := updateRequest(o.ExtTx, r); err != nil {
		return false, err
	}
	j, err := jobByNumber(o, d.N)
	if err != nil {
		return false, err
	}
	j.handed = o.Now
	return true, updateJob(o.ExtTx, j)
}

// Fail implements deliver.Queue.
func (g *Gateway) Fail(o *gateway.Op, d deliver.Draft, _ error) error {
	r, err := requestOf(o, d.N)
	if err != nil || r.id != d.ID {
		return err
	}
	j, err := jobByNumber(o, d.N)
	if err == nil {
		_, err = g.end(o, j, outcome{state: failure, code: codeError, message: "the relay could not hand the job to the agent"})
	}
	return err
}

// Answer implements deliver.Mapping.
func (g *Gateway) Answer(ctx context.Context, d deliver.Delivery, e *envelope.Envelope) (f deliver.Effect, err error) {
	var j job
	if err := g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		j, err = jobByNumber(q, d.N)
		return err
	}); err != nil {
		return f, err
	}
	switch e.Type {
	case envelope.TypeOffer:
		price, out := j.offered(e)
		if out != nil {
			f.Cancel, f.Apply = out.message, g.ending(d, *out)
			return f, nil
		}
		f.Accept, f.Apply = true, func(o *gateway.Op) error { return g.accepted(o, d, price) }
	case envelope.TypeResult:
		f.Apply = g.ending(d, resultOf(e))
	case envelope.TypeError:
		f.Apply = g.ending(d, errorOf(e))
	}
	return f, nil
}

// offered returns the price of an OFFER that is accepted; otherwise how the job ends (B-11).
func (j job) offered(e *envelope.Envelope) (price credits.Amount, ends *outcome) {
	out := outcome{state: failure, code: codeBudget}
	offer, costs := deliver.Costs(e)
	switch {
	case costs && offer.Price == nil:
		out.code, out.message = codeError, "the agent's offer cannot be read"
		return 0, &out
	case !costs:
		return j.price, nil
	case offer.Price.Currency != currency:
		out.message = fmt.Sprintf("the agent asks for another currency than %s", currency)
		return 0, &out
	}
	price, err := credits.Parse(strconv.FormatFloat(offer.Price.Amount, 'f', -1, 64))
	switch {
	case err != nil:
		out.message = fmt.Sprintf("the price of the agent's offer is no amount of credits: %v", err)
	case price > j.price:
		out.message = fmt.Sprintf("the agent asks for %v, and its skill costs %v", price, j.price)
	default:
		return price, nil
	}
	return 0, &out
}

// accepted records that an OFFER was accepted: the agent has got the job.
func (g *Gateway) accepted(o *gateway.Op, d deliver.Delivery, price credits.Amount) error {
	r, err := requestOf(o, d.N)
	if err != nil {
		return err
	}
	r.state, r.price = deliver.Accepted, price
	if err := updateRequest(o.ExtTx, r); err != nil {
		return err
	}
	j, err := jobByNumber(o, d.N)
	if err != nil {
		return err
	}
	if err := g.heardFrom(o, j); err != nil {
		return err
	}
	g.dispatch(o, &j)
	o.Then(g.agents.Wake)
	return updateJob(o.ExtTx, j)
}

// ending returns a function that ends a job with what its agent has answered.
func (g *Gateway) ending(d deliver.Delivery, out outcome) func(*gateway.Op) error {
	return func(o *gateway.Op) error {
		r, err := requestOf(o, d.N)
		if err != nil {
			return err
		}
		j, err := jobByNumber(o, d.N)
		if err != nil {
			return err
		}
		if err := g.heardFrom(o, j); err != nil {
			return err
		}
		if r.state == deliver.Accepted {
			out.cost, out.costGiven, out.millis = r.price, true, (o.Now-j.dispatched)/int64(time.Millisecond)
		} else if out.state == success { // a RESULT without an OFFER takes the skill's price
			g.dispatch(o, &j)
		}
		_, err = g.end(o, j, out)
		return err
	}
}

// resultOf returns how a RESULT ends its job (B-12).
func resultOf(e *envelope.Envelope) outcome {
	broken := outcome{state: failure, code: codeError, message: "the agent's result cannot be read"}
	var result envelope.Result
	if e.DecodePayload(&result) != nil {
		return broken
	}
	if result.Status != "success" {
		broken.message = cut(clean("the agent's result has the status "+result.Status), maxMessage)
		return broken
	}
	output := result.Output
	switch {
	case len(output) == 0 || string(output) == "null":
		output = []byte("{}")
	case output[0] != '{':
		output = jsontext.Compact(map[string]json.RawMessage{"result": output})
	}
	canonical, err := envelope.ParseObject(output, max(len(output), maxData))
	switch {
	case err != nil:
		broken.message = "the agent's output cannot be read"
		return broken
	case len(canonical) > maxData:
		broken.message = fmt.Sprintf("the agent's output has %d bytes; at most %d are taken", len(canonical), maxData)
		return broken
	}
	return outcome{state: success, output: string(canonical)}
}

// errorOf returns how an ERROR ends its job (B-12). Its agent was heard from, so it is not offline.
func errorOf(e *envelope.Envelope) outcome {
	out := outcome{state: failure, code: codeError, untried: true,
		message: cut(clean(cmp.Or(e.PayloadString("message"), "the agent has failed")), maxMessage)}
	switch envelope.AgentCode(e.PayloadString("code")) {
	case envelope.AgentIntentNotSupported:
		out.code = codeSkill
	case envelope.AgentInsufficientBudget:
		out.code = codeBudget
	case envelope.AgentUnavailable:
		out.code = codeOffline
	}
	return out
}

// clean returns a text as a column can have it.
func clean(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

// heardFrom records that the agent of a job has answered.
func (g *Gateway) heardFrom(o *gateway.Op, j job) error {
	a, err := agentByNumber(o, j.agent)
	if err != nil || !a.bridged {
		return err
	}
	return refresh(o, a, o.Now)
}

// refresh records that an agent was heard from at a time, unless that changes little.
func refresh(o *gateway.Op, a agent, heard int64) error {
	now := a
	now.heartbeat, now.offline = max(a.heartbeat, heard), false
	soon := now.heartbeat > a.heartbeat && a.until()-o.Now < int64(time.Minute)
	if now.heartbeat-a.heartbeat < int64(time.Minute) && now.offline == a.offline && !soon {
		return nil
	}
	return updateAgent(o.ExtTx, now)
}

// present returns an agent as of now: one whose endpoint is a DID is online if the relay has heard from it (B-13).
func (g *Gateway) present(o *gateway.Op, a agent) (agent, error) {
	if !a.live() || !a.bridged {
		return a, nil
	}
	p, err := principalByNumber(o, a.principal)
	if err != nil {
		return a, err
	}
	heard := g.agents.LastSeen(p.did).UnixNano()
	if heard <= o.Now-int64(bridgedLife) {
		return a, nil
	}
	if err := refresh(o, a, heard); err != nil {
		return a, err
	}
	return agentByNumber(o, a.n)
}

// presenceStep is how often the gateway looks which agents were heard from, and presenceBatch is how many it looks at in
// one View.
const (
	presenceStep  = 10 * time.Second
	presenceBatch = 200
)

// watchPresence puts agents whose endpoint is a DID on the lists while the relay hears from them.
func (g *Gateway) watchPresence(ctx context.Context) error {
	for after, more := int64(0), true; more && ctx.Err() == nil; {
		var news []int64
		now := g.Relay.Now().UnixNano()
		err := g.Relay.View(ctx, self, func(q relay.Querier) error {
			news, more = nil, false
			rows := 0
			return q.Query(func(scan gateway.Scanner) error {
				var did didkey.DID
				var heartbeat, until int64
				if err := scan(&after, &heartbeat, &until, &did); err != nil {
					return err
				}
				if rows++; rows == presenceBatch {
					more = true
				}
				heard := g.agents.LastSeen(did).UnixNano()
				soon := heard > heartbeat && until-now < int64(time.Minute)
				if heard > now-int64(bridgedLife) && (soon || until <= now || heard-heartbeat >= int64(time.Minute)) {
					news = append(news, after)
				}
				return nil
			}, "SELECT a.n, a.heartbeat, a.until, p.did FROM jobs_agent a JOIN jobs_principal p ON p.n = a.principal "+
				"WHERE a.bridged = 1 AND a.deleted = 0 AND a.n > ? ORDER BY a.n LIMIT ?", after, presenceBatch)
		})
		for len(news) > 0 && err == nil {
			some := news[:min(len(news), sweepBatch)]
			news = news[len(some):]
			err = g.Update(context.WithoutCancel(ctx), self, func(o *gateway.Op) error {
				for _, n := range some {
					a, err := agentByNumber(o, n)
					if err == nil {
						_, err = g.present(o, a)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// expireRequest ends a job that its agent has not taken. The agent has as long as the relay hears from it, because it may be
// busy (B-11), but at most as long as the REQUEST lives.
func (g *Gateway) expireRequest(o *gateway.Op, j job) (job, error) {
	out := outcome{state: failure, code: codeOffline, message: "the agent was not heard from for 5 minutes"}
	a, err := agentByNumber(o, j.agent)
	if err != nil {
		return j, err
	}
	p, err := principalByNumber(o, a.principal)
	if err != nil {
		return j, err
	}
	end := j.created + int64(deliver.Life)
	if o.Now >= end {
		out.message, out.untried = "the agent has not taken the job in 24 hours", true
		return g.end(o, j, out)
	}
	// While the relay was down, it could hear from nobody.
	heard := max(g.agents.LastSeen(p.did).UnixNano(), a.heartbeat, g.started.UnixNano())
	if heard+int64(dispatchTime) > o.Now && a.live() {
		j.due = min(heard+int64(dispatchTime), end)
		return j, updateJob(o.ExtTx, j)
	}
	return g.end(o, j, out)
}
