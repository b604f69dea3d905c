package jobs

import (
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/relay"
)

// This file has the rows of the REQUESTs of jobs.

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

// ofJobID does the same as ofJobs, for a job_id.
func ofJobID(id string) func(relay.Querier) ([]deliver.Delivery, error) {
	return func(q relay.Querier) ([]deliver.Delivery, error) {
		n, err := gateway.Number(q, "SELECT n FROM jobs_job WHERE id = ?", id)
		if err != nil || n == 0 {
			return nil, err
		}
		return ofJobs(n)(q)
	}
}

// ofAgentID does the same as ofJobs, for the jobs that an agent has not accepted. It can have them until it registers
// another endpoint.
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

// ofID does the same as ofJobs, for a job_id, or for the agent_id of an agent that is removed.
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
