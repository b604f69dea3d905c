package jobs

import (
	"encoding/json"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/relay"
)

// This file hands jobs to agents whose endpoint is a DID, each as one sealed REQUEST (docs/JOBS.md, "Agents with a DID").

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

// constraints are the constraints in the REQUEST of a job (B-10).
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
