package gateway

import (
	"context"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// OperatorPeer is the peer of what the operator does at a gateway.
var OperatorPeer = relay.Peer{Local: true, Operator: true}

// SenderRemover removes for the operator what one sender has sent to a gateway since a time, at most limit things at a
// time. It returns how many it has removed. If that is limit, there may be more. A gateway that does not know the sender
// removes nothing.
type SenderRemover func(ctx context.Context, sender string, since time.Time, limit int) (removed int, err error)

// Find returns ids of what is to be removed, from the position after on. It examines a bounded number of rows. next is
// the position where the next call continues; 0: there are no more rows.
type Find func(q relay.Querier, after int64) (ids []string, next int64, err error)

// RemoveFound calls remove for what find finds, until it has removed limit things. Each is removed in a transaction of its
// own, so that posts do not wait long.
func (c *Core) RemoveFound(
	ctx context.Context, limit int, find Find, remove func(ctx context.Context, id string) error,
) (removed int, err error) {
	for after, more := int64(0), true; more; {
		var ids []string
		err := c.Relay.View(ctx, OperatorPeer, func(q relay.Querier) (err error) {
			ids, after, err = find(q, after)
			return err
		})
		if err != nil {
			return removed, err
		}
		more = after > 0
		for _, id := range ids {
			if removed == limit {
				return removed, nil
			}
			switch err := remove(ctx, id); {
			case err == nil:
				removed++
			case envelope.CodeOf(err) != envelope.CodeNotFound: // it may have been removed meanwhile, because of its age
				return removed, err
			}
		}
	}
	return removed, nil
}
