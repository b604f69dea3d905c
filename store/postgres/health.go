package postgres

import "github.com/agora-relay/agora/relay"

// States are the values of Health.State: "unreachable", there is no connection to a primary; "waiting", a commit waits
// for a standby; "failed", the node must be restarted.
var States = []string{"ok", "unreachable", "waiting", "failed"}

// Roles are the values of Health.Role: the leader sweeps and serves the gateways.
var Roles = []string{"leader", "follower"}

// Health describes a node for an operator.
type Health struct {
	State      string    `json:"state"`      // one of States
	Role       string    `json:"role"`       // one of Roles
	Durability string    `json:"durability"` // see Store.Durability
	Last       relay.Seq `json:"last"`       // the last event that the polls of this node can see
	Lag        relay.Seq `json:"lag"`        // events of other nodes that are known to exist and were not read yet
}

// Health returns the state of this node. It asks nobody.
func (s *Store) Health() Health {
	h := Health{State: "ok", Role: "follower", Durability: s.Durability(), Last: s.tail.position()}
	known, _, _ := s.confirmed.get()
	h.Lag = max(0, known-h.Last)
	if s.Leads() {
		h.Role = "leader"
	}
	switch err := s.refusal(); {
	case s.down.Load() != nil || s.closed() == nil && s.unreachable.Load():
		h.State = "unreachable"
	case err == errStuck:
		h.State = "waiting"
	case err != nil:
		h.State = "failed"
	}
	return h
}
