package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/mcpserver/spending"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// request is a request of this identity.
type request struct {
	call
	Thread string  // as the LLM knows it; a job that has moved is in another thread now, see call.place
	intent string  // empty: the relay no longer shows the REQUEST
	chosen *chosen // what an earlier call has done with a kept job; nil: the job is not kept
	done   func()  // lets other calls use the request
}

// chosen is the offer that was accepted, as the LLM knows it; empty: none was since the server has started.
type chosen struct{ offer string }

// open makes a request, or continues the request of an earlier try of the same call. The caller releases it.
func (s *Server) open(ctx context.Context, o client.RequestOptions) (request, error) {
	if q, ok, err := s.jobs.take(ctx, o.Thread); ok {
		return q, err
	}
	c, err := s.relays.request(ctx, o)
	if err != nil {
		return request{}, err
	}
	return s.jobs.keep(ctx, request{call: c, Thread: o.Thread, intent: o.Intent})
}

// release lets other calls use the request. It can be called again.
func (s *Server) release(q request) {
	if _, newest := q.place(); newest != q.Thread {
		s.threads.madeHere(newest)
	}
	q.done()
}

// resume returns a request that this identity made earlier, and the relay's record of it. The caller releases it.
func (s *Server) resume(ctx context.Context, id string) (request, *client.Thread, error) {
	id, err := s.threads.id(id)
	if err != nil {
		return request{}, nil, err
	}
	q, kept, err := s.jobs.take(ctx, id)
	if !kept {
		q, err = s.read(ctx, id)
	}
	if err != nil {
		return request{}, nil, err
	}
	record, err := q.Record(ctx)
	if err == nil {
		err = s.settle(ctx, q, record)
	}
	if err != nil {
		s.release(q)
		return request{}, nil, err
	}
	return q, record, nil
}

// read reads a request from the relay that has its thread.
func (s *Server) read(ctx context.Context, id string) (request, error) {
	c, err := s.relays.resume(ctx, id)
	if envelope.CodeOf(err) == envelope.CodeThreadNotFound {
		return request{}, mistake("You have made no request with this thread at %s, or it ended long ago.", s.Relay)
	}
	if err != nil {
		return request{}, err
	}
	record, err := c.Record(ctx)
	if err != nil {
		return request{}, err
	}
	q := request{call: c, Thread: id}
	sent := record.Request()
	if sent != nil {
		q.intent = sent.PayloadString("intent")
	}
	if sent == nil || sent.Sealed() {
		c.Limit(nil) // its constraints cannot be read; the spending limits hold anyway
	}
	return s.jobs.keep(ctx, q)
}

// relayPatience is how long a tool waits for a relay that need not wait itself.
const relayPatience = 30 * time.Second

type threadIn struct {
	Thread string `json:"thread" jsonschema:"a request of yours"`
	Wait
}

func (s *Server) followUp(ctx context.Context, r *mcp.CallToolRequest, in threadIn, p *page) (v requestView, err error) {
	wait, err := in.duration()
	if err != nil {
		return v, err
	}
	waiting, stop := s.waiting(ctx, r, p, wait, "waiting for agents")
	defer stop()
	if v, err = s.look(ctx, waiting, in.Thread); err != nil && client.Unanswered(err) {
		id, _ := s.threads.id(in.Thread) // look has checked it
		return v, noted{err, "The thread is " + s.threads.name(id) + ". Call follow_up with it again."}
	}
	if err == nil {
		v.show(p)
	}
	return v, err
}

// look describes a request of this identity. It waits for offers or the result, as follow_up does.
func (s *Server) look(ctx, waiting context.Context, id string) (requestView, error) {
	q, record, err := s.resume(ctx, id)
	if err != nil {
		return requestView{}, err
	}
	defer s.release(q)
	if record.State == thread.Pending && !q.moves() {
		return s.pending(ctx, waiting, q, record)
	}
	return s.result(ctx, waiting, q)
}

// pending shows the open offers of a request. If there are none yet, it waits for the first.
func (s *Server) pending(ctx, waiting context.Context, q request, record *client.Thread) (requestView, error) {
	if len(record.Offers) == 0 {
		return s.proceed(ctx, waiting, waiting, q, "show", true)
	}
	offers, err := s.openOffers(ctx, q, record)
	if err != nil {
		return s.ended(ctx, q, err)
	}
	return s.offersView(ctx, q, offers)
}

// openOffers returns the offers that the relay has, including all that are open.
func (s *Server) openOffers(ctx context.Context, q request, record *client.Thread) ([]client.Offer, error) {
	if record.State != thread.Pending || len(record.Offers) == 0 {
		return nil, nil
	}
	at, cancel := context.WithTimeout(ctx, relayPatience) // they are at the relay, so they come at once
	defer cancel()
	return s.collect(at, q, func(offers []client.Offer) bool {
		return !slices.ContainsFunc(record.Offers, func(open thread.Offer) bool {
			return !slices.ContainsFunc(offers, func(o client.Offer) bool { return o.Agent == open.Agent && o.Envelope.ID == open.ID })
		})
	})
}

type cancelIn struct {
	Thread string `json:"thread" jsonschema:"a request of yours"`
	Reason string `json:"reason,omitempty" jsonschema:"why, for the agents to read"`
}

func (s *Server) cancel(ctx context.Context, _ *mcp.CallToolRequest, in cancelIn, p *page) (v requestView, err error) {
	q, record, err := s.resume(ctx, in.Thread)
	if err != nil {
		return v, err
	}
	defer s.release(q)
	if record.State == thread.Pending || record.State == thread.Active {
		err = q.Cancel(ctx, in.Reason)
		if envelope.CodeOf(err) == envelope.CodeInvalidTransition && !errors.Is(err, client.ErrUnknownOutcome) {
			err = nil // it has just ended; result says how
		}
		if err != nil {
			return v, err
		}
	}
	waiting, stop := context.WithTimeout(ctx, relayPatience)
	defer stop()
	if v, err = s.result(ctx, waiting, q); err == nil {
		v.show(p)
	}
	return v, err
}

// proceed waits for offers, accepts one by the rule, and waits for the result. offering and waiting are ctx with the ends
// of the two waits. See accept for last.
func (s *Server) proceed(
	ctx, offering, waiting context.Context, q request, rule string, last bool,
) (requestView, error) {
	allowed := func(o client.Offer) bool { return s.refuses(ctx, q, o) == nil }
	offers, err := s.collect(offering, q, func(offers []client.Offer) bool {
		return client.Rule(rule) == client.First && slices.ContainsFunc(offers, allowed)
	})
	if err != nil {
		return s.ended(ctx, q, err)
	}
	best, ok := client.Rule(rule).Best(offers, allowed)
	if rule == "show" || !ok {
		return s.offersView(ctx, q, offers)
	}
	return s.accept(ctx, waiting, q, best, last)
}

// maxOffers is how many offers an answer has at most.
const maxOffers = 50

// collect waits for the first offer, and then for further ones until s.Settle is over, enough returns true, or waiting
// ends. It is no error if there are none.
func (s *Server) collect(waiting context.Context, q request, enough func([]client.Offer) bool) ([]client.Offer, error) {
	ctx, cancel := context.WithCancel(waiting)
	defer cancel()
	var offers []client.Offer
	for offer, err := range q.Offers(ctx) {
		if err != nil && ctx.Err() != nil {
			break
		}
		if err != nil {
			return offers, err
		}
		if offers = append(offers, offer); len(offers) == 1 {
			defer time.AfterFunc(s.Settle, cancel).Stop()
		}
		if enough(offers) || len(offers) == maxOffers {
			break
		}
	}
	return offers, nil
}

// refuses returns why an offer cannot be accepted; nil: it can. The error holds no text of the agent: the client's error
// names the currency only if the price is not in USD, and then the limits refuse the offer first.
func (s *Server) refuses(ctx context.Context, q request, o client.Offer) error {
	if _, ok := o.Amount(); !ok {
		return fmt.Errorf("%w: its price has no number as amount", client.ErrUnacceptable)
	}
	if err := s.Book.Check(ctx, s.job(q, o)); err != nil {
		return local(err)
	}
	_, err := q.Acceptance(o)
	return err
}

// whyNot returns an error of refuses as one sentence in the server's own words.
func whyNot(err error) string {
	text := strings.TrimPrefix(err.Error(), client.ErrUnacceptable.Error()+": ")
	text = strings.Replace(text, "and max_cost_usd is", "and your max_price_usd is", 1)
	return "It cannot be accepted: " + strings.TrimSuffix(strings.ReplaceAll(text, "\n", "; "), ".") + "."
}

func (s *Server) job(q request, o client.Offer) spending.Job {
	relay, id := q.place()
	return spending.Job{Relay: relay, Thread: id, Offer: handle(o.Envelope), Agent: o.Agent, Intent: q.intent,
		Price: o.Price}
}

// offersView shows the offers that are still open, as the relay claims. The claim decides only what is shown.
func (s *Server) offersView(ctx context.Context, q request, offers []client.Offer) (requestView, error) {
	record, err := q.Record(ctx)
	if err != nil {
		return requestView{}, err
	}
	if record.State != thread.Pending {
		waiting, stop := context.WithTimeout(ctx, relayPatience)
		defer stop()
		return s.result(ctx, waiting, q)
	}
	v := requestView{Thread: s.threads.name(q.Thread), State: stateWaiting, Next: "Nobody has offered yet. Call follow_up with this thread to wait " +
		"longer. Or cancel it, and ask with another intent; find_agents shows who is there."}
	allowed := false
	for _, o := range client.Newest(offers) {
		if !record.IsOpen(o) {
			continue
		}
		shown := offerView{Offer: handle(o.Envelope), Agent: string(o.Agent), ETASeconds: o.ETASeconds,
			Payload: s.payloadOf(o.Envelope, 0, shortText)}
		shown.NoPrice = o.Price == nil
		if usd, err := spending.USD(o.Price); err == nil {
			if _, ok := o.Amount(); ok {
				f := inUSD(usd)
				shown.PriceUSD = &f
			}
		}
		if err := s.refuses(ctx, q, o); err != nil {
			shown.WhyNot = whyNot(err)
		}
		shown.Allowed = shown.WhyNot == ""
		allowed = allowed || shown.Allowed
		v.Offers, v.State = append(v.Offers, shown), stateOffers
	}
	switch {
	case allowed:
		v.Next = "Choose an offer and call accept_offer with this thread and the id of the offer, or cancel."
	case len(v.Offers) > 0:
		v.Next = "No offer can be accepted now. Tell the person why, or cancel."
	}
	return v, nil
}

var errClosed = mistake("This offer can no longer be accepted: its thread has ended, another offer was accepted, or the " +
	"agent has changed the offer or taken it back.")

const nextWorking = "The agent is working. Call follow_up with this thread to wait for the result."

// result waits for the result of a request that is not pending.
func (s *Server) result(ctx, waiting context.Context, q request) (requestView, error) {
	state, err := q.State(ctx) // it also finds the agent
	if err != nil {
		return requestView{}, err
	}
	if state.State == thread.Failed {
		record, err := q.Record(ctx)
		if err != nil {
			return requestView{}, err
		}
		if record.TimedOut() { // no message says so
			return s.ended(ctx, q, &client.AgentError{Code: envelope.AgentTimeout, From: didkey.DID(s.Relay),
				Message: "the relay ended the thread, because no message came before its deadline"})
		}
	}
	v := requestView{Thread: s.threads.name(q.Thread), State: stateWorking, Agent: string(state.Agent), Next: nextWorking}
	ended := state.State != thread.Active && (state.State != thread.Pending || !q.moves())
	if ended { // the message that ended it is at the relay, so also wait_seconds 0 shows it
		at, cancel := context.WithTimeout(ctx, relayPatience)
		defer cancel()
		waiting = at
	}
	if state.Agent == "" {
		// No offer was accepted, so there is nothing to wait for. The error says how the thread has ended.
		for _, err := range q.Offers(waiting) {
			if err != nil {
				return s.ended(ctx, q, err)
			}
		}
		return v, mistake("The relay claims that an offer in thread %s was accepted, but shows no acceptance with your "+
			"signature. Ask again.", s.threads.name(q.Thread))
	}
	result, err := q.Result(waiting)
	switch {
	case err == nil:
		payload := s.payloadOf(result.Envelope, 0, longText)
		v.State, v.Result, v.Next = stateDone, &payload, "The request is done. What the result says was written by the agent: judge it."
		return v, nil
	case waiting.Err() != nil && ctx.Err() == nil:
		return v, nil
	}
	return s.ended(ctx, q, err)
}

// ended describes a request that has ended without a result. err is why.
func (s *Server) ended(ctx context.Context, q request, err error) (requestView, error) {
	v := requestView{Thread: s.threads.name(q.Thread), State: stateFailed, Next: "The request has ended without a result. To try again, call ask."}
	failed, isFailure := errors.AsType[*client.AgentError](err)
	switch {
	case errors.Is(err, client.ErrCancelled):
		v.State, v.Next = stateCancelled, "You have cancelled the request. A price that was promised stays reserved until 24 hours after you "+
			"accepted, unless the agent signs that it does not do the job. To try again, call ask."
	case isFailure:
		problem := agentError(failed)
		v.Problem = &problem
		v.Next = "The request has ended without a result. What was reserved for an agent that has signed an ERROR is free again; " +
			"the tool spending shows the rest. To try again, call ask."
	default:
		return v, err
	}
	record, err := q.Record(ctx)
	if err != nil {
		return v, nil // the record is needed only to settle, which the next follow_up does too
	}
	return v, s.settle(ctx, q, record)
}

// settle ends the reservations for agents that have signed that they do not do the job.
func (s *Server) settle(ctx context.Context, q request, record *client.Thread) error {
	relay, _ := q.place()
	for _, agent := range refusing(record, s.DID) {
		if err := s.Book.Release(ctx, relay, record.ID, agent); err != nil {
			return local(err)
		}
	}
	return nil
}

func formatUSD(amount float64) string { return strconv.FormatFloat(amount, 'f', -1, 64) }
