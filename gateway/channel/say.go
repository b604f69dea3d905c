package channel

import (
	"fmt"
	"net/http"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// Ways in which an event came.
const (
	viaAPI      = "api"
	viaCallback = "callback"
	viaTool     = "mcp"
)

// say stores an event of a party. depth is the depth of the event. A message is delivered to the active connections of
// the channel, except the sender's connection. The result is the event, and the number of deliveries.
func (g *Gateway) say(o *gateway.Op, c room, p party, said posted, via string, depth int64) (event, int, error) {
	e := event{channel: c.n, id: gateway.NewID("msg_"), ts: o.Now, party: p.n, sender: p.name, agent: p.agent, typ: said.typ,
		via: via, depth: depth, body: said.body}
	deliver, err := mayDeliver(o, e)
	if err != nil {
		return e, 0, err
	}
	if e.seq, err = gateway.Next(o.ExtTx, eventCounter(c.n)); err != nil {
		return e, 0, err
	}
	if err := insertEvent(o.ExtTx, e); err != nil {
		return e, 0, err
	}
	if err := notice(o, p.n, said.status); err != nil {
		return e, 0, err
	}
	o.Then(func() { g.news.Tell(c.n) })
	if e.seq%trimEvery == 0 {
		if err := trim(o, c.n, g.keep); err != nil {
			return e, 0, err
		}
	}
	if !deliver {
		return e, 0, nil
	}
	count, err := g.deliver(o, e)
	return e, count, err
}

// eventCounter returns the name of the counter that numbers the events of a channel.
func eventCounter(channel int64) string { return fmt.Sprintf("channel_event_%d", channel) }

// mayDeliver reports whether an event is delivered. Only messages are. The loop guard stops agents that answer each
// other for ever: it stores what they say, and does not deliver it (C-13, C-14).
func mayDeliver(o *gateway.Op, e event) (bool, error) {
	if e.typ != typeMessage || e.depth > maxDepth {
		return false, nil
	}
	if !e.agent {
		return true, nil
	}
	said, err := o.Number("SELECT COUNT(*) FROM (SELECT 1 FROM channel_event WHERE channel = ? AND agent = 1 "+
		"AND type = 'message' AND ts > ? LIMIT ?) AS latest", e.channel, o.Now-int64(time.Minute), maxSaid)
	return said < maxSaid, err
}

// notice records that a party has shown itself. An empty status leaves the one that it had.
func notice(o *gateway.Op, party int64, status string) error {
	if status == "" {
		known, err := presenceOf(o, party)
		if err != nil {
			return err
		}
		status = known.status
	}
	return setPresence(o.ExtTx, presence{party, status, o.Now})
}

// deliver adds the deliveries of a message.
func (g *Gateway) deliver(o *gateway.Op, e event) (count int, err error) {
	lanes, err := gateway.Numbers(o, "SELECT n FROM channel_party WHERE channel = ? AND agent = 1 AND revoked = 0 "+
		"AND n <> ? ORDER BY n", e.channel, e.party)
	if err != nil {
		return 0, err
	}
	for _, lane := range lanes {
		d := delivery{channel: e.channel, seq: e.seq, party: lane, depth: e.depth, created: o.Now}
		if d.n, err = gateway.Next(o.ExtTx, deliveryCounter); err != nil {
			return 0, err
		}
		if err := insertDelivery(o.ExtTx, d); err != nil {
			return 0, err
		}
		if err := g.outbox.Add(o.ExtTx, lane, d.n); err != nil {
			return 0, err
		}
		o.Then(func() { g.outbox.Wake(lane) })
	}
	return len(lanes), nil
}

// trimEvery is after how many events of a channel the oldest ones are removed.
const trimEvery = 100

// trim removes the oldest events of a channel, so that it has at most keep. It stops before the oldest message that waits
// to be delivered.
func trim(o *gateway.Op, channel, keep int64) error {
	last, err := o.Number("SELECT seq FROM channel_event WHERE channel = ? ORDER BY seq DESC LIMIT 1 OFFSET ?", channel, keep)
	if err != nil || last == 0 {
		return err
	}
	lanes, err := gateway.Numbers(o, "SELECT n FROM channel_party WHERE channel = ? AND agent = 1 ORDER BY n", channel)
	if err != nil {
		return err
	}
	for _, lane := range lanes {
		waiting, err := o.Number("SELECT d.seq FROM gate_outbox j JOIN channel_delivery d ON d.n = j.ref "+
			"WHERE j.gateway = 'channel' AND j.lane = ? AND j.dead = 0 ORDER BY j.n LIMIT 1", lane)
		if err != nil {
			return err
		}
		if waiting > 0 {
			last = min(last, waiting-1)
		}
	}
	return gateway.Exec(o.ExtTx, "DELETE FROM channel_event WHERE channel = ? AND seq IN (SELECT seq FROM channel_event "+
		"WHERE channel = ? AND seq <= ? ORDER BY seq LIMIT ?)", channel, channel, last, 2*trimEvery)
}

// postMessage is the handler of POST /channels/{channel}/messages.
func (g *Gateway) postMessage(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	c, err := g.caller(r, from, writer)
	if err != nil {
		return err
	}
	var content string
	body, err := g.read(w, r, from, func(body *gateway.Object) { content, _ = body.Sized("content", true, 1, maxContent) })
	if err != nil {
		return err
	}
	endpoint := "POST /channel/channels/" + c.room.id + "/messages"
	repeat, given, err := gateway.ParseRepeat(r, endpoint, c.name(), body)
	if err != nil {
		return err
	}
	var now caller
	reply, err := g.answers.Once(r.Context(), from, repeat, given, func(o *gateway.Op) (err error) {
		now, err = g.findCaller(o, c.key, c.room.id, writer)
		return err
	}, func(o *gateway.Op) (gateway.Reply, error) {
		e, deliveries, err := g.say(o, now.room, now.member, newMessage(content), viaAPI, 0)
		return gateway.NewReply(http.StatusCreated, struct {
			OK         bool           `json:"ok"`
			Event      map[string]any `json:"event"`
			Deliveries int            `json:"deliveries"`
		}{true, e.shown(), deliveries}), err
	})
	if err != nil {
		return err
	}
	return reply.Write(w)
}
