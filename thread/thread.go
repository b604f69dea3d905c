// Package thread is the state machine of a conversation: OPEN → PENDING → ACTIVE → COMPLETED or ERROR.
//
// A thread belongs to its client, the sender of its REQUEST. Its key is (client, thread id). A sender that copies a
// thread id therefore opens a separate thread. Each identity has a role in a thread, and the role decides which
// messages it may send (PROTOCOL §4).
//
// The package has only pure functions. Rules.Next returns the thread after a message, or an error. Rules.At returns the
// thread after the time has passed. A store calls them inside the transaction that appends the message. So of two
// conflicting concurrent messages, only one is accepted.
package thread

import (
	"cmp"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// State is the state of a thread.
type State = envelope.State

// The states of PROTOCOL §4.
const (
	Open      State = "OPEN" // before the REQUEST; no stored thread has this state
	Pending   State = "PENDING"
	Active    State = "ACTIVE"
	Completed State = "COMPLETED"
	Failed    State = "ERROR"
)

// States returns every State. A state is stored as its index in this list, which therefore grows only at the end.
func States() []State { return []State{Open, Pending, Active, Completed, Failed} }

// Key identifies a thread.
type Key struct {
	Client didkey.DID
	ID     string
}

// Thread is the record of one conversation. Code must not change a Thread in place: Rules.Next returns a new Thread
// that shares no slices with the old one.
type Thread struct {
	ID          string       `json:"id"`
	Client      didkey.DID   `json:"client"`
	State       State        `json:"state"`
	RequestID   string       `json:"requestId,omitempty"`
	Recipient   didkey.DID   `json:"recipient,omitempty"`  // the agent that the REQUEST names; only it may offer
	Agent       didkey.DID   `json:"agent,omitempty"`      // the agent whose offer was accepted
	Offers      []Offer      `json:"offers"`               // open offers, oldest first; never nil
	OffersMade  int          `json:"offersMade,omitempty"` // all offers so far, including withdrawn ones
	Transitions []Transition `json:"transitions"`
	Terms       Terms        `json:"-"` // not shown to clients
}

// Terms override the Rules for one thread. A part of the relay that opens a thread, such as a gateway, sets them. The
// zero Terms change nothing.
type Terms struct {
	PendingTimeout time.Duration // 0: as in the Rules
	ActiveTimeout  time.Duration // 0: as in the Rules
	Quiet          bool          // the parties get no notice when the thread times out
}

// Offer is an open offer: it was made and not withdrawn.
type Offer struct {
	Agent didkey.DID `json:"agent"`
	ID    string     `json:"id"` // the id of the OFFER envelope
	At    time.Time  `json:"at"` // when the OFFER arrived, by the relay's clock
}

// Transition is one step in the history of a thread. A timeout has the type TIMEOUT and an empty By.
type Transition struct {
	From State         `json:"from"`
	To   State         `json:"to"`
	Type envelope.Type `json:"type"`
	By   didkey.DID    `json:"by,omitempty"`
	ID   string        `json:"id,omitempty"` // the id of the envelope
	At   time.Time     `json:"at"`           // by the relay's clock
}

// TypeTimeout is the type of a Transition at a deadline. No envelope has this type.
const TypeTimeout envelope.Type = "TIMEOUT"

// TypeRemoved is the type of a Transition by which the operator of the relay has ended the thread. Like TypeTimeout, it
// has an empty By.
const TypeRemoved envelope.Type = "REMOVED"

// StepTypes returns every type of a Transition. A type is stored as its index in this list: the number that package
// envelope gives it, 6 for a timeout and 7 for a removal.
func StepTypes() []envelope.Type {
	types := map[int]envelope.Type{6: TypeTimeout, 7: TypeRemoved}
	highest := 7
	for _, row := range envelope.TypeTable() {
		types[row.Number] = row.Type
		highest = max(highest, row.Number)
	}
	list := make([]envelope.Type, highest+1)
	for number, typ := range types {
		list[number] = typ
	}
	return list
}

// Remove returns t after the operator of the relay has ended it at now. A thread that has ended is unchanged.
func (t Thread) Remove(now time.Time) Thread {
	if t.State == Completed || t.State == Failed {
		return t
	}
	return t.step(Failed, Transition{Type: TypeRemoved, At: now})
}

// Key returns the thread's key.
func (t Thread) Key() Key { return Key{t.Client, t.ID} }

// Offered reports whether agent has an open offer in t.
func (t Thread) Offered(agent didkey.DID) bool {
	return slices.ContainsFunc(t.Offers, func(o Offer) bool { return o.Agent == agent })
}

// IsParty reports whether did is the client of t or one of t.Agents.
func (t Thread) IsParty(did didkey.DID) bool {
	return did == t.Client || slices.Contains(t.Agents(), did)
}

// Unasked reports whether did has not asked for messages of t. An identity asks for messages by opening the thread, by
// offering in it, or by being the accepted agent.
func (t Thread) Unasked(did didkey.DID) bool {
	return did != t.Client && did != t.Agent && !slices.ContainsFunc(t.Transitions, func(s Transition) bool {
		return s.Type == envelope.TypeOffer && s.By == did
	})
}

// Agents returns the counterparts of the client: the accepted agent. If there is none, the recipient that the REQUEST
// named. If there is none, all agents with an open offer.
func (t Thread) Agents() []didkey.DID {
	if t.Agent != "" {
		return []didkey.DID{t.Agent}
	}
	if t.Recipient != "" {
		return []didkey.DID{t.Recipient}
	}
	return t.offering()
}

// offering returns the agents with an open offer, each once, in the order of their first open offer.
func (t Thread) offering() []didkey.DID {
	var agents []didkey.DID
	for _, o := range t.Offers {
		if !slices.Contains(agents, o.Agent) {
			agents = append(agents, o.Agent)
		}
	}
	return agents
}

// Rules are a relay's timeouts and limits. The zero value means the values of the protocol.
type Rules struct {
	PendingTimeout time.Duration // from the REQUEST or the last OFFER to the timeout; 0: 5 minutes
	ActiveTimeout  time.Duration // from the ACCEPT to the timeout; 0: 1 hour
	MaxOffers      int           // offers in a thread, including withdrawn ones; 0: 100
}

// The protocol's values, which replace the zero fields of Rules.
const (
	DefaultPendingTimeout = 5 * time.Minute
	DefaultActiveTimeout  = time.Hour
	DefaultMaxOffers      = 100
)

// WithDefaults returns r with its zero fields replaced by the defaults.
func (r Rules) WithDefaults() Rules {
	if r.PendingTimeout == 0 {
		r.PendingTimeout = DefaultPendingTimeout
	}
	if r.ActiveTimeout == 0 {
		r.ActiveTimeout = DefaultActiveTimeout
	}
	if r.MaxOffers == 0 {
		r.MaxOffers = DefaultMaxOffers
	}
	return r
}

// Deadline returns the time at which t times out if no message changes it before. ok is false for a thread that has
// ended.
func (r Rules) Deadline(t Thread) (deadline time.Time, ok bool) {
	r = r.WithDefaults()
	for _, step := range slices.Backward(t.Transitions) {
		switch {
		case t.State == Pending && (step.Type == envelope.TypeRequest || step.Type == envelope.TypeOffer):
			return step.At.Add(cmp.Or(t.Terms.PendingTimeout, r.PendingTimeout)), true
		case t.State == Active && step.Type == envelope.TypeAccept:
			return step.At.Add(cmp.Or(t.Terms.ActiveTimeout, r.ActiveTimeout)), true
		}
	}
	return time.Time{}, false
}

// At returns t at now. If now is at or after the deadline, the thread has timed out. Otherwise it is unchanged.
func (r Rules) At(t Thread, now time.Time) Thread {
	deadline, ok := r.Deadline(t)
	if !ok || now.Before(deadline) {
		return t
	}
	return t.step(Failed, Transition{Type: TypeTimeout, At: deadline})
}

// TimedOut reports whether t ended by a timeout.
func (t Thread) TimedOut() bool {
	n := len(t.Transitions)
	return n > 0 && t.Transitions[n-1].Type == TypeTimeout
}

// step returns t after one more transition to the state to. The result shares no slices with t.
func (t Thread) step(to State, by Transition) Thread {
	by.From, by.To = t.State, to
	t.State = to
	t.Offers = slices.Clone(t.Offers)
	t.Transitions = append(slices.Clone(t.Transitions), by)
	return t
}
