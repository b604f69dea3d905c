package channel

import (
	"context"
	"net/http"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// This file creates, shows, changes and deletes channels.

// shownRoom is a channel as answers show it.
type shownRoom struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Context   string `json:"context"`
	CreatedAt stamp  `json:"createdAt"`
}

func (c room) shown() shownRoom { return shownRoom{c.id, c.name, c.context, stamp(c.created)} }

// roomAnswer is the answer with a channel.
type roomAnswer struct {
	OK      bool      `json:"ok"`
	Channel shownRoom `json:"channel"`
	Key     string    `json:"key,omitempty"` // only for a new channel
}

// parsedRoom is the body of a request that creates or changes a channel.
type parsedRoom struct{ name, context *string } // nil: not given

// parseRoom reads the members name and context. The name of a new channel is required.
func parseRoom(o *gateway.Object, isNew bool) (p parsedRoom) {
	if name, given := o.Sized("name", isNew, 1, maxName); given {
		p.name = &name
	}
	if context, given := o.Sized("context", false, 0, maxContext); given {
		p.context = &context
	}
	return p
}

// change returns the channel with the members that were given.
func (p parsedRoom) change(c room) room {
	if p.name != nil {
		c.name = *p.name
	}
	if p.context != nil {
		c.context = *p.context
	}
	return c
}

// postChannel is the handler of POST /channels.
func (g *Gateway) postChannel(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	admit := func(q relay.Querier) error {
		key, _ := gateway.Bearer(r)
		h, err := g.findHolder(q, key)
		if err == nil && h.Kind != gateway.Operator {
			err = gateway.Forbidden("only the operator creates channels; the key is in the file operator.key of the relay")
		}
		return err
	}
	if err := g.Relay.View(r.Context(), from, admit); err != nil {
		return err
	}
	if err := g.Relay.Gate().AdmitCaller(from, "operator"); err != nil {
		return err
	}
	var parsed parsedRoom
	if _, err := g.read(w, r, from, func(body *gateway.Object) { parsed = parseRoom(body, true) }); err != nil {
		return err
	}
	var made room
	key := gateway.NewKey(gateway.Channel)
	err := g.Update(context.WithoutCancel(r.Context()), from, func(o *gateway.Op) (err error) {
		if err := admit(o); err != nil {
			return err
		}
		made, err = g.createRoom(o, parsed.change(room{id: gateway.NewID("ch_")}), key)
		return err
	})
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusCreated, roomAnswer{true, made.shown(), key})
}

// createRoom stores a new channel and its key.
func (g *Gateway) createRoom(o *gateway.Op, c room, key string) (room, error) {
	count, err := o.Number("SELECT COUNT(*) FROM channel_channel WHERE deleted = 0")
	if err != nil {
		return c, err
	}
	if count >= g.rooms {
		return c, gateway.LimitReached(limitChannels, time.Hour, "this relay has %d channels, which is its limit; delete one first",
			g.rooms)
	}
	if c.n, err = gateway.Next(o.ExtTx, channelCounter); err != nil {
		return c, err
	}
	c.created = o.Now
	if err := insertRoom(o.ExtTx, c); err != nil {
		return c, err
	}
	return c, gateway.AddKey(o.ExtTx, key, gateway.Holder{Kind: gateway.Channel, Owner: c.n})
}

// getChannel is the handler of GET /channels/{channel}.
func (g *Gateway) getChannel(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	c, err := g.caller(r, from, manager)
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, roomAnswer{OK: true, Channel: c.room.shown()})
}

// patchChannel is the handler of PATCH /channels/{channel}.
func (g *Gateway) patchChannel(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	var parsed parsedRoom
	var changed room
	parse := func(body *gateway.Object) { parsed = parseRoom(body, false) }
	err := g.change(w, r, from, parse, func(o *gateway.Op, c caller) error {
		changed = parsed.change(c.room)
		return updateRoom(o.ExtTx, changed)
	})
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, roomAnswer{OK: true, Channel: changed.shown()})
}

// deleteChannel is the handler of DELETE /channels/{channel}. The sweep removes the events later.
func (g *Gateway) deleteChannel(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	err := g.change(w, r, from, nil, func(o *gateway.Op, c caller) error {
		parties, err := partiesOf(o, c.room.n)
		if err != nil {
			return err
		}
		for _, p := range parties {
			if err := g.removeParty(o, p); err != nil {
				return err
			}
		}
		c.room.deleted = o.Now
		if err := updateRoom(o.ExtTx, c.room); err != nil {
			return err
		}
		o.Then(func() { g.news.Tell(c.room.n) })
		return gateway.DropKeys(o.ExtTx, gateway.Channel, c.room.n, "")
	})
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, done{true})
}
