// Package deliver hands work to agents: each piece as one sealed REQUEST of the gateways' DID. The agent answers with an
// OFFER, a RESULT or an ERROR, and so serves the hub, jobs, channels and A2A in the same way, from behind NAT. The package
// sends REQUESTs as soon as there is room for them, follows the answers, and cancels what ends otherwise. A gateway keeps
// the rows: it says what each REQUEST says, and what each answer means, see Mapping. The package makes no HTTP request.
package deliver

import (
	"context"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// Life is how long a REQUEST waits for an OFFER, and how long the agent can work after the ACCEPT (B-2).
const Life = 24 * time.Hour

// Window is how many REQUESTs of one gateway to one agent may wait for an OFFER (B-3).
const Window = 50

// State is how far a delivery is.
type State int64

// The states of a delivery.
const (
	Waiting  State = iota // the REQUEST waits for room
	Sent                  // it waits for an OFFER
	Accepted              // the agent works
	Over
)

// Delivery is what the package knows of a row of a gateway. The zero Delivery means that there is none.
type Delivery struct {
	N     int64      // the number of the row
	ID    string     // of the REQUEST and of its thread
	Owner didkey.DID // to whom it goes; empty: nobody, because the agent has left
	State State
}

// open reports whether the thread of a delivery can continue.
func (d Delivery) open() bool {
	return d.N != 0 && d.Owner != "" && (d.State == Sent || d.State == Accepted)
}

// Effect is what an answer of an agent leads to. The zero Effect is none.
type Effect struct {
	Accept bool   // the OFFER is accepted
	Cancel string // the REQUEST is canceled, for this reason; empty: it is not
	// Apply stores the effect, in the Update of the gateway's own message. It is not called if the relay refuses that
	// message, for example because the thread has ended, or if the delivery has another state by then.
	Apply func(o *gateway.Op) error
}

// Mapping is the part of a gateway that knows what its deliveries are.
type Mapping interface {
	// Find returns the delivery with an id.
	Find(q relay.Querier, id string) (Delivery, error)
	// Answer returns what an opened OFFER, RESULT or ERROR leads to. It changes nothing. An OFFER comes only for a delivery
	// that is Sent. It is called for several deliveries at the same time.
	Answer(ctx context.Context, d Delivery, e *envelope.Envelope) (Effect, error)
}

// self is a gateway as a peer of the relay.
var self = relay.Peer{Local: true}

// Deliveries are the REQUESTs of one gateway. Run must be running.
type Deliveries struct {
	core    *gateway.Core
	table   gateway.Table // has the position
	mapping Mapping
	queue   Queue         // nil: nothing waits
	woken   chan struct{} // makes the gateway look for REQUESTs that can be sent; has room for one
	after   relay.Seq     // the events up to this one were handled before the start
	posters posters
}

// New returns the deliveries of a gateway, such as "hub". Its table hub_position has the position. queue is nil if no
// REQUEST of the gateway waits for room. Call New before the first REQUEST is sent.
func New(ctx context.Context, c *gateway.Core, name string, m Mapping, queue Queue) (*Deliveries, error) {
	d := &Deliveries{core: c, table: PositionTable(name), mapping: m, queue: queue, woken: make(chan struct{}, 1)}
	return d, d.start(ctx)
}

// Run sends REQUESTs and follows their answers until ctx ends.
func (d *Deliveries) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	tasks.Go(func() { d.follow(ctx) })
	if d.queue != nil {
		tasks.Go(func() { d.send(ctx) })
	}
	tasks.Wait()
}

// Seal returns a REQUEST to an agent. Errors: those of envelope.Draft.Sign and relay.Relay.Check.
func (d *Deliveries) Seal(id string, owner didkey.DID, request envelope.Payload) (relay.Checked, error) {
	return d.seal(envelope.Draft{ID: id, Thread: id, Recipient: owner, TTL: Life, Payload: request})
}

// seal signs and seals an envelope of the gateways, and checks it as the relay checks any envelope.
func (d *Deliveries) seal(draft envelope.Draft) (relay.Checked, error) {
	draft.Seal, draft.Relays = true, []string{d.core.Relay.Origin()}
	e, err := draft.Sign(d.core.Key, d.core.Relay.Now())
	if err != nil {
		return relay.Checked{}, err
	}
	return d.core.Relay.Check(self, e.Canonical())
}

// Append stores a REQUEST of Seal, in the Update of its rows.
func (d *Deliveries) Append(o *gateway.Op, request relay.Checked) error {
	_, err := o.Append(request, thread.Terms{PendingTimeout: Life, ActiveTimeout: Life, Quiet: true})
	return err
}

// Refused reports whether the relay has refused an envelope of the gateways for good, for example because the thread has
// ended.
func Refused(err error) bool {
	switch envelope.CodeOf(err) {
	case "", envelope.CodeUnavailable, envelope.CodeInternal:
		return false
	}
	return true
}

// Costs reports whether an opened OFFER asks for money, or cannot be read. offer is what it says.
func Costs(e *envelope.Envelope) (offer envelope.Offer, costs bool) {
	if err := e.DecodePayload(&offer); err != nil {
		return envelope.Offer{}, true
	}
	return offer, offer.Price != nil && offer.Price.Amount != 0
}

// prepare returns what an event for the gateway leads to, for an Update; nil: nothing. It changes nothing. An event that
// belongs to no open delivery of its sender has no effect (B-4).
func (d *Deliveries) prepare(ctx context.Context, posted relay.Posted) (effect func(*gateway.Op) error, err error) {
	var x Delivery
	err = d.core.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		x, err = d.mapping.Find(q, posted.Envelope.Thread)
		return err
	})
	offer := posted.Envelope.Type == envelope.TypeOffer
	if err != nil || !x.open() || x.Owner != posted.Envelope.Sender.ID || offer && x.State != Sent {
		return nil, err
	}
	opened, err := posted.Envelope.Open(d.core.Key)
	if err != nil {
		d.core.Log.Warn("an answer of an agent cannot be decrypted", "delivery", x.ID, "err", err)
		return nil, nil
	}
	f, err := d.mapping.Answer(ctx, x, opened)
	var answer relay.Checked
	if err == nil {
		answer, err = d.answer(x, f)
	}
	if Refused(err) {
		d.core.Log.Warn("the relay refuses the gateway's message to an agent", "delivery", x.ID, "err", err)
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return func(o *gateway.Op) error {
		if first, err := d.once(o, posted.Seq); err != nil || !first {
			return err
		}
		now, err := d.mapping.Find(o, x.ID)
		if err != nil || now != x || f.Apply == nil { // it has ended meanwhile
			return err
		}
		if answer.Envelope() != nil {
			if _, err := o.Append(answer, thread.Terms{}); Refused(err) {
				return nil // for example, the thread has ended in the meantime
			} else if err != nil {
				return err
			}
		}
		return f.Apply(o)
	}, nil
}

// answer returns the ACCEPT or the CANCEL of an effect, or the zero Checked.
func (d *Deliveries) answer(x Delivery, f Effect) (relay.Checked, error) {
	switch {
	case f.Cancel != "":
		return d.cancel(x, f.Cancel)
	case f.Accept:
		now := d.core.Relay.Now()
		return d.seal(envelope.Draft{Thread: x.ID, Recipient: x.Owner,
			Payload: envelope.Accept{RequestID: x.ID, AcceptedAt: &now}})
	}
	return relay.Checked{}, nil
}

// cancel returns the CANCEL of a delivery.
func (d *Deliveries) cancel(x Delivery, reason string) (relay.Checked, error) {
	return d.seal(envelope.Draft{Thread: x.ID, Recipient: x.Owner, Payload: envelope.Cancel{RequestID: x.ID, Reason: reason}})
}

// maxEnds is how often End tries again because other deliveries were opened meanwhile.
const maxEnds = 3

// End runs do in one Update, and cancels in it the threads of the deliveries that do has ended (B-2). find returns the
// deliveries that do may end. It also runs in the Update, before do. If find is nil, do ends none. Both may be run
// several times. reason is for the agents.
func (d *Deliveries) End(
	ctx context.Context, from relay.Peer, reason string, find func(q relay.Querier) ([]Delivery, error),
	do func(*gateway.Op) error,
) error {
	if find == nil {
		return d.core.Update(ctx, from, do)
	}
	for tries := 1; ; tries++ {
		var some []Delivery
		if err := d.core.Relay.View(ctx, from, func(q relay.Querier) (err error) {
			some, err = find(q)
			return err
		}); err != nil {
			return err
		}
		cancels := map[string]relay.Checked{}
		for _, x := range some {
			if !x.open() {
				continue
			}
			checked, err := d.cancel(x, reason)
			if err != nil && !Refused(err) {
				return err
			}
			cancels[x.ID] = checked
		}
		again := false
		err := d.core.Update(ctx, from, func(o *gateway.Op) error {
			again = false
			now, err := find(o)
			if err != nil {
				return err
			}
			for _, x := range now {
				if _, signed := cancels[x.ID]; x.open() && !signed {
					again = true
					return envelope.NotStored("this is being handed to an agent just now; try again", time.Second)
				}
			}
			if err := do(o); err != nil {
				return err
			}
			return d.cancelEnded(o, now, cancels)
		})
		if !again || tries == maxEnds {
			return err
		}
	}
}

// cancelEnded cancels the threads of those deliveries that were open and are no longer.
func (d *Deliveries) cancelEnded(o *gateway.Op, before []Delivery, cancels map[string]relay.Checked) error {
	for _, x := range before {
		checked := cancels[x.ID]
		if !x.open() || checked.Envelope() == nil {
			continue
		}
		now, err := d.mapping.Find(o, x.ID)
		if err != nil {
			return err
		}
		if now.open() {
			continue
		}
		if _, err := o.Append(checked, thread.Terms{}); err != nil && !Refused(err) {
			return err
		}
	}
	return nil
}
