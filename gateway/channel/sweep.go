package channel

import (
	"cmp"
	"context"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
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
		g.sweepOnce(ctx)
		select {
		case <-ctx.Done():
			return
		case <-g.kick:
		case <-ticker.C:
		}
	}
}

// duty is something that is due when a row has an age. before is the present time minus that age, in nanoseconds since
// 1970.
type duty struct {
	due string // a SELECT that finds a row if there is something to do; its parameter is before
	age time.Duration
	do  func(o *gateway.Op, before int64) (more bool, err error)
}

// forgotten is the age at which the tokens of an attempt and of a request have been forgotten.
const forgotten = tokenLife + tokenKept

func (g *Gateway) duties() []duty {
	return []duty{
		{"SELECT 1 FROM channel_request WHERE answered = 0 AND created <= ? LIMIT 1", answerTime, g.reportSilence},
		{"SELECT 1 FROM channel_event WHERE ts < ? LIMIT 1", eventLife, forgetEvents},
		{"SELECT 1 FROM channel_attempt WHERE made < ? LIMIT 1", forgotten, forgetAttempts},
		{"SELECT 1 FROM channel_delivery WHERE created < ? LIMIT 1", gateway.JobLife + forgotten, forgetDeliveries},
		{"SELECT 1 FROM channel_request WHERE created < ? LIMIT 1", forgotten, forgetRequests},
		{"SELECT 1 FROM channel_channel c WHERE c.deleted > 0 AND (c.deleted < ? OR EXISTS " +
			"(SELECT 1 FROM channel_event e WHERE e.channel = c.n)) LIMIT 1", gateway.JobLife + forgotten, removeRooms},
		{"SELECT 1 FROM channel_inbox WHERE deleted > 0 AND deleted < ? LIMIT 1", forgotten, removeInboxes},
	}
}

// sweepOnce does what is due. An Update is written to disk even if it changes nothing. So the gateway first looks for
// something to do.
func (g *Gateway) sweepOnce(ctx context.Context) {
	again, failed := g.cancelThreads(ctx)
	if again {
		g.wakeSweep()
	}
	for _, d := range g.duties() {
		more := false
		err := g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
			return q.Query(func(gateway.Scanner) error { more = true; return nil }, d.due,
				g.Relay.Now().Add(-d.age).UnixNano())
		})
		for more && err == nil && ctx.Err() == nil {
			err = g.Update(context.WithoutCancel(ctx), self, func(o *gateway.Op) (err error) {
				more, err = d.do(o, o.Now-int64(d.age))
				return err
			})
		}
		failed = cmp.Or(failed, err)
	}
	if failed != nil && ctx.Err() == nil && g.Relay.Health() == nil {
		g.Log.Error("what has expired cannot be removed now; the gateway tries again in a minute", "err", failed)
	}
}

// reportSilence tells services that an agent has not shown itself for 24 hours, once for each delivery (C-29).
func (g *Gateway) reportSilence(o *gateway.Op, before int64) (more bool, err error) {
	silent, err := gateway.Numbers(o, "SELECT n FROM channel_request WHERE answered = 0 AND created <= ? "+
		"ORDER BY created, n LIMIT ?", before, sweepBatch)
	if err != nil {
		return false, err
	}
	for _, n := range silent {
		r, err := requestByNumber(o, n)
		if err != nil {
			return false, err
		}
		if r.ended != 0 {
			r.answered = true
			err = updateRequest(o.ExtTx, r)
		} else {
			err = g.forward(o, r, newError("the agent has not answered for 24 hours", "undelivered"))
		}
		if err != nil {
			return false, err
		}
	}
	return len(silent) == sweepBatch, nil
}

// cancelThreads cancels some open threads of a deleted inbox. more means that there may be others.
func (g *Gateway) cancelThreads(ctx context.Context) (more bool, err error) {
	var open []request
	err = g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		open, err = orphans(q)
		return err
	})
	if err != nil || len(open) == 0 {
		return false, err
	}
	return true, g.owners.End(context.WithoutCancel(ctx), self, "the inbox was deleted",
		func(q relay.Querier) (all []deliver.Delivery, err error) {
			for _, r := range open {
				now, err := requestByNumber(q, r.n)
				if err != nil {
					return nil, err
				}
				i, err := inboxByNumber(q, now.inbox)
				if err != nil {
					return nil, err
				}
				all = append(all, now.delivery(i))
			}
			return all, nil
		}, func(o *gateway.Op) error {
			for _, r := range open {
				now, err := requestByNumber(o, r.n)
				if err == nil && now.n != 0 {
					now.state = over
					err = updateRequest(o.ExtTx, now)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
}

// cancelBatch is how many threads one Update cancels. Each needs a signature.
const cancelBatch = 20

// orphans returns some open requests of a deleted inbox.
func orphans(q relay.Querier) (open []request, err error) {
	deleted, err := gateway.Number(q, "SELECT i.n FROM channel_inbox i WHERE i.deleted > 0 AND EXISTS "+
		"(SELECT 1 FROM channel_request r WHERE r.inbox = i.n AND r.state < 2) ORDER BY i.n LIMIT 1")
	if err != nil || deleted == 0 {
		return nil, err
	}
	err = q.Query(func(scan gateway.Scanner) error {
		var r request
		err := scan(r.fields()...)
		open = append(open, r)
		return err
	}, "SELECT "+requestColumns+" FROM channel_request WHERE inbox = ? AND state < 2 ORDER BY n LIMIT ?", deleted, cancelBatch)
	return open, err
}

// forgetEvents removes events that were kept long enough.
func forgetEvents(o *gateway.Op, before int64) (more bool, err error) {
	return someRemoved(o.Exec("DELETE FROM channel_event WHERE (channel, seq) IN "+
		"(SELECT channel, seq FROM channel_event WHERE ts < ? ORDER BY ts, channel, seq LIMIT ?)", before, sweepBatch))
}

// forgetDeliveries removes deliveries of which no token is remembered.
func forgetDeliveries(o *gateway.Op, before int64) (more bool, err error) {
	return someRemoved(o.Exec("DELETE FROM channel_delivery WHERE n IN "+
		"(SELECT n FROM channel_delivery WHERE created < ? ORDER BY created, n LIMIT ?)",
		before, sweepBatch))
}

// forgetAttempts removes attempts whose tokens have been forgotten.
func forgetAttempts(o *gateway.Op, before int64) (more bool, err error) {
	return someRemoved(o.Exec("DELETE FROM channel_attempt WHERE n IN "+
		"(SELECT n FROM channel_attempt WHERE made < ? ORDER BY made, n LIMIT ?)", before, sweepBatch))
}

func someRemoved(removed int64, err error) (more bool, _ error) { return removed == sweepBatch, err }

// forgetRequests removes requests whose token has been forgotten, and the events of them that were never taken.
func forgetRequests(o *gateway.Op, before int64) (more bool, err error) {
	old, err := gateway.Numbers(o, "SELECT n FROM channel_request WHERE created < ? ORDER BY created, n LIMIT ?",
		before, sweepBatch)
	for _, n := range old {
		for _, text := range []string{"DELETE FROM channel_out WHERE request = ?", "DELETE FROM channel_request WHERE n = ?"} {
			if err := gateway.Exec(o.ExtTx, text, n); err != nil {
				return false, err
			}
		}
	}
	return len(old) == sweepBatch, err
}

// removeRooms removes the events of deleted channels, and then the channels. Their deliveries expire by themselves.
func removeRooms(o *gateway.Op, before int64) (more bool, err error) {
	deleted, err := gateway.Numbers(o, "SELECT n FROM channel_channel WHERE deleted > 0 AND (deleted < ? OR EXISTS "+
		"(SELECT 1 FROM channel_event e WHERE e.channel = channel_channel.n)) ORDER BY n LIMIT 1",
		before)
	if err != nil || len(deleted) == 0 {
		return false, err
	}
	n := deleted[0]
	removed, err := o.Exec("DELETE FROM channel_event WHERE channel = ? AND seq IN "+
		"(SELECT seq FROM channel_event WHERE channel = ? ORDER BY seq LIMIT ?)", n, n, sweepBatch)
	if err != nil || removed > 0 {
		return true, err
	}
	if err := gateway.DropCounter(o.ExtTx, eventCounter(n)); err != nil {
		return false, err
	}
	return true, gateway.Exec(o.ExtTx, "DELETE FROM channel_channel WHERE n = ?", n)
}

// removeInboxes removes deleted inboxes of which no request is left.
func removeInboxes(o *gateway.Op, before int64) (more bool, err error) {
	return someRemoved(o.Exec("DELETE FROM channel_inbox WHERE n IN (SELECT i.n FROM channel_inbox i WHERE i.deleted > 0 "+
		"AND i.deleted < ? AND NOT EXISTS (SELECT 1 FROM channel_request r WHERE r.inbox = i.n) ORDER BY i.n LIMIT ?)",
		before, sweepBatch))
}
