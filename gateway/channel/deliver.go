package channel

import (
	"context"
	"net/http"
	"sync"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// courier delivers the messages of channels to agents (docs/CHANNEL.md, "Deliveries"). A lane is a connection, and a
// job is a delivery.
type courier struct {
	g *Gateway
	// versions has, for each lane, the version of the URL that the present attempt uses. An outbox works on a lane in one
	// goroutine at a time.
	versions *sync.Map
}

func newCourier(g *Gateway) courier { return courier{g, new(sync.Map)} }

// Target implements gateway.Courier.
func (c courier) Target(ctx context.Context, j gateway.Job) (url string, p gateway.Plan, err error) {
	var agent party
	if err := c.g.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		agent, err = partyByNumber(q, j.Lane)
		return err
	}); err != nil {
		return "", gateway.Hold, err
	}
	switch {
	case agent.n == 0:
		return "", gateway.Clear, nil
	case agent.revoked != 0:
		return "", gateway.Kill, nil
	}
	c.versions.Store(j.Lane, agent.version)
	text, err := c.g.Secrets.Decrypt(urlPlace(agent.n), agent.url)
	return string(text), gateway.Send, err
}

// payload is the body of a delivery. The members have the order of the protocol's examples.
type payload struct {
	Channel  payloadChannel `json:"channel"`
	Message  payloadMessage `json:"message"`
	Callback string         `json:"callback"`
	MCP      any            `json:"mcp,omitempty"`
}

type payloadChannel struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Service string `json:"service"`
	Context string `json:"context"`
}

type payloadMessage struct {
	ID      string `json:"id"`
	Sender  string `json:"sender"`
	Content string `json:"content"`
}

// payloadMCP says how to reach the tools. Name is only in the form of a list.
type payloadMCP struct {
	Name    string            `json:"name,omitempty"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
}

// Call implements gateway.Courier. Each attempt has its own tokens (C-5). They are stored before the attempt, because
// the agent may use them before it answers.
func (c courier) Call(ctx context.Context, j gateway.Job) (gateway.Call, gateway.Plan, error) {
	callback, tool := gateway.NewKey(gateway.Callback), gateway.NewKey(gateway.ToolUser)
	var e event
	var to room
	var agent party
	version, _ := c.versions.Load(j.Lane)
	var plan gateway.Plan
	err := c.g.Update(context.WithoutCancel(ctx), self, func(o *gateway.Op) error {
		plan = gateway.Send
		d, err := deliveryByNumber(o, j.Ref)
		if err != nil {
			return err
		}
		if agent, err = partyByNumber(o, j.Lane); err != nil {
			return err
		}
		if to, err = roomByNumber(o, d.channel); err != nil {
			return err
		}
		rows, err := events(o, "SELECT "+eventColumns+" FROM channel_event WHERE channel = ? AND seq = ?", d.channel, d.seq)
		if err != nil {
			return err
		}
		switch {
		case agent.n == 0 || len(rows) == 0:
			plan = gateway.Drop
			return nil
		case agent.revoked != 0 || any(agent.version) != version: // PUT has changed it since Target, and wakes the lane
			plan = gateway.Hold
			return nil
		}
		e = rows[0]
		keys := map[gateway.Kind]string{gateway.Callback: callback}
		if agent.mcp != mcpNone {
			keys[gateway.ToolUser] = tool
		}
		return addTokens(o, d, keys)
	})
	if err != nil || plan != gateway.Send {
		return gateway.Call{}, plan, err
	}
	return gateway.Call{ID: e.id, Body: c.g.payload(to, agent, e, callback, tool)}, gateway.Send, nil
}

// addTokens stores an attempt and its tokens.
func addTokens(o *gateway.Op, d delivery, keys map[gateway.Kind]string) error {
	n, err := gateway.Next(o.ExtTx, attemptCounter)
	if err != nil {
		return err
	}
	if err := insertAttempt(o.ExtTx, attempt{n: n, delivery: d.n, made: o.Now}); err != nil {
		return err
	}
	for kind, key := range keys {
		holder := gateway.Holder{Kind: kind, Owner: n, Expires: tokenExpiry(o.Now)}
		if err := gateway.AddKey(o.ExtTx, key, holder); err != nil {
			return err
		}
	}
	return nil
}

// payload returns the body of a delivery (C-1).
func (g *Gateway) payload(c room, to party, e event, callback, tool string) []byte {
	p := payload{
		Channel:  payloadChannel{c.id, c.name, g.service, c.context},
		Message:  payloadMessage{e.id, e.sender, e.content()},
		Callback: g.url + "/channels/" + c.id + "/inbox/" + callback,
	}
	tools := payloadMCP{URL: g.url + "/mcp/" + c.id, Headers: map[string]string{"Authorization": "Bearer " + tool}}
	switch to.mcp {
	case mcpObject:
		p.MCP = tools
	case mcpArray:
		tools.Name = "agora"
		p.MCP = []payloadMCP{tools}
	}
	return jsontext.Compact(p)
}

// attempted is what an attempt at a delivery has led to. It is the Data of a Verdict.
type attempted struct {
	version int64 // of the URL
	gone    bool  // the agent has answered that it is gone
}

// Judge implements gateway.Courier.
func (c courier) Judge(j gateway.Job, r gateway.Response, err error) gateway.Verdict {
	version, _ := c.versions.Load(j.Lane)
	data := attempted{gone: err == nil && (r.Status == http.StatusNotFound || r.Status == http.StatusGone)}
	data.version, _ = version.(int64)
	v := gateway.Judge(r, err)
	v.Data = data
	return v
}

// Settle implements gateway.Courier. A failure counts only if the connection still has the URL that failed. Otherwise
// the delivery is made again, to the new URL (C-7).
func (c courier) Settle(tx relay.ExtTx, j gateway.Job, v gateway.Verdict) error {
	data, tried := v.Data.(attempted)
	if v.Outcome == gateway.Done || !tried {
		return nil
	}
	agent, err := partyByNumber(tx, j.Lane)
	if err != nil || agent.n == 0 {
		return err
	}
	if agent.version != data.version {
		return c.g.outbox.Restart(tx, j.N)
	}
	if data.gone && agent.revoked == 0 {
		agent.revoked = c.g.Relay.Now().UnixNano()
		return updateParty(tx, agent)
	}
	return nil
}

// Settled implements gateway.Courier.
func (c courier) Settled(j gateway.Job, _ gateway.Verdict) { c.versions.Delete(j.Lane) }

// revoked reports whether a connection is revoked. It is Gone of the outbox.
func revoked(q relay.Querier, lane int64) (bool, error) {
	agent, err := partyByNumber(q, lane)
	return agent.revoked != 0, err
}
