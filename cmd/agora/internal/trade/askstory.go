package trade

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Story is what agora ask --json prints. The payloads are those of the signed messages.
type Story struct {
	Outcome  string          `json:"outcome"` // the name of an outcome
	ExitCode int             `json:"exitCode"`
	Thread   string          `json:"thread"`
	Intent   string          `json:"intent,omitempty"`
	Agent    didkey.DID      `json:"agent,omitempty"`  // whose offer was accepted
	Offer    json.RawMessage `json:"offer,omitempty"`  // the payload of the accepted OFFER
	Accept   json.RawMessage `json:"accept,omitempty"` // the payload of the ACCEPT, with the price that was promised
	Result   json.RawMessage `json:"result,omitempty"` // the payload of the RESULT
	Offers   []storyOffer    `json:"offers,omitempty"` // if no offer was accepted: all of them
	Error    *storyError     `json:"error,omitempty"`
}

type storyOffer struct {
	Agent   didkey.DID      `json:"agent"`
	Offer   json.RawMessage `json:"offer"`
	Problem string          `json:"problem,omitempty"` // why it cannot be accepted
}

// storyError has the code and the details of the agent's ERROR, or the code of the relay.
type storyError struct {
	Code    string          `json:"code,omitempty"`
	Message string          `json:"message"`
	Details json.RawMessage `json:"details,omitempty"`
}

// Story tells how the request went. It reads the thread once more, because an earlier run may have accepted the offer.
func (a *asking) story(how Outcome, result *client.Result, err error) Story {
	s := Story{Outcome: how.Name, ExitCode: how.Code, Thread: a.thread, Intent: a.Intent}
	if result != nil {
		s.Agent, s.Result = result.Agent, result.Envelope.Payload
	}
	if err != nil {
		s.Error = &storyError{Message: err.Error()}
		if failed, ok := errors.AsType[*client.AgentError](err); ok {
			s.Error = &storyError{string(failed.Code), failed.Message, failed.Details}
		} else if refusal, ok := errors.AsType[*envelope.Error](err); ok {
			s.Error.Code = string(refusal.Code)
		}
	}
	if !a.began {
		return s
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.env.Ctx), DescribePatience)
	defer cancel()
	if record, err := a.market.Thread(ctx, a.threadID(), a.me); err == nil {
		s.addAccepted(record, a.me)
	}
	if s.Agent == "" && a.call != nil {
		for _, o := range client.Newest(a.offers) {
			problem := ""
			if why := a.objection(o); why != nil {
				problem = a.reason(why)
			}
			s.Offers = append(s.Offers, storyOffer{o.Agent, o.Envelope.Payload, problem})
		}
	}
	return s
}

// addAccepted adds my ACCEPT, and the last OFFER of its agent before it. An ACCEPT that is sealed to the agent cannot be
// read.
func (s *Story) addAccepted(record *client.Thread, me didkey.DID) {
	last := map[didkey.DID]*envelope.Envelope{}
	for _, e := range record.Events {
		switch {
		case e.Type == envelope.TypeOffer:
			last[e.Sender.ID] = e
		case e.Type == envelope.TypeAccept && e.Sender.ID == me && e.RequestID == record.RequestID && e.Recipient != "":
			s.Agent, s.Accept = e.Recipient, e.Payload
			if offer := last[e.Recipient]; offer != nil {
				s.Offer = offer.Payload
			}
			return
		}
	}
}
