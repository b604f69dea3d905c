package relay

import (
	"slices"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/thread"
)

// What a caller of the relay must name of the package admission.
type (
	Peer   = admission.Peer
	Limits = admission.Limits
	Rate   = admission.Rate
	Bans   = admission.Bans
)

// Unlimited, in place of a number, means that there is no limit.
const Unlimited = admission.Unlimited

// Gate returns what admits the relay's clients. A transport asks it before it calls the relay.
func (r *Relay) Gate() *admission.Gate { return r.gate }

// LimitTable returns the row of every limit of the relay. Gateways have limits beside these.
func LimitTable() []admission.LimitInfo {
	return slices.Concat(admission.LimitTable(), []admission.LimitInfo{
		{Name: envelope.LimitInbox, Default: float64(DefaultInbox.Events), Text: "events or 64 MiB for one recipient"},
		{Name: envelope.LimitManifestsPerAgent, Default: MaxManifests, Text: "manifests of one sender in the directory"},
		{Name: envelope.LimitOffersPerThread, Default: thread.DefaultMaxOffers, Text: "OFFERs to one thread (§4)"},
	})
}

// SetBans replaces the bans while the relay runs. When it returns, the polls and streams of banned clients end. A post
// or an Update that has reached the store's writer by then may still be stored. No later one is.
func (r *Relay) SetBans(b Bans) {
	r.gate.SetBans(b)
	r.endWaits(r.gate.CheckPeer)
}

// isRateLimit reports whether err is a refusal with CodeRateLimited.
func isRateLimit(err error) bool { return envelope.CodeOf(err) == envelope.CodeRateLimited }
