package thread

import (
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Apply finds the thread that m belongs to and applies m to it. candidates are threads with m's thread id, the oldest
// first. m belongs to the first candidate for which Next returns no error. So a sender that copies a thread id can
// neither change nor hide a thread that existed before. chosen is the index of the candidate, or -1 if a REQUEST opens
// a new thread.
//
// Errors: CodeThreadNotFound if there are no candidates. Otherwise one of the errors that Next returns for the
// candidates: an error about the state or a limit if there is one, else one about the content, else one about the
// sender or recipient.
func (r Rules) Apply(candidates []Thread, m *envelope.Envelope, now time.Time) (next Thread, chosen int, err error) {
	highest := 0
	for i, t := range candidates {
		if m.Type == envelope.TypeRequest && t.Client != m.Sender.ID {
			continue
		}
		next, refusal := r.Next(t, m, now)
		if refusal == nil {
			return next, i, nil
		}
		if c := errorRank(refusal); c > highest {
			highest, err = c, refusal
		}
	}
	if err != nil {
		return Thread{}, -1, err
	}
	if m.Type == envelope.TypeRequest {
		next, err = r.begin(m, now)
		return next, -1, err
	}
	return Thread{}, -1, ErrNotFound
}

// ErrNotFound is returned if a thread does not exist.
var ErrNotFound = envelope.Errorf(envelope.CodeThreadNotFound, "this relay has no such thread; "+
	"a REQUEST opens a thread, and the relay removes the thread some time after its last message")

// errorRank ranks the errors of Next. The further a message got in the checks of Next, the higher the rank of its
// error.
func errorRank(refusal error) int {
	switch envelope.CodeOf(refusal) {
	case envelope.CodeForbidden:
		return 1
	case envelope.CodeInvalidRequest:
		return 2
	}
	return 3
}

// begin returns the thread that the REQUEST m opens.
// Errors: CodeInvalidRequest if the payload has no intent.
func (r Rules) begin(m *envelope.Envelope, now time.Time) (Thread, error) {
	if err := checkPayload(m); err != nil {
		return Thread{}, err
	}
	t := Thread{ID: m.Thread, Client: m.Sender.ID, State: Open, RequestID: m.RequestID,
		Recipient: m.Recipient, Offers: []Offer{}}
	return t.step(Pending, transitionOf(m, now)), nil
}

// Next returns t after the message m that arrives at now, or an error if t does not allow m. The caller makes sure that
// m has the thread id of t. Next checks everything else: the sender's role, the recipient, the required members of the
// payload, the request_id and the state.
//
// Errors: CodeForbidden (the sender or the recipient has the wrong role), CodeInvalidRequest (payload or request_id),
// CodeInvalidTransition (the state does not allow m, or the ACCEPT m names no single agent with an open offer; the
// details have the state), CodeRateLimited (too many offers). If several apply, Next returns the first of this list,
// except that an ACCEPT whose recipient is no counterpart gets CodeInvalidTransition before its payload is checked.
func (r Rules) Next(t Thread, m *envelope.Envelope, now time.Time) (Thread, error) {
	t = r.At(t, now)
	if err := t.checkRole(m); err != nil {
		return Thread{}, err
	}
	if err := checkPayload(m); err != nil {
		return Thread{}, err
	}
	if err := t.checkRequestID(m); err != nil {
		return Thread{}, err
	}
	row, _ := m.Type.Info()
	if !slices.Contains(row.Before, t.State) {
		return Thread{}, t.wrongState(m, "")
	}
	switch m.Type {
	case envelope.TypeOffer:
		return r.offer(t, m, now)
	case envelope.TypeAccept:
		return t.accept(m, now)
	case envelope.TypeError:
		if t.withdraws(m) {
			return t.withdraw(m, now), nil
		}
	}
	return t.step(row.After, transitionOf(m, now)), nil
}

// transitionOf returns the Transition for m. The method step sets its From and To.
func transitionOf(m *envelope.Envelope, now time.Time) Transition {
	return Transition{Type: m.Type, By: m.Sender.ID, ID: m.ID, At: now}
}

// checkRole checks whether the sender's role allows it to send this type of message in t, and to this recipient. It
// does not check the state. Before the ACCEPT, a RESULT is allowed here from every agent that may still be accepted.
// Later such an agent gets CodeInvalidTransition, not CodeForbidden, because it only answers too early.
func (t Thread) checkRole(m *envelope.Envelope) error {
	sender := m.Sender.ID
	row, _ := m.Type.Info()
	if role := roles[row.By]; !role.allows(t, sender) {
		return envelope.Errorf(envelope.CodeForbidden, "you may not send %s in thread %s; only %s may", m.Type, t.ID, role.text)
	}
	if m.Recipient != "" && m.Type != envelope.TypeRequest && !t.counterpart(sender == t.Client, m.Recipient) {
		// The sender is the client, so an ACCEPT of an agent without an open offer is an error about the state.
		if m.Type == envelope.TypeAccept {
			return t.wrongState(m, "; recipient.id has no open offer")
		}
		return envelope.Errorf(envelope.CodeForbidden, "recipient.id is not your counterpart in thread %s", t.ID)
	}
	return nil
}

// roles are the roles of package envelope: who has the role in a thread that exists, and how an error message names
// it.
var roles = map[envelope.Role]struct {
	allows func(t Thread, did didkey.DID) bool
	text   string
}{
	envelope.RoleOpener: {func(t Thread, did didkey.DID) bool { return did == t.Client }, "its client"},
	envelope.RoleClient: {func(t Thread, did didkey.DID) bool { return did == t.Client }, "its client"},
	envelope.RoleOfferer: {
		func(t Thread, did didkey.DID) bool {
			return did != t.Client && (t.Recipient == "" || did == t.Recipient)
		},
		"the agent that the REQUEST names, or any agent except the client if it names none,",
	},
	envelope.RoleAgent: {
		func(t Thread, did didkey.DID) bool { return did != t.Client && t.IsParty(did) }, "the agent whose offer was accepted",
	},
	envelope.RoleParty: {
		func(t Thread, did didkey.DID) bool { return t.IsParty(did) || t.Offered(did) }, "its parties and agents with an open offer",
	},
	envelope.RoleAnyone: {func(Thread, didkey.DID) bool { return false }, "nobody"},
}

// counterpart reports whether did is a counterpart of the sender of a message. ofClient says that the sender is the
// client. The counterpart of an agent is the client. The counterparts of the client are t.Agents and, before the
// ACCEPT, every agent with an open offer.
func (t Thread) counterpart(ofClient bool, did didkey.DID) bool {
	if !ofClient {
		return did == t.Client
	}
	return slices.Contains(t.Agents(), did) || t.Agent == "" && t.Offered(did)
}

// checkPayload checks the payload members that the relay requires. The relay does not check the rest of a payload.
func checkPayload(m *envelope.Envelope) error {
	row, _ := m.Type.Info()
	for _, name := range row.Needs {
		if m.PayloadString(name) == "" {
			return envelope.Errorf(envelope.CodeInvalidRequest, "a message of type %s needs payload.%s, a non-empty string",
				m.Type, name)
		}
	}
	return nil
}

// checkRequestID checks that payload.request_id is that of the REQUEST, or that it is absent and may be.
func (t Thread) checkRequestID(m *envelope.Envelope) error {
	row, _ := m.Type.Info()
	if row.ID == envelope.RequestIDNew || m.RequestID == t.RequestID || m.RequestID == "" && row.ID == envelope.RequestIDOptional {
		return nil
	}
	return envelope.Errorf(envelope.CodeInvalidRequest,
		"payload.request_id must be the request_id of the thread's REQUEST")
}

// offer returns t after the OFFER m.
func (r Rules) offer(t Thread, m *envelope.Envelope, now time.Time) (Thread, error) {
	if limit := r.WithDefaults().MaxOffers; t.OffersMade >= limit {
		return Thread{}, &envelope.Error{Code: envelope.CodeRateLimited,
			Message: "the thread has reached its limit of offers and takes no more; details.maxOffers has the limit",
			Details: map[string]any{
				envelope.DetailLimit: envelope.LimitOffersPerThread, envelope.DetailMaxOffers: limit,
			}}
	}
	t = t.step(Pending, transitionOf(m, now))
	t.OffersMade++
	t.Offers = append(t.Offers, Offer{Agent: m.Sender.ID, ID: m.ID, At: now})
	return t, nil
}

// accept returns t after the ACCEPT m.
func (t Thread) accept(m *envelope.Envelope, now time.Time) (Thread, error) {
	agent := m.Recipient
	if agent == "" {
		offered := t.offering()
		if len(offered) != 1 {
			return Thread{}, t.wrongState(m, "; name an agent in recipient.id, unless exactly one has an open offer")
		}
		agent = offered[0]
	} else if !t.Offered(agent) {
		return Thread{}, t.wrongState(m, "; recipient.id has no open offer")
	}
	t = t.step(Active, transitionOf(m, now))
	t.Agent = agent
	return t, nil
}

// withdraws reports whether the ERROR m withdraws the sender's offers and does not end the thread. An ERROR ends it if
// it is from the client, the accepted agent or the named recipient.
func (t Thread) withdraws(m *envelope.Envelope) bool {
	sender := m.Sender.ID
	return sender != t.Client && sender != t.Agent && sender != t.Recipient
}

// withdraw returns t without the offers of m's sender.
func (t Thread) withdraw(m *envelope.Envelope, now time.Time) Thread {
	t = t.step(t.State, transitionOf(m, now))
	t.Offers = slices.DeleteFunc(t.Offers, func(o Offer) bool { return o.Agent == m.Sender.ID })
	return t
}

// wrongState returns the error for a message that the state of t does not allow. hint is added to the error message. If
// the thread timed out, the message also has the time of the timeout and says how to continue. If the thread was ACTIVE
// before, only its parties get this.
func (t Thread) wrongState(m *envelope.Envelope, hint string) error {
	state := "is " + string(t.State)
	if last := len(t.Transitions) - 1; t.TimedOut() && (t.Transitions[last].From == Pending || t.IsParty(m.Sender.ID)) {
		state = "timed out at " + envelope.FormatTime(t.Transitions[last].At) + " and is " + string(t.State)
		hint += "; ask again with a REQUEST in a new thread"
	}
	return &envelope.Error{Code: envelope.CodeInvalidTransition,
		Message: "thread " + t.ID + " " + state + ", which does not allow this " + string(m.Type) + hint,
		Details: map[string]any{"state": t.State}}
}
