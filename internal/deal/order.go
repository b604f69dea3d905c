package deal

import (
	"errors"
	"fmt"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// MaxContinued is how often a job is continued at another relay (RELAYS R-15).
const MaxContinued = 3

// Order is the client's side of a job: its threads, and for which agent it has signed an ACCEPT. It says when the job
// is to be continued at another relay, and which OFFERs can be accepted (RELAYS ). It is not safe for
// concurrent use.
type Order struct {
	Recipient didkey.DID // the only agent that may answer; empty: every agent
	Ends      time.Time  // when the first REQUEST expires, or the job's deadline if that is earlier
	Silence   time.Duration
	OfferWait time.Duration

	Agent didkey.DID // for which an ACCEPT was signed; empty: none
	Price float64    // of the accepted OFFER
	Legs  []*Leg     // the threads, in the order in which they were opened
}

// Leg is one thread of a job.
type Leg struct {
	Home    didkey.DID
	Opened  time.Time
	Offered bool   // an OFFER of the recipient came
	Decided bool   // an ACCEPT was signed, stored or not
	Refused bool   // the relay has refused the ACCEPT, so the REQUEST never gets another
	Lost    string // why the thread cannot continue there; empty: it can

	unread, unsent time.Time // since when reads and posts of the thread get no valid answer; zero: they do
}

// Add adds the newest thread.
func (o *Order) Add(l *Leg) { o.Legs = append(o.Legs, l) }

// Newest returns the newest thread.
func (o *Order) Newest() *Leg { return o.Legs[len(o.Legs)-1] }

// Read records a read of the thread: its time, or the time at which an answer was due if that is earlier, and whether
// the home gave a valid answer.
func (l *Leg) Read(at time.Time, valid bool) {
	if valid {
		l.unread = time.Time{}
	} else if l.unread.IsZero() {
		l.unread = at
	}
}

// Sent records that posts of the thread have got no valid answer since that time. A valid answer to a later read does
// not change that.
func (l *Leg) Sent(since time.Time) { l.unsent = since }

// silent returns since when the home gives no valid answer; zero: it does.
func (l *Leg) silent() time.Time {
	if l.unread.IsZero() || !l.unsent.IsZero() && l.unsent.Before(l.unread) {
		return l.unsent
	}
	return l.unread
}

// For returns the only agent that may answer; empty: every agent.
func (o *Order) For() didkey.DID {
	if o.Agent != "" {
		return o.Agent
	}
	return o.Recipient
}

// Due returns when the job is to be continued at another relay, and why in a few words; zero: it need not be. caught
// reports whether a relay was caught.
func (o *Order) Due(now time.Time, caught func(didkey.DID) bool) (at time.Time, reason string) {
	l := o.Newest()
	switch silent := l.silent(); {
	case len(o.Legs) > MaxContinued:
	case caught(l.Home):
		return now, "was caught"
	case l.Lost != "":
		return now, l.Lost
	case !silent.IsZero():
		return silent.Add(o.Silence), "is silent"
	case o.For() != "" && !l.Offered && !l.Decided:
		return l.Opened.Add(min(o.OfferWait, max(o.Ends.Sub(l.Opened)/4, time.Second))), "shows no offer"
	}
	return time.Time{}, ""
}

// Decide records that an ACCEPT of an OFFER in this thread is signed, or returns the reason why none can be.
func (o *Order) Decide(l *Leg, agent didkey.DID, price float64) error {
	switch {
	case l != o.Newest() && !l.Decided:
		return errors.New("the job was continued in another thread, which has its own offers")
	case l.Refused:
		return errors.New("the relay has refused an ACCEPT of this request; a request never gets a second one")
	case o.Agent != "" && agent != o.Agent:
		return fmt.Errorf("an ACCEPT was signed for %s, so no other agent can get the job", o.Agent)
	case o.Agent != "" && price > o.Price:
		return fmt.Errorf("it costs %v, and an offer for %v was accepted before", price, o.Price)
	}
	l.Decided, o.Agent, o.Price = true, agent, price
	return nil
}

// MayCancel reports whether a thread that the job has left is to be cancelled: never one with an ACCEPT (RELAYS R-16).
func (o *Order) MayCancel(l *Leg) bool { return l != o.Newest() && !l.Decided }
