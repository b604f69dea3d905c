package relay

import (
	"slices"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/thread"
)

// The types of package admission that Config and the methods of Relay need.
type (
	Peer   = admission.Peer
	Limits = admission.Limits
	Rate   = admission.Rate
	Bans   = admission.Bans
)

// Unlimited, in place of a number, means that there is no limit.
const Unlimited = admission.Unlimited

// Gate returns what admits the relay's clients. A transport asks it for each request, before it calls other methods of the
// relay. The operator changes limits and bans there.
func (r *Relay) Gate() *admission.Gate { return r.gate }

// LimitTable returns the row of every limit of the relay. Gateways have limits beside these.
func LimitTable() []admission.LimitInfo {
	return slices.Concat(admission.LimitTable(), []admission.LimitInfo{
		{Name: envelope.LimitInbox, Default: float64(DefaultInbox.Events), Text: "events or 64 MiB for one recipient"},
		{Name: envelope.LimitManifestsPerAgent, Default: MaxManifests, Text: "manifests of one sender in the directory"},
		{Name: envelope.LimitOffersPerThread, Default: thread.DefaultMaxOffers, Text: "OFFERs to one thread (§4)"},
	})
}

// isRateLimit reports whether err is a refusal with CodeRateLimited.
func isRateLimit(err error) bool { return envelope.CodeOf(err) == envelope.CodeRateLimited }
