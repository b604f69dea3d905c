package channel

import (
	"context"
	"fmt"
	"net/http"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// caller says who sent a request, and what the request is about.
type caller struct {
	key    string
	holder gateway.Holder
	room   room  // the channel of the path
	member party // the caller, if it is a member
}

// name is the caller's name for AdmitCaller and for Idempotency-Keys.
func (c caller) name() string {
	if c.holder.Kind == gateway.Operator {
		return "operator"
	}
	return fmt.Sprintf("channel %s%d", c.holder.Kind, c.holder.Owner)
}

// right says who may send a request.
type right int

const (
	manager right = iota // the channel's key, or the operator
	reader               // these, or a member
	writer               // a member
)

// findHolder returns to whom the key of a request belongs. Errors: 401.
func (g *Gateway) findHolder(q relay.Querier, key string) (gateway.Holder, error) {
	h, found, err := gateway.FindKey(q, key, g.Relay.Now())
	if err == nil && !found {
		err = gateway.Unauthorized("this request needs a valid key; send it as Authorization: Bearer KEY")
	}
	return h, err
}

// findCaller checks that a key may be used for the channel with this id. Errors: 401; 403, also for a channel that does
// not exist, because nobody but the operator may know that (G-11).
func (g *Gateway) findCaller(q relay.Querier, key, id string, needs right) (c caller, err error) {
	c.key = key
	if c.holder, err = g.findHolder(q, key); err != nil {
		return c, err
	}
	if c.room, err = roomByID(q, id); err != nil {
		return c, err
	}
	allowed := false
	switch c.holder.Kind {
	case gateway.Operator:
		if !c.room.live() {
			return c, gateway.NotFound("there is no channel with this id")
		}
		allowed = needs != writer
	case gateway.Channel:
		allowed = needs != writer && c.holder.Owner == c.room.n
	case gateway.Member:
		if c.member, err = partyByNumber(q, c.holder.Owner); err != nil {
			return c, err
		}
		allowed = needs != manager && c.member.n != 0 && c.member.channel == c.room.n
	}
	if !allowed || !c.room.live() {
		return c, gateway.Forbidden("this key may not do this in this channel; " + needs.hint())
	}
	return c, nil
}

// hint says which key a request needs.
func (n right) hint() string {
	switch n {
	case writer:
		return "only a member can post messages, with the cm_ key that POST …/members has returned"
	case reader:
		return "use the channel's ck_ key, or the cm_ key of one of its members"
	}
	return "use the channel's ck_ key, which POST /channels has returned"
}

// caller returns who sent a request about a channel. If the request changes something, it is counted against the limit
// of that caller.
func (g *Gateway) caller(r *http.Request, from relay.Peer, needs right) (c caller, err error) {
	key, _ := gateway.Bearer(r)
	err = g.Relay.View(r.Context(), from, func(q relay.Querier) (err error) {
		c, err = g.findCaller(q, key, mux.Vars(r)["channel"], needs)
		return err
	})
	if err != nil || r.Method == http.MethodGet {
		return c, err
	}
	return c, g.Relay.Gate().AdmitCaller(from, c.name())
}

// change handles a request that changes a channel. It reads the body and checks it with parse. Then it runs f in one
// Update. f gets the caller as it is then, because the key may have ended since the request was admitted; f may be run
// twice. If parse is nil, the body is ignored.
func (g *Gateway) change(
	w http.ResponseWriter, r *http.Request, from relay.Peer, parse func(*gateway.Object),
	f func(*gateway.Op, caller) error,
) error {
	c, err := g.caller(r, from, manager)
	if err != nil {
		return err
	}
	if parse == nil {
		_, err = httpapi.ReadBody(w, r, gateway.MaxBody)
	} else {
		_, err = g.read(w, r, from, parse)
	}
	if err != nil {
		return err
	}
	// If the client disconnects now, the operation is still done.
	return g.Update(context.WithoutCancel(r.Context()), from, func(o *gateway.Op) error {
		now, err := g.findCaller(o, c.key, c.room.id, manager)
		if err != nil {
			return err
		}
		return f(o, now)
	})
}

// read returns the body of a request in the form of RFC 8785, after parse has checked it.
func (g *Gateway) read(
	w http.ResponseWriter, r *http.Request, from relay.Peer, parse func(*gateway.Object),
) (body []byte, err error) {
	if _, body, err = g.ReadObject(w, r, from); err != nil {
		return nil, err
	}
	o := gateway.NewObject("", body)
	parse(o)
	return body, o.Err
}
