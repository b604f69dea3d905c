package channel

import (
	"cmp"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"time"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// This file manages the members and the connections of a channel.

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// The forms in which a connection gets the member mcp of a delivery.
const (
	mcpObject = "object" // as in version 0.1 of the protocol
	mcpArray  = "array"  // as in newer drafts
	mcpNone   = "none"
)

// shownMember is a member as answers show it.
type shownMember struct {
	Name string `json:"name"`
}

// shownConnection is a connection as answers show it.
type shownConnection struct {
	Name   string `json:"name"`
	Host   string `json:"host"`
	Status string `json:"status"` // active or revoked
	Queued int64  `json:"queued"` // deliveries that wait, with the one that is being tried
	Dead   int64  `json:"dead"`   // deliveries of the last 7 days that failed for good
	MCP    string `json:"mcp"`
}

// connection returns a connection as answers show it.
func (g *Gateway) connection(q relay.Querier, p party) (shownConnection, error) {
	s := shownConnection{Name: p.name, Host: p.host, Status: "active", MCP: p.mcp}
	queued, dead, err := g.outbox.Count(q, p.n)
	if s.Queued, s.Dead = queued, dead; p.revoked != 0 {
		// What is still in the queue will not be delivered. It takes some Updates to record that.
		s.Status, s.Queued, s.Dead = "revoked", 0, dead+queued
	}
	return s, err
}

// parsedParty is the body of a request that creates or changes a member or a connection.
type parsedParty struct {
	name, url, host, mcp string // empty: not given
}

// parseName reads the member name.
func parseName(o *gateway.Object) string {
	name, given := o.Text("name", true)
	if given && !nameForm.MatchString(name) {
		o.Fail("name", "must have 1 to 64 letters, digits and ._-, and begin with a letter or a digit")
	}
	return name
}

// parseConnection reads the members url and mcp, and, for a new connection, name.
func (g *Gateway) parseConnection(o *gateway.Object, isNew bool) (p parsedParty) {
	if isNew {
		p.name = parseName(o)
	}
	if text, given := o.Text("url", isNew); given {
		u, err := g.checkConnectionString(text)
		if err != nil {
			o.Fail("url", "%v", err)
		} else {
			p.url, p.host = text, u.Host
		}
	}
	if text, given := o.Text("mcp", false); given {
		if p.mcp = text; !slices.Contains([]string{mcpObject, mcpArray, mcpNone}, text) {
			o.Fail("mcp", "must be object, array or none")
		}
	}
	return p
}

// checkConnectionString parses the URL of an agent. It may be that of an inbox of this relay.
func (g *Gateway) checkConnectionString(text string) (*url.URL, error) {
	if _, own := g.ownInboxKey(text); own {
		return url.Parse(text)
	}
	return g.Outgoing.Check(text)
}

// partyLimits are the largest numbers of members and of connections of a channel.
var partyLimits = map[bool]struct {
	count int64
	limit string
}{false: {maxMembers, limitMembers}, true: {maxConnections, limitConnections}}

// createParty stores a new member, or a new connection with this URL.
func (g *Gateway) createParty(o *gateway.Op, p party, url string) (party, error) {
	taken, err := partyByName(o, p.channel, p.name)
	if err != nil {
		return p, err
	}
	if taken.n != 0 {
		return p, gateway.Conflict("this channel has a member or a connection with this name; choose another name")
	}
	most := partyLimits[p.agent]
	count, err := o.Number("SELECT COUNT(*) FROM channel_party WHERE channel = ? AND agent = ?", p.channel, flag(p.agent))
	if err != nil {
		return p, err
	}
	if count >= most.count {
		return p, gateway.LimitReached(most.limit, time.Hour, "this channel has %d %s, which is its limit; remove one first",
			most.count, most.limit)
	}
	if p.n, err = gateway.Next(o.ExtTx, partyCounter); err != nil {
		return p, err
	}
	p.url = []byte{}
	if p.agent {
		p.url = g.Secrets.Encrypt(urlPlace(p.n), []byte(url))
	}
	return p, insertParty(o.ExtTx, p)
}

// removeParty removes a member or a connection. The tokens of a connection are answered with 410 from now on, because its
// row is missing. For the same reason, the outbox clears its lane.
func (g *Gateway) removeParty(o *gateway.Op, p party) error {
	if p.agent {
		o.Then(func() { g.outbox.Wake(p.n) })
	} else if err := gateway.DropKeys(o.ExtTx, gateway.Member, p.n, ""); err != nil {
		return err
	}
	for _, text := range []string{"DELETE FROM channel_presence WHERE party = ?", "DELETE FROM channel_party WHERE n = ?"} {
		if err := gateway.Exec(o.ExtTx, text, p.n); err != nil {
			return err
		}
	}
	return nil
}

// postMember is the handler of POST /channels/{channel}/members.
func (g *Gateway) postMember(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	var name string
	key := gateway.NewKey(gateway.Member)
	parse := func(body *gateway.Object) { name = parseName(body) }
	err := g.change(w, r, from, parse, func(o *gateway.Op, c caller) error {
		p, err := g.createParty(o, party{channel: c.room.n, name: name}, "")
		if err != nil {
			return err
		}
		return gateway.AddKey(o.ExtTx, key, gateway.Holder{Kind: gateway.Member, Owner: p.n})
	})
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusCreated, struct {
		OK     bool        `json:"ok"`
		Member shownMember `json:"member"`
		Key    string      `json:"key"`
	}{true, shownMember{name}, key})
}

// getMembers is the handler of GET /channels/{channel}/members.
func (g *Gateway) getMembers(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	return g.listParties(w, r, from, false, "members", func(_ relay.Querier, p party) (any, error) {
		return shownMember{p.name}, nil
	})
}

// listParties answers a request with the members or the connections of its channel. show returns one as answers show it.
func (g *Gateway) listParties(
	w http.ResponseWriter, r *http.Request, from relay.Peer, agents bool, name string,
	show func(relay.Querier, party) (any, error),
) error {
	c, err := g.caller(r, from, manager)
	if err != nil {
		return err
	}
	return writeList(w, name, gateway.List(r.Context(), g.Core, from, int64(0),
		func(q relay.Querier, last int64, piece *gateway.Piece) (int64, bool, error) {
			some, err := partiesAfter(q, c.room.n, agents, last)
			if err != nil {
				return last, false, err
			}
			done, err := gateway.AddRows(piece, some, func(p party) error {
				shown, err := show(q, p)
				piece.Add(shown)
				last = p.n
				return err
			})
			return last, done < len(some) || len(some) == gateway.PieceRows, err
		}), func() string { return "]}\n" })
}

// connectionAnswer is the answer with a connection.
type connectionAnswer struct {
	OK         bool            `json:"ok"`
	Connection shownConnection `json:"connection"`
}

// postConnection is the handler of POST /channels/{channel}/connections.
func (g *Gateway) postConnection(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	var parsed parsedParty
	var shown shownConnection
	parse := func(body *gateway.Object) { parsed = g.parseConnection(body, true) }
	err := g.change(w, r, from, parse, func(o *gateway.Op, c caller) error {
		p, err := g.createParty(o, party{channel: c.room.n, name: parsed.name, agent: true, host: parsed.host,
			mcp: cmp.Or(parsed.mcp, mcpObject), version: 1}, parsed.url)
		if err != nil {
			return err
		}
		shown, err = g.connection(o, p)
		return err
	})
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusCreated, connectionAnswer{true, shown})
}

// getConnections is the handler of GET /channels/{channel}/connections.
func (g *Gateway) getConnections(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	return g.listParties(w, r, from, true, "connections", func(q relay.Querier, p party) (any, error) {
		return g.connection(q, p)
	})
}

// putConnection is the handler of PUT /channels/{channel}/connections/{name}. The connection becomes active. What is
// queued goes to the new URL at once (C-7).
func (g *Gateway) putConnection(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	var parsed parsedParty
	var shown shownConnection
	parse := func(body *gateway.Object) { parsed = g.parseConnection(body, false) }
	err := g.change(w, r, from, parse, func(o *gateway.Op, c caller) error {
		p, err := g.findParty(o, c, r, true)
		if err != nil {
			return err
		}
		if err := g.activate(o, &p); err != nil {
			return err
		}
		if parsed.mcp != "" {
			p.mcp = parsed.mcp
		}
		if parsed.url != "" {
			p.url, p.host = g.Secrets.Encrypt(urlPlace(p.n), []byte(parsed.url)), parsed.host
			p.version++
			if err := g.outbox.RestartLane(o.ExtTx, p.n); err != nil {
				return err
			}
		}
		if err := updateParty(o.ExtTx, p); err != nil {
			return err
		}
		o.Then(func() { g.outbox.Wake(p.n) })
		shown, err = g.connection(o, p)
		return err
	})
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, connectionAnswer{true, shown})
}

// activate makes a connection active again. What was queued when it was revoked is dead before that.
func (g *Gateway) activate(o *gateway.Op, p *party) error {
	if p.revoked == 0 {
		return nil
	}
	const most = 1000 // posts wait for this Update
	left, err := g.outbox.KillLane(o.ExtTx, p.n, most)
	if err != nil {
		return err
	}
	if left {
		return envelope.NotStored("the relay is still ending the old queue of this connection; try again after Retry-After", time.Second)
	}
	p.revoked = 0
	return nil
}

// findParty returns the member or the connection that the path of a request names.
func (g *Gateway) findParty(q relay.Querier, c caller, r *http.Request, agent bool) (party, error) {
	p, err := partyByName(q, c.room.n, mux.Vars(r)["name"])
	if err == nil && (p.n == 0 || p.agent != agent) {
		err = gateway.NotFound("this channel has no " + map[bool]string{false: "member", true: "connection"}[agent] + " with this name")
	}
	return p, err
}

// deleteMember is the handler of DELETE /channels/{channel}/members/{name}.
func (g *Gateway) deleteMember(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	return g.deleteParty(w, r, from, false)
}

// deleteConnection is the handler of DELETE /channels/{channel}/connections/{name}.
func (g *Gateway) deleteConnection(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	return g.deleteParty(w, r, from, true)
}

func (g *Gateway) deleteParty(w http.ResponseWriter, r *http.Request, from relay.Peer, agent bool) error {
	err := g.change(w, r, from, nil, func(o *gateway.Op, c caller) error {
		p, err := g.findParty(o, c, r, agent)
		if err != nil {
			return err
		}
		return g.removeParty(o, p)
	})
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, done{true})
}
