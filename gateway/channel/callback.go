package channel

import (
	"context"
	"net/http"
	"time"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// This file takes the events that agents post to the callbacks of this service.

// token is what a callback token or an MCP token of an attempt stands for.
type token struct {
	attempt  attempt
	delivery delivery
	room     room
	agent    party // the connection; zero: it was removed
}

// findToken returns what a token stands for. known is false if there is no such token for this channel. The error is
// errGone if it was valid once, or if its connection is gone.
func (g *Gateway) findToken(q relay.Querier, key string, kind gateway.Kind, channel string) (t token, known bool, err error) {
	h, found, err := gateway.FindKey(q, key, g.Relay.Now())
	if err != nil || !found || h.Kind != kind || h.Only != "" {
		return t, false, err
	}
	if t.attempt, err = attemptByNumber(q, h.Owner); err != nil {
		return t, false, err
	}
	if t.delivery, err = deliveryByNumber(q, t.attempt.delivery); err != nil {
		return t, false, err
	}
	if t.room, err = roomByNumber(q, t.delivery.channel); err != nil || t.room.id != channel {
		return t, false, err
	}
	if t.agent, err = partyByNumber(q, t.delivery.party); err != nil {
		return t, false, err
	}
	if t.agent.n == 0 || t.agent.revoked != 0 || !t.room.live() || !t.attempt.valid(g.Relay.Now()) {
		err = errGone
	}
	return t, true, err
}

// errGone is the error of a token that was valid once.
var errGone = gateway.Gone("this token has expired, or its connection was removed or revoked; use the callback of a newer delivery")

// valid reports whether the tokens of an attempt are valid.
func (a attempt) valid(now time.Time) bool {
	last := max(a.made, a.used)
	return now.Before(time.Unix(0, last).Add(tokenIdle)) && now.Before(time.Unix(0, a.made).Add(tokenLife))
}

// tokenExpiry returns until when the tokens of an attempt are remembered.
func tokenExpiry(made int64) time.Time { return time.Unix(0, made).Add(tokenLife + tokenKept) }

// callbackToken returns what a callback token stands for. Errors: 404, errGone.
func (g *Gateway) callbackToken(q relay.Querier, key, channel string) (token, error) {
	t, known, err := g.findToken(q, key, gateway.Callback, channel)
	if err == nil && !known {
		err = gateway.NotFound("there is no callback with this token")
	}
	return t, err
}

// name is the name of the token's owner for AdmitCaller and for Idempotency-Keys. All attempts of a delivery have the
// same name, so an agent that answers two of them is recognized.
func (t token) name() string { return "channel delivery " + decimal(t.delivery.n) }

// postCallback is the handler of POST /channels/{channel}/inbox/{token}.
func (g *Gateway) postCallback(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	c := callback{mux.Vars(r)["channel"], mux.Vars(r)["token"]}
	t, err := g.findCallback(r.Context(), from, c)
	if err != nil {
		return err
	}
	if err := g.Relay.Gate().AdmitCaller(from, t.name()); err != nil {
		return err
	}
	_, body, err := g.ReadObject(w, r, from)
	if err != nil {
		return err
	}
	repeat, given, err := gateway.ParseRepeat(r, callbackEndpoint, t.name(), body)
	if err != nil {
		return err
	}
	reply, err := g.takeEvent(r.Context(), from, c, body, repeat, given)
	if err != nil {
		return err
	}
	return reply.Write(w)
}

// callbackEndpoint is the endpoint for Idempotency-Keys. It is the same for all tokens of a delivery.
const callbackEndpoint = "POST /channel/channels/…/inbox/…"

// callback is what the URL of a callback contains.
type callback struct{ channel, token string }

// findCallback returns what the token of a callback stands for. Errors: those of callbackToken.
func (g *Gateway) findCallback(ctx context.Context, from relay.Peer, c callback) (t token, err error) {
	err = g.Relay.View(ctx, from, func(q relay.Querier) (err error) {
		t, err = g.callbackToken(q, c.token, c.channel)
		return err
	})
	return t, err
}

// takeEvent stores an event that came to a callback.
func (g *Gateway) takeEvent(
	ctx context.Context, from relay.Peer, c callback, body []byte, repeat gateway.Repeat, given bool,
) (gateway.Reply, error) {
	said, err := parseEvent(body)
	if err != nil {
		return gateway.Reply{}, err
	}
	admitted := onceFor(func(delivery int64) error { return g.events.Take(delivery, g.Relay.Now) })
	var t token
	return g.answers.Once(ctx, from, repeat, given, func(o *gateway.Op) (err error) {
		t, err = g.callbackToken(o, c.token, c.channel)
		return err
	}, func(o *gateway.Op) (gateway.Reply, error) {
		if err := admitted(t.delivery.n); err != nil {
			return gateway.Reply{}, err
		}
		e, err := g.answer(o, t, said, viaCallback)
		return gateway.NewReply(http.StatusOK, struct {
			OK  bool  `json:"ok"`
			Seq int64 `json:"seq"`
		}{true, e.seq}), err
	})
}

// onceFor returns a function that calls f once and then returns the same result, because an operation may run twice.
func onceFor(f func(int64) error) func(int64) error {
	called, result := false, error(nil)
	return func(n int64) error {
		if !called {
			called, result = true, f(n)
		}
		return result
	}
}

// answer stores what an agent says with a token, and renews the token.
func (g *Gateway) answer(o *gateway.Op, t token, said posted, via string) (event, error) {
	t.attempt.used = o.Now
	if err := updateAttempt(o.ExtTx, t.attempt); err != nil {
		return event{}, err
	}
	e, _, err := g.say(o, t.room, t.agent, said, via, t.delivery.depth+1)
	return e, err
}

// ownCallback returns what answers the callbacks of this service, if url is one. So an inbox of this relay that gets the
// messages of a channel of this relay needs no HTTP (C-30). An event that is sent again after a crash is recognized by
// the id of the call, as by an Idempotency-Key.
func (g *Gateway) ownCallback(url string) gateway.Answerer {
	to, own := g.ownCallbackURL(url)
	if !own {
		return nil
	}
	return func(ctx context.Context, c gateway.Call) (gateway.Response, error) {
		body, err := g.Relay.Object(self, c.Body, gateway.MaxBody)
		if err != nil {
			return gateway.ResponseTo(err, inboxAnswerTo)
		}
		t, err := g.findCallback(ctx, self, to)
		if err == nil {
			_, err = g.takeEvent(ctx, self, to, body, gateway.NewRepeat(callbackEndpoint, t.name(), c.ID, body), true)
		}
		return gateway.ResponseTo(err, inboxAnswerTo)
	}
}
