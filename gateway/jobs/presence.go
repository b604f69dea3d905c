package jobs

import (
	"context"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/relay"
)

// This file knows from which agents with a DID the relay has heard.

// bridgedLife is how long such an agent is online after the relay has heard from it (B-13).
const bridgedLife = relay.OnlineWithin

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
