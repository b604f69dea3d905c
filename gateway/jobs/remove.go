package jobs

import (
	"context"
	"strings"

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
	return g.Update(ctx, relay.Peer{Local: true, Operator: true}, func(o *gateway.Op) error {
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
		return unregister(o, a)
	})
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
