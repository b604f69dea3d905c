package jobs

import (
	"context"

	"github.com/agora-relay/agora/gateway"
)

// SetScore gives an agent a score, in millionths of a point.
func (g *Gateway) SetScore(ctx context.Context, id string, to int64) error {
	return g.Update(ctx, self, func(o *gateway.Op) error {
		a, err := agentByID(o, id)
		if err != nil {
			return err
		}
		a.score = score(to)
		return updateAgent(o.ExtTx, a)
	})
}

// Succeeded returns a score after a success for a hirer with the score c, and its text.
func Succeeded(s, c int64) (int64, string) {
	after := score(s).succeeded(score(c))
	return int64(after), after.String()
}

// Failed returns a score after a failure, and its text.
func Failed(s int64) (int64, string) {
	after := score(s).failed()
	return int64(after), after.String()
}

// JobsURL is jobsURL.
func JobsURL(endpoint string, appended bool) (string, error) { return jobsURL(endpoint, appended) }
