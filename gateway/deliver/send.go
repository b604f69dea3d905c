package deliver

import (
	"context"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// Draft is a REQUEST that can be sent now.
type Draft struct {
	Delivery
	Request envelope.Payload
	Err     error // why it can never be sent; nil: it can
}

// Queue is the part of a gateway that has deliveries which wait for room. A lane is an agent, or several lanes are.
type Queue interface {
	// NextLane returns the first lane after this one in which a delivery waits; 0: there is none.
	NextLane(q relay.Querier, after int64) (lane int64, err error)
	// Next returns what a lane sends next. The Delivery is zero if nothing waits, or there is no room.
	Next(q relay.Querier, lane int64) (Draft, error)
	// Sent records that the REQUEST was sent, in the same Update. done is false if it must not be sent any more; then
	// nothing is changed.
	Sent(o *gateway.Op, d Draft) (done bool, err error)
	// Fail ends a delivery whose REQUEST the relay refuses, unless it has ended.
	Fail(o *gateway.Op, d Draft, why error) error
}

// retryInterval is how long the gateway waits before it sends again, if an inbox was full.
const retryInterval = time.Minute

// Wake makes the gateway look for REQUESTs that can be sent. Call it after an Update that has added one, or made room.
func (d *Deliveries) Wake() {
	select {
	case d.woken <- struct{}{}:
	default: // it was woken before
	}
}

// send sends REQUESTs as soon as there is room for them, until ctx ends.
func (d *Deliveries) send(ctx context.Context) {
	ticker := time.NewTicker(retryInterval)
	defer ticker.Stop()
	for {
		err := gateway.Insist(ctx, func() error { return d.sendAll(ctx) }, func(err error) {
			if d.core.Relay.Health() == nil {
				d.core.Log.Error("work cannot be sent to agents now; the gateway tries again", "err", err)
			}
		})
		if err != nil {
			return
		}
		select {
		case <-d.woken:
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// sendAll sends the REQUESTs for which there is room.
func (d *Deliveries) sendAll(ctx context.Context) error {
	for lane := int64(0); ; {
		err := d.core.Relay.View(ctx, self, func(q relay.Querier) (err error) {
			lane, err = d.queue.NextLane(q, lane)
			return err
		})
		if err != nil || lane == 0 {
			return err
		}
		for more := true; more; {
			if more, err = d.sendNext(ctx, lane); err != nil {
				return err
			}
		}
	}
}

// sendNext sends one REQUEST of a lane. more means that there may be room for another one.
func (d *Deliveries) sendNext(ctx context.Context, lane int64) (more bool, err error) {
	var x Draft
	err = d.core.Relay.View(ctx, self, func(q relay.Querier) (err error) {
		x, err = d.queue.Next(q, lane)
		return err
	})
	if err != nil || x.N == 0 {
		return false, err
	}
	refused := x.Err
	var checked relay.Checked
	if refused == nil {
		if checked, err = d.Seal(x.ID, x.Owner, x.Request); err != nil && !final(err) {
			return false, err
		}
		refused = err
	}
	err = d.core.Update(context.WithoutCancel(ctx), self, func(o *gateway.Op) error {
		why := refused
		if why == nil {
			done, err := d.queue.Sent(o, x)
			if err != nil || !done {
				return err
			}
			if why = d.Append(o, checked); why == nil || !final(why) {
				return why
			}
		}
		d.core.Log.Warn("the relay refuses the gateway's REQUEST to an agent", "delivery", x.ID, "err", why)
		return d.queue.Fail(o, x, why)
	})
	if envelope.CodeOf(err) == envelope.CodeRateLimited { // the agent's inbox is full, so it is tried again (B-3)
		return false, nil
	}
	return err == nil, err
}

// final reports whether the refusal of a REQUEST will be the same again.
func final(err error) bool {
	return Refused(err) && envelope.CodeOf(err) != envelope.CodeRateLimited
}
