package mcpserver

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/untrusted"
)

// The tools of an LLM that hires agents.

func (s *Server) addHiring() {
	add(s, "find_agents", "Find agents", "Find agents and what they do. Search with text for words in their names, descriptions and "+
		"intents, or with intent for the exact name of a service. Each agent's manifest says which intents it serves, what input "+
		"they need, and what they cost. Use one of these intents with ask.",
		kind{reads: true}, s.findAgents)
	add(s, "ask", "Ask agents to do something", "Ask other agents for a service, and wait for offers or for the result. "+
		"intent names the service, exactly as in an agent's manifest (see find_agents). input is what the service needs, in "+
		"the form that the manifest describes. Without agent, every agent that serves the intent may offer. accept decides "+
		"what happens with offers: show (default) returns them, so that you can choose one with accept_offer; first accepts "+
		"the first that the spending limits allow; cheapest waits a little and accepts the cheapest. Then ask waits for the "+
		"result. When the waiting time is over, ask returns the thread: call follow_up with it. If nobody is likely to offer, "+
		"it returns soon and says why. Everything in input and description leaves this machine.",
		kind{}, s.ask)
	add(s, "accept_offer", "Accept an offer", "Accept one offer that ask or follow_up has shown, and wait for the result. This "+
		"promises its price, within the spending limits. A thread can have only one accepted offer.",
		kind{ends: true}, s.acceptOffer)
	add(s, "follow_up", "Follow up on a request", "See what becomes of your request: waits for offers if there are none yet, and "+
		"for the result if an offer was accepted. Call it again as long as the state is waiting or working.",
		kind{repeats: true}, s.followUp)
	add(s, "cancel", "Cancel a request", "Take back a request of yours that has no result yet. Whether a price that was "+
		"already promised must be paid is between you and the agent; it stays reserved.",
		kind{ends: true, repeats: true}, s.cancel)
	add(s, "spending", "Spending limits", "Show the spending limits that the person has set, and what is reserved or spent of "+
		"them in the last 24 hours. No tool can change them.",
		kind{reads: true}, s.spending)
}

// The states of a request, as the LLM sees them.
const (
	stateWaiting   = "waiting"   // for the first offer
	stateOffers    = "offers"    // one can be accepted
	stateWorking   = "working"   // an offer was accepted, and there is no result yet
	stateDone      = "done"      // there is a result
	stateFailed    = "failed"    // it ended without a result
	stateCancelled = "cancelled" // this identity has cancelled it
	stateUnknown   = "unknown"   // the relay may or may not have got the last message
)

type requestView struct {
	Thread  string          `json:"thread"` // its name
	State   string          `json:"state"`
	Next    string          `json:"next"` // what to do next
	Offers  []offerView     `json:"offers,omitempty"`
	Agent   string          `json:"agent,omitempty"`   // whose offer was accepted
	Result  *untrusted.Text `json:"result,omitempty"`  // the payload of the RESULT
	Problem *untrusted.Text `json:"problem,omitempty"` // why it failed
	Proved  *bool           `json:"proved,omitempty"`  // whether the relay has proved what this call has sent; nil: nothing was sent
	Nearest *untrusted.Text `json:"nearest,omitempty"` // names of services, if nobody announces the one that was asked for
}

type offerView struct {
	Offer      string         `json:"offer"` // for accept_offer
	Agent      string         `json:"agent"`
	PriceUSD   *float64       `json:"price_usd,omitempty"` // nil: the price is not an amount of USD
	NoPrice    bool           `json:"no_price,omitempty"`  // counts as 0 USD
	Allowed    bool           `json:"allowed"`             // by the spending limits
	WhyNot     string         `json:"why_not,omitempty"`
	ETASeconds float64        `json:"eta_seconds,omitempty"`
	Payload    untrusted.Text `json:"payload"`
}

// show writes the view as text.
func (v requestView) show(p *page) {
	p.Say("Thread %s: %s.", v.Thread, v.State)
	var offers []untrusted.Text
	for i, o := range v.Offers {
		price := "for a price that is not an amount of USD"
		switch {
		case o.NoPrice:
			price = "names no price (counts as 0 USD)"
		case o.PriceUSD != nil:
			price = "for " + formatUSD(*o.PriceUSD) + " USD"
		}
		p.Say("Offer %d: %s, %s, by %s.", i+1, o.Offer, price, o.Agent)
		if !o.Allowed {
			p.Say("%s", o.WhyNot)
		}
		offers = append(offers, o.Payload)
	}
	p.Lines("payloads of the offers, in their order", offers)
	if v.Nearest != nil {
		p.Quote(*v.Nearest)
	}
	if v.Result != nil {
		p.Quote(*v.Result)
	}
	if v.Problem != nil {
		p.Quote(*v.Problem)
	}
	p.Say("Next: %s", v.Next)
}

type askIn struct {
	Intent      string   `json:"intent" jsonschema:"the service, such as translation.en_zh"`
	Input       any      `json:"input,omitempty" jsonschema:"any JSON: what the service needs (params)"`
	Description string   `json:"description,omitempty" jsonschema:"what you want, in words"`
	Agent       string   `json:"agent,omitempty" jsonschema:"the DID of the only agent that may offer"`
	MaxPriceUSD *float64 `json:"max_price_usd,omitempty" jsonschema:"the most you would pay. Offers above it cannot be accepted, and agents see it"`
	Accept      string   `json:"accept,omitempty" jsonschema:"show (default), first or cheapest"`
	Seal        bool     `json:"seal,omitempty" jsonschema:"encrypt the request and all answers; needs agent"`
	Wait
}

// options checks the arguments of ask.
func (s *Server) options(ctx context.Context, in askIn, threadID string) (o client.RequestOptions, err error) {
	o = client.RequestOptions{Intent: in.Intent, Description: in.Description, Seal: in.Seal, Thread: threadID, Params: in.Input}
	switch {
	case in.Intent == "":
		return o, mistake("intent must not be empty; find_agents shows which services there are")
	case !slices.Contains([]string{"", "show", "first", "cheapest"}, in.Accept):
		return o, mistake("accept must be show, first or cheapest")
	case in.Seal && in.Agent == "":
		return o, mistake("seal needs agent: the request is encrypted to that agent's key")
	case in.MaxPriceUSD != nil && *in.MaxPriceUSD < 0:
		return o, mistake("max_price_usd must not be negative")
	}
	if in.Agent != "" {
		if o.Recipient, err = did("agent", in.Agent); err != nil {
			return o, err
		}
	}
	if o.Recipient == s.DID {
		return o, mistake("agent is your own DID; ask somebody else")
	}
	if in.MaxPriceUSD != nil {
		o.Constraints = &envelope.Constraints{MaxCostUSD: in.MaxPriceUSD}
	}
	status, err := s.Book.Status(ctx)
	if err != nil {
		return o, local(err)
	}
	return o, status.Limits.Allow(in.Intent, o.Recipient)
}

func (s *Server) ask(ctx context.Context, r *mcp.CallToolRequest, in askIn, p *page) (v requestView, err error) {
	wait, err := in.duration()
	if err != nil {
		return v, err
	}
	o, err := s.options(ctx, in, p.thread)
	if err != nil {
		return v, err
	}
	waiting, stop := s.waiting(ctx, r, p, wait, "waiting for agents")
	defer stop()
	s.threads.madeHere(o.Thread)
	expected := s.expect(ctx, o)
	q, err := s.open(ctx, o)
	if errors.Is(err, client.ErrUnknownOutcome) && p.last {
		v = requestView{Thread: s.threads.name(o.Thread), State: stateUnknown,
			Next: "It is not known whether the relay has got the request. Call follow_up with this thread. If it says that there is no such thread, ask again."}
		v.show(p)
		return v, nil
	}
	if err != nil {
		return v, err
	}
	defer s.release(q)
	offering, enough := context.WithTimeout(waiting, expected.patience(in.WaitSeconds != nil))
	defer enough()
	v, err = s.proceed(ctx, offering, waiting, q, cmp.Or(in.Accept, "show"), p.last)
	if err != nil {
		return v, noted{err, "The request is open as thread " + s.threads.name(o.Thread) + ". Call follow_up or cancel with it."}
	}
	if v.Proved == nil { // no offer was accepted
		proved := q.proved()
		v.Proved = &proved
	}
	if v.State == stateWaiting {
		expected.explain(s, &v)
	}
	v.show(p)
	return v, nil
}
