package client

import (
	"context"
	"time"
)

// What a NetworkCall posts again in the threads that continue a job.

// openAgain posts the REQUEST of a thread once more, if open was interrupted. It returns ctx's error.
func (j *NetworkCall) openAgain(ctx context.Context, l *leg) error {
	j.mu.Lock()
	cut := l.cut
	j.mu.Unlock()
	if !cut {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, j.network.opts.Silence)
	defer cancel()
	began := time.Now()
	_, err := l.peer.PostEnvelope(within, l.call.links.Request)
	err = j.insist(within, l.peer, l.call.links.Request, err)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	l.cut = false
	switch {
	case err == nil:
	case Unanswered(err) || within.Err() != nil:
		l.Sent(began)
	default:
		l.Lost = "does not take the REQUEST"
	}
	j.notify()
	return nil
}

// acceptAgain accepts the agent's offer in a thread that continues the job, and returns nil. In a thread with an ACCEPT
// it returns nil at once, unless an earlier call was interrupted while it posted the ACCEPT.
func (j *NetworkCall) acceptAgain(ctx context.Context, l *leg) error {
	j.mu.Lock()
	decided, open := l.Decided, l.open
	j.mu.Unlock()
	if open != nil {
		j.acceptContinued(ctx, l, *open)
	}
	if decided {
		return nil
	}
	for offer, err := range l.call.Offers(ctx) {
		if err != nil {
			return err
		}
		j.mu.Lock()
		l.Offered = true
		err = j.decide(l, offer)
		j.mu.Unlock()
		if err != nil {
			j.network.log.Warn("an offer was not accepted", "agent", offer.Agent, "reason", err)
			continue
		}
		j.acceptContinued(ctx, l, offer)
		return nil
	}
	return nil
}

// acceptContinued accepts an offer in a thread that continues the job. A home that refuses the ACCEPT is left.
func (j *NetworkCall) acceptContinued(ctx context.Context, l *leg, offer Offer) {
	err := j.accept(ctx, l, offer)
	if err == nil || ctx.Err() != nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	l.Lost = "has refused the ACCEPT"
	j.notify()
	j.network.log.Warn("the ACCEPT of a continued job was refused", "thread", l.call.Thread, "error", err)
}
