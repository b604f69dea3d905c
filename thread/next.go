package thread

import (
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Apply finds the thread that m means and moves it. candidates are the threads with m's thread id, oldest first. The
// first that admits m is meant, so that copying an id neither moves nor shadows a thread that was there before.
// chosen is its index, or -1 where a REQUEST opens a new thread.
//
// Errors: CodeThreadNotFound without candidates; else, of what Next says of each, what comes closest to admitting m:
// a refusal by state or limit, else by content, else by party.
func (r Rules) Apply(candidates []Thread, m *envelope.Envelope, now time.Time) (next Thread, chosen int, err error) {
	closest := 0
	for i, t := range candidates {
		if m.Type == envelope.TypeRequest && t.Client != m.Sender.ID {
			continue
		}
		next, refusal := r.Next(t, m, now)
		if refusal == nil {
			return next, i, nil
		}
		if c := closeness(refusal); c > closest {
			closest, err = c, refusal
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

// ErrNotFound refuses what needs a thread that is not there.
var ErrNotFound = envelope.Errorf(envelope.CodeThreadNotFound, "there is no such thread here; "+
	"a thread begins with a REQUEST and is forgotten some time after its last message")

func closeness(refusal error) int {
	switch envelope.CodeOf(refusal) {
	case envelope.CodeForbidden:
		return 1
	case envelope.CodeInvalidRequest:
		return 2
	}
	return 3
}

// begin returns the thread a REQUEST opens.
// Errors: CodeInvalidRequest if the payload has no intent.
func (r Rules) begin(m *envelope.Envelope, now time.Time) (Thread, error) {
	if err := checkPayload(m); err != nil {
		return Thread{}, err
	}
	t := Thread{ID: m.Thread, Client: m.Sender.ID, State: Open, RequestID: m.RequestID,
		Recipient: m.Recipient, Offers: []Offer{}}
	return t.step(Pending, transitionOf(m, now)), nil
}

// Next returns t after m at now, or why m may not move it. The message's thread id is t's; everything else is checked:
// the sender's role, the counterpart named in recipient, the request_id, the state, the payload's required members.
//
// Errors, the first that applies: CodeForbidden (wrong party), CodeInvalidRequest (payload or request_id),
// CodeInvalidTransition with the state in the details (the right party at the wrong time), CodeRateLimited (too many
// offers).
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
	switch m.Type {
	case envelope.TypeOffer:
		return r.offer(t, m, now)
	case envelope.TypeAccept:
		return t.accept(m, now)
	case envelope.TypeCancel:
		if t.State == Pending || t.State == Active {
			return t.step(Failed, transitionOf(m, now)), nil
		}
	case envelope.TypeResult:
		if t.State == Active {
			return t.step(Completed, transitionOf(m, now)), nil
		}
	case envelope.TypeError:
		return t.fail(m, now)
	}
	return Thread{}, t.wrongState(m, "")
}

func transitionOf(m *envelope.Envelope, now time.Time) Transition {
	return Transition{Type: m.Type, By: m.Sender.ID, ID: m.ID, At: now}
}

// checkRole asks whether the sender could ever send this type in this thread, and to this recipient. Which agent may
// deliver is open until the ACCEPT, so before it an agent that may still be chosen is early rather than a stranger.
func (t Thread) checkRole(m *envelope.Envelope) error {
	sender := m.Sender.ID
	client := sender == t.Client
	var may bool
	switch m.Type {
	case envelope.TypeRequest, envelope.TypeAccept, envelope.TypeCancel:
		may = client
	case envelope.TypeOffer:
		may = !client && (t.Recipient == "" || sender == t.Recipient)
	case envelope.TypeResult:
		may = !client && t.IsParty(sender)
	case envelope.TypeError:
		may = t.IsParty(sender) || t.Offered(sender)
	}
	if !may {
		return envelope.Errorf(envelope.CodeForbidden, "thread %s is not yours to move with %s: %s may", t.ID, m.Type, whoMay(m.Type))
	}
	if m.Recipient != "" && m.Type != envelope.TypeRequest && !t.counterpart(client, m.Recipient) {
		// The client is at home here: an agent that made no offer is a matter of the state, for ACCEPT.
		if m.Type == envelope.TypeAccept {
			return t.wrongState(m, "; recipient.id has made no offer that stands")
		}
		return envelope.Errorf(envelope.CodeForbidden, "recipient.id is not your counterpart in thread %s", t.ID)
	}
	return nil
}

func whoMay(typ envelope.Type) string {
	switch typ {
	case envelope.TypeOffer:
		return "any agent but the client, or only the one the REQUEST names,"
	case envelope.TypeResult:
		return "only the agent whose offer was accepted"
	case envelope.TypeError:
		return "only its parties"
	}
	return "only its client"
}

func (t Thread) counterpart(ofClient bool, did didkey.DID) bool {
	if !ofClient {
		return did == t.Client
	}
	return slices.Contains(t.Agents(), did) || t.Agent == "" && t.Offered(did)
}

// checkPayload asks for the members the relay itself relies on; the rest of a payload is the parties' business.
func checkPayload(m *envelope.Envelope) error {
	var required []string
	switch m.Type {
	case envelope.TypeRequest:
		required = []string{"intent"}
	case envelope.TypeResult:
		required = []string{"status"}
	case envelope.TypeError:
		required = []string{"code", "message"}
	}
	for _, name := range required {
		if m.PayloadString(name) == "" {
			return envelope.Errorf(envelope.CodeInvalidRequest, "a %s needs payload.%s, a string that is not empty", m.Type, name)
		}
	}
	return nil
}

func (t Thread) checkRequestID(m *envelope.Envelope) error {
	required := m.Type == envelope.TypeOffer || m.Type == envelope.TypeAccept || m.Type == envelope.TypeResult
	if m.RequestID == t.RequestID || m.RequestID == "" && !required || m.Type == envelope.TypeRequest {
		return nil
	}
	return envelope.Errorf(envelope.CodeInvalidRequest, "payload.request_id must be the one of the thread's REQUEST")
}

func (r Rules) offer(t Thread, m *envelope.Envelope, now time.Time) (Thread, error) {
	if t.State != Pending {
		return Thread{}, t.wrongState(m, "")
	}
	if limit := r.WithDefaults().MaxOffers; t.OffersMade >= limit {
		return Thread{}, &envelope.Error{Code: envelope.CodeRateLimited,
			Message: "the thread has all the offers it may get", Details: map[string]any{envelope.DetailLimit: envelope.LimitOffersPerThread, envelope.DetailMaxOffers: limit}}
	}
	t = t.step(Pending, transitionOf(m, now))
	t.OffersMade++
	t.Offers = append(t.Offers, Offer{Agent: m.Sender.ID, ID: m.ID, At: now})
	return t, nil
}

func (t Thread) accept(m *envelope.Envelope, now time.Time) (Thread, error) {
	if t.State != Pending {
		return Thread{}, t.wrongState(m, "")
	}
	agent := m.Recipient
	if agent == "" {
		offered := t.offering()
		if len(offered) != 1 {
			return Thread{}, t.wrongState(m, "; without recipient.id exactly one agent must have offered")
		}
		agent = offered[0]
	} else if !t.Offered(agent) {
		return Thread{}, t.wrongState(m, "; recipient.id has made no offer that stands")
	}
	t = t.step(Active, transitionOf(m, now))
	t.Agent = agent
	return t, nil
}

// fail ends the thread for a party; from an agent who is none yet it only takes the offer back.
func (t Thread) fail(m *envelope.Envelope, now time.Time) (Thread, error) {
	sender := m.Sender.ID
	if t.State == Failed {
		return Thread{}, t.wrongState(m, "")
	}
	if sender == t.Client || sender == t.Agent || sender == t.Recipient {
		return t.step(Failed, transitionOf(m, now)), nil
	}
	t = t.step(t.State, transitionOf(m, now))
	t.Offers = slices.DeleteFunc(t.Offers, func(o Offer) bool { return o.Agent == sender })
	return t, nil
}

// wrongState refuses a message that t's state does not admit. Of a thread that the clock has ended it says when that was
// and how to go on, to those who wait for its end: all while it was PENDING, then its parties.
func (t Thread) wrongState(m *envelope.Envelope, why string) error {
	is := "is " + string(t.State)
	if last := len(t.Transitions) - 1; t.TimedOut() && (t.Transitions[last].From == Pending || t.IsParty(m.Sender.ID)) {
		is = "timed out at " + envelope.FormatTime(t.Transitions[last].At) + " and is " + string(t.State)
		why += "; ask again with a REQUEST in a new thread"
	}
	return &envelope.Error{Code: envelope.CodeInvalidTransition,
		Message: "thread " + t.ID + " " + is + ", which does not admit this " + string(m.Type) + why,
		Details: map[string]any{"state": t.State}}
}
