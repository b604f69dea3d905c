package jobs

import (
	"context"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// removedText is what the operator's removal leaves of the texts of a job or an agent.
const removedText = "the operator of this registry has removed this"

// Remove removes the content of a job, or an agent, for the operator. id is a job_id or an agent_id. A running job fails,
// and its hirer gets back what it holds. What was paid for a job that has ended stays paid. An agent is deleted, as by its
// principal, and its name is removed too. An endpoint that is just getting a job may still get its content. Errors:
// CodeNotFound.
func (g *Gateway) Remove(ctx context.Context, id string) error {
	id = strings.ToLower(id)
	const reason = "the operator of the registry has removed this"
	return g.agents.End(ctx, gateway.OperatorPeer, reason, ofID(id), func(o *gateway.Op) error {
		j, err := jobByID(o, id)
		if err != nil {
			return err
		}
		if j.n != 0 {
			return g.removeJob(o, j)
		}
		a, err := agentByID(o, id)
		switch {
		case err != nil:
			return err
		case a.n == 0:
			return envelope.Errorf(envelope.CodeNotFound, "the registry has no job and no agent with this id")
		}
		a.name = removedText
		if err := updateAgent(o.ExtTx, a); err != nil {
			return err
		}
		return g.unregister(o, a)
	})
}

// examined is how many jobs one view examines for RemoveSender.
const examined = 1000

// RemoveSender is a gateway.SenderRemover. A sender is the DID of a principal. It removes the agents of the principal, the
// jobs that the principal has hired, and those that its agents have done.
func (g *Gateway) RemoveSender(ctx context.Context, sender string, since time.Time, limit int) (int, error) {
	did, err := didkey.Parse(sender)
	if err != nil {
		return 0, nil
	}
	return g.RemoveFound(ctx, limit, func(q relay.Querier, after int64) (ids []string, next int64, err error) {
		p, err := principalByDID(q, did)
		if err != nil || p.n == 0 {
			return nil, 0, err
		}
		found := func(scan gateway.Scanner) error {
			var id string
			err := scan(&id)
			ids = append(ids, id)
			return err
		}
		if after == 0 {
			if err := q.Query(found, "SELECT id FROM jobs_agent WHERE principal = ? AND registered >= ? AND name <> ?",
				p.n, since.UnixNano(), removedText); err != nil {
				return nil, 0, err
			}
		}
		if next, err = gateway.Number(q, "SELECT coalesce(max(n), 0) FROM "+
			"(SELECT n FROM jobs_job WHERE n > ? ORDER BY n LIMIT ?) w", after, examined); err != nil {
			return nil, 0, err
		}
		err = q.Query(found, "SELECT id FROM jobs_job WHERE n > ? AND n <= ? AND created >= ? AND input <> '' AND "+
			"(input <> '{}' OR output <> '' OR message <> ?) AND "+
			"(hirer = ? OR agent IN (SELECT n FROM jobs_agent WHERE principal = ?)) ORDER BY n",
			after, next, since.UnixNano(), removedText, p.n, p.n)
		return ids, next, err
	}, g.Remove)
}

// removeJob removes the content of a job. The empty objects stay until the job is forgotten like any other.
func (g *Gateway) removeJob(o *gateway.Op, j job) error {
	j, err := g.end(o, j, outcome{state: failure, code: codeError, removed: true})
	if err != nil {
		return err
	}
	j.input, j.output, j.message = "{}", "", removedText
	return updateJob(o.ExtTx, j)
}
