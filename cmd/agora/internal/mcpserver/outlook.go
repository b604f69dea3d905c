package mcpserver

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/internal/untrusted"
)

// expectation is what the directory says about the offers for a request. Without it, a wrong intent or a price that is too
// low would look like a long silence.
type expectation struct {
	client.Outlook
	opts  client.RequestOptions
	known bool // the directory was read
}

// expect reads the directory.
func (s *Server) expect(ctx context.Context, opts client.RequestOptions) expectation {
	o, err := s.relays.Outlook(ctx, opts)
	if err != nil { // the request says what is wrong with the relay
		s.Log.Debug("the directory was not read", "error", err)
	}
	return expectation{o, opts, err == nil}
}

// How long ask waits for the first offer. An agent that serves the intent offers within a second.
const (
	unlikelyWait = 3 * time.Second  // if nobody is likely to offer
	offerWait    = 10 * time.Second // if the call does not say how long
)

// patience returns how long ask waits for the first offer. stated says that the call has set its waiting time.
func (e expectation) patience(stated bool) time.Duration {
	switch {
	case e.known && (e.Nobody() || e.TooDear()):
		return unlikelyWait
	case stated:
		return maxWait * time.Second
	}
	return offerWait
}

// explain says in a view why there may be no offer, and what to do.
func (e expectation) explain(s *Server, v *requestView) {
	const then = "Call cancel with this thread and ask again, or call follow_up to wait longer."
	switch {
	case !e.known:
	case e.Nobody() && e.opts.Recipient != "":
		v.Next = "No offer yet: this agent does not announce the intent. " + then
	case e.Nobody():
		v.Next = "No offer yet: nobody announces this intent. Names of services that are announced are marked above, the most " +
			"similar first; find_agents shows more. " + then
	case e.TooDear():
		v.Next = fmt.Sprintf("No offer yet: the cheapest agent announces %s USD, and your max_price_usd is %s. %s", formatUSD(*e.Price),
			formatUSD(*e.opts.Constraints.MaxCostUSD), then)
	case e.opts.Recipient != "":
	default:
		v.Next = fmt.Sprintf("No offer yet: agents that announce this intent: %d, online: %d. Those that decline do not say why; perhaps "+
			"the input is not what they need (see find_agents). To hear why, ask one of them with agent. %s", e.Agents, e.Online, then)
	}
	if e.known && len(e.Nearest) > 0 {
		names := untrusted.New(s.Relay, "names of services", []byte(strings.Join(e.Nearest, ", ")), shortText, "")
		v.Nearest = &names
	}
}
