package a2a

import (
	"cmp"
	"context"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
)

var errNoTask = gateway.NotFound("no A2A endpoint has a task with this id; it may have been removed because of its age")

// Remove removes a task for the operator. Its thread is canceled, and it exists for nobody any more. Errors: CodeNotFound.
func (g *Gateway) Remove(ctx context.Context, id string) error {
	var t task
	err := g.Relay.View(ctx, gateway.OperatorPeer, func(q relay.Querier) (err error) {
		t, err = taskByID(q, id)
		return err
	})
	if err == nil && (t.n == 0 || t.endpoint == 0) {
		err = errNoTask
	}
	if err != nil {
		return err
	}
	if err := g.end(ctx, gateway.OperatorPeer, t, failure(wire.Failed, "The operator of the relay has removed this task."),
		"the operator of the relay has removed the task", nil); err != nil {
		return err
	}
	return g.Update(ctx, gateway.OperatorPeer, func(o *gateway.Op) error {
		now, err := taskByNumber(o, t.n)
		if err != nil || now.endpoint == 0 {
			return cmp.Or(err, errNoTask)
		}
		o.Then(g.wakeSweep)
		return drop(o, now)
	})
}

// examined is how many rows one view examines for RemoveSender.
const examined = 1000

// RemoveSender is a gateway.SenderRemover. A sender is the DID of a caller, whose tasks it removes. The endpoint of the DID
// is deleted too.
func (g *Gateway) RemoveSender(ctx context.Context, sender string, since time.Time, limit int) (removed int, err error) {
	did, err := didkey.Parse(sender)
	if err != nil {
		return 0, nil
	}
	err = g.Update(ctx, gateway.OperatorPeer, func(o *gateway.Op) error {
		removed = 0
		e, err := endpointOf(o, did)
		if err != nil || e.n == 0 || e.created < since.UnixNano() {
			return err
		}
		removed = 1
		return g.closeEndpoint(o, e)
	})
	if err != nil || removed >= limit {
		return removed, err
	}
	n, err := g.RemoveFound(ctx, limit-removed, func(q relay.Querier, after int64) (ids []string, next int64, err error) {
		err = q.Query(func(scan gateway.Scanner) error {
			var id, caller string
			var n, created int64
			if err := scan(&n, &id, &caller, &created); err != nil {
				return err
			}
			if next = n; caller == string(did) && created >= since.UnixNano() {
				ids = append(ids, id)
			}
			return nil
		}, "SELECT n, id, caller, created FROM a2a_task WHERE n > ? AND endpoint > 0 ORDER BY n LIMIT ?", after, examined)
		return ids, next, err
	}, g.Remove)
	return removed + n, err
}
