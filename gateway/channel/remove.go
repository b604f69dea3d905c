package channel

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// removedText is what the operator's removal leaves of the texts of an event.
const removedText = "[removed by the operator]"

// required are the members that an event must have, all of which are texts.
var required = map[string][]string{
	typeMessage: {"content"}, typeToolCall: {"name", "id"}, typeToolResult: {"id", "content"}, typeError: {"message"},
	typeStatus: {"status"}, typeLifecycle: {"status"},
}

// Remove removes the texts of an event for the operator. id is that of the event, such as msg_…, or the id of its channel,
// a slash and its seq. The event stays in its channel, with texts that say so, and is not delivered any more. An agent
// that is just getting it may still get its text. Errors: CodeNotFound.
func (g *Gateway) Remove(ctx context.Context, id string) error {
	operator := relay.Peer{Local: true, Operator: true}
	var at event // only where it is
	if err := g.Relay.View(ctx, operator, func(q relay.Querier) (err error) {
		at.channel, at.seq, err = findEvent(q, id)
		return err
	}); err != nil {
		return err
	}
	return g.Update(ctx, operator, func(o *gateway.Op) error {
		rows, err := events(o, "SELECT "+eventColumns+" FROM channel_event WHERE channel = ? AND seq = ?", at.channel, at.seq)
		if err != nil || len(rows) == 0 {
			return cmp.Or(err, errNoEvent)
		}
		e := rows[0]
		if err := removeStatus(o, e); err != nil {
			return err
		}
		members := map[string]string{"type": e.typ}
		for _, name := range required[e.typ] {
			members[name] = removedText
		}
		e.body = newEvent(members).body
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

var errNoEvent = notFound("no channel has a message with this id; it may have been removed because of its age")

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
