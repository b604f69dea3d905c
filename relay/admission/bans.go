package admission

import (
	"net/netip"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Bans says which clients a relay refuses. Messages that it stored before stay.
type Bans struct {
	Networks []netip.Prefix // connections and requests from these addresses; the relay's own machine is exempt
	Agents   []didkey.DID   // messages, signed reads and signed calls of these identities
}

// bans is a Bans in a form that is quick to search.
type bans struct {
	networks []netip.Prefix
	agents   map[didkey.DID]struct{}
}

var (
	errBannedAddress = &envelope.Error{Code: envelope.CodeForbidden,
		Message: "the operator of this relay has banned your address"}
	errBannedAgent = &envelope.Error{Code: envelope.CodeForbidden,
		Message: "the operator of this relay has banned this identity"}
)

// SetBans replaces the bans while the relay runs. When it returns, the polls and streams of banned clients end. A post
// or an Update that has reached the store's writer by then may still be stored. No later one is.
func (g *Gate) SetBans(b Bans) {
	g.bans.Store(newBans(b))
	g.banned(g.CheckPeer)
}

// newBans returns nil if b bans nobody.
func newBans(b Bans) *bans {
	if len(b.Networks) == 0 && len(b.Agents) == 0 {
		return nil
	}
	banned := &bans{agents: map[didkey.DID]struct{}{}}
	for _, n := range b.Networks {
		banned.networks = append(banned.networks, n.Masked())
	}
	for _, did := range b.Agents {
		banned.agents[did] = struct{}{}
	}
	return banned
}

// CheckPeer refuses p with CodeForbidden if its address or its reader is banned.
func (g *Gate) CheckPeer(p Peer) error { return g.CheckSender(p, p.Reader) }

// CheckSender refuses p with CodeForbidden if its address is banned, or if did is banned. did has sent what p brings.
func (g *Gate) CheckSender(p Peer, did didkey.DID) error {
	if !p.Local {
		if err := g.checkAddress(p.Addr); err != nil {
			return err
		}
	}
	return g.CheckAgent(did)
}

// CheckAgent refuses a banned identity with CodeForbidden. Call it only after the client has proven that it acts for the
// identity. Otherwise anybody could find out who is banned.
func (g *Gate) CheckAgent(did didkey.DID) error {
	if b := g.bans.Load(); b != nil {
		if _, banned := b.agents[did]; banned {
			return errBannedAgent
		}
	}
	return nil
}

// checkAddress refuses a banned address with CodeForbidden.
func (g *Gate) checkAddress(addr netip.Addr) error {
	if b := g.bans.Load(); b != nil {
		if isWithin(addr, b.networks) {
			return errBannedAddress
		}
	}
	return nil
}
