package channel

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// removedText is what the operator's removal leaves of the texts of an event.
const removedText = "[removed by the operator]"

// required lists the members that an event of each type must have. All of them are texts.
var required = map[string][]string{
	typeMessage: {"content"}, typeToolCall: {"name", "id"}, typeToolResult: {"id", "content"}, typeError: {"message"},
	typeStatus: {"status"}, typeLifecycle: {"status"},
}

// Remove removes the texts of an event for the operator. id is the event's id, such as msg_…, or the id of its channel,
// a slash and its seq. The event stays in its channel, with texts that say so, and is not delivered any more. An agent
// that is just getting it may still get its text. Errors: CodeNotFound.
func (g *Gateway) Remove(ctx context.Context, id string) error {
	var at event // only where it is
	if err := g.Relay.View(ctx, gateway.OperatorPeer, func(q relay.Querier) (err error) {
		at.channel, at.seq, err = findEvent(q, id)
		return err
	}); err != nil {
		return err
	}
	return g.Update(ctx, gateway.OperatorPeer, func(o *gateway.Op) error {
		rows, err := events(o, "SELECT "+eventColumns+" FROM channel_event WHERE channel = ? AND seq = ?", at.channel, at.seq)
		if err != nil || len(rows) == 0 {
			return cmp.Or(err, errNoEvent)
		}
		e := rows[0]
		if err := removeStatus(o, e); err != nil {
			return err
		}
		e.body = removedBody(e.typ)
		if err := updateBody(o.ExtTx, e); err != nil {
			return err
		}
		deliveries, err := gateway.Numbers(o, "SELECT n FROM channel_delivery WHERE channel = ? AND seq = ?", e.channel, e.seq)
		for _, n := range deliveries {
			if err == nil {
				err = g.outbox.Remove(o.ExtTx, n)
			}
		}
		return err
	})
}

// removedBody returns the new body of a removed event.
func removedBody(typ string) string {
	members := map[string]string{"type": typ}
	for _, name := range required[typ] {
		members[name] = removedText
	}
	return newEvent(members).body
}

// examined is how many rows one view examines for RemoveSender.
const examined = 1000

// RemoveSender is a gateway.SenderRemover. A sender is the DID of an agent with an inbox of this relay, whose events it
// removes in all channels that the inbox is connected to now. Or it is the id of a channel, a slash and a name there.
func (g *Gateway) RemoveSender(ctx context.Context, sender string, since time.Time, limit int) (removed int, err error) {
	if id, name, both := strings.Cut(sender, "/"); both {
		var in room
		if err := g.Relay.View(ctx, gateway.OperatorPeer, func(q relay.Querier) (err error) {
			in, err = roomByID(q, id)
			return err
		}); err != nil {
			return 0, err
		}
		return g.removeEvents(ctx, in.n, func(e event) bool { return e.sender == name }, since, limit)
	}
	did, err := didkey.Parse(sender)
	if err != nil {
		return 0, nil
	}
	for after, more := int64(0), true; more && removed < limit; {
		var connected []party
		if err := g.Relay.View(ctx, gateway.OperatorPeer, func(q relay.Querier) (err error) {
			connected, after, err = g.connectedTo(q, did, after)
			return err
		}); err != nil {
			return removed, err
		}
		more = after > 0
		for _, p := range connected {
			n, err := g.removeEvents(ctx, p.channel, func(e event) bool { return e.party == p.n }, since, limit-removed)
			if removed += n; err != nil {
				return removed, err
			}
		}
	}
	return removed, nil
}

// connectedTo returns the connections, from the position after on, that lead to inboxes of an agent. It examines a bounded
// number of connections. next is the position where the next call continues; 0: there are no more.
func (g *Gateway) connectedTo(q relay.Querier, owner didkey.DID, after int64) (found []party, next int64, err error) {
	var all []party
	err = q.Query(func(scan gateway.Scanner) error {
		var p party
		err := scan(p.fields()...)
		all = append(all, p)
		return err
	}, "SELECT "+partyColumns+" FROM channel_party WHERE n > ? ORDER BY n LIMIT ?", after, examined)
	for _, p := range all {
		next = p.n
		if err != nil || !p.agent {
			continue
		}
		url, failed := g.Secrets.Decrypt(urlPlace(p.n), p.url)
		key, own := g.ownInboxKey(string(url))
		if err = failed; err != nil || !own {
			continue
		}
		if i, unknown := g.inboxOf(q, key); unknown == nil && i.owner == owner {
			found = append(found, p)
		}
	}
	return found, next, err
}

// removeEvents removes up to limit events of a channel that come from a sender.
func (g *Gateway) removeEvents(
	ctx context.Context, channel int64, from func(event) bool, since time.Time, limit int,
) (int, error) {
	return g.RemoveFound(ctx, limit, func(q relay.Querier, after int64) (ids []string, next int64, err error) {
		in, err := roomByNumber(q, channel)
		if err != nil {
			return nil, 0, err
		}
		err = q.Query(func(scan gateway.Scanner) error {
			var e event
			if err := scan(e.fields()...); err != nil {
				return err
			}
			if next = e.seq; e.ts >= since.UnixNano() && from(e) && e.body != removedBody(e.typ) {
				ids = append(ids, in.id+"/"+decimal(e.seq))
			}
			return nil
		}, "SELECT "+eventColumns+" FROM channel_event WHERE channel = ? AND seq > ? ORDER BY seq LIMIT ?",
			channel, after, examined)
		return ids, next, err
	}, g.Remove)
}

var errNoEvent = gateway.NotFound("no channel has a message with this id; it may have been removed because of its age")

// findEvent returns the channel and the seq of an event, see Remove. The event may not exist if its channel is named.
func findEvent(q relay.Querier, id string) (channel, seq int64, err error) {
	if name, number, both := strings.Cut(id, "/"); both {
		if seq, err = strconv.ParseInt(number, 10, 64); err != nil {
			return 0, 0, gateway.Invalid("want the id of an event, or the id of a channel, a slash and a number")
		}
		in, err := roomByID(q, name)
		return in.n, seq, err
	}
	// No index has the ids, so this takes long. Posts do not wait for it.
	rows, err := events(q, "SELECT "+eventColumns+" FROM channel_event WHERE id = ?", id)
	if err != nil || len(rows) == 0 {
		return 0, 0, cmp.Or(err, errNoEvent)
	}
	return rows[0].channel, rows[0].seq, nil
}

// removeStatus removes the status of a party that an event has set.
func removeStatus(o *gateway.Op, e event) error {
	said, err := parseEvent([]byte(e.body))
	if err != nil || said.status == "" {
		return nil // it has no status
	}
	p, err := presenceOf(o, e.party)
	if err != nil || p.party == 0 || p.status != said.status {
		return err
	}
	p.status = ""
	return setPresence(o.ExtTx, p)
}
