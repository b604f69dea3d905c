package mcpserver

import (
	"context"
	"errors"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

type acceptIn struct {
	Thread string `json:"thread"`
	Offer  string `json:"offer" jsonschema:"the id of the offer, as ask or follow_up has shown it"`
	Wait
}

func (s *Server) acceptOffer(ctx context.Context, r *mcp.CallToolRequest, in acceptIn, p *page) (v requestView, err error) {
	wait, err := in.duration()
	if err != nil {
		return v, err
	}
	q, record, err := s.resume(ctx, in.Thread)
	if err != nil {
		return v, err
	}
	defer s.release(q)
	waiting, stop := s.waiting(ctx, r, p, wait, "waiting for the result")
	defer stop()
	if q.moves() { // an ACCEPT is signed, so the job has its agent
		if q.chosen.offer != in.Offer && !accepted(record, s.DID, in.Offer) {
			return v, noted{errClosed, "The thread is " + s.threads.name(q.Thread) + ". Call follow_up to see its state."}
		}
		if v, err = s.result(ctx, waiting, q); err == nil {
			v.show(p)
		}
		return v, err
	}
	offers, err := s.openOffers(ctx, q, record)
	i := slices.IndexFunc(offers, func(o client.Offer) bool { return handle(o.Envelope) == in.Offer })
	switch {
	case err != nil:
		v, err = s.ended(ctx, q, err)
	case i < 0 && accepted(record, s.DID, in.Offer):
		v, err = s.result(ctx, waiting, q)
	case i < 0:
		return v, mistake("The thread %s has no offer with this id that can be accepted. Call follow_up to see its state.",
			s.threads.name(q.Thread))
	default:
		v, err = s.accept(ctx, waiting, q, offers[i], p.last)
		if errors.Is(err, errClosed) { // another call may just have accepted the same offer
			if record, err := q.Record(ctx); err == nil && accepted(record, s.DID, in.Offer) {
				s.release(q)
				return s.followUp(ctx, r, threadIn{in.Thread, in.Wait}, p)
			}
		}
	}
	if err == nil {
		v.show(p)
	}
	return v, err
}

// accepted reports whether I have accepted this offer in the thread: the relay has my ACCEPT for its agent, and the offer
// is the agent's last one before it.
func accepted(record *client.Thread, me didkey.DID, offer string) bool {
	last := map[didkey.DID]string{}
	for _, e := range record.Events {
		switch {
		case e.Type == envelope.TypeOffer:
			last[e.Sender.ID] = handle(e)
		case e.Type == envelope.TypeAccept && e.Sender.ID == me && e.RequestID == record.ID:
			return last[e.Recipient] == offer
		}
	}
	return false
}

// accept reserves the price of an offer, accepts the offer, and waits for the result. last says that this is the last
// try. Otherwise the call is tried again if the relay did not answer.
func (s *Server) accept(ctx, waiting context.Context, q request, o client.Offer, last bool) (requestView, error) {
	record, err := q.Record(ctx)
	if err != nil {
		return requestView{}, err
	}
	if record.State != thread.Pending || !record.IsOpen(o) {
		return requestView{}, noted{errClosed, "The thread is " + s.threads.name(q.Thread) + ". Call follow_up to see its state."}
	}
	if err := s.refuses(ctx, q, o); err != nil {
		return requestView{}, err
	}
	amount, err := s.Book.Reserve(ctx, s.job(q, o))
	if err != nil {
		return requestView{}, local(err)
	}
	if amount > 0 { // promise exactly what is reserved
		o.Price = &envelope.Price{Amount: inUSD(amount), Currency: o.Price.Currency}
	}
	if q.chosen != nil {
		q.chosen.offer = handle(o.Envelope)
	}
	err = q.Accept(ctx, o)
	proved := q.proved()
	if envelope.CodeOf(err) == envelope.CodeInvalidTransition && !errors.Is(err, client.ErrUnknownOutcome) {
		record, failed := q.Record(ctx)
		if failed == nil && accepted(record, s.DID, handle(o.Envelope)) { // by another call
			err = nil
		}
	}
	switch {
	case !last && client.Unanswered(err) && amount == 0:
		return requestView{}, err
	case !last && client.Unanswered(err):
		return requestView{}, noted{err, "The price of the offer stays reserved for 24 hours."}
	case errors.Is(err, client.ErrUnknownOutcome):
		return requestView{Thread: s.threads.name(q.Thread), State: stateUnknown, Agent: string(o.Agent),
			Next: "It is not known whether the relay has got the acceptance. Its price stays reserved. Call follow_up with this " +
				"thread: if it shows the offer again, call accept_offer again, which does not reserve the price twice."}, nil
	case err != nil && amount > 0:
		return requestView{}, noted{err, "The price of the offer stays reserved for 24 hours, because the refusal of a relay proves nothing."}
	case err != nil:
		return requestView{}, err
	}
	v, err := s.result(ctx, waiting, q)
	if err != nil && client.Unanswered(err) {
		v, err = requestView{Thread: s.threads.name(q.Thread), State: stateWorking, Agent: string(o.Agent),
			Next: nextWorking}, nil
	}
	v.Proved = &proved
	return v, err
}
