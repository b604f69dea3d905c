package jobs

import (
	"cmp"
	"context"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// This file ends the jobs that take too long, takes agents off the lists that are no longer online, and forgets old
// contents. Each step is a small Update, so that posts never
// wait for it long.

const (
	sweepInterval = time.Second
	sweepBatch    = 20 // jobs of one Update
)

// sweep works once a second until ctx ends.
func (g *Gateway) sweep(ctx context.Context) {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	failed, looked := time.Time{}, time.Time{} // when a failure was logged last, and when the gateway has looked for presence
	for {
		err := g.sweepOnce(ctx)
		if now := g.Relay.Now(); now.Sub(looked).Abs() >= presenceStep {
			looked = now
			err = cmp.Or(err, g.watchPresence(ctx))
		}
		if err != nil && ctx.Err() == nil && g.Relay.Health() == nil && g.Relay.Now().Sub(failed).Abs() >= time.Minute {
			failed = g.Relay.Now()
			g.Log.Error("jobs whose time is over cannot be ended now; the gateway tries again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// sweepOnce does what is due. An Update is written to disk even if it changes nothing. So the gateway first looks for
// something to do.
func (g *Gateway) sweepOnce(ctx context.Context) error {
	var failed error
	for _, duty := range []struct {
		find string
		age  time.Duration
		do   func(*gateway.Op, job) error
	}{
		{"SELECT n FROM jobs_job WHERE state = 0 AND due <= ? ORDER BY due, n LIMIT ?", 0, func(o *gateway.Op, j job) error {
			_, err := g.expire(o, j)
			return err
		}},
		{"SELECT n FROM jobs_job WHERE ended > 0 AND input <> '' AND ended <= ? ORDER BY ended, n LIMIT ?", contentLife, forget},
	} {
		for more := true; more && ctx.Err() == nil; {
			numbers, err := g.due(ctx, duty.find, duty.age)
			if err == nil && len(numbers) > 0 {
				err = g.forAll(ctx, numbers, duty.do)
				if err != nil { // one by one: one job that cannot be ended must not stop the others
					err = g.oneByOne(ctx, numbers, duty.do)
				}
			}
			failed = cmp.Or(failed, err)
			more = err == nil && len(numbers) == sweepBatch
		}
	}
	return cmp.Or(failed, g.lapseAll(ctx))
}

// lapseAll takes all agents off the lists that have stopped to be online.
func (g *Gateway) lapseAll(ctx context.Context) error {
	for more := true; more && ctx.Err() == nil; {
		some := int64(0)
		err := g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
			some, err = gateway.Number(q, "SELECT n FROM jobs_agent WHERE until > 0 AND until <= ? ORDER BY until, n LIMIT 1",
				g.Relay.Now().UnixNano())
			return err
		})
		if err != nil || some == 0 {
			return err
		}
		if err := g.Update(context.WithoutCancel(ctx), self, func(o *gateway.Op) (err error) {
			more, err = lapse(o, sweepBatch)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// due returns the numbers of some jobs for which a duty is due.
func (g *Gateway) due(ctx context.Context, find string, age time.Duration) (numbers []int64, err error) {
	err = g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		numbers, err = gateway.Numbers(q, find, g.Relay.Now().Add(-age).UnixNano(), sweepBatch)
		return err
	})
	return numbers, err
}

// oneByOne calls f for each job in its own Update. It returns the first error.
func (g *Gateway) oneByOne(ctx context.Context, numbers []int64, f func(*gateway.Op, job) error) (failed error) {
	for i := range numbers {
		failed = cmp.Or(failed, g.forAll(ctx, numbers[i:i+1], f))
	}
	return failed
}

// forAll calls f for jobs in one Update. The threads of those that f ends are canceled (B-2).
func (g *Gateway) forAll(ctx context.Context, numbers []int64, f func(*gateway.Op, job) error) error {
	return g.agents.End(context.WithoutCancel(ctx), self, "the job has ended, because its time is over", ofJobs(numbers...),
		func(o *gateway.Op) error { return forEach(o, numbers, f) })
}

// forEach calls f for jobs as they are now.
func forEach(o *gateway.Op, numbers []int64, f func(*gateway.Op, job) error) error {
	for _, n := range numbers {
		j, err := jobByNumber(o, n)
		if err == nil && j.n != 0 {
			err = f(o, j)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// forget removes the contents of a job that has ended long ago. What was paid stays known, and so does the job_id.
func forget(o *gateway.Op, j job) error {
	j.input, j.output, j.message, j.callback = "", "", "", nil
	return updateJob(o.ExtTx, j)
}
