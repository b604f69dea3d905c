package a2a

import (
	"cmp"
	"context"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
)

// This file does what is due at a time, and removes what has expired. Each step is a small Update, so that messages
// never wait for it long.

const (
	sweepInterval = time.Minute
	sweepBatch    = 100 // rows of one Update
)

// wakeSweep makes the sweep work now.
func (g *Gateway) wakeSweep() {
	select {
	case g.kick <- struct{}{}:
	default: // it was woken before
	}
}

// sweep works once a minute, and when g.kick wakes it, until ctx ends.
func (g *Gateway) sweep(ctx context.Context) {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		err := cmp.Or(g.endTasks(ctx), g.forgetAgents(ctx), g.removeRows(ctx))
		if err != nil && ctx.Err() == nil && g.Relay.Health() == nil {
			g.Log.Error("what has expired cannot be removed now; the gateway tries again in a minute", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-g.kick:
		case <-ticker.C:
		}
	}
}

// ending is a reason for which tasks end.
type ending struct {
	due  string // a SELECT of the numbers of the tasks; its parameters are the time before which they are due, and how many
	age  time.Duration
	text string // what the caller reads
}

func (g *Gateway) endings() []ending {
	const silent = "The agent did not answer in time."
	return []ending{
		{"SELECT task FROM a2a_turn WHERE state < 2 AND asked <= ? ORDER BY asked LIMIT ?", deliver.Life, silent},
		{"SELECT task FROM a2a_turn WHERE state = 2 AND accepted <= ? ORDER BY accepted LIMIT ?", deliver.Life, silent},
		{"SELECT n FROM a2a_task WHERE ended = 0 AND open = 0 AND status_at <= ? ORDER BY status_at LIMIT ?",
			g.options.Retention, "The caller did not answer in time."},
		{"SELECT t.n FROM a2a_key k JOIN a2a_task t ON t.endpoint = k.endpoint AND t.caller = 'k' || CAST(k.n AS TEXT) " +
			"WHERE k.deleted > 0 AND k.deleted <= ? AND t.ended = 0 ORDER BY t.n LIMIT ?", 0, "The key of the caller was deleted."},
		{"SELECT t.n FROM a2a_endpoint e JOIN a2a_task t ON t.endpoint = e.n WHERE e.deleted > 0 AND e.deleted <= ? " +
			"AND t.ended = 0 ORDER BY t.n LIMIT ?", 0, "The agent has left."},
	}
}

// endTasks ends tasks that must not continue.
func (g *Gateway) endTasks(ctx context.Context) error {
	for _, x := range g.endings() {
		for more := true; more; {
			var due []task
			err := g.Relay.View(ctx, self, func(q relay.Querier) error {
				due = nil
				all, err := gateway.Numbers(q, x.due, g.Relay.Now().Add(-x.age).UnixNano(), sweepBatch)
				for _, n := range all {
					if err == nil {
						var t task
						t, err = taskByNumber(q, n)
						due = append(due, t)
					}
				}
				return err
			})
			for _, t := range due {
				if err == nil {
					err = g.end(context.WithoutCancel(ctx), self, t, failure(wire.Failed, x.text), "the caller no longer waits", nil)
				}
			}
			if err != nil {
				return err
			}
			more = len(due) == sweepBatch && ctx.Err() == nil
		}
	}
	return nil
}

// forgetAgents deletes the endpoints of agents that were not heard from for a long time.
func (g *Gateway) forgetAgents(ctx context.Context) error {
	var old []endpoint
	if err := g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		old, err = list(q, (*endpoint).fields, "SELECT "+endpointColumns+" FROM a2a_endpoint WHERE deleted = 0 AND seen <= ? "+
			"ORDER BY seen LIMIT ?", g.Relay.Now().Add(-unheard).UnixNano(), sweepBatch)
		return err
	}); err != nil {
		return err
	}
	for _, e := range old {
		a, err := g.agent(ctx, self, e.did)
		if err != nil {
			return err
		}
		if err := g.Update(context.WithoutCancel(ctx), self, func(o *gateway.Op) error {
			now, err := endpointByNumber(o, e.n)
			if err != nil || now.deleted != 0 || now.seen != e.seen {
				return err
			}
			if a.LastSeen.After(time.Unix(0, e.seen)) {
				now.seen = a.LastSeen.UnixNano()
			}
			if now.seen > o.Now-int64(unheard) {
				return updateEndpoint(o.ExtTx, now)
			}
			return g.closeEndpoint(o, now)
		}); err != nil {
			return err
		}
	}
	return nil
}

// duty removes rows.
type duty struct {
	due string // a SELECT that finds a row if there is something to do; its parameter is before
	age time.Duration
	do  func(o *gateway.Op, before int64) (more bool, err error)
}

func (g *Gateway) duties() []duty {
	return []duty{
		{"SELECT 1 FROM a2a_task WHERE ended > 0 AND ended <= ? AND endpoint > 0 LIMIT 1", g.options.Retention, dropOld},
		{"SELECT 1 FROM a2a_usage WHERE (ended > 10000 OR bytes > 268435456) AND endpoint < ? LIMIT 1", 0, dropMost},
		{"SELECT 1 FROM a2a_endpoint WHERE deleted > 0 AND deleted <= ? LIMIT 1", 0, g.removeEndpoint},
		{"SELECT 1 FROM a2a_key WHERE deleted > 0 AND deleted <= ? LIMIT 1", 0, removeKeys},
		{"SELECT 1 FROM a2a_task WHERE endpoint = 0 AND created <= ? LIMIT 1", 0, g.removeTask},
		{"SELECT 1 FROM a2a_notice WHERE created <= ? LIMIT 1", noticeLife, forgetNotices},
	}
}

// removeRows does the duties that are due. An Update is written to disk even if it changes nothing. So the gateway first
// looks for something to do.
func (g *Gateway) removeRows(ctx context.Context) error {
	for _, d := range g.duties() {
		more := false
		err := g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
			return q.Query(func(gateway.Scanner) error { more = true; return nil }, d.due, g.Relay.Now().Add(-d.age).UnixNano())
		})
		for more && err == nil && ctx.Err() == nil {
			err = g.Update(context.WithoutCancel(ctx), self, func(o *gateway.Op) (err error) {
				more, err = d.do(o, o.Now-int64(d.age))
				return err
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// drop makes a task unknown to everybody. removeTask removes its rows.
func drop(o *gateway.Op, t task) error {
	ended := int64(0)
	if t.ended != 0 {
		ended = 1
	}
	if err := use(o.ExtTx, t.endpoint, -ended, -t.bytes); err != nil {
		return err
	}
	t.endpoint = 0
	return updateTask(o.ExtTx, t)
}

// dropAll drops the tasks that a SELECT of taskColumns finds. more means that it has found as many as it can.
func dropAll(o *gateway.Op, text string, args ...any) (more bool, err error) {
	all, err := list(o, (*task).fields, text, append(args, sweepBatch)...)
	for _, t := range all {
		if err == nil {
			err = drop(o, t)
		}
	}
	return len(all) == sweepBatch, err
}

// dropOld drops tasks that were kept long enough.
func dropOld(o *gateway.Op, before int64) (more bool, err error) {
	return dropAll(o, "SELECT "+taskColumns+" FROM a2a_task WHERE ended > 0 AND ended <= ? AND endpoint > 0 "+
		"ORDER BY ended, n LIMIT ?", before)
}

// dropMost drops the oldest task of an endpoint that has too many.
func dropMost(o *gateway.Op, _ int64) (more bool, err error) {
	u, err := find(o, (*usage).fields, "SELECT "+usageColumns+" FROM a2a_usage WHERE ended > ? OR bytes > ? LIMIT 1",
		int64(maxEnded), int64(maxBytes))
	if err != nil || u.endpoint == 0 {
		return false, err
	}
	t, err := find(o, (*task).fields, "SELECT "+taskColumns+" FROM a2a_task WHERE endpoint = ? AND ended > 0 "+
		"ORDER BY ended, n LIMIT 1", u.endpoint)
	if err != nil || t.n == 0 { // its unfinished tasks have all the bytes
		return false, err
	}
	return true, drop(o, t)
}

// removeEndpoint removes some rows of a deleted endpoint, whose tasks have ended, and at last the endpoint.
func (g *Gateway) removeEndpoint(o *gateway.Op, _ int64) (more bool, err error) {
	e, err := find(o, (*endpoint).fields, "SELECT "+endpointColumns+" FROM a2a_endpoint WHERE deleted > 0 ORDER BY deleted LIMIT 1")
	if err != nil || e.n == 0 {
		return false, err
	}
	open, err := o.Number("SELECT n FROM a2a_task WHERE endpoint = ? AND ended = 0 LIMIT 1", e.n)
	if err != nil || open != 0 {
		return false, err
	}
	all, err := list(o, (*callerKey).fields, "SELECT "+keyColumns+" FROM a2a_key WHERE endpoint = ? AND deleted = 0 LIMIT ?",
		e.n, sweepBatch)
	for _, k := range all {
		if err == nil {
			err = g.closeKey(o, k)
		}
	}
	if err != nil || len(all) > 0 {
		return true, err
	}
	more, err = dropAll(o, "SELECT "+taskColumns+" FROM a2a_task WHERE endpoint = ? "+
		"AND ended > 0 ORDER BY ended, n LIMIT ?", e.n)
	if err != nil || more {
		return true, err
	}
	for _, text := range []string{"DELETE FROM a2a_usage WHERE endpoint = ?", "DELETE FROM a2a_endpoint WHERE n = ?"} {
		if err := gateway.Exec(o.ExtTx, text, e.n); err != nil {
			return false, err
		}
	}
	return true, nil
}

// removeKeys removes deleted keys, whose tasks have ended.
func removeKeys(o *gateway.Op, _ int64) (more bool, err error) {
	removed, err := o.Exec("DELETE FROM a2a_key WHERE n IN (SELECT k.n FROM a2a_key k WHERE k.deleted > 0 AND NOT EXISTS "+
		"(SELECT 1 FROM a2a_task t WHERE t.endpoint = k.endpoint AND t.caller = 'k' || CAST(k.n AS TEXT) AND t.ended = 0) "+
		"ORDER BY k.deleted LIMIT ?)", sweepBatch)
	return removed == sweepBatch, err
}

// removeTask removes some rows of a dropped task, and at last the task and its conversation.
func (g *Gateway) removeTask(o *gateway.Op, _ int64) (more bool, err error) {
	t, err := find(o, (*task).fields, "SELECT "+taskColumns+" FROM a2a_task WHERE endpoint = 0 "+
		"AND ended > 0 ORDER BY ended, n LIMIT 1")
	if err != nil || t.n == 0 {
		return false, err
	}
	pushes, err := pushesOf(o, t.n)
	for _, p := range pushes {
		if err == nil {
			err = g.dropPush(o, p)
		}
	}
	if err != nil {
		return false, err
	}
	for _, text := range []string{
		"DELETE FROM a2a_event WHERE task = ? AND seq IN (SELECT seq FROM a2a_event WHERE task = ? ORDER BY seq LIMIT ?)",
		"DELETE FROM a2a_artifact WHERE task = ? AND place IN " +
			"(SELECT place FROM a2a_artifact WHERE task = ? ORDER BY place LIMIT ?)",
		"DELETE FROM a2a_turn WHERE task = ? AND n IN (SELECT n FROM a2a_turn WHERE task = ? ORDER BY turn LIMIT ?)",
	} {
		if removed, err := o.Exec(text, t.n, t.n, sweepBatch); err != nil || removed == sweepBatch {
			return true, err
		}
	}
	if err := gateway.Exec(o.ExtTx, "DELETE FROM a2a_task WHERE n = ?", t.n); err != nil {
		return false, err
	}
	return true, gateway.Exec(o.ExtTx, "DELETE FROM a2a_context WHERE n = ? AND NOT EXISTS "+
		"(SELECT 1 FROM a2a_task WHERE context = ?)", t.context, t.context)
}
