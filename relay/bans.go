package relay

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
func (r *Relay) SetBans(b Bans) {
	if len(b.Networks) == 0 && len(b.Agents) == 0 {
		r.bans.Store(nil)
		return
	}
	banned := &bans{agents: map[didkey.DID]struct{}{}}
	for _, n := range b.Networks {
		banned.networks = append(banned.networks, n.Masked())
	}
	for _, did := range b.Agents {
		banned.agents[did] = struct{}{}
	}
	r.bans.Store(banned)
	r.endWaits(r.checkPeer)
}

// checkPeer refuses p with CodeForbidden if its address or its reader is banned.
func (r *Relay) checkPeer(p Peer) error {
	if r.bans.Load() == nil {
		return nil
	}
	if !p.Local {
		if err := r.checkBan(p.Addr); err != nil {
			return err
		}
	}
	if p.Reader == "" {
		return nil
	}
	return r.checkAgentBan(p.Reader)
}

// CheckAgent refuses a banned identity with CodeForbidden. It is for clients of gateways that prove in another way than
// by a signature that they act for an identity. Call it only after the proof.
func (r *Relay) CheckAgent(did didkey.DID) error { return r.checkAgentBan(did) }

// checkBan refuses a banned address with CodeForbidden.
func (r *Relay) checkBan(addr netip.Addr) error {
	if b := r.bans.Load(); b != nil {
		addr = addr.Unmap().WithZone("")
		for _, n := range b.networks {
			if n.Contains(addr) {
				return errBannedAddress
			}
		}
	}
	return nil
}

// checkAgentBan refuses a banned identity with CodeForbidden. Call it only after the identity is proven. Otherwise
// anybody could find out who is banned.
func (r *Relay) checkAgentBan(did didkey.DID) error {
	if b := r.bans.Load(); b != nil {
		if _, banned := b.agents[did]; banned {
			return errBannedAgent
		}
	}
	return nil
}
