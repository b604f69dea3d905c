// Package thread is the state machine of a conversation: OPEN → PENDING → ACTIVE → COMPLETED or ERROR.
//
// A thread belongs to its client, the sender of its REQUEST, so its key is (client, thread id): whoever copies an id
// gets a thread of his own. Who may do what is bound to identities (PROTOCOL §4).
//
// The package is pure: Rules.Next maps (thread, message, time) to the next thread or a refusal, and Rules.At says what
// the clock alone has done. Stores call both inside the step that appends, so a race has one winner.
package thread

import (
	"cmp"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// State is where a thread stands.
type State string

const (
	Open      State = "OPEN" // nothing yet; no record has this state
	Pending   State = "PENDING"
	Active    State = "ACTIVE"
	Completed State = "COMPLETED"
	Failed    State = "ERROR"
)

// Key names a thread.
type Key struct {
	Client didkey.DID
	ID     string
}

// Thread is the record of one conversation. It is a value: Next returns a new one and shares nothing with the old.
type Thread struct {
	ID          string       `json:"id"`
	Client      didkey.DID   `json:"client"`
	State       State        `json:"state"`
	RequestID   string       `json:"requestId,omitempty"`
	Recipient   didkey.DID   `json:"recipient,omitempty"` // whom the REQUEST named: the only one who may offer
	Agent       didkey.DID   `json:"agent,omitempty"`     // whose offer was accepted
	Offers      []Offer      `json:"offers"`              // standing ones, oldest first; never nil
	OffersMade  int          `json:"offersMade,omitempty"`
	Transitions []Transition `json:"transitions"`
	Terms       Terms        `json:"-"` // known to the relay only
}

// Terms are what a part of the relay that opens a thread decides about it, in place of the Rules. The zero Terms leave
// everything to the Rules.
type Terms struct {
	PendingTimeout time.Duration // 0: the Rules'
	ActiveTimeout  time.Duration // 0: the Rules'
	Quiet          bool          // the parties get no notice when the clock ends the thread
}

// Offer is an offer that stands: made and not withdrawn.
type Offer struct {
	Agent didkey.DID `json:"agent"`
	ID    string     `json:"id"` // of the OFFER envelope
	At    time.Time  `json:"at"`
}

// Transition is one step of a thread's history. A step by the clock has the type TIMEOUT and nobody in By.
type Transition struct {
	From State         `json:"from"`
	To   State         `json:"to"`
	Type envelope.Type `json:"type"`
	By   didkey.DID    `json:"by,omitempty"`
	ID   string        `json:"id,omitempty"` // of the envelope
	At   time.Time     `json:"at"`           // the relay's clock
}

// TypeTimeout marks a Transition made by the clock; no envelope has it.
const TypeTimeout envelope.Type = "TIMEOUT"

// Key returns the thread's key.
func (t Thread) Key() Key { return Key{t.Client, t.ID} }

// Offered reports whether an offer by agent stands.
func (t Thread) Offered(agent didkey.DID) bool {
	return slices.ContainsFunc(t.Offers, func(o Offer) bool { return o.Agent == agent })
}

// IsParty reports whether did takes part: as the client, or as one of Agents.
func (t Thread) IsParty(did didkey.DID) bool {
	return did == t.Client || slices.Contains(t.Agents(), did)
}

// Unasked reports whether mail of t is nothing that did asked for: did has not opened t, has not offered in it and was not
// accepted.
func (t Thread) Unasked(did didkey.DID) bool {
	return did != t.Client && did != t.Agent && !slices.ContainsFunc(t.Transitions, func(s Transition) bool {
		return s.Type == envelope.TypeOffer && s.By == did
	})
}

// Agents returns the client's counterparts: the accepted agent, else the named recipient, else those who offered.
func (t Thread) Agents() []didkey.DID {
	if t.Agent != "" {
		return []didkey.DID{t.Agent}
	}
	if t.Recipient != "" {
		return []didkey.DID{t.Recipient}
	}
	return t.offering()
}

// offering returns the agents with a standing offer, each once, the first to offer first.
func (t Thread) offering() []didkey.DID {
	var agents []didkey.DID
	for _, o := range t.Offers {
		if !slices.Contains(agents, o.Agent) {
			agents = append(agents, o.Agent)
		}
	}
	return agents
}

// Rules are a relay's timeouts and limits. The zero value has the protocol's.
type Rules struct {
	PendingTimeout time.Duration // since the REQUEST or the last OFFER; 0: 5 minutes
	ActiveTimeout  time.Duration // since the ACCEPT; 0: 1 hour
	MaxOffers      int           // per thread, withdrawn ones counted; 0: 100
}

// Defaults of Rules.
const (
	DefaultPendingTimeout = 5 * time.Minute
	DefaultActiveTimeout  = time.Hour
	DefaultMaxOffers      = 100
)

// WithDefaults returns r with its zero fields replaced.
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

// Deadline returns when the clock will end t if nothing happens; ok is false for a thread that has ended.
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

// At returns t as it stands at now: ended by the clock if its deadline has come, else unchanged.
func (r Rules) At(t Thread, now time.Time) Thread {
	deadline, ok := r.Deadline(t)
	if !ok || now.Before(deadline) {
		return t
	}
	return t.step(Failed, Transition{Type: TypeTimeout, At: deadline})
}

// TimedOut reports whether the clock ended t.
func (t Thread) TimedOut() bool {
	n := len(t.Transitions)
	return n > 0 && t.Transitions[n-1].Type == TypeTimeout
}

// step returns t after one more transition, sharing no slice with it.
func (t Thread) step(to State, by Transition) Thread {
	by.From, by.To = t.State, to
	t.State = to
	t.Offers = slices.Clone(t.Offers)
	t.Transitions = append(slices.Clone(t.Transitions), by)
	return t
}
