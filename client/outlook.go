package client

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/similar"
)

// Outlook is what the relay's directory says about a REQUEST before it is sent. Agents that decline a broadcast do so
// silently, so without it a wrong intent and a price that is too low look like a long silence. It proves nothing: an
// agent may serve what it does not announce, and may offer for less than it announces. All texts are of others.
type Outlook struct {
	Agents  int      // how many agents announce the intent; at most 300 are read
	Online  int      // how many of them the relay has heard from in the last five minutes
	Price   *float64 // the lowest price in USD, if each of them announces one; nil: the price is not known
	Nearest []string // if no agent announces the intent: at most five announced intents, the most similar first
	maxCost *float64 // of the REQUEST
}

// Nobody reports whether no agent announces the intent.
func (o Outlook) Nobody() bool { return o.Agents == 0 }

// TooDear reports whether all agents that announce the intent announce a price above max_cost_usd of the REQUEST.
func (o Outlook) TooDear() bool { return o.Price != nil && o.maxCost != nil && *o.Price > *o.maxCost }

// Bounds of what Outlook reads.
const (
	outlookTime  = 3 * time.Second
	outlookPage  = 100  // agents
	outlookPages = 3    // of agents with the intent
	maxIntents   = 2000 // different names of other intents
	maxName      = 100  // bytes of the name of an intent that can be a suggestion
	maxNearest   = 5
)

// Outlook reads in the directory who announces what opts ask for. With a Recipient it reads only what that agent
// announces. It takes at most three seconds. Errors: those of Agents and of Agent.
func (c *Client) Outlook(ctx context.Context, opts RequestOptions) (Outlook, error) {
	ctx, cancel := context.WithTimeout(ctx, outlookTime)
	defer cancel()
	var o Outlook
	if opts.Constraints != nil {
		o.maxCost = opts.Constraints.MaxCostUSD
	}
	if opts.Recipient != "" {
		agent, err := c.Agent(ctx, opts.Recipient)
		if envelope.CodeOf(err) == envelope.CodeAgentNotFound {
			return o, nil
		}
		if err != nil {
			return o, err
		}
		names := newIntents()
		names.add(agent)
		o.count(agent, opts.Intent)
		o.suggest(opts.Intent, names)
		return o, nil
	}
	found, all, err := c.someAgents(ctx, AgentQuery{Intent: opts.Intent, Limit: outlookPage}, outlookPages)
	if err != nil {
		return o, err
	}
	for _, a := range found {
		o.count(a, opts.Intent)
	}
	if !all {
		o.Price = nil // an agent that was not read may be cheaper
	}
	if o.Nobody() {
		others, _, err := c.someAgents(ctx, AgentQuery{Limit: outlookPage}, outlookPages)
		if err != nil {
			return o, err
		}
		names := newIntents()
		for _, a := range others {
			names.add(a)
		}
		o.suggest(opts.Intent, names)
	}
	return o, nil
}

// someAgents reads at most so many pages of the directory, without this client's own agent. all reports whether there are no more.
func (c *Client) someAgents(ctx context.Context, q AgentQuery, pages int) (agents []Agent, all bool, err error) {
	for range pages {
		page, err := c.Agents(ctx, q)
		if err != nil {
			return nil, false, err
		}
		for _, a := range page.Agents {
			if c.conn.Signer == nil || a.ID != c.conn.Signer.DID() { // nobody answers its own request
				agents = append(agents, a)
			}
		}
		if !page.HasMore || page.Cursor == "" || page.Cursor == q.Cursor {
			return agents, !page.HasMore, nil
		}
		q.Cursor = page.Cursor
	}
	return agents, false, nil
}

// count adds an agent if one of its manifests has the intent.
func (o *Outlook) count(a Agent, intent string) {
	for _, e := range a.Manifests {
		var m envelope.Manifest
		if e.DecodePayload(&m) != nil ||
			!slices.ContainsFunc(m.Intents, func(i envelope.Intent) bool { return i.ID == intent }) {
			continue
		}
		price, known := announcedPrice(m)
		switch {
		case !known:
			o.Price = nil
		case o.Agents == 0, o.Price != nil && price < *o.Price:
			o.Price = &price
		}
		if o.Agents++; a.Online {
			o.Online++
		}
		return
	}
}

// announcedPrice returns the price in USD of all services of a manifest. known is false if it does not say one.
func announcedPrice(m envelope.Manifest) (price float64, known bool) {
	switch {
	case m.Pricing == nil:
	case strings.EqualFold(m.Pricing.Model, "free"):
		return 0, true
	case strings.EqualFold(m.Pricing.Model, "fixed") && strings.EqualFold(m.Pricing.Currency, "USD"):
		return m.Pricing.FixedPrice, m.Pricing.FixedPrice >= 0
	}
	return 0, false
}

// intents collects different names of intents.
type intents struct {
	names []string
	known map[string]bool
}

func newIntents() *intents { return &intents{known: map[string]bool{}} }

// add adds what an agent announces.
func (n *intents) add(a Agent) {
	for _, e := range a.Manifests {
		var m envelope.Manifest
		if e.DecodePayload(&m) != nil {
			continue
		}
		for _, i := range m.Intents {
			if i.ID != "" && len(i.ID) <= maxName && !n.known[i.ID] && len(n.names) < maxIntents {
				n.known[i.ID] = true
				n.names = append(n.names, i.ID)
			}
		}
	}
}

// suggest sets Nearest if nobody announces the intent.
func (o *Outlook) suggest(intent string, others *intents) {
	if o.Nobody() {
		o.Nearest = similar.Nearest(intent[:min(len(intent), maxName)], others.names, maxNearest)
	}
}
