package mcpserver

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

// The tools of an LLM that hires agents.

func (s *Server) addHiring() {
	add(s, "ask", "Ask agents to do something", "Ask other agents for a service, and wait for offers or for the result. "+
		"intent names the service, exactly as in an agent's manifest (see find_agents). input is what the service needs, in "+
		"the form that the manifest describes. Without agent, every agent that serves the intent may offer. accept decides "+
		"what happens with offers: show (default) returns them, so that you can choose one with accept_offer; first accepts "+
		"the first that the spending limits allow; cheapest waits a little and accepts the cheapest. Then ask waits for the "+
		"result. When the waiting time is over, ask returns the thread: call follow_up with it. Everything in input and "+
		"description leaves this machine.",
		kind{}, s.ask)
	add(s, "accept_offer", "Accept an offer", "Accept one offer that ask or follow_up has shown, and wait for the result. This "+
		"promises its price, within the spending limits. A thread can have only one accepted offer.",
		kind{ends: true}, s.acceptOffer)
	add(s, "follow_up", "Follow up on a request", "See how a request of yours goes on: waits for offers if there are none yet, and "+
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
	Thread  string      `json:"thread" jsonschema:"the id of the request, for follow_up, accept_offer and cancel"`
	State   string      `json:"state" jsonschema:"waiting (no offer yet), offers (accept one), working, done, failed, cancelled, or unknown (the relay may or may not have got the last message)"`
	Next    string      `json:"next" jsonschema:"what to do next"`
	Offers  []offerView `json:"offers,omitempty"`
	Agent   string      `json:"agent,omitempty" jsonschema:"the agent whose offer was accepted"`
	Result  *Foreign    `json:"result,omitempty" jsonschema:"the payload of the RESULT"`
	Problem *Foreign    `json:"problem,omitempty" jsonschema:"why it failed"`
}

type offerView struct {
	Offer      string   `json:"offer" jsonschema:"the id of the offer, for accept_offer"`
	Agent      string   `json:"agent"`
	PriceUSD   *float64 `json:"price_usd,omitempty" jsonschema:"absent if the price is not an amount of USD"`
	NoPrice    bool     `json:"no_price,omitempty" jsonschema:"the offer names no price, which counts as 0 USD"`
	Allowed    bool     `json:"allowed" jsonschema:"whether the spending limits allow to accept it"`
	WhyNot     string   `json:"why_not,omitempty"`
	ETASeconds float64  `json:"eta_seconds,omitempty"`
	Payload    Foreign  `json:"payload"`
}

// show writes the view as text.
func (v requestView) show(p *page) {
	p.say("Thread %s: %s.", v.Thread, v.State)
	for i, o := range v.Offers {
		price := "for a price that is not an amount of USD"
		switch {
		case o.NoPrice:
			price = "names no price (counts as 0 USD)"
		case o.PriceUSD != nil:
			price = "for " + formatUSD(*o.PriceUSD) + " USD"
		}
		p.say("Offer %d: %s, %s, by %s.", i+1, o.Offer, price, o.Agent)
		if !o.Allowed {
			p.say("%s", o.WhyNot)
		}
		p.quote(o.Payload)
	}
	if v.Result != nil {
		p.quote(*v.Result)
	}
	if v.Problem != nil {
		p.quote(*v.Problem)
	}
	p.say("Next: %s", v.Next)
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

func (s *Server) ask(ctx context.Context, r *mcp.CallToolRequest, in askIn, p *page) (v requestView, err error) {
	wait, err := in.duration()
	if err != nil {
		return v, err
	}
	o := client.RequestOptions{Intent: in.Intent, Description: in.Description, Seal: in.Seal,
		Thread: client.NewThread(), Params: in.Input}
	switch {
	case in.Intent == "":
		return v, mistake("intent must not be empty; find_agents shows which services there are")
	case !slices.Contains([]string{"", "show", "first", "cheapest"}, in.Accept):
		return v, mistake("accept must be show, first or cheapest")
	case in.Seal && in.Agent == "":
		return v, mistake("seal needs agent: the request is encrypted to that agent's key")
	case in.MaxPriceUSD != nil && *in.MaxPriceUSD < 0:
		return v, mistake("max_price_usd must not be negative")
	}
	if in.Agent != "" {
		if o.Recipient, err = did("agent", in.Agent); err != nil {
			return v, err
		}
	}
	if o.Recipient == s.DID {
		return v, mistake("agent is your own DID; ask somebody else")
	}
	status, err := s.Book.Status(ctx)
	if err = local(err); err == nil {
		err = status.Limits.Allow(in.Intent, o.Recipient)
	}
	if err != nil {
		return v, err
	}
	if in.MaxPriceUSD != nil {
		o.Constraints = &envelope.Constraints{MaxCostUSD: in.MaxPriceUSD}
	}
	waiting, stop := s.waiting(ctx, r, wait, "waiting for agents")
	defer stop()
	call, err := s.Client.Request(ctx, o)
	if errors.Is(err, client.ErrUnknownOutcome) {
		v = requestView{Thread: o.Thread, State: stateUnknown,
			Next: "It is not known whether the relay has got the request. Call follow_up with this thread. If it says that there is no such thread, ask again."}
		v.show(p)
		return v, nil
	}
	if err != nil {
		return v, err
	}
	v, err = s.proceed(ctx, waiting, request{call, in.Intent}, cmp.Or(in.Accept, "show"))
	if err != nil {
		return v, noted{err, "The request is open as thread " + o.Thread + ". Call follow_up or cancel with it."}
	}
	v.show(p)
	return v, nil
}
