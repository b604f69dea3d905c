package hub

import (
	"context"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// This file removes what has expired. Each step is a small Update, so that messages never wait for it long.

const (
	sweepInterval = time.Minute
	sweepBatch    = 100 // rows of one Update
	trimBatch     = 50  // messages that leave a full history with each new one
)

// sweep removes what has expired until ctx ends.
func (h *Hub) sweep(ctx context.Context) {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		h.sweepOnce(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (h *Hub) sweepOnce(ctx context.Context) {
	h.directory.forgetReplies(h.now().Add(-onlineAfter).UnixNano())
	for _, step := range []func(context.Context) (more bool, err error){h.expireRequests, h.recordPresence} {
		for more := true; more && ctx.Err() == nil; {
			var err error
			if more, err = step(ctx); err != nil {
				if ctx.Err() == nil && h.Relay.Health() == nil {
					h.Log.Error("what is due for agents with a DID cannot be done now; the hub tries again in a minute", "err", err)
				}
				break
			}
		}
	}
	for _, step := range []func(*op) (more bool, err error){(*op).touch, (*op).expire, (*op).purge, (*op).forget,
		(*op).forgetPeers} {
		for more := true; more && ctx.Err() == nil; {
			err := h.update(ctx, self, func(o *op) (err error) {
				more, err = step(o)
				return err
			})
			if err != nil {
				if ctx.Err() == nil && h.Relay.Health() == nil {
					h.Log.Error("expired rows cannot be removed now; the hub tries again in a minute", "err", err)
				}
				break
			}
		}
	}
}

// touch records that the agents with a stream are used. The end of a stream is not recorded if the relay stops, so its
// use is recorded before.
func (o *op) touch() (more bool, err error) {
	some := o.hub.streams.unrecorded(o.Now-int64(usedPrecision), sweepBatch)
	for _, s := range some {
		if err := changeUsage(o.ExtTx, s.agent, func(u *usage) { u.used = o.Now }); err != nil {
			return false, err
		}
	}
	o.Then(func() {
		for _, s := range some {
			s.used.Store(o.Now)
		}
	})
	return len(some) == sweepBatch, nil
}

// expire deletes an agent that was not used for a long time. It spares an agent whose stream has opened after touch.
func (o *op) expire() (more bool, err error) {
	unused, err := gateway.Numbers(o, "SELECT u.agent FROM hub_use u JOIN hub_agent a ON a.n = u.agent WHERE u.used < ? "+
		"AND a.deleted = 0 ORDER BY u.used, u.agent LIMIT 1", o.Now-int64(unusedAfter))
	if err == nil && len(unused) == 0 {
		unused, err = o.idle(idleAfter, 1)
	}
	if err != nil || len(unused) == 0 {
		return false, err
	}
	if used, err := o.inUse(unused[0]); err != nil || used {
		if err != nil {
			return false, err
		}
		return true, changeUsage(o.ExtTx, unused[0], func(u *usage) { u.used = o.Now })
	}
	a, err := agentByNumber(o, unused[0])
	if err != nil {
		return false, err
	}
	return true, o.delete(a)
}

// idle returns agents that never sent or received a message and had no stream for some time, in the order of their last
// use, the oldest first.
func (o *op) idle(after time.Duration, limit int) ([]int64, error) {
	return gateway.Numbers(o, "SELECT agent FROM hub_use WHERE kept = 0 AND framed = 0 AND replied = 0 AND used < ? "+
		"ORDER BY used, agent LIMIT ?", o.Now-int64(after), limit)
}

// makeRoom deletes an agent that never sent or received a message, so that a new one can be registered in its place.
// Otherwise somebody with many addresses could fill the registry for days. made is false if there is none.
func (o *op) makeRoom() (made bool, err error) {
	const look = 20 // posts wait for this Update
	idle, err := o.idle(roomAfter, look)
	if err != nil {
		return false, err
	}
	for _, n := range idle {
		if used, err := o.inUse(n); err != nil {
			return false, err
		} else if used {
			continue
		}
		a, err := agentByNumber(o, n)
		if err != nil {
			return false, err
		}
		return true, o.delete(a)
	}
	return false, nil
}

// purge removes messages that were kept long enough.
func (o *op) purge() (more bool, err error) {
	old, err := gateway.Numbers(o, "SELECT n FROM hub_message WHERE ts < ? AND NOT EXISTS "+
		"(SELECT 1 FROM hub_request r WHERE r.message = hub_message.n) ORDER BY ts, n LIMIT ?",
		o.Now-int64(o.hub.options.Retention), sweepBatch)
	if err != nil {
		return false, err
	}
	for _, n := range old {
		keepers, err := gateway.Numbers(o, "SELECT agent FROM hub_entry WHERE message = ?", n)
		if err != nil {
			return false, err
		}
		d, err := deliveryOf(o, n)
		if err != nil {
			return false, err
		}
		for _, agent := range keepers {
			if err := o.drop(agent, d); err != nil {
				return false, err
			}
		}
		if err := o.remove(d); err != nil {
			return false, err
		}
	}
	return len(old) == sweepBatch, nil
}

// forget removes the histories of deleted agents, and deleted agents whose address is free again.
func (o *op) forget() (more bool, err error) {
	agents, err := gateway.Numbers(o, "SELECT a.n FROM hub_agent a WHERE a.deleted > 0 AND (a.deleted < ? "+
		"OR EXISTS (SELECT 1 FROM hub_entry e WHERE e.agent = a.n)) ORDER BY a.deleted, a.n LIMIT 1",
		o.Now-int64(reservedFor))
	if err != nil || len(agents) == 0 {
		return false, err
	}
	rows, err := o.oldest(agents[0], sweepBatch)
	if err != nil {
		return false, err
	}
	if len(rows) > 0 {
		return true, o.dropAll(agents[0], rows)
	}
	peers, err := o.Exec("DELETE FROM hub_peer WHERE agent = ? AND source IN (SELECT source FROM hub_peer WHERE agent = ? "+
		"ORDER BY source LIMIT ?)", agents[0], agents[0], sweepBatch)
	if err != nil || peers == sweepBatch {
		return true, err
	}
	for _, text := range []string{"DELETE FROM hub_origin WHERE agent = ?", "DELETE FROM hub_use WHERE agent = ?",
		"DELETE FROM hub_agent WHERE n = ?"} {
		if err := gateway.Exec(o.ExtTx, text, agents[0]); err != nil {
			return false, err
		}
	}
	return true, nil
}

// oldest returns the oldest messages in an agent's history that can leave it. Messages that are queued for the agent
// cannot.
func (o *op) oldest(agent int64, limit int) ([]delivery, error) {
	return deliveries(o, "SELECT "+joinedDelivery+" FROM hub_entry e JOIN hub_delivery d ON d.message = e.message "+
		"WHERE e.agent = ? AND NOT (d.receiver = ? AND d.state = 0) AND "+notRequest+" ORDER BY e.message LIMIT ?", agent, agent,
		limit)
}

// trim makes an agent's history smaller than its limits.
func (o *op) trim(agent int64) error {
	u, err := usageOf(o, agent)
	if err != nil {
		return err
	}
	rows, err := o.surplus(u)
	if err != nil {
		return err
	}
	for i, d := range rows {
		if u.kept <= maxKept && u.keptBytes <= maxKeptBytes {
			rows = rows[:i]
			break
		}
		u.kept--
		u.keptBytes -= d.size
	}
	return o.dropAll(agent, rows)
}

// dropAll removes messages from an agent's history, and entirely if they are in no other one.
func (o *op) dropAll(agent int64, rows []delivery) error {
	for _, d := range rows {
		if err := o.drop(agent, d); err != nil {
			return err
		}
		others, err := o.Number("SELECT COUNT(*) FROM hub_entry WHERE message = ?", d.message)
		if err != nil {
			return err
		}
		if others == 0 {
			if err := o.remove(d); err != nil {
				return err
			}
		}
	}
	return nil
}

// drop removes a message from an agent's history.
func (o *op) drop(agent int64, d delivery) error {
	removed, err := o.Exec("DELETE FROM hub_entry WHERE agent = ? AND message = ?", agent, d.message)
	if err != nil || removed == 0 {
		return err
	}
	if agent == d.receiver {
		if err := o.dropped(d); err != nil {
			return err
		}
	}
	return changeUsage(o.ExtTx, agent, func(u *usage) {
		u.kept--
		u.keptBytes -= d.size
	})
}

// remove removes a message. If it is still queued, it is no longer counted.
func (o *op) remove(d delivery) error {
	if d.state == queued {
		o.queued--
		if err := changeUsage(o.ExtTx, d.receiver, func(u *usage) {
			u.queued--
			u.queueBytes -= d.size
		}); err != nil {
			return err
		}
		if err := o.hub.outbox.Remove(o.ExtTx, d.message); err != nil {
			return err
		}
	}
	if d.state == failed {
		o.failed--
	}
	newest, err := o.Number("SELECT MAX(n) FROM hub_message")
	if err == nil && newest == d.message {
		err = o.rememberTime(newest)
	}
	if err != nil {
		return err
	}
	o.stored--
	if err := o.dropRequest(d.message); err != nil {
		return err
	}
	for _, text := range []string{"DELETE FROM hub_message WHERE n = ?", "DELETE FROM hub_delivery WHERE message = ?"} {
		if err := gateway.Exec(o.ExtTx, text, d.message); err != nil {
			return err
		}
	}
	return nil
}

// rememberTime records the timestamp of the newest message, which is being removed. See newestTime.
func (o *op) rememberTime(message int64) error {
	ts, err := o.Number("SELECT ts FROM hub_message WHERE n = ?", message)
	if err != nil {
		return err
	}
	return gateway.Exec(o.ExtTx, "INSERT INTO hub_clock ("+clockColumns+", sum) VALUES (?, ?, ?) "+
		"ON CONFLICT (id) DO UPDATE SET ts = excluded.ts, sum = excluded.sum", gateway.WithSum(clockTable, []any{int64(1), ts})...)
}

// newestTime returns the timestamp of the newest message that was ever stored; 0: there was none.
func newestTime(q relay.Querier) (int64, error) {
	stored, err := gateway.Number(q, "SELECT ts FROM hub_message ORDER BY n DESC LIMIT 1")
	if err != nil {
		return 0, err
	}
	removed, err := gateway.Number(q, "SELECT ts FROM hub_clock WHERE id = 1")
	return max(stored, removed), err
}
